"""Pieces of the kernels' text that leave out the tiles that a block mask leaves out.

Arrays say for each block of rows which block of columns is the next that is kept: see
``BlockMask.following``. Tiles of a kernel and blocks of a mask have sizes of their own:
a tile of rows may lie in several blocks. Tiles that are not left out are masked element
by element, by the score function.
"""

from __future__ import annotations

from typing import Final

from arrayfn.lowering.cuda.attention.text import Text

NONE: Final = 2**30
"""What follows the last kept block; no block of queries or keys has this number."""


def block_row(text: Text) -> str:
    """Define which blocks of a block mask the tile's rows lie in.

    They are ``first_block`` to ``last_block``. Empty if there is no block mask.
    """
    if not text.form.blocks:
        return ""
    row, _ = _names(text)
    return f"""
first_block = quotient(first_row, {row}_block)
last_block = min_i64(first_row + {text.tiles.rows - 1}, {text.rows} - 1)
last_block = quotient(last_block, {row}_block)
"""


def kept_columns(text: Text, begin: str, members: str = "1") -> str:
    """Narrow ``begin`` and ``end`` to the columns of the first to the last kept block.

    Where rows are queries, ``next_keys`` has a row for each block of queries: for each
    block of keys the next kept block from there on, and then the end of the last kept
    block. ``key_block`` is the number of keys of a block. Empty if there is no block
    mask. ``members`` is how many heads of columns, from ``member`` on, the tile of rows
    has; ``begin`` is the variable of the first column.
    """
    if not text.form.blocks:
        return ""
    _, column = _names(text)
    array = f"next_{text.columns}"
    return f"""
near = i64({NONE})
far = i64(0)
for other in range({members}):
    next_base = batch * {array}_batch + (member + other) * {array}_head
    for block in range(first_block, last_block + 1):
        next_at = next_base + block * ({column}_blocks + 1)
        near = min_i64(near, i64({array}[next_at]))
        far = max_i64(far, i64({array}[next_at + {column}_blocks]))
{begin} = max_i64({begin}, quotient(near * {column}_block, 16) * 16)
end = min_i64(end, far * {column}_block)
"""


def next_columns(text: Text) -> str:
    """Define ``next_start``: where the next kept block from ``start`` on begins.

    ``next_start`` is a multiple of 16, and not before ``start``. For the arrays that
    are read see ``kept_columns``.
    """
    _, column = _names(text)
    array = f"next_{text.columns}"
    return f"""
near = i64({NONE})
next_base = batch * {array}_batch + member * {array}_head
for block in range(first_block, last_block + 1):
    next_at = next_base + block * ({column}_blocks + 1)
    next_at = next_at + quotient(start, {column}_block)
    near = min_i64(near, i64({array}[next_at]))
next_start = max_i64(start, quotient(near * {column}_block, 16) * 16)
"""


def _names(text: Text) -> tuple[str, str]:
    """Return what rows and columns are called in the names of blocks."""
    return ("key", "query") if text.is_transposed else ("query", "key")
