"""Which variables the statements of a kernel's text set and read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence


class Names:
    """What is found out once of each statement."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[dict[str, None], set[str]]] = {}
        self._nodes: list[ast.AST] = []  # no other has the number of one that lives

    def _of(self, node: ast.AST) -> tuple[dict[str, None], set[str]]:
        known = self._known.get(id(node))
        if known is not None:
            return known
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
                own, read = self._of(inner)
                stored |= own
                loaded |= read
            else:
                pending += ast.iter_child_nodes(inner)
        self._known[id(node)] = stored, loaded
        self._nodes.append(node)
        return stored, loaded

    def set_in(self, body: Iterable[ast.stmt]) -> list[str]:
        """The variables that are set in ``body``."""
        found: dict[str, None] = {}
        for node in body:
            found |= self._of(node)[0]
        return list(found)

    def read_in(self, node: ast.AST) -> set[str]:
        """The variables that ``node`` reads."""
        return self._of(node)[1]

    def is_set_first(self, name: str, body: Sequence[ast.stmt]) -> bool:
        """Whether ``body`` sets ``name`` before it reads it."""
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
    """Whether a statement itself sets ``name``."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.For):
        targets = [node.target]
    return any(isinstance(t, ast.Name) and t.id == name for t in targets)


def setters(body: Sequence[ast.stmt], name: str) -> list[ast.AST]:
    """The statements in ``body`` that set ``name``."""
    nodes = ast.walk(ast.Module(list(body), []))
    return [node for node in nodes if sets(node, name)]


def is_plain(body: Sequence[ast.stmt]) -> bool:
    """Whether ``body`` has no loops, so that it may be interpreted some times."""
    nodes = ast.walk(ast.Module(list(body), []))
    return not any(isinstance(n, (ast.For, ast.While)) for n in nodes)
