"""Errors of transformations name the line of the equation that they are about."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from arrayfn.callbacks import pure_callback
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, ArrayfnError, DifferentiationError, ShapeError
from arrayfn.transforms import grad, jvp, linear_transpose, vmap
from arrayfn.transforms.custom import custom_jvp, custom_vjp

X = np.arange(3.0)


@custom_vjp
def doubled(x):
    return x * 2


doubled.defvjp(lambda x: (doubled(x), None), lambda r, ct: (ct * 2,))


@custom_jvp
def misfit(x):
    return x * 2


misfit.defjvp(lambda primals, tangents: (misfit(*primals), np.ones(5)))


def only_reverse(x):
    return doubled(x) * 1


def opaque(x):
    return pure_callback(np.sin, x, x) + 1


def unfitting(x):
    return (misfit(x)).sum()


def squared(x):
    return x * x


CASES = {
    "a rule that has no forward mode": (
        lambda: jvp(only_reverse, (X,), (X,)),
        only_reverse,
        DifferentiationError,
    ),
    "the same, compiled": (
        lambda: jit(lambda x: jvp(only_reverse, (x,), (x,)))(X),
        only_reverse,
        DifferentiationError,
    ),
    "a function without a derivative": (
        lambda: grad(lambda x: opaque(x).sum())(X),
        opaque,
        DifferentiationError,
    ),
    "a function that cannot be mapped": (
        lambda: vmap(opaque)(X),
        opaque,
        ArgumentError,
    ),
    "a rule of another shape": (lambda: grad(unfitting)(X), unfitting, ShapeError),
    "a transpose of what is not linear": (
        lambda: linear_transpose(squared, X)(X),
        squared,
        DifferentiationError,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_line_is_that_of_the_function(name):
    call, function, kind = CASES[name]
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, ArrayfnError)
    location = caught.value.location
    assert location is not None
    _, first = inspect.getsourcelines(function)
    assert location.line == first + 1
    assert str(caught.value).count(__file__) == 1


def test_the_rank_0_loop_counter():
    with pytest.raises(ArgumentError, match=r"rank 0 .*lax\.fori_loop"):
        jit(lambda x: [y for y in x])(1.0)  # noqa: C416
