"""Phases of a kernel: the lines between which no barrier of the block stands.

In: the text of a kernel. Out: the phase of each of its lines. Two threads of a block
are in order on two lines of different phases, whichever way they have taken.
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
    """The phase of each line of a kernel; lines of other functions have none.

    Lines are ``repeated`` in a loop with a barrier: an iteration of one thread may be
    in order with another iteration of another thread.
    """

    of_line: dict[int, int]
    repeated: frozenset[int]


@lru_cache(maxsize=256)
def phases_of(source: str, name: str) -> Phases:
    """The phases of the function ``name``."""
    found = _Finder()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            found.block(node.body, 0)
    of_line = {line: found.root(k) for line, k in found.of_line.items()}
    return Phases(of_line, frozenset(found.repeated))


class _Finder:
    def __init__(self) -> None:
        self.parents = [0]
        self.of_line: dict[int, int] = {}
        self.repeated: set[int] = set()

    def root(self, phase: int) -> int:
        while self.parents[phase] != phase:
            phase = self.parents[phase]
        return phase

    def begun(self) -> int:
        self.parents.append(len(self.parents))
        return len(self.parents) - 1

    def join(self, one: int, other: int) -> None:
        self.parents[self.root(one)] = self.root(other)

    def block(self, nodes: Iterable[ast.stmt], now: int) -> int:
        """The phase after ``nodes``, which begin in the phase ``now``."""
        for node in nodes:
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            self.of_line.update(dict.fromkeys(lines, now))
            if isinstance(node, ast.If):
                ends = [self.block(part, now) for part in (node.body, node.orelse)]
                self.join(*ends)
                now = ends[0]
            elif isinstance(node, (ast.For, ast.While)):
                # An iteration begins where the one before has ended.
                known = len(self.parents)
                self.join(self.block(node.body, now), now)
                if len(self.parents) > known:
                    self.repeated.update(lines)
            elif _is_barrier(node):
                now = self.begun()
        return now


def _is_barrier(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    function = node.value.func
    called = FUNCTIONS.get(function.id) if isinstance(function, ast.Name) else None
    return called is not None and called.kind in _BARRIERS
