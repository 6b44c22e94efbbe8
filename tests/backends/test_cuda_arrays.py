"""DeviceArrays on a GPU as values: copies, text, other libraries, memory."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.backends.cuda import DeviceArray, memory_stats, missing_here
from arrayfn.errors import BackendError, InPlaceError

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(missing_here()), reason=missing_here()),
]

X = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)


def test_copies_and_pickles():
    x = af.device_put(np.asfortranarray(X))
    twice = pickle.loads(pickle.dumps(x))
    for other in (x.copy(), copy.copy(x), copy.deepcopy(x), twice):
        assert isinstance(other, DeviceArray)
        assert other.pointer != x.pointer
        assert (other.layout, other.dtype) == (x.layout, x.dtype)
        np.testing.assert_array_equal(other, X)


def test_a_copy_may_be_donated():
    x = af.device_put(X)
    add = af.jit(lambda x: x + 1, donate_argnums=0)
    np.testing.assert_array_equal(add(x.copy()), X + 1)
    np.testing.assert_array_equal(x, X)


def test_text():
    x = af.device_put(np.float32([1.5, 2.0]))
    assert f"{x[0]:.2f}" == "1.50"
    assert str(x) == "[1.5 2. ]"
    assert repr(x + 1) == "DeviceArray([2.5, 3. ], dtype=float32)"


def test_immutable():
    x = af.device_put(X)
    with pytest.raises(InPlaceError, match=r"on a GPU.*x = x\.at\[index\]\.set\(y\)"):
        x[0] = 1.0


def test_operations_in_a_row_stay_on_the_gpu():
    x = af.device_put(X)
    y = nn.softmax(x @ x.T, axis=-1)[:5] * np.float32(2)
    y = anp.sort(anp.concatenate([y, y]), axis=1)
    _, y = lax.scan(lambda c, row: (c + row, c.sum()), y[0], y)
    assert isinstance(y, DeviceArray)
    logits = X.astype(np.float64) @ X.T
    e = np.exp(logits - logits.max(-1, keepdims=True))
    rows = (e / e.sum(-1, keepdims=True))[:5] * 2
    rows = np.sort(np.concatenate([rows, rows]), axis=1)
    before = np.cumsum(np.concatenate([rows[:1], rows[:-1]]), axis=0).sum(1)
    np.testing.assert_allclose(y, before, 1e-4)


def test_gradients_outside_jit_are_those_inside():
    def loss(w):
        return anp.sum(anp.tanh(X @ w) ** 2)

    w = af.device_put(X.T[:, :7] / 10)
    value, gradient = af.value_and_grad(loss)(w)
    inside, compiled = af.jit(af.value_and_grad(loss))(w)
    assert isinstance(gradient, DeviceArray)
    np.testing.assert_allclose(value, inside, 1e-6)
    np.testing.assert_allclose(gradient, compiled, 1e-5, 1e-6)


def test_jax_shares_the_memory():
    jax = pytest.importorskip("jax")
    x = af.device_put(X) * 2
    theirs = jax.dlpack.from_dlpack(x)
    np.testing.assert_array_equal(np.asarray(theirs), 2 * X)
    own = jax.numpy.asarray(X, device=jax.devices("gpu")[0]) + 1
    ours = af.from_dlpack(own)
    assert isinstance(ours, DeviceArray)
    np.testing.assert_array_equal(ours, X + 1)
    np.testing.assert_array_equal(ours * 2, (X + 1) * 2)


def test_operations_leave_nothing_behind():
    x = af.device_put(X)
    (x * 2 + x[3])[1:].sum().block_until_ready()
    gc.collect()
    before = memory_stats().in_use
    for _ in range(2500):
        (x * 2 + x[3])[1:].sum()
    gc.collect()
    assert memory_stats().in_use <= before + 4096


def test_out_of_memory_outside_jit_leaves_the_process_usable():
    x = af.device_put(np.float32(1))
    with pytest.raises(BackendError, match="out of GPU memory"):
        anp.broadcast_to(x, (memory_stats().total // 2,)) + 1
    assert (x + 1).item() == 2.0
