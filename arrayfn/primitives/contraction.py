"""dot_general: contraction of two arrays over some axes, batched over others.

The output's axes are the batch axes, then the left operand's free axes, then the
right's. float16 and bfloat16 are multiplied and summed in float32 and rounded once.
``preferred_element_type`` is the dtype of the sums; with float32 nothing is rounded.
Products of float8, int4 and uint4 need one.

``precision="tf32"`` allows a backend to round float32 operands to TensorFloat-32 (10
bits of fraction) before multiplying. The reference and CPUs never do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.ir import ArrayType, Atom, Equation
from arrayfn.ir.layout import Shape, ascending, other_axes
from arrayfn.primitives import conversion, emitters, factors, families, views
from arrayfn.primitives.base import (
    Array,
    Atoms,
    Batched,
    Contraction,
    Dims,
    Linear,
    Operand,
    Operands,
    Primitive,
    Sample,
    Tangents,
    Tolerance,
    value_of,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import jvp_of_product, mapped_axes_first, shifted

Axes = tuple[int, ...]
AxesPair = tuple[Axes, Axes]


# What leaves float32 as it is, and what allows TensorFloat-32: names of precisions, and
# of algorithms (the dtypes of operands, of products and of sums).
_FULL: Final = (
    *(None, "default", "highest", "float32"),
    *("DEFAULT", "F16_F16_F32", "BF16_BF16_F32", "F32_F32_F32", "F64_F64_F64"),
)
_TF32: Final = ("high", "tensorfloat32", "tf32", "TF32_TF32_F32")

Precision: TypeAlias = str | tuple[str | None, str | None] | None


def precision_params(name: str, precision: Precision) -> dict[str, str]:
    """Return the params of a dot_general for a user's ``precision`` argument.

    A pair has a precision for each operand; operands are rounded to TensorFloat-32 if
    both precisions allow it. Raises ArgumentError, with the user's function ``name``,
    for a precision that is none of JAX's names.

    >>> precision_params("matmul", "tf32"), precision_params("matmul", None)
    ({'precision': 'tf32'}, {})
    """
    if isinstance(precision, (tuple, list)):
        if len(precision) != 2:
            raise ArgumentError(
                f"{name}: precision has one value for both operands, or a pair, not "
                f"{len(precision)} values",
                user_location(),
            )
        left, right = (precision_params(name, one) for one in precision)
        return left if left == right else {}
    if precision in _FULL:
        return {}
    if precision in _TF32:
        return {"precision": "tf32"}
    raise ArgumentError(
        f"{name}: precision must be None (float32 is float32) or 'tf32', not "
        f"{precision!r}",
        user_location(),
    )


def depth(equation: Equation) -> int:
    """Return how many terms a dot_general sums for each element of its result."""
    contracted, _ = equation.params["contract"]
    shape = equation.inputs[0].type.shape
    return math.prod(shape[axis] for axis in contracted)


def free_axes(ndim: int, contract: Axes, batch: Axes) -> Axes:
    """Return the axes of an array of ``ndim`` axes not in ``contract`` or ``batch``."""
    return other_axes(ndim, (*contract, *batch))


def product_shape(x: Shape, y: Shape, contract: AxesPair, batch: AxesPair) -> Shape:
    """Return the shape of the product of arrays of the shapes ``x`` and ``y``."""
    shape = [x[axis] for axis in batch[0]]
    for extents, *axes in zip((x, y), contract, batch, strict=True):
        shape += [extents[axis] for axis in free_axes(len(extents), *axes)]
    return tuple(shape)


def _types(
    x: ArrayType,
    y: ArrayType,
    *,
    contract: AxesPair,
    batch: AxesPair,
    precision: str | None = None,
    preferred_element_type: DType | None = None,
) -> ArrayType:
    """Type rule: the output has the batch axes, the free axes of ``x``, then ``y``'s.

    ``contract`` and ``batch`` are pairs: axes of ``x``, and the axes of ``y`` that they
    are paired with, in the same order. Paired axes must have equal extents.
    ``preferred_element_type`` is the dtype of products, sums and output.
    """
    _check_dtypes(x, y, preferred_element_type)
    for operand, axes in (
        (x, (*contract[0], *batch[0])),
        (y, (*contract[1], *batch[1])),
    ):
        if len(set(axes)) != len(axes) or any(not 0 <= a < operand.ndim for a in axes):
            raise ShapeError(f"dot_general cannot take axes {axes} of {operand}")
    for left, right, role in (
        (contract[0], contract[1], "contracted"),
        (batch[0], batch[1], "batched"),
    ):
        if len(left) != len(right):
            raise ShapeError(f"dot_general: {role} axes do not pair: {left}, {right}")
        for a, b in zip(left, right, strict=True):
            if x.shape[a] != y.shape[b]:
                raise ShapeError(
                    f"dot_general: {role} axes differ: axis {a} of {x} has extent "
                    f"{x.shape[a]}, axis {b} of {y} has {y.shape[b]}"
                )
    shape = product_shape(x.shape, y.shape, contract, batch)
    if preferred_element_type is None:
        return x.with_shape(shape)
    return ArrayType(shape, preferred_element_type)


def _check_dtypes(x: ArrayType, y: ArrayType, preferred: DType | None) -> None:
    """Raise DTypeError unless x and y can be multiplied and summed in ``preferred``.

    Two different float8 dtypes, or int4 and uint4, may be multiplied; ``preferred`` is
    then required. All other operands must have one dtype.
    """
    for kinds, wide in (
        (dtypes.FLOAT8, dtypes.FLOATS),
        (dtypes.INT4, dtypes.SIGNED | dtypes.FLOATS),
    ):
        if x.dtype in kinds and y.dtype in kinds:
            if preferred in wide:
                return
            raise DTypeError(
                f"dot_general of {x} and {y} takes the dtype of the product as "
                "preferred_element_type, one of "
                + ", ".join(n for d, n in dtypes.SHORT_NAMES.items() if d in wide)
            )
    families.common_dtype("dot_general", (x, y), dtypes.NUMBERS)
    if preferred is not None and not np.can_cast(x.dtype, preferred):
        raise DTypeError(
            f"dot_general of {x} cannot be computed as "
            f"{dtypes.short_name(preferred)}, which does not hold all of its numbers"
        )


def _reference(
    x: Array,
    y: Array,
    *,
    contract: AxesPair,
    batch: AxesPair,
    precision: str | None = None,
    preferred_element_type: DType | None = None,
) -> Array:
    """Contract by ``np.einsum``.

    float16 and bfloat16 are multiplied and summed in float32, and rounded once.
    ``precision`` has no influence.
    """
    result_dtype = preferred_element_type or x.dtype
    compute_dtype = dtypes.compute_dtype(result_dtype)
    # einsum labels: paired axes of y get the labels of x's axes.
    left = list(range(x.ndim))
    right = [x.ndim + axis for axis in range(y.ndim)]
    for pair in (contract, batch):
        for a, b in zip(*pair, strict=True):
            right[b] = left[a]
    output_labels = [left[axis] for axis in batch[0]]
    output_labels += [left[axis] for axis in free_axes(x.ndim, contract[0], batch[0])]
    output_labels += [right[axis] for axis in free_axes(y.ndim, contract[1], batch[1])]
    product = np.einsum(
        x.astype(compute_dtype),
        left,
        y.astype(compute_dtype),
        right,
        output_labels,
        optimize=True,
    )
    return np.asarray(product).astype(result_dtype)


def _transpose(
    cotangents: Tangents,
    inputs: Operands,
    *,
    contract: AxesPair,
    batch: AxesPair,
    precision: str | None = None,
    preferred_element_type: DType | None = None,
) -> Tangents:
    """Transpose rule: contract the cotangent with the operand that is known.

    For a matrix product: ``ct_x = ct @ y.T`` and ``ct_y = x.T @ ct``.
    """
    (ct,), (x, y) = cotangents, inputs
    assert ct is not None
    params = precision_params("dot_general", precision)
    if isinstance(x, Linear):
        return [_cotangent(ct, x.type, y, contract, batch, params, left=True), None]
    assert isinstance(y, Linear)
    # The pairs of axes with those of y first.
    contract, batch = (contract[1], contract[0]), (batch[1], batch[0])
    return [None, _cotangent(ct, y.type, x, contract, batch, params, left=False)]


def _cotangent(
    ct: Atom,
    operand_type: ArrayType,
    other: Operand,
    contract: AxesPair,
    batch: AxesPair,
    params: dict[str, str],
    *,
    left: bool,
) -> Atom:
    """Return the cotangent of one operand of a dot_general, the left or the right one.

    It contracts the output's cotangent with the other operand over the latter's free
    axes, then puts the axes into the operand's order.

    Args:
        ct: the cotangent of the output.
        operand_type: the type of the operand whose cotangent this is.
        other: the other operand, whose value is known.
        contract: the contracted axes of this operand, then those of ``other``.
        batch: the batch axes of this operand, then those of ``other``.
        params: the precision, as a param of the dot_general to emit.
        left: whether this operand is the left one.
    """
    other = value_of(other, "dot_general")
    if other.type.dtype != ct.type.dtype:
        other = conversion.convert(other, ct.type.dtype)
    batches = len(batch[0])
    free = free_axes(operand_type.ndim, contract[0], batch[0])
    other_free = free_axes(other.type.ndim, contract[1], batch[1])
    # The axes of ct are: batch, free axes of the left operand, those of the right one.
    first_other = batches + (len(free) if left else 0)
    ct_other = tuple(range(first_other, first_other + len(other_free)))
    value = dot_general(
        ct,
        other,
        contract=(ct_other, other_free),
        batch=(tuple(range(batches)), batch[1]),
        **params,
    )
    if value.type.dtype != operand_type.dtype:
        value = conversion.convert(value, operand_type.dtype)
    # The axes of value are: batch, this operand's free axes, then the contracted ones
    # in the order that they have in the other operand.
    contracted = (contract[0][k] for k in ascending(contract[1]))
    return views.with_axes_at(value, (*batch[0], *free, *contracted))


def _batch(
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    contract: AxesPair,
    batch: AxesPair,
    **params: Any,
) -> Batched:
    """Batching rule: the mapped axis becomes a batch axis if both operands have it.

    If only one operand has the mapped axis, it becomes a free axis.
    """
    x, y = mapped_axes_first(inputs, dims)
    mapped = [dim is not None for dim in dims]
    lead = (0,) if all(mapped) else ()
    value = dot_general(
        x,
        y,
        contract=_after_mapped(contract, mapped),
        batch=_after_mapped(batch, mapped, lead),
        **params,
    )
    if lead:
        return [value], [0]
    # The mapped axis is the first of its operand's free axes.
    position = len(batch[0]) if mapped[0] else x.type.ndim - len(contract[0])
    return [emitters.move_axis(value, position, 0)], [0]


def _after_mapped(axes: AxesPair, mapped: Sequence[bool], lead: Axes = ()) -> AxesPair:
    """Renumber a pair of axes for operands that have the mapped axis in front.

    ``mapped`` has a flag for each of the two operands. The axes of a mapped operand are
    shifted by 1, and ``lead`` is put before them.
    """
    left, right = axes
    return (
        (*lead, *shifted(left)) if mapped[0] else left,
        (*lead, *shifted(right)) if mapped[1] else right,
    )


def _samples() -> Iterable[Sample]:
    """Yield products of all dtypes, mixed dtypes and several axes, for table tests."""
    plain: AxesPair = ((), ())
    for position, dtype in enumerate(dtypes.COMPUTED):
        if dtype == dtypes.bool_:
            continue
        x = families.random_array(dtype, (3, 4), 51 + position, -1.5, 1.5)
        y = families.random_array(dtype, (4, 5), 52 + position, -1.5, 1.5)
        yield Sample((x, y), {"contract": ((1,), (0,)), "batch": plain})
    x = families.random_array(dtypes.float32, (3, 4), 55, -1.5, 1.5)
    y = families.random_array(dtypes.float32, (4, 5), 56, -1.5, 1.5)
    product: dict[str, Any] = {"contract": ((1,), (0,)), "batch": plain}
    yield Sample((x, y), {**product, "precision": "tf32"})
    for narrow, wide in (
        (dtypes.bfloat16, dtypes.float32),
        (dtypes.float32, dtypes.float64),
        (dtypes.int8, dtypes.int32),
        (dtypes.float8_e4m3fn, dtypes.float32),
        (dtypes.int4, dtypes.int32),
    ):
        x = families.random_array(narrow, (3, 4), 57, -1.5, 1.5)
        y = families.random_array(narrow, (4, 5), 58, -1.5, 1.5)
        yield Sample((x, y), {**product, "preferred_element_type": wide})
    for dtype in (dtypes.float32, dtypes.float64):
        x = families.random_array(dtype, (2, 3, 4), 53, -1.5, 1.5)
        y = families.random_array(dtype, (4, 2, 5), 54, -1.5, 1.5)
        yield Sample((x, y), {"contract": ((2,), (0,)), "batch": ((0,), (1,))})
        yield Sample((x, y), {"contract": ((0, 2), (1, 0)), "batch": plain})
        yield Sample((x[0, 0], y[:, 0, 0]), {"contract": ((0,), (0,)), "batch": plain})
        yield Sample((x[0], y[:, 0, 0]), {"contract": ((1,), (0,)), "batch": plain})
        yield Sample((x[0, 0], y[:, 0, 0]), {"contract": plain, "batch": plain})


dot_general = Primitive(
    name="dot_general",
    factors=factors.contraction,
    family="contraction",
    types=_types,
    reference=_reference,
    kernel=Contraction(),
    jvp=jvp_of_product(Emitter("dot_general")),
    transpose=_transpose,
    batch=_batch,
    samples=_samples,
    tolerance=Tolerance(float32=1e-5, float64=1e-14),
    doc="The sum of products over contracted axes, for each index of the batch "
    "axes. Its axes: batch, the left operand's others, the right's.",
)
