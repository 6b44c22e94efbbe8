"""Keys, and the numbers that are to be JAX's bit by bit (see write_expected.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import dtypes, random
from arrayfn.errors import ArgumentError, DTypeError, ShapeError

EXPECTED = json.loads(Path(__file__).with_name("expected.json").read_text("utf-8"))
KEY = random.key(3)
PERMUTATIONS = {
    "10": lambda key: random.permutation(key, 10),
    "rows": lambda key: random.permutation(key, np.arange(12).reshape(3, 4)),
    "independent": lambda key: random.permutation(
        key, np.arange(12).reshape(3, 4), axis=1, independent=True
    ),
}


def expected(name):
    entry = EXPECTED[name]
    dtype = dtypes.canonical(entry["dtype"])
    read = int if dtype in dtypes.INTEGERS else float.fromhex
    values = [read(text) for text in entry["values"]]
    return np.array(values, dtype).reshape(entry["shape"])


def case(name):
    """The function of a key that gives what JAX gave under this name."""
    function, *arguments = name.split()
    if function == "split":
        shape = tuple(int(a) for a in arguments)
        return lambda key: random.key_data(random.split(key, shape))
    if function == "fold_in":
        return lambda key: random.key_data(random.fold_in(key, int(arguments[0])))
    if function == "bits":
        return lambda key: random.bits(key, (2, 5), arguments[0])
    if function == "uniform":
        return lambda key: random.uniform(key, (2, 5), arguments[0])
    if function == "randint":
        dtype, low, high = arguments
        return lambda key: random.randint(key, (8,), int(low), int(high), dtype)
    return PERMUTATIONS[arguments[0]]


OTHERS = ("jax", "key", "normal")
EXACT = [n for n in EXPECTED if n.split()[0] not in OTHERS]


@pytest.mark.parametrize("name", EXACT)
def test_bits_are_those_of_jax(name):
    want = expected(name)
    have = case(name)(KEY)
    assert have.dtype == want.dtype
    np.testing.assert_array_equal(have, want)


def test_compiled_bits_are_those_of_jax():
    together = af.jit(lambda key: {name: case(name)(key) for name in EXACT})(KEY)
    for name, have in together.items():
        np.testing.assert_array_equal(have, expected(name), err_msg=name)


@pytest.mark.parametrize("seed", [0, 42, -1, 2**40 + 5])
def test_seeds_are_64_bits(seed):
    want = expected(f"key {seed}")
    np.testing.assert_array_equal(random.key_data(random.key(seed)), want)
    np.testing.assert_array_equal(random.PRNGKey(np.int64(seed)), want)
    np.testing.assert_array_equal(af.jit(random.PRNGKey)(np.int64(seed)), want)


@pytest.mark.parametrize(("dtype", "ulps"), [("float32", 16), ("float64", 64)])
def test_normal_numbers_are_those_of_jax_but_for_the_rounding_of_erfinv(dtype, ulps):
    want = expected(f"normal {dtype}")
    for have in (
        random.normal(KEY, (2, 8), dtype),
        af.jit(lambda key: random.normal(key, (2, 8), dtype))(KEY),
    ):
        assert have.dtype == want.dtype
        assert (np.abs(have - want) <= ulps * np.spacing(np.abs(want))).all()


def test_words_work_as_a_key_and_give_words():
    words = random.PRNGKey(3)
    np.testing.assert_array_equal(random.split(words, 3), expected("split 3"))
    np.testing.assert_array_equal(random.fold_in(words, 77), expected("fold_in 77"))
    np.testing.assert_array_equal(random.uniform(words), random.uniform(KEY))
    assert random.wrap_key_data(words).data.tolist() == [0, 3]


def test_a_key_is_indexed_and_iterated_over_keys_alone():
    keys = random.split(KEY, (2, 3))
    assert keys.shape == (2, 3)
    assert keys.ndim == 2
    assert keys.size == 6
    assert keys[1].shape == (3,)
    assert keys[..., 0].shape == (2,)
    assert keys.reshape(6)[4].data.tolist() == keys[1, 1].data.tolist()
    assert [k.shape for k in keys] == [(3,), (3,)]
    with pytest.raises(TypeError, match=r"random.split\(key, n\) makes n keys"):
        len(KEY)
    with pytest.raises(TypeError, match="key_data"):
        np.asarray(KEY)


def test_a_key_goes_through_every_transformation():
    def noisy(x, key):
        return (x * random.normal(key, x.shape)).sum()

    x = np.ones(4)
    noise = random.normal(KEY, (4,))
    np.testing.assert_array_equal(af.grad(noisy)(x, KEY), noise)
    np.testing.assert_allclose(af.jit(af.grad(noisy))(x, KEY), noise, rtol=1e-13)
    keys = random.split(KEY, 3)
    each = np.stack([random.uniform(k, (2,)) for k in keys])
    mapped = af.vmap(lambda k: random.uniform(k, (2,)))
    np.testing.assert_array_equal(mapped(keys), each)
    np.testing.assert_array_equal(af.jit(mapped)(keys), each)
    inner = af.jit(af.vmap(random.split))(keys)
    assert isinstance(inner, random.Key)
    assert inner.shape == (3, 2)
    np.testing.assert_array_equal(inner[1].data, random.split(keys[1]).data)


def test_the_numbers_of_an_array_are_one_kernel():
    sample = af.jit(lambda key: random.normal(key, (300, 7), np.float32))
    assert len(sample.lower(KEY).kernels) == 1


def test_what_is_no_key_is_refused():
    with pytest.raises(ArgumentError, match=r"random\.key"):
        random.uniform(3)
    with pytest.raises(DTypeError, match="uint32"):
        random.uniform(np.zeros(2))
    with pytest.raises(ShapeError, match="vmap"):
        random.uniform(random.split(KEY))
    with pytest.raises(DTypeError, match="integer"):
        random.key(1.5)
    with pytest.raises(OverflowError):
        random.key(2**64)
    with pytest.raises(DTypeError, match="astype"):
        random.uniform(KEY, dtype=np.int32)
    with pytest.raises(ShapeError, match="broadcast"):
        random.uniform(KEY, (3,), minval=np.zeros(2))


def test_randint_takes_traced_and_mapped_bounds():
    highs = np.array([3, 1000, 2**40])
    drawn = af.jit(lambda key, high: random.randint(key, (1000, 3), 1, high))(
        KEY, highs
    )
    assert (drawn.min(0) >= 1).all()
    assert (drawn.max(0) < highs).all()
    np.testing.assert_array_equal(np.unique(drawn[:, 0]), [1, 2])
    whole = random.randint(KEY, (8,), np.int64(-128), np.int64(128), np.int8)
    np.testing.assert_array_equal(whole, expected("randint int8 -128 128"))


def test_uniform_within_traced_bounds():
    low, high = anp.asarray([0.0, 5.0]), anp.asarray([1.0, 7.0])
    drawn = random.uniform(KEY, (1000, 2), minval=low, maxval=high)
    assert ((drawn >= low) & (drawn < high)).all()


@pytest.mark.parametrize("shape", [(6,), (np.int64(6),), ((6,),), (2, 3), ([3, 2],)])
def test_keys_are_reshaped_by_numbers_and_sequences(shape):
    keys = random.split(random.key(0), 6)
    reshaped = keys.reshape(*shape)
    wanted = np.zeros(6).reshape(*shape).shape
    assert reshaped.shape == wanted
    np.testing.assert_array_equal(np.ravel(reshaped.data), np.ravel(keys.data))
