"""Convolutions, trends and spectra beside SciPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.signal

import arrayfn as af
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.scipy import signal

RNG = np.random.default_rng(31)


def draw(*shape: int, complex: bool = False) -> Any:
    x = RNG.standard_normal(shape)
    return x + 1j * RNG.standard_normal(shape) if complex else x


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_convolutions_are_those_of_scipy(name: str, mode: str) -> None:
    cases = [
        (draw(20), draw(5)),
        (draw(5), draw(20)),
        (draw(7, 8), draw(4, 3)),
        (draw(100), draw(90, complex=True)),
        (draw(3, 4, 5), draw(2, 2, 3)),
    ]
    for x, y in cases:
        want = getattr(scipy.signal, name)(x, y, mode)
        have = af.jit(lambda x, y: getattr(signal, name)(x, y, mode))(x, y)
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, 1e-12, 1e-12)
    x, y = cases[2]
    transformed = signal.convolve(x, y, mode, method="fft")
    np.testing.assert_allclose(transformed, scipy.signal.convolve(x, y, mode), 1e-12)
    whole = signal.convolve(np.arange(9), np.array([1, -2, 3]), mode)
    want = scipy.signal.convolve(np.arange(9), np.array([1, -2, 3]), mode)
    np.testing.assert_array_equal(whole, want)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve2d", "correlate2d"])
def test_convolutions_of_matrices_have_boundaries(name: str, mode: str) -> None:
    for kernel in (draw(3, 3), draw(2, 4)):
        x = draw(6, 7)
        for boundary, fill in (("fill", 0.0), ("fill", 2.0), ("wrap", 0), ("symm", 0)):
            given = (x, kernel, mode, boundary, fill)
            want = getattr(scipy.signal, name)(*given)
            have = getattr(signal, name)(*given)
            np.testing.assert_allclose(have, want, 1e-12, 1e-12)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_correlations_of_complex_matrices_conjugate_as_scipy(mode: str) -> None:
    small, large = draw(2, 2, complex=True), draw(3, 4, complex=True)
    for x, y in ((small, large), (large, small)):
        for name in ("correlate", "correlate2d"):
            want = getattr(scipy.signal, name)(x, y, mode)
            have = getattr(signal, name)(x, y, mode)
            np.testing.assert_allclose(have, want, 1e-12, 1e-12)


def test_transforms_convolve_along_some_axes() -> None:
    x, y = draw(3, 20, 4), draw(1, 7, 4)
    for mode in ("full", "same", "valid"):
        want = scipy.signal.fftconvolve(x, y, mode, axes=1)
        np.testing.assert_allclose(
            signal.fftconvolve(x, y, mode, axes=1), want, 1e-12, 1e-12
        )


def test_gradients_of_both_ways_agree() -> None:
    x, y = draw(30), draw(8)
    weights = np.arange(37.0)

    def loss(method: str) -> Any:
        def total(x: Any, y: Any) -> Any:
            out = signal.convolve(x, y, method=method)
            return af.numpy.sum(out * out * weights)

        return af.jit(af.grad(total, (0, 1)))(x, y)

    for a, b in zip(loss("direct"), loss("fft"), strict=True):
        np.testing.assert_allclose(a, b, 1e-10, 1e-10)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.bool_])
def test_short_integers_are_computed_in_float64(dtype: type) -> None:
    x = np.random.default_rng(0).normal(0, 90, 40).astype(np.int64).astype(dtype)
    for name, options in (
        ("fftconvolve", (x, x)),
        ("convolve", (x, x, "same", "fft")),
        ("detrend", (x,)),
        ("detrend", (x, -1, "constant")),
    ):
        want = getattr(scipy.signal, name)(*options)
        result = getattr(signal, name)(*options)
        assert result.dtype == want.dtype
        np.testing.assert_allclose(result, want, 1e-11, 1e-11)


def test_detrend_is_that_of_scipy() -> None:
    x = draw(3, 40) + np.arange(40)
    for options in (
        {},
        {"type": "constant"},
        {"axis": 0},
        {"bp": [10, 25]},
        {"bp": [2, 5, 6]},
    ):
        want = scipy.signal.detrend(x, **options)
        np.testing.assert_allclose(signal.detrend(x, **options), want, 1e-11, 1e-11)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_short_time_transforms_and_back(kind: str) -> None:
    x = draw(2, 300, complex=kind == "complex")
    onesided = kind == "real"
    for options in (
        {"nperseg": 64},
        {"nperseg": 50, "noverlap": 30, "nfft": 64, "window": "hamming"},
        {"nperseg": 32, "boundary": None, "padded": False, "window": np.ones(32)},
    ):
        want = scipy.signal.stft(x, 2.0, return_onesided=onesided, **options)
        have = signal.stft(x, 2.0, return_onesided=onesided, **options)
        for a, b in zip(have, want, strict=True):
            np.testing.assert_allclose(a, b, 1e-11, 1e-12)
    spectra = want[2]
    given = {"window": np.ones(32), "boundary": False, "input_onesided": onesided}
    # SciPy gives as many times as the first axis is long.
    _, expected = scipy.signal.istft(spectra, 2.0, **given)
    times, back = signal.istft(spectra, 2.0, **given)
    np.testing.assert_allclose(back, expected, 1e-11, 1e-12)
    np.testing.assert_array_equal(times, np.arange(288) / 2.0)
    _, _, spectra = signal.stft(x, nperseg=64, return_onesided=onesided)
    _, back = af.jit(lambda z: signal.istft(z, input_onesided=onesided))(spectra)
    np.testing.assert_allclose(back[:, :300], x, 1e-11, 1e-12)


def test_power_spectra_are_those_of_scipy() -> None:
    x, y = draw(3, 500), draw(3, 500)
    for options in (
        {},
        {"nperseg": 100, "scaling": "spectrum", "window": "blackman"},
        {"nperseg": 101, "average": "median", "fs": 3.0, "detrend": "linear"},
        {"nperseg": 64, "return_onesided": False, "detrend": False},
    ):
        for have, want in (
            (signal.csd(x, y, **options), scipy.signal.csd(x, y, **options)),
            (signal.welch(x, **options), scipy.signal.welch(x, **options)),
        ):
            for a, b in zip(have, want, strict=True):
                np.testing.assert_allclose(a, b, 1e-10, 1e-12)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="same number of axes"):
        signal.convolve(np.ones(3), np.ones((3, 3)))
    with pytest.raises(ArgumentError, match="'full', 'same' and 'valid'"):
        signal.convolve(np.ones(3), np.ones(3), "half")
    with pytest.raises(ShapeError, match="as long as the other"):
        signal.convolve(np.ones((3, 5)), np.ones((5, 3)), "valid")
    with pytest.raises(ArgumentError, match="boundaries 'fill', 'wrap'"):
        signal.convolve2d(np.ones((3, 3)), np.ones((2, 2)), boundary="edge")
    with pytest.raises(ArgumentError, match="'linear' and 'constant'"):
        signal.detrend(np.ones(3), type="cubic")
    with pytest.raises(ArgumentError, match="windows are boxcar, hann"):
        signal.stft(np.ones(300), window="kaiser")


@pytest.mark.parametrize("boundary", ["zeros", None])
@pytest.mark.parametrize("nperseg", [32, 33])
def test_times_of_segments_are_their_middles(nperseg: int, boundary: Any) -> None:
    options = {"nperseg": nperseg, "boundary": boundary}
    x = draw(300)
    want = scipy.signal.stft(x, 2.0, **options)
    have = signal.stft(x, 2.0, **options)
    for a, b in zip(have, want, strict=True):
        np.testing.assert_allclose(a, b, 1e-11, 1e-13)


def test_cross_spectra_continue_the_shorter_signal() -> None:
    x, y = draw(300), draw(200)
    for options in ({}, {"nperseg": 64}, {"average": "median", "nperseg": 32}):
        for a, b in ((x, y), (y, x)):
            want = scipy.signal.csd(a, b, **options)
            have = signal.csd(a, b, **options)
            np.testing.assert_allclose(have[0], want[0])
            np.testing.assert_allclose(have[1], want[1], 1e-11, 1e-14)
