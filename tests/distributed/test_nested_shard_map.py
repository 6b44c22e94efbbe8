"""shard_map inside shard_map: each cuts along axes of its own of one mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, lax, shard_map
from arrayfn import PartitionSpec as P
from arrayfn.errors import ArgumentError, ShapeError
from tests.distributed.test_shard_map import COLLECTIVES, FORWARD_ONLY, mapped

RANDOM = np.random.default_rng(11)
X = RANDOM.standard_normal((8, 16))
MESH = Mesh((2, 4), ("o", "i"))
OUTER = {"mesh": MESH, "axis_names": {"o"}}


def nested(function: Callable[..., Any], outer: bool = True, inner: bool = True) -> Any:
    """``function`` of rows, which the outer shard_map cuts first, then the inner one.

    ``outer`` and ``inner`` say whether types say what varies.
    """
    rows = {"in_specs": P("i"), "out_specs": P("i"), "check_vma": inner}
    return shard_map(
        lambda x: shard_map(function, **rows)(x * 2) + 1,
        in_specs=P("o"),
        out_specs=P("o"),
        check_vma=outer,
        **OUTER,
    )


def of_halves(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What ``nested`` gives: ``function`` of the rows that each outer member has."""
    return lambda x: anp.concatenate(
        [function(2 * half) + 1 for half in (x[:4], x[4:])]
    )


@pytest.mark.parametrize("name", COLLECTIVES)
def test_each_outer_member_computes_with_its_rows(name: str) -> None:
    f = nested(COLLECTIVES[name])
    want = np.asarray(of_halves(mapped(name, 4))(X))
    for found in (f(X), af.jit(f)(X), af.jit(f, device="cpu")(X)):
        np.testing.assert_allclose(found, want, rtol=1e-13, atol=1e-13)
    assert isinstance(af.jit(f)(X), af.ShardedArray)


@pytest.mark.parametrize("typed", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("name", [k for k in COLLECTIVES if k not in FORWARD_ONLY])
def test_derivatives_are_those_of_each_outer_member(
    name: str, typed: tuple[bool, bool]
) -> None:
    f, alone = nested(COLLECTIVES[name], *typed), of_halves(mapped(name, 4))
    want = af.grad(lambda x: anp.sin(alone(x)).sum())(X)
    gradient = af.grad(lambda x: anp.sin(f(x)).sum())
    for found in (gradient(X), af.jit(gradient)(X), af.jit(gradient, device="cpu")(X)):
        np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-11)
    _, have = af.jvp(f, (X,), (np.cos(X),))
    np.testing.assert_allclose(
        have, af.jvp(alone, (X,), (np.cos(X),))[1], rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("name", COLLECTIVES)
def test_vmap_outside_between_and_inside(name: str) -> None:
    stack = np.stack([X, X[::-1] * 0.5, X + 0.1])
    want = np.stack([np.asarray(nested(COLLECTIVES[name])(x)) for x in stack])
    rows = {"in_specs": P("i"), "out_specs": P("i")}
    between = shard_map(
        af.vmap(lambda x: shard_map(COLLECTIVES[name], **rows)(x * 2) + 1),
        in_specs=P(None, "o"),
        out_specs=P(None, "o"),
        **OUTER,
    )
    stacks = {"in_specs": P(None, "i"), "out_specs": P(None, "i")}
    inside = shard_map(
        lambda x: shard_map(af.vmap(COLLECTIVES[name]), **stacks)(x * 2) + 1,
        in_specs=P(None, "o"),
        out_specs=P(None, "o"),
        **OUTER,
    )
    for f in (af.vmap(nested(COLLECTIVES[name])), between, inside):
        np.testing.assert_allclose(af.jit(f)(stack), want, rtol=1e-12, atol=1e-13)


def test_the_inner_one_combines_along_both_axes() -> None:
    def member(x: Any) -> Any:
        place = 10 * lax.axis_index("o") + lax.axis_index("i")
        own = x * lax.psum(x, "o") + lax.psum(x, ("o", "i")) + place
        return own + lax.psum(place, "o")

    columns = {"in_specs": P(None, "i"), "out_specs": P(None, "i")}
    f = shard_map(
        shard_map(member, **columns),
        in_specs=P("o"),
        out_specs=P("o"),
        **OUTER,
    )
    cut = {"in_specs": P("o", "i"), "out_specs": P("o", "i")}
    flat = shard_map(member, mesh=MESH, **cut)
    want = np.asarray(flat(X))
    np.testing.assert_allclose(af.jit(f)(X), want, rtol=1e-13)
    np.testing.assert_allclose(af.jit(f, device="cpu")(X), want, rtol=1e-13)
    slopes = [
        af.jit(af.grad(lambda x, g=g: anp.sum(anp.sin(g(x)))))(X) for g in (f, flat)
    ]
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-11, atol=1e-12)


def test_the_gradient_by_what_all_share_is_summed_over_both_axes() -> None:
    def loss(w: Any) -> Any:
        columns = {"in_specs": (P(None, "i"), P("i")), "out_specs": P(None, "i")}
        f = shard_map(
            shard_map(lambda x, w: x * anp.sin(w), **columns),
            in_specs=(P("o"), P()),
            out_specs=P("o"),
            **OUTER,
        )
        return anp.sum(f(X, w) ** 2)

    w = RANDOM.standard_normal(16)
    want = (X**2).sum(0) * np.sin(2 * w)
    np.testing.assert_allclose(af.jit(af.grad(loss))(w), want, rtol=1e-12)
    curved = af.jit(af.hessian(loss))(w)
    want = np.diag((X**2).sum(0) * 2 * np.cos(2 * w))
    np.testing.assert_allclose(curved, want, rtol=1e-11, atol=1e-12)


def _shared(x: Any) -> Any:
    """x and the sum of its rows, each computed by an inner shard_map."""
    total = shard_map(
        lambda x: lax.psum(x.sum(0), "i"), in_specs=P("i"), out_specs=P()
    )(x)
    return shard_map(lambda x, t: x - t / 4, in_specs=(P("i"), P()), out_specs=P("i"))(
        x, total
    )


@pytest.mark.parametrize(
    "outer",
    [
        lambda x: lax.scan(lambda c, _: (_shared(c), c.sum()), x, None, length=3)[0],
        lambda x: lax.fori_loop(0, lax.axis_index("o") + 1, lambda k, c: _shared(c), x),
        lambda x: lax.cond(lax.axis_index("o") > 0, _shared, anp.sin, x),
        af.checkpoint(_shared),
        lambda x: af.jit(_shared)(x) @ np.ones((16, 16)),
        lambda x: anp.sort(_shared(x), 0) + lax.psum(_shared(x), "o"),
        lambda x: _shared(x).reshape(4, 4, 4).transpose(1, 0, 2).reshape(4, 16),
    ],
    ids=["scan", "fori", "cond", "checkpoint", "product", "sort", "reshape"],
)
@pytest.mark.parametrize("typed", [True, False])
def test_an_outer_function_goes_on_with_what_the_inner_one_gives(
    outer: Any, typed: bool
) -> None:
    f = shard_map(outer, in_specs=P("o"), out_specs=P("o"), check_vma=typed, **OUTER)
    g = shard_map(
        outer,
        mesh=Mesh((2, 1), ("o", "i")),
        in_specs=P("o"),
        out_specs=P("o"),
        axis_names={"o"},
    )
    want = np.asarray(g(X))
    np.testing.assert_allclose(af.jit(f)(X), want, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(af.jit(f, device="cpu")(X), want, rtol=1e-12, atol=1e-13)
    want, have = [
        af.jit(af.grad(lambda x, h=h: anp.sum(anp.sin(h(x)))))(X) for h in (g, f)
    ]
    np.testing.assert_allclose(have, want, rtol=1e-10, atol=1e-12)


def test_three_levels() -> None:
    mesh = Mesh((2, 2, 2), ("x", "y", "z"))

    def cut(function: Any, axis: str, dim: int, **options: Any) -> Any:
        spec = P(*[None] * dim, axis)
        return shard_map(
            function, in_specs=spec, out_specs=spec, axis_names={axis}, **options
        )

    def member(part: Any) -> Any:
        return lax.psum(part, ("x", "y", "z")) + part * lax.axis_index("y")

    f = cut(cut(cut(member, "z", 2), "y", 1), "x", 0, mesh=mesh)
    x = RANDOM.standard_normal((4, 2, 6))
    total = x.reshape(2, 2, 2, 1, 2, 3).sum((0, 2, 4))
    want = np.tile(total, (2, 2, 2)) + x * np.arange(2)[:, None]
    np.testing.assert_allclose(af.jit(f)(x), want, rtol=1e-13)
    np.testing.assert_allclose(f(x), want, rtol=1e-13)


def test_results_stay_cut_between_inner_functions() -> None:
    rows = {"in_specs": P("i"), "out_specs": P("i")}

    def outer(x: Any) -> Any:
        return shard_map(anp.cos, **rows)(shard_map(anp.sin, **rows)(x) * 3)

    f = shard_map(outer, in_specs=P("o"), out_specs=P("o"), **OUTER)
    lowered = af.jit(f).lower(X)
    np.testing.assert_allclose(af.jit(f)(X), np.cos(3 * np.sin(X)))
    assert str(lowered.compiled_program.partitioned.program).count("all_gather(") == 1


def test_a_constraint_is_along_axes_that_are_left() -> None:
    def outer(x: Any, spec: P) -> Any:
        y = shard_map(anp.sin, in_specs=P("i"), out_specs=P("i"))(x)
        return lax.with_sharding_constraint(y, af.NamedSharding(MESH, spec)) * 2

    def cut(spec: P) -> Any:
        options = {"in_specs": P("o"), "out_specs": P("o"), **OUTER}
        return af.jit(shard_map(lambda x: outer(x, spec), **options))(X)

    np.testing.assert_allclose(cut(P(None, "i")), 2 * np.sin(X))
    with pytest.raises(ArgumentError, match="names 'o', along which a shard_map"):
        cut(P("o"))


def test_each_device_calls_back_as_without_an_inner_one() -> None:
    seen: list[int] = []

    def outer(x: Any) -> Any:
        af.debug.callback(lambda k: seen.append(int(k)), lax.axis_index("o"))
        return shard_map(anp.sin, in_specs=P("i"), out_specs=P("i"))(x)

    af.jit(shard_map(outer, in_specs=P("o"), out_specs=P("o"), **OUTER))(X)
    assert sorted(seen) == [0] * 4 + [1] * 4


def test_an_inner_one_over_no_axes_of_its_own_is_its_function() -> None:
    whole = {"in_specs": P(), "out_specs": P()}
    f = shard_map(
        shard_map(lambda x: x * lax.psum(x, "i"), **whole),
        mesh=MESH,
        in_specs=P("o", "i"),
        out_specs=P("o", "i"),
    )
    want = X * np.tile(X.reshape(8, 4, 4).sum(1), (1, 4))
    np.testing.assert_allclose(f(X), want, rtol=1e-13)


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"in_specs": P("o")}, ArgumentError, "in_specs has .* which has cut along it"),
        ({"out_specs": P("o")}, ArgumentError, "out_specs has .* has cut along it"),
        ({"in_specs": P("z")}, ArgumentError, "names each axis of the mesh"),
        ({"mesh": Mesh((4,), ("i",))}, ArgumentError, "its mesh must be the same"),
        ({"axis_names": {"z"}}, ArgumentError, "the axes of the mesh are 'o', 'i'"),
        ({"out_specs": P()}, ShapeError, "for all members along 'i', but it varies"),
        ({"in_specs": P(("i", "o"))}, ArgumentError, "which has cut along it"),
    ],
)
def test_what_an_inner_one_cannot_do(
    options: dict[str, Any], error: type[Exception], problem: str
) -> None:
    inner = shard_map(anp.sin, **{"in_specs": P("i"), "out_specs": P("i")} | options)
    with pytest.raises(error, match=problem):
        shard_map(inner, in_specs=P("o"), out_specs=P("o"), **OUTER)(X)
