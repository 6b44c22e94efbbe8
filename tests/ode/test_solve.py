"""Differential equations beside SciPy's solver and beside exact solutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.integrate

import arrayfn.numpy as anp
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.ode import odeint, solve
from arrayfn.ode.methods import BOGACKI_SHAMPINE, DORMAND_PRINCE
from arrayfn.scipy import integrate
from arrayfn.transforms import vmap

EXPLICIT = ["RK23", "RK45", "DOP853"]


def lotka_volterra(t: Any, y: Any) -> Any:
    return anp.stack([1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]])


def kepler(t: Any, y: Any) -> Any:
    """A planet on an ellipse: position, then velocity."""
    return anp.concatenate([y[2:], -y[:2] / (y[:2] ** 2).sum() ** 1.5])


def robertson(t: Any, y: Any) -> Any:
    a, b, c = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return anp.stack([b - a, a - b - c, c])


def van_der_pol(t: Any, y: Any) -> Any:
    return anp.stack([y[1], 1e3 * (1 - y[0] ** 2) * y[1] - y[0]])


@pytest.mark.parametrize("method", EXPLICIT)
def test_explicit_methods_take_the_steps_that_scipys_take(method: Any) -> None:
    y0, ts = np.array([10.0, 5.0]), np.linspace(0, 10, 21)
    options = {"rtol": 1e-5, "atol": 1e-8}
    have = jit(lambda y0: solve(lotka_volterra, y0, ts, method=method, **options))(y0)
    want = scipy.integrate.solve_ivp(
        lotka_volterra, (0, 10), y0, method, dense_output=True, **options
    )
    assert have.steps == len(want.t) - 1
    np.testing.assert_allclose(have.ys, want.sol(ts).T, rtol=1e-10)
    backwards = solve(lotka_volterra, y0, -ts / 10, method=method, **options)
    want = scipy.integrate.solve_ivp(
        lotka_volterra, (0, -1), y0, method, t_eval=-ts / 10, **options
    )
    np.testing.assert_allclose(backwards.ys, want.y.T, rtol=1e-11)


def test_tables_are_scipys() -> None:
    for ours, theirs in (
        (BOGACKI_SHAMPINE, scipy.integrate.RK23),
        (DORMAND_PRINCE, scipy.integrate.RK45),
    ):
        np.testing.assert_allclose(ours.powers, theirs.P, rtol=1e-15, atol=1e-15)
        np.testing.assert_allclose(ours.errors[0], theirs.E, rtol=1e-15, atol=1e-15)
        np.testing.assert_array_equal(ours.weights, theirs.B)


@pytest.mark.parametrize("method", [*EXPLICIT, "Rodas5P"])
def test_errors_of_interpolated_values_follow_the_tolerance(method: Any) -> None:
    ts = np.linspace(0.0, 3.0, 40)
    wave = lambda t, y: anp.stack([y[1], -y[0] * 4.0]) + anp.cos(t)  # noqa: E731

    def exact(t: Any) -> Any:
        s, c = np.sin(2 * t), np.cos(2 * t)
        return (2 * c + 2 * s + np.cos(t) - np.sin(t)) / 3

    for rtol in (1e-4, 1e-7):
        found = jit(
            lambda y, rtol: solve(wave, y, ts, method=method, rtol=rtol, atol=rtol)
        )(np.array([1.0, 0.0]), rtol)
        error = np.abs(found.ys[:, 0] - exact(ts)).max()
        assert error < 20 * rtol
        assert found.success


def test_kepler_comes_round_again() -> None:
    start = np.array([0.5, 0.0, 0.0, np.sqrt(3.0)])
    around = np.array([0.0, 2 * np.pi])
    found = solve(kepler, start, around, method="DOP853", rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found.ys[1], start, atol=1e-9)


def test_stiff_equations_take_few_steps() -> None:
    # Hairer and Wanner, Solving Ordinary Differential Equations II, test set.
    found = jit(
        lambda y: solve(
            robertson,
            y,
            np.array([0.0, 40.0, 1e5]),
            method="Rodas5P",
            rtol=1e-8,
            atol=1e-12,
        )
    )(np.array([1.0, 0.0, 0.0]))
    want = [7.158270687e-1, 9.185534764e-6, 2.841637457e-1]
    np.testing.assert_allclose(found.ys[1], want, rtol=1e-7)
    assert found.attempts < 400
    found = jit(
        lambda y: solve(
            van_der_pol,
            y,
            np.array([0.0, 2000.0]),
            method="Rodas5P",
            rtol=1e-8,
            atol=1e-10,
        )
    )(np.array([2.0, 0.0]))
    want = [1.706167732170469, -8.928097010248125e-4]
    np.testing.assert_allclose(found.ys[1], want, rtol=1e-4)
    assert found.attempts < 2000


@pytest.mark.parametrize("method", [*EXPLICIT, "Rodas5P"])
def test_a_dense_solution_is_a_function_of_time(method: Any) -> None:
    ts = np.linspace(0.0, 1.0, 5)
    y0 = {"x": np.array(10.0), "y": np.array(5.0)}

    def slope(t: Any, s: Any) -> Any:
        change = lotka_volterra(t, anp.stack([s["x"], s["y"]]))
        return {"x": change[0], "y": change[1]}

    dense = jit(lambda y: solve(slope, y, ts, method=method, dense=True))(y0)
    plain = solve(slope, y0, ts, method=method)
    for values in (dense.ys["x"], dense.sol(ts)["x"]):
        np.testing.assert_allclose(values, plain.ys["x"], rtol=1e-12)
    assert dense.sol(np.ones((2, 3)))["y"].shape == (2, 3)
    assert np.isnan(dense.sol(1.5)["x"])
    assert dense.sol(0.0)["x"] == 10.0
    assert "Dense solution" in repr(dense.sol)


def test_mapped_solutions_are_those_of_each() -> None:
    starts = np.array([[10.0, 5.0], [1.0, 2.0], [3.0, 1.0]])
    ts = np.linspace(0.0, 2.0, 3)
    run = lambda y: solve(lotka_volterra, y, ts).ys  # noqa: E731
    have = jit(vmap(run))(starts)
    np.testing.assert_allclose(have, [run(y) for y in starts], rtol=1e-12)


def test_float32_complex_and_numbers_as_values() -> None:
    ts = np.array([0.0, 1.0])
    single = solve(lambda t, y: -y, np.ones(2, np.float32), ts)
    assert single.ys.dtype == np.float32
    np.testing.assert_allclose(single.ys[1], np.exp(-1), rtol=1e-5)
    turning = solve(lambda t, y: 1j * y, np.array([1.0 + 0j]), ts, rtol=1e-9)
    np.testing.assert_allclose(turning.ys[1], np.exp(1j), rtol=1e-8)
    np.testing.assert_allclose(solve(lambda t, y: -y, 1, ts).ys[1], np.exp(-1), 1e-6)


def test_what_is_not_reached_is_nan() -> None:
    found = solve(lambda t, y: y**2, 1.0, np.array([0.0, 0.5, 2.0]))
    assert not found.success
    np.testing.assert_allclose(found.ys[:2], [1.0, 2.0], rtol=1e-5)
    assert np.isnan(found.ys[2])
    few = solve(lambda t, y: y, 1.0, np.array([0.0, 9.0]), max_steps=3)
    assert few.attempts == 3
    assert not few.success


def test_scipys_signatures() -> None:
    y0 = [10.0, 5.0]
    slope = lambda t, y, a: [a * y[0] - y[0] * y[1], y[0] * y[1] - 3 * y[1]]  # noqa: E731
    for method in EXPLICIT:
        have = integrate.solve_ivp(
            slope, (0, 5), y0, method, dense_output=True, args=(1.5,)
        )
        want = scipy.integrate.solve_ivp(
            slope, (0, 5), y0, method, dense_output=method != "DOP853", args=(1.5,)
        )
        np.testing.assert_allclose(have.t, want.t, rtol=1e-9)
        np.testing.assert_allclose(have.y, want.y, rtol=1e-8)
        assert have.nfev == want.nfev
        assert have.message == want.message
        if want.sol is not None:
            ts = np.linspace(0, 5, 7)
            np.testing.assert_allclose(have.sol(ts), want.sol(ts), rtol=1e-8)
            np.testing.assert_allclose(have.sol(2.0), want.sol(2.0), rtol=1e-8)
    ts = np.linspace(0.0, 5.0, 4)
    at = jit(lambda y: integrate.solve_ivp(slope, (0, 5), y, t_eval=ts, args=(1.5,)).y)
    want = scipy.integrate.solve_ivp(slope, (0, 5), y0, t_eval=ts, args=(1.5,)).y
    np.testing.assert_allclose(at(np.array(y0)), want, rtol=1e-9)
    have = integrate.odeint(slope, y0, ts, (1.5,), tfirst=True)
    want = scipy.integrate.odeint(slope, y0, ts, (1.5,), tfirst=True)
    np.testing.assert_allclose(have, want, rtol=1e-5)
    np.testing.assert_allclose(
        odeint(lambda y, t, a: slope(t, y, a)[0] * y, np.array(y0), ts[:1], 1.5), [y0]
    )


def test_what_does_not_fit_is_refused() -> None:
    ts = np.array([0.0, 1.0])
    with pytest.raises(ArgumentError, match="method must be one of RK23"):
        solve(lotka_volterra, np.ones(2), ts, method="Radau")
    with pytest.raises(ArgumentError, match="adjoint must be one of"):
        solve(lotka_volterra, np.ones(2), ts, adjoint="checkpointed")
    with pytest.raises(ShapeError, match="ts must be a vector"):
        solve(lotka_volterra, np.ones(2), 1.0)
    with pytest.raises(ShapeError, match=r"f gives f64\[2\] where y0 is f64\[3\]"):
        solve(lotka_volterra, np.ones(3), ts)
    with pytest.raises(ArgumentError, match="f gives the structure"):
        solve(lambda t, y: (y, y), np.ones(2), ts)
    with pytest.raises(DTypeError, match="real and imaginary parts"):
        solve(lambda t, y: y, np.ones(2) + 0j, ts, method="Rodas5P")
    with pytest.raises(ArgumentError, match="give t_eval"):
        jit(lambda y: integrate.solve_ivp(lotka_volterra, (0, 1), y).y)(np.ones(2))
    with pytest.raises(ArgumentError, match="no events"):
        integrate.solve_ivp(lotka_volterra, (0, 1), np.ones(2), events=max)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("method", ["RK45", "Rodas5P"])
def test_times_may_be_float32(method: Any, dense: bool) -> None:
    ts = np.linspace(0, 1, 4, dtype=np.float32)
    found = solve(
        lambda t, y: -y, np.ones(2, np.float32), ts, method=method, dense=dense
    )
    assert found.ys.dtype == found.ts.dtype == np.float32
    np.testing.assert_allclose(found.ys[-1], np.exp(-1), rtol=2e-4)


def test_odeint_takes_a_slope_of_another_structure():
    ts = np.linspace(0.0, 1.0, 3)
    want = odeint(lambda y, t: anp.stack([y[1], -y[0]]), np.array([1.0, 0.0]), ts)
    as_list = odeint(lambda y, t: [y[1], -y[0]], np.array([1.0, 0.0]), ts)
    of_list = odeint(lambda y, t: anp.stack([y[1], -y[0]]), [1.0, 0.0], ts)
    np.testing.assert_array_equal(as_list, want)
    np.testing.assert_array_equal(np.stack(of_list, -1), want)
