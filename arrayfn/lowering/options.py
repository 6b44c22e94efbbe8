"""What a caller may choose about how a Program is lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MODES: Final = ("persistent",)
"""Of plans, on a GPU: what ``jit(f, mode=...)`` takes besides None."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to lower a Program.

    Unless ``deterministic`` a target may add in whatever order is fastest, which can
    differ from run to run. ``mode`` is one of ``MODES``, or None: kernel by kernel.
    Unless ``fused`` every equation has a kernel of its own: to compare with.
    A target ignores an option that it has no use for.
    """

    deterministic: bool = True
    mode: str | None = None
    fused: bool = True


DEFAULT: Final = Options()
