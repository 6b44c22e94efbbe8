"""The accuracy of arrayfn's own elementary functions, against mpmath."""

from __future__ import annotations

import ctypes
import math
import re

import llvmlite.binding as llvm
import mpmath as mp
import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import jit
from arrayfn.backends.cpu import kernel_compiler
from arrayfn.backends.native import target
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.scalars import SCALARS
from arrayfn.lowering.scalars.numpy_arithmetic import DTYPES
from tests.kernel_code import code_of

# Enough for x**y and for sines of numbers near a multiple of pi.
WORKING_PRECISION = 200
FLOATS = ["f32", "f64"]


def erfinv(x):
    """mpmath's loses precision near 1; there solve log(erfc(y)) = log(1 - x)."""
    if abs(x) < 0.5:
        return mp.erfinv(x)
    goal = mp.log1p(-abs(x))
    root = mp.findroot(lambda y: mp.log(mp.erfc(y)) - goal, 0.95 * mp.sqrt(-goal))
    return mp.sign(x) * root


REFERENCES = {
    "exp": mp.exp,
    "exp2": lambda x: mp.mpf(2) ** x,
    "expm1": mp.expm1,
    "log": mp.log,
    "log2": lambda x: mp.log(x, 2),
    "log10": mp.log10,
    "log1p": mp.log1p,
    "logistic": lambda x: 1 / (1 + mp.exp(-x)),
    "sin": mp.sin,
    "cos": mp.cos,
    "tan": mp.tan,
    "asin": mp.asin,
    "acos": mp.acos,
    "atan": mp.atan,
    "sinh": mp.sinh,
    "cosh": mp.cosh,
    "tanh": mp.tanh,
    "asinh": mp.asinh,
    "acosh": mp.acosh,
    "atanh": mp.atanh,
    "rsqrt": lambda x: 1 / mp.sqrt(x),
    "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "erf": mp.erf,
    "erfc": lambda x: mp.erfc(x) if abs(x) < 1000 else mp.mpf(1 - mp.sign(x)),
    "erfinv": erfinv,
    "ndtr": lambda x: mp.erfc(-x / mp.sqrt(2)) / 2 if x > -1000 else mp.mpf(0),
    "lgamma": lambda x: mp.re(mp.loggamma(x)),
    "digamma": mp.digamma,
    "pow": mp.power,
    "hypot": mp.hypot,
    "atan2": mp.atan2,
}
# The greatest error found in long random searches, rounded up, in ulp of the result.
# The promise is 2.
BOUNDS = {
    **dict.fromkeys(("exp2", "log", "log1p", "sin", "cos", "tan"), 1.0),
    **dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh", "atan2", "pow"), 1.0),
    **dict.fromkeys(("asin", "acos", "atan"), 0.8),
    **dict.fromkeys(("log2", "log10", "cbrt", "hypot"), 0.6),
    **dict.fromkeys(("expm1", "rsqrt"), 1.5),
    **dict.fromkeys(("erf", "erfc"), 1.4),
    "exp": 1.1,
    "logistic": 1.6,
    "ndtr": 1.6,
    "tanh": 1.9,
    "erfinv": 1.9,
    # For positive arguments; at negative ones relative to 1 near their zeros.
    "digamma": 1.4,
    "lgamma": 1.9,
}
# (least, greatest) argument, besides the whole range where that is all of the domain.
DOMAINS = {
    **dict.fromkeys(("log", "log2", "log10", "rsqrt"), (0.0, math.inf)),
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), (-1.0, 1.0)),
    "lgamma": (0.0, 1e30),
    "digamma": (0.0, 1e30),
    "log1p": (-1.0, math.inf),
    "acosh": (1.0, math.inf),
}
# Where results neither overflow nor settle: sampled more densely.
CENTERS = {
    **dict.fromkeys(("exp", "expm1", "sinh", "cosh", "logistic"), (-750.0, 750.0)),
    "exp2": (-1080.0, 1030.0),
    "erf": (-7.0, 7.0),
    "erfc": (-7.0, 28.0),
    "ndtr": (-39.0, 9.0),
    "tanh": (-25.0, 25.0),
    "log": (0.5, 2.0),
    "log2": (0.5, 2.0),
    "log10": (0.5, 2.0),
    "log1p": (-0.9, 1.0),
    "acosh": (1.0, 3.0),
    "lgamma": (0.01, 20.0),
    "digamma": (0.01, 20.0),
}
# Arguments near which implementations go wrong: nearest multiples of pi/2 (Muller,
# Handbook of Floating-Point Arithmetic), limits of reductions, zeros, and thresholds.
HARD = {
    "f32": [
        16367173 * 2.0**72,
        2.0**127,
        1e30,
        131071.99,
        131072.0,
        131073.0,
        88.72283,
    ],
    "f64": [6381956970095103 * 2.0**797, 1e22, 2.0**1023, 2.0**30, 2.0**30 + 1, 709.78],
}
SHARED_HARD = [
    *(math.pi * k / 4 for k in range(1, 9)),
    *(0.5 * k for k in range(1, 60)),
    *(1 + s * 2.0**-k for k in (3, 9, 20, 23, 30, 52) for s in (1, -1)),
    *(math.log(2) * (k + 0.5) for k in range(8)),
    *(0.41421356, 0.70710678, 0.632455532, 0.7, 1.4616321, 87.3, 103.9, 745.13, 0.84),
]


def arguments(name, t, count):
    """Arguments of one function: random ones of all magnitudes, and hard ones."""
    dtype = DTYPES[t]
    rng = np.random.default_rng(sum(map(ord, name)))
    function = SCALARS[f"{name}_{t}"]
    info = np.finfo(dtype)
    low, high = DOMAINS.get(name, (-math.inf, math.inf))

    def draw():
        exponents = rng.uniform(info.minexp - info.nmant, info.maxexp, count)
        signs = rng.choice([-1.0, 1.0], count)
        everywhere = signs * np.exp2(exponents)
        near = signs * np.exp2(rng.uniform(-12, 5, count))
        dense = rng.uniform(*CENTERS.get(name, (-10.0, 10.0)), count)
        hard = np.array([*HARD[t], *SHARED_HARD])
        return np.concatenate([everywhere, near, dense, hard, -hard]).astype(dtype)

    values = [draw() for _ in function.arguments]
    if name == "pow":
        x, y = np.abs(values[0]), values[1]
        # Exponents that give results of all sizes, and bases around 1.
        limit = math.log(float(info.max))
        y[:count] = rng.uniform(-1.05 * limit, limit, count) / np.log(x[:count])
        x[count : 2 * count] = 1 + values[1][count : 2 * count] * 2.0**-10
        x[x <= 0] = 2
        values = [x, y]
    if name in ("atan2", "hypot"):
        values[1] = rng.permutation(values[1])
        # Also pairs of nearby magnitudes.
        values[1][:count] = values[0][:count] * rng.uniform(0.1, 10, count).astype(
            dtype
        )
    keep = np.logical_and.reduce(
        [np.isfinite(v) & (v >= low) & (v <= high) & (v != 0) for v in values]
    )
    if name in ("atanh", "erfinv"):
        keep &= np.abs(values[0]) < 1
    return [v[keep] for v in values]


def error_in_ulp(results, reference, dtype):
    """The error of each result, in units of the last place of the rounded reference."""
    greatest = 0.0
    worst = None
    for k, (result, exact) in enumerate(zip(results, reference, strict=True)):
        rounded = dtype.type(float(exact))
        if result == rounded:
            continue
        if not np.isfinite(rounded) and np.isfinite(result):
            rounded = np.finfo(dtype).max
        if not np.isfinite(result):
            return math.inf, k
        unit = np.spacing(min(abs(rounded), np.finfo(dtype).max))
        error = float(abs(mp.mpf(float(result)) - exact) / mp.mpf(float(unit)))
        if error > greatest:
            greatest, worst = error, k
    return greatest, worst


@pytest.mark.parametrize("t", FLOATS)
@pytest.mark.parametrize("name", REFERENCES)
def test_error_is_within_its_bound(name, t, compiled):
    with np.errstate(all="ignore"):
        values = arguments(name, t, 120 if name in ("erfinv", "lgamma") else 250)
    full = f"{name}_{t}"
    results = compiled([full], *values)[full]
    with mp.workprec(WORKING_PRECISION):
        points = zip(*(map(mp.mpf, map(float, v)) for v in values), strict=True)
        reference = [mp.re(REFERENCES[name](*point)) for point in points]
        with np.errstate(all="ignore"):
            error, k = error_in_ulp(results, reference, DTYPES[t])
    where = [] if k is None else [float(v[k]).hex() for v in values]
    assert error <= BOUNDS[name], f"{full}({', '.join(where)}) is {error} ulp off"
    unjitted = SCALARS[full](*values)
    np.testing.assert_array_equal(unjitted, results)


@pytest.mark.parametrize("t", FLOATS)
@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gamma_functions_of_negative_arguments(name, t, compiled):
    dtype = DTYPES[t]
    rng = np.random.default_rng(8)
    x = np.concatenate(
        [rng.uniform(-30, 0, 300), -np.exp2(rng.uniform(-100, 0, 100)), [-0.5, -1e-30]]
    ).astype(dtype)
    results = compiled([f"{name}_{t}"], x)[f"{name}_{t}"]
    with mp.workprec(WORKING_PRECISION):
        exact = [mp.re(REFERENCES[name](mp.mpf(float(v)))) for v in x]
    reference = np.array([float(v) for v in exact])
    # Near a zero the error is relative to the terms that cancel there.
    scale = np.maximum(np.abs(reference), 1) * (1 + np.abs(x) * (name == "lgamma"))
    error = np.abs(results.astype(np.float64) - reference) / scale
    assert error.max() < 6 * np.finfo(dtype).eps
    np.testing.assert_array_equal(SCALARS[f"{name}_{t}"](x), results)


def test_every_sampled_exponent_of_float32_is_within_two_ulp_of_float64(compiled):
    """200 000 arguments of each float32 function, against the float64 one."""
    rng = np.random.default_rng(9)
    bits = rng.integers(0, 2**32, 100_000, dtype=np.uint32)
    x = bits.view(np.float32)
    x = np.concatenate([x[np.isfinite(x)], rng.uniform(-20, 20, 100_000).astype("f4")])
    names = [name for name in REFERENCES if len(SCALARS[f"{name}_f32"].arguments) == 1]
    for name in names:
        low, high = DOMAINS.get(name, (-math.inf, math.inf))
        inside = x[(x >= low) & (x <= high)]
        short = compiled([f"{name}_f32"], inside)[f"{name}_f32"].astype(np.float64)
        long = compiled([f"{name}_f64"], inside.astype(np.float64))[f"{name}_f64"]
        with np.errstate(all="ignore"):
            rounded = long.astype(np.float32)
            error = np.abs(short - long) / np.spacing(np.abs(rounded)).astype(
                np.float64
            )
        error[(short == rounded) | (np.isnan(short) & np.isnan(long))] = 0
        k = np.argmax(error)
        assert error[k] <= BOUNDS[name], f"{name}_f32({float(inside[k]).hex()})"


# What the functions give at the ends of their domains, as C's Annex F or SciPy has it.
INF, NAN = math.inf, math.nan
SPECIAL = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e4, INF), (-1e4, 0.0)],
    "exp2": [(0.0, 1.0), (10.0, 1024.0), (INF, INF), (-INF, 0.0), (2000.0, INF)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (-100.0, -1.0)],
    "log": [
        (1.0, 0.0),
        (0.0, -INF),
        (-0.0, -INF),
        (INF, INF),
        (-1.0, NAN),
        (-INF, NAN),
    ],
    "log2": [(8.0, 3.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1.0, NAN)],
    "log10": [(1000.0, 3.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1.0, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (INF, INF), (-2.0, NAN)],
    "logistic": [(0.0, 0.5), (INF, 1.0), (-INF, 0.0)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.5, NAN), (-INF, NAN)],
    "acos": [(1.0, 0.0), (1.5, NAN), (INF, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "cosh": [(0.0, 1.0), (INF, INF), (-INF, INF)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(1.0, 0.0), (INF, INF), (0.5, NAN), (-INF, NAN)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (2.0, NAN)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (4.0, 0.5), (-1.0, NAN)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (-27.0, -3.0)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0)],
    "erfc": [(0.0, 1.0), (INF, 0.0), (-INF, 2.0)],
    "ndtr": [(0.0, 0.5), (INF, 1.0), (-INF, 0.0)],
    "erfinv": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN)],
    "lgamma": [
        (1.0, 0.0),
        (2.0, 0.0),
        (0.0, INF),
        (-3.0, INF),
        (INF, INF),
        (-INF, INF),
    ],
    "digamma": [(0.0, -INF), (-0.0, INF), (-2.0, NAN), (INF, INF)],
}


@pytest.mark.parametrize("t", FLOATS)
def test_special_values(t, compiled):
    dtype = DTYPES[t]
    for name, cases in SPECIAL.items():
        cases = [*cases, (NAN, NAN)]
        x, expected = np.array(cases).T.astype(dtype)
        result = compiled([f"{name}_{t}"], x)[f"{name}_{t}"]
        np.testing.assert_array_equal(result, expected, err_msg=f"{name}_{t}")
        zero = expected == 0
        signs = np.signbit(result) == np.signbit(expected)
        assert signs[zero].all(), f"{name}_{t}: a zero of the wrong sign"
        np.testing.assert_array_equal(SCALARS[f"{name}_{t}"](x), result)


def pairs_of_specials(dtype):
    edges = [0.0, 0.5, 1.0, 2.0, 3.0, 1e30, INF]
    edges = [*edges, *(-e for e in edges), NAN]
    return (v.ravel().astype(dtype) for v in np.meshgrid(edges, edges))


@pytest.mark.parametrize("t", FLOATS)
def test_special_pairs_are_as_numpys(t, compiled):
    x, y = pairs_of_specials(DTYPES[t])
    functions = {"pow": np.power, "atan2": np.arctan2, "hypot": np.hypot}
    results = compiled([f"{name}_{t}" for name in functions], x, y)
    for name, function in functions.items():
        result = results[f"{name}_{t}"]
        with np.errstate(all="ignore"):
            expected = function(x, y)
        np.testing.assert_allclose(result, expected, rtol=3e-7, err_msg=name)
        same = np.signbit(result) == np.signbit(expected)
        assert same[expected == 0].all(), f"{name}: a zero of the wrong sign"
        np.testing.assert_array_equal(SCALARS[f"{name}_{t}"](x, y), result)


@pytest.mark.parametrize("t", FLOATS)
def test_logaddexp_is_exact_to_two_ulp_of_its_terms(t, compiled):
    dtype = DTYPES[t]
    rng = np.random.default_rng(10)
    x = rng.uniform(-50, 50, 500).astype(dtype)
    y = (x + rng.standard_normal(500) * 2.0 ** rng.uniform(-10, 6, 500)).astype(dtype)
    result = compiled([f"logaddexp_{t}"], x, y)[f"logaddexp_{t}"]
    with mp.workprec(WORKING_PRECISION):
        pairs = zip(x.tolist(), y.tolist(), strict=True)
        exact = np.array([float(mp.log(mp.exp(a) + mp.exp(b))) for a, b in pairs])
    scale = np.maximum(np.maximum(np.abs(x), np.abs(y)), 1)
    assert (np.abs(result - exact) / scale).max() < 2 * np.finfo(dtype).eps
    np.testing.assert_array_equal(SCALARS[f"logaddexp_{t}"](x, y), result)


@pytest.mark.parametrize("t", FLOATS)
def test_logaddexp_of_infinities(t):
    function = SCALARS[f"logaddexp_{t}"]
    assert function(-INF, -INF) == -INF
    assert function(INF, -INF) == INF
    assert function(INF, INF) == INF
    assert np.isnan(function(NAN, 1.0))


VECTORISED = [*REFERENCES, "logaddexp", "fmod", "remainder", "floordiv", "max"]
VECTORISED += ["nextafter", "sign", "round", "clamp"]


def optimised(kernel):
    """The LLVM IR of a kernel after the passes that the CPU backend runs."""
    text = kernel_compiler.kernel_ir(
        kernel.source, kernel.name, kernel.parameters, "entry"
    )
    machine = target.target_machine()
    module = llvm.parse_assembly(text)
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(module)


@pytest.mark.parametrize("t", FLOATS)
@pytest.mark.parametrize("name", VECTORISED)
def test_a_loop_over_the_function_vectorises(name, t, scalar_kernel):
    function = SCALARS[f"{name}_{t}"]
    text = optimised(scalar_kernel([function.name], function.arguments))
    llvm_type = "float" if t == "f32" else "double"
    assert re.search(rf"load <\d+ x {llvm_type}>", text)
    assert re.search(rf"store <\d+ x (?:{llvm_type}|i\d+)>", text)
    # Nothing is taken apart into scalars but in the out-of-line slow paths.
    loop = text[text.index("vector.body") : text.index("middle.block")]
    assert "extractelement" not in loop


@pytest.mark.parametrize("step", [2, -1, -3])
def test_a_loop_over_a_strided_array_vectorises(step):
    def f(x):
        return anp.exp(x[::step]) * x[0]

    x = np.linspace(-3.0, 3.0, 1001, dtype=np.float32)
    lowered = jit(f).lower(x)
    text = optimised(lowered.kernels[0])
    assert re.search(r"fmul <\d+ x float>", text)
    # "ident.check" would leave the vectors for strides of 1.
    assert "ident.check" not in text
    np.testing.assert_allclose(jit(f)(x), np.exp(x[::step]) * x[0], rtol=3e-7)


def test_a_loop_over_a_transposed_array_vectorises():
    x = np.linspace(-3.0, 3.0, 48 * 40, dtype=np.float32).reshape(40, 48)
    lowered = jit(lambda x: anp.exp(x.T)).lower(x)
    text = optimised(lowered.kernels[0])
    assert re.search(r"fmul <\d+ x float>", text)
    assert "ident.check" not in text


REDUCTIONS = {"add": np.sum, "mul": np.prod, "max": np.max, "min": np.min}


def reduction_kernel(name, t):
    """One reduction of ``n`` elements for each item."""
    start = {"add": 0.0, "mul": 1.0, "max": -9.0, "min": 9.0}[name]
    source = f"""from arrayfn.lowering.scalars import accumulate_{name}_{t}, {t}
def k(x, out, n, begin, end):
    for i in range(begin, end):
        s = {t}({start})
        for j in range(n):
            s = accumulate_{name}_{t}(s, x[i * n + j])
        out[i] = s
"""
    parameters = (
        Parameter("x", t + "*"),
        Parameter("out", t + "*"),
        Parameter("n", "i64"),
    )
    return Kernel("k", source, source, parameters)


@pytest.mark.parametrize("t", FLOATS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_vectorise_and_keep_nan(name, t):
    kernel = reduction_kernel(name, t)
    llvm_type = "float" if t == "f32" else "double"
    assert re.search(rf"load <\d+ x {llvm_type}>", optimised(kernel))
    n = 67
    x = np.random.default_rng(11).uniform(0.5, 1.5, (2, n)).astype(DTYPES[t])
    x[1, 40] = np.nan
    out = np.empty(2, DTYPES[t])
    block = (ctypes.c_int64 * 3)(x.ctypes.data, out.ctypes.data, n)
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    code = code_of(kernel)
    prototype(code.address)(ctypes.addressof(block), 0, 2)
    np.testing.assert_allclose(out, REDUCTIONS[name](x, axis=1), rtol=1e-5)


@pytest.mark.parametrize("source", ["f16", "bf16"])
def test_half_conversions_vectorise_without_calls(source, scalar_kernel):
    for name, dtypes in (
        (f"convert_{source}_f32", (source,)),
        (f"convert_f32_{source}", ("f32",)),
    ):
        text = optimised(scalar_kernel([name], dtypes))
        loop = text[text.index("vector.body") : text.index("middle.block")]
        assert re.search(r"load <\d+ x (i16|float|half)>", loop)
        assert "extractelement" not in loop
        assert "call" not in loop
