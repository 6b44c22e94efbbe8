"""Changes of one expression of the package's source, for ``tests.mutate``."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True)
class Mutant:
    """One change: ``before`` becomes ``after`` at a place of a module."""

    path: Path
    line: int
    start: int
    end: int
    before: str
    after: str

    def source(self) -> str:
        """The module's text with the change."""
        text = self.path.read_bytes()
        return (text[: self.start] + self.after.encode() + text[self.end :]).decode()

    def statement(self) -> range:
        """The lines of the innermost statement around it; of a block, its header's."""
        tree = ast.parse(self.path.read_bytes())
        around = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt)
            and node.lineno <= self.line <= (node.end_lineno or 0)
        ]
        inner = max(around, key=lambda node: node.lineno)
        body: list[ast.stmt] = getattr(inner, "body", [])
        end = body[0].lineno if body else (inner.end_lineno or inner.lineno) + 1
        return range(inner.lineno, max(end, self.line + 1))

    def __str__(self) -> str:
        place = f"{self.path.relative_to(ROOT)}:{self.line}"
        return f"{place}: {self.before}  ->  {self.after}"


def variants(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that ``node`` is changed into."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        changed = copy.deepcopy(node)
        changed.ops = [COMPARISONS[type(node.ops[0])]()]
        yield changed
    elif isinstance(node, ast.BoolOp):
        changed_all = copy.deepcopy(node)
        changed_all.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield changed_all
        for k in range(len(node.values)):  # a condition that is left out
            left = [v for j, v in enumerate(node.values) if j != k]
            yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        swapped = copy.deepcopy(node)
        swapped.op = OPERATORS[type(node.op)]()
        yield swapped
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int)):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        else:
            yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        other = {"min": "max", "max": "min", "any": "all", "all": "any"}
        if node.func.id in other:
            called = copy.deepcopy(node)
            called.func = ast.Name(other[node.func.id], ast.Load())
            yield called


def changeable(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions of ``tree`` outside annotations, errors and what is not run."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)):
            continue
        if isinstance(child, (ast.arg, ast.JoinedStr)):
            continue
        if isinstance(child, ast.keyword) and child.arg == "samples":
            continue  # of a primitive, for tests
        if isinstance(child, ast.FunctionDef) and _makes_samples(child.name):
            continue
        if isinstance(child, ast.expr):
            yield child
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            for statement in child.body:
                yield from changeable(ast.Module([statement], []))
            continue
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield from changeable(ast.Expression(child.value))
            continue
        yield from changeable(child)


def _makes_samples(function: str) -> bool:
    """Whether ``function`` makes operands for tests, for which any values serve."""
    return "sample" in function or function.startswith("random_")


def mutants_of(path: Path) -> list[Mutant]:
    """All changes of one module."""
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    for node in changeable(ast.parse(text)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(text[start:end].decode().split())
        for changed in variants(node):
            after = f"({ast.unparse(ast.fix_missing_locations(changed))})"
            found.append(Mutant(path, node.lineno, start, end, before, after))
    return found
