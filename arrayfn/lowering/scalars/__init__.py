"""The scalar vocabulary of generated kernels.

Every name of ``SCALARS`` is a name of this module (``exp_f32``, ``max_i64``,
``convert_f32_bf16``), beside typed constants ``f32(0.5)`` and infinities. Called, they
compute with NumPy; a backend compiles the same objects. Type checkers read the names
from ``__init__.pyi``, which ``python -m arrayfn.lowering.scalars.stub`` writes.
"""

from __future__ import annotations

import numpy as np

from arrayfn.lowering.scalars.control import interrupted as interrupted
from arrayfn.lowering.scalars.memory import prefetch_row as prefetch_row
from arrayfn.lowering.scalars.memory import store_row as store_row
from arrayfn.lowering.scalars.table import SCALARS as SCALARS
from arrayfn.lowering.scalars.table import ScalarFunction as ScalarFunction

i8, i16, i32, i64 = np.int8, np.int16, np.int32, np.int64
u8, u16, u32, u64 = np.uint8, np.uint16, np.uint32, np.uint64
f32, f64 = np.float32, np.float64
c64, c128 = np.complex64, np.complex128
bool_ = np.bool_
F32_INF, F32_NEG_INF, F32_NAN = f32("inf"), f32("-inf"), f32("nan")
F64_INF, F64_NEG_INF, F64_NAN = f64("inf"), f64("-inf"), f64("nan")

globals().update(SCALARS)
