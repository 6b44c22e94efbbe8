"""Cumulative sums, products and extrema along an axis, from either end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import conversion, discrete, factors, families, slicing, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    LINEAR,
    NOT_LINEAR,
    Array,
    JvpRule,
    Primitive,
    Sample,
    Template,
    Tolerance,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import batched_along, jvp_alone, transposed_first


def _cumulative(
    name: str,
    accumulate: Callable[..., Array],
    *,
    accepts: frozenset[DType],
    jvp: Any,
    transpose: Any = NOT_LINEAR,
    doc: str,
) -> Primitive:
    """Make a cumulative Primitive, with params ``axis`` and ``reverse``.

    Args:
        name: the name of the primitive and of its template.
        accumulate: the reference along an axis, as ``np.cumsum``.
        accepts: the dtypes that the primitive takes.
        jvp: the jvp rule, or a marker.
        transpose: the transpose rule, or a marker.
        doc: what the primitive computes.
    """

    def types(x: ArrayType, *, axis: int, reverse: bool) -> ArrayType:
        """Type rule: the operand's type."""
        families.check_defined(name, x, accepts)
        if not 0 <= axis < x.ndim:
            raise ShapeError(f"{name}: {x} has no axis {axis}")
        return x.with_shape(x.shape)

    def reference(x: Array, *, axis: int, reverse: bool) -> Array:
        """Apply ``accumulate`` in the compute dtype; from the end if ``reverse``."""
        widened = x.astype(dtypes.compute_dtype(x.dtype))
        with np.errstate(all="ignore"):
            if reverse:
                result = np.flip(accumulate(np.flip(widened, axis), axis=axis), axis)
            else:
                result = accumulate(widened, axis=axis)
        return np.asarray(result).astype(x.dtype)

    def samples() -> Iterable[Sample]:
        """Yield samples of both axes and directions in each dtype, for table tests."""
        for position, dtype in enumerate(d for d in dtypes.SHORT_NAMES if d in accepts):
            x = families.random_array(dtype, (3, 7), 91 + position, -1.5, 1.5)
            yield Sample((x,), {"axis": 1, "reverse": position % 2 == 1})
            yield Sample((x,), {"axis": 0, "reverse": position % 2 == 0})

    primitive = Emitter(name)
    return Primitive(
        name=name,
        family="cumulative",
        types=types,
        reference=reference,
        kernel=Template(name),
        jvp=jvp,
        transpose=transpose,
        batch=batched_along(
            lambda x, axis, reverse: primitive(x, axis=axis + 1, reverse=reverse)
        ),
        samples=samples,
        tolerance=Tolerance(float32=4e-6, float64=1e-14),
        doc=doc,
        factors=factors.along_others,
    )


def _doubling(
    values: tuple[Atom, ...],
    fills: Sequence[PythonScalar],
    combine: Callable[..., tuple[Atom, ...]],
    axis: int,
    reverse: bool,
) -> tuple[Atom, ...]:
    """Emit an inclusive scan by an associative function, in log2(n) steps.

    The step with distance 1, 2, 4, ... combines each element with the one that far
    before it (Hillis and Steele, Data parallel algorithms, 1986).

    Args:
        values: the arrays that are scanned together.
        fills: the identity of ``combine`` for each of them.
        combine: ``combine(earlier, later)`` of two tuples of arrays, elementwise.
        axis: the axis to scan along.
        reverse: whether the scan begins at the axis's end.
    """
    extent = values[0].type.shape[axis]
    step = 1
    while step < extent:
        earlier = tuple(
            _delayed(v, fill, axis, -step if reverse else step)
            for v, fill in zip(values, fills, strict=True)
        )
        values = combine(earlier, values)
        step *= 2
    return values


def _delayed(x: Atom, fill: PythonScalar, axis: int, step: int) -> Atom:
    """Shift ``x`` by ``step`` elements along ``axis``; ``fill`` is shifted in.

    A negative ``step`` moves towards index 0.
    """
    # For each axis (before, after, between elements); a negative number cuts off.
    config = tuple(
        (step, -step, 0) if k == axis else (0, 0, 0) for k in range(x.type.ndim)
    )
    return slicing.pad(x, conversion.literal(fill, x.type.dtype), config=config)


def _product_jvp(x: Atom, y: Atom, t: Atom, *, axis: int, reverse: bool) -> Atom:
    """The tangent of running products: a scan of pairs (product, tangent).

    ``d(a * b) = da * b + a * db``. Unlike dividing the product by each factor, this is
    also right for zeros.
    """

    def combine(
        earlier: tuple[Atom, Atom], later: tuple[Atom, Atom]
    ) -> tuple[Atom, Atom]:
        """Return the product of two ranges of elements, and its tangent."""
        (a, da), (b, db) = earlier, later
        return e.mul(a, b), e.add(e.mul(da, b), e.mul(a, db))

    # (1, 0) is the product of no elements, and its tangent.
    _, tangent = _doubling((x, t), (1, 0), combine, axis, reverse)
    return tangent


def _extremum_jvp(extremum: Primitive, sign: int) -> JvpRule:
    """Make the jvp rule of running extrema.

    ``dy`` is the mean of ``dx`` over the elements up to here that equal the extremum.
    ``extremum`` is the primitive of two operands. ``sign`` times infinity is its
    identity: -1 for a maximum, 1 for a minimum.
    """

    def rule(x: Atom, y: Atom, t: Atom, *, axis: int, reverse: bool) -> Atom:
        """Divide the sum of the tangents of equal elements by their count.

        A scan of triples (extremum, sum of tangents, count) computes both.
        """
        zero = conversion.literal(0, x.type.dtype)

        def combine(
            earlier: tuple[Atom, ...], later: tuple[Atom, ...]
        ) -> tuple[Atom, ...]:
            """Combine the triples of two ranges of elements.

            Sums and counts are added of the ranges that have the extremum of both.
            """
            (a, da, count_a), (b, db, count_b) = earlier, later
            y = extremum(a, b)
            from_a, from_b = discrete.eq(a, y), discrete.eq(b, y)
            return (
                y,
                e.add(e.select(from_a, da, zero), e.select(from_b, db, zero)),
                e.add(e.select(from_a, count_a, zero), e.select(from_b, count_b, zero)),
            )

        ones = views.broadcast_literal(1, x.type)
        fills = (sign * float("inf"), 0, 0)
        _, total, count = _doubling((x, t, ones), fills, combine, axis, reverse)
        return e.div(total, count)

    return jvp_alone(rule)


def _cumsum(x: Array, axis: int) -> Array:
    """Return running sums along ``axis``, computed in a wider dtype and rounded."""
    sum_dtype = {dtypes.float32: dtypes.float64, dtypes.complex64: dtypes.complex128}
    return np.cumsum(x, axis=axis, dtype=sum_dtype.get(x.dtype, x.dtype)).astype(
        x.dtype
    )


cumsum = _cumulative(
    "cumsum",
    _cumsum,
    accepts=dtypes.NUMBERS,
    jvp=LINEAR,
    transpose=transposed_first(
        lambda ct, type, axis, reverse: cumsum(ct, axis=axis, reverse=not reverse)
    ),
    doc="Running sums, in order (from the end if reverse).",
)
cumprod = _cumulative(
    "cumprod",
    lambda x, axis: np.cumprod(x, axis=axis, dtype=x.dtype),
    accepts=dtypes.NUMBERS,
    jvp=jvp_alone(_product_jvp),
    doc="Running products.",
)
cummax = _cumulative(
    "cummax",
    np.maximum.accumulate,
    accepts=dtypes.REALS,
    jvp=_extremum_jvp(e.maximum, -1),
    doc="Running maxima; NaN from the first NaN on.",
)
cummin = _cumulative(
    "cummin",
    np.minimum.accumulate,
    accepts=dtypes.REALS,
    jvp=_extremum_jvp(e.minimum, 1),
    doc="Running minima; NaN from the first NaN on.",
)
