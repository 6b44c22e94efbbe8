"""docs/coming-from/, row by row: what the tables say is what the libraries do.

A table whose columns are ``| NumPy | arrayfn |`` has two ways to write one thing, whose
results are equal. One whose columns are ``| Code | NumPy | arrayfn |`` has code that
means something else in each library, and what each gives: the ``repr`` of a result, or
the name of an error. The other library's cells are checked where it is installed.
"""

from __future__ import annotations

import ast
import copy
import re
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn, optim, random

FOLDER = Path(__file__).parents[1] / "docs" / "coming-from"
CELL = re.compile(r"``(.+?)``|`(.+?)`")
DATA = {
    "X": np.array([1.0, 2.0, 3.0]),
    "X32": np.array([1.0, 2.0, 3.0], np.float32),
    "X16": np.array([1.0, 2.0, 3.0], np.float16),
    "K": np.array([1, 2, 2]),
    "E": np.arange(6.0).reshape(3, 2),
}
OURS = {"af": af, "anp": anp, "lax": lax, "nn": nn, "optim": optim, "random": random}
OURS |= {"jit": af.jit, "grad": af.grad, "vmap": af.vmap}
PRELUDES = {
    "NumPy": "def f(g): return g",
    "Numba": "import numba; from numba import njit, prange, vectorize",
    "JAX": "import jax, jax.numpy as jnp; from jax import lax, random; jit = jax.jit",
    "autograd": "import autograd; import autograd.numpy as anp",
    "PyTorch": "import torch; T = torch.tensor([1.0, 2.0, 3.0])",
}
# What the code of a table of differences calls by one name in both libraries.
SHARED = {
    "NumPy": ({}, {"f": af.jit}),
    "JAX": ({"xp": "jnp", "j": "jax"}, {"xp": anp, "j": af}),
    "autograd": ({"xp": "anp", "g": "autograd"}, {"xp": anp, "g": af}),
}


@dataclass(frozen=True)
class Row:
    """A row of a table: the cells of both libraries, and whether the code is one."""

    page: str
    library: str
    cells: tuple[str, ...]

    @property
    def is_difference(self) -> bool:
        return len(self.cells) == 3


def rows() -> list[Row]:
    found = []
    for page in sorted(FOLDER.glob("*.md")):
        library, width = "", 0
        for line in page.read_text(encoding="utf-8").splitlines():
            titles = [title.strip() for title in line.strip("|").split("|")]
            if not line.startswith("|"):
                library, width = "", 0
            elif titles[:1] == ["Code"] and titles[2] == "arrayfn":
                library, width = titles[1], 3
            elif titles[0] in PRELUDES and titles[1] == "arrayfn":
                library, width = titles[0], 2
            elif library and not line.startswith("| ---"):
                cells = [a or b for a, b in CELL.findall(line)][:width]
                found.append(Row(page.stem, library, tuple(cells)))
    return found


ROWS = rows()


def namespace(library: str, theirs: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"np": np, **copy.deepcopy(DATA)}
    renamed, ours = SHARED.get(library, ({}, {}))
    if not theirs:
        return made | OURS | ours
    exec(PRELUDES[library], made)
    return made | {name: made[value] for name, value in renamed.items()}


def result(code: str, names: dict[str, Any]) -> Any:
    """What the last expression of ``code`` gives, or the error that it raises."""
    parsed = ast.parse(code)
    last = parsed.body.pop()
    assert isinstance(last, ast.Expr), code
    try:
        exec(compile(parsed, "row.py", "exec"), names)
        return eval(compile(ast.Expression(last.value), "row.py", "eval"), names)
    except Exception as error:  # noqa: BLE001
        return error


def shown(value: Any) -> str:
    if isinstance(value, Exception):
        return type(value).__name__
    return " ".join(repr(value).split())


def identified(row: Row) -> str:
    return f"{row.page}: {row.cells[0]}"


def quietly(code: str, names: dict[str, Any]) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return result(code, names)


def is_here(library: str) -> bool:
    return (
        library == "NumPy"
        or find_spec({"PyTorch": "torch"}.get(library, library.lower())) is not None
    )


@pytest.mark.parametrize("row", ROWS, ids=identified)
def test_a_row_of_a_table_holds(row: Row) -> None:
    if row.is_difference:
        code, theirs, ours = row.cells
        assert shown(quietly(code, namespace(row.library, theirs=False))) == ours
        if is_here(row.library):
            assert shown(quietly(code, namespace(row.library, theirs=True))) == theirs
        return
    theirs, ours = row.cells
    got = quietly(ours, namespace(row.library, theirs=False))
    assert not isinstance(got, Exception), got
    if is_here(row.library):
        want = quietly(theirs, namespace(row.library, theirs=True))
        assert not isinstance(want, Exception), want
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), 1e-6)


def test_every_page_has_a_table() -> None:
    counted = {page.stem: 0 for page in FOLDER.glob("*.md")}
    for row in ROWS:
        counted[row.page] += 1
    assert min(counted.values()) >= 10, counted
