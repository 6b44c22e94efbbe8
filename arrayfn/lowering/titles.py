"""Titles of kernels: the primitives that they compute."""

from __future__ import annotations

from collections.abc import Sequence

from arrayfn.lowering.kernel_ir import Compute, Reduce, Statement
from arrayfn.primitives.base import Reduction, Scalar
from arrayfn.primitives.table import TABLE


def computed(
    primitives: Sequence[str], statements: Sequence[Statement]
) -> tuple[str, ...]:
    """Of ``primitives``, in the order of a nest, those that a part of it computes.

    What has no function of its own, as views, is where the next that has one is.
    """
    functions = {
        s.function.rpartition("_")[0]
        for s in statements
        if isinstance(s, (Compute, Reduce))
    }
    found: list[str] = []
    before: list[str] = []
    here = True
    for name in primitives:
        kernel = TABLE[name].kernel
        before.append(name)
        if isinstance(kernel, (Scalar, Reduction)):
            here = kernel.function in functions
            found += before if here else []
            before = []
    return (*found, *(before if here else []))
