"""A jitted function called again with one thing changed: what it was compiled for."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.errors import ArgumentError


class Pair(NamedTuple):
    a: Any
    b: Any


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def described(x: Any) -> str:
    """The leaves of a traced argument, as Python sees them."""
    leaves = [f"{x.dtype}{list(x.shape)}" for x in af.tree.leaves(x)]
    return f"{type(x).__name__} {leaves}"


ARGUMENTS = {
    "shape": (np.ones(3), np.ones(4)),
    "rank": (np.ones(1), np.ones((1, 1))),
    "extent 0": (np.ones((2, 3)), np.ones((0, 3))),
    "dtype": (np.ones(3), np.ones(3, np.float32)),
    "kind": (np.ones(3, np.int64), np.ones(3, np.uint64)),
    "number": (np.float64(1.0), np.float32(1.0)),
    "kind of number": (1, 1.0),
    "bool": (True, 1),
    "structure": ((np.ones(2), np.ones(2)), [np.ones(2), np.ones(2)]),
    "class": ((np.ones(2), np.ones(2)), Pair(np.ones(2), np.ones(2))),
    "none": ((np.ones(2), None), (np.ones(2),)),
    "keys": ({"a": np.ones(2)}, {"b": np.ones(2)}),
    "order of keys": ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_type_of_an_argument_is_what_is_compiled_for(name: str) -> None:
    seen: list[str] = []

    @af.jit
    def f(x):
        seen.append(described(x))
        return af.tree.map(lambda leaf: leaf * 2, x)

    first, second = ARGUMENTS[name]
    for x in (first, second, first, second):
        result = f(x)
        assert af.tree.structure(result) == af.tree.structure(x)
        wanted = af.tree.map(lambda leaf: np.asarray(leaf) * 2, x)
        for have, want in zip(
            af.tree.leaves(result), af.tree.leaves(wanted), strict=True
        ):
            assert (have.dtype, have.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(have, want)
    assert len(seen) == 2


def test_a_python_number_is_not_a_numpy_number() -> None:
    f = af.jit(lambda x, y: x * y)
    x = np.ones(2, np.float32)
    assert f(x, 2.0).dtype == np.float32
    assert f(x, np.float64(2.0)).dtype == np.float64
    assert f(x, 2.0).dtype == np.float32


def test_a_strided_array_is_not_a_contiguous_one() -> None:
    f = af.jit(lambda x: x * 2)
    whole = np.arange(24.0).reshape(4, 6)
    for x in (
        whole[:2, :3].copy(),
        whole[::2, ::2],
        whole.T[:2, :3],
        whole[::-1, ::-1],
    ):
        np.testing.assert_array_equal(f(x), x * 2)


@dataclass(frozen=True)
class Scaling:
    factor: Any


@dataclass(frozen=True)
class Named:
    weights: Any = field(compare=False)
    name: str = "one"
    values: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def test_dataclasses_with_arrays_are_compared_by_their_own_rule() -> None:
    seen: list[float] = []
    f = af.jit(lambda x, c: seen.append(c.values[0]) or x, static_argnums=1)
    for k in range(3):
        f(1.0, Named(np.ones(2), values=np.full(2, k)))
    assert seen == [0]


STATIC = {
    "int and bool": (1, True),
    "int and float": (1, 1.0),
    "bool and float": (False, 0.0),
    "signed zeros": (0.0, -0.0),
    "signed zeros of numpy": (np.float32(0.0), np.float32(-0.0)),
    "widths": (np.float32(1.0), np.float64(1.0)),
    "enum": (Level.LOW, 1),
    "members": ((1, 2), (True, 2)),
    "named members": (Pair(1, 2), (1, 2)),
    "sets": (frozenset({1}), frozenset({True})),
    "fields": (Scaling(1), Scaling(1.0)),
    "fields of fields": (Scaling((Scaling(0.0), 1)), Scaling((Scaling(-0.0), 1))),
    "strings": ("1", b"1"),
    "none": (None, 0),
}


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("way", ["position", "name"])
def test_static_arguments_are_told_apart_by_type(name: str, way: str) -> None:
    seen: list[str] = []

    def f(x, which):
        seen.append(repr(which))
        return x

    f = af.jit(f, static_argnums=1)
    first, second = STATIC[name]
    for value in (first, second, first, second):
        if way == "position":
            f(1.0, value)
        else:
            f(1.0, which=value)
    assert seen == [repr(first), repr(second)]


def test_the_extent_of_a_named_axis_is_that_of_this_call() -> None:
    size = af.jit(lambda: lax.axis_size("i"))
    for n in (2, 3, 2):
        assert af.vmap(size, axis_name="i", axis_size=n, out_axes=None)() == n
    with pytest.raises(ArgumentError, match="called 'i'"):
        size()
    assert af.vmap(size, axis_name="i", axis_size=4, out_axes=None)() == 4


def test_the_named_axis_of_a_member_is_that_of_this_call() -> None:
    place = af.jit(lambda y: lax.axis_index("i") * y)
    for n in (3, 4):
        found = af.vmap(lambda a: a + place(2.0), axis_name="i")(np.zeros(n))
        np.testing.assert_array_equal(found, 2.0 * np.arange(n))
    with pytest.raises(ArgumentError, match="called 'i'"):
        place(2.0)


def test_which_of_two_axes_has_the_name() -> None:
    total = af.jit(lambda x: lax.psum(x, "i"))
    x = np.arange(6.0).reshape(2, 3)
    rows = af.vmap(af.vmap(total, axis_name="i"), axis_name="j")(x)
    columns = af.vmap(af.vmap(total, axis_name="j"), axis_name="i")(x)
    np.testing.assert_array_equal(rows, np.repeat(x.sum(1)[:, None], 3, 1))
    np.testing.assert_array_equal(columns, np.repeat(x.sum(0)[None], 2, 0))


def test_a_closure_over_a_traced_value_is_differentiated() -> None:
    for x in (1.0, 2.0):
        assert af.grad(lambda x: af.jit(lambda: x * x)())(x) == 2 * x
        assert af.grad(lambda x: af.jit(lambda y: x * x * y)(3.0))(x) == 6 * x


def test_a_closure_over_an_array_is_compiled_inside_a_gradient() -> None:
    weights = np.array([1.0, 2.0, 4.0])
    total = af.jit(lambda: 2 * weights.sum())
    assert af.grad(lambda x: x * total())(3.0) == 14.0
    assert af.grad(lambda x: x * total())(3.0) == 14.0
    assert total() == 14.0


def test_a_function_compiled_outside_is_the_one_inside_a_gradient() -> None:
    calls: list[None] = []

    @af.jit
    def square(x):
        calls.append(None)
        return x * x

    assert square(3.0) == 9.0
    assert af.grad(lambda x: x * square(3.0))(1.0) == 9.0
    assert len(calls) == 1
    assert af.grad(square)(3.0) == 6.0
    assert square(3.0) == 9.0


def test_lowering_what_uses_traced_values_is_refused() -> None:
    def f(x):
        af.jit(lambda y: x * y).lower(1.0)
        return x

    with pytest.raises(ArgumentError, match="cannot be lowered by itself"):
        af.grad(f)(1.0)


def test_members_of_an_enum_are_numbers() -> None:
    f = af.jit(lambda x, n: x * n)
    x = np.ones(2, np.float32)
    for n in (2, Level.HIGH, 2):
        result = f(x, n)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, [2.0, 2.0])


def test_checks_belong_to_the_function_that_asks_for_them() -> None:
    def root(x):
        return anp.sqrt(x)

    plain, checked = af.jit(root), af.jit(root, checks="nan")
    assert np.isnan(plain(-1.0))
    with pytest.raises(FloatingPointError):
        checked(-1.0)
    assert np.isnan(plain(-1.0))


def test_devices_are_told_apart() -> None:
    f = af.jit(lambda x: x + 1, device="reference")
    g = af.jit(lambda x: x + 1, device="cpu")
    for h in (f, g, f):
        np.testing.assert_array_equal(h(np.ones(2)), [2.0, 2.0])


REFUSED = {
    "number": (
        {"static_argnums": 5},
        r"names argument 5, but f\(x, n\) takes 2 positional",
    ),
    "negative number": ({"static_argnums": (0, -3)}, r"names argument -3, but"),
    "name": (
        {"static_argnames": "m"},
        r"names 'm', but f\(x, n\) has no parameter of that name",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_static_arguments_that_do_not_exist_are_refused(name: str) -> None:
    def f(x, n):
        return x * n

    options, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message):
        af.jit(f, **options)


def test_any_name_may_be_static_among_keywords() -> None:
    f = af.jit(lambda *args, **options: args[1] * options["n"], static_argnames="n")
    assert f(1.0, 2.0, n=3) == 6.0
    g = af.jit(lambda *args: args[1] * args[2], static_argnums=2)
    assert g(1.0, 2.0, 3) == 6.0


def test_none_static_is_no_static_argument() -> None:
    f = af.jit(
        lambda x: 2 * x, static_argnums=None, static_argnames=None, donate_argnums=None
    )
    assert f(2.0) == 4.0


@pytest.mark.parametrize("transform", ["jit", "grad", "value_and_grad", "vmap"])
def test_what_is_no_function_is_refused(transform: str) -> None:
    with pytest.raises(ArgumentError, match=r"takes a function, not int \(3\)"):
        getattr(af, transform)(3)


def test_donated_positions_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ArgumentError, match="donate_argnums names argument 2, but"):
        af.jit(lambda x, y: x, donate_argnums=2)


@pytest.mark.parametrize(
    "use",
    [
        lambda f: af.jvp(f, (1.0,), (1.0,)),
        lambda f: af.vjp(f, 1.0),
        lambda f: af.linearize(f, 1.0),
        lambda f: af.eval_shape(f, 1.0),
        lambda f: af.make_program(f)(1.0),
        lambda f: af.jacrev(f)(1.0),
        lambda f: af.jacfwd(f)(1.0),
    ],
)
def test_what_is_no_function_is_not_traced(use: Any) -> None:
    with pytest.raises(ArgumentError, match=r"takes a function, not int \(3\)"):
        use(3)


@pytest.mark.parametrize("options", [{"in_axes": "x"}, {"in_axes": {"x": 0}}])
def test_axes_that_are_no_tuple_are_refused(options: Any) -> None:
    with pytest.raises(ArgumentError, match="a tuple of one for each positional"):
        af.vmap(lambda x: x, **options)(np.ones(3))


@pytest.mark.parametrize(
    "options", [{"in_axes": (0.5,)}, {"out_axes": "x"}, {"out_axes": 0.5}]
)
def test_axes_that_are_no_integers_are_refused(options: Any) -> None:
    with pytest.raises(ArgumentError, match="an entry must be an integer, or None"):
        af.vmap(lambda x: x, **options)(np.ones(3))


@pytest.mark.parametrize("argnums", [(), None])
def test_a_gradient_by_nothing_is_refused(argnums: Any) -> None:
    with pytest.raises(ArgumentError, match="names no argument to differentiate"):
        af.grad(lambda x: x, argnums=argnums)(1.0)
