"""Finds names that a kernel may read before they are assigned.

The emulator runs only the branches that its arrays lead to, and a compiler gives a
variable memory that nothing may have written. This walks all of the text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable


def unassigned_names(source: str) -> list[str]:
    """List each read of ``source`` that may come too early, as ``"name at line n"``.

    A loop over ``range(n)`` or ``unrolled(n)``, for a number n above 0, counts as run.
    What is assigned under a condition is assigned where the same condition, of the same
    values, holds again.
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
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            walk = _Walk(known | {a.arg for a in node.args.args})
            walk.suite(node.body)
            found += walk.found
    return found


class _Walk:
    """Walks through a function in the order of its text."""

    def __init__(self, assigned: set[str]) -> None:
        self.assigned = assigned | {"range", "None"}
        self.under: dict[str, set[str]] = {}
        """Names assigned where a condition holds, by the condition's text."""
        self.found: list[str] = []

    def suite(self, body: Iterable[ast.stmt]) -> bool:
        """Walk statements; return whether what follows them can be reached."""
        reached = True
        for node in body:
            reached &= self.statement(node)
        return reached

    def statement(self, node: ast.stmt) -> bool:
        """Record what ``node`` reads and assigns.

        Returns whether the statement after it can be reached.
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
        """Record what an ``if`` reads and assigns; return whether control leaves it.

        Names that are assigned under a test are known again under the same test later.
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
        """Record the names in ``node`` that may not have been assigned."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id not in self.assigned:
                self.found.append(f"{inner.id} at line {inner.lineno}")

    def write(self, target: ast.expr) -> None:
        """Record an assignment to a name, or the names in a target such as ``x[i]``."""
        if isinstance(target, ast.Name):
            self.assign(target.id)
        else:
            self.read(target)

    def assign(self, name: str) -> None:
        """Record that ``name`` is assigned; earlier tests of it are out of date."""
        self.assigned.add(name)
        for test in [t for t in self.under if name in _names(t)]:
            del self.under[test]


def _names(text: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}


def _runs(over: ast.expr) -> bool:
    """Whether a loop ``over`` a range certainly has an iteration."""
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
