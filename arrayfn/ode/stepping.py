"""The stepping loop: steps of a method, whose length the estimated error controls.

Step sizes, and when a step is rejected, are as in SciPy's ``solve_ivp`` (Hairer,
Norsett and Wanner, Solving Ordinary Differential Equations I, section II.4). Step sizes
count as constants in derivatives: the result is the derivative of the steps taken.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.ad_checkpoint import checkpoint
from arrayfn.numpy._operands import Array
from arrayfn.ode.methods import Function, Method, norm, of_dtype

# The factor from one step size to the next, and its limits.
SAFETY: Final = 0.9
SMALLEST: Final = 0.2
LARGEST: Final = 10.0


class Control(NamedTuple):
    """The tolerances and limits of a solution."""

    rtol: Array
    atol: Array  # a number, or one for each element of y
    largest: Array  # the largest step size
    steps: int  # the largest number of steps, with rejected ones

    def scale(self, y: Array, end: Array) -> Array:
        """Return the error allowed for each element in a step from ``y`` to ``end``.

        It is atol + rtol max(abs(y), abs(end)), a constant in derivatives.
        """
        largest_y = anp.maximum(anp.abs(y), anp.abs(end))
        return lax.stop_gradient(
            anp.astype(self.atol + self.rtol * largest_y, anp.finfo(y.dtype).dtype)
        )


class State(NamedTuple):
    """The state of the loop, and its last accepted step.

    The loop is at (``t``, ``y``), with slope ``f``. The last step was from (``before``,
    ``y_before``) over ``length``, and had ``stages``.
    """

    t: Array
    y: Array
    f: Array
    size: Array  # of the next step, positive
    rejected: Array  # whether the last attempt was rejected
    before: Array
    length: Array  # negative if time runs backwards
    y_before: Array
    stages: Array
    accepted: Array  # the number of accepted steps
    attempted: Array  # the number of accepted and rejected steps
    failed: Array  # whether the steps have become too small


def along(
    method: Method,
    f: Function,
    y: Array,
    ts: Array,
    control: Control,
    first: Array | None = None,
) -> tuple[Array, State]:
    """Solve for y at the times ``ts``, the first of which is that of ``y``.

    Returns y at all times, (times, n), and the last state. ``first`` is the size of the
    first step, None for a guess. Values at times that were not reached are NaN. In
    reverse mode the steps between two times are taken again, from the state that is
    kept at the earlier one.
    """
    end = ts[-1]
    direction = _direction(ts[0], end)

    def until(state: State, t: Array) -> tuple[State, Array]:
        """Step until t is reached, and interpolate there; NaN if it is not reached."""
        state = advance(method, f, state, t, end, control)
        value = between(method, f, state, t)
        reached = direction * (state.t - t) >= 0
        return state, anp.where(reached, value, anp.nan)

    state = start(method, f, ts[0], y, end, control, first)
    state, later = lax.scan(checkpoint(until), state, ts[1:])
    return anp.concatenate([y[None], later]), state


class Recorded(NamedTuple):
    """All accepted steps of a solution; the places after the last one repeat the end.

    The step that ends at ``times[k + 1]`` began at ``times[k]``, with ``values[k]``,
    and has the interpolant ``coefficients[k]``. ``accepted`` is the number of steps.
    """

    times: Array
    values: Array
    coefficients: Array
    accepted: Array


def recorded(
    method: Method,
    f: Function,
    y: Array,
    ends: tuple[Array, Array],
    control: Control,
    first: Array | None = None,
) -> tuple[Recorded, State]:
    """Return all steps from one time to another, and the last state.

    ``ends`` are both times. ``first`` is the size of the first step, None for a guess.
    The record has room for ``control.steps`` steps.
    """
    begin, end = ends
    direction = _direction(begin, end)
    count = control.steps
    zero_coefficients = anp.zeros((count, method.coefficients, *y.shape), y.dtype)
    times = anp.zeros(count + 1, begin.dtype) + end
    values = anp.zeros((count + 1, *y.shape), y.dtype)
    record = Recorded(
        times=anp.at(times)[0].set(begin),
        values=anp.at(values)[0].set(y),
        coefficients=zero_coefficients,
        accepted=anp.zeros((), np.int64),
    )
    state = start(method, f, begin, y, end, control, first)

    def going(carry: tuple[State, Recorded]) -> Array:
        """Return whether the end is not reached, and there is room for a step."""
        now, _ = carry
        is_there = direction * (now.t - end) >= 0
        return ~is_there & ~now.failed & (now.attempted < count)

    def once(carry: tuple[State, Recorded]) -> tuple[State, Recorded]:
        """Try a step, and record its interpolant."""
        now, record = carry
        after = attempt(method, f, now, end, direction, control)
        # A rejected step is written where the next one will be.
        place = now.accepted
        interpolant = _interpolant(method, f, after)
        return after, Recorded(
            times=anp.at(record.times)[place + 1].set(after.t),
            values=anp.at(record.values)[place + 1].set(after.y),
            coefficients=anp.at(record.coefficients)[place].set(interpolant),
            accepted=after.accepted,
        )

    state, record = lax.while_loop(going, once, (state, record))
    beyond = anp.arange(count + 1) > record.accepted
    times = anp.where(beyond, state.t, record.times)
    values = anp.where(beyond[:, None], state.y, record.values)
    return record._replace(times=times, values=values), state


def start(
    method: Method,
    f: Function,
    t: Array,
    y: Array,
    end: Array,
    control: Control,
    first: Array | None,
) -> State:
    """Return the state before the first step, at (``t``, ``y``).

    The size of the step is ``first`` if that is given, else a guess for a way to
    ``end``.
    """
    slope = f(t, y)
    if first is None:
        size = _first_size(method, f, t, y, slope, end, control)
    else:
        size = anp.asarray(first, dtype=t.dtype)
    size = lax.stop_gradient(size)
    zero, count = anp.zeros((), t.dtype), anp.zeros((), np.int64)
    return State(
        t=t,
        y=y,
        f=slope,
        size=anp.astype(size, t.dtype),
        rejected=anp.zeros((), np.bool_),
        before=t,
        length=zero,
        y_before=y,
        stages=anp.zeros((method.stages, *y.shape), y.dtype),
        accepted=count,
        attempted=count,
        failed=anp.zeros((), np.bool_),
    )


def advance(
    method: Method,
    f: Function,
    state: State,
    until: Array,
    end: Array,
    control: Control,
) -> State:
    """Step until the time ``until`` is passed, but not past ``end``.

    ``f`` is the slope, ``state`` the state at the start, and ``control`` bounds the
    error.
    """
    direction = _direction(state.t, end)

    def going(now: State) -> Array:
        """Return whether ``until`` is not passed, and another step is allowed."""
        enough = direction * (now.t - until) >= 0
        return ~enough & ~now.failed & (now.attempted < control.steps)

    return lax.while_loop(
        going, lambda now: attempt(method, f, now, end, direction, control), state
    )


def attempt(
    method: Method,
    f: Function,
    now: State,
    end: Array,
    direction: Array,
    control: Control,
) -> State:
    """Try one step, and accept it if its error is less than 1.

    ``now`` is the state before it; ``direction`` is 1 or -1, that of time. The next
    size is the length times 0.9 error**(-1 / (order + 1)), within limits. It does not
    grow directly after a rejected step. A size near the resolution of time is a
    failure.
    """
    t = lax.stop_gradient(now.t)
    smallest = 10 * anp.abs(anp.nextafter(t, direction * np.inf) - t)
    size = anp.clip(now.size, smallest, anp.maximum(control.largest, smallest))
    length = direction * size
    # The last step ends at the end.
    length = anp.where(direction * (now.t + length - end) > 0, end - now.t, length)
    after = anp.where(direction * (now.t + length - end) >= 0, end, now.t + length)
    step = method.step(f, now.t, now.y, now.f, length, control.scale)
    error = lax.stop_gradient(step.error)
    good = error < 1
    factor = SAFETY * anp.maximum(error, 1e-30) ** (-1 / (method.order + 1))
    grown = anp.clip(factor, 0.0, anp.where(now.rejected, 1.0, LARGEST))
    shrunk = anp.maximum(anp.where(anp.isnan(factor), SMALLEST, factor), SMALLEST)
    factor = anp.astype(anp.where(good, grown, shrunk), now.t.dtype)
    size = lax.stop_gradient(anp.abs(length)) * factor

    def chosen(new: Array, old: Array) -> Array:
        """Return ``new`` if the step is accepted, else ``old``."""
        return anp.where(good, new, old)

    return State(
        t=chosen(after, now.t),
        y=chosen(step.y, now.y),
        f=chosen(step.f, now.f),
        size=size,
        rejected=~good,
        before=chosen(now.t, now.before),
        length=chosen(length, now.length),
        y_before=chosen(now.y, now.y_before),
        stages=chosen(step.stages, now.stages),
        accepted=now.accepted + good,
        attempted=now.attempted + 1,
        failed=~good & (size < smallest),
    )


def between(method: Method, f: Function, state: State, t: Array) -> Array:
    """Return y at the time ``t``, inside of the last step."""
    no_step = state.length == 0
    fraction = (t - state.before) / anp.where(no_step, 1.0, state.length)
    coefficients = _interpolant(method, f, state)
    inside = method.evaluate(coefficients, state.y_before, fraction)
    return anp.where(no_step, state.y, inside)


def _interpolant(method: Method, f: Function, state: State) -> Array:
    """Return the coefficients of the interpolant of the last step."""
    return method.dense(
        f, state.before, state.length, state.y_before, state.y, state.stages
    )


def _direction(t: Array, end: Array) -> Array:
    """Return the direction of time: -1 if ``end`` is before ``t``, else 1."""
    sign = anp.astype(anp.where(end < t, -1.0, 1.0), end.dtype)
    return lax.stop_gradient(sign)


def _first_size(
    method: Method,
    f: Function,
    t: Array,
    y: Array,
    slope: Array,
    end: Array,
    control: Control,
) -> Array:
    """Return a size with which Euler's and the method's step have small errors.

    The solution begins at (``t``, ``y``) with this ``slope``, and goes to ``end``. d0,
    d1 and d2 are the norms of y and of its first and second derivatives, relative to
    the allowed errors. Source: Hairer, Norsett and Wanner, Solving Ordinary
    Differential Equations I, section II.4.
    """
    scale = control.scale(y, y)
    interval = anp.abs(end - t)
    whole = anp.where(interval == 0, 1.0, interval)
    d0, d1 = norm(y / scale), norm(slope / scale)
    is_small = (d0 < 1e-5) | (d1 < 1e-5)
    guess = anp.where(is_small, 1e-6, 0.01 * d0 / anp.where(d1 == 0, 1.0, d1))
    guess = anp.minimum(guess, whole)
    h = guess * _direction(t, end)
    later = f(t + h, y + of_dtype(h, y) * slope)
    d2 = norm((later - slope) / scale) / guess
    largest_derivative = anp.maximum(d1, d2)
    is_flat = largest_derivative <= 1e-15
    size = (0.01 / anp.where(is_flat, 1.0, largest_derivative)) ** (
        1 / (method.order + 1)
    )
    size = anp.where(is_flat, anp.maximum(1e-6, guess * 1e-3), size)
    size = anp.minimum(anp.minimum(100 * guess, size), whole)
    return anp.minimum(size, control.largest)
