"""Eigenvalues of small symmetric matrices by Jacobi's method: a block for each.

Rotations make the columns of a positive definite matrix orthogonal. Their lengths are
then its eigenvalues and their directions its eigenvectors, because left and right
singular vectors of such a matrix are equal. To be positive definite, the matrix is
divided by its largest sum of magnitudes in a column, and 5/4 is added to the diagonal:
the eigenvalues are then between 1/4 and 9/4, and small ones lose no precision. The
eigenvalues of the matrix itself are its Rayleigh quotients with the eigenvectors.

The functions that return lines get the kernel's ``layout``, which says how columns are
spread over the block. Besides the variables of ``ColumnLayout``, their lines share
these:

* ``n``: the rows of a matrix; ``begin``: the offset of the block's matrix in its array.
* ``loaded``: registers for the thread's elements of the matrix, on their way to shared
  memory.
* ``spare``: where the half of ``columns`` that does not have the vectors begins.
"""

from __future__ import annotations

import math

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


def is_small(dtype: DType, n: int) -> bool:
    """Whether the kernel computes matrices of ``n`` rows."""
    return dtype in REAL and 0 < n <= MAX_ROWS


def eigenvectors(vectors: Var, values: Var) -> HandwrittenCall:
    """Return the call that replaces matrices by their eigenvectors, as rows.

    ``vectors`` has the matrices [..., n, n]; the eigenvalues go to ``values``, in
    ascending order.
    """
    writes = {"vectors": Pointer(vectors), "values": Pointer(values)}
    return _call(vectors, {}, writes, with_vectors=True)


def eigenvalues(matrices: Var, source: Pointer, values: Var) -> HandwrittenCall:
    """Return the call that computes only eigenvalues; the matrices are not changed.

    The matrices are at ``source``, with the shape of ``matrices``. Eigenvalues go to
    ``values``.
    """
    return _call(
        matrices, {"a": source}, {"values": Pointer(values)}, with_vectors=False
    )


def _call(
    matrices: Var,
    reads: dict[str, Pointer],
    writes: dict[str, Pointer],
    *,
    with_vectors: bool,
) -> HandwrittenCall:
    """Return the call of the kernel for matrices of the shape of ``matrices``.

    ``reads`` and ``writes`` are the kernel's arrays by name; ``with_vectors`` asks for
    eigenvectors.
    """
    dtype, n = matrices.type.dtype, matrices.type.shape[-1]
    text = _text(ColumnLayout(dtype, rows_of(n)), with_vectors)
    count = math.prod(matrices.type.shape[:-2])
    return HandwrittenCall(
        text, reads=reads, writes=writes, integers={"n": n}, blocks=count
    )


def _text(layout: ColumnLayout, with_vectors: bool) -> Handwritten:
    """Write the kernel for columns in ``layout``, with eigenvectors or without."""
    a = "vectors" if with_vectors else "a"
    parts = (_begin(layout, a), layout.sweeps(), _values(layout, a))
    what = "eigenvectors, as rows, and eigenvalues" if with_vectors else "eigenvalues"
    return Handwritten(
        "jacobi",
        "\n".join((*parts, _vectors(layout)) if with_vectors else parts),
        layout.threads,
        f"The {what} of a symmetric matrix of up to {layout.rows} rows.",
        "eigenvalues of small symmetric matrices, a block for each",
        shared=layout.shared,
    )


def _begin(layout: ColumnLayout, a: str) -> str:
    """Return lines that load the matrix, scaled and shifted.

    Its eigenvalues are then between 1/4 and 9/4. ``a`` is the name of its array.
    """
    t, rows = short_name(layout.dtype), layout.rows
    return f"""
{layout.begin("n")}
begin = block_index() * n * n
loaded = registers_{t}({rows * rows // layout.threads})
{_load_matrix(layout, a, "0")}
{layout.load_pair("0")}
sum = {t}(0)
other = {t}(0)
for k in unrolled({layout.own}):
    sum = sum + abs_{t}(x[k])
    other = other + abs_{t}(y[k])
{layout.over_lanes("sum")}
{layout.over_lanes("other")}
scale = max_{t}(sum, other)
{layout.maximum()}
for at in range(thread, {rows * rows}, {layout.threads}):
    value = columns[at] / scale
    if (at // {rows} == at % {rows}) and (at % {rows} < n):
        value = value + {t}(1.25)
    columns[at] = value
barrier()"""


def _values(layout: ColumnLayout, a: str) -> str:
    """Return lines that store the eigenvalues in ascending order.

    The directions of the columns are the eigenvectors. Eigenvalues are their Rayleigh
    quotients with the matrix itself, which is loaded again to the other half of
    ``columns``. If the iteration has not converged (``rotated`` is positive), they are
    NaN. ``a`` is the name of the matrix's array.
    """
    t = short_name(layout.dtype)
    return f"""
spare = {layout.size} - here
{_load_matrix(layout, a, "spare")}
if live:
{indented(layout.load_pair("here"), 1)}
{layout.inner_products("xx", "yy")}
xx = sqrt_{t}(xx)
yy = sqrt_{t}(yy)
for k in unrolled({layout.own}):
    x[k] = x[k] / xx
    y[k] = y[k] / yy
if live:
{indented(layout.store_pair("first", "second"), 1)}
barrier()
{_quotients(layout)}
if rotated > 0:
    xx = {t.upper()}_NAN
    yy = {t.upper()}_NAN
{layout.ranked("n", "<", ">")}
if live and (lane == 0):
    values[block_index() * n + x_place] = xx
    if both:
        values[block_index() * n + y_place] = yy
"""


def _quotients(layout: ColumnLayout) -> str:
    """Return lines that compute Rayleigh's quotients of a pair of vectors.

    ``xx`` and ``yy`` become x^T A x and y^T A y for unit vectors; A begins at ``spare``
    of ``columns``.
    """
    t, vector = short_name(layout.dtype), layout.vector
    return f"""
xx = {t}(0)
yy = {t}(0)
for i in range(n):
    in_x = {t}(0)
    in_y = {t}(0)
    for k in unrolled({layout.own // vector}):
        at = spare + i * {layout.rows} + lane * {vector} + k * {layout.step}
        load_{t}x{vector}(columns, at, near, 0)
        for j in unrolled({vector}):
            in_x = fma_{t}(near[j], x[k * {vector} + j], in_x)
            in_y = fma_{t}(near[j], y[k * {vector} + j], in_y)
    xx = fma_{t}(in_x, columns[here + first - lane * {vector} + i], xx)
    yy = fma_{t}(in_y, columns[here + second - lane * {vector} + i], yy)
{layout.over_lanes("xx")}
{layout.over_lanes("yy")}
"""


def _vectors(layout: ColumnLayout) -> str:
    """Return lines that store the eigenvectors as rows, in the order of eigenvalues.

    If the iteration has not converged (``rotated`` is positive), they are NaN.
    """
    t, own = short_name(layout.dtype), layout.own
    vector, step = layout.vector, layout.step
    return f"""if rotated > 0:
    for k in unrolled({own}):
        x[k] = {t.upper()}_NAN
        y[k] = {t.upper()}_NAN
for k in unrolled({own // vector}):
    for j in unrolled({vector}):
        i = lane * {vector} + k * {step} + j
        if live and (i < n):
            vectors[begin + x_place * n + i] = x[k * {vector} + j]
            if both:
                vectors[begin + y_place * n + i] = y[k * {vector} + j]
"""


def _load_matrix(layout: ColumnLayout, a: str, start: str) -> str:
    """Return lines that copy the matrix to ``columns``, and fill in its upper triangle.

    ``a`` is the name of its array, ``start`` the expression of the index in
    ``columns``.
    """
    t, rows = short_name(layout.dtype), layout.rows
    parts = rows * rows // layout.threads
    # All loads are on their way before the first is waited for.
    return f"""for part in unrolled({parts}):
    i = (thread + part * {layout.threads}) // {rows}
    j = (thread + part * {layout.threads}) % {rows}
    high = min_i64(max_i64(i, j), n - 1)
    value = {a}[begin + high * n + min_i64(min_i64(i, j), n - 1)]
    loaded[part] = select_{t}((i < n) and (j < n), value, {t}(0))
for part in unrolled({parts}):
    columns[{start} + thread + part * {layout.threads}] = loaded[part]
barrier()"""
