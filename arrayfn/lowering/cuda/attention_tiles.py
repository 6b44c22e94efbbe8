"""What the kernels of attention share: sizes of tiles, and pieces of their text.

A kernel's text depends on the elements of a head, the dtype, and on which terms there
are (``Form``); extents are arguments.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from arrayfn.lowering import scalars
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS
from arrayfn.lowering.kernel_printer import wrapped

UNLIMITED: Final = 2**29
"""A window that reaches everything; sums of it and positions stay below 2**31."""
LONGEST_HEAD: Final = 256
LOG2_E: Final = 1 / math.log(2)


@dataclass(frozen=True)
class Tiles:
    """A block's share: ``warps`` of 16 * ``strips`` rows, ``columns`` at a time.

    Rows are queries, and columns keys, but where cotangents of keys are computed.
    ``together`` blocks are to fit on a multiprocessor.
    """

    warps: int
    strips: int
    columns: int
    together: int

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
    """What the text of a kernel depends on.

    ``piece`` elements are copied at once, 8, 4, 2 or 1. ``scale`` is that of the
    logits; ``bias`` is the bias's dtype, or empty.
    """

    head: int
    dtype: str
    piece: int
    scale: float
    bias: str = ""
    mask: bool = False
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
    def ready(self) -> bool:
        """Whether logits are scaled before their maximum is taken."""
        return bool(self.bias) or self.scale <= 0


def indented(lines: Iterable[str] | str, depth: int) -> str:
    """Lines, or a text, ``depth`` steps to the right."""
    text = lines if isinstance(lines, str) else "\n".join(lines)
    return textwrap.indent(textwrap.dedent(text).strip("\n"), "    " * depth)


def copied(
    form: Form, threads: int, rows: int, array: str, base: str, step: str, limit: str
) -> str:
    """Copies ``rows`` rows of ``array`` from row ``start`` on into ``array_tile``.

    Rows from ``limit`` on become zeros.
    """
    pieces = form.head // form.piece
    count = rows * pieces
    copy = (
        f"copy_u16x{form.piece}({array}, {base} + from_row * {step} + column, "
        f"{array}_tile, row * {form.line} + column, live)"
        if form.piece > 1
        else f"{array}_tile[row * {form.line} + column] = "
        f"{array}[{base} + from_row * {step} + column] if live > 0 else u16(0)"
    )
    body = f"""
row = quotient(at, {pieces})
column = remainder(at, {pieces}) * {form.piece}
live = select_i64(start + row < {limit}, 1, 0)
from_row = min_i64(start + row, {limit} - 1)
{copy}
"""
    if count % threads == 0 and form.piece > 1:
        head = f"for turn in range({count // threads}):\n"
        head += f"    at = turn * {threads} + thread"
    else:
        head = f"for at in range(thread, {count}, {threads}):"
    return head + "\n" + indented(body, 1)


def padding_cleared(form: Form, threads: int, tiles: Sequence[tuple[str, int]]) -> str:
    """Zeros between the end of a head and the end of its rows in ``tiles``."""
    width = form.padded - form.head
    if not width:
        return ""
    parts = [
        f"for at in range(thread, {rows * width}, {threads}):\n"
        f"    row = quotient(at, {width})\n"
        f"    column = {form.head} + remainder(at, {width})\n"
        f"    {tile}[row * {form.line} + column] = u16(0)"
        for tile, rows in tiles
    ]
    return "\n".join(parts)


def with_imports(text: str) -> str:
    """``text`` after the imports of the names that it takes from the vocabularies."""
    names = set(re.findall(r"\b[A-Za-z_]\w*\b", text))
    head: list[str] = []
    for room, known in (("cuda.vocabulary", FUNCTIONS), ("scalars", scalars.__dict__)):
        used = sorted(name for name in names if name in known)
        if used:
            head += wrapped(
                f"from arrayfn.lowering.{room} import ", ", ".join(used), ""
            )
    return "\n".join(head) + "\n\n" + text
