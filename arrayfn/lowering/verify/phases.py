"""Divides a kernel's lines into phases, which barriers of the block separate.

In: the text of a kernel. Out: the phase of each of its lines. Accesses of two threads
of a block on lines of different phases are ordered by a barrier, whichever branches
the threads take.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from arrayfn.lowering.cuda.vocabulary import FUNCTIONS
from arrayfn.records import frozen

_BARRIERS: Final = ("barrier", "grid_barrier")


@frozen
class Phases:
    """The phase of each line of a kernel.

    Attributes:
        of_line: the number of the phase, by line. Lines of other functions have none.
        repeated: the lines in loops with a barrier. There, an iteration of one thread
            may be ordered with another iteration of another thread, although the lines
            have one phase.
    """

    of_line: dict[int, int]
    repeated: frozenset[int]


@lru_cache(maxsize=256)
def phases_of(source: str, name: str) -> Phases:
    """Return the phases of the function ``name`` in the text ``source`` of a kernel."""
    finder = _Finder()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            finder.number(node.body, 0)
    of_line = {line: finder.root(k) for line, k in finder.of_line.items()}
    return Phases(of_line, frozenset(finder.repeated))


class _Finder:
    """Numbers the phases, and joins those that no barrier separates (union-find).

    ``parents`` has for each phase one that it was joined with; a root has itself.
    ``of_line`` has the phase of each line, and ``repeated`` the lines of loops that
    have a barrier.
    """

    def __init__(self) -> None:
        """Begin with phase 0."""
        self.parents = [0]
        self.of_line: dict[int, int] = {}
        self.repeated: set[int] = set()

    def root(self, phase: int) -> int:
        """Return the phase that represents all phases joined with ``phase``."""
        while self.parents[phase] != phase:
            phase = self.parents[phase]
        return phase

    def new_phase(self) -> int:
        """Add a phase, and return its number."""
        self.parents.append(len(self.parents))
        return len(self.parents) - 1

    def join(self, first: int, second: int) -> None:
        """Make two phases one."""
        self.parents[self.root(first)] = self.root(second)

    def number(self, nodes: Iterable[ast.stmt], phase: int) -> int:
        """Number the phases of the statements ``nodes``, which begin in ``phase``.

        A barrier begins a new phase. Both branches of an ``if`` end in one phase, and a
        loop's body ends in the phase in which it begins. Returns the phase after
        ``nodes``. Lines of a loop with a barrier are added to ``repeated``.
        """
        for node in nodes:
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            self.of_line.update(dict.fromkeys(lines, phase))
            if isinstance(node, ast.If):
                ends = [self.number(part, phase) for part in (node.body, node.orelse)]
                self.join(*ends)
                phase = ends[0]
            elif isinstance(node, (ast.For, ast.While)):
                # An iteration begins in the phase in which the one before has ended.
                phase_count = len(self.parents)
                self.join(self.number(node.body, phase), phase)
                if len(self.parents) > phase_count:
                    self.repeated.update(lines)
            elif _is_barrier(node):
                phase = self.new_phase()
        return phase


def _is_barrier(node: ast.stmt) -> bool:
    """Whether ``node`` is a call of a barrier of the block or the grid."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    function = node.value.func
    called = FUNCTIONS.get(function.id) if isinstance(function, ast.Name) else None
    return called is not None and called.kind in _BARRIERS
