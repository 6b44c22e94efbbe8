"""Fourier transforms beside NumPy's and JAX's: values, gradients, lengths, norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn import fft
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from tests.common_functions import same_on_threads
from tests.lowered_on_gpu import lowered

RNG = np.random.default_rng(21)


def draw(dtype: Any, *shape: int) -> Any:
    values = RNG.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * RNG.standard_normal(shape)
    return values.astype(dtype)


ONE = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
SEVERAL = ["fftn", "ifftn", "rfftn", "irfftn"]
TWO = ["fft2", "ifft2", "rfft2", "irfft2"]


def operand(name: str, dtype: Any, *shape: int) -> Any:
    real = name in ("rfft", "rfftn", "rfft2", "ihfft")
    return draw(dtype, *shape).real if real else draw(dtype, *shape)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128], ids=str)
@pytest.mark.parametrize("name", ONE)
def test_transforms_along_an_axis_are_those_of_numpy(name: str, dtype: Any) -> None:
    x = operand(name, dtype, 3, 9, 4)
    bound = 1e-5 if dtype == np.complex64 else 1e-13
    for n, axis, norm in ((None, 1, None), (6, -1, "ortho"), (11, 1, "forward")):
        want = getattr(np.fft, name)(x, n, axis, norm)

        def run(x: Any, n: Any = n, axis: int = axis, norm: Any = norm) -> Any:
            return getattr(af.fft, name)(x, n, axis, norm)

        for have in (run(x), af.jit(run)(x)):
            assert have.dtype == want.dtype
            np.testing.assert_allclose(have, want, bound, bound)


@pytest.mark.parametrize("name", [*SEVERAL, *TWO])
def test_transforms_along_several_axes_are_those_of_numpy(name: str) -> None:
    x = operand(name, np.complex128, 3, 4, 6)
    options: list[dict[str, Any]] = [{}, {"axes": (0, 2), "norm": "ortho"}]
    options.append({"s": (5, 4), "axes": (1, 0)})
    for given in options:
        want = getattr(np.fft, name)(x, **given)
        have = af.jit(lambda x, g=given: getattr(af.fft, name)(x, **g))(x)
        np.testing.assert_allclose(have, want, 1e-13, 1e-13)


def test_real_and_whole_numbers_become_complex() -> None:
    for dtype, want in (
        (np.int64, np.complex128),
        (np.float32, np.complex64),
        (np.float16, np.complex64),
    ):
        x = np.arange(6).astype(dtype)
        have = af.fft.fft(x)
        assert have.dtype == want
        np.testing.assert_allclose(have, np.fft.fft(x.astype(float)), 1e-6, 1e-6)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_gradients_are_those_of_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    x = operand(name, np.complex64, 2, 7)
    for n in (7, 8):

        def loss(library: Any, x: Any, n: int = n) -> Any:
            out = getattr(library.numpy.fft if library is jax else af.fft, name)(x, n)
            weights = np.arange(1.0, out.shape[-1] + 1).astype(np.float32)
            return library.numpy.sum(library.numpy.abs(out) ** 2 * weights)

        have = af.jit(af.grad(lambda x: loss(af, x)))(x)
        want = jax.grad(lambda x: loss(jax, x))(x)
        np.testing.assert_allclose(have, want, 2e-4, 2e-4)


def test_mapping_is_a_loop() -> None:
    x = draw(np.complex128, 3, 5, 4)
    have = af.jit(af.vmap(lambda x: af.fft.fft(x, axis=0), 2, 1))(x)
    np.testing.assert_allclose(have, np.moveaxis(np.fft.fft(x, axis=0), 2, 1), 1e-13)


def test_rows_on_threads_have_the_same_bits() -> None:
    x = draw(np.complex64, 100, 512)
    run = af.jit(af.fft.fft)
    same_on_threads(lambda: run(x))


def test_frequencies_and_shifts() -> None:
    for n in (1, 4, 5):
        np.testing.assert_array_equal(af.fft.fftfreq(n, 0.5), np.fft.fftfreq(n, 0.5))
        np.testing.assert_array_equal(af.fft.rfftfreq(n, 2.0), np.fft.rfftfreq(n, 2.0))
    assert af.fft.fftfreq(4, dtype=np.float32).dtype == np.float32
    x = RNG.standard_normal((4, 5, 3))
    for axes in (None, 1, (0, 2)):
        np.testing.assert_array_equal(
            af.fft.fftshift(x, axes), np.fft.fftshift(x, axes)
        )
        back = af.fft.ifftshift(af.fft.fftshift(x, axes), axes)
        np.testing.assert_array_equal(back, x)


def test_what_cannot_be_transformed_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'backward', 'ortho' or 'forward'"):
        af.fft.fft(np.ones(3), norm="both")
    with pytest.raises(DTypeError, match="takes real arrays"):
        af.fft.rfft(np.ones(3, np.complex64))
    with pytest.raises(ShapeError, match="at least 1 element"):
        af.fft.fft(np.ones(3), n=0)
    with pytest.raises(ShapeError, match="2 extents for 1 axis"):
        af.fft.fftn(np.ones((3, 3)), s=(2, 2), axes=(0,))
    with pytest.raises(ArgumentError, match="at least 1 element"):
        af.fft.fftfreq(0)


@pytest.mark.parametrize("length", [2, 5, 8])
def test_an_emulated_gpu_transforms_as_cufft_does(length):
    x = np.random.default_rng(0).normal(size=(3, length)).astype(np.float32)
    for function in (fft.fft, fft.ifft, fft.rfft, lambda x: fft.irfft(x * 1j)):
        (found,) = run_plan(lowered(function, x), [x])
        wanted = af.jit(function, device="reference")(x)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
