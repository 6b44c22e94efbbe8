"""Draws programs: each line a public function of what stands before it.

The shapes and dtypes of a line's results come from ``eval_shape``. A line that arrayfn
refuses is drawn again; one that ends in any other error is kept, since that is a fault.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import arrayfn as af
from arrayfn import tree
from arrayfn.errors import ArrayfnError
from tests.fuzz import arrays
from tests.fuzz.arrays import DTYPES, FLOATS, INTEGERS, STORAGE, Operand, Shape
from tests.fuzz.case import NAME, Line, evaluated

EXTENTS: Final = (0, 1, 2, 3, 4, 5, 8, 12, 33)
WEIGHTS: Final = (2, 5, 6, 8, 8, 6, 4, 3, 2)
LARGE: Final = (130, 1000)


class NotDrawnError(Exception):
    """A step does not apply to what there is."""


@dataclass(frozen=True)
class Known:
    """The type of a name."""

    shape: Shape
    dtype: str

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def struct(self) -> Any:
        return af.ShapeDtypeStruct(self.shape, np.dtype(self.dtype))


class Draw:
    """A program being drawn."""

    def __init__(self, rng: np.random.Generator, limit: int) -> None:
        self.rng = rng
        self.limit = limit
        self.known: dict[str, Known] = {}
        self.operands: list[Operand] = []
        self.lines: list[Line] = []
        self.order: list[str] = []  # names of values, the last ones the newest
        self.is_broken = False  # whether the last line ends in an error of no kind

    @property
    def has_compiler(self) -> bool:
        """Whether kernels are compiled: long ones take seconds as Python."""
        return self.limit > 2000

    # Chance.

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def choice(self, seq: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
        if weights is None:
            return seq[int(self.rng.integers(len(seq)))]
        p = np.asarray(weights, float)
        return seq[int(self.rng.choice(len(seq), p=p / p.sum()))]

    def integer(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def extent(self) -> int:
        if self.has_compiler and self.chance(0.02):
            return self.choice(LARGE)
        return self.choice(EXTENTS, WEIGHTS)

    def shape(self, low: int = 0, high: int = 5) -> Shape:
        """A shape of ``low`` to ``high`` axes, of no more elements than the limit."""
        weights = (2, 6, 7, 4, 2, 1)[low : high + 1]
        ndim = self.choice(range(low, high + 1), weights)
        extents = [self.extent() for _ in range(ndim)]
        while np.prod(extents, dtype=np.int64) > self.limit:
            largest = int(np.argmax(extents))
            extents[largest] = self.integer(1, 4)
        return tuple(extents)

    def dtype(self, kinds: str = "biufc") -> str:
        """A dtype of these kinds: b, i (all integers), f, c, s (storage types)."""
        there: list[str] = []
        weights: list[float] = []
        for dtype in DTYPES:
            kind = kind_of(dtype)
            if kind in kinds:
                there.append(dtype)
                weight = {"float32": 12, "float64": 6, "float16": 3, "bfloat16": 2}
                weight |= {"int32": 3, "int64": 2, "bool": 2}
                weights.append(weight.get(dtype, 0.7))
        return self.choice(there, weights)

    # Operands.

    def new(self, shape: Shape | None = None, dtype: str | None = None) -> str:
        """A new argument or constant."""
        shape = self.shape() if shape is None else shape
        dtype = self.dtype() if dtype is None else dtype
        constant = self.chance(0.12)
        prefix = "c" if constant else "x"
        name = f"{prefix}{len(self.operands)}"
        kinds = arrays.KINDS
        kind = self.choice(kinds, (8, 4, 2, 3, 1, 2, 1))
        layouts = [k for k, f in arrays.LAYOUTS.items() if f(shape) is not None]
        layout = "row-major"
        if self.chance(0.3):
            layout = self.choice(layouts)
        if layout == "unaligned" and not self.chance(0.1):
            layout = "row-major"  # refused, and tried often enough
        # Numbers that are arguments are traced; others have no methods of arrays.
        could_be_python = shape == () and dtype in ("float64", "int64")
        python = could_be_python and not constant and self.chance(0.3)
        operand = Operand(
            name,
            shape,
            dtype,
            kind,
            "row-major" if python else layout,
            self.integer(0, 999),
            python,
            constant,
        )
        self.operands.append(operand)
        self.known[name] = Known(shape, dtype)
        self.order.append(name)
        return name

    def pick(
        self,
        kinds: str = "bifcs",
        low: int = 0,
        high: int = 9,
        fits: Callable[[Known], bool] | None = None,
    ) -> str:
        """A value of these kinds and ranks, the newest likeliest; or a new operand."""
        fitting = [
            name
            for name in self.order
            if kind_of(self.known[name].dtype) in kinds
            and low <= self.known[name].ndim <= high
            and (fits is None or fits(self.known[name]))
        ]
        if fitting and not (self.chance(0.08) and len(self.operands) < 4):
            back = min(int(self.rng.geometric(0.7)) - 1, len(fitting) - 1)
            return fitting[-1 - back]
        if fits is not None:
            raise NotDrawnError
        return self.new(self.shape(low, min(high, 5)), self.dtype(kinds))

    def of(self, shape: Shape, dtype: str) -> str:
        """A value of exactly this type: one there is, a new operand or a constant."""
        fitting = [n for n in self.order if self.known[n] == Known(shape, dtype)]
        if fitting and self.chance(0.5):
            return self.choice(fitting)
        if self.chance(0.2):
            return self.filled(shape, dtype)
        if len(self.operands) < 5:
            return self.new(shape, dtype)
        return self.filled(shape, dtype)

    def filled(self, shape: Shape, dtype: str) -> str:
        """A constant that is made inside the function."""
        makers = ["anp.ones({s}, {d!r})", "anp.zeros({s}, {d!r})"]
        if dtype != "bool":
            makers.append("anp.full({s}, 2, {d!r})")
        if len(shape) == 1 and dtype != "bool":
            makers.append("anp.arange({n}).astype({d!r})")
        return self.choice(makers).format(s=shape, d=dtype, n=shape[0] if shape else 0)

    def companion(self, x: str, dtype: str | None = None) -> str:
        """What broadcasts with ``x``: a value, a literal, a new operand."""
        known = self.known[x]
        dtype = known.dtype if dtype is None else dtype
        roll = self.rng.random()
        if roll < 0.3:
            return self.literal(dtype)
        shape = self.broadcastable(known.shape)
        if roll < 0.55:
            fitting = [
                n
                for n in self.order
                if compatible(self.known[n].shape, known.shape, self.limit)
                and kind_of(self.known[n].dtype) == kind_of(dtype)
            ]
            if fitting:
                return self.choice(fitting)
        if self.chance(0.25):
            dtype = self.dtype(kind_of(dtype))
        return self.of(shape, dtype)

    def broadcastable(self, shape: Shape) -> Shape:
        """A shape that broadcasts with ``shape``."""
        kept = shape if self.chance(0.5) else shape[self.integer(0, len(shape)) :]
        return tuple(1 if self.chance(0.15) else n for n in kept)

    def literal(self, dtype: str) -> str:
        """A number as users write it."""
        kind = kind_of(dtype)
        if kind == "b":
            return self.choice(["True", "False"])
        if kind == "i":
            small = ["0", "1", "2", "3", "7"]
            return self.choice(small if dtype.startswith("u") else [*small, "-1"])
        if dtype.endswith("int4"):
            return self.choice(["0", "1", "7"])
        if kind == "c" and self.chance(0.4):
            return self.choice(["1j", "(0.5 - 2j)"])
        texts = ["0.5", "2", "-1", "1.5", "0", "1", "-0.25", "3.0"]
        if self.chance(0.15):
            return f"np.{self.choice(['float32', 'float64'])}({self.choice(texts)})"
        return self.choice(texts)

    def axis(self, x: str) -> int:
        """An axis of ``x``, counted from either end."""
        ndim = self.known[x].ndim
        if not ndim:
            raise NotDrawnError
        return self.integer(-ndim, ndim - 1)

    def axes(self, x: str) -> str:
        """``None``, an axis, or several."""
        ndim = self.known[x].ndim
        if not ndim or self.chance(0.25):
            return "None"
        if self.chance(0.6):
            return str(self.axis(x))
        count = self.integer(1, ndim)
        found = sorted(self.rng.permutation(ndim)[:count].tolist())
        return str(tuple(k - ndim if self.chance(0.3) else k for k in found))

    # Lines.

    def count(self) -> int:
        """How many values there are."""
        return sum(len(line.targets) for line in self.lines)

    def try_line(self, expression: str) -> bool:
        """Add a line if it has a type."""
        names = sorted(set(NAME.findall(expression)))
        text = f"lambda {', '.join(names)}: {expression}"
        structs = [self.known[n].struct() for n in names]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = af.eval_shape(evaluated(text), *structs)
        except (ArrayfnError, TypeError, ValueError, IndexError, NotDrawnError):
            return False
        except Exception:  # noqa: BLE001 -- a fault, which the run reports
            name = f"v{self.count()}"
            self.lines.append(Line((name,), expression, name))
            self.is_broken = True
            return True
        leaves = tree.leaves(result)
        types = [Known(tuple(y.shape), str(np.dtype(y.dtype))) for y in leaves]
        too_large = any(t.size > 4 * self.limit or t.ndim > 6 for t in types)
        if not types or too_large or any(t.dtype not in DTYPES for t in types):
            return False
        first = self.count()
        targets = tuple(f"v{first + k}" for k in range(len(leaves)))
        pattern = unpacking(result, iter(targets))
        self.lines.append(Line(targets, expression, pattern))
        for name, known in zip(targets, types, strict=True):
            self.known[name] = known
            self.order.append(name)
        return True


def unpacking(result: Any, names: Iterator[str]) -> str:
    """The left side of an assignment of ``result``, a name for each array."""
    if not isinstance(result, (tuple, list)):
        return next(names)
    parts = [unpacking(y, names) for y in result]
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def kind_of(dtype: str) -> str:
    """b, i, f, c or s."""
    if dtype == "bool":
        return "b"
    if dtype in STORAGE:
        return "s"
    return "i" if dtype in INTEGERS else "f" if dtype in FLOATS else "c"


def compatible(a: Shape, b: Shape, limit: int) -> bool:
    try:
        return np.prod(np.broadcast_shapes(a, b), dtype=np.int64) <= limit
    except ValueError:
        return False


Step = Callable[[Draw], str]
STEPS: Final[dict[str, list[tuple[float, Step]]]] = {}
"""By family: how often, and the function that draws an expression."""


def step(family: str, weight: float = 1.0) -> Callable[[Step], Step]:
    """Register a function that draws an expression."""

    def register(function: Step) -> Step:
        STEPS.setdefault(family, []).append((weight, function))
        return function

    return register
