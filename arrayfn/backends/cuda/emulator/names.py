"""Finds names that a kernel may read before they are assigned.

The emulator runs only the branches that its arrays lead to. A compiler does not refuse
a variable that may be unassigned; its memory then holds any value. So this module walks
through all of the text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable


def unassigned_names(source: str) -> list[str]:
    r"""List the reads of names in ``source`` that may not have been assigned.

    A loop over ``range(n)`` or ``unrolled(n)`` counts as run if n is a constant above
    0. A name that is assigned under a condition counts as assigned where the same
    condition, of the same values, holds again.

    >>> unassigned_names("def f(n):\n  if n > 1:\n    x = 2\n  y = x")
    ['x at line 4']
    """
    tree = ast.parse(source)
    known: set[str] = set()
    for node in tree.body:
        match node:
            case ast.ImportFrom(names=names):
                known |= {n.asname or n.name for n in names}
            case ast.FunctionDef(name=name):
                known.add(name)
            case _:
                pass
    reads: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            walk = _Walk(known | {a.arg for a in node.args.args})
            walk.suite(node.body)
            reads += walk.found
    return reads


class _Walk:
    """Walks through a function in the order of its text.

    ``assigned`` are the names that are assigned on every path to the current place, and
    ``found`` the reads of other names.
    """

    def __init__(self, assigned: set[str]) -> None:
        self.assigned = assigned | {"range", "None"}  # builtins that kernels read
        self.under: dict[str, set[str]] = {}
        """Names assigned where a condition holds, by the condition's text."""
        self.found: list[str] = []  # names that are read, but may be unassigned

    def suite(self, body: Iterable[ast.stmt]) -> bool:
        """Walk through statements; return whether control can reach their end."""
        reached = True
        for node in body:
            reached &= self.statement(node)
        return reached

    def statement(self, node: ast.stmt) -> bool:
        """Record the names that a statement reads and assigns.

        Returns whether control can reach the next statement.
        """
        match node:
            case ast.Assign(targets=[target], value=value):
                self.read(value)
                self.write(target)
            case ast.AugAssign(target=target, value=value):
                self.read(value)
                self.read(target)
                self.write(target)
            case ast.If(test=test, body=body, orelse=orelse):
                self.read(test)
                return self.branches(ast.unparse(test), body, orelse)
            case ast.For(target=ast.Name(id=name), iter=over, body=body):
                self.read(over)
                before = set(self.assigned)
                self.assign(name)
                self.suite(body)
                if not _runs(over):
                    self.assigned = before
            case ast.While(test=test, body=body):
                self.read(test)
                before = set(self.assigned)
                self.suite(body)
                self.assigned = before
            case ast.Return() | ast.Break() | ast.Continue():
                return False
            case _:
                self.read(node)
        return True

    def branches(self, test: str, body: list[ast.stmt], orelse: list[ast.stmt]) -> bool:
        """Walk through the branches of an ``if``; return whether control leaves it.

        After it, a name is assigned if all branches that control leaves assign it. A
        name that only the first branch assigns is noted in ``under``: it is assigned in
        later branches of the same ``test``.
        """
        before = set(self.assigned)
        self.assigned |= self.under.get(test, set())
        reached = self.suite(body)
        then = self.assigned
        self.assigned = set(before)
        reached_else = self.suite(orelse)
        otherwise = self.assigned
        if not reached or not reached_else:
            self.assigned = then if reached else otherwise
        else:
            self.assigned = then & otherwise
            self.under[test] = self.under.get(test, set()) | (then - before)
        return reached or reached_else

    def read(self, node: ast.AST) -> None:
        """Add the names in ``node`` that may not be assigned to ``found``."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id not in self.assigned:
                self.found.append(f"{inner.id} at line {inner.lineno}")

    def write(self, target: ast.expr) -> None:
        """Record an assignment to ``target``.

        A target such as ``x[i]`` assigns no name, but reads x and i.
        """
        if isinstance(target, ast.Name):
            self.assign(target.id)
        else:
            self.read(target)

    def assign(self, name: str) -> None:
        """Record that ``name`` is assigned.

        Tests that read it may have another result from here on, so ``under`` forgets
        them.
        """
        self.assigned.add(name)
        for test in [t for t in self.under if name in _names(t)]:
            del self.under[test]


def _names(text: str) -> set[str]:
    """Return the names in an expression."""
    return {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}


def _runs(over: ast.expr) -> bool:
    """Whether a loop over ``range(...)`` surely has an iteration.

    ``over`` is the call; its bounds must be constants.
    """
    match over:
        case ast.Call(args=[ast.Constant(value=int() as stop)]):
            return stop > 0
        case ast.Call(
            args=[
                ast.Constant(value=int() as start),
                ast.Constant(value=int() as stop),
                *_,
            ]
        ):
            return start < stop
        case _:
            return False
