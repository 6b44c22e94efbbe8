"""``checkify``: errors as values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import checkify as ck
from arrayfn import lax
from arrayfn.errors import (
    ArgumentError,
    CheckError,
    DivisionByZeroError,
    NotFiniteError,
    OutOfBoundsError,
)
from arrayfn.passes.faults import Site


def positive(x: Any) -> Any:
    """Log, of positive numbers."""
    ck.check(x > 0, "{} is not positive", x)
    return anp.log(x)


@pytest.mark.parametrize("wrap", [lambda f: f, af.jit], ids=["eager", "jit"])
def test_a_failed_check_is_a_value_beside_the_result(wrap: Any) -> None:
    f = wrap(ck.checkify(positive))
    error, y = f(np.array(-1.0))
    assert error.get() == "-1.0 is not positive"
    assert np.isnan(y)
    with pytest.raises(CheckError, match=r"test_checkify.py:\d+: -1.0 is not positive"):
        error.throw()
    error, y = f(np.array(1.0))
    assert error.get() is None
    assert y == 0.0
    error.throw()


@pytest.mark.parametrize(
    ("function", "arguments", "kinds", "cls"),
    [
        (lambda x, i: x[i], (np.ones(3), 7), ck.index_checks, OutOfBoundsError),
        (anp.log, (np.float64(-1),), ck.nan_checks, NotFiniteError),
        (anp.exp, (np.float64(1e4),), ck.inf_checks, NotFiniteError),
        (lambda x: 1 / x, (np.float64(0),), ck.float_checks, DivisionByZeroError),
    ],
)
def test_the_first_fault_of_the_kinds_asked_for(
    function: Any, arguments: Any, kinds: Any, cls: type
) -> None:
    error, _ = af.jit(ck.checkify(function, errors=kinds))(*arguments)
    assert type(error.get_exception()) is cls
    assert ck.checkify(function, errors=ck.user_checks)(*arguments)[0].get() is None


def test_checks_that_are_not_asked_for_raise() -> None:
    f = ck.checkify(positive, errors=ck.float_checks)
    with pytest.raises(CheckError, match="not positive"):
        f(np.array(-1.0))
    with pytest.raises(CheckError, match="not positive"):
        af.jit(f)(np.array(-1.0))


def test_errors_are_mapped_and_scanned() -> None:
    error, y = af.vmap(ck.checkify(positive))(np.array([1.0, -2.0, -3.0]))
    assert error.get() == "-2.0 is not positive"
    assert y[0] == 0.0

    def step(carry: Any, x: Any) -> Any:
        return carry, ck.checkify(positive)(x)[0]

    _, errors = lax.scan(step, 0.0, np.array([1.0, 2.0, -3.0]))
    assert errors.get() == "-3.0 is not positive"


def test_check_error_raises_again_and_checkify_catches_again() -> None:
    def f(x: Any) -> Any:
        error, y = ck.checkify(lambda x: positive(1 / x), ck.all_checks)(x)
        ck.check_error(error)
        return y

    assert af.jit(f)(2.0) == np.log(0.5)
    with pytest.raises(CheckError, match=r"-0.5 is not positive"):
        af.jit(f)(-2.0)
    with pytest.raises(CheckError, match=r"div divides by zero, at .*test_checkify.py"):
        af.jit(f)(0.0)
    error, _ = af.jit(ck.checkify(f))(-2.0)
    assert error.get() == "-0.5 is not positive"


def test_a_loop_whose_condition_has_a_check_is_compiled_once_discharged() -> None:
    def going(n: Any) -> Any:
        ck.check(n < 3, "{} is too large", n)
        return n < 5

    f = af.jit(ck.checkify(lambda n: lax.while_loop(going, lambda n: n + 1, n)))
    assert f(0)[0].get() == "3 is too large"


def test_the_masked_part_of_a_mapped_loop_is_not_checked() -> None:
    def step(n: Any) -> Any:
        ck.check(n < 3, "{} is too large", n)
        return n + 1

    f = af.vmap(lambda n: lax.while_loop(lambda n: n < 3, step, n))
    error, n = ck.checkify(f)(np.arange(5))
    assert error.get() is None
    assert n.tolist() == [3, 3, 3, 3, 4]


def test_derivatives_go_through() -> None:
    square = ck.checkify(lambda x: anp.log(x) * x, errors=ck.all_checks)
    assert af.grad(lambda x: square(x)[1])(1.0) == 1.0
    error, slope = af.jit(ck.checkify(af.grad(positive)))(-2.0)
    assert error.get() == "-2.0 is not positive"
    assert slope == -0.5


def test_debug_checks_count_inside_checkify_alone() -> None:
    def f(x: Any) -> Any:
        ck.debug_check(x > 0, "{} is not positive", x)
        return x

    assert af.jit(f)(-1.0) == -1.0
    assert af.jit(ck.checkify(af.jit(f)))(-1.0)[0].get() == "-1.0 is not positive"
    assert ck.checkify(f, errors=ck.nan_checks)(-1.0)[0].get() is None


def test_arguments_that_are_no_arrays_reach_the_function() -> None:
    error, y = ck.checkify(lambda name, x: x + len(name))("ab", 1.0)
    assert (error.get(), y) == (None, 3.0)


def test_static_arguments_of_jit_reach_the_function_as_they_are() -> None:
    @ck.checkify
    def power(x: Any, count: int, logarithm: bool) -> Any:
        for _ in range(count):
            x = x * x
        return positive(x) if logarithm else x

    error, y = af.jit(power, static_argnums=(1, 2))(2.0, 3, False)
    assert (error.get(), y) == (None, 256.0)
    error, _ = af.jit(power, static_argnums=(1, 2))(-1.0, 0, True)
    assert error.get() == "-1.0 is not positive"


def test_true_and_false_reach_the_function_and_numbers_are_checked() -> None:
    quotient = ck.checkify(lambda x, y, up: x / y if up else y, errors=ck.div_checks)
    assert "divides by zero" in str(quotient(1.0, 0.0, True)[0].get())
    assert quotient(1.0, 0.0, False)[0].get() is None


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ArgumentError, match="unknown kinds"):
        ck.checkify(positive, errors={"overflow"})


def test_an_error_shows_its_message() -> None:
    error, _ = ck.checkify(positive)(np.array(-1.0))
    assert repr(error) == "Error('-1.0 is not positive')"
    assert [type(site) for site in error.sites] == [Site]
