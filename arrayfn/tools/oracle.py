"""What a Program's results are, and how far from them rounding may lead.

``oracle`` interprets a Program in float64 with exact sums (``device="reference64"``),
and again several times with every result of every equation rounded at random, up or
down by at most what the table promises of that equation: Monte Carlo arithmetic
(D. S. Parker, 1997; Verificarlo, 2016). One run in four draws each element's error by
itself, one the same error for equal numbers, one the same for all elements, one none
for most: errors of equal terms add up, a function may be too great everywhere, and
a difference of numbers that are rounded well may be exactly 0. How far those runs come
apart tells how far any implementation may be that rounds each equation's result well,
in whatever order it adds: it sees cancellation, ill-conditioned matrices, and
comparisons that rounding can decide either way, as no fixed tolerance does.

* An elementwise result is off by 2 units in the last place of its dtype, or by the
  row's tolerance where that promises less. What is a number of the dtype stays as it
  is, so that exact computations (of small integers, say) stay exact.
* A sum or contraction is off by ``(log2(n) + 4) * eps`` relative to the same sum of
  absolute values, ``n`` the number of its terms (a window's, a scatter's: of all).
  Sums of halves are float32's until they are rounded. A scatter adds, or multiplies,
  in its dtype and one by one: it is off by ``n / 2 * eps``, ``n`` the number of updates
  in one place, where that is more.
* Halves are float32's numbers between the equations of one kernel, or rounded after
  each: half of the runs do so, half not. Rounded they are always where anything but
  arithmetic of halves reads them.
* A NaN that an equation gives has either sign.
* A loop has at most twice as many iterations as in float64.
* A factorisation or a transform is off by the row's tolerance, relative to the greatest
  element of the result. What is not finite may be NaN or either infinity.

The bound is 4 times the greatest distance of ``SAMPLES`` runs from the float64 values,
and never less than 2 units in the last place. It is an estimate, no proof: that a run
with a distance of a quarter of what occurs is missed ``SAMPLES`` times over is rare. It
is infinite where the answer is undecided: integers, bools, infinities and NaN that are
not the same in all runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from arrayfn import dtypes
from arrayfn.backends.reference.wide import wide_array, widened
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError
from arrayfn.ir import Equation, Program
from arrayfn.lowering.halves import JUMPS
from arrayfn.primitives.base import Primitive, Tolerance
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.indexing import scatter_add

Array = np.ndarray[Any, Any]

SAMPLES: Final = 8
_SAFETY: Final = 4.0
_DEFAULT: Final = Tolerance()

# Linear in each operand that is inexact: the error is relative to the absolute values.
_SUMS: Final = frozenset(
    {
        "reduce_sum",
        "cumsum",
        "dot_general",
        "conv_general",
        "padded_convolution",
        "scatter_add",
        "window_put",
        "reduce_window_sum",
    }
)
_ONE_BY_ONE: Final = frozenset({"scatter_add", "scatter_mul"})  # in their dtype
_WHOLE: Final = frozenset({"linear algebra", "fourier"})
_EXACT_FAMILIES: Final = frozenset({"view", "structure", "sorting"})
_EXACT: Final = frozenset(
    {
        "neg",
        "abs",
        "sign",
        "max",
        "min",
        "clamp",
        "select",
        "copysign",
        "floor",
        "ceil",
        "trunc",
        "round",
        "real",
        "imag",
        "conj",
        "complex",
        "reduce_max",
        "reduce_min",
        "cummax",
        "cummin",
        "gather",
        "scatter",
        "scatter_min",
        "scatter_max",
        "dynamic_slice",
        "dynamic_update_slice",
        "sliding_windows",
        "window_take",
        "reduce_window_max",
        "reduce_window_min",
    }
)
"""Primitives that give some of their operands, or integers: nothing is rounded."""


@dataclass(frozen=True)
class Judged:
    """One result: its value in double precision, its dtype, and the bound of errors."""

    value: Array
    bound: Array
    dtype: DType

    def violations(self, have: Any) -> Array:
        """Where ``have`` is further from the value than the bound; bools.

        What overflows the dtype is infinite; NaN equals NaN.
        """
        given = np.asarray(have)
        if self.dtype not in dtypes.INEXACT:
            return (given != self.value) & np.isfinite(self.bound)
        wide = wide_array(given, given.dtype)
        with np.errstate(all="ignore"):
            far = ~(np.abs(wide - self.value) <= self.bound)
            same = (wide == self.value) | ((wide != wide) & (self.value != self.value))
        return far & ~same & np.isfinite(self.bound)

    def check(self, have: Any, label: str = "the result") -> None:
        """Raise AssertionError, which names the worst, if ``have`` is out of bounds."""
        given = np.asarray(have)
        if given.shape != self.value.shape or given.dtype != self.dtype:
            raise AssertionError(
                f"{label} is {given.dtype}{list(given.shape)}, not "
                f"{self.dtype}{list(self.value.shape)}"
            )
        wrong = self.violations(given)
        if not wrong.any():
            return
        times = np.where(wrong, np.inf, -1.0)
        if self.dtype in dtypes.INEXACT:
            wide = wide_array(given, given.dtype)
            with np.errstate(all="ignore"):
                apart = np.abs(wide - self.value) / self.bound
            times = np.where(wrong & np.isfinite(apart), apart, times)
        worst = np.unravel_index(int(np.argmax(times)), times.shape)
        raise AssertionError(
            f"{label}: {int(wrong.sum())} of {wrong.size} elements are out of bounds; "
            f"at {[int(k) for k in worst]} it is {given[worst]}, not "
            f"{self.value[worst]} within {self.bound[worst]:.3g}"
        )


def oracle(
    program: Program, inputs: Sequence[Any], *, samples: int = SAMPLES, seed: int = 0
) -> list[Judged]:
    """The results of ``program`` for ``inputs``, each with the bound of its errors.

    Raises ArgumentError if the inputs are not of the Program's types.

    >>> import numpy as np
    >>> from arrayfn.transforms import make_program
    >>> x = np.float32([1e8, 1.0, -1e8])
    >>> (judged,) = oracle(make_program(lambda x: x.sum())(x), [x])
    >>> float(judged.value), bool(judged.bound > 1)
    (1.0, True)
    """
    if len(inputs) != len(program.inputs):
        raise ArgumentError(
            f"oracle: {program.name} takes {len(program.inputs)} inputs, "
            f"but was given {len(inputs)}"
        )
    given: list[Array] = []
    for x, type in zip(inputs, program.input_types, strict=True):
        if np.shape(x) != type.shape:
            raise ArgumentError(
                f"oracle: an input of {program.name} is {type}, but was given an "
                f"array of shape {np.shape(x)}"
            )
        given.append(wide_array(x, type.dtype))
    exact = _Exact()
    values = [np.asarray(x) for x in evaluate(widened(program, exact), given)]
    random = np.random.default_rng(seed)
    runs: list[list[Any]] = []
    for k in range(samples):
        chance = _CHANCES[k % len(_CHANCES)]
        excess = k // len(_CHANCES) % 2 == 1
        rounding = _Rounding(random, chance, excess, exact.counts)
        runs.append(evaluate(widened(program, rounding), given))
    return [
        _judged(value, [wide_array(run[k], type.dtype) for run in runs], type.dtype)
        for k, (value, type) in enumerate(
            zip(values, program.output_types, strict=True)
        )
    ]


def _judged(value: Array, runs: Sequence[Array], dtype: DType) -> Judged:
    with np.errstate(all="ignore"):
        if dtype not in dtypes.INEXACT:
            differs = np.zeros(value.shape, bool)
            for run in runs:
                differs |= run != value
            return Judged(value, np.where(differs, np.inf, 0.0), dtype)
        finite = np.isfinite(value)
        # What is out of the dtype's range in all runs is so in the result, too.
        first = runs[0] if runs else value
        agreed = ~np.isfinite(first)
        for run in runs:
            agreed &= (run == first) | ((run != run) & (first != first))
        value = np.where(agreed, first, value)
        distance = np.zeros(value.shape)
        for run in runs:
            apart = np.abs(run - value)
            distance = np.maximum(distance, np.where(np.isnan(apart), np.inf, apart))
        limits = ml_dtypes.finfo(dtypes.real_of(dtype))
        size = np.where(finite, np.abs(value), 0.0)
        least = 2 * (float(limits.eps) * size + float(limits.smallest_subnormal))
        bound = np.where(agreed, 0.0, np.maximum(_SAFETY * distance, least))
        return Judged(value, bound, dtype)


class _Exact:
    """Leaves the results of equations as they are, and counts iterations of loops."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}  # by the identity of the equation

    def operands(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """As they are."""
        return arrays

    def results(
        self, equation: Equation, operands: Sequence[Array], arrays: list[Array]
    ) -> list[Array]:
        """As they are."""
        return arrays

    def limit(self, equation: Equation) -> float:
        """None."""
        return math.inf

    def iterated(self, equation: Equation, count: int) -> None:
        """Keep the greatest count of each loop."""
        self.counts[id(equation)] = max(count, self.counts.get(id(equation), 0))


def _independent(random: np.random.Generator, x: Array) -> Array:
    """Another number for each element."""
    return random.uniform(-1.0, 1.0, x.shape)


def _by_value(random: np.random.Generator, x: Array) -> Array:
    """The same number for equal elements, as a function has the same error for them."""
    bits = np.ascontiguousarray(x, np.float64).view(np.uint64)
    for factor in random.integers(1 << 63, size=2, dtype=np.uint64):
        bits = (bits ^ (bits >> np.uint64(29))) * (factor | np.uint64(1))
    return bits.view(np.int64).reshape(x.shape) / float(1 << 63)


def _one_sided(random: np.random.Generator, x: Array) -> Array:
    """The same number for all elements: a function may be too great everywhere."""
    return np.full(x.shape, random.uniform(-1.0, 1.0))


def _seldom(random: np.random.Generator, x: Array) -> Array:
    """0 for four numbers in five: what is rounded well is often the nearest."""
    part = _by_value(random, x)
    return np.where(np.abs(part) < 0.8, 0.0, part)


_CHANCES: Final = (_independent, _by_value, _one_sided, _seldom)


class _Rounding:
    """Rounds the results of equations by parts of their margins that ``chance`` draws.

    ``excess`` lets halves keep float32's precision and range. ``counts`` are those of
    loops' iterations in the exact run: no loop has more than twice as many, since a
    loop that ends when its terms are small may never see them so.
    """

    def __init__(
        self,
        random: np.random.Generator,
        chance: Callable[[np.random.Generator, Array], Array],
        excess: bool,
        counts: Mapping[int, int],
    ) -> None:
        self.random = random
        self.chance = chance
        self.excess = excess
        self.counts = counts

    def limit(self, equation: Equation) -> float:
        """Twice the exact run's, and some."""
        return 2 * self.counts.get(id(equation), 0) + 8

    def iterated(self, equation: Equation, count: int) -> None:
        """Not needed."""

    def operands(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """Halves are rounded where they are read by what gives none, or jumps."""
        given = [atom.type.dtype for atom in equation.inputs]
        if not self.excess or not dtypes.HALVES.intersection(given):
            return arrays
        gives_halves = all(v.type.dtype in dtypes.HALVES for v in equation.outputs)
        if gives_halves and equation.primitive.name not in JUMPS:
            return arrays
        if equation.params.get("excess"):
            return arrays
        return [
            wide_array(x, dtype) if dtype in dtypes.HALVES else x
            for x, dtype in zip(arrays, given, strict=True)
        ]

    def results(
        self, equation: Equation, operands: Sequence[Array], arrays: list[Array]
    ) -> list[Array]:
        """What is inexact, rounded."""
        row = equation.primitive
        assert isinstance(row, Primitive)
        if equation.subprograms():
            return arrays  # its equations were rounded
        return [
            self.rounded(row, equation, operands, x, v.type.dtype)
            if v.type.dtype in dtypes.INEXACT
            else x
            for x, v in zip(arrays, equation.outputs, strict=True)
        ]

    def rounded(
        self,
        row: Primitive,
        equation: Equation,
        operands: Sequence[Array],
        x: Array,
        dtype: DType,
    ) -> Array:
        with np.errstate(all="ignore"):
            margin = self.margin(row, equation, operands, x, dtype)
            if row.family in _WHOLE or np.iscomplexobj(x):
                x = self.unlike(x)
            if row.name in _SUMS:
                x = self.signed(self.overflowed(x, margin, dtype))
            elif row.name == "reduce_prod":
                x = self.in_any_order(x, operands[0], equation.params["axes"], dtype)
            if self.excess:
                dtype = dtypes.compute_dtype(dtype)
            if np.iscomplexobj(x):
                result = np.empty_like(x)  # of parts: 1j * inf is NaN + inf j
                result.real = self.moved(x.real, margin, dtypes.real_of(dtype))
                result.imag = self.moved(x.imag, margin, dtypes.real_of(dtype))
                return result
            return self.moved(x, margin, dtype)

    def overflowed(self, x: Array, margin: Array | float, dtype: DType) -> Array:
        """``x``, sums; any number where parts of one may be out of range."""
        limits = ml_dtypes.finfo(dtypes.compute_dtype(dtypes.real_of(dtype)))
        over = margin >= 2 * float(limits.eps) * float(limits.max)
        kinds = self.random.choice([np.nan, np.inf, -np.inf, 1.0], x.shape)
        return np.where(over, x * kinds, x)

    def signed(self, x: Array) -> Array:
        """``x`` with either sign where it is 0: that of a sum depends on its order."""
        if np.iscomplexobj(x):
            return x
        signs = self.random.choice([-1.0, 1.0], x.shape)
        return np.where(x == 0, np.copysign(x, signs), x)

    def in_any_order(
        self, x: Array, factors: Array, axes: tuple[int, ...], dtype: DType
    ) -> Array:
        """``x``, the product of ``factors``; any number where parts of it overflow."""
        logs = np.log2(np.abs(factors).astype(np.float64))
        logs = np.where(np.isfinite(logs), logs, 0.0)
        limits = ml_dtypes.finfo(dtypes.compute_dtype(dtypes.real_of(dtype)))
        above = np.sum(np.maximum(logs, 0.0), axis=axes) >= limits.maxexp - 1
        below = np.sum(np.minimum(logs, 0.0), axis=axes) <= limits.minexp + 1
        kinds = self.random.choice([np.nan, np.inf, -np.inf, 0.0, 1.0], x.shape)
        return np.where(above | below, x * kinds, x)

    def unlike(self, x: Array) -> Array:
        """``x`` with any of NaN and infinities where it is not finite."""
        kinds = self.random.choice([np.nan, np.inf, -np.inf], x.shape)
        return np.where(np.isfinite(x), x, kinds)

    def margin(
        self,
        row: Primitive,
        equation: Equation,
        operands: Sequence[Array],
        x: Array,
        dtype: DType,
    ) -> Array | float:
        """The greatest absolute error of ``x`` by this equation; 0 if it is exact."""
        if row.name in _EXACT or row.family in _EXACT_FAMILIES:
            return 0.0
        real = dtypes.real_of(dtype)
        wide = dtypes.compute_dtype(real)
        limits = ml_dtypes.finfo(wide)
        eps = float(limits.eps)
        double = wide == dtypes.float64
        promised = row.tolerance.float64 if double else row.tolerance.float32
        usual = _DEFAULT.float64 if double else _DEFAULT.float32
        terms = max(2, *(v.size for v in operands)) if operands else 2
        factor: Array | float = math.log2(terms) + 4
        if row.name in _ONE_BY_ONE:
            eps = float(ml_dtypes.finfo(real).eps)
            factor = np.maximum(factor, _updates(equation, operands) / 2)
        if row.name in _SUMS:
            inexact = [np.issubdtype(v.dtype, np.inexact) for v in operands]
            sizes = [
                np.abs(v) if i else v for v, i in zip(operands, inexact, strict=True)
            ]
            mass = np.asarray(_double(row, equation, sizes))
            if _is_small_integer(mass, operands, inexact, eps):
                return 0.0
            return factor * eps * mass
        if row.name == "scatter_mul":
            return np.where(_is_number_of(x, real), 0.0, factor * eps * np.abs(x))
        if row.family in _WHOLE:
            finite = np.isfinite(x)
            return promised * float(np.max(np.abs(x), initial=0.0, where=finite))
        size = np.abs(x)
        if np.iscomplexobj(x):  # of an infinite number the part that is finite
            parts = [np.where(np.isfinite(v), np.abs(v), 0.0) for v in (x.real, x.imag)]
            size = np.where(np.isfinite(size), size, parts[0] + parts[1])
        if row.name == "logaddexp":  # the greater operand and a logarithm may cancel
            size = np.maximum(size, np.maximum(*map(np.abs, operands)))
            size = np.where(np.isfinite(size), size, np.abs(x))
        size = np.minimum(size, float(limits.max) / 2)  # no unit above the greatest
        margin = 2 * np.spacing(size.astype(wide)).astype(np.float64)
        if promised > usual:
            margin = np.maximum(margin, promised * size)
        return np.where(_is_number_of(x, wide), 0.0, margin)

    def moved(self, x: Array, margin: Array | float, real: DType) -> Array:
        """``x`` moved by a part of the margin, rounded to the dtype."""
        if real in dtypes.HALVES:
            # Computed in float32, rounded once: to either neighbour.
            limits = ml_dtypes.finfo(real)
            units = np.abs(x) * float(limits.eps)
            units = np.maximum(units, float(limits.smallest_subnormal)) / 2
            margin = np.where(_is_number_of(x, real), margin, margin + units)
        moved = np.where(np.isfinite(x), x + self.chance(self.random, x) * margin, x)
        moved = wide_array(moved, real)
        is_nan = np.isnan(moved)
        if is_nan.any():  # a NaN has either sign
            signs = self.random.choice([-1.0, 1.0], x.shape)
            moved = np.where(is_nan, np.copysign(moved, signs), moved)
        return moved


def _double(row: Primitive, equation: Equation, operands: Sequence[Array]) -> Any:
    params = dict(equation.params)
    if "preferred_element_type" in params:
        params.pop("preferred_element_type")
    return row.reference(*operands, **params)


def _updates(equation: Equation, operands: Sequence[Array]) -> Array:
    """How many updates of a scatter meet in each of its places."""
    x, indices, updates = operands
    zeros, ones = np.zeros(x.shape), np.ones(updates.shape)
    return np.asarray(scatter_add.reference(zeros, indices, ones, **equation.params))


def _is_number_of(x: Array, dtype: DType) -> Array:
    """Whether elements are numbers of ``dtype``, so that nothing was rounded.

    Of float64, in which they are computed, those count that float32 has as well.
    """
    known = dtypes.float32 if dtype == dtypes.float64 else dtype
    if np.iscomplexobj(x):
        return _is_number_of(x.real, dtype) & _is_number_of(x.imag, dtype)
    return x.astype(known).astype(np.float64) == x


def _is_small_integer(
    mass: Array, operands: Sequence[Array], inexact: Sequence[bool], eps: float
) -> bool:
    """Whether every partial sum is an integer that the dtype has."""
    whole = all(
        bool(np.all(v == np.rint(v)))
        for v, i in zip(operands, inexact, strict=True)
        if i
    )
    return whole and bool(np.all(mass <= 1 / eps))
