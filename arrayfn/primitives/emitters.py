"""Primitives that rules emit by name, because they are defined in later modules.

Derivatives need each other in a circle: the transpose of a broadcast is a sum, that of
a sum is a broadcast. A rule imports directly what it can, and emits the rest through an
Emitter; ``table`` defines which primitives there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

from typing_extensions import override

from arrayfn import dtypes
from arrayfn.ir import Atom
from arrayfn.primitives.base import Primitive

_TABLE: Final = "arrayfn.primitives.table"


@cache
def _primitives() -> Mapping[str, Primitive]:
    """Return all primitives by name.

    Imports the modules of all primitives, on the first call of an Emitter. A process
    that never differentiates, maps or compiles does not need these modules.
    """
    return import_module(_TABLE).TABLE


class Emitter:
    """Stands for the primitive ``name``, which is looked up when it is called.

    Rules use it for primitives that are defined in later modules.

    >>> Emitter("add")
    <emitter of add>
    """

    def __init__(self, name: str) -> None:
        """Store the primitive's name, without importing its module."""
        self._name = name

    def __call__(self, *operands: Any, **params: Any) -> Any:
        """Emit an equation of the primitive, as ``Primitive.__call__`` does."""
        return _primitives()[self._name](*operands, **params)

    @override
    def __repr__(self) -> str:
        """Return ``<emitter of name>``."""
        return f"<emitter of {self._name}>"


class SumEmitter(Emitter):
    """Emits sums; float8 operands are added in float32 and the result rounded once."""

    @override
    def __call__(self, *operands: Any, **params: Any) -> Any:
        """Emit the sum, as ``Primitive.__call__`` does, with conversions for float8."""
        dtype = operands[0].type.dtype
        if dtype not in dtypes.FLOAT8:
            return super().__call__(*operands, **params)
        wide = [
            convert(x, dtype=dtypes.float32) if x.type.dtype == dtype else x
            for x in operands
        ]
        return convert(super().__call__(*wide, **params), dtype=dtype)


convert: Final = Emitter("convert")
add: Final = SumEmitter("add")
all_reduce: Final = SumEmitter("all_reduce")
broadcast_in_dim: Final = Emitter("broadcast_in_dim")
concatenate: Final = Emitter("concatenate")
log: Final = Emitter("log")
mul: Final = Emitter("mul")
real: Final = Emitter("real")
reduce_sum: Final = SumEmitter("reduce_sum")
scatter_add: Final = SumEmitter("scatter_add")
sub: Final = SumEmitter("sub")
transpose: Final = Emitter("transpose")
while_loop: Final = Emitter("while_loop")


def move_axis(x: Atom, source: int, target: int) -> Atom:
    """Emit ``x`` with axis ``source`` moved to ``target``, as ``np.moveaxis``."""
    if source == target:
        return x
    order = [axis for axis in range(x.type.ndim) if axis != source]
    order.insert(target, source)
    return transpose(x, permutation=tuple(order))
