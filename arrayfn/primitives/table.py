"""The primitive table: every row, by name. Sets of primitives are derived from it."""

from __future__ import annotations

from typing import Final

from arrayfn.primitives import (
    callbacks,
    calls,
    collectives,
    complex_numbers,
    contraction,
    control_flow_cond,
    control_flow_scan,
    control_flow_while,
    control_flow_while_linear,
    conversion,
    convolution,
    cumulative,
    custom_rules,
    dynamic_slices,
    elementwise,
    fourier,
    indexing,
    linalg_lu,
    linalg_qr,
    linalg_schur,
    linalg_spectral,
    linalg_svd,
    linalg_triangular,
    padded_convolution,
    random_bits,
    reductions,
    rematerialization,
    sorting,
    special,
    views,
    window_reductions,
    windowed,
)
from arrayfn.primitives.base import Primitive

ROWS: Final[tuple[Primitive, ...]] = (
    *elementwise.ROWS,
    *special.ROWS,
    *complex_numbers.ROWS,
    *conversion.ROWS,
    *views.ROWS,
    *reductions.ROWS,
    *cumulative.ROWS,
    *indexing.ROWS,
    *dynamic_slices.ROWS,
    *random_bits.ROWS,
    *sorting.ROWS,
    *fourier.ROWS,
    *contraction.ROWS,
    *linalg_triangular.ROWS,
    *linalg_lu.ROWS,
    *linalg_qr.ROWS,
    *linalg_spectral.ROWS,
    *linalg_svd.ROWS,
    *linalg_schur.ROWS,
    *windowed.ROWS,
    *window_reductions.ROWS,
    *convolution.ROWS,
    *padded_convolution.ROWS,
    *control_flow_cond.ROWS,
    *control_flow_scan.ROWS,
    *control_flow_while.ROWS,
    *control_flow_while_linear.ROWS,
    *calls.ROWS,
    *custom_rules.ROWS,
    *callbacks.ROWS,
    *collectives.ROWS,
    *rematerialization.ROWS,
)
TABLE: Final[dict[str, Primitive]] = {row.name: row for row in ROWS}

assert len(TABLE) == len(ROWS), "two primitives have one name"
