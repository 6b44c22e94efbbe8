"""A griffe extension: doctests in docstrings become fenced code blocks.

The Google style knows examples only in a section of their own; ours stand where they
explain. Without a fence, Markdown would read them as quotations and links.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"(^>>> .*(?:\n(?!\n).*)*)", re.MULTILINE)


class FenceDoctests(griffe.Extension):
    """Fences every paragraph that begins with ``>>>``."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\1\n```", text)
