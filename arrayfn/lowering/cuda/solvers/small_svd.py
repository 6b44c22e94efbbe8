"""Singular value decompositions of small matrices by Jacobi's method, a block for each.

Pairs of columns (or of rows, if there are fewer) are rotated until all are orthogonal.
Their lengths are then the singular values, their directions the singular vectors of one
side, and the product of the rotations gives those of the other side.

A column that is shorter than rounding errors has no meaningful direction. Missing
vectors are made by Gram-Schmidt instead: from the unit vector that is the farthest from
the vectors so far, made orthogonal to them twice (Giraud, Langou, Rozloznik, "The loss
of orthogonality in the Gram-Schmidt orthogonalization process", 2005).

The functions that return lines get the kernel's ``layout``, which says how columns are
spread over the block. Besides the variables of ``ColumnLayout`` and the integers
``_INTEGERS``, their lines share these:

* ``begin``: the offset of the block's matrix in its array, later in that of vectors.
* ``scale``: the matrix's largest element, by which it is divided.
* ``failed``: whether the iteration did not converge, or the matrix has a NaN.
* ``known``: the number of columns whose direction is known.
* ``spare``: where the half of ``columns`` that has the far side's vectors begins.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from arrayfn.dtypes import DType, short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.handwritten import Handwritten, HandwrittenCall, indented
from arrayfn.lowering.cuda.solvers.orthogonal_columns import (
    MAX_ROWS,
    REAL,
    ColumnLayout,
    rows_of,
)
from arrayfn.lowering.libraries.calls import Pointer
from arrayfn.records import frozen

_INTEGERS: Final = (
    *("length", "count", "total", "down", "across"),
    *("far_down", "far_across", "near_down", "near_across"),
)
"""The kernel's integer arguments.

There are ``count`` vectors of ``length`` elements to rotate, ``total`` vectors to store
on the far side. ``down`` is the stride along a vector of the operand, ``across`` the
stride from one vector to the next. Results have such strides, too.
"""


def is_small(dtype: DType, rows: int, columns: int) -> bool:
    """Whether the kernel decomposes matrices of ``rows`` by ``columns``."""
    return dtype in REAL and min(rows, columns) > 0 and max(rows, columns) <= MAX_ROWS


@frozen(slots=True)
class Operand:
    """Column-major matrices: an array [matrices, columns, rows] from ``place`` on."""

    place: Pointer
    matrices: int
    columns: int
    rows: int

    @property
    def is_tall(self) -> bool:
        """Whether columns are rotated, not rows."""
        return self.rows >= self.columns

    @property
    def integers(self) -> tuple[int, ...]:
        """Length and number of the rotated vectors; strides along and between them."""
        if self.is_tall:
            return self.rows, self.columns, 1, self.rows
        return self.columns, self.rows, self.rows, 1


def values(operand: Operand, s: Var) -> HandwrittenCall:
    """Return the call that computes singular values ``s``, largest first.

    ``s`` is [..., count].
    """
    length, count, down, across = operand.integers
    dtype = operand.place.array.type.dtype
    text = _text(ColumnLayout(dtype, rows_of(length)), with_vectors=False)
    integers = dict(zip(_INTEGERS, (length, count, count, down, across), strict=False))
    reads, writes = {"a": operand.place}, {"s": Pointer(s)}
    return HandwrittenCall(
        text, reads=reads, writes=writes, integers=integers, blocks=operand.matrices
    )


def vectors(operand: Operand, s: Var, u: Var, v: Var, *, full: bool) -> HandwrittenCall:
    """Return the call for singular values ``s`` and singular vectors.

    ``u`` has the left vectors as rows, ``v`` the right ones as columns. With ``full``
    they are whole bases. The kernel calls ``far`` the side whose vectors are the
    directions of the rotated columns, of ``length`` elements, and ``near`` the other
    side, whose vectors are the product of rotations.
    """
    length, count, down, across = operand.integers
    rows = rows_of(length)
    text = _text(ColumnLayout(u.type.dtype, rows, rows), with_vectors=True)
    total = length if full else count
    # Strides along a vector, and from vector to vector.
    of_u, of_v = (1, operand.rows), (v.type.shape[-1], 1)
    far, near = (of_u, of_v) if operand.is_tall else (of_v, of_u)
    ends = (u, v) if operand.is_tall else (v, u)
    numbers = (length, count, total, down, across, *far, *near)
    names = ("s", "far", "near_side")
    writes = {n: Pointer(x) for n, x in zip(names, (s, *ends), strict=True)}
    integers = dict(zip(_INTEGERS, numbers, strict=True))
    reads = {"a": operand.place}
    return HandwrittenCall(
        text, reads=reads, writes=writes, integers=integers, blocks=operand.matrices
    )


def _text(layout: ColumnLayout, *, with_vectors: bool) -> Handwritten:
    """Write the kernel for columns in ``layout``, with singular vectors or without."""
    # Shorter columns, of a matrix whose largest element is 1, are rounding errors.
    tolerance = float(np.finfo(layout.dtype).eps) / 4
    parts = [
        _load_matrix_and_identity(layout),
        layout.sweeps(tolerance),
        _values(layout, tolerance),
    ]
    if with_vectors:
        parts += [_basis(layout), _stored(layout)]
    what = "singular values and vectors" if with_vectors else "singular values"
    return Handwritten(
        "svd",
        "\n".join(parts),
        layout.threads,
        f"The {what} of a matrix of up to {layout.rows} rows and columns.",
        "singular values of small matrices, a block for each",
        shared=layout.shared,
    )


def _load_matrix_and_identity(layout: ColumnLayout) -> str:
    """Return lines that load the matrix, scaled, and the identity.

    The matrix is divided by its largest element. The identity, which becomes the
    product of the rotations, is there only if vectors are wanted (``layout.more``).
    """
    t, rows = short_name(layout.dtype), layout.rows
    parts = rows * rows // layout.threads
    rotations = ""
    if layout.more:
        rotations = f"""for at in range(thread, {rows * rows}, {layout.threads}):
    j = at // {rows}
    i = at % {rows}
    columns[j * {layout.height} + {rows} + i] = select_{t}(i == j, {t}(1), {t}(0))
"""
    return f"""
{layout.begin("count")}
loaded = registers_{t}({parts})
begin = block_index() * length * count
scale = {t}(0)
# All loads are on their way before the first is waited for.
for part in unrolled({parts}):
    j = (thread + part * {layout.threads}) // {rows}
    i = (thread + part * {layout.threads}) % {rows}
    place = min_i64(i, length - 1) * down + min_i64(j, count - 1) * across
    value = a[begin + place]
    loaded[part] = select_{t}((i < length) and (j < count), value, {t}(0))
for part in unrolled({parts}):
    scale = max_{t}(scale, abs_{t}(loaded[part]))
{layout.maximum()}
for part in unrolled({parts}):
    j = (thread + part * {layout.threads}) // {rows}
    i = (thread + part * {layout.threads}) % {rows}
    columns[j * {layout.height} + i] = loaded[part] / scale
{rotations}barrier()"""


def _values(layout: ColumnLayout, tolerance: float) -> str:
    """Return lines that store singular values in descending order.

    ``known`` becomes the number of values above ``tolerance``, which exceed rounding
    errors.
    """
    t = short_name(layout.dtype)
    # ``results`` has the squares of the values.
    return f"""
if live:
{indented(layout.load_pair("here"), 1)}
{layout.inner_products("xx", "yy")}
failed = (rotated > 0) or isnan_{t}(scale)
if failed:
    xx = {t.upper()}_NAN
    yy = {t.upper()}_NAN
{layout.ranked("count", ">", "<")}
known = i64(0)
for k in range(count):
    if results[k] > {t}({tolerance**2!r}):
        known = known + 1
xx = sqrt_{t}(xx)
yy = sqrt_{t}(yy)
if live and (lane == 0):
    s[block_index() * count + x_place] = xx * scale
    if both:
        s[block_index() * count + y_place] = yy * scale
"""


def _basis(layout: ColumnLayout) -> str:
    """Return lines that put the far side's vectors in order, and add missing ones.

    They lie in the unused half of ``columns`` from ``spare`` on, each of ``rows``
    elements. The first ``known`` are directions of rotated columns; the others, up to
    ``total``, are made by Gram-Schmidt.
    """
    rows, vector = layout.rows, layout.vector
    return f"""spare = {layout.size} - here
for k in unrolled({layout.compared // vector}):
    for j in unrolled({vector}):
        i = lane * {vector} + k * {layout.step} + j
        if live:
            columns[spare + x_place * {rows} + i] = x[k * {vector} + j] / xx
            if both:
                columns[spare + y_place * {rows} + i] = y[k * {vector} + j] / yy
barrier()
if failed:
    known = total
for k in range(known, total):
{indented(_farthest_unit_vector(layout), 1)}
{indented(_orthogonalize_again(layout), 1)}
{indented(_normalize(layout), 1)}
"""


def _farthest_unit_vector(layout: ColumnLayout) -> str:
    """Return lines that make vector ``k``, orthogonal to the vectors before it.

    It begins as the unit vector with the largest squared distance from their span;
    ``results`` has these distances. Each thread has one element of the vector, ``own``.
    """
    t, rows = short_name(layout.dtype), layout.rows
    return f"""# The unit vector that is the farthest from what there is.
if thread < length:
    rest = {t}(1)
    for j in range(k):
        value = columns[spare + j * {rows} + thread]
        rest = fma_{t}(neg_{t}(value), value, rest)
    results[thread] = rest
barrier()
best = i64(0)
rest = results[0]
for j in range(1, length):
    if results[j] > rest:
        best = j
        rest = results[j]
barrier()
own = {t}(0)
if thread < length:
    if thread == best:
        own = {t}(1)
    for j in range(k):
        value = columns[spare + j * {rows} + thread]
        other = neg_{t}(columns[spare + j * {rows} + best])
        own = fma_{t}(value, other, own)
    columns[spare + k * {rows} + thread] = own
barrier()
"""


def _orthogonalize_again(layout: ColumnLayout) -> str:
    """Return lines that make vector ``k`` orthogonal a second time.

    They subtract its projections on the vectors before it. ``results`` has the inner
    products with these.
    """
    t, rows = short_name(layout.dtype), layout.rows
    return f"""# Once more: rounding errors weigh more in what is short.
if thread < k:
    rest = {t}(0)
    for i in range(length):
        value = columns[spare + thread * {rows} + i]
        rest = fma_{t}(value, columns[spare + k * {rows} + i], rest)
    results[thread] = rest
barrier()
if thread < length:
    for j in range(k):
        value = columns[spare + j * {rows} + thread]
        own = fma_{t}(value, neg_{t}(results[j]), own)
    columns[spare + k * {rows} + thread] = own
barrier()
"""


def _normalize(layout: ColumnLayout) -> str:
    """Return lines that divide vector ``k``, of elements ``own``, by its length."""
    t, rows = short_name(layout.dtype), layout.rows
    return f"""rest = {t}(0)
for i in range(length):
    value = columns[spare + k * {rows} + i]
    rest = fma_{t}(value, value, rest)
barrier()
if thread < length:
    columns[spare + k * {rows} + thread] = own / sqrt_{t}(rest)
barrier()
"""


def _stored(layout: ColumnLayout) -> str:
    """Return lines that store the vectors of both sides.

    If the matrix ``failed``, they are NaN. The vectors of the far side are the basis.
    Those of the near side are the product of the rotations, in ``x`` and ``y`` after
    the column's own elements.
    """
    t, rows = short_name(layout.dtype), layout.rows
    vector, step = layout.vector, layout.step
    return f"""begin = block_index() * total * length
for at in range(thread, total * length, {layout.threads}):
    k = quotient(at, length)
    i = at - k * length
    value = columns[spare + k * {rows} + i]
    if failed:
        value = {t.upper()}_NAN
    far[begin + i * far_down + k * far_across] = value
begin = block_index() * count * count
for k in unrolled({layout.compared // vector}):
    for j in unrolled({vector}):
        i = lane * {vector} + k * {step} + j
        value = x[{layout.compared} + k * {vector} + j]
        other = y[{layout.compared} + k * {vector} + j]
        if failed:
            value = {t.upper()}_NAN
            other = {t.upper()}_NAN
        if live and (i < count):
            near_side[begin + i * near_down + x_place * near_across] = value
            if both:
                near_side[begin + i * near_down + y_place * near_across] = other
"""
