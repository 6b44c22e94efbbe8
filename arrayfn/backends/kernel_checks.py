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
    """Return whether ``check_first_call`` should check the next call of ``step``.

    It should if the kernel's check is on, no call of this signature has agreed before,
    and the body has no side effects, which a second evaluation would repeat.
    """
    kernel, body = step.kernel, step.body
    if kernel is None or body is None or kernel.check is False:
        return False
    return _signature(step) not in kernel.agreed and not any(
        has_effect(equation) for equation in body.equations
    )


def check_first_call(step: HostStep, run: Run, operands: Sequence[Array]) -> None:
    """Compare the kernel of ``step`` with its operator's body on ``operands``.

    The comparison is repeated on scaled operands, which compares the derivatives.
    ``run(operands, results)`` calls the kernel on arrays in host memory. Raises
    KernelMismatchError if they differ; otherwise the step's signature is added to
    ``kernel.agreed``, so that it is not checked again.
    """
    kernel, body = step.kernel, step.body
    assert kernel is not None
    assert body is not None
    _compare(kernel, body, run, operands, "")
    scaled = [_scaled(x) for x in operands]
    if any(x is not y for x, y in zip(operands, scaled, strict=True)):
        where = " for operands scaled by 1 + eps**(1/3), so its derivative differs too"
        _compare(kernel, body, run, scaled, where)
    kernel.agreed.add(_signature(step))


def _signature(step: HostStep) -> Any:
    """Return the types and static arguments of a call, for which it is checked once."""
    return step.operands, step.results, step.static, step.mapped, step.absent


def _compare(
    kernel: OperatorKernel,
    body: Program,
    run: Run,
    operands: Sequence[Array],
    where: str,
) -> None:
    """Raise KernelMismatchError if ``run`` and the operator's ``body`` differ.

    Both compute on ``operands``. The results that ``run`` writes are first filled with
    wrong values, so that the message can count elements that were not written.
    ``where`` is added to the message: it says which operands these are.
    """
    expected = [
        np.asarray(array, type.dtype)
        for array, type in zip(evaluate(body, operands), body.output_types, strict=True)
    ]
    results = [_poison(array) for array in expected]
    poison = [result.copy() for result in results]
    run(operands, results)
    for k, (result, want, before) in enumerate(
        zip(results, expected, poison, strict=True)
    ):
        far = _differs(result, want, kernel.check)
        if not far.any():
            continue
        untouched = far & _equal_or_both_nan(result, before)
        index = tuple(int(i) for i in np.argwhere(far)[0])
        count = int(np.count_nonzero(far))
        raise KernelMismatchError(
            f"kernel {kernel.title} ({kernel.backend}) of operator {kernel.operator} "
            f"differs from the operator's body{where}: result {k} in {count} of "
            f"{far.size} elements ({int(np.count_nonzero(untouched))} of them were not "
            f"written); at {list(index)} it gives {result[index]}, the body "
            f"{want[index]}. Mend the kernel, narrow its when=, or register it with "
            "check=TOLERANCE (relative) or check=False",
            _defined_at(kernel),
        )


def _poison(want: Array) -> Array:
    """Return an array that differs from ``want`` in each element.

    For floats it is NaN (1 where ``want`` is NaN), for integers the complement.
    """
    if want.dtype in dtypes.INEXACT:
        return np.where(np.isnan(want), 1, np.nan).astype(want.dtype)
    return np.array(np.logical_not(want) if want.dtype == bool else ~want)


def _scaled(x: Array) -> Array:
    """Return ``x`` times ``1 + eps**(1/3)``, or ``x`` itself if it is not inexact.

    ``eps`` is that of its dtype. The product is rounded once, from a wider dtype.
    """
    if x.dtype not in dtypes.INEXACT:
        return x
    factor = 1 + _eps(x.dtype) ** (1 / 3)
    return np.asarray(x.astype(dtypes.widest(x.dtype)) * factor, x.dtype)


def _eps(dtype: dtypes.DType) -> float:
    """Return the machine epsilon of an inexact dtype; that of its parts if complex."""
    return float(ml_dtypes.finfo(dtypes.real_of(dtype)).eps)


def _differs(result: Array, want: Array, tolerance: bool | float) -> Array:
    """Return a mask of elements where ``result`` and ``want`` differ too much.

    ``tolerance`` is relative to the element of ``want`` plus the largest one; True
    stands for the square root of the dtype's eps. Integers must be equal. NaN agrees
    with NaN, and an infinity with the same infinity.
    """
    if want.dtype not in dtypes.INEXACT:
        return np.asarray(result != want)
    if tolerance is True:
        tolerance = _eps(want.dtype) ** 0.5
    wide = dtypes.widest(want.dtype)
    x, y = result.astype(wide), want.astype(wide)
    size = np.abs(y)
    scale = size[np.isfinite(size)].max(initial=0.0)
    return ~np.isclose(x, y, tolerance, tolerance * scale, equal_nan=True)


def _equal_or_both_nan(x: Array, y: Array) -> Array:
    """Return a mask of elements that are equal or both NaN (0.0 equals -0.0)."""
    if x.dtype not in dtypes.INEXACT:
        return np.asarray(x == y)
    return (x == y) | (np.isnan(x) & np.isnan(y))


def _defined_at(kernel: OperatorKernel) -> SourceLocation | None:
    """Return where the kernel's function is defined; None if it has no Python code."""
    code = getattr(kernel.function, "__code__", None)
    return code and SourceLocation(code.co_filename, code.co_firstlineno)
