"""The registry of actions, which emulate a kind of device functions for one thread.

An action is called as ``action(thread, function, *arguments)``, and returns the
function's result. ``copies``, ``lookback`` and ``threads`` register the actions that
access memory. ``PLAIN`` has functions without effects, which need no thread.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda.emulator.matrices import exp, exp2, rsqrt
from arrayfn.lowering.cuda.vocabulary import MIN_DIVIDEND, MIN_DIVISOR

Action = Callable[..., Any]

ACTIONS: Final[dict[str, Action]] = {}
"""The action of each kind of device functions."""


def emulates(*kinds: str) -> Callable[[Action], Action]:
    """Decorate a function to register it as the action of ``kinds``."""

    def registered(action: Action) -> Action:
        """Register ``action``, and return it."""
        ACTIONS.update(dict.fromkeys(kinds, action))
        return action

    return registered


def _divides(minimum: Any, maximum: Any, y: Any) -> bool:
    """Whether ``divide`` by ``y`` is correctly rounded on a GPU.

    ``minimum`` and ``maximum`` are bounds of the dividends' magnitudes.
    """
    small, large = MIN_DIVIDEND, 1 / MIN_DIVIDEND
    divisors = MIN_DIVISOR <= abs(y) <= 1 / MIN_DIVISOR
    return bool(minimum >= small and maximum <= large and divisors)


def _fma_rn(*operands: Any) -> Any:
    """Return x * y + z in float32; the product is exact in float64."""
    x, y, z = map(np.float64, operands)
    return np.float32(x * y + z)


def _nothing(*arguments: Any) -> None:
    """Do nothing: fences order memory accesses, and threads run one by one here."""


PLAIN: Final[dict[str, Callable[..., Any]]] = {
    "quotient": operator.floordiv,
    "remainder": operator.mod,
    "byte": lambda value, shift: int(value) >> shift & 255,
    "inverse": lambda y: np.float32(1) / y,
    "divide": lambda x, y, inverse: x / y,
    "divides": _divides,
    "fma_rn": _fma_rn,
    "opaque": lambda x: x,
    "unrolled": range,
    "approximate_exp2": exp2,
    "approximate_exp": exp,
    "approximate_rsqrt": rsqrt,
    "approximate_sqrt": np.sqrt,
    "approximate_divide": np.divide,
    **dict.fromkeys(("cluster_arrive", "fence_mbarrier_init", "fence"), _nothing),
    **dict.fromkeys(
        ("griddepcontrol_wait", "griddepcontrol_launch_dependents"), _nothing
    ),
}
"""By kind, what device functions without effects compute from their arguments."""
