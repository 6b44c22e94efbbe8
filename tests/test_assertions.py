"""``check``: conditions asserted in compiled code."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cuda import missing_here
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.errors import ArgumentError, CheckError, DTypeError
from arrayfn.lowering.cuda.lower import lower
from arrayfn.passes.faults import NO_FAULT, fault_error, value_count

X = np.array([1.0, -2.0, 3.0])
FLAGS = np.array([True, False, True])


def root(x):
    af.check(x >= 0, "root of {x:.1f}, not {0}", anp.sum(x) + 1, x=x)
    return x**0.5


def scanned(xs):
    return lax.scan(lambda total, x: (total + root(x), total), 0.0, xs)


def repeated(x):
    return lax.while_loop(lambda c: c < 10, lambda c: c + root(c), x)


def asked(x):
    """The condition of the loop has the check."""

    def going(c):
        af.check(c < 5.5, "{c} is too large", c=c)
        return c < 10

    return lax.while_loop(going, lambda c: c + 1, x)


def chosen(which, x):
    return lax.cond(which, root, lambda x: lax.cond(x > 0, root, anp.abs, x), x)


def counted(x):
    """Members stop after different numbers of steps."""
    return lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, root(c[1])), (x, 3.5 - x)
    )


def looped(which, x):
    """A check inside a loop inside a branch."""
    return lax.cond(which, lambda x: lax.map(af.jit(root), x), lambda x: x, x)


CASES = {
    "alone": (root, (-1.0,), "root of -1.0, not 0.0"),
    "passing": (root, (4.0,), None),
    "array": (root, (X,), r"root of \[1.0 -2.0 3.0\].*false at \[1\]"),
    "scan": (scanned, (X,), "root of -2.0"),
    "scan passing": (scanned, (np.abs(X),), None),
    "while": (repeated, (-1.0,), "root of -1.0"),
    "while passing": (repeated, (1.0,), None),
    "condition": (asked, (0.0,), "6.0 is too large"),
    "condition at the end": (asked, (20.0,), "20.0 is too large"),
    "branch": (chosen, (True, -1.0), "root of -1.0"),
    "other branch": (chosen, (False, -1.0), None),
    "vmap": (af.vmap(root), (X,), r"root of -2.0.*member 1 of what vmap"),
    "vmap of an argument": (
        af.vmap(lambda y, x: root(x) + y, (0, None)),
        (X, -1.0),
        "root of -1.0, not 0.0$",
    ),
    "vmap of vmap": (
        af.vmap(af.vmap(root)),
        (np.stack([-X, X, np.abs(X)]),),
        "root of -1.0.*member 0, 0",
    ),
    "vmap of branches": (af.vmap(chosen), (FLAGS, X), None),
    "vmap of a taken branch": (af.vmap(chosen), (~FLAGS, X), "-2.0.*member 1"),
    "vmap of loops in branches": (
        af.vmap(looped),
        (FLAGS, np.stack([abs(X), X, abs(X)])),
        None,
    ),
    "vmap of a loop in a taken branch": (
        af.vmap(looped),
        (~FLAGS, np.stack([abs(X), X, abs(X)])),
        "root of -2.0.*member 1",
    ),
    "vmap of members that stopped": (
        af.vmap(counted),
        (np.array([4.0, 0.0]),),
        None,
    ),
    "grad": (af.grad(root), (-1.0,), "root of -1.0"),
    "grad passing": (af.grad(root), (4.0,), None),
    "grad of a scan": (af.grad(lambda x: scanned(x)[0]), (X,), "root of -2.0"),
    "checkpoint": (af.grad(af.checkpoint(root)), (-1.0,), "root of -1.0"),
    "jvp": (lambda x: af.jvp(root, (x,), (x,)), (-1.0,), "root of -1.0"),
    "no elements": (root, (np.zeros(0),), None),
}


@pytest.mark.parametrize("name", CASES)
def test_checks_raise_with_the_line_and_the_values(name):
    f, args, text = CASES[name]
    compiled = af.jit(f)
    for function in (f, compiled, compiled):
        if text is None:
            assert af.tree.leaves(function(*args))
            continue
        with pytest.raises(CheckError, match=rf"test_assertions\.py:\d+: .*{text}"):
            function(*args)


@pytest.mark.parametrize("name", list(CASES)[::2])
def test_kernels_for_a_gpu_find_the_same(name):
    f, args, text = CASES[name]
    lowered = af.jit(f).lower(*args)
    outputs = run_plan(
        lower(lowered.program, frozenset()), [np.asarray(x) for x in args]
    )
    if not lowered.sites:
        assert text is None
        return
    fault = int(outputs[-1])
    assert (fault != NO_FAULT) == (text is not None)
    if text is not None:
        values = outputs[len(outputs) - 1 - value_count(lowered.sites) : -1]
        with pytest.raises(CheckError, match=text):
            raise fault_error(lowered.sites, fault, values)


@pytest.mark.skipif(bool(missing_here()), reason=missing_here())
@pytest.mark.parametrize("name", CASES)
def test_checks_on_a_gpu(name):
    f, args, text = CASES[name]
    compiled = af.jit(f, device="cuda")
    if text is None:
        compiled(*args)
        return
    with pytest.raises(CheckError, match=text):
        compiled(*args)


def test_the_first_of_several_checks_is_the_one_beside_checks_of_jit():
    def f(x):
        af.check(x < 9, "{} is large", x)
        y = anp.log(x)
        af.check(y > 0, "{} is small", y)
        return y

    with pytest.raises(CheckError, match=r"10\.0 is large"):
        af.jit(f)(10.0)
    with pytest.raises(CheckError, match=r"-0\.69.* is small"):
        af.jit(f, checks="nan")(0.5)
    with pytest.raises(FloatingPointError, match="log makes NaN"):
        af.jit(f, checks="nan")(-1.0)
    assert af.jit(f)(2.0) == np.log(2.0)


def test_a_condition_known_while_tracing_holds_where_it_is():
    def f(x):
        return lax.cond(
            x > 0, lambda x: x, lambda x: (af.check(False, "below"), x)[1], x
        )

    assert af.jit(f)(1.0) == 1.0
    with pytest.raises(CheckError, match="below"):
        af.jit(f)(-1.0)
    plain = af.jit(lambda x: (af.check(x.ndim == 0, "a scalar"), x)[1]).lower(1.0)
    assert not plain.sites


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: af.check(True, "{x}"), ArgumentError, r"field \{x\}.*give x=\.\.\."),
        (lambda: af.check(True, "{}"), ArgumentError, "give one by position"),
        (lambda: af.check(True, "{"), ArgumentError, "is not a valid format"),
        (lambda: af.check(1.0, "x"), DTypeError, "must be a bool or.*compare it"),
        (lambda: af.check(True, "{x}", x="a"), ArgumentError, "value x is str"),
    ],
)
def test_errors_name_the_remedy(call, error, words):
    with pytest.raises(error, match=words):
        call()


@af.tree.register_dataclass
@dataclasses.dataclass
class Pair:
    first: object
    second: object


@pytest.mark.parametrize("way", [lambda f: f, af.jit, af.grad, af.vmap])
@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("{}", "Pair(first=-2.0, second={'w': [-4.0, None]})"),
        ("{.first:.2f} {n}{{}}", "-2.00 (){}"),
        ("{0.second[w][0]:{n2[0]}.1f}|{n2!s:>4}", "  -4.0|(6,)"),
        ("{0.first.real} {0.second[w][1]}", "-2.0 None"),
    ],
)
def test_values_may_be_pytrees(message, text, way):
    def f(x):
        pair = Pair(x, {"w": [2 * x, None]})
        af.check(x > 0, message, pair, n=(), n2=(6,))
        return x * x

    argument = X if way is af.vmap else X[1]
    with pytest.raises(CheckError, match=re.escape(text)):
        way(f)(argument)


def test_a_value_without_the_part_that_a_message_names_is_an_error():
    with pytest.raises(ArgumentError, match=r"field \{0\[b\]\}.*no such part"):
        af.check(True, "{[b]}", {"a": 1})


def test_a_check_is_an_assertion_and_is_not_saved(tmp_path):
    with pytest.raises(AssertionError):
        af.jit(root)(-1.0)
    with pytest.raises(ArgumentError, match="compiled with checks, its own"):
        af.save(af.jit(root).lower(1.0), tmp_path / "root")
