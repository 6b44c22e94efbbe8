"""NumPy's functions beside the array API's: results are NumPy's, at once and traced."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.compilation.jit import jit
from arrayfn.errors import AbstractValueError, ArgumentError
from arrayfn.transforms import trace_function, vmap

M = np.random.default_rng(1).standard_normal((3, 4))
F = M.astype(np.float32)
S = np.random.default_rng(5).standard_normal((4, 4))
V = np.random.default_rng(2).standard_normal(7)
W = np.sort(np.random.default_rng(4).standard_normal(9))
N = np.random.default_rng(3).integers(-9, 9, (3, 4)).astype(np.int32)
P = np.array([3, 0, 2, 2, 5, 3], np.int64)
B = np.arange(1, 240, 3, np.uint8)
HOLES = np.where(np.arange(12).reshape(3, 4) % 5 == 1, np.nan, M)
SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.5, 5e-324, 1e300])

# A formula in xp (NumPy or arrayfn.numpy) and x, and what it is tried on.
FORMULAS = [
    # Searching and counting.
    ("xp.digitize(x, np.array([-1.0, 0.0, 0.5]))", V),
    ("xp.digitize(x, np.array([0.5, 0.0, -1.0]), right=True)", V),
    ("xp.digitize(x, np.array([3, 0, -2]))", N),
    ("xp.digitize(x, np.array([3, 0, -2]), right=True)", N),
    ("xp.histogram(x, np.array([-1.0, 0.0, 0.5, 3.0]))", V),
    ("xp.histogram(x, 5, (-1, 1))", V),
    ("xp.histogram(x, 5)", V),
    ("xp.histogram(x, 4, density=True)", M),
    ("xp.histogram(x, 4, weights=x * x)", V),
    ("xp.histogram_bin_edges(x, 3)", V),
    ("xp.histogram_bin_edges(x * 0, 2)", V),
    ("xp.histogram2d(x, x[::-1], 3)", V),
    ("xp.histogram2d(x, x[::-1], (2, 3), ((-1, 1), (-2, 2)), density=True)", V),
    ("xp.histogramdd(x, 2)", M),
    ("xp.histogram(x, 7, (0, 250))", B),
    # Integers of few bits are computed in float64.
    ("xp.gradient(x)", B),
    ("xp.trapezoid(x[:40], np.arange(40))", B),
    ("xp.interp(x, x, x)", B),
    ("xp.linalg.norm(x, 1)", B),
    ("xp.poly(x[:3])", B),
    ("xp.polydiv(x, x[2:4])[0]", B),
    ("xp.polyfit(x[:5], x[:5], 1)", B),
    ("xp.geomspace(x[1], x[2], 3)", B),
    # Grids and indices.
    ("xp.ix_(x, x[:2])", P),
    ("x[xp.ix_(np.array([], int), np.array([1, 0]))]", M),
    ("x[xp.ix_([], [1, 0])]", M),
    ("xp.signbit(x)", SPECIAL),
    ("xp.signbit(x)", SPECIAL[:-1].astype(np.float32)),
    ("xp.pad(x, {0: (1, 2)}, mode='edge')", M),
    ("xp.pad(x, {-1: 2, 0: (0, 1)}, mode='wrap')", M),
    (
        "xp.pad(x, ((1, 2), (3, 0)), mode='linear_ramp', end_values=((5, 7), (-1, 2)))",
        M,
    ),
    ("xp.pad(x, (1, 2), mode='linear_ramp', end_values=-3)", N),
    ("xp.pad(x, 2, mode='constant', constant_values=((1, 2), (3, 4)))", M),
    ("np.add.reduce(x)", M),
    ("np.add.reduce(x, 1)", M),
    ("np.maximum.reduce(x)", N),
    ("x[xp.ix_(np.array([0, 2]), np.array([True, False, True, False]))]", M),
    ("xp.indices((2, 3)) + x", np.float64(1)),
    ("xp.fromfunction(lambda i, j: i * x + j, (2, 3))", np.float64(2)),
    ("xp.mgrid[0:3, 1:2:4j] + x", np.float64(1)),
    ("[g + x for g in xp.ogrid[0:3, 1:7:2]]", np.float64(1)),
    ("xp.r_[x, 1.0, 0:3]", V),
    ("xp.c_[x, x]", V),
    ("x[xp.diag_indices(3)]", M),
    ("x[xp.diag_indices_from(x)]", S),
    ("x[xp.tril_indices(3, -1)]", M),
    ("x[xp.triu_indices_from(x, 1)]", M),
    ("x[xp.mask_indices(3, np.triu, 1)]", M),
    ("xp.unravel_index(x, (2, 4))", P),
    ("xp.unravel_index(x, (3, 2), order='F')", P),
    ("xp.ravel_multi_index((x, x), (4, 3), mode='wrap')", P),
    ("xp.ravel_multi_index((x, x), (4, 3), mode='clip', order='F')", P),
    ("xp.vander(x)", V),
    ("xp.vander(x, 3, increasing=True)", V),
    ("xp.geomspace(x, 10 * x, 4)", V),
    ("xp.geomspace(x, 10 * x, 4, endpoint=False, axis=1)", V),
    # Neighbours.
    ("xp.trapezoid(x)", M),
    ("xp.trapezoid(x, axis=0, dx=0.5)", M),
    ("xp.trapezoid(x, np.array([0.0, 1, 4, 9]))", M),
    ("xp.trapezoid(x, np.array([0.0, 1, 4, 9]) + 0 * x)", N),
    ("xp.gradient(x)", V),
    ("xp.gradient(x, 0.5, edge_order=2)", S),
    ("xp.gradient(x, np.array([0.0, 1, 4, 9]), axis=1)", M),
    ("xp.gradient(x, np.array([0.0, 1, 4, 9]), axis=1, edge_order=2)", M),
    ("xp.gradient(x, axis=(1, 0))", M),
    ("xp.interp(x, np.array([-1.0, 0.0, 2.0]), np.array([3.0, 5.0, 4.0]))", V),
    ("xp.interp(x, np.arange(3.0), np.ones(3), left=-7.0, right=9.0)", V),
    ("xp.interp(5 * x, np.array([0.0, 1, 2]), np.array([3.0, 5, 4]), period=3)", V),
    ("xp.unwrap(5 * x)", V),
    ("xp.unwrap(5 * x, axis=0, discont=4.0)", M),
    ("xp.unwrap(x, period=6)", N),
    # Representation.
    ("xp.frexp(x)", SPECIAL),
    ("xp.frexp(x.astype('float32'))", V),
    ("xp.ldexp(x, 3)", V),
    ("xp.ldexp(x, np.array([-1080, -1000, 1000, 0, 3, -3, 1]))", V),
    ("xp.ldexp(x, -1030)", SPECIAL),
    ("xp.modf(x)", SPECIAL),
    ("xp.rint(x - 1.5j)", SPECIAL),
    ("xp.rint(2.5 * x + 1j * x[::-1])", F),
    ("xp.spacing(x)", SPECIAL[:8]),
    ("xp.spacing(x)", F),
    ("xp.nan_to_num(x)", SPECIAL),
    ("xp.nan_to_num(x, nan=2.0, posinf=3.0)", SPECIAL[:7].astype(np.float32)),
    ("xp.nan_to_num(x + 1j)", SPECIAL),
    ("xp.gcd(x, 6)", N),
    ("xp.gcd(x, x[::-1])", N),
    ("xp.lcm(x, np.int32(4))", N),
    ("xp.packbits(x > 0)", V),
    ("xp.packbits(x > 0, axis=0, bitorder='little')", M),
    ("xp.unpackbits(x.astype('uint8'))", P),
    ("xp.unpackbits(x.astype('uint8')[:, None], axis=1, count=-3)", P),
    ("xp.unpackbits(x.astype('uint8'), count=60, bitorder='little')", P),
    ("xp.iscomplex(x + 1j * (x > 0))", V),
    ("xp.isreal(x + 1j * (x > 0))", V),
    # Insertion.
    ("xp.insert(x, 2, 5.0)", V),
    ("xp.insert(x, [1, 1, 3], [5.0, 6.0, 7.0])", V),
    ("xp.insert(x, 1, 9.0, axis=1)", M),
    ("xp.insert(x, 1, np.arange(3.0), axis=1)", M),
    ("xp.insert(x, [1], np.arange(3.0)[:, None], axis=1)", M),
    ("xp.insert(x, slice(0, 3), 1.0, axis=0)", M),
    ("xp.delete(x, 2)", V),
    ("xp.delete(x, [0, -1])", V),
    ("xp.delete(x, slice(None, None, 2), axis=1)", M),
    ("xp.delete(x, np.array([True, False, True]), axis=0)", M),
    ("xp.resize(x, (5, 3))", V),
    ("xp.resize(x, 3)", M),
    ("xp.choose(x % 3, (x, 10 * x, 100), mode='clip')", P),
    ("xp.choose(x, (x, 10 * x), mode='clip')", P),
    ("xp.choose(x, (x, 10 * x), mode='wrap')", P),
    # Application.
    ("xp.apply_along_axis(lambda v: v.sum() + v, 0, x)", M),
    ("xp.apply_along_axis(lambda v: v[:2].sum(), 1, x)", M),
    ("xp.apply_along_axis(lambda v: xp.outer(v, v), 0, x)", M),
    ("xp.apply_over_axes(xp.sum, x, (0, 1))", M),
    ("xp.piecewise(x, [x < 0, x > 1], [lambda v: -v, lambda v: v * v, 7.0])", V),
    ("xp.piecewise(x, [x < 0], [-1.0])", M),
    ("xp.vectorize(lambda a, b: a * b + 1)(x, x[:1])", M),
    ("xp.vectorize(lambda a, b: a @ b, signature='(n,m),(m)->(n)')(x[None], x)", S),
    ("xp.vectorize(lambda a: (a, a + 1))(x)", V),
    ("xp.block([[x, x], [x[:1], x[1:2]]])", M),
    ("xp.block([x[0], 5.0, x[1]])", M),
    # Polynomials.
    ("xp.polyval(x, 2.5)", V),
    ("xp.polyval(x[:3], x)", V),
    ("xp.polyadd(x, x[:3])", V),
    ("xp.polysub(x[:3], x)", V),
    ("xp.polymul(x, x[:3])", V),
    ("xp.polydiv(x, x[:3])[0]", V),
    ("xp.polyder(x)", V),
    ("xp.polyder(x, 2)", V),
    ("xp.polyint(x)", V),
    ("xp.polyint(x, 2, [1.0, 2.0])", V),
    ("xp.poly(x)", V[:3]),
    ("xp.polyfit(np.arange(7.0), x, 2)", V),
    ("xp.polyfit(np.arange(3.0), x, 1, w=np.array([1.0, 2.0, 0.5]))", M),
    ("xp.polyfit(np.arange(7.0), x, 2, cov=True)", V),
    ("xp.polyfit(np.arange(7.0), x, 2, cov='unscaled')[1]", V),
    ("xp.polyfit(np.arange(3.0), x, 1, cov='unscaled')[1]", M),
    ("xp.polyfit(np.arange(3.0), x, 1, full=True)[:2]", M),
    # Convolution.
    ("xp.convolve(x, x[:3])", V),
    ("xp.convolve(x[:4], x, 'same')", V),
    ("xp.convolve(x, x[:2], 'valid')", V),
    ("xp.convolve(x, x)", P),
    ("xp.correlate(x, x[:3])", V),
    ("xp.correlate(x[:3], x + 1j, 'full')", V),
    ("xp.correlate(x[:4], x, 'same')", V),
    # Padding.
    ("xp.pad(x, ((1, 2), (0, 3)), constant_values=((1, 2), (3, 4)))", M),
    ("xp.pad(x, (9, 8), mode='reflect')", V),
    ("xp.pad(x, (9, 18), mode='symmetric')", V),
    ("xp.pad(x, (9, 18), mode='wrap')", V),
    ("xp.pad(x, (3, 2), mode='reflect', reflect_type='odd')", V),
    ("xp.pad(x, (9, 20), mode='symmetric', reflect_type='odd')", V),
    ("xp.pad(x, 2, mode='linear_ramp', end_values=(3, 4))", M),
    ("xp.pad(x, 2, mode='maximum')", M),
    ("xp.pad(x, (1, 2), mode='mean', stat_length=2)", M),
    ("xp.pad(x, (1, 2), mode='mean')", N),
    ("xp.pad(x, (1, 2), mode='minimum', stat_length=((1, 2), (3, 4)))", N),
    # NaN left out.
    ("xp.nansum(x, axis=0)", HOLES),
    ("xp.nanprod(x, axis=1, keepdims=True)", HOLES),
    ("xp.nancumsum(x, axis=1)", HOLES),
    ("xp.nancumprod(x)", HOLES),
    ("xp.nanmean(x, axis=0, dtype='float32')", HOLES),
    ("xp.nanvar(x, axis=1, ddof=1)", HOLES),
    ("xp.nanvar(x + 1j)", HOLES),
    ("xp.nanstd(x)", HOLES),
    ("xp.nanstd(x)", N),
    ("xp.nanmin(x, axis=1)", HOLES),
    ("xp.nanargmax(x, axis=1)", HOLES),
    ("xp.nanargmin(x)", HOLES),
    ("xp.nansum(x, axis=1, where=x > 0, initial=3.0)", HOLES),
    ("xp.nanmax(x, axis=1, where=x > 0, initial=-3.0)", HOLES),
    ("xp.nanmean(x, axis=1, where=x < 1)", HOLES),
    ("xp.nanstd(x, axis=0, where=x < 2, keepdims=True)", HOLES),
    ("xp.average(x, axis=0, weights=np.arange(3.0), returned=True)", M),
    ("xp.average(x, axis=1, keepdims=True)", M),
    ("xp.ediff1d(x, to_end=np.array([3.0, 4.0]), to_begin=1.0)", M),
    ("xp.logspace(x[:2], x[2:4], 3, axis=-1)", V),
    ("xp.tile(x, reps=2)", V),
    ("xp.pad(x, pad_width=1, mode='edge')", V),
    ("xp.take_along_axis(x, indices=np.array([[1], [0], [3]]), axis=1)", M),
    # Statistics.
    ("xp.cov(x)", M),
    ("xp.cov(x, rowvar=False, bias=True)", M),
    ("xp.cov(x, 2 * x[::-1], ddof=0)", V),
    ("xp.cov(x, fweights=np.array([1, 2, 3, 1]))", M),
    ("xp.cov(x, aweights=np.array([1.0, 2.0, 0.5, 1.0]))", M),
    ("xp.corrcoef(x)", M),
    ("xp.corrcoef(x, 1j * x)", M),
    # Products, windows and parts.
    ("xp.matvec(x, x[0])", M),
    ("xp.matvec(x[None], x)", M),
    ("xp.vecmat(x[:, 0] + 1j, x)", M),
    ("xp.array_equiv(x, x[:1])", M * 0),
    ("xp.array_equiv(x, x[:2])", M * 0),
    ("xp.dsplit(x[None], 2)", M),
    ("xp.bartlett(7) * x", V),
    ("xp.blackman(7) + x", V),
    ("xp.hamming(7) * x", V),
    ("xp.hanning(7) * x", V),
    ("xp.hanning(1) * x", V),
    ("xp.kaiser(7, 3.5) * x", V),
    ("xp.i0(x * 5)", V),
    ("xp.diagonal(x, 9)", M),
    ("xp.trace(x[:0], 2)", M),
    # Repeats.
    ("xp.repeat(x, np.array([1, 0, 2]), axis=0)", M),
    ("xp.repeat(x, [2])", V),
    ("xp.compress(np.array([True, False, True]), x, axis=0)", M),
    ("xp.extract(np.array([True, False, True]), x[:3])", V),
]


def formula(text):
    return lambda xp: eval(f"lambda x: {text}", {"xp": xp, "np": np})


@pytest.mark.parametrize(("text", "x"), FORMULAS, ids=[text for text, _ in FORMULAS])
def test_formula(text, x, check):
    make = formula(text)
    check(make(anp), make(np), x)


# Named so by NumPy too, and so traced through its own functions: all but these.
NUMPYS_OWN = ("xp.r_", "xp.c_", "xp.vectorize")
DISPATCHED = [(text, x) for text, x in FORMULAS if not text.startswith(NUMPYS_OWN)]


@pytest.mark.parametrize(
    ("text", "x"), DISPATCHED, ids=[text for text, _ in DISPATCHED]
)
def test_formula_of_numpy_functions_traced(text, x, traced):
    function = formula(text)(np)
    with np.errstate(all="ignore"):
        expected = tree.leaves(function(x))
    for ours, theirs in zip(traced(function, x), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    "p",
    [
        np.array([1.0, -6.0, 11.0, -6.0]),
        np.array([0.0, 0.0, 2.0, 0.0, 8.0, 0.0]),
        np.array([3.0]),
        np.array([1.0, 2j]),
        np.array([1, -6, 11, -6], np.int8),
    ],
)
def test_roots(p, traced):
    expected = np.sort_complex(np.roots(p))
    np.testing.assert_allclose(np.sort_complex(anp.roots(p)), expected, atol=1e-12)
    if p[0] and p[-1]:
        (result,) = traced(lambda p: anp.roots(p, strip_zeros=False), p)
        np.testing.assert_allclose(np.sort_complex(result), expected, atol=1e-12)
    with pytest.raises(AbstractValueError, match="strip_zeros=False"):
        trace_function(anp.roots, (p,), {}, abstract=True)


def test_gcd_is_a_loop_when_compiled():
    x, y = P * 12, np.array([18, 4, 0, 36, 7, 30])
    np.testing.assert_array_equal(jit(anp.gcd)(x, y), np.gcd(x, y))
    np.testing.assert_array_equal(vmap(lambda v: anp.lcm(v, 6))(x), np.lcm(x, 6))
    least = np.array([-128, -7], np.int8), np.array([-7, -128], np.int8)
    np.testing.assert_array_equal(jit(anp.gcd)(*least), np.gcd(*least))


def test_einsum_path_is_numpys():
    path, text = anp.einsum_path("ij,jk,kl->il", M, S, S)
    assert (path, text) == np.einsum_path("ij,jk,kl->il", M, S, S)


def test_numpy_functions_of_values_are_numpys():
    assert anp.array_repr is np.array_repr
    assert anp.issubdtype(anp.float32, anp.floating)
    assert anp.issubdtype(anp.bfloat16, anp.floating)
    assert not anp.issubdtype(anp.bfloat16, anp.integer)
    with pytest.raises(ArgumentError, match="array_repr cannot be traced"):
        trace_function(np.array_repr, (V,), {}, abstract=True)
