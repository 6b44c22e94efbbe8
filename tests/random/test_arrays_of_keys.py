"""Arrays of keys are moved, selected, updated and compared as other arrays are."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, lax, random
from arrayfn.errors import ArrayfnError, DTypeError

KEYS = random.split(random.key(3), 4)
WORDS = np.array(random.key_data(KEYS))
MASK = np.array([True, False, False, True])

# A function of four keys, and the same of the rows of an array uint32[4, 2].
MOVES = {
    "reshape": (lambda x: anp.reshape(x, (2, 2)), lambda w: w.reshape(2, 2, 2)),
    "T": (lambda x: x.reshape(2, 2).T, lambda w: w.reshape(2, 2, 2).swapaxes(0, 1)),
    "transpose": (
        lambda x: anp.transpose(x.reshape(1, 2, 2), (-1, 0, 1)),
        lambda w: w.reshape(1, 2, 2, 2).transpose(2, 0, 1, 3),
    ),
    "stack": (lambda x: anp.stack([x, x[::-1]]), lambda w: np.stack([w, w[::-1]])),
    "array": (lambda x: anp.array([x[0], x[1]]), lambda w: w[:2]),
    "concatenate": (
        lambda x: anp.concatenate([x, x[:1]]),
        lambda w: np.concatenate([w, w[:1]]),
    ),
    "append": (lambda x: anp.append(x, x[0]), lambda w: np.append(w, w[:1], 0)),
    "where": (
        lambda x: anp.where(MASK, x, x[0]),
        lambda w: np.where(MASK[:, None], w, w[0]),
    ),
    "select": (
        lambda x: lax.select(MASK, x, x[::-1]),
        lambda w: np.where(MASK[:, None], w, w[::-1]),
    ),
    "broadcast_to": (
        lambda x: anp.broadcast_to(x, (3, 4)),
        lambda w: np.broadcast_to(w, (3, 4, 2)),
    ),
    "tile": (lambda x: anp.tile(x, 2), lambda w: np.tile(w, (2, 1))),
    "repeat": (lambda x: anp.repeat(x, 2), lambda w: np.repeat(w, 2, 0)),
    "roll": (lambda x: anp.roll(x, 1), lambda w: np.roll(w, 1, 0)),
    "take": (lambda x: anp.take(x, np.array([2, 2])), lambda w: w[[2, 2]]),
    "expand_dims": (lambda x: anp.expand_dims(x, 1), lambda w: w[:, None]),
    "squeeze": (lambda x: anp.squeeze(x[None]), lambda w: w),
    "split": (lambda x: anp.split(x, 2)[1], lambda w: w[2:]),
    "mask": (lambda x: x[MASK], lambda w: w[MASK]),
    "dynamic_slice": (lambda x: lax.dynamic_slice_in_dim(x, 1, 2), lambda w: w[1:3]),
    "dynamic_update_slice": (
        lambda x: lax.dynamic_update_slice_in_dim(x, x[:2], 2, 0),
        lambda w: np.concatenate([w[:2], w[:2]]),
    ),
    "at_set": (lambda x: x.at[1].set(x[0]), lambda w: w[[0, 0, 2, 3]]),
    "at_mask": (lambda x: x.at[MASK].set(x[1]), lambda w: w[[1, 1, 2, 1]]),
    "at_get_fill": (
        lambda x: x.at[9].get(mode="fill"),
        lambda _: np.full(2, 2**32 - 1, np.uint32),
    ),
    "full_like": (lambda x: anp.full_like(x, x[2]), lambda w: w[[2, 2, 2, 2]]),
    "ones_like": (anp.ones_like, np.ones_like),
    "scan": (
        lambda x: lax.scan(lambda c, k: (k, c), x[0], x)[1],
        lambda w: w[[0, 0, 1, 2]],
    ),
    "cond": (
        lambda x: lax.cond(True, lambda k: k[::-1], lambda k: k, x),
        lambda w: w[::-1],
    ),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("way", ["at once", "jit", "vmap"])
def test_words_move_with_their_keys(name, way):
    function, of_words = MOVES[name]
    if way == "at once":
        have = function(KEYS)
    elif way == "jit":
        have = af.jit(function)(KEYS)
    else:
        have = af.vmap(function)(anp.stack([KEYS[::-1], KEYS]))[1]
    want = of_words(WORDS)
    assert isinstance(have, random.Key)
    assert have.shape == want.shape[:-1]
    np.testing.assert_array_equal(random.key_data(have), want)


def test_keys_compare():
    changed = KEYS.at[1].set(KEYS[0])
    assert (changed == KEYS).tolist() == [True, False, True, True]
    assert af.jit(lambda x: x != x[0])(changed).tolist() == [False, False, True, True]
    assert bool(KEYS[2] == KEYS[2])
    with pytest.raises(TypeError, match="unhashable"):
        hash(KEYS)


@pytest.mark.parametrize(
    "compute",
    [
        lambda k: k + 1,
        anp.negative,
        lambda k: np.float32(2) * k,
        lambda k: anp.where(True, k, 0),
        lambda k: anp.sort(k[None]),
        lambda k: k[None].at[0].set(1),
        lambda k: k == 1,
        lambda k: anp.astype(k, int),
        lambda k: anp.asarray(1, k.dtype),
        np.exp,
    ],
)
def test_keys_are_not_computed_with(compute):
    with pytest.raises(
        DTypeError, match=r"key.*random\.key_data|random\.wrap_key_data"
    ):
        compute(random.key(0))
    with pytest.raises(ArrayfnError, match="test_arrays_of_keys"):
        af.jit(compute)(random.key(0))


def test_dtype_of_keys():
    key = random.key(7)
    assert key.dtype == random.key_dtype() == random.key_dtype("threefry2x32")
    assert key.dtype.name == "key<fry>"
    assert key.nbytes == key.itemsize == 8
    assert anp.result_type(key) == key.dtype
    assert anp.issubdtype(key.dtype, dtypes.prng_key)
    assert not anp.issubdtype(key.dtype, np.integer)
    assert (random.key(7, dtype=key.dtype) == key).item()
    assert anp.array(key, dtype=key.dtype).dtype is key.dtype
    assert pickle.loads(pickle.dumps(key.dtype)) is key.dtype
    for twin in (key.copy(), copy.copy(key), copy.deepcopy(key)):
        assert bool(twin == key)
    assert isinstance(key, af.Array)
    like = af.ShapeDtypeStruct.like(KEYS)
    assert af.eval_shape(lambda k: k.reshape(2, 2), like).shape == (2, 2)


def test_keys_are_close_if_they_are_equal():
    for isclose in (anp.isclose, af.jit(anp.isclose)):
        found = isclose(KEYS, anp.stack([KEYS[0], *KEYS[:0:-1]]))
        assert found.tolist() == [True, False, True, False]
    assert anp.allclose(KEYS, KEYS)
    with pytest.raises(DTypeError, match="keys do not promote"):
        anp.isclose(KEYS, 1.0)


def test_a_ref_holds_a_key():
    ref = af.new_ref(KEYS)
    ref[...] = ref[...][::-1]
    ref[0] = KEYS[1]
    assert len(ref) == 4
    assert (ref[...] == KEYS[::-1]).tolist() == [False, True, True, True]

    @af.jit
    def other(key):
        ref = af.new_ref(key)
        ref[...] = random.fold_in(ref[...], 1)
        return ref[...]

    assert bool(other(KEYS[0]) == random.fold_in(KEYS[0], 1))
