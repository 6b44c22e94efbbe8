"""Long transforms cut into short ones: the same results, and when it is done."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.passes import long_transforms
from arrayfn.passes.long_transforms import cut_long_transforms, factors
from arrayfn.transforms import trace_function


@pytest.fixture
def short(monkeypatch):
    """Rows of 32 elements are long enough."""
    monkeypatch.setattr(long_transforms, "LONG", 32)


def operand(kind, shape, dtype, length):
    rng = np.random.default_rng(length)
    count = length // 2 + 1 if kind == "irfft" else length
    x = rng.standard_normal((*shape, count)) + 1j * rng.standard_normal((*shape, count))
    return (x.real if kind == "rfft" else x).astype(dtype)


def lengths(kind, x, norm, length):
    """The lengths of the transforms that are left."""
    function = getattr(anp.fft, kind)
    traced = trace_function(lambda x: function(x, n=length, norm=norm), (x,), {})
    after = cut_long_transforms(traced.program)
    after.check()
    found = (eq for eq in after.equations if eq.primitive.name == "fft")
    return [eq.params["length"] for eq in found]


CASES = [
    ("fft", (), np.complex64, 64, "backward", [8, 8]),
    ("fft", (3,), np.complex128, 60, "ortho", [6, 10]),
    ("ifft", (2,), np.complex128, 1024, "backward", [32, 32]),
    ("ifft", (), np.complex64, 36, "forward", [6, 6]),
    ("rfft", (), np.float32, 128, "backward", [8, 8]),
    ("rfft", (2,), np.float64, 2048, "forward", [32, 32]),
    ("irfft", (2,), np.complex128, 100, "backward", [5, 10]),
    ("irfft", (), np.complex64, 4096, "ortho", [32, 64]),
]


@pytest.mark.parametrize(("kind", "shape", "dtype", "length", "norm", "left"), CASES)
def test_the_short_ones_make_the_long_one(
    kind, shape, dtype, length, norm, left, short
):
    wide = np.float64 if kind == "rfft" else np.complex128
    x = operand(kind, shape, dtype, length)
    assert lengths(kind, x, norm, length) == left
    expected = getattr(np.fft, kind)(x.astype(wide), length, norm=norm)
    function = getattr(anp.fft, kind)
    result = af.jit(lambda x: function(x, n=length, norm=norm))(x)
    single = dtype in (np.complex64, np.float32)
    assert result.dtype.itemsize == expected.dtype.itemsize // (2 if single else 1)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(
        result, expected, rtol=0, atol=scale * (1e-6 if single else 1e-14)
    )


@pytest.mark.parametrize(
    ("kind", "shape", "length"),
    [
        ("fft", (), 31),  # short
        ("fft", (4,), 64),  # many rows
        ("fft", (), 37),  # a prime
        ("fft", (), 2 * 37),  # one factor is far greater than the other
        ("rfft", (), 65),  # no pairs
        ("irfft", (), 62),  # pairs, but too few
    ],
)
def test_others_stay_whole(kind, shape, length, short):
    dtype = np.float64 if kind == "rfft" else np.complex128
    x = operand(kind, shape, dtype, length)
    assert lengths(kind, x, "backward", length) == [length]


def test_imaginary_ends_are_left_out_of_real_results(short):
    x = operand("irfft", (), np.complex128, 64)
    expected = np.fft.irfft(x)
    x[0] += 5j
    x[-1] -= 3j
    np.testing.assert_allclose(af.jit(anp.fft.irfft)(x), expected, atol=1e-14)


def test_factors_lie_near_the_root():
    assert factors(1 << 20) == (1024, 1024)
    assert factors(1_000_000) == (1000, 1000)
    assert factors(2 * 3 * 5 * 7) == (14, 15)
    assert factors(97) is None
    assert factors(16 * 257) is None
