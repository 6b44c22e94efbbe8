"""Which variables of a kernel need memory; all others are SSA values where they stand.

A variable needs it if it is assigned in a suite and in one inside it (then it is
carried around a loop, or out of a branch), or used where no earlier assignment surely
holds.
"""

from __future__ import annotations

import ast

Path = tuple[int, ...]  # the suites around a statement, outermost first


def variables_in_memory(function: ast.FunctionDef) -> set[str]:
    """The names of the variables that cannot be SSA values."""
    return _Assignments(function).in_memory


class _Assignments(ast.NodeVisitor):
    """Walks a function in the order of its text, and notes what each suite assigns."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.path: Path = ()
        self.suites = 0
        self.assigned: dict[str, set[Path]] = {}
        self.in_memory: set[str] = set()
        self.suite(function.body)

    def suite(self, body: list[ast.stmt], variable: str | None = None) -> None:
        self.suites += 1
        outer, self.path = self.path, (*self.path, self.suites)
        if variable is not None:
            self.assign(variable)
        for statement in body:
            self.visit(statement)
        self.path = outer

    def assign(self, name: str) -> None:
        paths = self.assigned.setdefault(name, set())
        for path in paths:
            shorter, longer = sorted((path, self.path), key=len)
            if path != self.path and longer[: len(shorter)] == shorter:
                self.in_memory.add(name)
        paths.add(self.path)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for assigned in node.targets:
            if isinstance(assigned, ast.Name):
                self.assign(assigned.id)
            else:
                self.visit(assigned)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self.use(node.target.id)
            self.assign(node.target.id)
        else:
            self.visit(node.target)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self.suite(node.body)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self.suite(node.body, getattr(node.target, "id", None))

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self.suite(node.body)
        self.suite(node.orelse)

    def visit_Name(self, node: ast.Name) -> None:
        self.use(node.id)

    def use(self, name: str) -> None:
        paths = self.assigned.get(name)
        if paths and not any(self.path[: len(path)] == path for path in paths):
            self.in_memory.add(name)
