"""What a caller may choose about how a Program is lowered."""

from __future__ import annotations

from typing import Final

from arrayfn.records import frozen

MODES: Final = ("persistent",)
"""The values of ``jit(f, mode=...)`` besides None; they change plans for a GPU."""


@frozen(slots=True)
class Options:
    """How to lower a Program. A target ignores an option that it has no use for.

    Attributes:
        deterministic: whether sums have a fixed order. If not, a target may add in the
            fastest order, which can differ from run to run.
        mode: one of ``MODES``, or None for one kernel after another.
        fused: whether equations share kernels. If not, each gets its own kernel.
        parts: the number of parts in which sums over a mesh are added, by one tree for
            any number of devices; with 0, there is one part for each device.
        library_products: whether a library multiplies matrices. If not, generated
            kernels do, and operators are computed by their bodies, for code without
            Python and BLAS.
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
