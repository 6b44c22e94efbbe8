"""One-sided Jacobi: rotates pairs of columns until all columns are orthogonal.

(Hestenes, "Inversion of matrices by biorthogonalization", 1958.) A block computes one
matrix, with its columns in shared memory, and a group of lanes one pair of columns at a
time. The pairs of a round have no column in common, and change as in a tournament
(Brent and Luk, "The solution of singular-value and symmetric eigenvalue problems on
multiprocessor arrays", 1985): after a sweep, in which all pairs have met, each column
is where it was. Sweeps end with the first in which no pair was rotated, which is the
same one on each run.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.lowering.cuda.handwritten import converted, indented
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.cuda.vocabulary import WARP, vector_lanes
from arrayfn.records import frozen

REAL: Final = (dtypes.float32, dtypes.float64)
MAX_ROWS: Final = 64
"""Rows of the largest matrix: two copies of all columns fit into shared memory."""
_MIN_ROWS: Final = 8
"""Rows of the smallest kernel."""
_MAX_SWEEPS: Final = 40
"""Sweeps after which a matrix has not converged, and becomes NaN; ten are many."""
_MAX_LANES: Final = 8
"""Lanes that share a pair of columns at most."""
_FIFTH_ORDER: Final = 2**0.5 - 1 - 0.375
"""Coefficient of t**5 in tan(angle / 2) = t/2 - t**3/8 + ..., where t = tan(angle).

It makes the series exact at t = 1. Where the series is not exact, the pair is rotated
again in the next sweep; ``sine`` is such that the rotation keeps lengths.
"""


def rows_of(n: int) -> int:
    """Return the rows of the kernel for matrices of ``n`` rows or columns."""
    return max(_MIN_ROWS, power_of_two(n))


@frozen(slots=True)
class ColumnLayout:
    """How up to ``rows`` columns lie in a block's threads; writes their rotations.

    The first ``rows`` elements of each column are made orthogonal. A column may have
    ``more`` elements, which are rotated with them. The lines share these variables:

    * ``group`` and ``lane``: the number of the group of lanes that share a pair of
      columns, and of the lane in it. There are ``pairs``, and ``live`` says whether the
      group has one: columns ``group`` and ``pairs + group``, if there is such a column.
    * ``columns``: shared memory for two copies of all columns. One is read and the
      other written, alternately; ``here`` is where the copy to read begins.
    * ``first`` and ``second``: where the lane's elements of the pair begin in a copy.
    * ``x`` and ``y``: registers for these elements.
    * ``near``: registers for one vector, which only the callers' lines use.
    * ``xx``, ``yy`` and ``xy``: inner products of the pair's columns.
    * ``results``: shared memory for one number of each column.
    * ``marks``: shared memory for one number of each warp.
    * ``rotated``: positive if some pair was rotated in the current sweep.
    """

    dtype: DType
    rows: int
    more: int = 0

    @property
    def height(self) -> int:
        """Elements of a column."""
        return self.rows + self.more

    @property
    def vector(self) -> int:
        """Elements of a vector; a lane has several vectors of a column."""
        return vector_lanes(self.dtype)

    @property
    def lanes(self) -> int:
        """Lanes that share a pair of columns."""
        return min(_MAX_LANES, self.rows // self.vector)

    @property
    def step(self) -> int:
        """Elements of a column from one vector of a lane to its next."""
        return self.lanes * self.vector

    @property
    def own(self) -> int:
        """Elements of a column that a lane has."""
        return self.height // self.lanes

    @property
    def compared(self) -> int:
        """How many of a lane's elements of a column are made orthogonal."""
        return self.rows // self.lanes

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return max(WARP, self.rows // 2 * self.lanes)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.threads // WARP

    @property
    def size(self) -> int:
        """Elements of all columns; shared memory has two copies of them."""
        return self.rows * self.height

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return 2 * self.size * self.dtype.itemsize

    def begin(self, count: str) -> str:
        """Return lines that assign a pair of columns to each group of lanes.

        ``count`` is the expression of the number of columns.
        """
        t, own, vector = short_name(self.dtype), self.own, self.vector
        return f"""thread = thread_index()
lane = remainder(thread, {self.lanes})
group = quotient(thread, {self.lanes})
pairs = quotient({count} + 1, 2)
columns = dynamic_shared_{t}(0, {2 * self.size})
results = shared_{t}({self.rows})
marks = shared_{t}({self.warps})
x = registers_{t}({own})
y = registers_{t}({own})
near = registers_{t}({vector})
live = group < pairs
first = select_i64(live, group, 0) * {self.height} + lane * {vector}
second = select_i64(live, pairs + group, 1) * {self.height} + lane * {vector}"""

    def maximum(self) -> str:
        """Return lines that make ``scale`` the maximum of all threads' ``scale``.

        A maximum that is not finite becomes NaN, and a maximum of 0 becomes 1.
        """
        t = short_name(self.dtype)
        return f"""for step in unrolled(5):
    scale = max_{t}(scale, shuffle_xor_{t}(scale, 16 >> step))
if remainder(thread, {WARP}) == 0:
    marks[quotient(thread, {WARP})] = scale
barrier()
for warp in unrolled({self.warps}):
    scale = max_{t}(scale, marks[warp])
if scale == {t}(0):
    scale = {t}(1)
if not (scale < {t.upper()}_INF):
    scale = {t.upper()}_NAN"""

    def sweeps(self, shortest: float | None = None) -> str:
        """Return lines that rotate pairs of columns until all are orthogonal.

        The lengths of columns must be about 1, unless ``shortest`` is given: then
        lengths may be any, and columns of at most that length are left alone.
        """
        return f"""
{self._next_columns()}
here = i64(0)
rotated = i64(1)
sweep = i64(0)
while (rotated > 0) and (sweep < {_MAX_SWEEPS}):
    rotated = i64(0)
    sweep = sweep + 1
    for pairing in range(2 * pairs - 1):
{indented(self.load_pair("here"), 2)}
{indented(self.inner_products("xx", "yy", "xy"), 2)}
{indented(self._angle(shortest), 2)}
{indented(self._rotate(), 2)}
        barrier()
{indented(self._agree(), 1)}
"""

    def _next_columns(self) -> str:
        """Return lines that define where a pair's columns go next.

        ``to_x`` and ``to_y`` are the places in the other copy. As in a tournament, all
        columns but the first move on by one place. So each column meets every other
        column in ``2 * pairs - 1`` rounds, and is then back in its place.
        """
        return f"""
after_x = group + 1
after_y = pairs + group - 1
if group == pairs - 1:
    after_x = 2 * pairs - 1
if group == 0:
    after_x = i64(0)
    after_y = i64(1)
to_x = after_x * {self.height} + lane * {self.vector}
to_y = after_y * {self.height} + lane * {self.vector}
"""

    def inner_products(self, *names: str) -> str:
        """Return lines that compute the inner products ``names``.

        They are some of ``xx``, ``yy`` and ``xy``. Only the elements that are made
        orthogonal count.
        """
        t = short_name(self.dtype)
        zeros = [f"{name} = {t}(0)" for name in names]
        # The letters of a name are its two factors.
        adds = [
            f"{name} = fma_{t}({name[0]}[k], {name[1]}[k], {name})" for name in names
        ]
        sums = [self.over_lanes(name) for name in names]
        loop = f"for k in unrolled({self.compared}):"
        return "\n".join([*zeros, loop, indented(adds, 1), *sums])

    def _angle(self, shortest: float | None) -> str:
        """Return lines that compute the rotation which makes a pair orthogonal.

        ``sine`` and ``half``, the tangent of half the angle, are 0 for a pair that is
        orthogonal up to rounding errors, or that has a column of length ``shortest`` or
        less.
        """
        t = short_name(self.dtype)
        # The cosine of columns that are orthogonal but for rounding errors.
        tolerance = math.sqrt(self.rows) * float(np.finfo(self.dtype).eps)
        are_longer = relative = size = ""
        if shortest is not None:
            # Squares of numbers far from 1 may overflow or vanish in float32.
            are_longer = f" and (min_{t}(xx, yy) > {t}({shortest**2!r}))"
            inverse = f"inverse_f32({converted('xx + yy', t, 'f32')})"
            size = f"size = {converted(inverse, 'f32', t)}"
            relative = " * size"
        divisor = f"fma_{t}(half, half, {t}(1))"
        # float32 is precise enough for an angle: see ``_FIFTH_ORDER``.
        return f"""
sine = {t}(0)
half = {t}(0)
if xy * xy > {t}({tolerance * tolerance!r}) * xx * yy{are_longer}:
    {size}
    gap = {converted(f"(yy - xx){relative}", t, "f32")}
    twice = {converted(f"(xy + xy){relative}", t, "f32")}
    squares = fma_f32(gap, gap, twice * twice)
    root = squares * approximate_rsqrt_f32(squares)
    tangent = twice * inverse_f32(abs_f32(gap) + root)
    if gap < f32(0):
        tangent = neg_f32(tangent)
    squares = tangent * tangent
    series = fma_f32(squares, f32({_FIFTH_ORDER!r}), f32(-0.125))
    half = {converted("tangent * fma_f32(squares, series, f32(0.5))", "f32", t)}
    sine = {self._quotient("(half + half)", divisor)}
    rotated = i64(1)
"""

    def _rotate(self) -> str:
        """Return lines that rotate a pair, and store it in the other copy.

        The columns go to the places ``to_x`` and ``to_y``: x' = x - sine (y + half x)
        and y' = y + sine (x - half y).
        """
        t = short_name(self.dtype)
        return f"""
here = {self.size} - here
for k in unrolled({self.own}):
    less = fma_{t}(half, x[k], y[k])
    more = fma_{t}(neg_{t}(half), y[k], x[k])
    x[k] = fma_{t}(neg_{t}(sine), less, x[k])
    y[k] = fma_{t}(sine, more, y[k])
if live:
{indented(self.store_pair("to_x", "to_y"), 1)}
"""

    def _quotient(self, value: str, divisor: str) -> str:
        """Return the expression of ``value`` over a ``divisor`` between 1 and 2.

        In float32 it is a product with the divisor's inverse.
        """
        if self.dtype == dtypes.float32:
            return f"{value} * inverse_f32({divisor})"
        return f"{value} / ({divisor})"

    def _agree(self) -> str:
        """Return lines that make ``rotated`` positive in all threads, if in any."""
        t = short_name(self.dtype)
        if self.warps == 1:
            return """some = popcount_i32(ballot((rotated > 0) and live))
rotated = convert_i32_i64(some)"""
        return f"""some = popcount_i32(ballot((rotated > 0) and live))
if remainder(thread, {WARP}) == 0:
    marks[quotient(thread, {WARP})] = convert_i32_{t}(some)
barrier()
rotated = i64(0)
for warp in unrolled({self.warps}):
    if marks[warp] > {t}(0):
        rotated = i64(1)
barrier()"""

    def ranked(self, count: str, before: str, after: str) -> str:
        """Return lines that rank ``xx`` and ``yy`` among the numbers of all pairs.

        ``x_place`` and ``y_place`` become the ranks, and ``results`` all numbers.
        ``both`` says whether the group's pair has a second column. Equal numbers, and
        NaNs, rank in the order of columns.

        Args:
            count: The expression of the number of columns.
            before: ``<`` for ascending order, ``>`` for descending.
            after: The other of the two.
        """
        return f"""both = live and (pairs + group < {count})
if live and (lane == 0):
    results[group] = xx
    if both:
        results[pairs + group] = yy
barrier()
x_place = i64(0)
y_place = i64(0)
for k in range({count}):
    value = results[k]
    if (value {before} xx) or ((k < group) and not (value {after} xx)):
        x_place = x_place + 1
    if (value {before} yy) or ((k < pairs + group) and not (value {after} yy)):
        y_place = y_place + 1"""

    def store_pair(self, x: str, y: str) -> str:
        """Return lines that store a pair's columns in the copy at ``here``.

        ``x`` and ``y`` are the expressions of the columns' places in the copy.
        """
        t, vector, step = short_name(self.dtype), self.vector, self.step
        return f"""for k in unrolled({self.own // vector}):
    at = here + k * {step}
    store_{t}x{vector}(columns, at + {x}, x, k * {vector})
    store_{t}x{vector}(columns, at + {y}, y, k * {vector})"""

    def load_pair(self, here: str) -> str:
        """Return lines that load a pair's columns from the copy at ``here``."""
        t, step = short_name(self.dtype), self.step
        return f"""for k in unrolled({self.own // self.vector}):
    at = {here} + k * {step}
    load_{t}x{self.vector}(columns, at + first, x, k * {self.vector})
    load_{t}x{self.vector}(columns, at + second, y, k * {self.vector})"""

    def over_lanes(self, name: str) -> str:
        """Return lines that sum the variable ``name`` over the lanes of a group."""
        t = short_name(self.dtype)
        return f"""for step in unrolled({self.lanes.bit_length() - 1}):
    {name} = {name} + shuffle_xor_{t}({name}, {self.lanes // 2} >> step)"""
