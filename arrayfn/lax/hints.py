"""Hints to the compiler, which do not change results."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from arrayfn import tree
from arrayfn.numpy import _operands as ops
from arrayfn.primitives import rematerialization
from arrayfn.tracing import apply


class Precision(StrEnum):
    """The precision with which float32 operands of a product are multiplied.

    DEFAULT and HIGHEST are float32. HIGH lets a GPU round operands to TensorFloat-32. A
    CPU ignores HIGH.
    """

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


def optimization_barrier(operand: Any, /) -> Any:
    """Return the arrays of a pytree unchanged, but opaque to the compiler.

    The compiler does not fuse operations across the barrier, and does not compute
    values from before the barrier again after it. Shapes and dtypes stay. Python
    numbers become arrays.
    """
    leaves, structure = tree.flatten(operand)
    arrays = [ops.as_array(ops.same(x)) for x in leaves]
    primitive = rematerialization.optimization_barrier
    # Each array waits for the next one, cyclically.
    tokens = [*arrays[1:], *arrays[:1]]
    results = [
        apply(primitive, x, token) for x, token in zip(arrays, tokens, strict=True)
    ]
    return tree.unflatten(structure, results)
