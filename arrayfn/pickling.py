"""Wrapped functions pickle as functions do: by their names, or by their parts.

A function that a decorator replaced in its module is found there by name, as any
function of a module is. Another is its parts: the function that it wraps, which pickles
as functions do (``cloudpickle`` also takes lambdas and functions inside functions), and
the options. What was compiled stays in its process; another process compiles for
itself, or finds the kernels in the cache on disk.
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
    """What ``wrapper.__reduce__`` gives: its name, or its class and ``state``."""
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
    """Whether it is cloudpickle that asks.

    Its processes need not have what the main module of this one has.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "cloudpickle" in str(frame.f_globals.get("__name__")).split("."):
            return True
        frame = frame.f_back
    return False
