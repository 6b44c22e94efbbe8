"""Fuses the computation of indices into the gather or scatter that reads them.

``x[i]`` with signed indices first replaces negative indices by indices from the start.
As a kernel of its own that takes a launch, and the indices are written and read once
more. It is cheap and elementwise, so it becomes part of the nest that reads the
indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from arrayfn.dtypes import short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.indexing.scatters import FUNCTIONS as SCATTERS
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Compute,
    Load,
    Nest,
    Scalar,
    Statement,
    Store,
    Value,
)
from arrayfn.lowering.kernel_text import unique_name
from arrayfn.lowering.steps import CallStep, NestStep, PlanStep
from arrayfn.records import record

INDEXED: Final = frozenset(("gather", *SCATTERS))
"""The primitives whose nests read indices."""
_MAX_COST: Final = 16  # of a computation that is repeated for each element of a window


def fuse_index_computation(
    nest: Nest,
    steps: Sequence[PlanStep],
    uses: Mapping[Var, int],
    root_of: Callable[[Var], Var],
) -> Nest:
    """Fuse into ``nest`` the last of ``steps`` that computes indices only for it.

    Returns ``nest`` itself if there is none. The fused step stays in ``steps``; nothing
    reads its result any more. The search goes backwards. It ends at a loop or branch,
    and no step in between may write what the fused step reads.

    Args:
        nest: A nest about to be appended to ``steps``.
        steps: The steps before it.
        uses: How many equations read each array.
        root_of: Gives the array whose memory an array has.
    """
    if not INDEXED.intersection(nest.primitives):
        return nest
    written = {root_of(o.array) for o in nest.operands if o.written}
    for position in reversed(range(len(steps))):
        step = steps[position]
        if not isinstance(step, (NestStep, CallStep)):
            break
        merged = _merged(step, nest, uses)
        if merged is not None:
            assert isinstance(step, NestStep)
            read = {root_of(o.array) for o in step.nest.operands if not o.written}
            if not read & written:
                return merged
        written |= {root_of(array) for array in step.writes}
    return nest


def _merged(
    step: NestStep | CallStep, nest: Nest, uses: Mapping[Var, int]
) -> Nest | None:
    """Return ``nest`` with ``step`` fused into it; None if that cannot be done.

    ``uses`` says how many equations read each array.
    """
    if not isinstance(step, NestStep) or step.partials:
        return None
    first = step.nest
    stores = [s for s in first.statements if isinstance(s, Store)]
    if len(stores) != 1 or not _is_flat(first):
        return None
    array = first.operands[stores[0].operand].array
    reads = {
        k for k, o in enumerate(nest.operands) if o.array == array and not o.written
    }
    if not reads or uses[array] != 1 or array.type.dtype.kind not in "iu":
        return None
    if first.axes[0].extent != array.type.size:
        return None  # the step writes only a part of the array
    if any(
        isinstance(s, Load) and s.operand in reads and s.indices
        for s in nest.statements
    ):
        return None  # the array is data: it is itself read at computed indices
    return _Merger(first, stores[0], nest).merge(array)


def _is_flat(nest: Nest) -> bool:
    """Whether ``nest`` is a cheap elementwise computation over one axis.

    It may have one or two loads, and must write contiguous results.
    """
    loads = [s for s in nest.statements if isinstance(s, Load)]
    computed = [s for s in nest.statements if isinstance(s, Compute)]
    return (
        len(nest.axes) == 1
        and not nest.axes[0].reduced
        and not nest.has_computed_indices
        and len(loads) + len(computed) + 1 == len(nest.statements)
        and 0 < len(loads) <= 2
        and sum(s.cost for s in computed) <= _MAX_COST
        and all(o.strides == (1,) and not o.offset for o in nest.operands if o.written)
    )


@record
class _Merger:
    """Replaces loads of ``first``'s result in ``second`` by ``first``'s statements.

    ``store`` is the only store of ``first``. The other fields are the new nest so far.
    """

    first: Nest
    store: Store
    second: Nest
    operands: list[ArrayOperand] = field(default_factory=list[ArrayOperand])
    statements: list[Statement] = field(default_factory=list[Statement])
    numbers: dict[int, int] = field(default_factory=dict[int, int])
    """For each operand of ``second`` that remains its number in the new nest."""
    read: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The number in the new nest of each operand of ``first``.

    The key is a pair: the number of the operand of ``second`` that is replaced, and the
    number of the operand of ``first``.
    """
    taken: set[str] = field(default_factory=set[str])
    """Names of values in use."""

    def merge(self, array: Var) -> Nest:
        """Return ``second``, with the result ``array`` of ``first`` computed in it.

        Each operand that reads ``array`` is replaced by the operands of ``first``, and
        each load of it by the statements of ``first``.
        """
        second = self.second
        self.taken = {
            s.result.name for s in second.statements if not isinstance(s, Store)
        }
        loads = [s for s in self.first.statements if isinstance(s, Load)]
        for k, operand in enumerate(second.operands):
            if operand.array != array or operand.written:
                self.numbers[k] = len(self.operands)
                self.operands.append(operand)
                continue
            for s in loads:
                self.read[k, s.operand] = len(self.operands)
                self.operands.append(_composed(self.first.operands[s.operand], operand))
        for s in second.statements:
            if not isinstance(s, (Load, Store)):
                self.statements.append(s)
            elif s.operand in self.numbers:
                self.statements.append(replace(s, operand=self.numbers[s.operand]))
            else:
                assert isinstance(s, Load)
                self.compute(s)
        return replace(
            second,
            operands=tuple(self.operands),
            statements=tuple(self.statements),
            primitives=(*self.first.primitives, *second.primitives),
            reason=f"{second.reason}; with the indices: {self.first.reason}",
        )

    def compute(self, load: Load) -> None:
        """Append the statements of ``first`` for the element that ``load`` reads.

        The last one gives the result the name that ``load`` gave it.
        """
        level, stage = load.level, load.stage
        known: dict[Value, Value] = {}
        for s in self.first.statements:
            if isinstance(s, Load):
                fused = replace(s, operand=self.read[load.operand, s.operand])
            elif isinstance(s, Compute):
                arguments = tuple(_renamed(a, known) for a in s.arguments)
                fused = replace(s, arguments=arguments)
            else:
                continue
            result = known[s.result] = self.named(s.result)
            fused = replace(fused, result=result, level=level, stage=stage)
            self.statements.append(fused)
        value = _renamed(self.store.value, known)
        same = f"identity_{short_name(load.result.dtype)}"
        self.statements.append(
            Compute(
                load.result, same, (value,), level, stage, cost=1, source=load.source
            )
        )

    def named(self, value: Value) -> Value:
        """Return ``value`` with a name that no other value has."""
        return replace(value, name=unique_name(value.name, self.taken, number=1))


def _composed(source: ArrayOperand, result: ArrayOperand) -> ArrayOperand:
    """Return ``source`` with the access pattern of ``result``.

    ``source`` is an operand of ``first``, and ``result`` the operand of ``second`` that
    reads its result; element i of the result is computed from element i of the source.
    """
    (stride,) = source.strides
    strides = tuple(stride * n for n in result.strides)
    offset = source.offset + stride * result.offset
    return replace(source, strides=strides, offset=offset)


def _renamed(scalar: Scalar, known: Mapping[Value, Value]) -> Scalar:
    """Replace ``scalar`` by its new value in ``known``, if it has one."""
    return known.get(scalar, scalar) if isinstance(scalar, Value) else scalar
