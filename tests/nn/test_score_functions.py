"""Attention with score functions and block masks, against its formula."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, nn
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.errors import AbstractValueError, ArgumentError, ShapeError
from arrayfn.nn.sparse_attention import leaves_out_half

RNG = np.random.default_rng(6)
B, T, S, N, K, H = 2, 20, 28, 4, 2, 4
Q = RNG.standard_normal((B, T, N, H))
KEYS, VALUES = (RNG.standard_normal((B, S, K, H)) for _ in range(2))
SLOPES = RNG.standard_normal(N)
DOCUMENTS = np.sort(RNG.integers(0, 4, (B, S)))


def window(b, h, q, k):
    return (q + 8 - k < 6) & (q + 8 >= k)


def window_of_head(b, h, q, k):
    return (q + 8 - k < 4 + h) & (q + 8 >= k) & (k >= b)


def same_document(b, h, q, k):
    documents = anp.asarray(DOCUMENTS)
    return documents[b, q] == documents[b, k]


def never(b, h, q, k):
    return q > 100


def formula(mask=None, slopes=None):
    """The formula, head by head."""
    result = np.zeros((B, T, N, H))
    t, s = np.arange(T)[:, None], np.arange(S)
    for b in range(B):
        for n in range(N):
            logits = Q[b, :, n] @ KEYS[b, :, n // 2].T / 2
            if slopes is not None:
                logits = logits + slopes[n] * (t - s)
            kept = np.ones((T, S), bool)
            if mask is same_document:
                kept = DOCUMENTS[b, :T, None] == DOCUMENTS[b]
            elif mask is not None:
                kept = np.broadcast_to(mask(b, n, t, s), (T, S))
            weights = np.where(kept, np.exp(logits), 0.0)
            total = weights.sum(-1, keepdims=True)
            result[b, :, n] = weights / np.where(total, total, 1) @ VALUES[b, :, n // 2]
    return result


def sloped(slopes):
    return lambda score, b, h, q, k: score + anp.asarray(slopes)[h] * (q - k)


MASKS = {
    "of positions": (window, None, None, 4),
    "of positions, in one block": (window, None, None, 32),
    "of heads": (window_of_head, B, N, 4),
    "of heads, in wide blocks": (window_of_head, B, N, (4, 32)),
    "of documents": (same_document, B, None, 3),
    "of nothing": (never, None, None, 8),
}


@pytest.mark.parametrize("case", MASKS)
def test_attention_with_a_score_function_and_a_block_mask(case):
    mask_mod, batches, heads, block = MASKS[case]
    mask = nn.create_block_mask(mask_mod, batches, heads, T, S, block)
    f = af.jit(
        lambda q, k, v: nn.dot_product_attention(
            q, k, v, score_mod=sloped(SLOPES), block_mask=mask
        )
    )
    wanted = formula(mask_mod, SLOPES)
    np.testing.assert_allclose(f(Q, KEYS, VALUES), wanted, rtol=1e-11, atol=1e-14)


def gradients(mask, **given):
    def loss(q, k, v, slopes):
        out = nn.dot_product_attention(
            q, k, v, score_mod=sloped(slopes), block_mask=mask, **given
        )
        return anp.sum(anp.sin(out))

    return af.jit(af.grad(loss, argnums=(0, 1, 2, 3)))(Q, KEYS, VALUES, SLOPES)


@pytest.mark.parametrize("case", ["of positions", "of heads"])
def test_gradients_over_blocks_are_those_of_all_pairs(case):
    mask_mod, batches, heads, block = MASKS[case]
    mask = nn.create_block_mask(mask_mod, batches, heads, T, S, block)
    assert leaves_out_half(mask)
    whole = nn.create_block_mask(mask_mod, batches, heads, T, S, 32)
    for one, other in zip(gradients(mask), gradients(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_the_gradient_by_what_a_score_function_captures():
    step, mask = 1e-6, nn.create_block_mask(window, None, None, T, S, 4)
    by_slopes = gradients(mask)[3]
    for n in range(N):
        moved = step * np.eye(N)[n]
        above, below = (
            np.sin(formula(window, SLOPES + d)).sum() for d in (moved, -moved)
        )
        assert by_slopes[n] == pytest.approx((above - below) / (2 * step), rel=1e-6)


def test_a_score_function_fuses_into_the_kernel_of_the_softmax():
    f = af.jit(
        lambda q, k, v: nn.dot_product_attention(
            q, k, v, score_mod=lambda score, b, h, q, k: 20 * anp.tanh(score / 20)
        )
    )
    plain = af.jit(nn.dot_product_attention)
    names, without = (
        [k.name for k in g.lower(Q, KEYS, VALUES).kernels] for g in (f, plain)
    )
    assert names == without
    (rows,) = [k for k in f.lower(Q, KEYS, VALUES).kernels if k.name.startswith("rows")]
    assert "tanh_f64" in rows.source


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("block", [4, 32])
def test_kernels_of_a_gpu_give_the_same(dtype, block):
    args = [x.astype(dtype) for x in (Q, KEYS, VALUES)]
    mask = nn.create_block_mask(window, None, None, T, S, block)

    def f(q, k, v):
        return nn.dot_product_attention(q, k, v, block_mask=mask)

    lowered = af.jit(f, device="cuda").lower(*args)
    is_one_kernel = [k.name for k in lowered.kernels if k.name.startswith("attention")]
    assert bool(is_one_kernel) == (dtype == dtypes.bfloat16)
    (result,) = run_plan(lowered.compiled_program, args)
    tolerance = 2e-5 if dtype == dtypes.float32 else 5e-2
    np.testing.assert_allclose(
        np.float64(result), formula(window), rtol=tolerance, atol=tolerance
    )


def test_scores_of_minus_infinity_are_not_attended():
    def causal(score, b, h, q, k):
        return anp.where(q >= k + 4, score, -anp.inf)

    f = af.jit(lambda *args: nn.dot_product_attention(*args, score_mod=causal))
    wanted = formula(lambda b, h, q, k: q >= k + 4)
    have = f(Q, KEYS, VALUES)
    np.testing.assert_allclose(have, wanted, rtol=1e-11, atol=1e-14)
    assert not have[:, :4].any()


def test_a_block_mask_beside_other_masks():
    mask = nn.create_block_mask(window, None, None, T, S, 4)
    given = RNG.random((B, 1, T, S)) < 0.7
    have = af.jit(
        lambda *args: nn.dot_product_attention(*args, mask=given, block_mask=mask)
    )(Q, KEYS, VALUES)

    def both(b, h, q, k):
        return window(b, h, q, k) & given[b, 0]

    np.testing.assert_allclose(have, formula(both), rtol=1e-11, atol=1e-14)


def test_what_a_block_mask_says_of_itself():
    mask = nn.create_block_mask(lambda b, h, q, k: q >= k, None, 2, 10, 10, 4)
    assert mask.kept.tolist() == [[np.tri(3, dtype=bool).tolist()] * 2]
    assert (mask.most, mask.shape) == (3, (1, 2, 10, 10))
    assert repr(mask) == (
        "<block mask of <lambda>, [1, 2, 10, 10] in blocks of 4 x 4, 33.3 % left out>"
    )
    index, there = mask.indices()
    assert index[0, 0].tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 2]]
    assert there.sum() == 12


MISTAKES = {
    "lengths": (
        lambda: nn.dot_product_attention(
            Q, Q, Q, block_mask=nn.create_block_mask(window, None, None, T, S)
        ),
        ShapeError,
        r"is for \[1, 1, 20, 28\]; these queries .* take one for \[2, 4, 20, 20\]",
    ),
    "scores that are arrays": (
        lambda: nn.dot_product_attention(
            Q, Q, Q, score_mod=lambda score, b, h, q, k: anp.ones(3)
        ),
        ArgumentError,
        r"<lambda> is called for each score, with scalars, and returned an array of",
    ),
    "masks that are numbers": (
        lambda: nn.create_block_mask(lambda b, h, q, k: q - k, None, None, T, S),
        ArgumentError,
        "mask_mod <lambda> must return whether a query attends to a key, as one bool",
    ),
    "scores that are bools": (
        lambda: nn.dot_product_attention(
            Q, Q, Q, score_mod=lambda score, b, h, q, k: q >= k
        ),
        ArgumentError,
        "<lambda> must return a score, as one floating-point number, not bool",
    ),
    "empty blocks": (
        lambda: nn.create_block_mask(window, None, None, T, S, 0),
        ArgumentError,
        r"must be positive, but are \[1, 1, 20, 28\] and 0 x 0",
    ),
    "masks made while tracing": (
        lambda: af.jit(
            lambda x: nn.create_block_mask(window, None, None, T, S).sparsity * x
        )(1.0),
        AbstractValueError,
        "call it outside, and capture the mask",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_named(case):
    call, error, message = MISTAKES[case]
    with pytest.raises(error, match=message):
        call()


def test_a_kernel_of_attention_is_given_no_functions():
    def kernel(*arrays, **static):
        raise AssertionError

    nn.dot_product_attention.kernel("cpu")(kernel)
    try:
        mask = nn.create_block_mask(window, None, None, T, S, 32)
        have = af.jit(lambda *args: nn.dot_product_attention(*args, block_mask=mask))(
            Q, KEYS, VALUES
        )
    finally:
        nn.dot_product_attention.remove("kernel")
    np.testing.assert_allclose(have, formula(window), rtol=1e-11, atol=1e-14)
