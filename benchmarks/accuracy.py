"""How far results are from exact ones; ``python -m benchmarks.accuracy``.

Tables for ``docs/numerics.md``: the largest error found of each elementary function,
in units of the last place of the result; and the errors of sums and of products of
matrices, in ε of the dtype relative to the sum of absolute values.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import ml_dtypes
import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.lowering.scalars import SCALARS
from benchmarks.vector_math import (
    EXTENDED,
    FUNCTIONS,
    Loop,
    code_of,
    greatest_error,
    loop,
)

Array = np.ndarray[Any, Any]
HALVES: Final = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
PUBLIC: Final[dict[str, Callable[..., Any]]] = {
    "logistic": lax.logistic,
    "rsqrt": lax.rsqrt,
    "asin": anp.arcsin,
    "acos": anp.arccos,
    "atan": anp.arctan,
    "asinh": anp.arcsinh,
    "acosh": anp.arccosh,
    "atanh": anp.arctanh,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "lgamma": lax.lgamma,
    "digamma": lax.digamma,
    "pow": anp.power,
    "atan2": anp.arctan2,
}
"""The functions of arrayfn whose names differ from those of the kernels' functions."""


def function_rows(names: list[str]) -> Iterator[str]:
    """The table of elementary functions."""
    yield "| function | float32 | float64 | float16 | bfloat16 | NumPy, float32 |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in names:
        if name == "fmod":
            continue  # exact
        compiled = [greatest_error(name, t, _kernel(name, t)) for t in ("f32", "f64")]
        halves = [_error_of_halves(name, dtype) for dtype in HALVES]
        reference, numpys = FUNCTIONS[name][0], math.nan
        if isinstance(reference, np.ufunc) and name not in EXTENDED:
            numpys = greatest_error(name, "f32", lambda args, f=reference: f(*args))
        cells = (_cell(x) for x in (*compiled, *halves, numpys))
        yield f"| `{name}` | {' | '.join(cells)} |"


def _cell(ulp: float) -> str:
    """A number of two digits, rounded up; a word for what is no error of rounding."""
    if math.isnan(ulp):
        return ""
    return f"{math.ceil(100 * ulp) / 100:.2f}" if ulp < 100 else f"{ulp:.0e}"


def _kernel(name: str, t: str) -> Callable[[list[Array]], Array]:
    code = code_of(loop(f"{name}_{t}"))
    address = code.address

    def run(arguments: list[Array]) -> Array:
        assert code  # which the address belongs to
        return Loop(address, [*arguments, np.empty_like(arguments[0])])()

    return run


def _error_of_halves(name: str, dtype: np.dtype[Any]) -> float:
    """The largest error over all numbers of a 16-bit dtype, in ulp."""
    if len(SCALARS[f"{name}_f32"].arguments) > 1:
        return math.nan
    reference, (low, high) = EXTENDED.get(
        name, (FUNCTIONS[name][0], (-math.inf, math.inf))
    )
    x = np.arange(1 << 16).astype(np.uint16).view(dtype)
    wide = x.astype(np.float32)
    keep = np.isfinite(wide) & (wide > low) & (wide < high)
    if name in EXTENDED and name != "logistic":
        keep &= np.arange(x.size) % 16 == 0  # mpmath takes its time
    x = x[keep]
    public = PUBLIC.get(name) or getattr(anp, name)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.longdouble))
        result = np.asarray(af.jit(public)(x)).astype(np.longdouble)
        rounded = exact.astype(np.float32).astype(dtype)
        limits = ml_dtypes.finfo(dtype)
        exponent = np.frexp(np.abs(rounded.astype(np.float32)))[1] - 1
        unit = np.ldexp(
            np.longdouble(1), np.maximum(exponent, limits.minexp) - limits.nmant
        )
        error = np.abs(result - exact) / unit
    known = np.isfinite(exact) & np.isfinite(rounded.astype(np.float32))
    return float(np.max(error[known], initial=0.0))


def sum_rows() -> Iterator[str]:
    """Errors of sums of one number many times, the worst case, and of random ones."""
    yield "| 4,000,000 terms | float32 | NumPy, float32 | float16 | bfloat16 |"
    yield "| --- | --- | --- | --- | --- |"
    count = 4_000_000
    random = np.random.default_rng(0).standard_normal(count)
    cases = {
        "equal numbers (0.01)": np.full(count, 0.01),
        "normal random numbers": random,
    }
    shapes: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
        "a sum": (anp.sum, (count,)),
        "sums of columns": (lambda x: anp.sum(x, axis=0), (count // 8, 8)),
        "a cumulative sum": (anp.cumsum, (count,)),
    }
    for title, (function, shape) in shapes.items():
        for numbers, values in cases.items():
            cells: list[str] = []
            for dtype in (np.dtype(np.float32), None, *HALVES):
                kind = dtype or np.dtype(np.float32)
                x = values.astype(kind).reshape(shape)
                made = (
                    _numpys(title)(x)
                    if dtype is None
                    else np.asarray(af.jit(function)(x))
                )
                if title == "a cumulative sum" and dtype in HALVES:
                    cells.append("")  # each partial sum is rounded to 16 bits
                    continue
                cells.append(_relative(title, x, made, kind))
            yield f"| {title} of {numbers} | {' | '.join(cells)} |"


def _numpys(title: str) -> Callable[[Array], Array]:
    by_title: dict[str, Callable[[Array], Array]] = {
        "a sum": np.sum,
        "sums of columns": lambda x: np.sum(x, axis=0),
        "a cumulative sum": np.cumsum,
    }
    return by_title[title]


def _relative(title: str, x: Array, made: Array, dtype: np.dtype[Any]) -> str:
    """The largest error in ε, relative to the sum of absolute values."""
    wide = x.astype(np.longdouble)
    total = _numpys(title)
    error = np.abs(made.astype(np.longdouble) - total(wide)) / total(np.abs(wide))
    return f"{float(np.max(error)) / float(ml_dtypes.finfo(dtype).eps):.2g}"


def product_rows() -> Iterator[str]:
    """Errors of products of matrices, by the length of the contracted axis."""
    yield "| contracted axis | " + " | ".join(_PRODUCTS) + " |"
    yield "| --- |" + " --- |" * len(_PRODUCTS)
    for length in (64, 1024, 16384):
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((32, length)), rng.standard_normal((length, 32))
        cells: list[str] = []
        for dtype, product in _PRODUCTS.values():
            a, b = x.astype(dtype), y.astype(dtype)
            wide = a.astype(np.longdouble), b.astype(np.longdouble)
            exact, scale = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
            made = np.asarray(product(a, b)).astype(np.longdouble)
            eps = float(ml_dtypes.finfo(np.dtype(dtype)).eps)
            error = float(np.max(np.abs(made - exact) / scale)) / eps
            cells.append(f"{error:.2g}")
        yield f"| {length} | {' | '.join(cells)} |"


def _tf32(x: Array, y: Array) -> Array:
    """What a GPU multiplies with ``precision="tf32"``: operands of 10 bits."""
    short = [lax.reduce_precision(a, 8, 10) for a in (x, y)]
    return np.asarray(af.jit(anp.matmul)(*short))


_PRODUCTS: Final[dict[str, tuple[Any, Callable[[Array, Array], Any]]]] = {
    "float64": (np.float64, af.jit(anp.matmul)),
    "float32": (np.float32, af.jit(anp.matmul)),
    "TF32 operands, in ε of float32": (np.float32, _tf32),
    "float16": (np.float16, af.jit(anp.matmul)),
    "bfloat16": (ml_dtypes.bfloat16, af.jit(anp.matmul)),
}

_TABLES: Final = ("functions", "sums", "products")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Errors of results.")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(_TABLES))
    parser.add_argument("--names", nargs="*", default=list(FUNCTIONS))
    chosen = parser.parse_args()
    if unknown := set(chosen.tables) - set(_TABLES):
        parser.error(f"no table {', '.join(sorted(unknown))}")
    for name in chosen.tables or _TABLES:
        rows = {
            "functions": lambda: function_rows(chosen.names),
            "sums": sum_rows,
            "products": product_rows,
        }[name]()
        for row in rows:
            print(row, flush=True)
        print()


if __name__ == "__main__":
    main()
