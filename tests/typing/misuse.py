"""A user's mistakes, which type checkers find: each line marked ``wrong``."""

from __future__ import annotations

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp


@af.jit
def scaled(x: af.Array, factor: float) -> af.Array:
    return x * factor


x = np.ones(3)
scaled(x, "two")  # wrong
scaled(x)  # wrong
af.vmap(scaled, (0, None))(x, None)  # wrong
af.jit(anp.exp)("x", 2)  # wrong
anp.add(x)  # wrong
af.grad(lambda y: y)(x, unknown=1)  # wrong
number: str = anp.exp(x)  # wrong
af.checkpoint(scaled)(x, 2.0, 3.0)  # wrong
