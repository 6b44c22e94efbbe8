"""Arrays as Python source: their values, and how they lie in memory.

An ``Operand`` prints as an expression of NumPy alone, so that a failing program stands
by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from arrayfn import dtypes

Shape = tuple[int, ...]

FLOATS: Final = ("float32", "float64", "float16", "bfloat16")
INTEGERS: Final = (
    *("int32", "int64", "int8", "int16"),
    *("uint8", "uint16", "uint32", "uint64"),
)
COMPLEX: Final = ("complex64", "complex128")
STORAGE: Final = ("float8_e4m3fn", "float8_e5m2", "int4", "uint4")
DTYPES: Final = ("bool", *INTEGERS, *FLOATS, *COMPLEX, *STORAGE)
WRITTEN_OUT: Final = 24
"""Arrays up to this size are printed element by element."""

LAYOUTS: Final[dict[str, Callable[[Shape], str | None]]] = {
    "row-major": lambda shape: "{}",
    "Fortran": lambda shape: "np.asfortranarray({})" if len(shape) > 1 else None,
    "reversed": lambda shape: (
        "np.ascontiguousarray(({})[::-1])[::-1]" if shape else None
    ),
    "reversed rows": lambda shape: (
        "np.ascontiguousarray(({})[..., ::-1])[..., ::-1]" if len(shape) > 1 else None
    ),
    "strided": lambda shape: "np.repeat({}, 2, -1)[..., ::2]" if shape else None,
    "strided rows": lambda shape: "np.repeat({}, 3, 0)[1::3]" if shape else None,
    "permuted": lambda shape: (
        "np.moveaxis(np.ascontiguousarray(np.moveaxis({}, 0, -1)), -1, 0)"
        if len(shape) > 1
        else None
    ),
    "read-only": lambda shape: f"np.broadcast_to({{}}, {shape})",
    "broadcast": lambda shape: (
        f"np.broadcast_to(({{}})[:1], {shape})" if shape and shape[0] else None
    ),
    "overlapping": lambda shape: (
        f"np.lib.stride_tricks.sliding_window_view(np.resize({{}}, "
        f"{shape[0] + shape[1] - 1}), {shape[1]})"
        if len(shape) == 2 and min(shape)
        else None
    ),
    "unaligned": lambda shape: (
        "(lambda x: np.frombuffer(b'?' + x.tobytes(), x.dtype, -1, 1)"
        ".reshape(x.shape))({})"
        if 0 not in shape
        else None
    ),
}

KINDS: Final = ("steps", "normal", "special", "ties", "offset", "unit", "extreme")


@dataclass(frozen=True)
class Operand:
    """An argument, or a captured constant, of a program.

    ``kind`` says what its values are, ``layout`` how it lies; ``python`` makes it a
    Python number. ``batch`` is the place and extent of the axis that ``vmap`` maps.
    """

    name: str
    shape: Shape
    dtype: str
    kind: str = "steps"
    layout: str = "row-major"
    seed: int = 0
    python: bool = False
    constant: bool = False
    batch: tuple[int, int] | None = None

    @property
    def full_shape(self) -> Shape:
        """With the mapped axis."""
        if self.batch is None:
            return self.shape
        place, extent = self.batch
        return (*self.shape[:place], extent, *self.shape[place:])

    def source(self) -> str:
        """An expression of its value."""
        shape = self.full_shape
        plain = values(self.kind, shape, self.dtype, self.seed)
        if self.python:
            return repr(plain.item())
        if plain.size > WRITTEN_OUT:
            text = drawn(self.kind, shape, self.dtype, self.seed)
        else:
            wide = plain.astype(_wide(plain.dtype))
            text = f"np.array({wide.tolist()!r}, {self.dtype!r})"
            if not plain.size:
                text = f"np.zeros({shape}, {self.dtype!r})"
        laid = LAYOUTS[self.layout](shape)
        return text if laid is None else laid.format(text)


def _wide(dtype: np.dtype[Any]) -> Any:
    if dtype in dtypes.COMPLEX:
        return np.complex128
    if dtype in dtypes.INT4:
        return np.int64
    return np.float64 if dtype in dtypes.DIFFERENTIABLE else dtype


def values(kind: str, shape: Shape, dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """The values of an operand."""
    scope = {"np": np, "inf": np.inf, "nan": np.nan}
    with np.errstate(all="ignore"):
        return eval(drawn(kind, shape, dtype, seed), scope)


def drawn(kind: str, shape: Shape, dtype: str, seed: int) -> str:
    """An expression that draws values of ``kind``."""
    rng = f"np.random.default_rng({seed})"
    if dtype == "bool":
        return f"({rng}.random({shape}) < {0.2 if kind == 'special' else 0.5})"
    if dtype.endswith("int4"):
        low = 0 if dtype == "uint4" else -8
        return (
            f"np.asarray({rng}.integers({low}, {low + 16}, {shape})).astype({dtype!r})"
        )
    whole = dtype in INTEGERS
    if whole:
        low = 0 if dtype.startswith("u") else -7
        if kind == "extreme":
            return (
                f"np.array([np.iinfo({dtype!r}).min, np.iinfo({dtype!r}).max, 0, 1, 2],"
                f" {dtype!r})[{rng}.integers(0, 5, {shape})]"
            )
        if kind in ("ties", "special"):
            low, high = (low // 7), 2
        else:
            high = 100 if kind == "offset" else 8
        return f"np.asarray({rng}.integers({low}, {high}, {shape})).astype({dtype!r})"
    if dtype in COMPLEX:
        pair = f"(lambda g: g.normal(size={shape}) + 1j * g.normal(size={shape}))"
        text = f"{pair}({rng})"
        if kind in ("steps", "ties"):
            text = f"np.round(4 * {text}) / 4"
        return f"np.asarray({text}).astype({dtype!r})"
    text = {
        "steps": f"np.round({rng}.normal(size={shape}) * 6) / 4",
        "normal": f"{rng}.normal(size={shape})",
        "special": (
            f"np.array([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 0.5, 2.0, 3.0])"
            f"[{rng}.integers(0, 10, {shape})]"
        ),
        "ties": f"{rng}.integers(-1, 2, {shape})",
        "offset": f"1000 + {rng}.normal(size={shape})",
        "unit": f"{rng}.uniform(0.1, 0.9, {shape})",
        "extreme": f"10.0 ** {rng}.integers(-5, 6, {shape}) * {rng}.normal()",
    }[kind]
    return f"np.asarray({text}).astype({dtype!r})"
