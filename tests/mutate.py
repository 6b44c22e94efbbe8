"""Mutation testing: change the source in small ways, and see whether tests notice.

    python -m tests.mutate --count 40 --seed 0 --rooms passes lowering primitives

Each mutant is one change of one expression (a comparison, an operator, a constant, a
condition), in a copy of the package. The tests of its room run against the copy, the
quickest first, until one fails: the mutant is killed. A mutant that survives shows
behaviour that no test asserts, or is equivalent to the original.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "arrayfn"
TIMEOUT = 600.0  # seconds for one stage of tests; a mutant that hangs is killed by it

# The tests of a room, in stages: each stage is one run of pytest.
_PROGRAMS = "tests/test_random_programs.py"
STAGES = {
    "passes": (
        "tests/passes",
        "tests/lowering",
        f"{_PROGRAMS} tests/test_checks.py tests/lax tests/transforms",
        "tests/backends",
    ),
    "primitives": (
        "tests/primitives tests/passes tests/transforms",
        f"tests/numpy {_PROGRAMS}",
        "tests/lax tests/lowering tests/linalg tests/nn tests/functions",
    ),
    "transforms": (
        "tests/transforms tests/functions",
        f"tests/lax tests/test_custom.py {_PROGRAMS}",
    ),
    "lowering/cuda": (
        "tests/backends",
        "tests/lowering tests/passes",
    ),
    "lowering": (
        "tests/lowering",
        f"tests/backends {_PROGRAMS} tests/test_jit_donation.py",
        "tests/lax tests/numpy",
    ),
    "numpy": ("tests/numpy", "tests/tools/test_coverage.py tests/test_errors.py"),
}

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

    @property
    def room(self) -> str:
        """The longest key of STAGES that the module lies in."""
        module = self.path.relative_to(PACKAGE).as_posix()
        return max((r for r in STAGES if module.startswith(r + "/")), key=len)

    def source(self) -> str:
        """The module's text with the change."""
        text = self.path.read_bytes()
        return (text[: self.start] + self.after.encode() + text[self.end :]).decode()

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
        if isinstance(child, ast.expr):
            yield child
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in child.body:
                yield from changeable(ast.Module([statement], []))
            continue
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield from changeable(ast.Expression(child.value))
            continue
        yield from changeable(child)


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


def survives(mutant: Mutant, python: str = sys.executable) -> bool:
    """Whether all stages of the tests pass with ``mutant``."""
    with tempfile.TemporaryDirectory(prefix="mutant_") as folder:
        there = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, there / "arrayfn", ignore=ignored)
        for name in ("tests", "docs", "examples", "notebooks", "pyproject.toml"):
            (there / name).symlink_to(ROOT / name)
        target = there / mutant.path.relative_to(ROOT)
        target.write_text(mutant.source(), encoding="utf-8")
        environment = {
            **os.environ,
            "PYTHONPATH": folder,
            "PYTHONDONTWRITEBYTECODE": "1",
            "ARRAYFN_CACHE_DIR": str(there / "cache"),
        }
        (there / "cache").mkdir(mode=0o700)
        for stage in STAGES[mutant.room]:
            command = [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
            command += ["-n", "0", *stage.split()]
            try:
                run = subprocess.run(
                    command,
                    cwd=there,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=TIMEOUT,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return False
            if run.returncode:
                return False
    return True


def sample(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants, drawn evenly from the ``rooms``."""
    rng = random.Random(seed)
    drawn: list[Mutant] = []
    for number, room in enumerate(rooms):
        paths = sorted((PACKAGE / room).rglob("*.py"))
        mutants = [m for path in paths for m in mutants_of(path) if m.room == room]
        share = count // len(rooms) + (number < count % len(rooms))
        drawn += rng.sample(mutants, min(share, len(mutants)))
    return drawn


def main() -> int:
    """Draw a sample, test it, and print the score of each room and the survivors."""
    parser = argparse.ArgumentParser("python -m tests.mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--rooms",
        nargs="+",
        default=["passes", "lowering", "primitives"],
        choices=sorted(STAGES),
    )
    given = parser.parse_args()
    drawn = sample(given.rooms, given.count, given.seed)
    begin = time.perf_counter()
    killed = dict.fromkeys(given.rooms, 0)
    total = dict.fromkeys(given.rooms, 0)
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, survived in zip(drawn, pool.map(survives, drawn), strict=True):
            total[mutant.room] += 1
            killed[mutant.room] += not survived
            print("SURVIVES" if survived else "killed  ", mutant, flush=True)
    for room in given.rooms:
        print(f"{room}: {killed[room]} of {total[room]} killed")
    seconds = time.perf_counter() - begin
    print(f"{sum(killed.values())} of {len(drawn)} killed in {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
