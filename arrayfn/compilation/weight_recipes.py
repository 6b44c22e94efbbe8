"""How ``freeze`` stores the weights of a product: in another order, or in fewer bits.

A *product* is a ``dot_general`` with one known operand, or a convolution by a known
kernel. ``"transposes"`` stores matrices that the product would copy in each call in the
order in which it reads them. A *cast* (``"bfloat16"``, ``"int4"`` ...) stores numbers
in fewer bits, contracted axes innermost. float8 and integers get a scale for each
output feature, by which the product is multiplied; two int4 are packed into a byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import Atom, Equation, Literal, Var
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.ir.layout import ascending, other_axes
from arrayfn.passes.matrices import as_matrix
from arrayfn.passes.reads import Read, identity_read
from arrayfn.primitives import contraction, conversion, discrete, slicing, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import primitive_of
from arrayfn.primitives.convolution_forms import GROUP, INNER, OUTER
from arrayfn.primitives.padded_convolution import padded_convolution
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]

LOSSLESS: Final = ("scales", "transposes")
CASTS: Final[Mapping[str, DType]] = {
    "bfloat16": dtypes.bfloat16,
    "float16": dtypes.float16,
    "float8_e4m3fn": dtypes.float8_e4m3fn,
    "float8_e5m2": dtypes.float8_e5m2,
    "int8": dtypes.int8,
    "int4": dtypes.int4,
}
RECIPES: Final = (*LOSSLESS, *CASTS)


def check_recipes(recipes: Sequence[str]) -> None:
    """Raise ArgumentError for an unknown recipe, or more than one cast."""
    for name in recipes:
        if name not in RECIPES:
            raise ArgumentError(
                f"freeze: there is no recipe {name!r}; the recipes are "
                f"{', '.join(map(repr, RECIPES))}",
                user_location(),
            )
    casts = [name for name in recipes if name in CASTS]
    if len(casts) > 1:
        raise ArgumentError(
            f"freeze was given the casts {', '.join(map(repr, casts))}; weights are "
            "stored in one dtype; name one",
            user_location(),
        )


@frozen(slots=True)
class Weights:
    """The known operand of a product, number ``side``, whose array may be changed.

    In ``x[i, k] @ w[k, j]`` the weights are ``w``, with side 1, order (1, 0), batch 0,
    first 1 and product_axes (1,).

    Attributes:
        equation: the product.
        side: the number of the operand.
        order: its axes: batch axes, output features, then contracted axes.
        batch: how many batch axes there are.
        first: where in ``order`` the contracted axes begin.
        product_axes: the product's axes that are batch axes and output features.
    """

    equation: Equation
    side: int
    order: tuple[int, ...]
    batch: int
    first: int
    product_axes: tuple[int, ...]

    @property
    def is_matrix(self) -> bool:
        """Whether the product is a ``dot_general``."""
        return self.equation.primitive is contraction.dot_general

    def as_given(self, stored: Atom) -> Atom:
        """View ``stored``, whose axes are in ``order``, with the operand's axes."""
        return views.with_axes_at(stored, self.order)

    def product(self, operand: Atom, x: Atom) -> Atom:
        """Emit the product of ``x`` and ``operand``, which replaces the weights."""
        pair = (operand, x) if self.side == 0 else (x, operand)
        return primitive_of(self.equation)(*pair, **self.equation.params)


def weights_of(equation: Equation, side: int) -> Weights | None:
    """Describe operand ``side`` as weights.

    None if the equation is no product of floats, or if the operand of a convolution is
    not its kernel.
    """
    params = equation.params
    operand, result = equation.inputs[side].type, equation.outputs[0].type
    if result.dtype not in dtypes.INEXACT:
        return None
    if equation.primitive is contraction.dot_general:
        # A product's axes are batch axes, the free axes of x, the free axes of y.
        contracted, batch = params["contract"][side], params["batch"][side]
        own = contraction.free_axes(operand.ndim, contracted, batch)
        begin = len(batch) if side == 0 else result.ndim - len(own)
        product_axes = (*range(len(batch)), *range(begin, begin + len(own)))
        order = (*batch, *own, *contracted)
        return Weights(
            equation,
            side,
            order,
            batch=len(batch),
            first=len(product_axes),
            product_axes=product_axes,
        )
    if equation.primitive is padded_convolution and (params["gives"], side) == (
        "output",
        1,
    ):
        # A convolution by a kernel: groups are batch axes, OUTER are output features.
        roles, out = params["rhs"], params["out"]
        leading = (*roles[GROUP], *roles[OUTER])
        rest = other_axes(operand.ndim, leading)
        product_axes = (*out[GROUP], *out[INNER])
        return Weights(
            equation,
            side,
            order=(*leading, *rest),
            batch=len(roles[GROUP]),
            first=len(leading),
            product_axes=product_axes,
        )
    return None


def product_of(
    weights: Weights,
    array: Array,
    x: Atom,
    read: Read | None,
    recipes: Sequence[str],
    builder: ProgramBuilder,
) -> tuple[Atom, str] | None:
    """Emit the product of ``x`` and ``array`` by ``recipes``, with a note on it.

    ``array`` has the numbers of ``weights``, and ``read`` says how they lie in a
    captured array, if they do. None if no recipe applies.
    """
    cast = next((CASTS[name] for name in recipes if name in CASTS), None)
    if cast is not None and _can_cast(array, cast, weights):
        return _cast(weights, array, x, cast, builder)
    if "transposes" in recipes and weights.is_matrix and _is_copied(weights, read):
        stored = np.ascontiguousarray(array.transpose(weights.order))
        operand = weights.as_given(builder.constant(stored))
        return weights.product(operand, x), f"stored with axes {weights.order}"
    return None


def _is_copied(weights: Weights, read: Read | None) -> bool:
    """Whether the product would copy the weights in each call to read them."""
    type = weights.equation.inputs[weights.side].type
    order, batch, first = weights.order, weights.batch, weights.first
    groups = order[:batch], order[batch:first], order[first:]
    return as_matrix(type, read or identity_read(Var(type)), *groups) is None


def _can_cast(array: Array, dtype: DType, weights: Weights) -> bool:
    """Whether ``dtype`` can hold the weights and takes less memory.

    int4 is packed along a contracted axis, so only matrices with one can become int4.
    Weights that are all 0, or not finite, cannot be cast.
    """
    if array.dtype not in dtypes.FLOATS or dtype.itemsize >= array.dtype.itemsize:
        return False
    if dtype == dtypes.int4 and (not weights.is_matrix or array.ndim == weights.first):
        return False
    largest = np.abs(array.astype(np.float64)).max(initial=0.0)
    has_scales = dtype not in dtypes.HALF_PRECISION
    return bool(0 < largest <= (np.inf if has_scales else dtypes.limits(dtype).max))


def _cast(
    weights: Weights, array: Array, x: Atom, dtype: DType, builder: ProgramBuilder
) -> tuple[Atom, str]:
    """Emit the product with weights stored as ``dtype``, converted when read.

    Also return a note on the bytes and on the largest error of a weight.
    """
    wide = array.transpose(weights.order).astype(np.float64)
    small, scales = _quantized(wide, dtype, weights.first)
    error = np.abs(small.astype(np.float64) * scales - wide).max() / np.abs(wide).max()
    if dtype == dtypes.int4:
        stored = _packed(small.view(np.uint8), weights.first)
        result = _packed_product(weights, builder.constant(stored), x, array.dtype)
    else:
        stored = np.ascontiguousarray(small)
        operand = conversion.convert(builder.constant(stored), array.dtype)
        result = weights.product(weights.as_given(operand), x)
    note, nbytes = f"stored as {dtype}", stored.nbytes
    if scales.ndim:
        result = _scaled(result, scales, weights, builder)
        note += f" with {scales.size} scales"
        nbytes += scales.size * result.type.dtype.itemsize
    note += f", {nbytes} bytes of {array.nbytes}, errors up to {error:.1e} of the "
    return result, f"{note}largest weight"


def _quantized(wide: Array, dtype: DType, first: int) -> tuple[Array, Array]:
    """Quantize ``wide`` to ``dtype``: ``(small, scales)`` with ``small * scales`` near.

    The scale of an output feature makes its largest weight the largest of ``dtype``;
    fp16 and bf16 have no scales, but the scalar 1. Axes of ``wide`` are contracted from
    ``first`` on.
    """
    scales = np.ones(())
    if dtype not in dtypes.HALF_PRECISION:
        contracted = tuple(range(first, wide.ndim))
        largest = np.abs(wide).max(axis=contracted, keepdims=True)
        scales = np.where(largest > 0, largest, 1.0) / float(dtypes.limits(dtype).max)
    quotient = wide / scales
    is_integer = dtype in dtypes.INTEGERS or dtype in dtypes.INT4
    return (np.rint(quotient) if is_integer else quotient).astype(dtype), scales


def _scaled(
    product: Atom, scales: Array, weights: Weights, builder: ProgramBuilder
) -> Atom:
    """Emit ``product`` times ``scales``, which have the axes ``weights.order``.

    The contracted axes of ``scales`` have extent 1. The others are put in the order of
    the product's axes.
    """
    factors = scales.reshape(scales.shape[: weights.first])
    factors = factors.transpose(ascending(weights.product_axes))
    spread = views.broadcast_in_dim(
        builder.constant(np.array(factors, product.type.dtype, order="C")),
        shape=product.type.shape,
        axes=tuple(sorted(weights.product_axes)),
    )
    return e.mul(product, spread)


def _packed(nibbles: Array, axis: int) -> Array:
    """Pack two 4-bit numbers into each byte, from two parts of ``axis``.

    The lower bits have the first part, the upper bits the second, which may be shorter
    by one: ``[1, 2, 3]`` becomes ``[0x31, 0x02]``.
    """
    extent = nibbles.shape[axis]
    half = (extent + 1) // 2
    along = np.moveaxis(nibbles, axis, 0)
    packed = along[:half].copy()
    packed[: extent - half] |= along[half:] << 4
    return np.ascontiguousarray(np.moveaxis(packed, 0, axis))


def _packed_product(weights: Weights, stored: Var, x: Atom, dtype: DType) -> Atom:
    """Emit the product with packed weights: a product for each part, added up.

    Each part of the weights is multiplied by the part of ``x`` along the contracted
    axis.
    """
    axis, half = weights.first, stored.type.shape[weights.first]
    # The contracted axis of x, which is the operand on the other side.
    along = weights.equation.params["contract"][1 - weights.side][0]
    four = Literal(4, dtypes.int8)
    # The number is in the upper 4 bits; shifting right by 4 extends its sign.
    high = conversion.bitcast(stored, dtype=dtypes.int8)
    low = discrete.shift_left(high, four)
    products: list[Atom] = []
    for nibbles, begin in ((low, 0), (high, half)):
        end = min(begin + half, x.type.shape[along])
        numbers = discrete.shift_right_arithmetic(nibbles, four)
        numbers = slicing.slice_along(numbers, axis, 0, end - begin)
        operand = weights.as_given(conversion.convert(numbers, dtype))
        part = slicing.slice_along(x, along, begin, end)
        products.append(weights.product(operand, part))
    return e.add(*products)
