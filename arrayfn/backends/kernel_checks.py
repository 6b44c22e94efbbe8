"""Compares a kernel of an operator with the operator's body, at its first call.

In: a step of a plan that calls a kernel, and the values of its operands at the first
call of a signature (kernel, types, static arguments). Out: the kernel's results, or
``KernelMismatchError``. The kernel is called twice:

1. On the operands, into results that hold what the body does not compute (NaN, the
   complement of an integer). An element that the kernel does not write differs.
2. On operands scaled by ``1 + eps**(1/3)``, with eps that of their dtypes. Agreement
   there bounds the difference between the derivative of what the kernel computes and
   that of the body, which ``grad`` uses, along the direction of the operands.

The body is evaluated by the NumPy references. Results agree if they differ by no more
than ``tolerance * (abs(wanted) + max(abs(wanted)))``; the tolerance is ``sqrt(eps)`` of
the dtype unless the kernel names another. Integers and bools are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from arrayfn import dtypes
from arrayfn.errors import KernelMismatchError, SourceLocation
from arrayfn.ir import Program
from arrayfn.lowering.host_steps import HostStep
from arrayfn.lowering.operator_kernels import OperatorKernel
from arrayfn.primitives.base import has_effect
from arrayfn.primitives.calls import evaluate

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[Array], Sequence[Array]], None]


def wants_check(step: HostStep) -> bool:
    """Whether the next call of ``step`` is to be compared with the operator's body."""
    kernel, body = step.kernel, step.body
    if kernel is None or body is None or kernel.check is False:
        return False
    return _signature(step) not in kernel.agreed and not any(
        has_effect(equation) for equation in body.equations
    )


def check_first_call(step: HostStep, run: Run, operands: Sequence[Array]) -> None:
    """Compare the kernel of ``step`` with its operator's body on ``operands``.

    ``run(operands, results)`` calls the kernel on arrays in host memory. Raises
    KernelMismatchError.
    """
    kernel, body = step.kernel, step.body
    assert kernel is not None
    assert body is not None
    _compare(kernel, body, run, operands, "")
    moved = [_scaled(x) for x in operands]
    if any(x is not y for x, y in zip(operands, moved, strict=True)):
        where = " for operands scaled by 1 + eps**(1/3), so its derivative differs too"
        _compare(kernel, body, run, moved, where)
    kernel.agreed.add(_signature(step))


def _signature(step: HostStep) -> Any:
    return step.operands, step.results, step.static, step.mapped, step.absent


def _compare(
    kernel: OperatorKernel,
    body: Program,
    run: Run,
    operands: Sequence[Array],
    where: str,
) -> None:
    """Raise KernelMismatchError if ``run`` and the operator's ``body`` differ.

    ``where`` says, for the message, which elements of a mapped axis are compared.
    """
    wanted = [
        np.asarray(want, type.dtype)
        for want, type in zip(evaluate(body, operands), body.output_types, strict=True)
    ]
    results = [_poison(want) for want in wanted]
    poison = [result.copy() for result in results]
    run(operands, results)
    for k, (have, want, before) in enumerate(zip(results, wanted, poison, strict=True)):
        far = _differs(have, want, kernel.check)
        if not far.any():
            continue
        untouched = far & _equal_or_both_nan(have, before)
        index = tuple(int(i) for i in np.argwhere(far)[0])
        count = int(np.count_nonzero(far))
        raise KernelMismatchError(
            f"kernel {kernel.title} ({kernel.backend}) of operator {kernel.operator} "
            f"differs from the operator's body{where}: result {k} in {count} of "
            f"{far.size} elements ({int(np.count_nonzero(untouched))} of them were not "
            f"written); at {list(index)} it gives {have[index]}, the body "
            f"{want[index]}. Mend the kernel, narrow its when=, or register it with "
            "check=TOLERANCE (relative) or check=False",
            _defined_at(kernel),
        )


def _poison(want: Array) -> Array:
    """An array that differs from ``want`` in each element, to find unwritten ones."""
    if want.dtype in dtypes.INEXACT:
        return np.where(np.isnan(want), 1, np.nan).astype(want.dtype)
    return np.array(np.logical_not(want) if want.dtype == bool else ~want)


def _scaled(x: Array) -> Array:
    """``x`` times ``1 + eps**(1/3)`` if it is floating-point, else ``x`` itself.

    The body's change under this perturbation says how sensitive it is to rounding.
    """
    if x.dtype not in dtypes.INEXACT:
        return x
    factor = 1 + _eps(x.dtype) ** (1 / 3)
    wide = np.complex128 if x.dtype in dtypes.COMPLEX else np.float64
    return np.asarray(x.astype(wide) * factor, x.dtype)


def _eps(dtype: dtypes.DType) -> float:
    return float(ml_dtypes.finfo(dtypes.real_of(dtype)).eps)


def _differs(have: Array, want: Array, tolerance: bool | float) -> Array:
    """A mask of elements of ``have`` that differ from ``want`` beyond ``tolerance``."""
    if want.dtype not in dtypes.INEXACT:
        return np.asarray(have != want)
    if tolerance is True:
        tolerance = _eps(want.dtype) ** 0.5
    wide = np.complex128 if want.dtype in dtypes.COMPLEX else np.float64
    x, y = have.astype(wide), want.astype(wide)
    size = np.abs(y)
    scale = size[np.isfinite(size)].max(initial=0.0)
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= tolerance * (size + scale)
    return ~(near & np.isfinite(y) | (x == y) | (np.isnan(x) & np.isnan(y)))


def _equal_or_both_nan(x: Array, y: Array) -> Array:
    """A mask of elements that are equal or both NaN (0.0 equals -0.0)."""
    if x.dtype not in dtypes.INEXACT:
        return np.asarray(x == y)
    return (x == y) | (np.isnan(x) & np.isnan(y))


def _defined_at(kernel: OperatorKernel) -> SourceLocation | None:
    code = getattr(kernel.function, "__code__", None)
    return code and SourceLocation(code.co_filename, code.co_firstlineno)
