"""Titles of kernels: the primitives that they compute."""

from __future__ import annotations

from collections.abc import Sequence

from arrayfn.lowering.kernel_ir import Compute, Reduce, Statement
from arrayfn.primitives.base import Reduction, Scalar
from arrayfn.primitives.table import TABLE


def computed(
    primitives: Sequence[str], statements: Sequence[Statement]
) -> tuple[str, ...]:
    """Return the names of those ``primitives`` of a nest that ``statements`` compute.

    A primitive is computed if a statement has its function. A primitive without a
    function of its own, such as a view, is listed if the next one with a function is
    listed.
    """
    functions = {
        s.function.rpartition("_")[0]
        for s in statements
        if isinstance(s, (Compute, Reduce))
    }
    names: list[str] = []
    pending: list[str] = []
    is_computed = True
    for name in primitives:
        kernel = TABLE[name].kernel
        pending.append(name)
        if isinstance(kernel, (Scalar, Reduction)):
            is_computed = kernel.function in functions
            names += pending if is_computed else []
            pending = []
    return (*names, *(pending if is_computed else []))
