"""Pickles wrapped functions by their names, or by their parts.

A wrapper that its module has under the function's name pickles by that name. Any other
pickles as the function that it wraps (``cloudpickle`` also takes lambdas and nested
functions) and its options. Compiled code stays in its process. Another process compiles
again, or finds the kernels in the disk cache.
"""

from __future__ import annotations

import copyreg
import sys
from types import FrameType
from typing import Any, Protocol


class Wrapper(Protocol):
    """What ``pickled`` takes: an object with a function's names."""

    __module__: str
    __qualname__: str


def pickled(wrapper: Wrapper, state: Any) -> str | tuple[Any, ...]:
    """Return what ``wrapper.__reduce__`` returns: a name, or the class and ``state``.

    The name if the module has ``wrapper`` under it, unless cloudpickle pickles an
    object of ``__main__``. Unpickling calls ``__setstate__`` with ``state``.
    """
    if _is_found(wrapper) and not (
        wrapper.__module__ == "__main__" and _is_pickled_by_value()
    ):
        return wrapper.__qualname__
    new = copyreg.__newobj__  # type: ignore[attr-defined]
    return new, (type(wrapper),), state


def _is_found(wrapper: Wrapper) -> bool:
    """Whether the module of ``wrapper`` has it under its name."""
    value: Any = sys.modules.get(wrapper.__module__)
    for name in wrapper.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is wrapper


def _is_pickled_by_value() -> bool:
    """Whether cloudpickle is the caller.

    Processes that read its pickles need not have the main module of this one.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "cloudpickle" in str(frame.f_globals.get("__name__")).split("."):
            return True
        frame = frame.f_back
    return False
