"""The primitive table: every row, by name. Each set of primitives is derived from it."""

from __future__ import annotations

from typing import Final

from arrayfn.primitives import (
    calls,
    complex_numbers,
    contraction,
    conversion,
    elementwise,
    reductions,
    special,
    views,
)
from arrayfn.primitives.base import Primitive

ROWS: Final[tuple[Primitive, ...]] = (
    *elementwise.ROWS,
    *special.ROWS,
    *complex_numbers.ROWS,
    *conversion.ROWS,
    *views.ROWS,
    *reductions.ROWS,
    *contraction.ROWS,
    *calls.ROWS,
)
TABLE: Final[dict[str, Primitive]] = {row.name: row for row in ROWS}

assert len(TABLE) == len(ROWS), "two primitives have one name"
