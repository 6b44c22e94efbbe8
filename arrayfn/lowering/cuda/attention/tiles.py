"""Parameters of the kernels of attention: sizes of tiles, and optional terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = 2**29
"""A window that reaches everything; sums of it and positions stay below 2**31."""
LONGEST_HEAD: Final = 256
LOG2_E: Final = 1 / math.log(2)


@dataclass(frozen=True)
class Tiles:
    """How a block computes its part of the matrix of logits.

    Each of its ``warps`` has 16 * ``strips`` rows, and goes along the columns, so many
    ``columns`` at a time. Rows are queries and columns keys; where the cotangents of
    keys are computed it is the reverse. A multiprocessor must have room for
    ``blocks_per_multiprocessor`` blocks.
    """

    warps: int
    strips: int
    columns: int
    blocks_per_multiprocessor: int

    @classmethod
    def fitting(
        cls,
        rows: int,
        columns: int,
        *,
        strips: int,
        most: int,
        blocks_per_multiprocessor: int,
        warps: int = 4,
    ) -> Tiles:
        """Tiles for a matrix of ``rows`` by ``columns``, no larger than it needs.

        They have at most ``strips``, ``warps`` and ``most`` columns.
        """
        strips = strips if rows > 64 else 1
        warps = min(warps, -(-rows // (16 * strips)))
        while most >= 32 and columns <= most // 2:
            most //= 2
        return cls(warps, strips, most, blocks_per_multiprocessor)

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return 16 * self.warps * self.strips

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps


@dataclass(frozen=True)
class Form:
    """What the text of a kernel depends on, besides ``Tiles``.

    ``head`` is the number of elements of a head, of which ``piece`` (8, 4, 2 or 1) are
    copied at once. ``scale`` is that of the logits; ``bias`` is the bias's dtype, or
    empty. Of ``"bias"`` and ``"mask"`` those ``paired`` are read two elements at once.
    """

    head: int
    dtype: str
    piece: int
    scale: float
    bias: str = ""
    mask: bool = False
    paired: tuple[str, ...] = ()
    query_lengths: bool = False
    key_lengths: bool = False

    @property
    def padded(self) -> int:
        """Elements of a head in a tile, whole fragments."""
        return -(-self.head // 16) * 16

    @property
    def line(self) -> int:
        """Elements from one row of a tile to the next.

        An odd number of 16 bytes, so that eight rows lie in different banks.
        """
        return self.padded + 8

    @property
    def factor(self) -> str:
        """The text of what logits are multiplied by, as powers of two."""
        return f"f32({self.scale * LOG2_E!r})"

    @property
    def ready(self) -> bool:
        """Whether logits are multiplied by that before their maximum is taken."""
        return bool(self.bias) or self.scale <= 0
