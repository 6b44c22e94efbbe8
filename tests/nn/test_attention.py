"""Attention against its formula; rotary embeddings against complex rotation."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
from arrayfn import nn
from arrayfn.errors import ArgumentError, ShapeError

RNG = np.random.default_rng(5)
B, T, S, N, K, H = 2, 5, 7, 6, 2, 4
Q = RNG.standard_normal((B, T, N, H))
KEYS, VALUES = (RNG.standard_normal((B, S, K, H)) for _ in range(2))
BIAS = RNG.standard_normal((B, N, T, S))
MASK = RNG.random((B, N, T, S)) < 0.6
QUERY_LENGTHS, KEY_LENGTHS = np.array([3, 5]), np.array([7, 2])
t, s = np.arange(T)[:, None], np.arange(S)


def attention(scale=0.5, bias=0.0, where=True):
    """The formula, head by head."""
    where = np.broadcast_to(where, (B, N, T, S))
    bias = np.broadcast_to(bias, (B, N, T, S))
    result = np.zeros((B, T, N, H))
    for b in range(B):
        for n in range(N):
            k = n // (N // K)
            logits = Q[b, :, n] @ KEYS[b, :, k].T * scale + bias[b, n]
            weights = np.where(where[b, n], np.exp(logits), 0.0)
            total = weights.sum(-1, keepdims=True)
            weights = np.where(total > 0, weights / np.where(total, total, 1), 0)
            result[b, :, n] = weights @ VALUES[b, :, k]
    return result


LENGTHS = (t < QUERY_LENGTHS[:, None, None, None]) & (
    s < KEY_LENGTHS[:, None, None, None]
)
CASES = {
    "plain": ({}, {}),
    "scale": ({"scale": 0.1}, {"scale": 0.1}),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
    "bias of all heads": ({"bias": BIAS[:, :1]}, {"bias": BIAS[:, :1]}),
    "bias of positions": ({"bias": BIAS[0, 0]}, {"bias": BIAS[0, 0]}),
    "mask": ({"mask": MASK}, {"where": MASK}),
    "causal": ({"is_causal": True}, {"where": s <= t}),
    "window": (
        {"local_window_size": (1, 2)},
        {"where": (s >= t - 1) & (s <= t + 2)},
    ),
    "lengths": (
        {"query_seq_lengths": QUERY_LENGTHS, "key_value_seq_lengths": KEY_LENGTHS},
        {"where": LENGTHS},
    ),
    "all": (
        {"bias": BIAS, "mask": MASK, "is_causal": True, "scale": 0.3},
        {"bias": BIAS, "where": MASK & (s <= t), "scale": 0.3},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_the_formula(name):
    options, terms = CASES[name]
    result = nn.dot_product_attention(Q, KEYS, VALUES, **options)
    np.testing.assert_allclose(result, attention(**terms), rtol=1e-11, atol=1e-13)


def test_attention_compiled_and_differentiated():
    options, terms = CASES["all"]

    def total(q, k, v):
        return (nn.dot_product_attention(q, k, v, **options) ** 2).sum()

    value, gradients = af.jit(af.value_and_grad(total, (0, 1, 2)))(Q, KEYS, VALUES)
    np.testing.assert_allclose(value, (attention(**terms) ** 2).sum(), rtol=1e-11)
    moved = [RNG.standard_normal(x.shape) for x in (Q, KEYS, VALUES)]
    along = sum((g * d).sum() for g, d in zip(gradients, moved, strict=True))
    step = 1e-6
    ahead, behind = (
        total(*[x + h * d for x, d in zip((Q, KEYS, VALUES), moved, strict=True)])
        for h in (step, -step)
    )
    np.testing.assert_allclose(along, (ahead - behind) / (2 * step), rtol=1e-6)


def test_a_query_that_attends_to_nothing_gives_zeros_and_finite_gradients():
    mask = np.zeros((T, S), bool)
    result, gradient = af.value_and_grad(
        lambda q: nn.dot_product_attention(q, KEYS, VALUES, mask=mask).sum()
    )(Q)
    assert result == 0.0
    np.testing.assert_array_equal(gradient, np.zeros_like(Q))


def test_attention_without_a_batch_and_in_halves():
    alone = nn.dot_product_attention(Q[0], KEYS[0], VALUES[0])
    np.testing.assert_allclose(alone, attention()[0], rtol=1e-11)
    halves = [x.astype(np.float16) for x in (Q, KEYS, VALUES)]
    result = af.jit(nn.dot_product_attention)(*halves)
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, attention(), atol=5e-3)


def test_attention_refuses_what_does_not_fit():
    with pytest.raises(ShapeError, match="divides"):
        nn.dot_product_attention(Q[:, :, :5], KEYS, VALUES)
    with pytest.raises(ShapeError, match="broadcasts"):
        nn.dot_product_attention(Q, KEYS, VALUES, BIAS[:, :3])
    with pytest.raises(ArgumentError, match="bias"):
        nn.dot_product_attention(Q, KEYS, VALUES, mask=BIAS)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_rotates_pairs(interleaved):
    positions = np.array([3, 0, 11, 5, 2])
    rates = 100.0 ** (-np.arange(H // 2) * 2 / H)
    turns = np.exp(1j * positions[:, None, None] * rates)
    x = Q
    if interleaved:
        turned = (x[..., ::2] + 1j * x[..., 1::2]) * turns
        expected = np.stack([turned.real, turned.imag], -1).reshape(x.shape)
    else:
        turned = (x[..., : H // 2] + 1j * x[..., H // 2 :]) * turns
        expected = np.concatenate([turned.real, turned.imag], -1)
    result = nn.rope(x, positions, base=100.0, interleaved=interleaved)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-14)


def test_products_of_rotated_vectors_depend_on_the_distance_alone():
    x, y = RNG.standard_normal((2, 1, 1, H))

    def product(at, distance):
        first = nn.rope(x, np.array([at]))
        return (first * nn.rope(y, np.array([at + distance]))).sum()

    np.testing.assert_allclose(product(3, 4), product(40, 4), rtol=1e-10)
    default = nn.rope(Q)
    np.testing.assert_array_equal(default, nn.rope(Q, np.arange(T)))
    with pytest.raises(ShapeError, match="even"):
        nn.rope(Q[..., :3])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_mask_may_be_shared_by_mapped_queries(dtype):
    x = np.linspace(-1, 1, 32).reshape(2, 4, 1, 4).astype(af.numpy.dtype(dtype))
    mask = np.tril(np.ones((1, 4, 4), bool))

    def attend(x, mask):
        return nn.dot_product_attention(x, x, x, mask=mask)

    mapped = af.jit(af.vmap(attend, in_axes=(0, None)))(x, mask)
    for have, one in zip(mapped, x, strict=True):
        want = attend(one, mask)
        np.testing.assert_allclose(
            have.astype(np.float32), want.astype(np.float32), 2e-2, 2e-2
        )
