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
    """An object that ``pickled`` takes: it has the names of a function."""

    __module__: str
    __qualname__: str


def pickled(wrapper: Wrapper, state: Any) -> str | tuple[Any, ...]:
    """Return the result of ``wrapper.__reduce__``.

    It is the wrapper's name, if another process can find the wrapper by it. Otherwise
    it is the class and ``state``.
    """
    if _is_found(wrapper) and not (
        wrapper.__module__ == "__main__" and _is_pickled_by_value()
    ):
        return wrapper.__qualname__
    new = copyreg.__newobj__  # type: ignore[attr-defined]
    return new, (type(wrapper),), state


def _is_found(wrapper: Wrapper) -> bool:
    """Return whether the module of ``wrapper`` has it under its name."""
    object_of_name: Any = sys.modules.get(wrapper.__module__)
    for name in wrapper.__qualname__.split("."):
        object_of_name = getattr(object_of_name, name, None)
    return object_of_name is wrapper


def _is_pickled_by_value() -> bool:
    """Return whether cloudpickle is the caller.

    Processes that read its pickles need not have the main module of this one.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "cloudpickle" in str(frame.f_globals.get("__name__")).split("."):
            return True
        frame = frame.f_back
    return False
