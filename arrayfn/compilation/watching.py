"""Watching the calls of compiled functions, as a profile does.

Calls look here only where they leave their shortest way, and take no shortcut as long
as somebody watches: not being watched costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from arrayfn.backends.base import Backend, Executable
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.passes.faults import Site


class Watched(Protocol):
    """A function compiled for one signature, whose call is watched.

    ``began`` is when it began to be compiled, by ``time.perf_counter``, and ``seconds``
    what that took; 0 if that is not known.
    """

    @property
    def run(self) -> Executable:
        """What the call would run."""
        ...

    @property
    def compiled(self) -> CompiledProgram:
        """Its plan and kernels."""
        ...

    @property
    def backend(self) -> Backend:
        """What runs it."""
        ...

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites of its checks."""
        ...

    @property
    def began(self) -> float:
        """When it began to be compiled."""
        ...

    @property
    def seconds(self) -> float:
        """What compiling it took."""
        ...


Watcher = Callable[[Watched, tuple[Any, ...]], Sequence[Any]]
WATCHERS: Final[list[Watcher]] = []
"""Those that watch now; the last one runs the calls."""
_BEFORE: Final[list[Callable[[], object]]] = []


def before_watching(forget: Callable[[], object]) -> Callable[[], object]:
    """Have ``forget`` called before calls are watched; usable as a decorator."""
    _BEFORE.append(forget)
    return forget


@contextmanager
def watched(watcher: Watcher) -> Generator[None]:
    """Have ``watcher(function, arrays)`` run the calls of compiled functions."""
    for forget in _BEFORE:
        forget()
    WATCHERS.append(watcher)
    try:
        yield
    finally:
        WATCHERS.remove(watcher)
