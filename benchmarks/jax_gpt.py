"""The model of ``examples/gpt.py``, its training step and its sampling, in JAX.

Written as a user of JAX would write them: the same equations, the same parameters and
keys, attention by cuDNN where that takes the dtype, and AdamW by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from examples.gpt import ALPHABET, Config

Array = Any
Params = dict[str, Any]


def rms_norm(x: Array, scale: Array) -> Array:
    """x divided by the root of its mean square, times ``scale``."""
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * scale.astype(jnp.float32)).astype(x.dtype)


def rope(x: Array, positions: Array) -> Array:
    """Rotary embedding of x [B, T, N, H]."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (jnp.arange(half, dtype=jnp.float32) * (-1.0 / half))
    angles = positions.astype(jnp.float32)[:, None, None] * rates
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    turned = first * cosine - second * sine, first * sine + second * cosine
    return jnp.concatenate(turned, -1).astype(x.dtype)


Attend = Callable[[Array, Array, Array], Array]


def apply_block(
    params: Params, x: Array, positions: Array, attend: Attend, config: Config
) -> Array:
    """x: [B, T, width]."""
    batch, length, _ = x.shape
    y = rms_norm(x, params["attention_norm"])
    q = (y @ params["q"]).reshape(batch, length, config.heads, config.head_size)
    kv = y @ params["kv"]
    kv = kv.reshape(batch, length, 2 * config.kv_heads, config.head_size)
    k, v = kv[:, :, : config.kv_heads], kv[:, :, config.kv_heads :]
    if config.rope:
        q, k = rope(q, positions), rope(k, positions)
    mixed = attend(q, k, v).reshape(batch, length, -1)
    x = x + mixed @ params["out"]
    hidden = jax.nn.gelu(rms_norm(x, params["mlp_norm"]) @ params["up"])
    return x + hidden @ params["down"]


def embed(params: Params, tokens: Array, positions: Array) -> Array:
    """[B, T, width] of tokens [B, T] at positions [T]."""
    x = params["embed"][tokens]
    if "positions" in params:
        x = x + params["positions"][positions]
    return x


def to_logits(params: Params, x: Array) -> Array:
    """The logits of the next token."""
    return rms_norm(x, params["norm"]) @ params["embed"].T


def computing(params: Params, config: Config) -> Params:
    """The parameters in the dtype that is computed in."""
    return jax.tree.map(lambda p: p.astype(config.dtype), params)


def loss_of(params: Params, tokens: Array, config: Config) -> Array:
    """The mean cross-entropy of windows of tokens [B, T + 1]."""
    params = computing(params, config)
    positions = jnp.arange(tokens.shape[1] - 1)
    x = embed(params, tokens[:, :-1], positions)
    attend = partial(
        jax.nn.dot_product_attention,
        is_causal=True,
        implementation="cudnn" if config.dtype == "bfloat16" else "xla",
    )
    for block in params["blocks"]:
        x = apply_block(block, x, positions, attend, config)
    logits = to_logits(params, x).astype(jnp.float32)
    labels = jax.nn.one_hot(tokens[:, 1:], len(ALPHABET), dtype=jnp.float32)
    return -(labels * jax.nn.log_softmax(logits)).sum(-1).mean()


def train_step(
    params: Params,
    moments: Any,
    key: Array,
    text: Array,
    *,
    config: Config,
    batch: int,
    schedule: Callable[[Array], Array],
    rows: Any = None,
) -> Any:
    """The parameters and moments after a step of AdamW, and the loss before it.

    ``rows`` is a sharding of the batch.
    """
    length = config.context + 1
    starts = jax.random.randint(key, (batch, 1), 0, text.shape[0] - length)
    tokens = text[starts + jnp.arange(length)].astype(jnp.int32)
    if rows is not None:
        tokens = lax.with_sharding_constraint(tokens, rows)
    value, gradients = jax.value_and_grad(loss_of)(params, tokens, config)
    squares = [jnp.sum(g * g) for g in jax.tree.leaves(gradients)]
    norm = jnp.sqrt(sum(squares))
    factor = 1.0 / jnp.maximum(norm, 1.0)
    count, means, variances = moments
    rate = schedule(count)
    count = count + 1
    of_means, of_variances = 1 - 0.9**count, 1 - 0.98**count

    def after(p: Array, g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
        g = g * factor
        m = 0.9 * m + 0.1 * g
        v = 0.98 * v + 0.02 * g * g
        update = (m / of_means) / (jnp.sqrt(v / of_variances) + 1e-8) + 0.1 * p
        return p - rate * update, m, v

    leaves, structure = jax.tree.flatten(params)
    others = (jax.tree.leaves(x) for x in (gradients, means, variances))
    made = [after(*x) for x in zip(leaves, *others, strict=True)]
    params, means, variances = (structure.unflatten(x) for x in zip(*made, strict=True))
    return params, (count, means, variances), value


def moments_of(params: Params) -> Any:
    """Those before the first step."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return jnp.int32(0), zeros, jax.tree.map(jnp.zeros_like, params)


def schedule_of(steps: int) -> Callable[[Array], Array]:
    """The rates of ``examples.gpt.optimizer``."""
    warm, low, high, last = min(40, steps // 4 + 1), 1e-4, 4e-3, 2e-4

    def rate(count: Array) -> Array:
        rising = low + (high - low) * count / warm
        part = jnp.clip((count - warm) / (steps + 1 - warm), 0, 1)
        falling = last + (high - last) * 0.5 * (1 + jnp.cos(np.pi * part))
        return jnp.where(count < warm, rising, falling)

    return rate


def sample(
    params: Params,
    prompt: Array,
    key: Array,
    temperature: Array,
    *,
    config: Config,
    length: int,
) -> Array:
    """``prompt`` and what the model writes after it, ``length`` tokens together."""
    shape = (1, length, config.kv_heads, config.head_size)
    nothing = jnp.zeros(shape, config.dtype)
    params = computing(params, config)
    positions = jnp.arange(length, dtype=jnp.int32)

    def step(carry: Any, position: Array) -> tuple[Any, Array]:
        token, caches = carry
        x = embed(params, token.reshape(1, 1), position.reshape(1))
        near = (positions <= position) & (positions > position - config.context)
        kept: list[tuple[Array, Array]] = []

        def attend(q: Array, k: Array, v: Array) -> Array:
            cache = caches[len(kept)]
            place = (0, position, 0, 0)
            k, v = (
                lax.dynamic_update_slice(old, new, place)
                for old, new in zip(cache, (k, v), strict=True)
            )
            kept.append((k, v))
            return jax.nn.dot_product_attention(q, k, v, mask=near[None, None, None])

        for block in params["blocks"]:
            x = apply_block(block, x, position.reshape(1), attend, config)
        logits = to_logits(params, x)[0, 0].astype(jnp.float32) / temperature
        drawn = jax.random.categorical(jax.random.fold_in(key, position), logits)
        following = jnp.minimum(position + 1, prompt.shape[0] - 1)
        is_known = position + 1 < prompt.shape[0]
        chosen = jnp.where(is_known, prompt[following], drawn.astype(prompt.dtype))
        return (chosen, kept), token

    caches = [(nothing, nothing) for _ in params["blocks"]]
    _, tokens = lax.scan(step, (prompt[0], caches), positions)
    return tokens
