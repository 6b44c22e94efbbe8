"""Schedules: functions from the step, a Python or traced integer, to a number.

Any optimizer takes one as its learning rate; the step counts the updates, from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import arrayfn.numpy as anp
from arrayfn.optim.transformations import Array, Schedule


def constant_schedule(value: float) -> Schedule:
    """Return a schedule that is ``value`` at every step."""
    return lambda step: anp.full_like(anp.multiply(step, 1.0), value)


def _progress(step: Any, begin: int, steps: int) -> Array:
    """Return the fraction of ``steps`` done at ``step``, counted from ``begin``.

    It is clamped to [0, 1]. Raises ValueError unless ``steps`` is positive.
    """
    if steps <= 0:
        raise ValueError(f"a schedule takes a positive number of steps, not {steps}")
    return anp.divide(anp.clip(anp.subtract(step, begin), 0, steps), float(steps))


def polynomial_schedule(
    init_value: float,
    end_value: float,
    power: float,
    transition_steps: int,
    transition_begin: int = 0,
) -> Schedule:
    """Return a schedule from ``init_value`` to ``end_value``, as (1 - done)**power.

    ``done`` is the fraction of ``transition_steps`` since step ``transition_begin``.

    >>> [float(polynomial_schedule(1.0, 0.0, 2.0, 4)(k)) for k in (0, 2, 4, 9)]
    [1.0, 0.25, 0.0, 0.0]
    """

    def schedule(step: Any) -> Array:
        """Return end_value + (init_value - end_value) (1 - done)**power."""
        left = 1.0 - _progress(step, transition_begin, transition_steps)
        return (init_value - end_value) * anp.power(left, power) + end_value

    return schedule


def linear_schedule(
    init_value: float,
    end_value: float,
    transition_steps: int,
    transition_begin: int = 0,
) -> Schedule:
    """Return a schedule from ``init_value`` to ``end_value`` in equal steps.

    It changes for ``transition_steps`` steps, from step ``transition_begin`` on.
    """
    return polynomial_schedule(
        init_value, end_value, 1.0, transition_steps, transition_begin
    )


def exponential_decay(
    init_value: float,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """Return the schedule ``init_value * decay_rate**(step / transition_steps)``.

    Steps count from ``transition_begin``. ``staircase`` rounds the exponent down. The
    decay stops at ``end_value``. Raises ValueError unless ``transition_steps`` and
    ``decay_rate`` are positive.

    >>> [float(exponential_decay(1.0, 2, 0.25)(k)) for k in (0, 1, 2)]
    [1.0, 0.5, 0.25]
    """
    if transition_steps <= 0 or decay_rate <= 0:
        raise ValueError(
            "exponential_decay takes positive transition_steps and decay_rate, not "
            f"{transition_steps} and {decay_rate}"
        )

    def schedule(step: Any) -> Array:
        """Return init_value * decay_rate**exponent, limited by ``end_value``.

        A decay has a lower limit, and a growth (``decay_rate`` > 1) an upper one.
        """
        since = anp.maximum(anp.subtract(step, transition_begin), 0)
        exponent = anp.divide(since, float(transition_steps))
        exponent = anp.floor(exponent) if staircase else exponent
        value = init_value * anp.exp(exponent * math.log(decay_rate))
        if end_value is None:
            return value
        limit = anp.maximum if decay_rate < 1 else anp.minimum
        return limit(value, end_value)

    return schedule


def cosine_decay_schedule(
    init_value: float, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0
) -> Schedule:
    """Return a schedule from ``init_value`` to ``alpha * init_value`` by a cosine.

    The value follows half a cosine, raised to the power ``exponent`` (Loshchilov and
    Hutter, SGDR, 2017). The end is at step ``decay_steps``.

    >>> [round(float(cosine_decay_schedule(2.0, 4)(k)), 6) for k in (0, 2, 4)]
    [2.0, 1.0, 0.0]
    """

    def schedule(step: Any) -> Array:
        """Return the value on the half cosine at ``step``."""
        done = _progress(step, 0, decay_steps)
        curve = 0.5 * (1.0 + anp.cos(math.pi * done))
        return init_value * ((1 - alpha) * anp.power(curve, exponent) + alpha)

    return schedule


def warmup_cosine_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> Schedule:
    """Return a schedule that rises linearly, then falls along a cosine.

    It goes from ``init_value`` to ``peak_value`` in ``warmup_steps`` steps, and to
    ``end_value`` at step ``decay_steps``. ``exponent`` is that of
    ``cosine_decay_schedule``.

    >>> schedule = warmup_cosine_decay_schedule(0.0, 1.0, 2, 6)
    >>> [round(float(schedule(k)), 6) for k in (0, 1, 2, 4, 6)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    alpha = end_value / peak_value if peak_value else 0.0
    down = cosine_decay_schedule(
        peak_value, decay_steps - warmup_steps, alpha, exponent
    )
    if warmup_steps == 0:
        return down
    return join_schedules(
        [linear_schedule(init_value, peak_value, warmup_steps), down], [warmup_steps]
    )


def piecewise_constant_schedule(
    init_value: float, boundaries_and_scales: Mapping[int, float]
) -> Schedule:
    """Return a schedule that changes by a factor at each of some boundaries.

    ``boundaries_and_scales`` maps steps to factors. The value is ``init_value`` times
    the factors of all boundaries that the step has reached.

    >>> schedule = piecewise_constant_schedule(1.0, {2: 0.5, 4: 0.1})
    >>> [round(float(schedule(k)), 6) for k in (1, 2, 4)]
    [1.0, 0.5, 0.05]
    """

    def schedule(step: Any) -> Array:
        """Return ``init_value`` times the factors of the boundaries up to ``step``."""
        value: Any = constant_schedule(init_value)(step)
        for boundary, factor in sorted(boundaries_and_scales.items()):
            reached = anp.greater_equal(step, boundary)
            value = anp.where(reached, value * factor, value)
        return value

    return schedule


def join_schedules(
    schedules: Sequence[Schedule], boundaries: Sequence[int]
) -> Schedule:
    """Return a schedule that uses each of ``schedules`` until its boundary.

    ``boundaries`` are the steps at which all but the first schedule start, and each
    schedule counts steps from its start. Raises ValueError unless there is one boundary
    less than schedules.
    """
    if len(boundaries) != len(schedules) - 1:
        raise ValueError(
            f"{len(schedules)} schedules are joined at {len(schedules) - 1} "
            f"boundaries, not {len(boundaries)}"
        )

    def schedule(step: Any) -> Array:
        """Return the value of the schedule that holds at ``step``."""
        value = schedules[0](step)
        for boundary, later in zip(boundaries, schedules[1:], strict=True):
            after = later(anp.subtract(step, boundary))
            value = anp.where(anp.less(step, boundary), value, after)
        return value

    return schedule


__all__ = [
    "constant_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
    "join_schedules",
    "linear_schedule",
    "piecewise_constant_schedule",
    "polynomial_schedule",
    "warmup_cosine_decay_schedule",
]
