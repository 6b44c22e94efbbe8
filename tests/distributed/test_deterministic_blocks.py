"""``deterministic=8``: the same bits on meshes of 1, 2, 4 and 8 devices."""

from __future__ import annotations

import re

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, NamedSharding, dtypes, lax, nn, optim, shard_map
from arrayfn import PartitionSpec as P
from arrayfn.errors import ArgumentError
from tests.distributed.test_training import loss, start

ROWS = P("i")
FLOATS = [np.float64, np.float32, np.float16, dtypes.bfloat16]


def lies(n, *spec):
    return NamedSharding(Mesh((n,), ("i",)), P(*spec))


def check_bits(f, *arguments, specs=(ROWS,), devices=(2, 8)):
    """``f`` gives the same bits on one and more devices, close to those of jit."""

    def run(n):
        mesh = Mesh((n,), ("i",))
        given = tuple(NamedSharding(mesh, spec) for spec in specs)
        results = af.jit(f, in_shardings=given, deterministic=8)(*arguments)
        return [np.asarray(x) for x in af.tree.leaves(results)]

    want = run(1)
    for n in devices:
        for have, x in zip(run(n), want, strict=True):
            assert have.tobytes() == x.tobytes(), n
    plain = af.tree.leaves(af.jit(f)(*arguments))
    for have, x in zip(want, plain, strict=True):
        if x.dtype.kind in "fcV":
            eps = 1e-13 if x.dtype.itemsize == 8 else 1e-5
            eps = 0.03 if x.dtype.itemsize == 2 else eps
            scale = np.max(np.abs(x.astype(float)), initial=1)
            np.testing.assert_allclose(
                have.astype(float), x.astype(float), atol=eps * scale
            )
        else:
            np.testing.assert_array_equal(have, x)


# What stands around sums of rows or columns in a random program.
AROUND = [
    lambda x: anp.exp(x - anp.max(x, axis=1, keepdims=True)),
    lambda x: x * 2 + 1,
    anp.tanh,
    lambda x: x - anp.mean(x, axis=1, keepdims=True),
    lambda x: x / (1 + anp.sum(x * x, axis=1, keepdims=True)),
    lambda x: nn.softmax(x, axis=-1),
    lambda x: x - anp.mean(x, axis=0),
    lambda x: x + anp.var(x, axis=0),
    lambda x: anp.cumsum(x, axis=1) / x.shape[1],
    lambda x: x * anp.prod(1 + x[:, :3] / 8, axis=1, keepdims=True),
    lambda x: x + nn.logsumexp(x, axis=1, keepdims=True),
    lambda x: anp.sort(x, axis=1),
    lambda x: x + anp.sum(anp.where(x > 0, x, 0)) / x.size,
    lambda x: x - x.min(axis=0) + x.max(),
]


@pytest.mark.parametrize("seed", range(8))
def test_random_fusions_around_sums(seed):
    random = np.random.default_rng(seed)
    steps = random.choice(len(AROUND), 4)
    columns = int(random.choice([1, 7, 45, 301, 600]))
    x = random.standard_normal((32, columns)).astype(FLOATS[seed % len(FLOATS)])
    if columns < 3:
        steps = steps[steps != 9]

    def f(x):
        for step in steps:
            x = AROUND[step](x)
        return x, anp.mean(x, axis=1), anp.mean(x, axis=0)

    check_bits(f, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_loops_and_branches_with_sums_over_devices(dtype):
    def f(x):
        def step(carry, k):
            mean, x = carry
            x = x - anp.mean(x, axis=0) * dtype(0.5)
            mean = mean + anp.mean(x)
            return (mean, x), (x[:, 0], anp.sum(x * x))

        (mean, y), (firsts, squares) = lax.scan(step, (dtype(0), x), anp.arange(3))
        grown, _ = lax.while_loop(
            lambda c: anp.sum(abs(c[0])) < 2000, lambda c: (c[0] * 2, c[1] + 1), (y, 0)
        )
        chosen = lax.cond(
            anp.sum(x) > 0, lambda x: x - anp.max(x, axis=0), lambda x: x, x
        )
        return mean, y, firsts, squares, grown, chosen

    check_bits(f, np.random.default_rng(1).standard_normal((16, 37)).astype(dtype))


@pytest.mark.parametrize("spec", [P("i"), P(None, "i")])
def test_products_and_moves_from_one_axis_to_another(spec):
    random = np.random.default_rng(2)
    x, w = random.standard_normal((16, 24)), random.standard_normal((24, 8))

    def f(x, w):
        product = x @ w
        return product, x.T @ product, lax.sort(x.T, dimension=1), x.sum() * w

    check_bits(f, x, w, specs=(spec, P()), devices=(2, 4, 8))


def test_two_axes_of_a_mesh():
    x = np.random.default_rng(3).standard_normal((16, 40)).astype(np.float32)
    w = np.random.default_rng(4).standard_normal((40, 8)).astype(np.float32)

    def run(*sizes):
        mesh = Mesh(sizes, ("i", "j"))
        given = NamedSharding(mesh, P("i")), NamedSharding(mesh, P(None, "j"))
        f = af.grad(lambda w, x: anp.sum(nn.softmax(x @ w) ** 2))
        f = af.jit(f, in_shardings=given[::-1], deterministic=4)
        return np.asarray(f(w, x))

    want = run(1, 1)
    np.testing.assert_allclose(
        want, af.grad(lambda w: anp.sum(nn.softmax(x @ w) ** 2))(w), rtol=1e-4
    )
    for sizes in [(2, 1), (1, 4), (4, 2)]:
        assert run(*sizes).tobytes() == want.tobytes()


def trained(n, dtype, parts):
    """Parameters and losses after three steps on ``n`` devices."""
    rule = optim.adam(1e-2)

    def step(params, state, x):
        value, slopes = af.value_and_grad(loss)(params, x)
        updates, state = rule.update(slopes, state, params)
        return optim.apply_updates(params, updates), state, value

    params = af.tree.map(lambda p: p.astype(dtype), start())
    x = np.random.default_rng(5).standard_normal((64, 12)).astype(dtype)
    f = af.jit(step, in_shardings=(None, None, lies(n, "i")), deterministic=parts)
    state = rule.init(params)
    values = []
    for _ in range(3):
        params, state, value = f(params, state, x)
        values.append(value)
    return [np.asarray(a) for a in (*af.tree.leaves(params), *values)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_that_do_not_depend_on_the_number_of_devices(dtype):
    want = trained(1, dtype, 8)
    for n in (2, 4, 8):
        for a, b in zip(trained(n, dtype, 8), want, strict=True):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(trained(4, dtype, True), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "parts", "devices", "f", "message"),
    [
        (8, 16, 4, lambda x: x.sum(), "axis 0 of f32[8,12] is cut by 'i', but is no"),
        (9, 8, 3, lambda x: x.sum(), "3 devices along axis 'i' of the mesh do not"),
        (
            8,
            8,
            4,
            shard_map(
                lambda y: lax.psum(y, "i"),
                mesh=Mesh((4,), ("i",)),
                in_specs=P("i"),
                out_specs=P(),
            ),
            "the function of a shard_map says itself",
        ),
        (
            8,
            8,
            4,
            lambda x: lax.with_sharding_constraint(x, lies(4, None, "i")),
            "axis 1 of f32[8,12] is cut by 'i', but is not a multiple of 8",
        ),
    ],
)
def test_what_has_no_blocks_is_an_error_of_its_line(shape, parts, devices, f, message):
    x = np.ones((shape, 12), np.float32)
    f = af.jit(f, in_shardings=lies(devices, "i"), deterministic=parts)
    with pytest.raises(ArgumentError, match=re.escape(message)) as caught:
        f(x)
    assert "test_deterministic_blocks.py" in str(caught.value)


def test_the_number_of_blocks_is_a_power_of_two():
    with pytest.raises(ArgumentError, match="a power of two, not 6"):
        af.jit(lambda x: x, deterministic=6)
