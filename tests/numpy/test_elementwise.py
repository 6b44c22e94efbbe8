"""Elementwise functions: values, dtypes and broadcasting are NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn.numpy as anp

DTYPES = ["bool", "int8", "int32", "int64", "uint8", "uint32", "float16", "float32"]
DTYPES += ["float64", "complex128"]


def values(dtype: str, shape: tuple[int, ...], seed: int, low: float, high: float):
    rng = np.random.default_rng(seed)
    x = rng.uniform(low, high, shape)
    if dtype == "bool":
        return x > (low + high) / 2
    if dtype.startswith("complex"):
        return (x + 1j * rng.uniform(low, high, shape)).astype(dtype)
    if "int" in dtype:
        low = max(low, 0) if dtype.startswith("u") else low
        return rng.integers(int(np.ceil(low)), int(high) + 1, shape).astype(dtype)
    return x.astype(dtype)


REAL = [d for d in DTYPES if not d.startswith("complex")]
INTEGERS = [d for d in DTYPES if "int" in d]
UNARY = {
    "absolute": (DTYPES[1:], (-3, 3)),
    "angle": (DTYPES[1:], (0.3, 1.2)),
    "arccos": (REAL[6:], (-0.9, 0.9)),
    "arccosh": (REAL[6:], (1.1, 5)),
    "arcsin": (REAL[6:], (-0.9, 0.9)),
    "arcsinh": (REAL, (0.3, 3)),
    "arctan": (REAL, (0.3, 3)),
    "arctanh": (REAL[6:], (-0.9, 0.9)),
    "bitwise_count": (INTEGERS, (-9, 9)),
    "cbrt": (REAL, (0.3, 3)),
    "ceil": (REAL[1:], (-4, 4)),
    "conj": (DTYPES[1:], (0.3, 1.2)),
    "cos": (DTYPES, (0.3, 1.2)),
    "cosh": (DTYPES, (0.3, 1.2)),
    "deg2rad": (REAL, (0.3, 3)),
    "exp": (DTYPES, (0.3, 1.2)),
    "exp2": (REAL, (0.3, 3)),
    "expm1": (REAL, (0.3, 3)),
    "fabs": (REAL, (0.3, 3)),
    "floor": (REAL[1:], (-4, 4)),
    "imag": (DTYPES, (0.3, 1.2)),
    "invert": (INTEGERS, (-9, 9)),
    "isfinite": (DTYPES, (0.3, 1.2)),
    "isinf": (DTYPES, (0.3, 1.2)),
    "isnan": (DTYPES, (0.3, 1.2)),
    "isneginf": (["float64"], (-3, 3)),
    "isposinf": (["float64"], (-3, 3)),
    "log": (DTYPES, (0.3, 3)),
    "log10": (REAL, (0.3, 3)),
    "log1p": (REAL, (0.3, 3)),
    "log2": (REAL, (0.3, 3)),
    "logical_not": (DTYPES, (-1, 2)),
    "negative": (DTYPES[1:], (-3, 3)),
    "positive": (DTYPES[1:], (-3, 3)),
    "rad2deg": (REAL, (0.3, 3)),
    "real": (DTYPES, (0.3, 1.2)),
    "reciprocal": (DTYPES[6:], (0.5, 3)),
    "rint": (REAL[1:], (-4, 4)),
    "round": (REAL[1:], (-4, 4)),
    "sign": (DTYPES[1:], (-3, 3)),
    "signbit": (REAL[1:4] + REAL[6:], (-3, 3)),
    "sin": (DTYPES, (0.3, 1.2)),
    "sinc": (["float32", "float64"], (-3, 3)),
    "sinh": (DTYPES, (0.3, 1.2)),
    "sqrt": (DTYPES, (0.3, 3)),
    "square": (DTYPES, (0.3, 3)),
    "tan": (DTYPES, (0.3, 1.2)),
    "tanh": (DTYPES, (0.3, 1.2)),
    "trunc": (REAL[1:], (-4, 4)),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n, (dtypes, _) in UNARY.items() for d in dtypes]
)
def test_of_one_operand(name, dtype, check):
    x = values(dtype, (3, 4), 1, *UNARY[name][1])
    check(getattr(anp, name), getattr(np, name), x)


PAIRS = [
    ("float32", "float32"),
    ("float32", "float64"),
    ("float32", "int8"),
    ("float32", "int32"),
    ("int8", "int8"),
    ("int8", "uint8"),
    ("int32", "uint32"),
    ("int64", "bool"),
    ("uint8", "uint8"),
    ("float16", "float32"),
    ("float16", "int8"),
    ("complex64", "float64"),
]
OF_ALL = ["add", "divide", "equal", "isclose", "logical_and", "logical_or"]
OF_ALL += ["logical_xor", "multiply", "not_equal", "power", "subtract"]
OF_REAL = ["arctan2", "copysign", "floor_divide", "fmax", "fmin", "fmod", "greater"]
OF_REAL += ["greater_equal", "heaviside", "hypot", "less", "less_equal", "logaddexp"]
OF_REAL += ["maximum", "minimum", "remainder"]
BINARY = [(name, pair) for name in OF_ALL for pair in PAIRS]
BINARY += [(name, pair) for name in OF_REAL for pair in PAIRS[:-1]]


@pytest.mark.parametrize(("name", "pair"), BINARY)
def test_of_two_operands(name, pair, check):
    x = values(pair[0], (3, 1, 4), 2, 0.5, 4)
    y = values(pair[1], (2, 1), 3, 0.5, 4)
    check(getattr(anp, name), getattr(np, name), x, y)


@pytest.mark.parametrize(
    "name", ["add", "multiply", "maximum", "minimum", "logical_xor"]
)
def test_of_two_bools(name, check):
    x, y = np.array([True, False, True]), np.array([[True], [False]])
    check(getattr(anp, name), getattr(np, name), x, y)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits(name, dtype, check):
    x, y = values(dtype, (3, 4), 4, -9, 9), values(dtype, (4,), 5, -9, 9)
    check(getattr(anp, name), getattr(np, name), x, y)


@pytest.mark.parametrize("name", ["left_shift", "right_shift"])
def test_shifts(name, check):
    x, y = values("int32", (3, 4), 4, -99, 99), values("int32", (4,), 5, 0, 6)
    check(getattr(anp, name), getattr(np, name), x, y)


@pytest.mark.parametrize("number", [2, 2.5, True, 3j])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "uint8", "complex64"])
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "power", "equal"])
def test_python_numbers_are_weak(name, dtype, number, check):
    x = values(dtype, (3,), 6, 1, 3)
    ours, theirs = getattr(anp, name), getattr(np, name)
    check(lambda x: ours(x, number), lambda x: theirs(x, number), x)
    check(lambda x: ours(number, x), lambda x: theirs(number, x), x)


@pytest.mark.parametrize("exponent", [-8, -2, -1, 1, 2, 3, 5, 8, 9, 0, 0.5, 2.0, 1.5])
def test_powers_by_python_numbers(exponent, check):
    x = values("float64", (5,), 7, 0.5, 3)
    check(lambda x: anp.power(x, exponent), lambda x: np.power(x, exponent), x)
    if exponent >= 0 and exponent == int(exponent):
        n = values("int32", (5,), 8, -4, 4)
        check(lambda n: anp.power(n, exponent), lambda n: np.power(n, exponent), n)


def test_a_python_integer_too_large_for_the_dtype_is_an_overflow():
    with pytest.raises(
        OverflowError, match="Python integer 300 out of bounds for uint8"
    ):
        anp.add(np.ones(3, np.uint8), 300)


def test_a_python_integer_too_large_for_the_dtype_compares(check):
    x = np.array([1, 255], np.uint8)
    check(lambda x: anp.less(x, 300), lambda x: np.less(x, 300), x)


def test_numpy_scalars_and_rank_0_arrays_are_not_weak(check):
    x = np.ones(3, np.float32)
    check(anp.add, np.add, x, np.float64(1))
    check(anp.add, np.add, x, np.array(1.0))


def test_other_layouts_give_row_major_results(check):
    x = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    check(anp.exp, np.exp, x)
    check(anp.add, np.add, x, x[::-1, ::-1].copy()[:, ::-1])


@pytest.mark.parametrize("decimals", [0, 2, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex128"])
def test_round_to_decimals(dtype, decimals, check):
    x = values(dtype, (9,), 9, -55, 55)
    check(lambda x: anp.round(x, decimals), lambda x: np.round(x, decimals), x)


def test_reciprocal_of_integers_is_whole(check):
    check(anp.reciprocal, np.reciprocal, np.array([-3, -2, -1, 1, 2, 3]))


@pytest.mark.parametrize("bounds", [(-1, 1), (None, 0.5), (-0.5, None), (None, None)])
def test_clip(bounds, check):
    x = values("float32", (3, 4), 10, -2, 2)
    check(lambda x: anp.clip(x, *bounds), lambda x: np.clip(x, *bounds), x)


def test_clip_with_arrays_broadcasts(check):
    x, low = values("float32", (3, 4), 10, -2, 2), np.linspace(-1, 0, 4)
    check(lambda x, a: anp.clip(x, a, 1), lambda x, a: np.clip(x, a, 1), x, low)


def test_where_broadcasts_and_promotes(check):
    c = np.array([[1], [0], [2]])
    x, y = np.arange(4, dtype=np.float32), np.arange(4)
    check(anp.where, np.where, c, x, y)
    check(lambda c, x: anp.where(c, x, 1.5), lambda c, x: np.where(c, x, 1.5), c, x)


def test_select_takes_the_first_true_condition(check):
    x = np.arange(6)

    def pick(xp):
        return lambda x: xp.select([x < 3, x > 3], [x, x**2], 42)

    check(pick(anp), pick(np), x)


def test_nan_is_dropped_by_fmax_and_kept_by_maximum(check):
    x, y = np.array([np.nan, 1.0, np.nan]), np.array([2.0, np.nan, np.nan])
    check(anp.fmax, np.fmax, x, y)
    check(anp.maximum, np.maximum, x, y)


def test_complex_sign_is_the_unit_number(check):
    check(anp.sign, np.sign, np.array([3 + 4j, 0j, -2.0 + 0j]))


def test_isclose_of_infinities_and_nan(check):
    x = np.array([np.inf, np.inf, np.nan, 1.0])
    y = np.array([np.inf, -np.inf, np.nan, 1.0 + 1e-9])
    check(anp.isclose, np.isclose, x, y)
    check(
        lambda x, y: anp.isclose(x, y, equal_nan=True),
        lambda x, y: np.isclose(x, y, equal_nan=True),
        x,
        y,
    )


def test_complex_powers_of_zero(check):
    exponents = np.array([3j, -3j, 0, 1 + 1j, -1 + 1j, -1, 2, 1 - 2j])
    check(anp.power, np.power, np.zeros(8, np.complex128), exponents)
