"""Divides a kernel's lines into phases, which barriers of the block separate.

In: the text of a kernel. Out: the phase of each of its lines. On lines of different
phases, two threads of a block are ordered, whichever way they have taken.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from arrayfn.lowering.cuda.vocabulary import FUNCTIONS

_BARRIERS: Final = ("barrier", "grid_barrier")


@dataclass(frozen=True)
class Phases:
    """Which lines of a kernel no barrier separates: the phase of each line.

    Lines of other functions have none. ``repeated`` are the lines in a loop with a
    barrier: there, an iteration of one thread may be ordered with another iteration of
    another thread.
    """

    of_line: dict[int, int]
    repeated: frozenset[int]


@lru_cache(maxsize=256)
def phases_of(source: str, name: str) -> Phases:
    """The phases of the function ``name`` of the kernel text ``source``."""
    finder = _Finder()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            finder.number(node.body, 0)
    of_line = {line: finder.root(k) for line, k in finder.of_line.items()}
    return Phases(of_line, frozenset(finder.repeated))


class _Finder:
    """Numbers the phases, and joins those that no barrier separates (union-find)."""

    def __init__(self) -> None:
        self.parents = [0]
        self.of_line: dict[int, int] = {}
        self.repeated: set[int] = set()

    def root(self, phase: int) -> int:
        """The phase that ``phase`` has been joined with."""
        while self.parents[phase] != phase:
            phase = self.parents[phase]
        return phase

    def new_phase(self) -> int:
        """The number of a new phase."""
        self.parents.append(len(self.parents))
        return len(self.parents) - 1

    def join(self, first: int, second: int) -> None:
        """Make two phases one."""
        self.parents[self.root(first)] = self.root(second)

    def number(self, nodes: Iterable[ast.stmt], phase: int) -> int:
        """Number the phases of ``nodes``, which begin in ``phase``.

        Returns the phase after them. Lines of a loop with a barrier become
        ``repeated``.
        """
        for node in nodes:
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            self.of_line.update(dict.fromkeys(lines, phase))
            if isinstance(node, ast.If):
                ends = [self.number(part, phase) for part in (node.body, node.orelse)]
                self.join(*ends)
                phase = ends[0]
            elif isinstance(node, (ast.For, ast.While)):
                # An iteration begins where the one before has ended.
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
