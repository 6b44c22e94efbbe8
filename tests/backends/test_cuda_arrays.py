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
from arrayfn.backends.cuda import missing_here
from arrayfn.backends.cuda.device_array import DeviceArray
from arrayfn.backends.cuda.this_gpu import memory_stats
from arrayfn.errors import InPlaceError, OutOfMemoryError

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
    with pytest.raises(OutOfMemoryError, match="out of GPU memory"):
        anp.broadcast_to(x, (memory_stats().total // 2,)) + 1
    assert (x + 1).item() == 2.0


# Work of other libraries on the same memory, which is on streams of theirs.

MANY = 1 << 24


def long_work(torch):
    """Keep the default stream of PyTorch busy for some milliseconds."""
    w = torch.ones(4096, 4096, device="cuda")
    for _ in range(12):
        w = (w @ w).mul_(1e-4)


def long_zero(w):
    """Zero, after some milliseconds."""
    for _ in range(6):
        w = anp.clip(w @ w, -1, 1)
    return anp.sum(w * 0)


@pytest.mark.parametrize(
    "take", [af.device_put, af.from_dlpack, anp.from_dlpack, anp.asarray]
)
def test_what_torch_has_enqueued_is_waited_for(take):
    torch = pytest.importorskip("torch")
    total = af.jit(anp.sum, device="cuda")
    x = torch.zeros(MANY, device="cuda")
    total(take(x)).block_until_ready()
    torch.cuda.synchronize()
    long_work(torch)
    x.fill_(3.0)
    assert float(total(take(x))) == 3 * MANY


def test_torch_waits_for_what_is_enqueued_here():
    torch = pytest.importorskip("torch")
    w = af.device_put(np.ones((4096, 4096), np.float32))
    fill = af.jit(lambda w, value: long_zero(w) + anp.full(MANY, value), device="cuda")
    for value in range(4):
        theirs = torch.from_dlpack(fill(w, np.float32(value)))
        assert theirs.is_cuda
        assert float(theirs.sum()) == value * MANY


@pytest.mark.parametrize("take", [af.device_put, af.from_dlpack])
def test_memory_of_torch_is_given_back_when_it_is_not_read_any_more(take):
    torch = pytest.importorskip("torch")
    w = af.device_put(np.ones((4096, 4096), np.float32))
    later = af.jit(lambda w, x: long_zero(w) + anp.sum(x), device="cuda")
    later(w, take(torch.ones(MANY, device="cuda"))).block_until_ready()
    x = torch.ones(MANY, device="cuda")
    torch.cuda.synchronize()
    y = take(x)
    del x
    total = later(w, y)
    del y
    other = torch.full((MANY,), -5.0, device="cuda")
    assert float(total) == MANY
    assert float(other[0]) == -5.0


def test_page_locked_memory_may_change_after_a_call():
    torch = pytest.importorskip("torch")
    host = torch.ones(MANY, pin_memory=True).numpy()
    total = af.jit(anp.sum, device="cuda")
    total(host).block_until_ready()
    for take in (af.device_put, lambda x: x):
        host[:] = 1.0
        made = total(take(host))
        host[:] = 0.0
        assert float(made) == MANY


def test_a_copy_by_dlpack():
    torch = pytest.importorskip("torch")
    x = af.device_put(X)
    theirs = torch.from_dlpack(x.__dlpack__(copy=True))
    assert theirs.data_ptr() != x.pointer
    np.testing.assert_array_equal(theirs.cpu().numpy(), X)


def test_an_array_of_a_type_that_is_not_known_is_released_once():
    torch = pytest.importorskip("torch")
    x = torch.zeros(8, device="cuda", dtype=torch.float8_e4m3fnuz)
    for _ in range(3):
        with pytest.raises(TypeError, match="no data type for DLPack's type 11 of 8"):
            af.from_dlpack(x)
    assert x.float().sum().item() == 0.0


def test_asarray_takes_a_copy_on_the_gpu():
    torch = pytest.importorskip("torch")
    theirs = torch.ones(8, device="cuda")
    ours, same = anp.asarray(theirs, np.float64), anp.asarray(theirs, copy=False)
    assert (ours.device, ours.dtype) == ("cuda", np.float64)
    assert same.pointer == theirs.data_ptr()
    assert anp.asarray(theirs).pointer != theirs.data_ptr()
