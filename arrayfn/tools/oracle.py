"""The oracle: a Program's results in float64, and bounds of their errors.

``oracle`` interprets a Program in float64 with exact sums (``device="reference64"``).
Then it interprets the Program several more times. Each time it perturbs every result of
every equation at random, by at most the tolerance of that equation: Monte Carlo
arithmetic (D. S. Parker, 1997; Verificarlo, 2016). There are four kinds of runs. The
first draws a separate error for each element. The second draws the same error for equal
numbers. The third draws the same error for all elements. The fourth draws no error for
most elements. So the runs cover several cases: errors of equal terms add up, a function
is too large everywhere, or a difference of well-rounded numbers is exactly 0. The
spread of these runs estimates the error of any implementation that rounds each equation
well, in any order of summation. Unlike a fixed tolerance, this estimate accounts for
cancellation, ill-conditioned matrices, and comparisons that rounding can decide either
way.

* An elementwise result is perturbed by 2 units in the last place of its dtype, or by
  the row's tolerance if that is larger. A result that the dtype represents exactly is
  not perturbed. So exact computations, for example with small integers, stay exact.
* A sum or contraction is perturbed by ``(log2(n) + 4) * eps`` relative to the sum of
  absolute values, where ``n`` is the number of terms. For a window, this is the number
  of its elements, and for a scatter, the number of updates. Sums of float16 and
  bfloat16 are float32 until they are rounded. A scatter adds or multiplies in its own
  dtype, one update after the other. It is perturbed by ``n / 2 * eps`` if that is more,
  where ``n`` is the number of updates of one target.
* float16 and bfloat16 values keep float32's precision between equations in one quarter
  of the runs, and are rounded after each equation in half of them. In the last quarter
  of the runs, one operand in five is rounded, because one kernel may store a value that
  another kernel computes again. The values are always rounded where anything but
  half-precision arithmetic reads them.
* A NaN and a sum that is 0 have a random sign. If parts of a sum may overflow, the sum
  may be any number. The same holds for a product whose factors, in some order, may
  overflow or vanish. If a complex number is not finite, any part of it may be NaN or
  infinite.
* A loop has at most twice as many iterations as in float64.
* A factorisation or transform is perturbed by the row's tolerance, relative to the
  largest element of the result. A result that is not finite may be NaN or either
  infinity. If an input of a Fourier transform is not finite, all of its results may be
  NaN or infinite.

The bound is 4 times the largest distance of ``SAMPLES`` runs from the float64 values,
and at least 2 units in the last place. The bound is an estimate, not a proof. In rare
cases it fails, because all ``SAMPLES`` runs stay within a quarter of the error that
occurs. The bound is infinite where integers, bools, infinities or NaN differ between
runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from arrayfn import dtypes
from arrayfn.backends.reference.wide import wide_array, widened
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError
from arrayfn.ir import Equation, Program
from arrayfn.lowering.half_rounding import EXACT, JUMPS
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.primitives.base import Primitive, Tolerance, primitive_of
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.indexing import scatter_add
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]

SAMPLES: Final = 8  # perturbed runs
_SAFETY: Final = 4.0  # times the largest distance of perturbed runs is the bound
_DEFAULT: Final = Tolerance()

# Linear in each inexact operand: errors are relative to sums of absolute values.
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
_OF_PARTS: Final = frozenset({"mul", "div", "reciprocal", "square", "pow"})
"""Rounded on the way, if complex: z / z need not be 1, though that is a number."""
_EXACT_FAMILIES: Final = frozenset({"view", "structure", "sorting"})
_EXACT: Final = EXACT | {
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
"""Primitives that give some of their operands, or integers: nothing is rounded."""


@frozen
class Judged:
    """A result, with its value in double precision, its dtype and its error bound."""

    value: Array
    bound: Array
    dtype: DType

    def violations(self, have: Any) -> Array:
        """Return a mask of the elements of ``have`` whose error exceeds the bound.

        Integers and bools must be equal unless the bound is infinite. NaN equals NaN.
        """
        result = np.asarray(have)
        if self.dtype not in dtypes.INEXACT:
            return (result != self.value) & np.isfinite(self.bound)
        wide = wide_array(result, result.dtype)
        with np.errstate(all="ignore"):
            far = ~(np.abs(wide - self.value) <= self.bound)
            same = (wide == self.value) | ((wide != wide) & (self.value != self.value))
        return far & ~same & np.isfinite(self.bound)

    def check(self, have: Any, label: str = "the result") -> None:
        """Raise AssertionError if an element of ``have`` exceeds its bound.

        The message names ``have`` by ``label``, and shows the element whose error is
        largest relative to its bound. An array of another shape or dtype is an error
        too.
        """
        result = np.asarray(have)
        if result.shape != self.value.shape or result.dtype != self.dtype:
            raise AssertionError(
                f"{label} is {result.dtype}{list(result.shape)}, not "
                f"{self.dtype}{list(self.value.shape)}"
            )
        wrong = self.violations(result)
        if not wrong.any():
            return
        # The error as a multiple of the bound; -1 for elements that are right.
        times = np.where(wrong, np.inf, -1.0)
        if self.dtype in dtypes.INEXACT:
            wide = wide_array(result, result.dtype)
            with np.errstate(all="ignore"):
                multiple = np.abs(wide - self.value) / self.bound
            times = np.where(wrong & np.isfinite(multiple), multiple, times)
        worst = np.unravel_index(int(np.argmax(times)), times.shape)
        raise AssertionError(
            f"{label}: {int(wrong.sum())} of {wrong.size} elements are out of bounds; "
            f"at {[int(k) for k in worst]} it is {result[worst]}, not "
            f"{self.value[worst]} within {self.bound[worst]:.3g}"
        )


def oracle(
    program: Program,
    inputs: Sequence[Any],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    have: Sequence[Any] | None = None,
) -> list[Judged]:
    """Compute the results of ``program`` for ``inputs``, each with an error bound.

    Bounds come from ``samples`` runs with random roundings, by ``seed``. More runs give
    larger bounds. With results ``have`` of an implementation, the runs end as soon as
    these are within the bounds.

    Raises ArgumentError if the inputs do not have the Program's types.

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
    program = inline_calls(program)
    exact = _Exact()
    values = [np.asarray(x) for x in evaluate(widened(program, exact), given)]
    random = np.random.default_rng(seed)
    runs: list[list[Any]] = []

    def judged() -> list[Judged]:
        """Judge each output by the runs made so far."""
        return [
            _judged(value, [wide_array(run[k], type.dtype) for run in runs], type.dtype)
            for k, (value, type) in enumerate(
                zip(values, program.output_types, strict=True)
            )
        ]

    for k in range(samples):
        if have is not None and not violated(judged(), have):
            break
        chance = _CHANCES[k % len(_CHANCES)]
        # Each round of chances meets the excesses shifted by one more place.
        excess = _EXCESS[(k // len(_CHANCES) + k) % len(_EXCESS)]
        rounding = _Rounding(random, chance, excess, exact.counts)
        runs.append(evaluate(widened(program, rounding), given))
    return judged()


def violated(judged: Sequence[Judged], results: Sequence[Any]) -> bool:
    """Whether some result has an element that is outside its bound."""
    return any(j.violations(r).any() for j, r in zip(judged, results, strict=True))


def _judged(value: Array, runs: Sequence[Array], dtype: DType) -> Judged:
    """Return a result's ``value`` in float64, with the error bound that ``runs`` give.

    The bound is a multiple of the largest distance of the perturbed ``runs`` from the
    value, and at least 2 units in the last place of ``dtype``. If all runs give the
    same infinity or NaN, this becomes the value. The bound is infinite where integers
    or bools differ between runs, or infinities and NaN do.
    """
    with np.errstate(all="ignore"):
        if dtype not in dtypes.INEXACT:
            differs = np.zeros(value.shape, bool)
            for run in runs:
                differs |= run != value
            return Judged(value, np.where(differs, np.inf, 0.0), dtype)
        finite = np.isfinite(value)
        # Where all runs give the same infinity or NaN, as for a value that overflows
        # the dtype.
        first = runs[0] if runs else value
        agreed = ~np.isfinite(first)
        for run in runs:
            agreed &= (run == first) | ((run != run) & (first != first))
        value = np.where(agreed, first, value)
        distance = np.zeros(value.shape)
        for run in runs:
            error = np.abs(run - value)
            distance = np.maximum(distance, np.where(np.isnan(error), np.inf, error))
        limits = ml_dtypes.finfo(dtypes.real_of(dtype))
        size = np.where(finite, np.abs(value), 0.0)
        smallest = 2 * (float(limits.eps) * size + float(limits.smallest_subnormal))
        bound = np.where(agreed, 0.0, np.maximum(_SAFETY * distance, smallest))
        return Judged(value, bound, dtype)


class _Exact:
    """Hooks of the interpreter that change nothing, and count iterations of loops."""

    def __init__(self) -> None:
        """Begin without counts."""
        self.counts: dict[int, int] = {}  # by the identity of the equation

    def operands(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the operands unchanged."""
        return arrays

    def results(
        self, equation: Equation, operands: Sequence[Array], arrays: list[Array]
    ) -> list[Array]:
        """Return the results unchanged."""
        return arrays

    def limit(self, equation: Equation) -> float:
        """Return infinity: loops are not stopped."""
        return math.inf

    def iterated(self, equation: Equation, count: int) -> None:
        """Store the largest ``count`` of iterations of the loop ``equation``."""
        self.counts[id(equation)] = max(count, self.counts.get(id(equation), 0))


def _independent(random: np.random.Generator, x: Array) -> Array:
    """Draw an independent number from -1 to 1 for each element of ``x``."""
    return random.uniform(-1.0, 1.0, x.shape)


def _same_for_equal_values(random: np.random.Generator, x: Array) -> Array:
    """Draw numbers from -1 to 1, the same for equal elements of ``x``.

    With these a function has the same error for equal arguments. The numbers are a hash
    of the elements' bits, with two random odd factors.
    """
    bits = np.ascontiguousarray(x, np.float64).view(np.uint64)
    for factor in random.integers(1 << 63, size=2, dtype=np.uint64):
        bits = (bits ^ (bits >> np.uint64(29))) * (factor | np.uint64(1))
    return bits.view(np.int64).reshape(x.shape) / float(1 << 63)


def _one_sided(random: np.random.Generator, x: Array) -> Array:
    """Draw one number from -1 to 1, the same for all elements.

    The errors of a function may have the same sign everywhere.
    """
    return np.full(x.shape, random.uniform(-1.0, 1.0))


def _mostly_zero(random: np.random.Generator, x: Array) -> Array:
    """Draw numbers as ``_same_for_equal_values``, but 0 for four fifths of the values.

    A good implementation often returns the nearest number, without an error.
    """
    part = _same_for_equal_values(random, x)
    return np.where(np.abs(part) < 0.8, 0.0, part)


_CHANCES: Final = (_independent, _same_for_equal_values, _one_sided, _mostly_zero)
_EXCESS: Final = (0.0, 1.0, 0.0, 0.8)
"""How often half-precision operands keep float32's precision, by runs."""


class _Rounding:
    """Hooks of the interpreter that perturb results within their rounding error.

    ``chance(random, x)`` draws the perturbation of each element of ``x``, from -1 to 1
    times the margin. With the probability ``excess`` an equation reads float16 and
    bfloat16 operands in float32's precision and range. ``counts`` has each loop's
    iterations in the exact run. A loop is stopped at about twice as many, because a
    loop that waits for small terms may never end with random errors.
    """

    def __init__(
        self,
        random: np.random.Generator,
        chance: Callable[[np.random.Generator, Array], Array],
        excess: float,
        counts: Mapping[int, int],
    ) -> None:
        """Store the arguments; see the class."""
        self.random = random
        self.chance = chance
        self.excess = excess
        self.counts = counts

    def limit(self, equation: Equation) -> float:
        """Return the number of iterations at which the loop ``equation`` is stopped."""
        return 2 * self.counts.get(id(equation), 0) + 8

    def iterated(self, equation: Equation, count: int) -> None:
        """Ignore the count of iterations."""

    def operands(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """Round some of the half-precision operands of ``equation``.

        The interpreter has results in float64, which kernels may keep in float32
        instead of rounding to 16 bits. Operands of discontinuous functions (JUMPS), and
        of equations with results of another dtype, are always rounded, others with
        probability ``1 - excess``. If ``excess`` is 0, results have been rounded
        already. A conversion whose param ``excess`` is set reads its operand as it is.
        """
        operand_dtypes = [atom.type.dtype for atom in equation.inputs]
        if not self.excess or not dtypes.HALF_PRECISION.intersection(operand_dtypes):
            return arrays
        gives_halves = all(
            v.type.dtype in dtypes.HALF_PRECISION for v in equation.outputs
        )
        always = not gives_halves or equation.primitive.name in JUMPS
        if equation.params.get("excess"):
            return arrays
        return [
            wide_array(x, dtype)
            if dtype in dtypes.HALF_PRECISION
            and (always or self.random.random() >= self.excess)
            else x
            for x, dtype in zip(arrays, operand_dtypes, strict=True)
        ]

    def results(
        self, equation: Equation, operands: Sequence[Array], arrays: list[Array]
    ) -> list[Array]:
        """Perturb the results of inexact dtypes.

        Results of calls, branches and loops stay, as the equations inside have been
        perturbed.
        """
        primitive = primitive_of(equation)
        if equation.subprograms():
            return arrays
        return [
            self.rounded(primitive, equation, operands, x, v.type.dtype)
            if v.type.dtype in dtypes.INEXACT
            else x
            for x, v in zip(arrays, equation.outputs, strict=True)
        ]

    def rounded(
        self,
        primitive: Primitive,
        equation: Equation,
        operands: Sequence[Array],
        x: Array,
        dtype: DType,
    ) -> Array:
        """Perturb ``x``, an exact result of an equation, and round it to ``dtype``.

        Results that are not finite, that may overflow on the way, or that are 0, get
        the random values that the module's docstring describes.
        """
        with np.errstate(all="ignore"):
            margin = self.margin(primitive, equation, operands, x, dtype)
            if primitive.family == "fourier":
                # Each result of a transform depends on all elements of its row.
                finite = np.isfinite(operands[0]).all(axis=-1, keepdims=True)
                x = np.where(finite, x, np.nan)
            if primitive.family in _WHOLE or np.iscomplexobj(x):
                x = self.any_nonfinite(x)
            if primitive.name in _SUMS:
                x = self.with_any_sign(self.overflowed(x, margin, dtype))
            elif primitive.name == "reduce_prod":
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
        """Replace sums whose partial sums may overflow by NaN, infinity or themselves.

        The ``margin`` of a sum is a multiple of eps times the sum of absolute values,
        so a large margin shows that these may overflow.
        """
        limits = ml_dtypes.finfo(dtypes.compute_dtype(dtypes.real_of(dtype)))
        over = margin >= 2 * float(limits.eps) * float(limits.max)
        kinds = self.random.choice([np.nan, np.inf, -np.inf, 1.0], x.shape)
        return np.where(over, x * kinds, x)

    def with_any_sign(self, x: Array) -> Array:
        """Return ``x`` with a random sign where it is 0.

        The sign of a zero sum depends on the order of its terms. Complex numbers stay.
        """
        if np.iscomplexobj(x):
            return x
        signs = self.random.choice([-1.0, 1.0], x.shape)
        return np.where(x == 0, np.copysign(x, signs), x)

    def in_any_order(
        self, x: Array, factors: Array, axes: tuple[int, ...], dtype: DType
    ) -> Array:
        """Replace products whose partial products may overflow or underflow.

        ``x`` is the product of ``factors`` over ``axes``. If all factors above 1
        together overflow, or all below 1 underflow, some order of the factors does. The
        product then becomes NaN, infinity, 0 or stays, at random.
        """
        logs = np.log2(np.abs(factors).astype(np.float64))
        logs = np.where(np.isfinite(logs), logs, 0.0)
        limits = ml_dtypes.finfo(dtypes.compute_dtype(dtypes.real_of(dtype)))
        above = np.sum(np.maximum(logs, 0.0), axis=axes) >= limits.maxexp - 1
        below = np.sum(np.minimum(logs, 0.0), axis=axes) <= limits.minexp + 1
        kinds = self.random.choice([np.nan, np.inf, -np.inf, 0.0, 1.0], x.shape)
        return np.where(above | below, x * kinds, x)

    def any_nonfinite(self, x: Array) -> Array:
        """Return ``x`` with NaN or an infinity, at random, where it is not finite."""
        kinds = self.random.choice([np.nan, np.inf, -np.inf], x.shape)
        return np.where(np.isfinite(x), x, kinds)

    def margin(
        self,
        primitive: Primitive,
        equation: Equation,
        operands: Sequence[Array],
        x: Array,
        dtype: DType,
    ) -> Array | float:
        """Return the largest absolute error that ``equation`` may add to ``x``.

        ``x`` is the result for ``operands`` in double precision, and ``dtype`` the
        result's dtype. Errors of sums are relative to the sums of absolute values, and
        those of factorisations and transforms to the largest element. Others are 2
        units in the last place, or the primitive's tolerance if that is more. The error
        is 0 for primitives that do not round, and for results that the dtype represents
        exactly.
        """
        if primitive.name in _EXACT or primitive.family in _EXACT_FAMILIES:
            return 0.0
        real = dtypes.real_of(dtype)
        wide = dtypes.compute_dtype(real)
        limits = ml_dtypes.finfo(wide)
        eps = float(limits.eps)
        double = wide == dtypes.float64
        promised = (
            primitive.tolerance.float64 if double else primitive.tolerance.float32
        )
        usual = _DEFAULT.float64 if double else _DEFAULT.float32
        # The error of a sum of n terms, in pairs, grows with log2(n).
        terms = max(2, *(v.size for v in operands)) if operands else 2
        factor: Array | float = math.log2(terms) + 4
        if primitive.name in _ONE_BY_ONE:
            eps = float(ml_dtypes.finfo(real).eps)
            factor = np.maximum(factor, _updates(equation, operands) / 2)
        if primitive.name in _SUMS:
            inexact = [np.issubdtype(v.dtype, np.inexact) for v in operands]
            sizes = [
                np.abs(v) if i else v for v, i in zip(operands, inexact, strict=True)
            ]
            mass = np.asarray(_double(primitive, equation, sizes))
            if _is_small_integer(mass, operands, inexact, eps):
                return 0.0
            return factor * eps * mass
        if primitive.name == "scatter_mul":
            return np.where(_is_number_of(x, real), 0.0, factor * eps * np.abs(x))
        if primitive.family in _WHOLE:
            finite = np.isfinite(x)
            return promised * float(np.max(np.abs(x), initial=0.0, where=finite))
        size = np.abs(x)
        if np.iscomplexobj(x):  # for an infinite number, the size of its finite part
            parts = [np.where(np.isfinite(v), np.abs(v), 0.0) for v in (x.real, x.imag)]
            size = np.where(np.isfinite(size), size, parts[0] + parts[1])
        if (
            primitive.name == "logaddexp"
        ):  # the larger operand and a logarithm may cancel
            size = np.maximum(size, np.maximum(*map(np.abs, operands)))
            size = np.where(np.isfinite(size), size, np.abs(x))
        size = np.minimum(size, float(limits.max) / 2)  # no unit above the largest
        margin = 2 * np.spacing(size.astype(wide)).astype(np.float64)
        if promised > usual:
            margin = np.maximum(margin, promised * size)
        if np.iscomplexobj(x) and primitive.name in _OF_PARTS:
            return margin
        return np.where(_is_number_of(x, wide), 0.0, margin)

    def moved(self, x: Array, margin: Array | float, real: DType) -> Array:
        """Perturb ``x`` at random within ``margin``, then round it to dtype ``real``.

        NaN gets a random sign.
        """
        if real in dtypes.HALF_PRECISION:
            # Computed in float32 and rounded once, to either neighbour.
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


def _double(primitive: Primitive, equation: Equation, operands: Sequence[Array]) -> Any:
    """Compute the result in float64, even if ``preferred_element_type`` is another."""
    params = dict(equation.params)
    if "preferred_element_type" in params:
        params.pop("preferred_element_type")
    return primitive.reference(*operands, **params)


def _updates(equation: Equation, operands: Sequence[Array]) -> Array:
    """Return how many updates a scatter has for each element of its result.

    Scatters ones into zeros, at the same indices.
    """
    x, indices, updates = operands
    zeros, ones = np.zeros(x.shape), np.ones(updates.shape)
    return np.asarray(scatter_add.reference(zeros, indices, ones, **equation.params))


def _is_number_of(x: Array, dtype: DType) -> Array:
    """Return a mask of the elements of ``x`` that ``dtype`` represents exactly.

    For float64 these are the elements that float32 represents: the reference computes
    in float64 itself, so all of its results are float64 numbers, rounded or not.
    """
    exact_dtype = dtypes.float32 if dtype == dtypes.float64 else dtype
    if np.iscomplexobj(x):
        return _is_number_of(x.real, dtype) & _is_number_of(x.imag, dtype)
    return x.astype(exact_dtype).astype(np.float64) == x


def _is_small_integer(
    mass: Array, operands: Sequence[Array], inexact: Sequence[bool], eps: float
) -> bool:
    """Whether every partial sum is an integer that the dtype represents.

    ``mass`` are sums of absolute values, ``inexact`` marks operands of inexact dtypes,
    and ``eps`` is the dtype's precision: integers up to 1 / eps are exact.
    """
    whole = all(
        bool(np.all(v == np.rint(v)))
        for v, i in zip(operands, inexact, strict=True)
        if i
    )
    return whole and bool(np.all(mass <= 1 / eps))
