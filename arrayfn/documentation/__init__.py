"""Examples and facts of public functions, which ``help`` shows below their docstrings.

``NAMESPACE.txt`` has an entry for each function of ``arrayfn.NAMESPACE`` that has no
example in its docstring: its name, the function of NumPy or SciPy that it is, shapes,
dtypes and errors, and an example. Empty lines separate entries. Of these, names and
calls are written by hand; ``pytest tests/test_reference.py --update-golden`` computes
the rest, and without it the tests compare. Examples call NumPy ``np``, arrayfn ``af``
and arrayfn.numpy ``anp``.
"""

from __future__ import annotations

import sys
from functools import reduce
from pathlib import Path
from typing import Any, Final

from arrayfn.documentation.missing_names import tell_where

FOLDER: Final = Path(__file__).parent
# Python 3.13 takes the indentation from docstrings when it compiles them.
_INDENT: Final = "" if sys.version_info >= (3, 13) else "    "


def entries(namespace: str) -> dict[str, str]:
    """Read the entries of ``NAMESPACE.txt``: each one's text by its name."""
    text = (FOLDER / f"{namespace}.txt").read_text(encoding="utf-8")
    parts = (entry.partition("\n") for entry in text.strip().split("\n\n") if entry)
    return {name: rest for name, _, rest in parts}


def attach(module: str) -> None:
    """Add entries to the docstrings of the functions of ``module``.

    ``module`` is a name such as "arrayfn.numpy", whose entries are in ``numpy.txt``.
    Functions that are imported only when they are asked for get their entries then, by
    ``attach_to``. Also lets the error for a name that the module lacks say which module
    has it.
    """
    namespace = sys.modules[module]
    for name, text in entries(module.removeprefix("arrayfn.")).items():
        first, *inner = name.split(".")  # "Class.method" or "function"
        if first in vars(namespace):
            _add(text, reduce(getattr, inner, vars(namespace)[first]))
    tell_where(module)


def attach_to(module: str, name: str, value: Any) -> None:
    """Add the entry of ``name`` in ``module``, if there is one, to its ``value``."""
    text = entries(module.removeprefix("arrayfn.")).get(name)
    if text is not None:
        _add(text, value)


def _add(text: str, value: Any) -> None:
    """Add ``text`` to the docstring of ``value``, if it is one of arrayfn's."""
    if value.__doc__ is not None and value.__module__.startswith("arrayfn"):
        indented = text.replace("\n", f"\n{_INDENT}")
        value.__doc__ += f"\n\n{_INDENT}{indented}"
