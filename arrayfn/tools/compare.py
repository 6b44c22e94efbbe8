"""Compares accuracy and speed of the implementations of one function.

The reference is the function in float64, run by the interpreter. Times are shown beside
the machine's roof: a memory copy and a float32 matrix product, timed in the same way.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, overload

import ml_dtypes
import numpy as np

from arrayfn import dtypes, tree
from arrayfn.backends.registry import available_backends, choose, has_backend
from arrayfn.compilation.jit import jit
from arrayfn.compilation.operators import Operator, operator
from arrayfn.errors import ArgumentError, user_location
from arrayfn.lowering.operations import operations
from arrayfn.lowering.operator_kernels import KERNELS, OperatorKernel
from arrayfn.numpy._operands import DTypeLike
from arrayfn.records import frozen
from arrayfn.tools.engines import ENGINES, Engine, counterpart, prepared
from arrayfn.tools.measured import Comparison, Measured, Roof
from arrayfn.tools.sweep import Sweep, sweep
from arrayfn.transfers import block_until_ready, device_put
from arrayfn.transforms import make_program

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]
_NUMBERS: Final = itertools.count()
_COPIED: Final = 1 << 25  # bytes of the array that is copied for the roof
_SIDE: Final = 1024  # rows and columns of the matrices that are multiplied for it


@overload
def compare(
    function: Call,
    *args: Any,
    repeats: int = ...,
    warmup: int = ...,
    backends: Sequence[str] | None = ...,
    against: Mapping[str, Call] | None = ...,
    sizes: None = ...,
    dtypes: Sequence[DTypeLike] | None = ...,
    **static: Any,
) -> Comparison: ...


@overload
def compare(
    function: Call,
    *args: Any,
    repeats: int = ...,
    warmup: int = ...,
    backends: Sequence[str] | None = ...,
    against: Mapping[str, Call] | None = ...,
    sizes: Sequence[Any],
    dtypes: Sequence[DTypeLike] | None = ...,
    **static: Any,
) -> Sweep: ...


def compare(
    function: Call,
    *args: Any,
    repeats: int = 20,
    warmup: int = 3,
    backends: Sequence[str] | None = None,
    against: Mapping[str, Call] | None = None,
    sizes: Sequence[Any] | None = None,
    dtypes: Sequence[DTypeLike] | None = None,
    **static: Any,
) -> Any:
    """Run every implementation of ``function`` on every backend, and make a table.

    Args:
        function: an operator, or any function that can be compiled. The registered
            kernels of an operator are run beside the generated ones.
        *args: its operands. With ``sizes``, an argument may be a function that returns
            the operand for a size.
        repeats: the number of calls that are timed.
        warmup: the number of calls before the timed ones.
        backends: the backends to run, by default all that are available. The list may
            also name other libraries: "numpy", "jax", "torch". For an operator of
            arrayfn, a library runs its own function. Otherwise it runs the function in
            ``against``. A library's function that does not take the arguments is
            refused, with the reason.
        against: functions that compute the same results. A function has the name of the
            library whose arrays it takes ("numba" for a function that Numba compiled).
            A function with any other name takes NumPy arrays.
        sizes: sizes for which to repeat the comparison.
        dtypes: dtypes for which to repeat the comparison. Floating-point operands are
            converted to each.
        **static: arguments that are not traced.

    Returns:
        A Comparison. A row has the error of one implementation, compared with the
        function in float64. It also has the minimum, median and maximum time, and the
        median as GB/s and GFLOP/s, beside the machine's roof. With ``sizes`` or
        ``dtypes``, the result is a Sweep of Comparisons, which can ``plot`` the times.

    Raises:
        ArgumentError: an operand is not an array, or no backend or library has the name
            in ``backends``.
        BackendError: one of ``backends`` is not available, or not installed.

    >>> import numpy as np
    >>> from arrayfn import nn
    >>> rows = compare(nn.softmax, np.ones((4, 8), np.float32))
    >>> print(rows)  # doctest: +ELLIPSIS
    implementation          backend     max abs  max rel       L2      ULP ...
    >>> {row.backend for row in rows if row.ulp < 2} >= {"cpu", "reference"}
    True
    """
    chosen = _Chosen.of(backends, against or {})
    one = functools.partial(
        _compared, function, static=static, chosen=chosen, count=(repeats, warmup)
    )
    if sizes is None and dtypes is None:
        return one(args)
    return sweep(one, args, sizes, dtypes)


@frozen
class _Chosen:
    """What is compared: backends, libraries, and the user's functions by library."""

    backends: tuple[str, ...]
    engines: tuple[Engine, ...]
    against: Mapping[str, Call]

    @classmethod
    def of(cls, names: Sequence[str] | None, against: Mapping[str, Call]) -> _Chosen:
        """Sort ``names`` into backends and libraries; add the libraries of ``against``.

        Without names, all available backends are chosen, except the one that computes
        the exact results. A name in ``against`` that is no library stands for NumPy.
        Raises ArgumentError for an unknown name.
        """
        engines = dict.fromkeys((*(names or ()), *against))
        if names is None:
            names = [x for x in available_backends() if x != "reference64"]
        for name in names:
            if name not in ENGINES and name not in against and not has_backend(name):
                known = [*available_backends(), *ENGINES]
                raise ArgumentError(
                    f"compare: there is no backend or library {name!r}; there are "
                    + ", ".join(known),
                    user_location(),
                )
        own = [x for x in names if x not in ENGINES and x not in against]
        return cls(
            tuple(choose(name).name for name in own),
            tuple(
                ENGINES.get(name, Engine(name, "numpy"))
                for name in engines
                if name in ENGINES or name in against
            ),
            against,
        )


def _compared(
    function: Call,
    args: tuple[Any, ...],
    *,
    static: dict[str, Any],
    chosen: _Chosen,
    count: tuple[int, int],
) -> Comparison:
    """Compare all implementations on operands ``args`` and ``static`` arguments.

    ``chosen`` has the backends, the engines (other libraries), and the functions
    ``against`` which to compare, by the engine's name. ``count`` is (the number of
    timed calls, the number of warm-up calls).
    """
    _check(args)
    repeats, warmup = count
    leaves = tree.leaves(args)
    wanted = tree.leaves(_reference(function, args, static))
    flops = operations(make_program(functools.partial(function, **static))(*args))
    rows: list[Measured] = []

    def measure(name: str, backend: str, call: Call, operands: Any, get: Call) -> None:
        """Add a row with the errors and times of ``call`` on ``operands``.

        ``get`` converts a result to a NumPy array.
        """
        results = [get(x) for x in tree.leaves(call(*operands))]
        moved = sum(np.asarray(x).nbytes for x in (*leaves, *results))
        times = _times(functools.partial(call, *operands), warmup, repeats)
        errors = _errors(results, wanted)
        rows.append(Measured(name, backend, *errors, times, moved, flops))

    own = chosen.backends
    for name, backend, call in _implementations(function, args, static, own):
        if isinstance(call, str):
            rows.append(Measured(name, backend, refused=call))
            continue
        on_host = backend in ("cpu", "reference")
        operands = args if on_host else device_put(args, backend)
        measure(name, backend, call, operands, np.asarray)
    operator_name = function.name if isinstance(function, Operator) else ""
    for engine in chosen.engines:
        given = chosen.against.get(engine.name)
        other = given or counterpart(operator_name, engine.name)
        if other is None:
            why = f"no function known; give against={{{engine.name!r}: function}}"
            rows.append(Measured("", engine.name, refused=why))
            continue
        engine.library()  # raises BackendError if it is not installed
        call, operands = prepared(engine, functools.partial(other, **static), args)
        title = getattr(other, "__name__", "a function").lstrip("_")
        try:
            measure(title, engine.name, call, operands, engine.get)
        except TypeError as error:
            if given is not None:  # an error of the user's function
                raise
            reason = str(error).partition("\n")[0].lstrip("_")
            why = f"does not take these arguments: {reason}"
            rows.append(Measured(title, engine.name, refused=why))
    backends = dict.fromkeys(
        row.backend for row in rows if not row.refused and row.backend in own
    )
    return Comparison(tuple(rows), {name: roof(name) for name in backends})


def _reference(function: Call, args: Any, static: dict[str, Any]) -> Any:
    """Compute the results in float64 by the reference interpreter.

    ``args`` are the operands, ``static`` the static arguments. Of an operator, the body
    is computed.
    """
    body = function.function if isinstance(function, Operator) else function
    return jit(functools.partial(body, **static), device="reference64")(*args)


def _implementations(
    function: Call,
    args: tuple[Any, ...],
    static: dict[str, Any],
    backends: Sequence[str],
) -> Iterator[tuple[str, str, Any]]:
    """Yield (name, backend, callable) for each implementation.

    On each backend there is the compiled function, and of an operator also each
    registered kernel. If a kernel refuses the operands, the reason stands in place of
    the callable. ``args`` are the operands, ``static`` the static arguments.
    """
    body = function.function if isinstance(function, Operator) else function
    for backend in backends:
        compiled = jit(functools.partial(body, **static), device=backend)
        yield (
            ("interpreted" if backend == "reference" else "generated"),
            backend,
            compiled,
        )
        if not isinstance(function, Operator):
            continue
        # Each kernel is the only one of an operator with a new name, which is removed
        # after the caller has measured it.
        for kernel in KERNELS.of(function.name, backend):
            name = f"{function.name}_{next(_NUMBERS)}"
            yield (
                kernel.title,
                backend,
                _with_only(function, name, kernel, args, static),
            )
            KERNELS.forget(name)


def _with_only(
    function: Operator[..., Any],
    name: str,
    kernel: OperatorKernel,
    args: Any,
    static: dict[str, Any],
) -> Call | str:
    """Return a copy of the operator, called ``name``, that has only ``kernel``.

    Registers ``kernel`` for the copy. Returns a reason instead if the kernel refuses
    the operands ``args`` and the ``static`` arguments.
    """
    copy = operator(
        function.function, name=name, static_argnames=tuple(function.static_argnames)
    )
    # Without its check, the first call does not compare the results.
    KERNELS.register(replace(kernel, operator=name, check=False))
    call = functools.partial(copy, **static)
    equations = make_program(call)(*args).equations
    kernels = (
        KERNELS.for_call(equation, kernel.backend, deterministic=False)
        for equation in equations
    )
    if not any(kernels):
        return "does not take these operands"
    return jit(call, device=kernel.backend, deterministic=kernel.deterministic)


def _errors(have: list[Array], wanted: list[Any]) -> tuple[float, float, float, float]:
    """Return the largest errors of all results: (absolute, relative, L2, ULP).

    ``have`` are the results, and ``wanted`` the exact ones.
    """
    errors = [
        _error(result, exact)
        for result, exact in zip(have, wanted, strict=True)
        if result.size
    ] or [(0.0, 0.0, 0.0, 0.0)]
    absolute, relative, l2, ulp = (
        max(map(float, column)) for column in zip(*errors, strict=True)
    )
    return absolute, relative, l2, ulp


def _error(result: Array, exact: Any) -> tuple[Any, Any, Any, Any]:
    """Return the errors of one result: (absolute, relative, L2, ULP).

    These are the largest absolute and relative error, the 2-norm of all errors relative
    to that of ``exact``, and the largest error in units of the last place. Where both
    have the same infinity, or both have NaN, the error is 0.
    """
    wide = dtypes.widest(result.dtype)
    one, other = np.asarray(result, wide), np.asarray(exact, wide)
    with np.errstate(all="ignore"):
        same = (one == other) | ((one != one) & (other != other))
        difference = np.where(same, 0.0, np.abs(one - other))
        size = np.abs(other)
        norm = np.sqrt(np.sum(size[np.isfinite(size)] ** 2))
        units = difference
        if result.dtype in dtypes.INEXACT:
            units = difference / _spacing(size, result.dtype)
        return (
            difference.max(),
            np.where(difference == 0, 0.0, difference / size).max(),
            np.sqrt(np.sum(difference**2)) / (norm or 1.0),
            units.max(),
        )


def _spacing(size: Array, dtype: Any) -> Array:
    """Return the distance of neighbouring numbers of ``dtype`` at magnitude ``size``.

    This is eps times the largest power of two up to ``size``. Below the smallest normal
    number, the distance is constant. For complex dtypes the parts' dtype counts.
    """
    limits = ml_dtypes.finfo(dtypes.real_of(dtype))
    exponent = np.floor(np.log2(np.maximum(size, float(limits.smallest_normal))))
    return np.exp2(exponent) * float(limits.eps)


def _times(call: Callable[[], Any], warmup: int, repeats: int) -> tuple[float, ...]:
    """Return the seconds of each of ``repeats`` calls, after ``warmup`` other calls."""
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
    """Measure the roof of ``backend``: a memory copy and a product of matrices.

    Both are arrayfn's own kernels. The results are cached.
    """
    is_host = backend in ("cpu", "reference")
    # Each call waits for the GPU, which costs about 10 us. With larger operands this is
    # little of the time.
    larger = 1 if is_host else 4
    side = larger * _SIDE
    array = np.zeros(larger * _COPIED // 4, np.float32)  # _COPIED is in bytes
    matrix = np.ones((side, side), dtype)
    if not is_host:
        array, matrix = device_put((array, matrix), backend)
    copied = jit(lambda x: -x, device=backend)
    multiplied = jit(lambda x: x @ x, device=backend)
    return Roof(
        # A copy reads and writes each byte.
        2 * array.nbytes / min(_times(lambda: copied(array), warmup=2, repeats=5)),
        2 * side**3 / min(_times(lambda: multiplied(matrix), warmup=2, repeats=5)),
    )


def _check(args: tuple[Any, ...]) -> None:
    """Raise ArgumentError unless all operands are arrays or numbers."""
    for leaf in tree.leaves(args):
        if not dtypes.is_python_scalar(leaf) and not hasattr(leaf, "dtype"):
            raise ArgumentError(
                f"compare: an operand is a {type(leaf).__name__}, not an array; give "
                "arguments that are not traced by name",
                user_location(),
            )
