"""Parameters of the kernels of attention: sizes of tiles, and optional operands."""

from __future__ import annotations

import math
from typing import Final

from arrayfn.lowering.cuda.attention.scores import ScoreLines
from arrayfn.records import frozen

UNLIMITED: Final = 2**29
"""A window that reaches everything; sums of it and positions stay below 2**31."""
LONGEST_HEAD: Final = 256
"""The most elements of a head that the kernels compute."""
LOG2_E: Final = 1 / math.log(2)


@frozen
class Tiles:
    """How a block computes its part of the matrix of logits.

    Rows of logits are queries and columns keys; in the kernel for the cotangents of
    keys it is the reverse.

    Args:
        m_fragments: Fragments of 16 rows that each warp has.
        columns: Columns that a block computes at a time.
        blocks_per_multiprocessor: Blocks that a multiprocessor must have room for.
        warps: Warps of a block.
    """

    m_fragments: int
    columns: int
    blocks_per_multiprocessor: int
    warps: int = 4

    @classmethod
    def fitting(cls, rows: int, columns: int, largest: Tiles) -> Tiles:
        """Return the tiles for a matrix of ``rows`` by ``columns``.

        They are ``largest``, which are for large matrices, or smaller if the matrix is.
        """
        m_fragments = largest.m_fragments if rows > 64 else 1
        warps = min(largest.warps, -(-rows // (16 * m_fragments)))
        tile_columns = largest.columns
        while tile_columns >= 32 and columns <= tile_columns // 2:
            tile_columns //= 2
        return cls(m_fragments, tile_columns, largest.blocks_per_multiprocessor, warps)

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return 16 * self.m_fragments

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.warps * self.warp_rows

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps


@frozen
class Form:
    """What the text of a kernel depends on, besides ``Tiles``.

    Args:
        head: Elements of a head.
        dtype: The dtype of queries, keys and values, fp16 or bf16.
        piece: Elements of a head that are copied at once: 8, 4, 2 or 1.
        scale: The factor of the logits.
        bias: The dtype of the bias, or empty if there is none.
        mask: Whether there is a mask.
        paired: Which of ``"bias"`` and ``"mask"`` are read by pairs of elements.
        query_lengths: Whether each batch has its own number of queries.
        key_lengths: Whether each batch has its own number of keys.
        score: The lines of the score function, if there is one.
        blocks: Whether a block mask says which tiles to leave out.
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
    score: ScoreLines | None = None
    blocks: bool = False

    @property
    def padded(self) -> int:
        """Elements of a head in a tile: a multiple of a fragment's 16."""
        return -(-self.head // 16) * 16

    @property
    def line(self) -> int:
        """Elements from one row of a tile to the next.

        An odd number of 16 bytes, so that eight rows lie in different banks.
        """
        return self.padded + 8

    @property
    def factor(self) -> str:
        """The expression of the logits' scale times log2(e), as weights are by exp2."""
        return f"f32({self.scale * LOG2_E!r})"

    @property
    def scales_first(self) -> bool:
        """Whether logits are scaled before their maximum is taken, not after."""
        return bool(self.bias) or self.scale <= 0 or self.score is not None
