"""The table of scalar functions: the source of truth for names and types.

``SCALARS["exp_f32"]`` is callable on Python and NumPy scalars and on NumPy arrays;
backends emit its ``formula``. A name is the function and its arguments' dtype; a
conversion's is ``convert_FROM_TO`` or, by bits, ``bitcast_FROM_TO``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn.lowering.scalars import (
    complex_inverses,
    complexes,
    conversions,
    error_functions,
    exponential,
    gamma,
    hyperbolic,
    integers,
    inverse_trigonometric,
    powers,
    rounding,
    trigonometric,
)
from arrayfn.lowering.scalars.arithmetic import (
    COMPLEXES,
    FLOATS,
    HALF_PRECISION,
    INTEGERS,
    REAL_PART,
    Arithmetic,
    Formula,
    Value,
)
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES, NumpyArithmetic
from arrayfn.records import frozen

NUMPY = NumpyArithmetic()


@frozen(slots=True, eq=False)
class ScalarFunction:
    """A function of the scalar vocabulary.

    ``arguments`` and ``result`` are dtype names; ``f16`` and ``bf16`` values are the
    ``u16`` of their bits. ``formula(m, *arguments)`` takes and returns complex values
    as tuples (real, imaginary). Called, the function computes with NumPy.
    """

    name: str
    arguments: tuple[str, ...]
    result: str
    formula: Formula

    def __call__(self, *arguments: Any) -> Any:
        """Compute on scalars or arrays, which are converted to the argument dtypes.

        Raises TypeError for a wrong number of arguments.
        """
        if len(arguments) != len(self.arguments):
            raise TypeError(
                f"{self.name} takes {len(self.arguments)} arguments "
                f"({', '.join(self.arguments)}), not {len(arguments)}"
            )
        with np.errstate(all="ignore"):
            values = map(_unpack, self.arguments, arguments)
            return _pack(self.result, self.formula(NUMPY, *values))

    @override
    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.arguments)}) -> {self.result}"


def _unpack(dtype: str, x: Any) -> Value:
    """Convert an argument ``x`` of ``dtype`` to the value that formulas take.

    A complex number becomes its two parts, a half-precision number the u16 of its bits.
    """
    if dtype in HALF_PRECISION:
        # A float16 or bfloat16 array is viewed as its bits; numbers are bits already.
        if hasattr(x, "dtype") and x.dtype != np.uint16 and x.dtype.itemsize == 2:
            return x.view(np.uint16)
        dtype = "u16"
    target = DTYPES[dtype]
    if isinstance(x, np.ndarray):
        x = x.astype(target, copy=False)
    elif type(x) is not target.type:
        x = target.type(x)
    if dtype in COMPLEXES:
        return x.real, x.imag
    return x


def _pack(dtype: str, result: Value) -> Any:
    """Convert a formula's result to NumPy; a complex one is joined from its parts."""
    if dtype not in COMPLEXES:
        return result
    real, imaginary = result
    if isinstance(real, np.ndarray):
        packed = np.empty(real.shape, DTYPES[dtype])
        packed.real, packed.imag = real, imaginary
        return packed
    packed = np.empty(1, DTYPES[dtype])
    packed.real, packed.imag = real, imaginary
    return packed[0]


def _infix(function: Callable[[Value, Value], Value]) -> Formula:
    """Make the formula of a Python operator of two values, such as ``operator.add``."""
    return lambda m, x, y: function(x, y)


def _unary(function: Callable[[Value], Value]) -> Formula:
    """Make the formula of a Python operator of one value, such as ``operator.neg``."""
    return lambda m, x: function(x)


COMPARISONS = {
    name: _infix(getattr(operator, name))
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
BITS = {
    "and": _infix(operator.and_),
    "or": _infix(operator.or_),
    "xor": _infix(operator.xor),
}
RING = {
    "add": _infix(operator.add),
    "sub": _infix(operator.sub),
    "mul": _infix(operator.mul),
}


def _accumulate(operation: str) -> Formula:
    """Make the formula of one step of a reduction by ``operation``.

    ``operation`` is "add", "mul", "max" or "min".
    """

    def formula(m: Arithmetic, x: Value, y: Value) -> Value:
        """Combine the result so far, ``x``, and a term ``y``."""
        return m.accumulate(operation, x, y)

    return formula


@frozen
class _Kind:
    """The functions for one kind of dtype, grouped by their operands and results.

    Attributes:
        unary, binary, ternary: functions of one, two or three numbers of a dtype, whose
            result has that dtype.
        tests: functions of one number whose result is a bool.
        comparisons: functions of two numbers whose result is a bool.
        parts: functions of one complex number whose result is real.
    """

    unary: Mapping[str, Formula]
    binary: Mapping[str, Formula]
    ternary: Mapping[str, Formula] = field(default_factory=dict[str, Formula])
    tests: Mapping[str, Formula] = field(default_factory=dict[str, Formula])
    comparisons: Mapping[str, Formula] = field(default_factory=lambda: COMPARISONS)
    parts: Mapping[str, Formula] = field(default_factory=dict[str, Formula])

    def functions(self, dtype: str) -> Iterator[ScalarFunction]:
        """Yield the functions for one dtype of this kind."""
        for formulas, count, result in (
            (self.unary, 1, dtype),
            (self.binary, 2, dtype),
            (self.ternary, 3, dtype),
            (self.tests, 1, "bool"),
            (self.comparisons, 2, "bool"),
            (self.parts, 1, REAL_PART.get(dtype, dtype)),
        ):
            for name, formula in formulas.items():
                yield ScalarFunction(
                    f"{name}_{dtype}", (dtype,) * count, result, formula
                )


_FLOAT: Final = _Kind(
    unary={
        "neg": _unary(operator.neg),
        "abs": lambda m, x: m.abs(x),
        "sign": rounding.sign,
        "reciprocal": lambda m, x: 1.0 / x,
        "square": lambda m, x: x * x,
        "sqrt": lambda m, x: m.sqrt(x),
        "rsqrt": powers.rsqrt,
        "cbrt": powers.cbrt,
        "exp": exponential.exp,
        "exp2": exponential.exp2,
        "expm1": exponential.expm1,
        "log": exponential.log,
        "log2": exponential.log2,
        "log10": exponential.log10,
        "log1p": exponential.log1p,
        "logistic": exponential.logistic,
        "sin": trigonometric.sin,
        "cos": trigonometric.cos,
        "tan": trigonometric.tan,
        "asin": inverse_trigonometric.asin,
        "acos": inverse_trigonometric.acos,
        "atan": inverse_trigonometric.atan,
        "sinh": hyperbolic.sinh,
        "cosh": hyperbolic.cosh,
        "tanh": hyperbolic.tanh,
        "asinh": hyperbolic.asinh,
        "acosh": hyperbolic.acosh,
        "atanh": hyperbolic.atanh,
        "erf": error_functions.erf,
        "erfc": error_functions.erfc,
        "erfinv": error_functions.erfinv,
        "ndtr": error_functions.ndtr,
        "lgamma": gamma.lgamma,
        "digamma": gamma.digamma,
        "floor": lambda m, x: m.floor(x),
        "ceil": lambda m, x: m.ceil(x),
        "trunc": lambda m, x: m.trunc(x),
        "round": lambda m, x: m.rint(x),
    },
    binary={
        **RING,
        "div": _infix(operator.truediv),
        "atan2": inverse_trigonometric.atan2,
        "pow": powers.pow,
        "hypot": powers.hypot,
        "remainder": rounding.remainder,
        "fmod": rounding.fmod,
        "floordiv": rounding.floordiv,
        "max": rounding.maximum,
        "min": rounding.minimum,
        "nextafter": rounding.nextafter,
        "copysign": rounding.copysign,
        "logaddexp": exponential.logaddexp,
        **{f"accumulate_{o}": _accumulate(o) for o in ("add", "mul", "max", "min")},
    },
    ternary={"fma": lambda m, x, y, z: m.fma(x, y, z), "clamp": rounding.clamp},
    tests={
        "signbit": rounding.signbit,
        "isfinite": rounding.isfinite,
        "isinf": rounding.isinf,
        "isnan": rounding.isnan,
    },
)
_INTEGER: Final = _Kind(
    unary={
        "neg": lambda m, x: 0 - x,
        "abs": integers.absolute,
        "sign": integers.sign,
        "square": lambda m, x: x * x,
        "not": _unary(operator.invert),
        "popcount": lambda m, x: m.popcount(x),
        "clz": lambda m, x: m.leading_zeros(x),
    },
    binary={
        **RING,
        **BITS,
        "floordiv": integers.floordiv,
        "remainder": integers.remainder,
        "div": integers.trunc_div,
        "fmod": integers.trunc_rem,
        "trunc_rem": integers.trunc_rem,
        "max": integers.maximum,
        "min": integers.minimum,
        "shift_left": integers.shift_left,
        "shift_right": integers.shift_right,
        "shift_right_logical": integers.shift_right_logical,
        "pow": integers.pow,
        "accumulate_add": RING["add"],
        "accumulate_mul": RING["mul"],
        "accumulate_max": integers.maximum,
        "accumulate_min": integers.minimum,
        **{f"accumulate_{name}": formula for name, formula in BITS.items()},
    },
    ternary={"clamp": integers.clamp},
)
# False < True, as in NumPy: max is or, min is and.
_OF_BOOLS: Final = {
    **BITS,
    "max": BITS["or"],
    "min": BITS["and"],
    "add": BITS["or"],
    "mul": BITS["and"],
}
_BOOL: Final = _Kind(
    unary={"not": _unary(operator.invert)},
    binary=_OF_BOOLS
    | {f"accumulate_{name}": formula for name, formula in _OF_BOOLS.items()},
)
_COMPLEX: Final = _Kind(
    unary={
        "neg": complexes.neg,
        "square": complexes.square,
        "conj": complexes.conj,
        "reciprocal": complexes.reciprocal,
        "sign": complexes.sign,
        "exp": complexes.exp,
        "log": complexes.log,
        "sqrt": complexes.sqrt,
        "sin": complexes.sin,
        "cos": complexes.cos,
        "tan": complexes.tan,
        "sinh": complexes.sinh,
        "cosh": complexes.cosh,
        "tanh": complexes.tanh,
        "asin": complex_inverses.asin,
        "acos": complex_inverses.acos,
        "atan": complex_inverses.atan,
        "asinh": complex_inverses.asinh,
        "acosh": complex_inverses.acosh,
        "atanh": complex_inverses.atanh,
        "expm1": complex_inverses.expm1,
        "log1p": complex_inverses.log1p,
    },
    binary={
        "add": complexes.add,
        "sub": complexes.sub,
        "mul": complexes.mul,
        "div": complexes.div,
        "pow": complexes.pow,
        "accumulate_add": lambda m, x, y: tuple(
            m.accumulate("add", a, b) for a, b in zip(x, y, strict=True)
        ),
        "accumulate_mul": complexes.mul,
    },
    tests={
        "isfinite": complexes.isfinite,
        "isinf": complexes.isinf,
        "isnan": complexes.isnan,
    },
    comparisons={"eq": complexes.eq, "ne": complexes.ne},
    parts={
        "abs": complexes.absolute,
        "angle": complexes.angle,
        "real": lambda m, x: x[0],
        "imag": lambda m, x: x[1],
    },
)


def _convert(source: str, target: str) -> Formula:
    """Make the formula that converts a value of dtype ``source`` to ``target``."""
    real_source = REAL_PART.get(source, source)

    def formula(m: Arithmetic, x: Value) -> Value:
        """Convert ``x`` from ``source`` to ``target``.

        A complex number loses its imaginary part in a real dtype. As a bool it is true
        if one of its parts is not 0. ``real_source`` is the dtype of x or of its parts.
        """
        if target in COMPLEXES:
            part = REAL_PART[target]
            if source in COMPLEXES:
                return tuple(conversions.real(m, v, real_source, part) for v in x)
            return conversions.real(m, x, source, part), m.constant(part, 0.0)
        if source in COMPLEXES:
            if target == "bool":
                return (x[0] != 0.0) | (x[1] != 0.0)
            x = x[0]
        return conversions.real(m, x, real_source, target)

    return formula


def _functions() -> Iterator[ScalarFunction]:
    """Yield all functions except bitcasts, for each dtype that they take."""
    kinds = {
        **dict.fromkeys(FLOATS, _FLOAT),
        **dict.fromkeys(INTEGERS, _INTEGER),
        "bool": _BOOL,
        **dict.fromkeys(COMPLEXES, _COMPLEX),
    }
    for t, kind in kinds.items():
        yield from kind.functions(t)
        choose = complexes.select if t in COMPLEXES else _select
        yield ScalarFunction(f"select_{t}", ("bool", t, t), t, choose)
    for t, real in REAL_PART.items():
        yield ScalarFunction(f"complex_{real}", (real, real), t, lambda m, x, y: (x, y))
    for word in range(2):
        yield ScalarFunction(
            f"threefry2x32_{word}", ("u32",) * 4, "u32", _threefry_word(word)
        )
    dtypes = ("bool", *INTEGERS, *HALF_PRECISION, *FLOATS, *COMPLEXES)
    for source in dtypes:
        for target in dtypes:
            yield ScalarFunction(
                f"convert_{source}_{target}",
                (source,),
                target,
                _convert(source, target),
            )


def _bitcasts() -> Iterator[ScalarFunction]:
    """Yield the functions that reinterpret bits as another dtype of the same size."""
    sizes = {t: DTYPES[t].itemsize for t in (*INTEGERS, *FLOATS, *COMPLEXES)}
    sizes["bool"] = 1
    for source, size in sizes.items():
        for target, target_size in sizes.items():
            if source != target and target_size == size:
                name = f"bitcast_{source}_{target}"
                yield ScalarFunction(name, (source,), target, _bitcast(source, target))


def _bitcast(source: str, target: str) -> Formula:
    """Make the formula that reinterprets the bits of ``source`` as ``target``."""
    return lambda m, x: conversions.bitcast(m, x, source, target)


def _select(m: Arithmetic, condition: Value, x: Value, y: Value) -> Value:
    """Return ``x`` where ``condition`` holds, else ``y``; the formula for reals."""
    return m.select(condition, x, y)


def _threefry_word(word: int) -> Formula:
    """Make the formula of word ``word``, 0 or 1, of a Threefry block."""

    def formula(m: Arithmetic, *arguments: Value) -> Value:
        """Return the word; ``arguments`` are two words of key and two of counter."""
        return integers.threefry2x32(m, *arguments)[word]

    return formula


SCALARS: dict[str, ScalarFunction] = {f.name: f for f in (*_functions(), *_bitcasts())}
"""All functions, by name."""
