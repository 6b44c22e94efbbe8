"""Writes ``__init__.pyi``, the names of the vocabulary for type checkers.

python -m arrayfn.lowering.scalars.stub
"""

from __future__ import annotations

from pathlib import Path

from arrayfn.lowering.scalars.table import SCALARS

HEADER = """\
# Written by arrayfn.lowering.scalars.stub from the table of scalar functions.
from typing import Any

import numpy as np

from arrayfn.lowering.scalars.table import ScalarFunction as ScalarFunction

SCALARS: dict[str, ScalarFunction]
i8 = np.int8
i16 = np.int16
i32 = np.int32
i64 = np.int64
u8 = np.uint8
u16 = np.uint16
u32 = np.uint32
u64 = np.uint64
f32 = np.float32
f64 = np.float64
c64 = np.complex64
c128 = np.complex128
bool_ = np.bool_

def prefetch_row(pointer: Any, begin: int, count: int) -> None: ...
def store_row(target: Any, begin: int, source: Any, count: int, far: int) -> None: ...

F32_INF: np.float32
F32_NEG_INF: np.float32
F32_NAN: np.float32
F64_INF: np.float64
F64_NEG_INF: np.float64
F64_NAN: np.float64
"""


def text() -> str:
    """Return the text of the stub file."""
    names = (f"{name}: ScalarFunction\n" for name in SCALARS)
    return HEADER + "".join(names)


if __name__ == "__main__":
    Path(__file__).with_name("__init__.pyi").write_text(text(), encoding="utf-8")
