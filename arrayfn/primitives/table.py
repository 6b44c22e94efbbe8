"""The primitive table: every primitive, by name. Sets of them are derived from it."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from arrayfn.primitives import (
    assertions,
    bounds,
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
    custom_batching,
    custom_rules,
    discrete,
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
    linear_call,
    linear_solve,
    padded_convolution,
    random_bits,
    reductions,
    rematerialization,
    reshard,
    shard_map,
    slicing,
    sorting,
    special,
    views,
    window_elements,
    window_reductions,
    windowed,
)
from arrayfn.primitives.base import Primitive

_FAMILIES: Final[tuple[ModuleType, ...]] = (
    elementwise,
    discrete,
    special,
    complex_numbers,
    conversion,
    views,
    slicing,
    reductions,
    cumulative,
    indexing,
    dynamic_slices,
    bounds,
    random_bits,
    sorting,
    fourier,
    contraction,
    linalg_triangular,
    linalg_lu,
    linalg_qr,
    linalg_spectral,
    linalg_svd,
    linalg_schur,
    windowed,
    window_elements,
    window_reductions,
    convolution,
    padded_convolution,
    control_flow_cond,
    control_flow_scan,
    control_flow_while,
    control_flow_while_linear,
    calls,
    custom_rules,
    custom_batching,
    linear_call,
    linear_solve,
    callbacks,
    assertions,
    collectives,
    rematerialization,
    shard_map,
    reshard,
)


def primitives_in(*modules: ModuleType) -> tuple[Primitive, ...]:
    """Return the Primitives that are attributes of ``modules``, each once."""
    values = [value for module in modules for value in vars(module).values()]
    return tuple(dict.fromkeys(x for x in values if isinstance(x, Primitive)))


ROWS: Final = primitives_in(*_FAMILIES)
TABLE: Final[dict[str, Primitive]] = {row.name: row for row in ROWS}

assert len(TABLE) == len(ROWS), "two primitives have one name"
