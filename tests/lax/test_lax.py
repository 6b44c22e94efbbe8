"""The primitives under JAX's names: no promotion, and a name for each."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
from arrayfn import lax
from arrayfn.errors import DTypeError, ShapeError

X = np.random.default_rng(0).uniform(0.2, 0.9, (3, 4)).astype(np.float32)
N = np.array([[7, -7, 5], [1, -1, 0]], np.int32)

CASES = [
    (lambda: lax.add(X, 1), lambda: X + 1),
    (lambda: lax.sub(1, X), lambda: 1 - X),
    (lambda: lax.mul(X, X), lambda: X * X),
    (lambda: lax.div(X, 3), lambda: X / 3),
    (lambda: lax.div(N, 2), lambda: np.trunc(N / 2).astype(np.int32)),
    (lambda: lax.rem(N, 3), lambda: np.fmod(N, 3)),
    (lambda: lax.pow(X, 2.5), lambda: X**2.5),
    (lambda: lax.integer_pow(X, -3), lambda: X**-3),
    (lambda: lax.integer_pow(X, 0), lambda: np.ones_like(X)),
    (lambda: lax.max(X, 0.5), lambda: np.maximum(X, 0.5)),
    (lambda: lax.rsqrt(X), lambda: 1 / np.sqrt(X)),
    (lambda: lax.is_finite(X), lambda: np.isfinite(X)),
    (lambda: lax.clamp(0.3, X, 0.6), lambda: np.clip(X, 0.3, 0.6)),
    (lambda: lax.select(X > 0.5, X, 0), lambda: np.where(X > 0.5, X, 0)),
    (lambda: lax.complex(X, X), lambda: X + 1j * X),
    (lambda: lax.shift_right_logical(N, 1), lambda: (N.view("u4") >> 1).view("i4")),
    (lambda: lax.convert_element_type(X, "int8"), lambda: X.astype("int8")),
    (lambda: lax.bitcast_convert_type(X, "int32"), lambda: X.view("int32")),
    (lambda: lax.broadcast(X, (2, 1)), lambda: np.broadcast_to(X, (2, 1, 3, 4))),
    (
        lambda: lax.broadcast_in_dim(X, (3, 2, 4), (0, 2)),
        lambda: np.repeat(X[:, None], 2, 1),
    ),
    (lambda: lax.reshape(X, (2, 6)), lambda: X.reshape(2, 6)),
    (lambda: lax.transpose(X, (1, 0)), lambda: X.T),
    (lambda: lax.expand_dims(X, (0, -1)), lambda: X[None, ..., None]),
    (lambda: lax.squeeze(X[:1], (0,)), lambda: X[0]),
    (lambda: lax.rev(X, (1, 0)), lambda: X[::-1, ::-1]),
    (
        lambda: lax.pad(X, 0, [(1, 0, 0), (0, 2, 0)]),
        lambda: np.pad(X, ((1, 0), (0, 2))),
    ),
    (lambda: lax.concatenate([X, X], 1), lambda: np.concatenate([X, X], 1)),
    (lambda: lax.full((2, 2), 3, "float32"), lambda: np.full((2, 2), 3, "float32")),
    (lambda: lax.iota("int32", 3), lambda: np.arange(3, dtype="int32")),
    (lambda: lax.slice(X, (1, 0), (3, 4), (1, 3)), lambda: X[1:3, 0:4:3]),
    (lambda: lax.slice_in_dim(X, 1, 4, 2, axis=-1), lambda: X[:, 1:4:2]),
    (lambda: lax.dynamic_slice(X, (2, 1), (2, 2)), lambda: X[1:3, 1:3]),
    (lambda: lax.dynamic_index_in_dim(X, 2, 1, keepdims=False), lambda: X[:, 2]),
    (
        lambda: lax.dynamic_update_slice_in_dim(X, X[:1], 2, 0),
        lambda: np.concatenate([X[:2], X[:1]]),
    ),
    (lambda: lax.reduce_sum(N, (0,)), lambda: N.sum(0, dtype=np.int32)),
    (lambda: lax.reduce_max(X, (1, 0)), lambda: np.max(X)),
    (lambda: lax.reduce_or(X > 0.5, (1,)), lambda: (X > 0.5).any(1)),
    (lambda: lax.argmax(X, 1, "int32"), lambda: X.argmax(1).astype("int32")),
    (
        lambda: lax.cumsum(X, 1, reverse=True),
        lambda: np.cumsum(X[:, ::-1], 1)[:, ::-1],
    ),
    (lambda: lax.dot(X, X.T), lambda: X @ X.T),
    (
        lambda: lax.dot_general(
            X, X, (((1,), (1,)), ((0,), (0,))), preferred_element_type="float64"
        ),
        lambda: (X.astype(float) ** 2).sum(1),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), CASES, ids=range(len(CASES)))
def test_values(ours, theirs):
    result, expected = ours(), np.asarray(theirs())
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=3e-7)


def test_halves_round_as_the_method_says():
    x = np.array([0.5, 1.5, -2.5, 0.49999997, 1e10], np.float32)
    away = lax.round(x)
    assert away.tolist() == [1.0, 2.0, -3.0, 0.0, 1e10]
    even = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    assert even.tolist() == [0.0, 2.0, -2.0, 0.0, 1e10]


def test_there_is_no_promotion():
    with pytest.raises(
        DTypeError, match=r"one dtype, but was given f32\[3,4\], f64\[3,4\]"
    ):
        lax.add(X, X.astype(float))


def test_there_is_no_broadcasting():
    with pytest.raises(
        ShapeError, match=r"one shape, but was given f32\[3,4\], f32\[4\]"
    ):
        lax.add(X, X[0])


def test_a_kernel_without_extent_is_refused() -> None:
    with pytest.raises(ShapeError, match="no elements along a spatial axis") as caught:
        lax.conv_general_dilated(np.ones((1, 2, 5)), np.ones((1, 2, 0)), (1,), "VALID")
    assert str(caught.value).startswith(f"{__file__}:")


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(("x", "w"), [((0, 2, 3), (1, 2, 3)), ((1, 0, 3), (2, 0, 1))])
def test_gradients_of_empty_convolutions_are_zero(
    device: str, x: tuple[int, ...], w: tuple[int, ...]
) -> None:
    def total(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return lax.conv_general_dilated(x, w, (2,), "VALID").sum()

    run = af.jit(af.vmap(af.grad(total, (0, 1)), (0, None)), device=device)
    for batch in (0, 2):
        given = (np.ones((batch, *x), np.float32), np.ones(w, np.float32))
        for have, shape in zip(run(*given), (x, w), strict=True):
            assert have.shape == (batch, *shape)
            assert not np.any(have)


def test_a_barrier_before_a_count_is_none() -> None:
    f = af.jit(lambda x: lax.optimization_barrier(lax.iota("int32", 3)) + x)
    np.testing.assert_array_equal(f(np.int32(1)), [1, 2, 3])
