"""Captured weights, folded: the same results up to rounding, with fewer steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.errors import ArgumentError

RNG = np.random.default_rng(9)
W = RNG.standard_normal((6, 4))
MEAN, VAR, GAMMA, BETA = RNG.uniform(0.5, 2, (4, 4))
KERNEL = RNG.standard_normal((4, 3, 3, 3))
X = RNG.standard_normal((5, 6))
IMAGE = RNG.standard_normal((2, 3, 8, 8))


def normalized(y: Any, shape: tuple[int, ...]) -> Any:
    mean, var, gamma, beta = (v.reshape(shape) for v in (MEAN, VAR, GAMMA, BETA))
    return (y - mean) / anp.sqrt(var + 1e-5) * gamma + beta


def dense(x: Any) -> Any:
    return anp.maximum(normalized(x @ W + BETA, (4,)), 0)


def convolved(x: Any) -> Any:
    y = lax.conv_general_dilated(x, KERNEL, (1, 1), "SAME")
    return normalized(y, (1, 4, 1, 1))


@pytest.mark.parametrize(("function", "x"), [(dense, X), (convolved, IMAGE)])
def test_batch_normalisation_goes_into_weights(function: Any, x: Any) -> None:
    lowered = af.jit(function).lower(x)
    frozen = lowered.freeze("scales")
    np.testing.assert_allclose(
        frozen.compile()(x), lowered.compile()(x), rtol=1e-12, atol=1e-12
    )
    assert "folded into the weights of" in "\n".join(frozen.notes)
    names = [q.primitive.name for q in frozen.program.equations]
    assert "mul" not in names
    assert "div" not in names
    assert names.count("add") == 1


def test_jit_freezes() -> None:
    function = af.jit(dense, freeze="scales")
    np.testing.assert_allclose(function(X), dense(X), rtol=1e-12, atol=1e-12)
    assert function.lower(X).notes == af.jit(dense).lower(X).freeze("scales").notes
    assert af.jit(dense, freeze=True).lower(X).notes == function.lower(X).notes
    with pytest.raises(ArgumentError, match="freeze: there is no recipe 'fp4'"):
        af.jit(dense, freeze=["fp4"])


def test_without_a_recipe_constants_are_computed() -> None:
    lowered = af.jit(lambda x: x @ anp.linalg.inv(W.T @ W) + anp.exp(BETA)).lower(
        X[:, :4]
    )
    frozen = lowered.freeze()
    assert [q.primitive.name for q in frozen.program.equations] == [
        "dot_general",
        "broadcast_in_dim",
        "add",
    ]
    np.testing.assert_allclose(
        frozen.compile()(X[:, :4]), lowered.compile()(X[:, :4]), rtol=1e-9
    )
    assert [note.split(": ")[0] for note in frozen.notes] == ["f64[4,4]", "f64[4]"]


def test_what_is_read_elsewhere_or_varies_is_not_folded() -> None:
    def function(x: Any) -> Any:
        y = x @ W
        return y * GAMMA + y, (x @ W) * X[:, :4], (x @ W) * x[:, :4]

    lowered = af.jit(function).lower(X)
    frozen = lowered.freeze("scales")
    assert not any("folded" in note for note in frozen.notes)
    for have, want in zip(frozen.compile()(X), function(X), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-12)
    with pytest.raises(ArgumentError, match="freeze: there is no recipe 'fp4'"):
        lowered.freeze("fp4")


def as_float32(*arrays: Any) -> list[Any]:
    return [array.astype(np.float32) for array in arrays]


W32, X32, KERNEL32, IMAGE32, HEADS32 = as_float32(
    W, X, KERNEL, IMAGE, RNG.standard_normal((2, 6, 4))
)
# Of each cast: the relative error of a number, and the error of one in terms of the
# largest of its output feature.
CASTS = {
    "bfloat16": (2.0**-8, 0.0),
    "float16": (2.0**-11, 2.0**-25),
    "float8_e4m3fn": (2.0**-4, 2.0**-10 / 448),
    "float8_e5m2": (2.0**-3, 2.0**-17 / 57344),
    "int8": (0.0, 0.5 / 127),
    "int4": (0.0, 0.5 / 7),
}
PRODUCTS: list[tuple[Any, Any, Any, tuple[int, ...]]] = [
    (lambda x, w: x @ w, X32, W32, (0,)),
    (lambda x, w: x @ w, X32[:1], W32, (0,)),
    (lambda x, w: w.T @ x, X32[0], W32, (0,)),
    (lambda x, w: w[:5].T @ x[:5], X32.T, W32, (0,)),
    (lambda x, w: anp.einsum("bi,hio->bho", x, w), X32, HEADS32, (1,)),
    (
        lambda x, w: anp.einsum("hbi,hio->hbo", x, w),
        np.stack([X32] * 2),
        HEADS32,
        (1,),
    ),
    (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"),
        IMAGE32,
        KERNEL32,
        (1, 2, 3),
    ),
]


@pytest.mark.parametrize(
    ("cast", "number"),
    [(cast, k) for cast in CASTS for k in (0, 1)]
    + [(cast, k) for cast in ("bfloat16", "int4") for k in range(2, len(PRODUCTS))],
)
def test_cast_weights_stay_within_the_casts_error(cast: str, number: int) -> None:
    product, x, w, contracted = PRODUCTS[number]
    frozen = af.jit(lambda x: product(x, w), freeze=cast).lower(x)
    is_kept = cast == "int4" and w is KERNEL32
    (note,) = frozen.notes
    assert ("captured as it is" if is_kept else f"stored as {cast}") in note
    relative, of_largest = CASTS[cast]
    largest = np.abs(w).max(axis=contracted, keepdims=True)
    wide = np.abs(w).astype(np.float64)
    errors = wide * (relative + 1e-6) + largest * of_largest
    wide_x, wide_w = x.astype(np.float64), w.astype(np.float64)
    have, want = frozen.compile()(x), np.asarray(product(wide_x, wide_w))
    assert have.dtype == np.float32
    bound = np.asarray(product(np.abs(x).astype(np.float64), errors))
    assert np.all(np.abs(have - want) <= bound + 1e-6)


def test_a_cast_says_what_it_saves_and_a_bundle_is_smaller(tmp_path: Any) -> None:
    w = RNG.standard_normal((64, 32)).astype(np.float32)
    lowered = af.jit(lambda x: x @ w).lower(np.ones((1, 64), np.float32))
    (note,) = lowered.freeze("int4").notes
    assert "stored as int4 with 32 scales, 1152 bytes of 8192, errors up to" in note
    sizes: dict[str, int] = {}
    for name in ("scales", "int4"):
        af.save(lowered.freeze(name), tmp_path / name)
        files = (tmp_path / name).rglob("*.npy")
        sizes[name] = sum(file.stat().st_size for file in files)
    assert sizes["int4"] < sizes["scales"] / 5


def test_a_vector_is_multiplied_by_narrow_weights_in_one_kernel() -> None:
    for cast in CASTS:
        frozen = af.jit(lambda x: x @ W32, freeze=cast).lower(X32[:1])
        assert [kernel.name for kernel in frozen.kernels] == ["rows_0"], cast


def test_layers_of_float8_weights_are_a_kernel_each() -> None:
    # Square ones: the next layer's products must not join the kernel of the one before.
    w = RNG.standard_normal((3, 16, 16)).astype(np.float32)

    def layers(x: Any) -> Any:
        for k in range(3):
            x = anp.tanh(x @ w[k])
        return x

    x = np.ones((1, 16), np.float32)
    frozen = af.jit(layers, freeze="float8_e4m3fn").lower(x)
    assert len(frozen.plan.steps) == 3
    np.testing.assert_allclose(frozen.compile()(x), layers(x), atol=0.3)


def test_weights_are_stored_as_the_product_reads_them() -> None:
    lowered = af.jit(lambda x: anp.einsum("bi,hio->bho", x, HEADS32)).lower(X32)
    frozen = lowered.freeze("transposes")
    (note,) = frozen.notes
    assert note.startswith("f32[2,6,4]: stored with axes (0, 2, 1)")
    assert [len(each.kernels) for each in (lowered, frozen)] == [2, 1]
    np.testing.assert_allclose(
        frozen.compile()(X32), lowered.compile()(X32), rtol=1e-5, atol=1e-5
    )
    (note,) = af.jit(lambda x: x @ W32, freeze=True).lower(X32).notes
    assert "captured as it is" in note


def test_casts_follow_batch_normalisation() -> None:
    def function(x: Any) -> Any:
        return (x @ W32) * BETA.astype(np.float32) + np.float32(1)

    frozen = af.jit(function, freeze=("scales", "bfloat16")).lower(X32)
    assert "stored as bfloat16" in frozen.notes[0]
    assert "mul, add folded" in frozen.notes[1]
    np.testing.assert_allclose(
        frozen.compile()(X32), np.asarray(function(X32)), atol=2.0**-6, rtol=2.0**-6
    )
    with pytest.raises(ArgumentError, match="stored in one dtype; name one"):
        af.jit(function, freeze=("int8", "bfloat16"))
