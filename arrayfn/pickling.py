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
    """The result of ``wrapper.__reduce__``: its name, or its class and ``state``."""
    if _is_found(wrapper) and not (
        wrapper.__module__ == "__main__" and _is_pickled_by_value()
    ):
        return wrapper.__qualname__
    new = copyreg.__newobj__  # type: ignore[attr-defined]
    return new, (type(wrapper),), state


def _is_found(wrapper: Wrapper) -> bool:
    """Whether its module has ``wrapper`` under its name."""
    found: Any = sys.modules.get(wrapper.__module__)
    for name in wrapper.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is wrapper


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
