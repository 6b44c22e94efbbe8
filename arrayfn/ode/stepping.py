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

SAFETY: Final = 0.9
SMALLEST: Final = 0.2
LARGEST: Final = 10.0


class Control(NamedTuple):
    """Tolerances and limits of a solution."""

    rtol: Array
    atol: Array  # a number, or one for each element of y
    largest: Array  # step
    steps: int  # at most, rejected ones included

    def scale(self, y: Array, end: Array) -> Array:
        """The error allowed for each element in a step from ``y`` to ``end``."""
        most = anp.maximum(anp.abs(y), anp.abs(end))
        return lax.stop_gradient(
            anp.astype(self.atol + self.rtol * most, anp.finfo(y.dtype).dtype)
        )


class State(NamedTuple):
    """Where the loop is, and its last step: from ``before`` over ``length``."""

    t: Array
    y: Array
    f: Array
    size: Array  # of the next step, positive
    rejected: Array  # whether the last attempt was
    before: Array
    length: Array
    y_before: Array
    stages: Array
    accepted: Array  # how many steps were
    attempted: Array
    failed: Array  # whether the steps have become too small


def along(
    method: Method,
    f: Function,
    y: Array,
    ts: Array,
    control: Control,
    first: Array | None = None,
) -> tuple[Array, State]:
    """y at the times ``ts``, of which the first is that of ``y``; the last state.

    Values at times that were not reached are NaN. In reverse mode the steps between two
    times are taken again, from the state that is kept at the earlier one.
    """
    end = ts[-1]
    direction = _direction(ts[0], end)

    def until(state: State, t: Array) -> tuple[State, Array]:
        """Step until t is reached, and interpolate there; NaN if it is not."""
        state = advance(method, f, state, t, end, control)
        value = between(method, f, state, t)
        reached = direction * (state.t - t) >= 0
        return state, anp.where(reached, value, anp.nan)

    state = start(method, f, ts[0], y, end, control, first)
    state, later = lax.scan(checkpoint(until), state, ts[1:])
    return anp.concatenate([y[None], later]), state


class Recorded(NamedTuple):
    """All accepted steps of a solution; the places after the last one repeat the end.

    The step that ends at ``times[k + 1]`` began at ``times[k]``, with ``values[k]``.
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
    """All steps from one time to another, and the last state."""
    begin, end = ends
    direction = _direction(begin, end)
    count = control.steps
    room = anp.zeros((count, method.coefficients, *y.shape), y.dtype)
    times = anp.zeros(count + 1, begin.dtype) + end
    values = anp.zeros((count + 1, *y.shape), y.dtype)
    record = Recorded(
        anp.at(times)[0].set(begin),
        anp.at(values)[0].set(y),
        room,
        anp.zeros((), np.int64),
    )
    state = start(method, f, begin, y, end, control, first)

    def going(carry: tuple[State, Recorded]) -> Array:
        """Whether the end is not reached, and there is room for another step."""
        now = carry[0]
        is_there = direction * (now.t - end) >= 0
        return ~is_there & ~now.failed & (now.attempted < count)

    def once(carry: tuple[State, Recorded]) -> tuple[State, Recorded]:
        """Try a step, and write down its interpolant."""
        now, record = carry
        after = attempt(method, f, now, end, direction, control)
        # A rejected step is written where the next one will be.
        place = now.accepted
        coefficients = _interpolant(method, f, after)
        return after, Recorded(
            anp.at(record.times)[place + 1].set(after.t),
            anp.at(record.values)[place + 1].set(after.y),
            anp.at(record.coefficients)[place].set(coefficients),
            after.accepted,
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
    """The state before the first step."""
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
    """Step until ``until`` is passed, but not past ``end``."""
    direction = _direction(state.t, end)

    def going(now: State) -> Array:
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
    """One step, which is accepted if its error is small enough."""
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
    """y at ``t``, inside of the last step."""
    is_there = state.length == 0
    at = (t - state.before) / anp.where(is_there, 1.0, state.length)
    coefficients = _interpolant(method, f, state)
    inside = method.evaluate(coefficients, state.y_before, at)
    return anp.where(is_there, state.y, inside)


def _interpolant(method: Method, f: Function, state: State) -> Array:
    """The coefficients of the last step."""
    return method.dense(
        f, state.before, state.length, state.y_before, state.y, state.stages
    )


def _direction(t: Array, end: Array) -> Array:
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
    """A size with which an Euler step and a step of the method have small errors.

    The solution begins at (``t``, ``y``) with this ``slope``, and goes to ``end``.
    Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I, section II.4.
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
    most = anp.maximum(d1, d2)
    is_flat = most <= 1e-15
    size = (0.01 / anp.where(is_flat, 1.0, most)) ** (1 / (method.order + 1))
    size = anp.where(is_flat, anp.maximum(1e-6, guess * 1e-3), size)
    size = anp.minimum(anp.minimum(100 * guess, size), whole)
    return anp.minimum(size, control.largest)
