"""in_bounds: marks indices that a checked function asserts to lie within an axis.

Indexing emits it while a function is traced for ``jit(..., checks=...)``, with the
indices as the user wrote them, before negative ones are counted from the end. It is the
identity; ``passes.checks`` turns it into a test.
"""

from __future__ import annotations

from collections.abc import Iterable

from arrayfn import dtypes
from arrayfn.errors import DTypeError
from arrayfn.ir import ArrayType
from arrayfn.primitives import families, views
from arrayfn.primitives.base import (
    NOT_LINEAR,
    ZERO_TANGENT,
    Primitive,
    Sample,
    View,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import batched_along


def _types(index: ArrayType, *, extent: int, axis: int, length: int) -> ArrayType:
    """Type rule: the indices, unchanged.

    ``extent`` is the length of the indexed axis, ``axis`` its number and ``length`` how
    many elements an index reads, all for the error message.
    """
    if index.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"in_bounds: indices must be integers, not {index}")
    return ArrayType(index.shape, index.dtype, weak=index.weak)


def _samples() -> Iterable[Sample]:
    """Yield signed and unsigned indices within an axis of extent 5, for tests."""
    for dtype in (dtypes.int32, dtypes.uint8):
        x = families.random_array(dtype, (3, 4), 64, 0, 5)
        yield Sample((x,), {"extent": 5, "axis": 1, "length": 0}, differentiate=())


in_bounds = Primitive(
    name="in_bounds",
    family="view",
    types=_types,
    reference=lambda index, **_: index,
    kernel=View(lambda index, **_: views.unchanged(index)),
    jvp=ZERO_TANGENT,
    transpose=NOT_LINEAR,
    batch=batched_along(Emitter("in_bounds")),
    samples=_samples,
    doc="The operand: indices asserted to lie within an axis. They are of elements, "
    "negative ones from its end, or of the first elements of slices of a length.",
)
