"""What a caller may choose about how a Program is lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MODES: Final = ("persistent",)
"""The values of ``jit(f, mode=...)`` besides None; they change plans for a GPU."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to lower a Program. A target ignores an option that it has no use for.

    Unless ``deterministic``, a target may add in the fastest order, which can differ
    from run to run. ``mode`` is one of ``MODES``, or None for one kernel after another.
    With ``parts`` sums over a mesh are added in so many parts, by one tree whatever the
    number of devices.
    Unless ``fused``, every equation has a kernel of its own, for comparisons. Unless
    ``library_products``, kernels compute products of matrices, and operators by their
    bodies: that is for code which runs without Python and BLAS.
    """

    deterministic: bool = True
    mode: str | None = None
    fused: bool = True
    parts: int = 0
    library_products: bool = True


DEFAULT: Final = Options()
