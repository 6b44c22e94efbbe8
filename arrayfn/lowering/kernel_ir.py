"""Kernel IR: a nest of axes and the scalar statements inside it. Target-neutral.

A ``Nest`` says what a kernel computes: axes (kept ones run in parallel, reduced ones in
order), operands with a stride for each axis, and statements in static single
assignment. Each statement varies over all axes ("element") or only the kept ones
("outer"), and belongs to a stage: one pass over the reduced axes. Which loops, threads
and blocks that becomes is the schedule's decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

from arrayfn import dtypes, ir
from arrayfn.dtypes import DType
from arrayfn.errors import SourceLocation
from arrayfn.ir import Var
from arrayfn.records import frozen

Level = Literal["element", "outer"]
"""Whether a statement runs for each element of all axes, or for each row."""


@frozen(slots=True)
class Axis:
    """One axis of the nest, outermost first. ``reduced`` axes run in order."""

    extent: int
    reduced: bool


@frozen(slots=True)
class ArrayOperand:
    """Memory that the nest reads or writes: ``array`` from element ``offset`` on.

    ``dtype`` is the dtype in memory. ``strides`` has one for each axis of the nest, in
    elements. ``written`` says whether the nest writes it. In a loop, the array advances
    by ``moves`` elements each iteration.
    """

    array: Var
    dtype: DType
    strides: tuple[int, ...]
    offset: int
    written: bool
    moves: int = 0


@frozen(slots=True)
class Value:
    """A scalar of the nest: its name in the Program's text, and its compute dtype.

    ``half`` says that the Program has it in half precision.
    """

    name: str
    dtype: DType
    half: bool = False


@frozen(slots=True)
class Constant:
    """A literal scalar, with its compute dtype."""

    value: bool | int | float | complex
    dtype: DType


def constant_of(literal: ir.Literal) -> Constant:
    """Return the Constant of ``literal``, in its compute dtype.

    A 16-bit float is first rounded to its own dtype.
    """
    dtype = literal.type.dtype
    value = literal.value
    if dtype in dtypes.HALF_PRECISION:
        with np.errstate(over="ignore"):
            value = float(np.asarray(value).astype(dtype))
    return Constant(value, dtypes.compute_dtype(dtype))


@frozen(slots=True)
class Argument:
    """A scalar that is an integer parameter of the kernel, such as an extent."""

    name: str
    value: int


Scalar = Value | Constant | Argument


@frozen(slots=True)
class IndexTerm:
    """A computed part of an index: the scalar ``index`` times ``stride`` elements."""

    index: Value
    stride: int


@frozen(slots=True)
class Load:
    """``result = operand[...]``, widened to its compute dtype.

    ``operand`` is the index of the operand. ``indices`` are added to its affine index.
    Their sum must lie in the array. ``level`` and ``stage`` say when the load runs.
    """

    result: Value
    operand: int
    level: Level
    stage: int
    source: SourceLocation | None = None
    indices: tuple[IndexTerm, ...] = ()


@frozen(slots=True)
class Compute:
    """``result = function(*arguments)``.

    ``function`` has its dtype suffix, as ``exp_f32``. ``cost`` is relative to an
    addition. ``level`` and ``stage`` say when the function runs.
    """

    result: Value
    function: str
    arguments: tuple[Scalar, ...]
    level: Level
    stage: int
    cost: int
    source: SourceLocation | None = None


@frozen(slots=True)
class Count:
    """An iota: ``result`` is the index along ``axis``, or 0 if that is None.

    ``level`` and ``stage`` say when it runs.
    """

    result: Value
    axis: int | None
    level: Level
    stage: int
    source: SourceLocation | None = None


@frozen(slots=True)
class Reduce:
    """``result`` accumulates ``argument`` over the reduced axes, from ``identity``.

    The result is ``function(function(identity, argument), argument)`` and so on. It is
    complete after the pass ``stage``. If the reduction is ``across``, it accumulates
    over the kept axes instead, for each index of the reduced ones: a total over the
    rows, taken while each row is computed.
    """

    result: Value
    function: str
    argument: Scalar
    identity: Constant
    stage: int
    source: SourceLocation | None = None
    across: bool = False


@frozen(slots=True)
class Store:
    """``operand[...] = value``, narrowed to its dtype; only where ``where`` is true.

    ``operand`` is the index of the operand. ``indices`` are added to its affine index.
    Their sum must lie in the array, if the store happens. If ``value`` is the result of
    a Reduce of this stage, the running value is stored: a scan. If it ``adds``, the
    value is added atomically, in any order (on a GPU).
    """

    operand: int
    value: Scalar
    level: Level
    stage: int
    source: SourceLocation | None = None
    indices: tuple[IndexTerm, ...] = ()
    where: Value | None = None
    adds: bool = False


Statement = Load | Compute | Count | Reduce | Store


def is_outer(statement: Statement) -> bool:
    """Whether a statement runs for each row; a reduction runs for each element."""
    return not isinstance(statement, Reduce) and statement.level == "outer"


def is_element_store(statement: Statement) -> bool:
    """Whether a statement stores an element, not a result of a reduction."""
    return isinstance(statement, Store) and statement.level == "element"


def uses(statement: Statement) -> list[Value]:
    """Return the values that ``statement`` reads."""
    scalars: list[Scalar | None] = []
    if isinstance(statement, Compute):
        scalars += statement.arguments
    elif isinstance(statement, Reduce):
        scalars.append(statement.argument)
    elif isinstance(statement, Store):
        scalars += [statement.value, statement.where]
    if isinstance(statement, (Load, Store)):
        scalars += [step.index for step in statement.indices]
    return [s for s in scalars if isinstance(s, Value)]


@frozen(slots=True)
class Nest:
    """A kernel before it is scheduled.

    ``primitives`` are the names of what it computes, for its title; ``reason`` says why
    these are one kernel.
    """

    axes: tuple[Axis, ...]
    operands: tuple[ArrayOperand, ...]
    statements: tuple[Statement, ...]
    primitives: tuple[str, ...]
    reason: str

    @property
    def kept_axes(self) -> list[int]:
        """The numbers of the kept axes."""
        return [k for k, axis in enumerate(self.axes) if not axis.reduced]

    @property
    def reduced_axes(self) -> list[int]:
        """The numbers of the reduced axes."""
        return [k for k, axis in enumerate(self.axes) if axis.reduced]

    @property
    def rows(self) -> int:
        """The number of indices of all kept axes."""
        return self.size_along(self.kept_axes)

    @property
    def row_length(self) -> int:
        """The number of elements of a row: of indices of all reduced axes."""
        return self.size_along(self.reduced_axes)

    def size_along(self, axes: Iterable[int]) -> int:
        """Return the product of the extents of ``axes``."""
        return math.prod(self.axes[k].extent for k in axes)

    @property
    def reductions(self) -> list[Reduce]:
        """The statements that reduce, in order."""
        return [s for s in self.statements if isinstance(s, Reduce)]

    @property
    def has_computed_indices(self) -> bool:
        """Whether some load or store has index terms (gather, scatter)."""
        accesses = (s for s in self.statements if isinstance(s, (Load, Store)))
        return any(s.indices for s in accesses)

    @property
    def has_totals(self) -> bool:
        """Whether some reductions run over the kept axes."""
        return any(s.across for s in self.reductions)

    @property
    def is_in_order(self) -> bool:
        """Whether reduced axes must run whole, in order, as in scans and scatters.

        The reductions of other nests may be split and combined in another order.
        """
        accumulated = {s.result for s in self.reductions}
        return any(
            s.level == "element" and (bool(s.indices) or s.value in accumulated)
            for s in self.statements
            if isinstance(s, Store)
        )

    @property
    def stages(self) -> int:
        """The number of passes over the reduced axes that do anything."""
        return 1 + max((s.stage for s in self.statements if not is_outer(s)), default=0)
