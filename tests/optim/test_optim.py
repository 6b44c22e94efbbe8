"""Optimizers against PyTorch's, or the papers' formulas; schedules against theirs."""

from __future__ import annotations

import math

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import optim
from arrayfn.errors import ArgumentError

A = np.random.default_rng(0).standard_normal((6, 4))
START = {"b": np.ones(4), "w": np.linspace(-1, 1, 6)}
STEPS = 6


def loss(params):
    return ((params["w"] @ A - params["b"]) ** 2).sum() + (params["b"] ** 4).sum()


def trained(rule, steps=STEPS, start=START):
    @af.jit
    def step(params, state):
        updates, state = rule.update(af.grad(loss)(params), state, params)
        return optim.apply_updates(params, updates), state

    params, state = start, rule.init(start)
    for _ in range(steps):
        params, state = step(params, state)
    return params


# PyTorch's adagrad and centered rmsprop add eps elsewhere; with eps=0 they agree.
PYTORCH = {
    "sgd": (optim.sgd(0.01), ("SGD", {"lr": 0.01})),
    "momentum": (
        optim.momentum(0.01, 0.8),
        ("SGD", {"lr": 0.01, "momentum": 0.8}),
    ),
    "nesterov": (
        optim.sgd(0.01, 0.8, nesterov=True),
        ("SGD", {"lr": 0.01, "momentum": 0.8, "nesterov": True}),
    ),
    "rmsprop": (
        optim.rmsprop(0.01, 0.95),
        ("RMSprop", {"lr": 0.01, "alpha": 0.95}),
    ),
    "centered rmsprop": (
        optim.rmsprop(0.01, 0.95, centered=True),
        ("RMSprop", {"lr": 0.01, "alpha": 0.95, "centered": True}),
    ),
    "adagrad": (
        optim.adagrad(0.1, 0.1, eps=0.0),
        ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.1, "eps": 0.0}),
    ),
    "adam": (
        optim.adam(0.1, 0.8, 0.99),
        ("Adam", {"lr": 0.1, "betas": (0.8, 0.99)}),
    ),
    "adamw": (
        optim.adamw(0.1, weight_decay=0.3),
        ("AdamW", {"lr": 0.1, "weight_decay": 0.3}),
    ),
}


@pytest.mark.parametrize("name", PYTORCH)
def test_parameters_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    rule, (reference, options) = PYTORCH[name]
    params = {k: torch.tensor(v, requires_grad=True) for k, v in START.items()}
    matrix = torch.tensor(A)
    optimizer = getattr(torch.optim, reference)(list(params.values()), **options)
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = ((params["w"] @ matrix - params["b"]) ** 2).sum()
        (value + (params["b"] ** 4).sum()).backward()
        optimizer.step()
    result = trained(rule)
    for key, value in params.items():
        np.testing.assert_allclose(result[key], value.detach().numpy(), rtol=1e-10)


def gradients(params):
    return af.grad(loss)(params)


def test_adam_by_hand():
    p, m, v = START, {"b": 0.0, "w": 0.0}, {"b": 0.0, "w": 0.0}
    for t in range(1, 4):
        g = gradients(p)
        m = {k: 0.9 * m[k] + 0.1 * g[k] for k in g}
        v = {k: 0.99 * v[k] + 0.01 * g[k] ** 2 for k in g}
        p = {
            k: p[k]
            - 0.05 * (m[k] / (1 - 0.9**t)) / (np.sqrt(v[k] / (1 - 0.99**t)) + 1e-8)
            for k in g
        }
    result = trained(optim.adam(0.05, 0.9, 0.99), 3)
    for key in p:
        np.testing.assert_allclose(result[key], p[key], rtol=1e-12)


def test_lion_by_hand():
    p, m = START, {"b": 0.0, "w": 0.0}
    for _ in range(3):
        g = gradients(p)
        p = {
            k: p[k] - 0.01 * (np.sign(0.9 * m[k] + 0.1 * g[k]) + 0.5 * p[k]) for k in g
        }
        m = {k: 0.99 * m[k] + 0.01 * g[k] for k in g}
    result = trained(optim.lion(0.01, weight_decay=0.5), 3)
    for key in p:
        np.testing.assert_allclose(result[key], p[key], rtol=1e-12)


def test_a_step_of_lamb_is_as_long_as_the_parameters_times_the_rate():
    result = trained(optim.lamb(0.01, weight_decay=0.1), 1)
    for key, start in START.items():
        moved = np.linalg.norm(result[key] - start)
        np.testing.assert_allclose(moved, 0.01 * np.linalg.norm(start), rtol=1e-10)
    still = {"w": np.zeros(3)}
    rule = optim.lamb(0.01)
    updates, _ = rule.update({"w": np.ones(3)}, rule.init(still), still)
    np.testing.assert_allclose(updates["w"], -0.01, rtol=1e-5)


def test_nesterov_adam_by_hand():
    rule = optim.adam(0.1, 0.9, 0.999, nesterov=True)
    g = np.array([0.5])
    updates, _ = rule.update(g, rule.init(g))
    ahead = 0.1 * g / (1 - 0.9**2)
    corrected = 0.9 * ahead + 0.1 * g / (1 - 0.9)
    np.testing.assert_allclose(updates, -0.1 * corrected / (np.abs(g) + 1e-8))


@pytest.mark.parametrize(
    "rule",
    [
        optim.sgd(0.01, 0.9),
        optim.rmsprop(0.01, centered=True),
        optim.adagrad(0.1),
        optim.adam(optim.cosine_decay_schedule(0.1, 10)),
        optim.adamw(0.01, mask={"b": False, "w": True}),
        optim.lion(0.01),
        optim.lamb(0.01),
        optim.chain(optim.clip_by_global_norm(1.0), optim.adam(0.1)),
    ],
)
def test_parameters_keep_their_dtypes_and_the_loss_falls(rule):
    start = {k: v.astype(np.float32) for k, v in START.items()}
    result = trained(rule, 20, start)
    assert {k: v.dtype for k, v in result.items()} == dict.fromkeys(result, np.float32)
    assert loss(result) < loss(start)
    state = rule.init(start)
    _, after = rule.update(gradients(start), state, start)
    kept = [np.asarray(x).dtype for x in af.tree.leaves(state)]
    assert [np.asarray(x).dtype for x in af.tree.leaves(after)] == kept


def test_the_update_of_a_leaf_is_one_kernel():
    rule = optim.adamw(0.1)
    params = {"w": np.ones(1000, np.float32)}
    state = rule.init(params)
    lowered = af.jit(rule.update).lower(params, state, params)
    assert len([k for k in lowered.kernels if "sqrt" in k.source]) == 1


def test_clipping():
    grads = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]])}
    assert optim.global_norm(grads) == 5.0
    rule = optim.clip_by_global_norm(1.0)
    clipped, _ = rule.update(grads, rule.init(grads))
    np.testing.assert_allclose(clipped["a"], [0.6, 0.0])
    np.testing.assert_allclose(clipped["b"], [[0.8]])
    same, _ = optim.clip_by_global_norm(9.0).update(grads, ())
    np.testing.assert_array_equal(same["a"], grads["a"])
    zeros, _ = rule.update({"a": np.zeros(2)}, ())
    np.testing.assert_array_equal(zeros["a"], 0.0)
    limited, _ = optim.clip(3.5).update(grads, ())
    np.testing.assert_array_equal(limited["b"], [[3.5]])


def test_the_mask_says_which_weights_decay():
    rule = optim.add_decayed_weights(0.5, lambda p: {k: k == "w" for k in p})
    zero = {k: np.zeros_like(v) for k, v in START.items()}
    updates, _ = rule.update(zero, rule.init(START), START)
    np.testing.assert_array_equal(updates["w"], 0.5 * START["w"])
    np.testing.assert_array_equal(updates["b"], 0.0)
    with pytest.raises(ArgumentError, match="params"):
        rule.update(zero, rule.init(START))


def test_a_schedule_is_followed_under_jit():
    schedule = optim.warmup_cosine_decay_schedule(0.0, 0.4, 2, 8, 0.1)
    rule = optim.sgd(schedule)
    step = af.jit(rule.update)
    state, rates = rule.init(np.zeros(())), []
    for _ in range(9):
        update, state = step(np.array(1.0), state)
        rates.append(-float(update))
    expected = [0.0, 0.2] + [
        0.1 + 0.3 * (1 + math.cos(math.pi * k / 6)) / 2 for k in range(7)
    ]
    np.testing.assert_allclose(rates, expected, rtol=1e-12, atol=1e-15)


STEP = np.arange(12)
SCHEDULES = {
    "constant": (optim.constant_schedule(0.3), 0.3 + 0 * STEP),
    "linear": (
        optim.linear_schedule(1.0, 0.0, 5, 2),
        1 - np.clip(STEP - 2, 0, 5) / 5,
    ),
    "polynomial": (
        optim.polynomial_schedule(2.0, 1.0, 3.0, 8),
        1 + (1 - np.clip(STEP, 0, 8) / 8) ** 3,
    ),
    "exponential": (
        optim.exponential_decay(1.0, 4, 0.5, 1, end_value=0.3),
        np.maximum(0.5 ** (np.maximum(STEP - 1, 0) / 4), 0.3),
    ),
    "staircase": (
        optim.exponential_decay(1.0, 4, 2.0, staircase=True),
        2.0 ** (STEP // 4),
    ),
    "cosine": (
        optim.cosine_decay_schedule(1.0, 6, 0.1, 2.0),
        0.9 * ((1 + np.cos(np.pi * np.minimum(STEP, 6) / 6)) / 2) ** 2 + 0.1,
    ),
    "piecewise": (
        optim.piecewise_constant_schedule(1.0, {3: 0.5, 8: 0.2}),
        np.where(STEP < 3, 1.0, np.where(STEP < 8, 0.5, 0.1)),
    ),
    "join": (
        optim.join_schedules(
            [optim.constant_schedule(5.0), optim.linear_schedule(0.0, 1.0, 4)], [6]
        ),
        np.where(STEP < 6, 5.0, np.clip(STEP - 6, 0, 4) / 4),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    schedule, expected = SCHEDULES[name]
    np.testing.assert_allclose([schedule(k) for k in range(12)], expected, rtol=1e-12)
    np.testing.assert_allclose(schedule(anp.asarray(STEP)), expected, rtol=1e-12)


def test_schedules_refuse_what_they_cannot_be():
    with pytest.raises(ValueError, match="boundaries"):
        optim.join_schedules([optim.constant_schedule(1.0)], [3])
    with pytest.raises(ValueError, match="positive"):
        optim.exponential_decay(1.0, 0, 0.5)
    with pytest.raises(ValueError, match="positive"):
        optim.linear_schedule(1.0, 0.0, 0)(3)
