"""What a Program should give: in its own dtypes, in float64, and how uncertain that is.

``evaluated`` interprets a Program with all floats in float64. With ``noise`` each
rounding becomes a random relative error of a few units of the declared dtype, so that
several runs show how far any correct implementation may be from the exact result: the
error bound of this program on these values. A result that a dtype holds exactly is not
disturbed, nor is a sum of few bits, so ties and integers stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import Equation, Program, Var
from arrayfn.primitives.base import Primitive

Array = np.ndarray[Any, Any]

RUNS: Final = 4
FACTOR: Final = 8.0
"""How far from the noisy runs' spread a result may be."""
_OWN: Final = 16.0
"""How many times the bound the reference's own error may be, to be counted in it."""

_UNITS: Final = 2.0
_UNITS_OF: Final = {
    **dict.fromkeys(
        (
            *("lgamma", "digamma", "erfinv", "pow", "erfc", "tan", "cosh", "sinh"),
            *("asinh", "acosh", "atanh", "logaddexp", "log1p", "expm1", "fft"),
        ),
        8.0,
    ),
    **dict.fromkeys(
        (
            *("solve", "lu", "cholesky", "triangular_solve", "qr", "svd", "svdvals"),
            *("eigh", "eigvalsh", "eig", "eigvals", "hessenberg", "schur"),
        ),
        16.0,
    ),
}
_SUMS: Final = frozenset(
    (
        *("reduce_sum", "reduce_prod", "cumsum", "cumprod", "dot_general", "fft"),
        *("conv_general", "padded_convolution", "scatter_add", "scatter_mul"),
        *("reduce_window_sum", "solve", "lu", "cholesky", "triangular_solve", "qr"),
        *("svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals", "window_put"),
        *("hessenberg", "schur", "tridiagonal"),
    )
)
_PADDED: Final = frozenset(("conv_general", "padded_convolution"))
_OF_BITS: Final = frozenset(("bitcast", "nextafter"))
"""What depends on how a dtype stores a number: computed in that dtype."""


class Evaluation:
    """One run of Programs in float64; ``rng`` draws the noise, None for none.

    ``undefined`` stands for what a convolution makes of operands that are not finite:
    products of those with padding may be left out, or be NaN.
    """

    def __init__(
        self, rng: np.random.Generator | None, undefined: float | None = None
    ) -> None:
        self.rng = rng
        self.undefined = undefined

    def run(self, program: Program, operands: Sequence[Any]) -> list[Any]:
        values: dict[Var, Any] = {}
        constants = zip(program.constants, program.constant_values, strict=True)
        given = zip(program.inputs, operands, strict=True)
        values.update((var, widened(np.asarray(x))) for var, x in (*given, *constants))
        for equation in program.equations:
            operands = [self._value(a, values) for a in equation.inputs]
            results = self._apply(equation, operands)
            for var, y in zip(equation.outputs, results, strict=True):
                values[var] = y
        return [self._value(a, values) for a in program.outputs]

    def _value(self, atom: Any, values: dict[Var, Any]) -> Any:
        if isinstance(atom, Var):
            return values[atom]
        return widened(np.asarray(atom.value).astype(atom.type.dtype))

    def _apply(self, equation: Equation, operands: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        body = params.get("body")
        if isinstance(body, Program):
            return self.run(body, operands)
        if name == "cond":
            branches = params["branches"]
            index = min(max(int(operands[0]), 0), len(branches) - 1)
            return self.run(branches[index], operands[1:])
        if name == "while_loop":
            return self._while(params, operands)
        if name == "scan":
            return self._scan(params, operands)
        return self._primitive(equation, operands)

    def _while(self, params: Any, operands: list[Any]) -> list[Any]:
        first = params["cond_consts"]
        second = first + params["body_consts"]
        carry = operands[second:]
        while self.run(params["cond_program"], [*operands[:first], *carry])[0]:
            carry = self.run(params["body_program"], [*operands[first:second], *carry])
        return carry

    def _scan(self, params: Any, operands: list[Any]) -> list[Any]:
        program, length = params["program"], params["length"]
        consts, carried = params["consts"], params["carry"]
        fixed = operands[:consts]
        carry, xs = operands[consts : consts + carried], operands[consts + carried :]
        types = program.output_types[carried:]
        ys = [widened(np.zeros((length, *t.shape), t.dtype)) for t in types]
        turns = range(length)
        for turn in reversed(turns) if params["reverse"] else turns:
            results = self.run(program, [*fixed, *carry, *[x[turn] for x in xs]])
            carry = results[:carried]
            for y, value in zip(ys, results[carried:], strict=True):
                y[turn] = value
        return [*carry, *ys]

    def _primitive(self, equation: Equation, operands: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        row = equation.primitive
        assert isinstance(row, Primitive)
        types = [a.type for a in equation.inputs]
        if name == "convert" and _both_float(types[0].dtype, params["dtype"]):
            results = [operands[0].astype(_wide(params["dtype"]))]
        else:
            if name in _OF_BITS or row.family == "control":
                pairs = zip(operands, types, strict=True)
                operands = [np.asarray(x).astype(t.dtype) for x, t in pairs]
            elif self.rng is not None and name in _SUMS:
                pairs = zip(operands, types, strict=True)
                operands = [self._disturbed_term(x, t.dtype) for x, t in pairs]
            with np.errstate(all="ignore"):
                result = row.reference(*operands, **params)
            results = list(result) if isinstance(result, (tuple, list)) else [result]
        if name in _PADDED and self.undefined is not None:
            with np.errstate(all="ignore"):
                if not all(np.isfinite(x).all() for x in operands):
                    results = [np.full_like(y, self.undefined) for y in results]
        outputs = [v.type.dtype for v in equation.outputs]
        return [
            self._rounded(np.asarray(y), dtype, _UNITS_OF.get(name, _UNITS))
            for y, dtype in zip(results, outputs, strict=True)
        ]

    def _rounded(self, y: Array, dtype: Any, units: float) -> Array:
        """``y`` as float64, with noise where ``dtype`` does not hold it exactly."""
        if dtype not in dtypes.INEXACT:
            return y.astype(dtype)
        y = widened(y)
        if self.rng is None or not y.size:
            return y
        with np.errstate(all="ignore"):
            if dtype in (np.float64, np.complex128):
                inexact = y * 2.0**20 != np.rint(np.real(y) * 2.0**20)
            else:
                inexact = y.astype(dtype).astype(y.dtype) != y
            noise = units * eps(dtype) * self.rng.uniform(-1, 1, y.shape)
            # Below the normal numbers errors are of a fixed size.
            floor = units * smallest(dtype) * self.rng.uniform(-1, 1, y.shape)
            return np.where(inexact & np.isfinite(y), y * (1 + noise) + floor, y)

    def _disturbed_term(self, x: Array, dtype: Any) -> Array:
        if dtype not in dtypes.INEXACT or not x.size:
            return x
        assert self.rng is not None
        with np.errstate(all="ignore"):
            mass = np.sum(np.abs(x))
            steps = np.real(x) * 64
            if np.iscomplexobj(x) is False and np.all(steps == np.rint(steps)):
                if mass * 64 * eps(dtype) < 1:
                    return x
            noise = _UNITS * eps(dtype) * self.rng.uniform(-1, 1, x.shape)
            return np.where(np.isfinite(x), x * (1 + noise), x)


def eps(dtype: Any) -> float:
    """The spacing of a dtype's numbers at 1."""
    return {2: 2.0**-10, 4: 2.0**-23, 8: 2.0**-52}[_real(dtype).itemsize] * (
        8.0 if dtype == dtypes.bfloat16 else 1.0
    )


def smallest(dtype: Any) -> float:
    """The least positive number of a dtype."""
    if dtype == dtypes.bfloat16:
        return 2.0**-133
    return {2: 2.0**-24, 4: 2.0**-149, 8: 0.0}[_real(dtype).itemsize]


def _real(dtype: Any) -> np.dtype[Any]:
    return np.dtype(dtypes.real_of(np.dtype(dtype)))


def _wide(dtype: Any) -> Any:
    return np.complex128 if np.dtype(dtype) in dtypes.COMPLEX else np.float64


def _both_float(a: Any, b: Any) -> bool:
    return a in dtypes.INEXACT and b in dtypes.INEXACT


def widened(x: Array) -> Array:
    """Floats as float64, complex numbers as complex128; a copy."""
    return x.astype(_wide(x.dtype)) if x.dtype in dtypes.INEXACT else x


class Expected:
    """What a Program gives on its operands, and how certain that is."""

    def __init__(self, program: Program, operands: Sequence[Any], own: Sequence[Any]):
        self.program = program
        self.operands = operands
        self.own = [np.asarray(y) for y in own]
        try:
            self.exact = Evaluation(None).run(program, operands)
        except (ArithmeticError, TypeError, ValueError, np.linalg.LinAlgError):
            self.exact = None
        self._noisy: list[list[Any]] | None = None

    @property
    def noisy(self) -> list[list[Any]]:
        """Some runs with noise."""
        if self._noisy is None:
            self._noisy = []
            for seed in range(RUNS):
                rng = np.random.default_rng(seed)
                try:
                    undefined = np.nan if seed % 2 else 0.0
                    noisy = Evaluation(rng, undefined)
                    found = noisy.run(self.program, self.operands)
                except (ArithmeticError, np.linalg.LinAlgError, IndexError):
                    continue
                self._noisy.append(found)
        return self._noisy

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
                exact = self.exact[k][at] if self.exact is not None else "?"
                return (
                    f"result {k}{list(at)} is {have[at]!r} instead of {want[at]!r} "
                    f"(in float64 {exact!r}); {int(wrong.sum())} of {want.size} wrong"
                )
        return None

    def wrong(self, k: int, have: Array) -> Array:
        """Which elements of result ``k`` are wrong."""
        own = self.own[k]
        if own.dtype not in dtypes.INEXACT:
            wrong = np.asarray(have != own)
            if wrong.any() and self.exact is not None:
                for run in self.noisy:  # decided by rounding
                    wrong &= np.asarray(run[k]) == own
                wrong &= np.asarray(self.exact[k]) == own
            return wrong
        have, own = widened(have), widened(own)
        exact = own if self.exact is None else np.asarray(self.exact[k])
        unit = eps(self.own[k].dtype)
        with np.errstate(all="ignore"):
            same = (have == own) | (np.isnan(have) & np.isnan(own))
            finite = np.isfinite(have) & np.isfinite(own)
            # An overflow of the dtype, or of what stands before, is the reference's.
            centre = np.where(np.isfinite(exact), exact, own)
            near = np.abs(have - centre) <= 4 * unit * np.abs(centre)
            wrong = np.where(finite, ~near, ~same)
            if not wrong.any():
                return wrong
            return wrong & ~self._within(k, have, own, centre, unit)

    def _within(
        self, k: int, have: Array, own: Array, centre: Array, unit: float
    ) -> Array:
        """Where ``have`` is as near as rounding allows."""
        spread = np.zeros(centre.shape)
        unstable = np.zeros(centre.shape, bool)
        for run in self.noisy:
            y = np.asarray(run[k])
            off = np.abs(y - centre)
            known = np.isfinite(off)
            spread = np.maximum(spread, np.where(known, off, 0))
            unstable |= np.isfinite(y) != np.isfinite(centre)
        bound = FACTOR * spread + 8 * unit * np.abs(centre)
        bound += 8 * smallest(self.own[k].dtype)
        # NumPy's own error says something of the bound too, if it is not far from it.
        own_error = np.where(np.isfinite(own), np.abs(own - centre), 0)
        bound += np.where(own_error <= _OWN * bound, 4 * own_error, 0)
        near = np.abs(have - centre) <= bound
        limit = 0.1 * largest(self.own[k].dtype)
        overflows = np.abs(centre) + bound >= limit
        return near | unstable | (overflows & ~np.isfinite(have))


def largest(dtype: Any) -> float:
    """The greatest number of a dtype."""
    if dtype == dtypes.bfloat16:
        return 3.3895e38
    return float(np.finfo(_real(dtype)).max)
