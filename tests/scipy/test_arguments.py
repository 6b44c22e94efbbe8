"""Arguments of SciPy's functions that JAX's functions of these names take."""

import ml_dtypes
import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import scipy.signal
import scipy.special
from scipy.spatial.transform import Rotation as TheirRotation

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import image, lax, nn, random
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.scipy import fft, interpolate, linalg, optimize, signal, special
from arrayfn.scipy.spatial.transform import Rotation, Slerp
from arrayfn.test_util import check_grads

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 300))
Z = RNG.normal(size=(3, 4)) + 1j * RNG.normal(size=(3, 4))

# The gamma function of complex numbers.


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0, 300.0])
def test_loggamma_of_complex_numbers(scale):
    z = scale * (RNG.normal(size=500) + 1j * RNG.normal(size=500))
    expected = scipy.special.loggamma(z)
    found = af.jit(special.loggamma)(z)
    assert np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected))) < 5e-14


def test_loggamma_on_both_sides_of_its_branch_cut():
    z = np.array([-0.5, complex(-0.5, -0.0), -2.5 + 1e-12j, -2.5 - 1e-12j])
    expected = scipy.special.loggamma(z)
    np.testing.assert_allclose(special.loggamma(z), expected, rtol=1e-14)


def test_loggamma_near_its_zeros_is_relative():
    z = np.array([1 + 1e-9j, 1.1 - 0.1j, 2 - 1e-8, 2.1 + 0.05j])
    expected = scipy.special.loggamma(z)
    np.testing.assert_allclose(special.loggamma(z), expected, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_gamma_of_complex_numbers(dtype):
    z = np.array([0.5 + 1j, -1.5, 3 - 2j, -2.5 + 1e-6j]).astype(dtype)
    found = special.gamma(z)
    assert found.dtype == dtype
    rtol = 1e-13 if dtype == np.complex128 else 2e-6
    np.testing.assert_allclose(found, scipy.special.gamma(z), rtol=rtol)


def test_gamma_of_a_complex_pole_is_nan():
    found = special.gamma(np.array([0j, -1 + 0j, -5 + 0j]))
    assert np.all(np.isnan(found.real) & np.isnan(found.imag))


@pytest.mark.parametrize("function", [special.gamma, special.loggamma])
def test_derivatives_of_complex_gamma(function):
    check_grads(function, (np.array([0.3 + 1j, -1.5 + 0.7j, 4 - 2j]),), order=1)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("b", [None, 2.0])
def test_logsumexp_of_complex_numbers_with_their_sign(axis, b):
    found = special.logsumexp(Z, axis, b, return_sign=True)
    expected = scipy.special.logsumexp(Z, axis, b, return_sign=True)
    assert found[0].dtype == np.float64
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)


# Signals and images.


@pytest.mark.parametrize("boundary", ["zeros", "even", "odd", "constant", None])
@pytest.mark.parametrize("padded", [True, False])
def test_stft_continues_the_signal(boundary, padded):
    options = {"boundary": boundary, "padded": padded, "nperseg": 64}
    expected = scipy.signal.stft(X, **options)
    for ours, theirs in zip(signal.stft(X, **options), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-14)


def test_stft_refuses_a_boundary():
    with pytest.raises(ArgumentError, match="boundaries zeros, constant, even, odd"):
        signal.stft(X, boundary="wrap")
    with pytest.raises(ShapeError, match="half a segment"):
        signal.stft(X[:, :8], boundary="even", window=np.ones(64), nperseg=64)


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_cosine_transforms_of_complex_numbers(kind):
    np.testing.assert_allclose(fft.dct(Z, kind), scipy.fft.dct(Z, kind), atol=1e-13)
    found = af.jit(lambda z: fft.idctn(z, kind, norm="ortho"))(Z)
    expected = scipy.fft.idctn(Z, kind, norm="ortho")
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_cosine_transform_of_more_axes_than_there_are():
    with pytest.raises(ShapeError, match="3 extents for an array with 2 axes"):
        fft.dctn(X, s=(2, 3, 4))


def test_cubic_resizing_as_in_pytorch():
    # From https://github.com/jax-ml/jax/issues/15768
    expected = [-0.0703, -0.0373, 0.0156, 0.0855, 0.1306]
    expected += [0.1966, 0.2418, 0.3116, 0.3646, 0.3976]
    x = np.arange(10.0).reshape(2, 5) / 9
    found = image.resize(x, (4, 10), "bicubic-pytorch", antialias=False)
    np.testing.assert_allclose(found[0], expected, atol=1e-4)
    smoothed = image.resize(x, (2, 3), "bicubic-pytorch")
    np.testing.assert_array_equal(smoothed, image.resize(x, (2, 3), "cubic"))


def test_area_resizing_averages():
    x = np.arange(8.0).reshape(2, 4)
    found = image.resize(x, (1, 2), "area")
    np.testing.assert_allclose(found, [[2.5, 4.5]])
    wider = image.resize(x, (2, 8), "area")
    np.testing.assert_allclose(wider, np.repeat(x, 2, axis=1))


# Matrices.


def test_solve_sylvester_broadcasts():
    a, b = RNG.normal(size=(2, 1, 3, 3)), RNG.normal(size=(5, 2, 2))
    c = RNG.normal(size=(3, 2))
    x = af.jit(linalg.solve_sylvester)(a, b, c)
    assert x.shape == (2, 5, 3, 2)
    np.testing.assert_allclose(a @ x + x @ b, np.broadcast_to(c, x.shape), atol=1e-9)


def test_error_estimate_of_funm():
    a = RNG.normal(size=(4, 4)) + 1j * RNG.normal(size=(4, 4))
    found, error = linalg.funm(a, np.exp, disp=False)
    expected, their_error = scipy.linalg.funm(a, np.exp, disp=False)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(error, their_error, rtol=1e-6)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_tridiagonal_reads_one_triangle(lower, dtype):
    a = RNG.normal(size=(5, 5)) + (1j if dtype == np.complex128 else 0)
    name = "dsytrd" if dtype == np.float64 else "zhetrd"
    *expected, _ = getattr(scipy.linalg.lapack, name)(a, lower=lower)
    for ours, theirs in zip(
        lax.linalg.tridiagonal(a, lower=lower), expected, strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-13)


def test_matrices_without_elements():
    assert linalg.toeplitz([], []).shape == (0, 0)
    assert linalg.toeplitz(np.zeros(3), np.zeros(0)).shape == (3, 0)
    assert linalg.fiedler_companion(np.ones((2, 1))).shape == (2, 0, 0)


@pytest.mark.parametrize("a", [np.zeros((3, 2)), RNG.normal(size=(3, 2)), np.eye(2)])
def test_lstsq_leaves_out_residuals_as_numpy(a):
    expected = np.linalg.lstsq(a, np.ones_like(a))[1]
    found = anp.linalg.lstsq(a, np.ones_like(a), numpy_resid=True)[1]
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: linalg.dft(4, dtype=np.float32), DTypeError),
        (lambda: linalg.leslie([1.0], []), ShapeError),
        (lambda: linalg.convolution_matrix(5.0, 3), ShapeError),
        (lambda: anp.linalg.matrix_rank(X, tol=0.1, rtol=0.1), ArgumentError),
        (lambda: anp.linalg.pinv(X, rcond=0.1, rtol=0.1), ArgumentError),
    ],
)
def test_arguments_that_are_refused(call, error):
    with pytest.raises(error):
        call()


# Others.


def test_quaternions_with_the_scalar_first():
    q = RNG.normal(size=(3, 4))
    found = Rotation.from_quat(q, scalar_first=True)
    expected = TheirRotation.from_quat(q, scalar_first=True)
    np.testing.assert_allclose(found.as_quat(), expected.as_quat(), rtol=1e-14)
    np.testing.assert_allclose(
        found.as_quat(scalar_first=True), expected.as_quat(scalar_first=True)
    )


def test_slerp_at_a_number_keeps_the_dtype():
    q = RNG.normal(size=(3, 4)).astype(np.float32)
    slerp = Slerp.init(np.arange(3, dtype=np.float32), Rotation.from_quat(q))
    assert slerp(0.5).as_quat().dtype == np.float32


def test_interpolator_takes_a_traced_fill_value():
    def value(filler):
        grid = (np.array([0.0, 1.0]),)
        f = interpolate.RegularGridInterpolator(
            grid, np.array([3.0, 5.0]), fill_value=filler
        )
        return f(np.array([[0.25], [2.0]]))

    np.testing.assert_array_equal(af.jit(value)(-1.0), [3.5, -1.0])


def test_minimize_takes_none_for_a_default():
    def square(x):
        return ((x - 3.0) ** 2).sum()

    found = optimize.minimize(square, np.zeros(2), options={"maxiter": None})
    np.testing.assert_allclose(found.x, [3.0, 3.0], atol=1e-5)


def test_unwrap_of_small_integers_is_numpys():
    x = np.array([0, 3, -3, 6], np.int8)
    assert anp.unwrap(x).dtype == np.unwrap(x).dtype
    np.testing.assert_allclose(anp.unwrap(x), np.unwrap(x))


def test_one_hot_of_a_list():
    np.testing.assert_array_equal(nn.one_hot([0, 2], 3), [[1, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal"])
def test_initializer_keeps_its_dtype(name):
    make = getattr(nn.initializers, name)(np.float32(1), ml_dtypes.bfloat16)
    assert make(random.key(0), (2,)).dtype == ml_dtypes.bfloat16
