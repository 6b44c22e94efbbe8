"""What a program says to the compiler, without meaning anything else."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from arrayfn import tree
from arrayfn.numpy import _operands as ops
from arrayfn.primitives import rematerialization
from arrayfn.tracing import apply


class Precision(StrEnum):
    """How float32 operands of a product are multiplied.

    DEFAULT and HIGHEST are float32; HIGH lets a GPU round them to TensorFloat-32, and
    says nothing to a CPU.
    """

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


def optimization_barrier(operand: Any, /) -> Any:
    """The arrays of a pytree, which the compiler does not see through.

    What is computed before is neither computed anew nor rearranged with what follows.
    """
    leaves, structure = tree.flatten(operand)
    arrays = [ops.as_array(ops.same(x)) for x in leaves]
    row = rematerialization.optimization_barrier
    # Each waits for the next, so that none is alone.
    shifted = [*arrays[1:], *arrays[:1]]
    held = [apply(row, x, token) for x, token in zip(arrays, shifted, strict=True)]
    return tree.unflatten(structure, held)
