"""Convolutions and windows under JAX's names: beside jax.lax, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn import lax
from arrayfn.errors import ArgumentError, ShapeError

jax = pytest.importorskip("jax")
RNG = np.random.default_rng(5)


def draw(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


NHWC = ("NHWC", "HWIO", "NHWC")
CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("same", (2, 3, 7, 8), (4, 3, 3, 3), {"padding": "SAME"}),
    ("strided", (2, 3, 7, 8), (4, 3, 3, 2), {"window_strides": (2, 3)}),
    ("same lower", (1, 2, 6), (3, 2, 4), {"padding": "SAME_LOWER"}),
    (
        "nhwc dilated",
        (2, 9, 8, 3),
        (3, 2, 3, 4),
        {
            "dimension_numbers": NHWC,
            "rhs_dilation": (2, 3),
            "lhs_dilation": (2, 1),
            "padding": ((1, 2), (0, -1)),
        },
    ),
    (
        "grouped",
        (2, 5, 6, 4),
        (3, 3, 2, 6),
        {"dimension_numbers": NHWC, "feature_group_count": 2, "padding": "SAME"},
    ),
    (
        "depthwise",
        (2, 5, 6, 4),
        (3, 3, 1, 8),
        {"dimension_numbers": NHWC, "feature_group_count": 4, "padding": "SAME"},
    ),
    ("batch groups", (4, 3, 5), (6, 3, 2), {"batch_group_count": 2}),
    (
        "pointwise",
        (2, 5, 6, 4),
        (1, 1, 4, 3),
        {"dimension_numbers": NHWC, "window_strides": (2, 2)},
    ),
    ("3d", (1, 2, 4, 5, 6), (3, 2, 2, 2, 2), {"padding": "SAME"}),
    (
        "mixed",
        (6, 2, 5, 3),
        (4, 3, 2, 3),
        {"dimension_numbers": ("WNHC", "OIHW", "HCWN"), "padding": "VALID"},
    ),
    ("no windows", (2, 3, 2), (4, 3, 3), {"padding": "VALID"}),
]


def convolution(library: Any, options: dict[str, Any], ndim: int) -> Callable[..., Any]:
    given = {"padding": "VALID", "window_strides": (1,) * (ndim - 2), **options}

    def run(x: Any, w: Any) -> Any:
        return library.lax.conv_general_dilated(x, w, **given)

    return run


@pytest.mark.parametrize(
    ("x", "w", "options"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_convolutions_and_their_gradients_are_those_of_jax(
    x: Any, w: Any, options: Any
) -> None:
    x, w = draw(*x), draw(*w)
    ours, theirs = (convolution(m, options, x.ndim) for m in (af, jax))
    want = np.asarray(theirs(x, w))
    ct = draw(*want.shape)
    np.testing.assert_allclose(ours(x, w), want, 2e-5, 2e-5)

    def pulled(library: Any, run: Any) -> Callable[..., Any]:
        def both(x: Any, w: Any, ct: Any) -> Any:
            out, pull = library.vjp(run, x, w)
            return (out, *pull(ct))

        return library.jit(both)

    have = pulled(af, ours)(x, w, ct)
    expected = pulled(jax, theirs)(x, w, ct)
    for a, b in zip(have, expected, strict=True):
        np.testing.assert_allclose(a, b, 5e-5, 5e-5)


def test_mapping_over_operand_kernel_and_both() -> None:
    x, w = draw(3, 4, 2, 6), draw(3, 5, 2, 3)

    def run(library: Any, x: Any, w: Any) -> Any:
        return library.lax.conv_general_dilated(x, w, (1,), "SAME")

    for axes in ((0, None), (None, 0), (0, 0)):
        given = [a if d == 0 else a[0] for a, d in zip((x, w), axes, strict=True)]
        have, want = (
            m.jit(m.vmap(lambda a, b, m=m: run(m, a, b), in_axes=axes))(*given)
            for m in (af, jax)
        )
        np.testing.assert_allclose(have, want, 2e-5, 2e-5)


def test_transposed_convolutions_are_those_of_jax() -> None:
    x, w = draw(2, 4, 5, 3), draw(3, 2, 3, 6)
    for options in (
        {"strides": (2, 3), "padding": "SAME"},
        {"strides": (2, 1), "padding": "VALID", "rhs_dilation": (1, 2)},
        {"strides": (1, 2), "padding": ((1, 2), (0, 1))},
    ):
        have = lax.conv_transpose(x, w, **options)
        want = jax.lax.conv_transpose(x, w, **options)
        np.testing.assert_allclose(have, want, 2e-5, 2e-5)
    back = draw(3, 2, 6, 3)
    have, want = (
        m.lax.conv_transpose(x, back, (2, 2), "SAME", transpose_kernel=True)
        for m in (af, jax)
    )
    np.testing.assert_allclose(have, want, 2e-5, 2e-5)


def test_conv_and_patches() -> None:
    x, w = draw(2, 3, 6, 5), draw(4, 3, 3, 2)
    want = jax.lax.conv(x, w, (1, 2), "SAME")
    np.testing.assert_allclose(lax.conv(x, w, (1, 2), "SAME"), want, 2e-5, 2e-5)
    general = ((1, 2), (0, 1)), (1, 2), (2, 1)
    have, want = (
        m.lax.conv_with_general_padding(x, w, (1, 2), *general) for m in (af, jax)
    )
    np.testing.assert_allclose(have, want, 2e-5, 2e-5)
    for numbers in (None, ("NHWC", "OIHW", "NHWC")):
        have, want = (
            m.lax.conv_general_dilated_patches(
                x,
                (2, 3),
                (2, 1),
                "SAME",
                rhs_dilation=(1, 2),
                dimension_numbers=numbers,
            )
            for m in (af, jax)
        )
        np.testing.assert_array_equal(have, want)


def test_integers_and_halves() -> None:
    x, w = np.arange(12).reshape(1, 1, 12), np.array([[[1, -2, 3]]])
    have = af.jit(lambda x, w: lax.conv(x, w, (1,), "VALID"))(x, w)
    np.testing.assert_array_equal(
        have[0, 0], np.correlate(np.arange(12), [1, -2, 3], "valid")
    )
    half = lax.conv(x.astype(np.float16), w.astype(np.float16), (1,), "VALID")
    assert half.dtype == np.float16


def test_a_convolution_that_does_not_fit_says_what_was_given() -> None:
    x, w = draw(1, 3, 8), draw(4, 2, 3)
    with pytest.raises(ShapeError, match=r"3 features, and the kernel .* takes 2"):
        lax.conv_general_dilated(x, w, (1,), "VALID")
    with pytest.raises(ArgumentError, match="'SAME', 'SAME_LOWER', 'VALID'"):
        lax.conv_general_dilated(x, draw(4, 3, 3), (1,), "FULL")
    with pytest.raises(ShapeError, match="strides for each of 1 axes"):
        lax.conv_general_dilated(x, draw(4, 3, 3), (1, 1), "VALID")
    with pytest.raises(ArgumentError, match="letter"):
        lax.conv_general_dilated(
            x, draw(4, 3, 3), (1,), "VALID", dimension_numbers=("NHC", "OIW", "NHC")
        )


WINDOWS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {"window_dimensions": (2, 3)}),
    ("strided", {"window_dimensions": (2, 3), "window_strides": (2, 1)}),
    (
        "same",
        {"window_dimensions": (3, 3), "window_strides": (1, 1), "padding": "SAME"},
    ),
    (
        "dilated",
        {
            "window_dimensions": (2, 3),
            "window_dilation": (2, 1),
            "base_dilation": (1, 2),
            "padding": ((0, 1), (2, 1)),
        },
    ),
    ("long", {"window_dimensions": (1, 40), "window_strides": (1, 3)}),
    ("blocks", {"window_dimensions": (4, 10), "window_strides": (4, 10)}),
]


@pytest.mark.parametrize(
    "options", [c[1] for c in WINDOWS], ids=[c[0] for c in WINDOWS]
)
@pytest.mark.parametrize("kind", ["add", "max", "min"])
def test_reduced_windows_and_their_gradients_are_those_of_jax(
    kind: str, options: Any
) -> None:
    x = draw(9, 50)
    init = {"add": 0.0, "max": -np.inf, "min": np.inf}[kind]

    def run(m: Any) -> Callable[..., Any]:
        return lambda x: m.lax.reduce_window(x, init, getattr(m.lax, kind), **options)

    want = np.asarray(run(jax)(x))
    np.testing.assert_allclose(run(af)(x), want, 1e-5, 1e-5)
    ct = draw(*want.shape)
    if kind != "add" and "window_dilation" in options:
        return  # JAX has no such gradient; ours is the row's, and tested with it.

    def pulled(m: Any) -> Any:
        def back(x: Any) -> Any:
            out, pull = m.vjp(run(m), x)
            return out, pull(ct)[0]

        return m.jit(back)(x)

    for have, expected in zip(pulled(af), pulled(jax), strict=True):
        np.testing.assert_allclose(have, expected, 2e-5, 2e-5)


def test_other_reductions_of_windows() -> None:
    x = RNG.integers(0, 9, (4, 6)).astype(np.int32)
    for kind, init in (("mul", 1), ("bitwise_and", -1), ("bitwise_or", 0), ("max", 5)):
        have, want = (
            m.lax.reduce_window(
                x, np.int32(init), getattr(m.lax, kind), (2, 2), (1, 1), "SAME"
            )
            for m in (af, jax)
        )
        np.testing.assert_array_equal(have, want)
    have = lax.reduce_window(x, np.int32(0), af.numpy.add, (2, 2))
    want = lax.reduce_window(x, np.int32(0), lax.add, (2, 2))
    np.testing.assert_array_equal(have, want)
    have, want = (
        m.lax.reduce_window(
            x, np.int32(0), lambda a, b: a + b + a * b, (2, 2), (1, 1), "VALID"
        )
        for m in (af, jax)
    )
    np.testing.assert_array_equal(have, want)


def test_of_equal_elements_the_first_has_the_derivative() -> None:
    x = np.array([1.0, 3.0, 3.0, 2.0, 3.0])

    def total(x: Any) -> Any:
        return af.numpy.sum(lax.reduce_window(x, -np.inf, lax.max, (3,)))

    np.testing.assert_array_equal(af.grad(total)(x), [0.0, 2.0, 1.0, 0.0, 0.0])


def test_windows_with_nan_are_nan() -> None:
    x = np.array([1.0, np.nan, 0.0, 2.0, 5.0])
    run = af.jit(lambda x: lax.reduce_window(x, -np.inf, lax.max, (2,)))
    np.testing.assert_array_equal(run(x), [np.nan, np.nan, 2.0, 5.0])


@pytest.mark.parametrize("spec", [None, ("NHWC", "HWIO", "NWHC")])
def test_a_kernel_for_each_place_is_that_of_the_place(spec: Any) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 3, 5, 6) if spec is None else (2, 5, 6, 3))
    places = (4, 3)
    shape = (4, 18, *places) if spec is None else (*places, 18, 4)
    kernels = rng.normal(size=shape)
    options = ((1, 2), [(1, 0), (0, 1)])
    have = lax.conv_general_dilated_local(
        x, kernels, *options, (3, 2), dimension_numbers=spec
    )
    for i in range(places[0]):
        for j in range(places[1]):
            own = kernels[:, :, i, j] if spec is None else kernels[i, j].T
            one = own.reshape(4, 3, 3, 2)
            image = x if spec is None else np.moveaxis(x, 3, 1)
            whole = lax.conv_general_dilated(image, one, *options)
            found = have[:, :, i, j] if spec is None else have[:, j, i]
            np.testing.assert_allclose(found, whole[:, :, i, j], rtol=1e-10)
    fewer = np.delete(kernels, 0, axis=2 if spec is None else 0)
    with pytest.raises(ShapeError, match="for each place"):
        lax.conv_general_dilated_local(
            x, fewer, *options, (3, 2), dimension_numbers=spec
        )
