"""Functions that differ by platform, composites and random words."""

from __future__ import annotations

import numpy as np
import pytest

import arrayfn as af
from arrayfn import lax
from arrayfn.errors import ArgumentError, DTypeError, ShapeError

X = np.arange(3.0)


def by_platform(x):
    return lax.platform_dependent(
        x, cpu=lambda x: x + 1, cuda=lambda x: x * 3, default=lambda x: x
    )


def test_the_platform_is_that_of_what_is_compiled():
    np.testing.assert_array_equal(by_platform(X), X + 1)
    np.testing.assert_array_equal(af.jit(by_platform)(X), X + 1)
    nested = af.jit(lambda x: lax.map(af.jit(by_platform), x))
    np.testing.assert_array_equal(nested(X), X + 1)
    np.testing.assert_array_equal(af.jit(by_platform, device="reference")(X), X + 1)
    for function in (by_platform, af.vmap(af.grad(lambda x: by_platform(x) ** 2))):
        text = str(af.jit(function, device="cuda").lower(X).program)
        assert "mul" in text
        assert "add(x" not in text


def test_without_a_function_for_the_platform():
    with pytest.raises(ArgumentError, match=r"functions for tpu.*on cpu; give default"):
        af.jit(lambda x: lax.platform_dependent(x, tpu=lambda x: x))(X)


def test_a_composite_is_one_equation_that_a_kernel_may_compute():
    scaled = lax.composite(lambda x, *, factor: x * factor, "test.scaled", version=2)

    def f(x):
        return scaled(x, factor=3.0)

    np.testing.assert_array_equal(f(X), 3 * X)
    (equation,) = af.make_program(f)(X).equations
    assert equation.params["name"] == "test.scaled"
    assert dict(equation.params["static"]) == {
        "attributes": (("factor", 3.0),),
        "version": 2,
    }
    np.testing.assert_array_equal(af.jit(f)(X), 3 * X)
    np.testing.assert_array_equal(af.vmap(af.grad(f))(X), [3.0, 3.0, 3.0])


KEY = np.array([1, 2, 3, 4], np.uint32)
# XLA's bits: jax 0.10.2, RandomAlgorithm.RNG_THREE_FRY.
BITS = {
    ((5,), np.uint32): [1576285164, 2249660814, 740599976, 2425682526, 2436392515],
    ((2, 3), np.uint32): [
        [1576285164, 740599976, 2436392515],
        [2249660814, 2425682526, 1497962777],
    ],
    ((2,), np.uint64): [9662219624799024108, 10418227120389269672],
    ((3,), np.uint16): [13292, 6542, 43176],
}


@pytest.mark.parametrize(("shape", "dtype"), list(BITS))
def test_random_words_are_xlas(shape, dtype):
    def call(key):
        return lax.rng_bit_generator(key, shape, dtype, "three_fry")

    for function in (call, af.jit(call)):
        key, bits = function(KEY)
        assert bits.dtype == dtype
        assert bits.tolist() == BITS[shape, dtype]
    wide = np.array([1 | 2 << 32, 3 | 4 << 32], np.uint64)
    assert lax.rng_bit_generator(wide, shape, dtype)[1].tolist() == bits.tolist()
    # The next bits follow on these.
    blocks = int(key[2]) - 3
    more = lax.rng_bit_generator(KEY, (4 * blocks,), np.uint32)[1]
    after = lax.rng_bit_generator(key, (2 * blocks,), np.uint32)[1]
    assert after.tolist() == more[2 * blocks :].tolist()


@pytest.mark.parametrize(
    ("key", "dtype", "algorithm", "error", "words"),
    [
        (KEY, np.uint32, 2, ArgumentError, "leave algorithm out"),
        (KEY[:3], np.uint32, 0, ShapeError, "four uint32"),
        (X, np.uint32, 0, DTypeError, "uint32 or uint64 words"),
        (KEY, np.float32, 0, DTypeError, "bitcast_convert_type"),
    ],
)
def test_errors_of_random_words(key, dtype, algorithm, error, words):
    with pytest.raises(error, match=words):
        lax.rng_bit_generator(key, (2,), dtype, algorithm)
