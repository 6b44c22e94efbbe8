"""Eigenvalues of small symmetric matrices by Jacobi's method: a block for each.

One-sided: columns of a positive definite matrix are turned by pairs, until each is
orthogonal to all others. Their lengths are its eigenvalues then, and their directions
its eigenvectors, as long as those of a singular value decomposition are the same on
both sides (Hestenes, Inversion of matrices by biorthogonalization, 1958). What is
turned is the matrix over the greatest sum of magnitudes in a column, plus 5/4: between
1/4 and 9/4, so nothing is lost in small eigenvalues. Values are Rayleigh's quotients of
the matrix as it is.

A group of lanes has a pair of columns; all pairs of a round have no column in common,
and meet as in a tournament (Brent and Luk, The solution of singular-value and symmetric
eigenvalue problems on multiprocessor arrays, 1985). What follows is the same on each
run: it ends after the first sweep in which no pair was turned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.cuda.written import Written, WrittenCall, indented
from arrayfn.lowering.libraries.calls import Place

_REAL: Final = (dtypes.float32, dtypes.float64)
MOST_ROWS: Final = 64
LEAST_ROWS: Final = 8
MOST_SWEEPS: Final = 40
"""Ten are many; what has not converged then is NaN."""
_MOST_LANES: Final = 8
_FIFTH_ORDER: Final = 2**0.5 - 1 - 0.375
"""The tangent of half an angle is t/2 - t**3/8 + this t**5, t being the angle's.

It is exact at 1. Where it is not, the pair is turned again in the next sweep; that the
turn keeps lengths is what ``sine`` sees to.
"""
_VECTOR_BYTES: Final = 16


def is_small(dtype: DType, n: int) -> bool:
    """Whether the kernel finds eigenvalues of matrices of ``n`` rows."""
    return dtype in _REAL and 0 < n <= MOST_ROWS


def eigenvectors(vectors: Var, values: Var) -> WrittenCall:
    """Matrices at ``vectors`` become their eigenvectors, as rows, in place."""
    writes = (Place(vectors), Place(values))
    return _call(vectors, (), writes, with_vectors=True)


def eigenvalues(matrices: Var, place: Place, values: Var) -> WrittenCall:
    """Of ``matrices`` at ``place`` the eigenvalues alone."""
    return _call(matrices, (place,), (Place(values),), with_vectors=False)


def _call(
    matrices: Var,
    reads: tuple[Place, ...],
    writes: tuple[Place, ...],
    *,
    with_vectors: bool,
) -> WrittenCall:
    dtype, n = matrices.type.dtype, matrices.type.shape[-1]
    rows = LEAST_ROWS
    while rows < n:
        rows *= 2
    text = _Tile(dtype, rows).text(with_vectors)
    count = math.prod(matrices.type.shape[:-2])
    return WrittenCall(text, reads, writes, (n,), count)


@dataclass(frozen=True, slots=True)
class _Tile:
    """How a matrix of up to ``rows`` rows is spread over a block."""

    dtype: DType
    rows: int

    @property
    def vector(self) -> int:
        """Neighbouring elements that a lane has, of each of its parts of a column."""
        return _VECTOR_BYTES // self.dtype.itemsize

    @property
    def lanes(self) -> int:
        """That share a pair of columns."""
        return min(_MOST_LANES, self.rows // self.vector)

    @property
    def own(self) -> int:
        """Elements of a column that a lane has."""
        return self.rows // self.lanes

    @property
    def threads(self) -> int:
        """Of a block."""
        return max(WARP, self.rows // 2 * self.lanes)

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.threads // WARP

    def text(self, with_vectors: bool) -> Written:
        """The kernel."""
        arrays = ("vectors", "values") if with_vectors else ("a", "values")
        size = self.rows * self.rows * self.dtype.itemsize
        parts = (self._begin(arrays[0]), self._sweeps(), self._end(with_vectors))
        what = (
            "eigenvectors, as rows, and eigenvalues" if with_vectors else "eigenvalues"
        )
        return Written(
            "jacobi",
            "\n".join(parts),
            arrays,
            ("n",),
            self.threads,
            f"The {what} of a symmetric matrix of up to {self.rows} rows.",
            "eigenvalues of small symmetric matrices, a block for each",
            shared=2 * size,
        )

    def _begin(self, a: str) -> str:
        """The whole of the matrix, between 1/4 and 9/4."""
        t, rows = short_name(self.dtype), self.rows
        own, vector, lanes = self.own, self.vector, self.lanes
        return f"""
thread = thread_index()
lane = remainder(thread, {lanes})
group = quotient(thread, {lanes})
pairs = quotient(n + 1, 2)
begin = block_index() * n * n
columns = arena_{t}(0, {2 * rows * rows})
results = shared_{t}({rows})
marks = shared_{t}({self.warps})
x = registers_{t}({own})
y = registers_{t}({own})
near = registers_{t}({vector})
live = group < pairs
first = select_i64(live, group, 0) * {rows} + lane * {vector}
second = select_i64(live, pairs + group, 1) * {rows} + lane * {vector}
{self._whole(a, "at")}
{self._loaded("0")}
sum = {t}(0)
other = {t}(0)
for k in unrolled({own}):
    sum = sum + abs_{t}(x[k])
    other = other + abs_{t}(y[k])
{self._over_lanes("sum")}
{self._over_lanes("other")}
scale = max_{t}(sum, other)
for step in unrolled(5):
    scale = max_{t}(scale, shuffle_xor_{t}(scale, 16 >> step))
if remainder(thread, {WARP}) == 0:
    marks[quotient(thread, {WARP})] = scale
barrier()
for warp in unrolled({self.warps}):
    scale = max_{t}(scale, marks[warp])
if scale == {t}(0):
    scale = {t}(1)
if not (scale < {t.upper()}_INF):
    scale = {t.upper()}_NAN
for at in range(thread, {rows * rows}, {self.threads}):
    value = columns[at] / scale
    if (at // {rows} == at % {rows}) and (at % {rows} < n):
        value = value + {t}(1.25)
    columns[at] = value
barrier()"""

    def _sweeps(self) -> str:
        """Turns pairs of columns until all are orthogonal."""
        t, rows, own = short_name(self.dtype), self.rows, self.own
        vector = self.vector
        # The cosine of columns that are orthogonal but for rounding errors.
        least = math.sqrt(rows) * float(np.finfo(self.dtype).eps)
        return f"""
after_x = group + 1
after_y = pairs + group - 1
if group == pairs - 1:
    after_x = 2 * pairs - 1
if group == 0:
    after_x = i64(0)
    after_y = i64(1)
to_x = after_x * {rows} + lane * {vector}
to_y = after_y * {rows} + lane * {vector}
here = i64(0)
turned = i64(1)
sweep = i64(0)
while (turned > 0) and (sweep < {MOST_SWEEPS}):
    turned = i64(0)
    sweep = sweep + 1
    for turn in range(2 * pairs - 1):
{indented(self._loaded("here"), 2)}
        xx = {t}(0)
        yy = {t}(0)
        xy = {t}(0)
        for k in unrolled({own}):
            xx = fma_{t}(x[k], x[k], xx)
            yy = fma_{t}(y[k], y[k], yy)
            xy = fma_{t}(x[k], y[k], xy)
{indented(self._over_lanes("xx"), 2)}
{indented(self._over_lanes("yy"), 2)}
{indented(self._over_lanes("xy"), 2)}
        sine = {t}(0)
        half = {t}(0)
        if xy * xy > {t}({least * least!r}) * xx * yy:
            gap = {self._near("yy - xx")}
            twice = {self._near("xy + xy")}
            squares = fma_f32(gap, gap, twice * twice)
            length = squares * approximate_rsqrt_f32(squares)
            tangent = twice * inverse_f32(abs_f32(gap) + length)
            if gap < f32(0):
                tangent = neg_f32(tangent)
            squares = tangent * tangent
            part = fma_f32(squares, f32({_FIFTH_ORDER!r}), f32(-0.125))
            half = {self._wide("tangent * fma_f32(squares, part, f32(0.5))")}
            sine = {self._over(f"fma_{t}(half, half, {t}(1))", "(half + half)")}
            turned = i64(1)
        here = {rows * rows} - here
        for k in unrolled({own}):
            less = fma_{t}(half, x[k], y[k])
            more = fma_{t}(neg_{t}(half), y[k], x[k])
            x[k] = fma_{t}(neg_{t}(sine), less, x[k])
            y[k] = fma_{t}(sine, more, y[k])
        if live:
{indented(self._stored("to_x", "to_y"), 3)}
        barrier()
{indented(self._agreed(), 1)}"""

    def _near(self, value: str) -> str:
        """In float32, which is enough for an angle."""
        t = short_name(self.dtype)
        return value if t == "f32" else f"convert_{t}_f32({value})"

    def _wide(self, value: str) -> str:
        """Of float32."""
        t = short_name(self.dtype)
        return value if t == "f32" else f"convert_f32_{t}({value})"

    def _over(self, divisor: str, value: str) -> str:
        """``value`` over a divisor from 1 to 2."""
        if self.dtype == dtypes.float32:
            return f"{value} * inverse_f32({divisor})"
        return f"{value} / ({divisor})"

    def _agreed(self) -> str:
        """``turned`` of all threads of the block."""
        t = short_name(self.dtype)
        if self.warps == 1:
            return (
                "turned = convert_i32_i64(popcount_i32(ballot((turned > 0) and live)))"
            )
        return f"""some = popcount_i32(ballot((turned > 0) and live))
if remainder(thread, {WARP}) == 0:
    marks[quotient(thread, {WARP})] = convert_i32_{t}(some)
barrier()
turned = i64(0)
for warp in unrolled({self.warps}):
    if marks[warp] > {t}(0):
        turned = i64(1)
barrier()"""

    def _end(self, with_vectors: bool) -> str:
        """Eigenvalues in ascending order, and their vectors."""
        t, rows, own = short_name(self.dtype), self.rows, self.own
        vector, step = self.vector, self.lanes * self.vector
        name = "vectors" if with_vectors else "a"
        text = f"""
spare = {rows * rows} - here
{self._whole(name, "spare + at")}
if live:
{indented(self._loaded("here"), 1)}
xx = {t}(0)
yy = {t}(0)
for k in unrolled({own}):
    xx = fma_{t}(x[k], x[k], xx)
    yy = fma_{t}(y[k], y[k], yy)
{self._over_lanes("xx")}
{self._over_lanes("yy")}
xx = sqrt_{t}(xx)
yy = sqrt_{t}(yy)
for k in unrolled({own}):
    x[k] = x[k] / xx
    y[k] = y[k] / yy
if live:
{indented(self._stored("first", "second"), 1)}
barrier()
xx = {t}(0)
yy = {t}(0)
for i in range(n):
    in_x = {t}(0)
    in_y = {t}(0)
    for k in unrolled({own // vector}):
        at = spare + i * {rows} + lane * {vector} + k * {step}
        load_{t}x{vector}(columns, at, near, 0)
        for j in unrolled({vector}):
            in_x = fma_{t}(near[j], x[k * {vector} + j], in_x)
            in_y = fma_{t}(near[j], y[k * {vector} + j], in_y)
    xx = fma_{t}(in_x, columns[here + first - lane * {vector} + i], xx)
    yy = fma_{t}(in_y, columns[here + second - lane * {vector} + i], yy)
{self._over_lanes("xx")}
{self._over_lanes("yy")}
if turned > 0:
    xx = {t.upper()}_NAN
    yy = {t.upper()}_NAN
both = live and (pairs + group < n)
if live and (lane == 0):
    results[group] = xx
    if both:
        results[pairs + group] = yy
barrier()
x_place = i64(0)
y_place = i64(0)
for k in range(n):
    value = results[k]
    # Of equal ones, and of NaNs, the first is first.
    if (value < xx) or ((k < group) and not (value > xx)):
        x_place = x_place + 1
    if (value < yy) or ((k < pairs + group) and not (value > yy)):
        y_place = y_place + 1
if live and (lane == 0):
    values[block_index() * n + x_place] = xx
    if both:
        values[block_index() * n + y_place] = yy
"""
        if not with_vectors:
            return text
        return (
            text
            + f"""if turned > 0:
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
        )

    def _whole(self, name: str, place: str) -> str:
        """The matrix into shared memory, of its lower triangle."""
        t, rows = short_name(self.dtype), self.rows
        return f"""for at in range(thread, {rows * rows}, {self.threads}):
    i = at // {rows}
    j = at % {rows}
    value = {t}(0)
    if (i < n) and (j < n):
        value = {name}[begin + max_i64(i, j) * n + min_i64(i, j)]
    columns[{place}] = value
barrier()"""

    def _stored(self, x: str, y: str) -> str:
        """Both columns of a pair, to places of shared memory from ``here`` on."""
        t, vector, step = short_name(self.dtype), self.vector, self.lanes * self.vector
        return f"""for k in unrolled({self.own // vector}):
    at = here + k * {step}
    store_{t}x{vector}(columns, at + {x}, x, k * {vector})
    store_{t}x{vector}(columns, at + {y}, y, k * {vector})"""

    def _loaded(self, here: str) -> str:
        """Both columns of a pair, from ``here`` on."""
        t, step = short_name(self.dtype), self.lanes * self.vector
        return f"""for k in unrolled({self.own // self.vector}):
    at = {here} + k * {step}
    load_{t}x{self.vector}(columns, at + first, x, k * {self.vector})
    load_{t}x{self.vector}(columns, at + second, y, k * {self.vector})"""

    def _over_lanes(self, name: str) -> str:
        """A sum over the lanes of a group."""
        t = short_name(self.dtype)
        return f"""for step in unrolled({self.lanes.bit_length() - 1}):
    {name} = {name} + shuffle_xor_{t}({name}, {self.lanes // 2} >> step)"""
