"""jit(f, checks=...): what raises, with which line, and what does not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.backends.cuda import missing_here
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.errors import (
    ArgumentError,
    DivisionByZeroError,
    NotFiniteError,
    OutOfBoundsError,
)
from arrayfn.lowering.cuda.lower import lower
from arrayfn.passes.faults import NO_FAULT, fault_error

X = np.arange(1.0, 6.0)
NAN, INF = float("nan"), float("inf")


def scanned(x: Any, places: Any) -> Any:
    return lax.scan(lambda total, i: (total + x[i], total), 0.0, places)


def searched(x: Any) -> Any:
    """The first element that is not positive."""
    return lax.while_loop(lambda i: x[i] > 0, lambda i: i + 1, 0)


def root(x: Any, steps: Any) -> Any:
    """Newton's iteration for x * x = 2."""
    return lax.fori_loop(0, steps, lambda _, y: y - (y * y - 2) / (2 * y), x)


def chosen(which: Any, x: Any) -> Any:
    return lax.cond(which, anp.log, lambda y: y, x)


def guarded(x: Any) -> Any:
    return anp.where(x > 0, anp.log(anp.where(x > 0, x, 1)), 0)


def place(*errors: str) -> str:
    return r"test_checks\.py:\d+: " + ".*".join(errors)


CASES = [
    # function, arguments, checks, error (None: none), its text
    (lambda x, i: x[i], (X, 4), True, None, ""),
    (lambda x, i: x[i], (X, -5), True, None, ""),
    (
        lambda x, i: x[i],
        (X, 5),
        True,
        OutOfBoundsError,
        place("index 5 is out of bounds for axis 0 with size 5; .*mode='clip'"),
    ),
    (lambda x, i: x[i], (X, -6), True, OutOfBoundsError, place("index -6 is out")),
    (
        lambda x, i: x[:, i],
        (X[None], np.array([[0, 250]], np.uint8)),
        True,
        OutOfBoundsError,
        place("index 250 is out of bounds for axis 1"),
    ),
    (
        lambda x, i: x[i],
        (X, np.array([1 << 50])),
        True,
        OutOfBoundsError,
        place(r"index 549755813887 \(or beyond\)"),
    ),
    (
        lambda x, i: x.at[i].add(1.0),
        (X, np.array([1, 5])),
        "index",
        OutOfBoundsError,
        place("index 5"),
    ),
    (lambda x, i: x.at[i].set(1.0, mode="drop"), (X, 7), True, None, ""),
    (lambda x, i: x.at[i].get(mode="clip"), (X, 7), True, None, ""),
    (lambda x, i: anp.take(x, i, mode="fill"), (X, 7), True, None, ""),
    (
        lambda x, i: anp.take_along_axis(x, i, 0),
        (X, np.array([0, 9])),
        True,
        OutOfBoundsError,
        place("index 9"),
    ),
    (
        lambda x, i: lax.dynamic_slice(x, (i,), (2,)),
        (X, 4),
        True,
        OutOfBoundsError,
        place("a slice of 2 elements from 4 is out of bounds for axis 0 with size 5"),
    ),
    (lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (X, -2), True, None, ""),
    (
        af.vmap(lambda x, i: x[i]),
        (np.ones((3, 4)), np.array([0, 3, 4])),
        True,
        OutOfBoundsError,
        place("index 4 is out of bounds for axis 0 with size 4"),
    ),
    (
        af.grad(lambda x, i: anp.sum(x[i])),
        (X, 9),
        True,
        OutOfBoundsError,
        place("index 9"),
    ),
    (scanned, (X, np.array([0, 4, -5])), True, None, ""),
    (
        scanned,
        (X, np.array([0, 8, -7])),
        True,
        OutOfBoundsError,
        place("index 8"),  # the first step's that has one
    ),
    (searched, (np.array([1.0, 0.0]),), True, None, ""),
    (searched, (np.array([1.0, 2.0]),), True, OutOfBoundsError, place("index 2 is")),
    (
        root,
        (0.0, 4),
        "division",
        DivisionByZeroError,
        place("div divides by zero; .*where"),
    ),
    (root, (1.0, 4), "all", None, ""),
    (
        lambda x, y: x // y,
        (np.array([4, 5]), np.array([2, 0])),
        "division",
        DivisionByZeroError,
        place(r"floor_divide divides by zero at \[1\] of i64\[2\]"),
    ),
    (
        lambda x, y: x % y,
        (4, 0),
        ("division", "nan"),
        DivisionByZeroError,
        place("rem"),
    ),
    (chosen, (False, -1.0), "nan", None, ""),
    (chosen, (True, -1.0), "nan", NotFiniteError, place("log makes NaN of operands")),
    (anp.log, (np.array([[1, 2], [0, 3.0]]),), "nan", None, ""),
    (
        anp.log,
        (np.array([[1, 2], [0, 3.0]]),),
        "inf",
        NotFiniteError,
        place(r"log makes an infinity at \[1, 0\] of f64\[2,2\]"),
    ),
    (lambda x: anp.log(x) + 1, (np.array([NAN, 1.0]),), "all", None, ""),
    (nn.softmax, (np.array([0.0, -INF]),), "all", None, ""),
    (guarded, (np.array([0.0, 2.0]),), "all", None, ""),
    (af.grad(lambda x: anp.sum(guarded(x))), (np.zeros(2),), "all", None, ""),
    (af.grad(anp.sqrt), (0.0,), "division", DivisionByZeroError, place("div")),
    (
        anp.sum,
        (np.array([1e308, 1e308]),),
        "inf",
        NotFiniteError,
        place("reduce_sum makes an infinity", "look at the operands"),
    ),
    (
        lambda x: x.astype(np.float32),
        (np.array([1e300]),),
        "inf",
        NotFiniteError,
        place("convert", "keep the wider dtype"),
    ),
    (
        anp.linalg.cholesky,
        (-np.eye(2),),
        "nan",
        NotFiniteError,
        place(r"cholesky makes NaN at \[0, 0\]"),
    ),
    (
        lambda z: 1j / z,
        (np.array([1j, 0]),),
        "division",
        DivisionByZeroError,
        place("div"),
    ),
]


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(("f", "args", "checks", "error", "text"), CASES)
def test_checks_raise_what_is_there(
    f: Any, args: Any, checks: Any, error: Any, text: str, device: str
) -> None:
    compiled = af.jit(f, checks=checks, device=device)
    if error is None:
        for have, want in zip(
            af.tree.leaves(compiled(*args)),
            af.tree.leaves(af.jit(f, device=device)(*args)),
            strict=True,
        ):
            np.testing.assert_array_equal(have, want)
        return
    for _ in range(2):  # once it is compiled too
        with pytest.raises(error, match=text):
            compiled(*args)
    assert af.jit(f, device=device)(*args) is not None  # it passes without


@pytest.mark.parametrize(("f", "args", "checks", "error", "text"), CASES[::3])
def test_kernels_for_a_gpu_find_the_same(
    f: Any, args: Any, checks: Any, error: Any, text: str
) -> None:
    lowered = af.jit(f, checks=checks).lower(*args)
    leaves = [np.asarray(x) for x in af.tree.leaves(args)]
    given = [
        x.astype(t.dtype)
        for x, t in zip(leaves, lowered.program.input_types, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = run_plan(lower(lowered.program, frozenset()), given)
    fault = int(outputs[-1]) if lowered.sites else NO_FAULT
    assert (fault != NO_FAULT) == (error is not None)
    if error is not None:
        with pytest.raises(error, match=text):
            raise fault_error(lowered.sites, fault)


@pytest.mark.skipif(bool(missing_here()), reason=missing_here())
@pytest.mark.parametrize(("f", "args", "checks", "error", "text"), CASES)
def test_checks_on_a_gpu(f: Any, args: Any, checks: Any, error: Any, text: str) -> None:
    compiled = af.jit(f, checks=checks, device="cuda")
    if error is None:
        compiled(*args)
        return
    with pytest.raises(error, match=text):
        compiled(*args)


def test_errors_are_those_of_numpy_and_python() -> None:
    with pytest.raises(IndexError):
        af.jit(lambda x, i: x[i], checks=True)(X, 9)
    with pytest.raises(FloatingPointError):
        af.jit(anp.log, checks="nan")(-1.0)
    with pytest.raises(ZeroDivisionError):
        af.jit(lambda x: 1 / x, checks="division")(0.0)


def test_a_check_is_equations_that_one_can_read() -> None:
    lowered = af.jit(lambda x, i: x[i], checks=True).lower(X, 2)
    assert [t.shape for t in lowered.program.output_types] == [(), ()]
    names = [e.primitive.name for e in lowered.program.equations]
    assert names.count("reduce_min") == 0  # one index is no array of them
    assert "select" in names
    assert lowered.compile()(X, 2) == 3.0
    with pytest.raises(OutOfBoundsError):
        lowered.compile()(X, 5)


def test_programs_without_checks_are_as_they_were() -> None:
    plain = af.jit(lambda x, i: x[i]).lower(X, 2)
    assert "in_bounds" not in str(plain.program)
    assert not plain.sites
    unneeded = af.jit(lambda x: x * 2, checks=True).lower(X)
    assert not unneeded.sites


def test_what_no_result_needs_is_not_checked() -> None:
    def f(x: Any) -> Any:
        anp.log(x)
        return x

    assert af.jit(f, checks="all")(-1.0) == -1.0


def test_a_loop_ends_at_a_fault() -> None:
    def f(x: Any) -> Any:  # NaN is never less than a tolerance
        return lax.while_loop(
            lambda s: anp.logical_not(s[1] < 1e-3),
            lambda s: (s[0] - 0.5, anp.sqrt(s[0])),
            (x, 1.0),
        )

    with pytest.raises(NotFiniteError, match="sqrt makes NaN"):
        af.jit(f, checks="nan")(1.25)


def test_an_operator_with_a_kernel_keeps_it() -> None:
    seen: list[float] = []

    @af.operator
    def halved(x: Any) -> Any:
        return x / 2

    @halved.kernel("cpu", check=False)
    def halve(x: Any, out: Any) -> None:
        seen.append(float(x))
        np.divide(1.0, x, out=out)

    f = af.jit(lambda x: halved(x) + 1, checks="inf")
    with (
        np.errstate(all="ignore"),
        pytest.raises(NotFiniteError, match="operator_call makes an infinity"),
    ):
        f(0.0)
    assert seen == [0.0]


def test_parts_are_not_checked_alone() -> None:
    part = af.jit(anp.log, checks="nan")
    with pytest.raises(ArgumentError, match=r"jit\(grad\(log\), checks=\.\.\.\)"):
        af.grad(part)(1.0)
    with pytest.raises(ArgumentError, match=r"nan.*'<lambda> \(.*\)' is traced"):
        af.jit(lambda x: part(x) + 1, checks=True)(1.0)
    with pytest.raises(NotFiniteError):
        af.jit(lambda x: part(x) + 1, checks="all")(-1.0)


@pytest.mark.parametrize("checks", ["bounds", ("nan", "foo"), 3.0])
def test_other_checks_are_an_error(checks: Any) -> None:
    with pytest.raises(ArgumentError, match="'index', 'division', 'nan', 'inf'"):
        af.jit(lambda x: x, checks=checks)
