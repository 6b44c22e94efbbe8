"""Compares accuracy and speed of the implementations of one function.

The reference is the function in float64, run by the interpreter. Times are shown beside
the machine's roof: a memory copy and a float32 matrix product, timed in the same way.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import ml_dtypes
import numpy as np

from arrayfn import dtypes, tree
from arrayfn.backends.registry import available_backends
from arrayfn.compilation.jit import jit
from arrayfn.compilation.operators import Operator, operator
from arrayfn.devices import block_until_ready, device_put
from arrayfn.errors import ArgumentError, user_location
from arrayfn.lowering.operations import operations
from arrayfn.lowering.operator_kernels import KERNELS, OperatorKernel
from arrayfn.transforms import make_program

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]
_NUMBERS: Final = itertools.count()
_COPIED: Final = 1 << 25  # bytes of the array that is copied for the roof
_SIDE: Final = 1024  # rows and columns of the matrices that are multiplied for it


@dataclass(frozen=True)
class Roof:
    """A backend's peak on this machine: bytes and operations per second."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class Measured:
    """One implementation on one backend.

    Errors are against the float64 reference: the largest absolute and relative errors,
    the relative error in the 2-norm, and the largest error in units of the last place
    of the result's dtype. Times are in seconds. ``bytes`` counts arguments and results,
    ``flops`` the operations of the Program. ``refused`` says why it was not run.
    """

    name: str
    backend: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    l2: float = 0.0
    ulp: float = 0.0
    times: tuple[float, ...] = ()
    bytes: int = 0
    flops: int = 0
    refused: str = ""

    @property
    def median(self) -> float:
        """The median time of a call, in seconds."""
        return float(np.median(self.times))


@dataclass(frozen=True, repr=False)
class Comparison(Sequence[Measured]):
    """The rows of ``compare``; as text they are its table, with the backends' roofs."""

    rows: tuple[Measured, ...]
    roofs: dict[str, Roof]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __repr__(self) -> str:
        return table(self, self.roofs).rstrip("\n")

    def _repr_html_(self) -> str:
        from arrayfn.display import markup

        escape = markup.escape
        names = [name for name, _ in COLUMNS]
        rows = [
            (escape(row.name), row.backend, *cells_of(row))
            if not row.refused
            else (escape(row.name), row.backend, f"<i>{escape(row.refused)}</i>")
            for row in self
        ]
        body = markup.table(["implementation", "backend", *names], rows, texts=2)
        tops = "<br>".join(escape(roof_text(n, r)) for n, r in self.roofs.items())
        return markup.shown(
            "Comparison with the function in float64",
            f"{body}<div class='afn-dim'>{tops}</div>",
        )


def compare(
    function: Callable[..., Any],
    *args: Any,
    repeats: int = 20,
    warmup: int = 3,
    **static: Any,
) -> Comparison:
    """Run every implementation of ``function`` on every backend: a table to print.

    ``function`` is an operator, whose registered kernels are run beside the generated
    ones, or any function that can be compiled. ``args`` are its operands, ``static``
    arguments that are not traced. The table has errors against the function in float64,
    the minimum, median and maximum time of ``repeats`` calls after ``warmup``, and the
    median as GB/s and GFLOP/s, beside the machine's roof.

    Raises ArgumentError if an operand is not an array.

    >>> import numpy as np
    >>> from arrayfn import nn
    >>> rows = compare(nn.softmax, np.ones((4, 8), np.float32))
    >>> print(rows)  # doctest: +ELLIPSIS
    implementation          backend     max abs  max rel       L2      ULP ...
    >>> {row.backend for row in rows if row.ulp < 2} >= {"cpu", "reference"}
    True
    """
    _check(args)
    leaves = tree.leaves(args)
    wanted = tree.leaves(_reference(function, args, static))
    flops = operations(make_program(functools.partial(function, **static))(*args))
    rows: list[Measured] = []
    for name, backend, call in _implementations(function, args, static):
        if isinstance(call, str):
            rows.append(Measured(name, backend, refused=call))
            continue
        given = args if backend in ("cpu", "reference") else device_put(args, backend)
        result = call(*given)
        have = [np.asarray(x) for x in tree.leaves(result)]
        moved = sum(np.asarray(x).nbytes for x in (*leaves, *have))
        times = _times(functools.partial(call, *given), warmup, repeats)
        rows.append(
            Measured(name, backend, *_errors(have, wanted), times, moved, flops)
        )
    backends = dict.fromkeys(row.backend for row in rows if not row.refused)
    return Comparison(tuple(rows), {name: roof(name) for name in backends})


def _reference(function: Call, args: Any, static: dict[str, Any]) -> Any:
    """The results in float64, by the interpreter."""
    body = function.function if isinstance(function, Operator) else function
    return jit(functools.partial(body, **static), device="reference64")(*args)


def _implementations(
    function: Call, args: tuple[Any, ...], static: dict[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    """Name, backend and callable of each; text instead of a callable if refused."""
    body = function.function if isinstance(function, Operator) else function
    for backend in available_backends():
        if backend == "reference64":
            continue  # the reference itself
        compiled = jit(functools.partial(body, **static), device=backend)
        yield (
            ("interpreted" if backend == "reference" else "generated"),
            backend,
            compiled,
        )
        if not isinstance(function, Operator):
            continue
        for kernel in KERNELS.of(function.name, backend):
            name = f"{function.name}_{next(_NUMBERS)}"
            yield kernel.title, backend, _alone(function, name, kernel, args, static)
            KERNELS.forget(name)


def _alone(
    function: Operator,
    name: str,
    kernel: OperatorKernel,
    args: Any,
    static: dict[str, Any],
) -> Call | str:
    """The operator as ``name`` with only this kernel; text if the kernel refuses."""
    alone = operator(
        function.function, name=name, static_argnames=tuple(function.static_argnames)
    )
    KERNELS.register(replace(kernel, operator=name, check=False))
    call = functools.partial(alone, **static)
    equations = make_program(call)(*args).equations
    taken = (
        KERNELS.for_call(equation, kernel.backend, deterministic=False)
        for equation in equations
    )
    if not any(taken):
        return "does not take these operands"
    return jit(call, device=kernel.backend, deterministic=kernel.deterministic)


def _errors(have: list[Array], wanted: list[Any]) -> tuple[float, float, float, float]:
    """The largest absolute and relative error, the error in the norm, and in ULP."""
    found = [
        _error(given, exact)
        for given, exact in zip(have, wanted, strict=True)
        if given.size
    ] or [(0.0, 0.0, 0.0, 0.0)]
    a, b, c, d = (max(map(float, column)) for column in zip(*found, strict=True))
    return a, b, c, d


def _error(given: Array, exact: Any) -> tuple[Any, Any, Any, Any]:
    """``_errors`` of one result. NaN and infinities count if only one has them."""
    wide = np.complex128 if given.dtype in dtypes.COMPLEX else np.float64
    one, other = np.asarray(given, wide), np.asarray(exact, wide)
    with np.errstate(all="ignore"):
        same = (one == other) | ((one != one) & (other != other))
        apart = np.where(same, 0.0, np.abs(one - other))
        size = np.abs(other)
        norm = np.sqrt(np.sum(size[np.isfinite(size)] ** 2))
        units = apart
        if given.dtype in dtypes.INEXACT:
            units = apart / _spacing(size, given.dtype)
        return (
            apart.max(),
            np.where(apart == 0, 0.0, apart / size).max(),
            np.sqrt(np.sum(apart**2)) / (norm or 1.0),
            units.max(),
        )


def _spacing(size: Array, dtype: Any) -> Array:
    """The distance of neighbouring numbers of the real ``dtype``."""
    limits = ml_dtypes.finfo(dtypes.real_of(dtype))
    exponent = np.floor(np.log2(np.maximum(size, float(limits.smallest_normal))))
    return np.exp2(exponent) * float(limits.eps)


def _times(call: Callable[[], Any], warmup: int, repeats: int) -> tuple[float, ...]:
    for _ in range(warmup):
        block_until_ready(call())
    times: list[float] = []
    for _ in range(max(repeats, 1)):
        begin = time.perf_counter()
        block_until_ready(call())
        times.append(time.perf_counter() - begin)
    return tuple(times)


@functools.cache
def roof(backend: str, dtype: type = np.float32) -> Roof:
    """Measure the roof of ``backend``: a memory copy and a product of matrices."""
    is_host = backend in ("cpu", "reference")
    # A GPU is waited for after each call: some 10 us, which are to be little beside it.
    larger = 1 if is_host else 4
    side = larger * _SIDE
    array = np.zeros(larger * _COPIED // 4, np.float32)
    matrix = np.ones((side, side), dtype)
    if not is_host:
        array, matrix = device_put((array, matrix), backend)
    copied = jit(lambda x: -x, device=backend)
    multiplied = jit(lambda x: x @ x, device=backend)
    return Roof(
        2 * array.nbytes / min(_times(lambda: copied(array), 2, 5)),
        2 * side**3 / min(_times(lambda: multiplied(matrix), 2, 5)),
    )


COLUMNS: Final = (
    *(("max abs", 9), ("max rel", 9), ("L2", 9), ("ULP", 9), ("min us", 10)),
    *(("median", 10), ("max", 10), ("GB/s", 8), ("GFLOP/s", 9)),
)
"""The columns of numbers, and their widths."""


def cells_of(row: Measured) -> list[str]:
    """The numbers of a row, by column."""
    errors = (f"{x:.1e}" for x in (row.max_abs, row.max_rel, row.l2))
    times = (f"{1e6 * t:.1f}" for t in (min(row.times), row.median, max(row.times)))
    rates = (f"{x / row.median / 1e9:.3g}" for x in (row.bytes, row.flops))
    return [*errors, f"{row.ulp:.3g}", *times, *rates]


def roof_text(name: str, top: Roof) -> str:
    """The roof of backend ``name``, as a sentence."""
    return (
        f"roof of {name}: {top.bytes / 1e9:.3g} GB/s copying, "
        f"{top.flops / 1e9:.4g} GFLOP/s multiplying float32 matrices"
    )


def table(rows: Sequence[Measured], roofs: dict[str, Roof]) -> str:
    """The rows as text, followed by the backends' roofs."""
    head = "".join(f"{name:>{width}}" for name, width in COLUMNS)
    lines = [f"{'implementation':24}{'backend':10}{head}"]
    for row in rows:
        cells = [row.refused]
        if not row.refused:
            pairs = zip(cells_of(row), COLUMNS, strict=True)
            cells = [f"{cell:>{width}}" for cell, (_, width) in pairs]
        lines.append(f"{row.name[:23]:24}{row.backend:10}{''.join(cells)}")
    lines += [roof_text(name, top) for name, top in roofs.items()]
    return "\n".join(lines) + "\n"


def _check(args: tuple[Any, ...]) -> None:
    for leaf in tree.leaves(args):
        if not dtypes.is_python_scalar(leaf) and not hasattr(leaf, "dtype"):
            raise ArgumentError(
                f"compare: an operand is a {type(leaf).__name__}, not an array; give "
                "arguments that are not traced by name",
                user_location(),
            )
