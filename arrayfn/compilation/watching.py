"""Watches the calls of compiled functions, as a profile does.

Calls look here only where they leave their shortest way, and take no shortcut as long
as somebody watches: not being watched costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from arrayfn.backends.base import Backend, Executable
    from arrayfn.lowering.compiled import CompiledProgram
    from arrayfn.passes.faults import Site


class Watched(Protocol):
    """A compiled function whose calls are watched, as by ``profile``.

    ``began`` is the time at which its compilation began, by ``time.perf_counter``, and
    ``seconds`` the time that it took; both are 0 if that is not known.
    """

    @property
    def run(self) -> Executable:
        """The executable that the call would run."""
        ...

    @property
    def compiled(self) -> CompiledProgram:
        """The plan and the kernels."""
        ...

    @property
    def backend(self) -> Backend:
        """The backend that runs it."""
        ...

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites of its checks."""
        ...

    @property
    def began(self) -> float:
        """The time at which compilation began."""
        ...

    @property
    def seconds(self) -> float:
        """The seconds that compilation took."""
        ...


Watcher = Callable[[Watched, tuple[Any, ...]], Sequence[Any]]
WATCHERS: Final[list[Watcher]] = []
"""The active watchers; the last one runs the calls."""
_BEFORE: Final[list[Callable[[], object]]] = []


def before_watching(forget: Callable[[], object]) -> Callable[[], object]:
    """Register ``forget``, which drops shortcuts before calls are watched.

    Usable as a decorator.
    """
    _BEFORE.append(forget)
    return forget


@contextmanager
def watched(watcher: Watcher) -> Generator[None]:
    """A context in which ``watcher(function, arrays)`` runs compiled functions."""
    for forget in _BEFORE:
        forget()
    WATCHERS.append(watcher)
    try:
        yield
    finally:
        WATCHERS.remove(watcher)
