"""What a caller may choose about how a Program is lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MODES: Final = ("persistent",)
"""The values of ``jit(f, mode=...)`` besides None; they change plans for a GPU."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to lower a Program. A target ignores an option that it has no use for.

    Attributes:
        deterministic: whether sums have one order. Else a target may add in the fastest
            order, which can differ from run to run.
        mode: one of ``MODES``, or None for one kernel after another.
        fused: whether equations share kernels. Else each has its own, for comparisons.
        parts: sums over a mesh are added in so many parts, by one tree whatever the
            number of devices; 0 adds those of the devices.
        library_products: whether a library multiplies matrices. Else kernels do, and
            compute operators by their bodies: for code without Python and BLAS.
        freeze: the recipes by which captured arrays are folded before lowering; None
            folds none.
    """

    deterministic: bool = True
    mode: str | None = None
    fused: bool = True
    parts: int = 0
    library_products: bool = True
    freeze: tuple[str, ...] | None = None


DEFAULT: Final = Options()
