"""What NumPy or JAX refuse, refused with the user's line and what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.errors import ArgumentError, ArrayfnError, DTypeError, ShapeError

ONES = np.ones(3)
SQUARE = np.ones((2, 2))
WINDOWED = np.ones((4, 4))
IMAGE = np.ones((1, 1, 4, 4))


def patches(padding: Any) -> Any:
    return lax.conv_general_dilated_patches(IMAGE, (2, 2), (1, 1), padding)


def windows(sizes: Any) -> Any:
    return lax.reduce_window(WINDOWED, 0.0, lax.add, sizes, (1, 1), "VALID")


REFUSED: list[tuple[Callable[[], Any], type[ArrayfnError], str]] = [
    (lambda: anp.zeros(1.5), ArgumentError, "must be an integer, not 1.5"),
    (lambda: anp.ones((2, 1.5)), ArgumentError, "must be an integer, not 1.5"),
    (lambda: anp.reshape(ONES, (3, 1.0)), ArgumentError, "must be an integer, not 1.0"),
    (lambda: anp.sum(SQUARE, axis="x"), ArgumentError, "must be an integer, not 'x'"),
    (lambda: anp.fft.fft(SQUARE, axis=[0]), ArgumentError, r"an integer, not \[0\]"),
    (lambda: anp.fft.fftn(SQUARE, axes=1), ArgumentError, r"write axes=\(1,\)"),
    (lambda: anp.fft.irfft2(SQUARE, s=3), ArgumentError, r"write s=\(3,\)"),
    (lambda: anp.arange("a"), ArgumentError, "arange takes real numbers .* not 'a'"),
    (lambda: anp.arange(0, None, 1j), ArgumentError, "arange takes real numbers"),
    (lambda: anp.arange(0, 3, 0), ArgumentError, "from 0 to 3 by 0 does not end"),
    (lambda: anp.arange(np.inf), ArgumentError, "from 0 to inf by 1 does not end"),
    (lambda: anp.fft.rfftfreq([3]), ArgumentError, r"an integer, not \[3\]"),
    (lambda: anp.fft.fftfreq(3, [1.0]), ArgumentError, "distance of samples, is a num"),
    (
        lambda: anp.tensordot(SQUARE, SQUARE, axes="bad"),
        ArgumentError,
        "a pair of axes .* not 'bad'",
    ),
    (lambda: anp.tensordot(SQUARE, SQUARE, -1), ArgumentError, "how many are summed"),
    (lambda: anp.tensordot(SQUARE, SQUARE, (1, 2, 3)), ArgumentError, "a pair of axes"),
    (lambda: patches(3), ArgumentError, "pair of integers for each axis, not 3"),
    (lambda: patches([(0, "a"), (0, 0)]), ArgumentError, "pair of integers"),
    (lambda: windows((-1, 2)), ShapeError, r"of 1 or more for each axis.*\(-1, 2\)"),
    (lambda: windows((0, 2)), ShapeError, "of 1 or more"),
    (lambda: windows(2), ArgumentError, "a sequence of integers, not 2"),
    (lambda: anp.cumulative_sum(SQUARE), ShapeError, "give it an axis"),
    (lambda: anp.cumulative_prod(SQUARE), ShapeError, "give it an axis"),
    (lambda: anp.cumulative_sum(1.0), ShapeError, "has an axis at least"),
    (
        lambda: anp.pad(ONES, 1, mode="constant", stat_length=2),
        ArgumentError,
        "mode 'constant' takes only constant_values, not stat_length",
    ),
    (
        lambda: anp.pad(ONES, 1, mode="edge", constant_values=2),
        ArgumentError,
        "takes no options, not constant_values",
    ),
    (
        lambda: lax.fft(SQUARE, "fft", (3,)),
        ShapeError,
        "of lengths .3,. is of last axes .3,., not of .*arrayfn.numpy.fft pads and cut",
    ),
    (lambda: lax.fft(SQUARE + 0j, "irfft", (5,)), ShapeError, r"of last axes \(3,\)"),
    (lambda: lax.fft(ONES + 0j, "fft", (3, 3)), ShapeError, r"of last axes \(3, 3\)"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_wrong_arguments_are_refused(
    call: Callable[[], Any], error: type[ArrayfnError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert "test_refusals.py" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["sum", "prod", "mean", "var", "std", "any", "all", "nansum", "nanmean"]
)
def test_where_is_of_booleans(name: str) -> None:
    with pytest.raises(
        DTypeError, match=r"where must be an array of bools, not f64\[3\]; write"
    ):
        getattr(anp, name)(ONES, where=np.array([1.0, 0.0, 2.0]))


@pytest.mark.parametrize("name", ["max", "min", "nanmax", "nanmin"])
def test_where_of_extrema_is_of_booleans(name: str) -> None:
    with pytest.raises(DTypeError, match="where must be an array of bools"):
        getattr(anp, name)(ONES, initial=0.0, where=np.array([1, 0, 2]))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "nansum", "nanmax"])
def test_initial_is_a_scalar(name: str) -> None:
    with pytest.raises(ShapeError, match=r"initial must be a scalar, not f64\[2\]"):
        getattr(anp, name)(ONES, initial=np.array([1.0, 2.0]))


def test_lax_fft_takes_the_lengths_that_there_are() -> None:
    x = np.arange(8.0).reshape(2, 4)
    np.testing.assert_allclose(lax.fft(x, "rfft", (4,)), np.fft.rfft(x))
    back = lax.fft(np.fft.rfft(x), "irfft", (4,))
    np.testing.assert_allclose(back, x, atol=1e-14)
