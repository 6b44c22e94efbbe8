"""Sparse matrices beside SciPy's: ``python -m benchmarks.sparse``.

Results are compared first. SciPy's gradients are written by hand; its factorizations
are SuperLU's, as arrayfn's on a CPU are. Matrices have a million entries, unless a row
says otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

import arrayfn as af
from arrayfn.backends.cuda.driver import gpu_count
from arrayfn.scipy.sparse.linalg import cg, spsolve
from arrayfn.sparse import COO, CSC, CSR, jacobian
from arrayfn.sparse.solves import FACTORS
from benchmarks.side_by_side import Row, main

ROWS = 100_000
ENTRIES = 1_000_000
GRID = 100  # points along a side of the domain of Laplace's equation


def random_matrix(rows: int, entries: int) -> Any:
    rng = np.random.default_rng(0)
    density = entries / rows**2
    return scipy.sparse.random_array(
        (rows, rows), density=density, format="csr", random_state=rng
    )


def laplacian(points: int) -> Any:
    """The five-point stencil on a square grid, by rows."""
    line = scipy.sparse.diags_array(
        [-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(points, points)
    )
    one = scipy.sparse.eye_array(points)
    return (scipy.sparse.kron(line, one) + scipy.sparse.kron(one, line)).tocsr()


def products() -> Iterator[Row]:
    multiply = af.jit(lambda a, x: a @ x)
    rng = np.random.default_rng(1)
    for rows, entries in ((100, 1000), (1000, 10_000), (ROWS, ENTRIES)):
        theirs = random_matrix(rows, entries)
        x = rng.standard_normal(rows)
        for form in (CSR, CSC, COO):
            ours, other = form(theirs), theirs.asformat(form.format)
            runs = {
                "arrayfn": lambda a=ours, x=x: multiply(a, x),
                "SciPy": lambda a=other, x=x: a @ x,
            }
            yield Row(f"{form.__name__} @ x, {entries} entries", runs, 1e-12)
    wide = rng.standard_normal((ROWS, 8))
    ours = CSR(theirs)
    runs = {"arrayfn": lambda: multiply(ours, wide), "SciPy": lambda: theirs @ wide}
    yield Row("CSR @ (n, 8)", runs, 1e-12)
    left = af.jit(lambda x, a: x @ a)
    runs = {"arrayfn": lambda: left(x, ours), "SciPy": lambda: x @ theirs}
    yield Row("x @ CSR", runs, 1e-12)


def gradients() -> Iterator[Row]:
    theirs = random_matrix(ROWS, ENTRIES)
    ours, x = CSR(theirs), np.random.default_rng(1).standard_normal(ROWS)

    def squares(a: Any, x: Any) -> Any:
        return ((a @ x) ** 2).sum()

    by_vector, by_both = af.jit(af.grad(squares, 1)), af.jit(af.grad(squares, (0, 1)))

    def written(a: Any, x: Any) -> tuple[Any, Any]:
        slope = 2 * (a @ x)
        lengths = np.diff(a.indptr)
        return np.repeat(slope, lengths) * x[a.indices], a.T @ slope

    def both() -> tuple[Any, Any]:
        by_matrix, by_x = by_both(ours, x)
        return by_matrix.data, by_x

    runs = {
        "arrayfn": lambda: by_vector(ours, x),
        "SciPy": lambda: theirs.T @ (2 * (theirs @ x)),
    }
    yield Row("gradient by x", runs, 1e-12)
    yield Row(
        "gradient by matrix and x",
        {"arrayfn": both, "SciPy": lambda: written(theirs, x)},
        1e-12,
    )


def solutions_on_gpu() -> Iterator[Row]:
    """cuDSS on a GPU beside SuperLU on a CPU; the arrays are on the GPU."""
    side = 3 * GRID
    theirs = laplacian(side).tocsr()
    b = np.ones(side**2)
    matrix, there = af.device_put((CSR(theirs), b), "cuda")
    entries = [matrix.data, af.jit(lambda x: 2 * x)(matrix.data)]
    solve = af.jit(lambda data, b: spsolve(matrix.with_data(data), b))
    columns, turns = theirs.tocsc(), itertools.count()
    factors = scipy.sparse.linalg.splu(columns)

    def with_other_entries() -> Any:
        turn = next(turns) % 2
        return solve(entries[turn], there) * (1 + turn)

    runs = {
        "arrayfn": with_other_entries,
        "SciPy": lambda: scipy.sparse.linalg.splu(columns).solve(b),
    }
    yield Row(f"spsolve on a GPU, Laplace {side} x {side}, new entries", runs, 1e-9)
    runs = {
        "arrayfn": lambda: solve(entries[0], there),
        "SciPy": lambda: factors.solve(b),
    }
    yield Row("spsolve on a GPU, factors kept", runs, 1e-9)


def solutions() -> Iterator[Row]:
    theirs = laplacian(GRID)
    ours, b = CSC(theirs), np.ones(GRID**2)
    solve, columns = af.jit(spsolve), theirs.tocsc()

    def anew() -> Any:
        FACTORS.clear()
        return solve(ours, b)

    factors = scipy.sparse.linalg.splu(columns)
    runs = {
        "arrayfn": anew,
        "SciPy": lambda: scipy.sparse.linalg.splu(columns).solve(b),
    }
    yield Row(f"spsolve, Laplace {GRID} x {GRID}", runs, 1e-10)
    runs = {"arrayfn": lambda: solve(ours, b), "SciPy": lambda: factors.solve(b)}
    yield Row("spsolve, factors kept", runs, 1e-10)
    if gpu_count():
        yield from solutions_on_gpu()
    by_rows = CSR(theirs)
    iterate = af.jit(lambda a, b: cg(a, b, tol=1e-8)[0])
    runs = {
        "arrayfn": lambda: iterate(by_rows, b),
        "SciPy": lambda: scipy.sparse.linalg.cg(theirs, b, rtol=1e-8)[0],
    }
    yield Row("cg", runs, 1e-6)
    slope = af.jit(jacobian(lambda u: by_rows @ u + u**3, by_rows))
    u = np.random.default_rng(0).standard_normal(GRID**2)

    def written() -> Any:
        return (theirs + scipy.sparse.diags_array(3 * u**2)).tocsr().data

    runs = {"arrayfn": lambda: slope(u).data, "SciPy": written}
    yield Row("Jacobian by colouring", runs, 1e-12)


def rows() -> Iterator[Row]:
    yield from products()
    yield from gradients()
    yield from solutions()


if __name__ == "__main__":
    main("Sparse matrices", rows)
