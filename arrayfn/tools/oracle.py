"""The oracle: a Program's results in float64, and bounds of their errors.

``oracle`` interprets a Program in float64 with exact sums (``device="reference64"``).
It interprets it several times more, and perturbs every result of every equation at
random, by at most the tolerance of that equation: Monte Carlo arithmetic (D. S. Parker,
1997; Verificarlo, 2016). The spread of these runs estimates the error of any
implementation that rounds each equation well, in any order of summation. Unlike a fixed
tolerance, it accounts for cancellation, ill-conditioned matrices, and comparisons that
rounding can decide either way.

* An elementwise result is perturbed by 2 units in the last place of its dtype, or by
  the row's tolerance if that is larger. A result that the dtype represents exactly is
  not perturbed, so that exact computations, as of small integers, stay exact.
* A sum or contraction is perturbed by ``(log2(n) + 4) * eps`` relative to the sum of
  absolute values, where ``n`` is the number of terms (of a window; for a scatter, of
  all updates). Sums of float16 and bfloat16 are float32 until they are rounded, but a
  scatter adds in its own dtype.
* float16 and bfloat16 values keep float32's precision between equations in one half of
  the runs, and are rounded after each equation in the other. They are always rounded
  where anything but half-precision arithmetic reads them.
* A factorisation or transform is perturbed by the row's tolerance, relative to the
  largest element of the result.

The bound is 4 times the largest distance of ``SAMPLES`` runs from the float64 values,
and at least 2 units in the last place. It is an estimate, not a proof: it fails if all
``SAMPLES`` runs stay within a quarter of the error that occurs, which is rare. It is
infinite where integers, bools, infinities or NaN differ between runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from arrayfn import dtypes
from arrayfn.backends.reference.wide import wide_array, widened
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError
from arrayfn.ir import Equation, Program
from arrayfn.primitives.base import Primitive, Tolerance
from arrayfn.primitives.calls import evaluate

Array = np.ndarray[Any, Any]

SAMPLES: Final = 8
_SAFETY: Final = 4.0
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
_WHOLE: Final = frozenset({"linear algebra", "fourier"})


@dataclass(frozen=True)
class Judged:
    """One result: its value in double precision, its dtype, and its error bound."""

    value: Array
    bound: Array
    dtype: DType

    def violations(self, have: Any) -> Array:
        """A mask of the elements of ``have`` that are outside the bound.

        A value that overflows the dtype is infinite; NaN equals NaN.
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
        """Raise AssertionError, with the worst element, if ``have`` is out of bound."""
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
    """The results of ``program`` for ``inputs``, each with an error bound.

    Raises ArgumentError if the inputs do not have the Program's types.

    >>> import numpy as np
    >>> from arrayfn.functions import make_program
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
    most = 10 * exact.count + 1000
    runs: list[list[Any]] = []
    for k in range(samples):
        rounding = _Rounding(random, excess=k % 2 == 1, most=most)
        try:
            runs.append(evaluate(widened(program, rounding), given))
        except _EndlessError:  # rounding decides when a loop ends
            runs.append([np.full(np.shape(value), np.nan) for value in values])
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
        # A value that overflows the dtype in all runs overflows in the result.
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
        smallest = 2 * (float(limits.eps) * size + float(limits.smallest_subnormal))
        bound = np.where(agreed, 0.0, np.maximum(_SAFETY * distance, smallest))
        return Judged(value, bound, dtype)


class _EndlessError(Exception):
    """A run with rounded results has many more equations than the exact one."""


class _Exact:
    """Does not perturb results; counts equations."""

    count = 0

    def operands(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """As they are."""
        return arrays

    def results(
        self, equation: Equation, operands: Sequence[Array], arrays: list[Array]
    ) -> list[Array]:
        """As they are."""
        self.count += 1
        return arrays


class _Rounding:
    """Perturbs the results of up to ``most`` equations at random."""

    def __init__(self, random: np.random.Generator, excess: bool, most: int) -> None:
        self.random = random
        self.most = most
        self.excess = excess  # 16-bit floats keep float32's precision and range

    def operands(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """Round float16 and bfloat16 operands that other dtypes are computed from."""
        given = [atom.type.dtype for atom in equation.inputs]
        if not self.excess or not dtypes.HALVES.intersection(given):
            return arrays
        if all(v.type.dtype in dtypes.HALVES for v in equation.outputs):
            return arrays
        return [
            wide_array(x, dtype) if dtype in dtypes.HALVES else x
            for x, dtype in zip(arrays, given, strict=True)
        ]

    def results(
        self, equation: Equation, operands: Sequence[Array], arrays: list[Array]
    ) -> list[Array]:
        """Perturb inexact results. Raises _EndlessError after too many equations."""
        self.most -= 1
        if self.most < 0:
            raise _EndlessError
        row = equation.primitive
        assert isinstance(row, Primitive)
        if equation.subprograms():
            return arrays  # its equations have been perturbed
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
            if self.excess:
                dtype = dtypes.compute_dtype(dtype)
            if np.iscomplexobj(x):
                real = self.moved(x.real, margin, dtypes.real_of(dtype))
                return real + 1j * self.moved(x.imag, margin, dtypes.real_of(dtype))
            return self.moved(x, margin, dtype)

    def margin(
        self,
        row: Primitive,
        equation: Equation,
        operands: Sequence[Array],
        x: Array,
        dtype: DType,
    ) -> Array | float:
        """The largest absolute error of ``x`` by this equation; 0 if it is exact."""
        real = dtypes.real_of(dtype)
        wide = dtypes.compute_dtype(real)
        eps = float(ml_dtypes.finfo(wide).eps)
        double = wide == dtypes.float64
        promised = row.tolerance.float64 if double else row.tolerance.float32
        usual = _DEFAULT.float64 if double else _DEFAULT.float32
        if row.name in _SUMS:
            if row.name == "scatter_add":
                eps = float(ml_dtypes.finfo(real).eps)  # adds to memory one by one
            inexact = [np.issubdtype(v.dtype, np.inexact) for v in operands]
            sizes = [
                np.abs(v) if i else v for v, i in zip(operands, inexact, strict=True)
            ]
            mass = np.asarray(_double(row, equation, sizes))
            if _is_small_integer(mass, operands, inexact, eps):
                return 0.0
            terms = max(2, *(v.size for v in operands))
            return (math.log2(terms) + 4) * eps * mass
        if row.family in _WHOLE:
            finite = np.isfinite(x)
            return promised * float(np.max(np.abs(x), initial=0.0, where=finite))
        size = np.abs(x)
        if row.name == "logaddexp":  # the larger operand and a logarithm may cancel
            size = np.maximum(size, np.maximum(*map(np.abs, operands)))
            size = np.where(np.isfinite(size), size, np.abs(x))
        margin = 2 * np.spacing(size.astype(wide)).astype(np.float64)
        if promised > usual:
            margin = np.maximum(margin, promised * size)
        return np.where(_is_number_of(x, wide), 0.0, margin)

    def moved(self, x: Array, margin: Array | float, real: DType) -> Array:
        """``x`` perturbed within the margin, rounded to the dtype."""
        if real in dtypes.HALVES:
            # Computed in float32 and rounded once, to either neighbour.
            units = np.abs(x) * float(ml_dtypes.finfo(real).eps) / 2
            margin = np.where(_is_number_of(x, real), margin, margin + units)
        part = self.random.uniform(-1.0, 1.0, x.shape)
        moved = np.where(np.isfinite(x), x + part * margin, x)
        return wide_array(moved, real)


def _double(row: Primitive, equation: Equation, operands: Sequence[Array]) -> Any:
    params = dict(equation.params)
    if "preferred_element_type" in params:
        params.pop("preferred_element_type")
    return row.reference(*operands, **params)


def _is_number_of(x: Array, dtype: DType) -> Array:
    """A mask of the elements that ``dtype`` represents, so nothing was rounded.

    For float64, in which all is computed, these are the elements that float32 has.
    """
    known = dtypes.float32 if dtype == dtypes.float64 else dtype
    if np.iscomplexobj(x):
        return _is_number_of(x.real, dtype) & _is_number_of(x.imag, dtype)
    return x.astype(known).astype(np.float64) == x


def _is_small_integer(
    mass: Array, operands: Sequence[Array], inexact: Sequence[bool], eps: float
) -> bool:
    """Whether every partial sum is an integer that the dtype represents."""
    whole = all(
        bool(np.all(v == np.rint(v)))
        for v, i in zip(operands, inexact, strict=True)
        if i
    )
    return whole and bool(np.all(mass <= 1 / eps))
