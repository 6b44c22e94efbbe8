"""The scalar vocabulary against NumPy: integers, booleans, conversions, complex."""

from __future__ import annotations

import itertools
import pathlib
import typing
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from arrayfn.lowering import scalars
from arrayfn.lowering.scalars import SCALARS, stub
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES, NumpyArithmetic

INTEGERS = [f"{s}{n}" for s in "iu" for n in (8, 16, 32, 64)]
FLOATS = ["f32", "f64"]
COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


def assert_same(actual, expected, what=""):
    """Equal values, with NaN equal to NaN and zeros of equal sign."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, what
    np.testing.assert_array_equal(actual, expected, err_msg=what)
    if actual.dtype.kind == "f":
        zero = expected == 0
        assert (np.signbit(actual) == np.signbit(expected))[zero].all(), what


def assert_unjitted_same(results, *arguments):
    """The functions called on NumPy arrays give what their compiled kernels gave."""
    for name, result in results.items():
        function = SCALARS[name]
        unjitted = function(*arguments[: len(function.arguments)])
        if result.dtype.kind in "fc":
            np.testing.assert_array_equal(unjitted, result, err_msg=name)
        else:
            assert_same(unjitted, result, name)


def integer_pairs(dtype):
    info = np.iinfo(dtype)
    n = info.bits
    edges = [0, 1, 2, 3, 5, 7, n - 1, n, n + 1, 100, info.max, info.max - 1]
    edges += [info.max // 2, info.min, info.min + 1] + (
        [-1, -2, -3, -7] * (info.min < 0)
    )
    x, y = np.array(list(itertools.product(edges, edges)), dtype=object).T
    rng = np.random.default_rng(0)
    more = rng.integers(info.min, info.max, (2, 200), dtype=dtype, endpoint=True)
    return (
        np.concatenate([x.astype(dtype), more[0]]),
        np.concatenate([y.astype(dtype), more[1]]),
    )


def python_power(x, y, n):
    """x**y modulo 2**n; truncated where y is negative."""
    if y >= 0:
        return pow(int(x), int(y), 1 << n)
    return {1: 1, -1: -1 if y % 2 else 1}.get(int(x), 0)


@pytest.mark.parametrize("t", INTEGERS)
def test_integer_functions_are_as_numpy(t, compiled):
    dtype = DTYPES[t]
    n = dtype.itemsize * 8
    x, y = integer_pairs(dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    trunc_rem = np.fmod(x, y)
    zero_divisor = y == 0
    trunc_div = np.where(
        zero_divisor, 0, (x - trunc_rem) // np.where(zero_divisor, 1, y)
    )
    logical = np.right_shift(x.view(unsigned), y.view(unsigned)).view(dtype)
    power = [python_power(a, b, n) % (1 << n) for a, b in zip(x, y, strict=True)]
    expected = {
        "add": x + y,
        "sub": x - y,
        "mul": x * y,
        "and": x & y,
        "or": x | y,
        "xor": x ^ y,
        "neg": np.negative(x),
        "abs": np.abs(x),
        "sign": np.sign(x),
        "square": x * x,
        "not": ~x,
        "popcount": np.bitwise_count(x.view(unsigned)).astype(dtype),
        "clz": np.array([n - int(v).bit_length() for v in x.view(unsigned)], dtype),
        "floordiv": np.floor_divide(x, y),
        "remainder": np.remainder(x, y),
        "fmod": trunc_rem,
        "trunc_rem": trunc_rem,
        "div": trunc_div.astype(dtype),
        "max": np.maximum(x, y),
        "min": np.minimum(x, y),
        "shift_right_logical": logical,
        "pow": np.array(power, unsigned).view(dtype),
        "accumulate_add": x + y,
        "accumulate_mul": x * y,
        "accumulate_max": np.maximum(x, y),
        "accumulate_min": np.minimum(x, y),
        "accumulate_and": x & y,
        "accumulate_or": x | y,
        "accumulate_xor": x ^ y,
        **{name: function(x, y) for name, function in COMPARISONS.items()},
    }
    names = [f"{name}_{t}" for name in (*expected, "shift_left", "shift_right")]
    results = compiled(names, x, y)
    for name, values in expected.items():
        assert_same(results[f"{name}_{t}"], values, f"{name}_{t}")
    # NumPy leaves negative counts to the machine; here all bits are shifted out.
    counts = y >= 0
    left, right = np.left_shift(x, y), np.right_shift(x, y)
    out = np.where(x < 0, -1, 0).astype(dtype) if dtype.kind == "i" else 0 * x
    assert_same(results[f"shift_left_{t}"], np.where(counts, left, 0 * x))
    assert_same(results[f"shift_right_{t}"], np.where(counts, right, out))
    assert_unjitted_same(results, x, y)


@pytest.mark.parametrize("t", [*INTEGERS, *FLOATS])
def test_clamp_is_as_numpys_clip(t, compiled):
    x, low = integer_pairs(np.dtype("i8"))
    x, low = (v.astype(DTYPES[t]) for v in (x, low))
    high = np.maximum(low, x[::-1])
    if t in FLOATS:
        x[::7] = np.nan
    results = compiled([f"clamp_{t}"], x, low, high)
    assert_same(results[f"clamp_{t}"], np.clip(x, low, high))
    assert_unjitted_same(results, x, low, high)


@pytest.mark.parametrize("t", ["bool", *INTEGERS, *FLOATS, "c64", "c128"])
def test_select_chooses_by_the_condition(t, compiled):
    condition = np.array([True, False, True, False])
    x = np.array([1, 1, 0, 0]).astype(DTYPES[t])
    y = np.array([0, 0, 1, 1]).astype(DTYPES[t])
    results = compiled([f"select_{t}"], condition, x, y)
    assert_same(results[f"select_{t}"], np.where(condition, x, y))
    assert_unjitted_same(results, condition, x, y)


def test_boolean_functions_are_as_numpy(compiled):
    x, y = np.array([[False, False, True, True], [False, True, False, True]])
    logic = {"and": x & y, "or": x | y, "xor": x ^ y}
    order = {"max": x | y, "min": x & y, "add": x | y, "mul": x & y}
    expected = {
        **logic,
        **order,
        **{f"accumulate_{name}": values for name, values in {**logic, **order}.items()},
        **{name: function(x, y) for name, function in COMPARISONS.items()},
        "not": ~x,
    }
    results = compiled([f"{name}_bool" for name in expected], x, y)
    for name, values in expected.items():
        assert_same(results[f"{name}_bool"], values, name)
    assert_unjitted_same(results, x, y)


def float_pairs(t):
    info = np.finfo(DTYPES[t])
    edges = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.7, 1e10, 7e30, 0.1, np.pi]
    edges += [np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal]
    edges = [*edges, *(-e for e in edges)]
    x, y = np.array(list(itertools.product(edges, edges))).T.astype(DTYPES[t])
    rng = np.random.default_rng(1)
    scale = rng.uniform(-60, 60, (2, 500))
    more = (rng.standard_normal((2, 500)) * 2.0**scale).astype(DTYPES[t])
    return np.concatenate([x, more[0]]), np.concatenate([y, more[1]])


@pytest.mark.parametrize("t", FLOATS)
def test_float_functions_that_round_once_are_as_numpy(t, compiled):
    x, y = float_pairs(t)
    expected = {
        "add": x + y,
        "sub": x - y,
        "mul": x * y,
        "div": x / y,
        "neg": -x,
        "abs": np.abs(x),
        "sign": np.sign(x) + np.where(x == 0, 0, 0 * x),
        "reciprocal": np.reciprocal(x),
        "square": x * x,
        "sqrt": np.sqrt(x),
        "floor": np.floor(x),
        "ceil": np.ceil(x),
        "trunc": np.trunc(x),
        "round": np.rint(x),
        "nextafter": np.nextafter(x, y),
        "copysign": np.copysign(x, y),
        "signbit": np.signbit(x),
        "isfinite": np.isfinite(x),
        "isinf": np.isinf(x),
        "isnan": np.isnan(x),
        "fmod": np.fmod(x, y),
        "remainder": np.remainder(x, y),
        "floordiv": np.floor_divide(x, y),
        "accumulate_add": x + y,
        "accumulate_mul": x * y,
        **{name: function(x, y) for name, function in COMPARISONS.items()},
    }
    # NumPy's choice among zeros of opposite sign depends on its SIMD path.
    extremes = {"max": np.maximum(x, y), "min": np.minimum(x, y)}
    extremes |= {f"accumulate_{name}": v for name, v in extremes.items()}
    results = compiled([f"{name}_{t}" for name in (*expected, *extremes)], x, y)
    for name, values in expected.items():
        if name == "sign":
            np.testing.assert_array_equal(results[f"sign_{t}"], np.sign(x))
        else:
            assert_same(results[f"{name}_{t}"], values, name)
    for name, values in extremes.items():
        np.testing.assert_array_equal(results[f"{name}_{t}"], values, err_msg=name)
    assert_unjitted_same(results, x, y)


@pytest.mark.parametrize("t", FLOATS)
def test_a_maximum_and_a_minimum_keep_nan_from_either_side(t):
    nan, one = DTYPES[t].type(np.nan), DTYPES[t].type(1)
    for name in ("max", "min", "accumulate_max", "accumulate_min"):
        assert np.isnan(SCALARS[f"{name}_{t}"](nan, one))
        assert np.isnan(SCALARS[f"{name}_{t}"](one, nan))


def conversion_inputs(t):
    rng = np.random.default_rng(2)
    if t == "bool":
        return np.array([False, True])
    if t in ("f16", "bf16"):
        return np.arange(65536, dtype=np.uint16)
    dtype = DTYPES[t]
    if dtype.kind in "iu":
        return integer_pairs(dtype)[0]
    if dtype.kind == "c":
        parts = conversion_inputs("f32" if t == "c64" else "f64")
        return (parts + 1j * parts[::-1]).astype(dtype)
    bits = rng.integers(0, 2**64, 3000, dtype=np.uint64).astype(f"u{dtype.itemsize}")
    halves = np.arange(65536, dtype=np.uint16)
    ties = np.concatenate(
        [
            halves.view(np.float16).astype(dtype),
            halves.view(ml_dtypes.bfloat16).astype(dtype),
        ]
    )
    moved = [
        ties,
        np.nextafter(ties, dtype.type(np.inf)),
        ties * dtype.type(1 + 2**-11),
    ]
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 2**31, 2**63, -(2.0**31)], dtype
    )
    return np.concatenate(
        [special, bits.view(dtype), rng.uniform(-300, 300, 3000).astype(dtype), *moved]
    )


def reference_conversion(x, source, target):
    """NumPy's (and ml_dtypes') conversion; float to integer saturates."""
    storage = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
    values = x.view(storage[source]) if source in storage else x
    if source in storage:
        values = values.astype(np.float32)
    if values.dtype.kind == "c" and DTYPES.get(target, np.dtype("f4")).kind not in "cb":
        values = values.real
    if target in storage:
        if (
            values.dtype == np.float64 and target == "bf16"
        ) or values.dtype.kind in "iub":
            values = values.astype(np.float32)
        return values.astype(storage[target]).view(np.uint16)
    dtype = DTYPES[target]
    if values.dtype.kind == "f" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        above, below = values >= float(info.max) + (info.bits < 64), values <= info.min
        inside = np.where(above | below | np.isnan(values), 0, values).astype(dtype)
        inside = np.where(above, info.max, inside)
        return np.where(below, info.min, inside).astype(dtype)
    return values.astype(dtype)


ALL = ["bool", *INTEGERS, "f16", "bf16", *FLOATS, "c64", "c128"]


@pytest.mark.parametrize("source", ALL)
def test_conversions_are_as_numpy(source, compiled):
    x = conversion_inputs(source)
    results = compiled([f"convert_{source}_{target}" for target in ALL], x)
    for target in ALL:
        name = f"convert_{source}_{target}"
        actual, expected = results[name], reference_conversion(x, source, target)
        if target in ("f16", "bf16"):
            half = np.float16 if target == "f16" else ml_dtypes.bfloat16
            both_nan = np.isnan(actual.view(half)) & np.isnan(expected.view(half))
            expected = np.where(both_nan, actual, expected)
        np.testing.assert_array_equal(actual, expected, err_msg=name)
        assert actual.dtype == expected.dtype, name
        with_numpy = SCALARS[name](x)
        if target in ("f16", "bf16"):
            with_numpy = np.where(both_nan, actual, with_numpy)
        np.testing.assert_array_equal(with_numpy, actual, err_msg=name)


def test_a_half_argument_may_be_a_numpy_half():
    assert scalars.convert_f16_f32(np.float16(1.5)) == np.float32(1.5)
    assert scalars.convert_bf16_f32(ml_dtypes.bfloat16(-2.5)) == np.float32(-2.5)


def test_threefry_gives_the_published_words():
    # Known answers of Random123 (Salmon et al.): key, counter, result.
    cases = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    for key, counter, words in cases:
        assert scalars.threefry2x32_0(*key, *counter) == words[0]
        assert scalars.threefry2x32_1(*key, *counter) == words[1]


def test_compiled_threefry_is_as_unjitted(compiled):
    words = np.random.default_rng(3).integers(0, 2**32, (4, 1000), dtype=np.uint32)
    results = compiled(["threefry2x32_0", "threefry2x32_1"], *words)
    assert_unjitted_same(results, *words)


def complex_points(t, scale):
    rng = np.random.default_rng(4)
    parts = rng.standard_normal((2, 400)) * 2.0 ** rng.uniform(-scale, scale, (2, 400))
    return (parts[0] + 1j * parts[1]).astype(DTYPES[t])


COMPLEX_UNARY = {
    "exp": (np.exp, 4),
    "log": (np.log, 20),
    "sqrt": (np.sqrt, 20),
    "sin": (np.sin, 5),
    "cos": (np.cos, 5),
    "tan": (np.tan, 4),
    "sinh": (np.sinh, 5),
    "cosh": (np.cosh, 5),
    "tanh": (np.tanh, 4),
    "asin": (np.arcsin, 20),
    "acos": (np.arccos, 20),
    "atan": (np.arctan, 20),
    "asinh": (np.arcsinh, 20),
    "acosh": (np.arccosh, 20),
    "atanh": (np.arctanh, 20),
    "expm1": (lambda z: special.expm1(z.astype(complex)), 4),
    "log1p": (lambda z: special.log1p(z.astype(complex)), 20),
    "reciprocal": (lambda z: 1 / z, 20),
    "sign": (np.sign, 20),
    "square": (np.square, 20),
    "neg": (np.negative, 20),
    "conj": (np.conj, 20),
    "abs": (np.abs, 20),
    "angle": (np.angle, 20),
    "real": (np.real, 20),
    "imag": (np.imag, 20),
}


@pytest.mark.parametrize(("t", "least", "most"), [("c64", 80, 89), ("c128", 700, 710)])
def test_hyperbolic_functions_do_not_overflow_before_their_values(
    t, least, most, compiled
):
    size = np.linspace(least, most, 200)
    z = (np.concatenate([size, -size]) + 0.7j).astype(DTYPES[t])
    along = compiled([f"cosh_{t}", f"sinh_{t}"], z)
    across = compiled([f"cos_{t}", f"sin_{t}"], (z * 1j).astype(DTYPES[t]))
    wide = z.astype(np.clongdouble)
    for name, have, want in (
        ("cosh", along[f"cosh_{t}"], np.cosh(wide)),
        ("sinh", along[f"sinh_{t}"], np.sinh(wide)),
        ("cos", across[f"cos_{t}"], np.cosh(wide)),
        ("sin", across[f"sin_{t}"], np.sinh(wide) * 1j),
    ):
        error = np.abs(have - want) / np.abs(want)
        assert error.max() < 8 * np.finfo(DTYPES[t]).eps, name


@pytest.mark.parametrize("t", ["c64", "c128"])
def test_complex_functions_are_within_a_few_ulp_of_the_modulus(t, compiled):
    eps = np.finfo(DTYPES[t]).eps
    for scale in sorted({scale for _, scale in COMPLEX_UNARY.values()}):
        names = [name for name, (_, s) in COMPLEX_UNARY.items() if s == scale]
        z = complex_points(t, scale)
        results = compiled([f"{name}_{t}" for name in names], z)
        assert_unjitted_same(results, z)
        for name in names:
            reference = COMPLEX_UNARY[name][0](z.astype(np.clongdouble))
            error = np.abs(results[f"{name}_{t}"] - reference) / np.abs(reference)
            assert error.max() < 4 * eps, name


@pytest.mark.parametrize("t", ["c64", "c128"])
def test_complex_arithmetic_is_as_numpy(t, compiled):
    x, y = complex_points(t, 10), complex_points(t, 11)[::-1].copy()
    eps = np.finfo(DTYPES[t]).eps
    names = ["add", "sub", "mul", "div", "eq", "ne", "accumulate_add", "accumulate_mul"]
    results = compiled([f"{name}_{t}" for name in names], x, y)
    assert_unjitted_same(results, x, y)
    np.testing.assert_array_equal(results[f"add_{t}"], x + y)
    np.testing.assert_array_equal(results[f"accumulate_add_{t}"], x + y)
    np.testing.assert_array_equal(results[f"sub_{t}"], x - y)
    np.testing.assert_allclose(results[f"mul_{t}"], x * y, rtol=4 * eps)
    np.testing.assert_allclose(results[f"div_{t}"], x / y, rtol=4 * eps)
    np.testing.assert_array_equal(results[f"eq_{t}"], x == y)
    np.testing.assert_array_equal(results[f"ne_{t}"], x != y)


@pytest.mark.parametrize("t", ["c64", "c128"])
def test_complex_powers(t):
    x, y = complex_points(t, 1), complex_points(t, 1)[::-1]
    reference = x.astype(np.clongdouble) ** y.astype(np.clongdouble)
    error = np.abs(SCALARS[f"pow_{t}"](x, y) - reference) / np.abs(reference)
    # exp(y log x) in float64: its error grows with |y log x|.
    growth = 1 + np.abs(y * np.log(x)) * (t == "c128")
    assert (error / growth).max() < 4 * np.finfo(DTYPES[t]).eps
    power = SCALARS[f"pow_{t}"]
    assert power(0, 0) == 1
    assert power(0, 2) == 0


@pytest.mark.parametrize("t", ["c64", "c128"])
def test_complex_functions_at_infinities(t):
    inf = np.inf
    exp, log, sqrt, tanh = (SCALARS[f"{n}_{t}"] for n in ("exp", "log", "sqrt", "tanh"))
    assert exp(complex(-inf, 1)) == 0
    assert exp(complex(inf, 0)) == complex(inf, 0)
    assert log(0).real == -inf
    assert log(complex(-inf, 1)) == complex(inf, DTYPES[t].type(np.pi).real)
    assert sqrt(complex(-4, -0.0)) == -2j
    assert sqrt(complex(-4, 0.0)) == 2j
    assert sqrt(complex(1, inf)) == complex(inf, inf)
    assert tanh(complex(1000, 1)).real == 1
    assert SCALARS[f"abs_{t}"](complex(np.nan, inf)) == inf


@pytest.mark.parametrize("t", ["c64", "c128"])
@pytest.mark.parametrize("name", ["log", "log1p"])
def test_the_logarithm_of_the_largest_complex_numbers_is_finite(name, t):
    largest = np.finfo(DTYPES[t]).max
    points = np.array([[1, 1], [1, -0.5], [-0.75, 1], [-1, 1e-20], [0, 1]]) * largest
    z = points.astype(largest.dtype).view(DTYPES[t])[:, 0]
    result = SCALARS[f"{name}_{t}"](z)
    with np.errstate(over="ignore"):
        expected = np.log(z.astype(np.clongdouble))
    eps = np.finfo(DTYPES[t]).eps
    np.testing.assert_allclose(result.real, expected.real.astype(float), 2 * eps)
    np.testing.assert_allclose(result.imag, expected.imag.astype(float), 2 * eps)


EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 1e300, -1e-300]


@pytest.mark.parametrize("name", ["asin", "acos", "atan", "asinh", "acosh", "atanh"])
def test_complex_inverses_at_cuts_and_infinities(name):
    x, y = (part.ravel() for part in np.meshgrid(EDGES, EDGES))
    z = np.empty(x.shape, complex)
    z.real, z.imag = x, y
    result, expected = SCALARS[f"{name}_c128"](z), getattr(np, f"arc{name[1:]}")(z)
    for have, want in ((result.real, expected.real), (result.imag, expected.imag)):
        np.testing.assert_allclose(have, want, rtol=1e-15, atol=1e-15)
        number = ~np.isnan(want)
        np.testing.assert_array_equal(
            np.signbit(have)[number], np.signbit(want)[number]
        )


def test_complex_functions_near_zero_at_infinities():
    inf, nan = np.inf, np.nan
    expm1, log1p = SCALARS["expm1_c128"], SCALARS["log1p_c128"]
    assert expm1(complex(-inf, inf)) == -1
    assert expm1(complex(inf, 0)) == complex(inf, 0)
    assert expm1(complex(1e-300, -0.0)) == 1e-300
    assert np.isnan(expm1(complex(nan, 0.0)).real)
    assert log1p(complex(-1, 0)) == complex(-inf, 0)
    assert log1p(complex(1e-300, 0)) == 1e-300
    assert log1p(complex(nan, inf)).real == inf


def exact_fma(x, y, z, dtype):
    """``x * y + z`` of finite numbers, rounded once, by rational arithmetic."""
    total = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if dtype == np.float64:
        return np.float64(float(total))
    # Rounding to odd in float64 first makes the second rounding the only one.
    near = float(total)
    if Fraction(near) != total and np.float64(near).view(np.int64) % 2 == 0:
        near = np.nextafter(near, np.inf if total > Fraction(near) else -np.inf)
    return np.float32(near)


@pytest.mark.parametrize("t", FLOATS)
def test_unjitted_fma_rounds_once(t):
    rng = np.random.default_rng(5)
    dtype = DTYPES[t]
    most = 60 if t == "f32" else 500
    x, y = (
        (rng.standard_normal(2000) * 2.0 ** rng.uniform(-most, most, 2000)).astype(
            dtype
        )
        for _ in range(2)
    )
    # Sums that nearly cancel, and ties.
    z = -(x * y) * rng.choice([1, 1 + 2.0**-20, 2.0**-24, 2.0**-53, 0.5], 2000)
    z = z.astype(dtype)
    result = NumpyArithmetic().fma(x, y, z)
    expected = np.array([exact_fma(*v, dtype) for v in zip(x, y, z, strict=True)])
    np.testing.assert_array_equal(result, expected.astype(dtype))
    scalar = [
        NumpyArithmetic().fma(*v) for v in zip(x[:50], y[:50], z[:50], strict=True)
    ]
    np.testing.assert_array_equal(np.array(scalar), result[:50])


def test_names_are_importable_and_written_in_the_stub():
    assert all(getattr(scalars, name) is f for name, f in SCALARS.items())
    path = pathlib.Path(typing.cast("str", scalars.__file__)).with_suffix(".pyi")
    assert path.read_text(encoding="utf-8") == stub.text()


def test_a_call_with_other_than_the_declared_arguments_says_what_is_taken():
    with pytest.raises(
        TypeError, match=r"max_f32 takes 2 arguments \(f32, f32\), not 1"
    ):
        scalars.max_f32(1.0)


def test_python_numbers_are_taken_as_the_declared_dtype():
    assert scalars.add_i8(127, 1) == np.int8(-128)
    assert scalars.mul_f32(0.1, 3).dtype == np.float32
