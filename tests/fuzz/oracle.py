"""What a Program should give, and which results are further from that than rounding.

A result is right that is within a few units of float64's. What is further is judged by
``arrayfn.tools.oracle``: by the bound that random roundings of every equation show for
this Program and these operands. Few runs tell most; where they do not explain a result,
many do: near a jump few may fall on the other side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from arrayfn import dtypes
from arrayfn.backends.reference.wide import wide_array, wide_dtype, widened
from arrayfn.ir import Program
from arrayfn.primitives.calls import evaluate
from arrayfn.tools.oracle import Judged, oracle
from arrayfn.transforms.dce import dce

Array = np.ndarray[Any, Any]

RUNS: Final = (8, 40, 200)
UNITS: Final = 4.0
"""How many units in the last place need no bound."""

OWN: Final = 16.0
"""How many times the bound the reference's own error may be, to be counted in it."""

PADDED: Final = ("conv_general", "padded_convolution")
"""Products of padding with what is not finite may be left out, or be NaN."""


def in_float64(program: Program, operands: Sequence[Any]) -> list[Any]:
    """What ``program`` gives in double precision."""
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in evaluate(widened(program), operands)]


def wide(x: Array) -> Array:
    """Floats as float64, complex numbers as complex128."""
    return x.astype(wide_dtype(x.dtype))


class Expected:
    """What a Program gives on its operands, and how certain that is."""

    def __init__(
        self, program: Program, operands: Sequence[Any], own: Sequence[Any]
    ) -> None:
        self.program = program
        self.operands = list(operands)
        self.own = [np.asarray(y) for y in own]
        pairs = zip(operands, program.input_types, strict=True)
        self.exact = in_float64(program, [wide_array(x, t.dtype) for x, t in pairs])
        self._judged: dict[tuple[int, int], Judged] = {}

    def faults(self, results: Sequence[Any]) -> str | None:
        """What is wrong with ``results``; None if nothing."""
        if len(results) != len(self.own):
            return f"{len(results)} results instead of {len(self.own)}"
        for k, (have, want) in enumerate(zip(results, self.own, strict=True)):
            have = np.asarray(have)
            if (have.shape, have.dtype) != (want.shape, want.dtype):
                return (
                    f"result {k} is {have.dtype}{list(have.shape)} instead of "
                    f"{want.dtype}{list(want.shape)}"
                )
            wrong = self.wrong(k, have)
            if wrong.any():
                at = tuple(int(n) for n in np.argwhere(wrong)[0])
                return (
                    f"result {k}{list(at)} is {have[at]!r} instead of {want[at]!r} (in "
                    f"float64 {self.exact[k][at]!r}); {int(wrong.sum())} of "
                    f"{want.size} wrong"
                )
        return None

    def wrong(self, k: int, have: Array) -> Array:
        """Which elements of result ``k`` are wrong."""
        wrong = self._far(k, have)
        if wrong.any() and self._is_undefined():
            return np.zeros_like(wrong)
        for runs in RUNS:
            if not wrong.any():
                break
            wrong &= self._out_of_bounds(k, have, runs)
        return wrong

    def _far(self, k: int, have: Array) -> Array:
        """Which elements are not what the reference or float64 gives, to few units."""
        own, exact = self.own[k], self.exact[k]
        if own.dtype in dtypes.FLOAT8:
            given, own = have.astype(np.float32), own.astype(np.float32)
            return (given != own) & ~(np.isnan(given) & np.isnan(own))
        if own.dtype not in dtypes.INEXACT:
            return np.asarray(have != own)
        with np.errstate(all="ignore"):
            given, own = wide(have), wide(own)
            same = (given == own) | (np.isnan(given) & np.isnan(own))
            # An overflow of the dtype, or of what stands before, is the reference's.
            finite = np.isfinite(own) & np.isfinite(exact)
            unit = float(ml_dtypes.finfo(dtypes.real_of(have.dtype)).eps)
            near = np.abs(given - exact) <= UNITS * unit * np.abs(exact)
            return np.where(finite, ~near, ~same)

    def _out_of_bounds(self, k: int, have: Array, runs: int) -> Array:
        if (k, runs) not in self._judged:
            output = (self.program.outputs[k],)
            needed = dce(dataclasses.replace(self.program, outputs=output))
            (self._judged[k, runs],) = oracle(
                needed, self.operands, samples=runs, seed=runs
            )
        judged = self._judged[k, runs]
        wrong = judged.violations(have)
        if have.dtype not in dtypes.INEXACT:
            return wrong
        with np.errstate(all="ignore"):
            # NumPy's own error says something of the bound too, if it is near it.
            own_error = np.abs(wide(self.own[k]) - judged.value)
            within = np.abs(wide(have) - judged.value) <= judged.bound + 4 * own_error
            return wrong & ~(within & (own_error <= OWN * judged.bound))

    def _is_undefined(self) -> bool:
        values = [*self.operands, *self.program.constant_values]
        if all(np.isfinite(wide(np.asarray(x))).all() for x in values):
            return False
        text = str(self.program)
        return any(name in text for name in PADDED)
