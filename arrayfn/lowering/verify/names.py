"""Finds the variables that statements of a kernel's text set and read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence


class Names:
    """The variables that statements set and read, computed once for each statement."""

    def __init__(self) -> None:
        """Begin with an empty cache, by id of the statement."""
        self._cache: dict[int, tuple[dict[str, None], set[str]]] = {}
        self._nodes: list[ast.AST] = []  # kept alive, so that their ids stay unique

    def _of(self, node: ast.AST) -> tuple[dict[str, None], set[str]]:
        """Return (variables that ``node`` sets, variables that it reads).

        The first are the keys of a dict, in order. Statements inside ``node`` count.
        """
        cached = self._cache.get(id(node))
        if cached is not None:
            return cached
        stored: dict[str, None] = {}
        loaded: set[str] = set()
        pending: list[ast.AST] = [node]
        while pending:
            inner = pending.pop()
            if isinstance(inner, ast.Name):
                if isinstance(inner.ctx, ast.Store):
                    stored[inner.id] = None
                else:
                    loaded.add(inner.id)
            elif isinstance(inner, ast.stmt) and inner is not node:
                stored_inside, loaded_inside = self._of(inner)
                stored |= stored_inside
                loaded |= loaded_inside
            else:
                pending += ast.iter_child_nodes(inner)
        self._cache[id(node)] = stored, loaded
        self._nodes.append(node)
        return stored, loaded

    def set_in(self, body: Iterable[ast.stmt]) -> list[str]:
        """Return the variables that ``body`` sets, in order."""
        names: dict[str, None] = {}
        for node in body:
            names |= self._of(node)[0]
        return list(names)

    def read_in(self, node: ast.AST) -> set[str]:
        """Return the variables that ``node`` reads."""
        return self._of(node)[1]

    def is_set_first(self, name: str, body: Sequence[ast.stmt]) -> bool:
        """Whether ``body`` surely sets ``name`` before any statement reads it.

        An assignment, or a loop with the variable ``name``, sets it surely; an
        assignment inside an ``if`` or a loop does not.
        """
        for node in body:
            if isinstance(node, ast.For) and sets(node, name):
                return name not in self.read_in(node.iter)
            stored, loaded = self._of(node)
            if name in loaded:
                return False
            if isinstance(node, ast.Assign) and sets(node, name):
                return True
            if name in stored:
                return False
        return False


def sets(node: ast.AST, name: str) -> bool:
    """Whether ``node`` is an assignment or loop that sets ``name``."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.For):
        targets = [node.target]
    return any(isinstance(t, ast.Name) and t.id == name for t in targets)


def assignments_of(body: Sequence[ast.stmt], name: str) -> list[ast.AST]:
    """Return the assignments and loops in ``body``, at any depth, that set ``name``."""
    nodes = ast.walk(ast.Module(list(body), []))
    return [node for node in nodes if sets(node, name)]


def is_plain(body: Sequence[ast.stmt]) -> bool:
    """Whether ``body`` has no loops, so that interpreting it repeatedly is cheap."""
    nodes = ast.walk(ast.Module(list(body), []))
    return not any(isinstance(n, (ast.For, ast.While)) for n in nodes)
