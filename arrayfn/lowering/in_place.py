"""In-place results: a value written where an operand that dies with it lay.

A nest may write over an array that it reads at the same place, if nothing needs that
array any more. The operand then is the result's own pointer, so that no two pointers of
a kernel overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from arrayfn.ir import Var
from arrayfn.lowering.kernel_ir import ArrayOperand, Load, Nest, Store


class Storage:
    """Which array each Var is stored in: its own, unless it took over another's."""

    def __init__(self) -> None:
        self._in: dict[Var, Var] = {}

    def of(self, var: Var) -> Var:
        """The array whose memory ``var`` has."""
        while var in self._in:
            var = self._in[var]
        return var

    def put(self, var: Var, into: Var) -> None:
        """Store ``var`` where ``into`` is."""
        self._in[self.of(var)] = self.of(into)


def write_in_place(
    nest: Nest,
    storage: Storage,
    dying: AbstractSet[Var],
    outputs: AbstractSet[Var],
    donated: AbstractSet[Var],
) -> Nest:
    """``nest`` with results over operands, as far as may be; ``storage`` learns of it.

    ``dying`` are the arrays (by storage) that may be overwritten here: temporaries and
    donated inputs that nothing reads later. ``outputs`` are the Program's results,
    whose memory is given: an operand goes there, not the result into the operand.
    """
    if nest.has_computed_places or nest.is_in_order:
        return nest
    for written in [k for k, o in enumerate(nest.operands) if o.written]:
        found = _takes_over(nest, written, storage, dying, donated)
        if found is None:
            continue
        result, operand = nest.operands[written].array, nest.operands[found].array
        if storage.of(result) in outputs:
            if storage.of(operand) in outputs:
                continue
            storage.put(operand, result)
        else:
            storage.put(result, operand)
        nest = _joined(nest, found, written)
        rest = dying - {storage.of(operand)}
        return write_in_place(nest, storage, rest, outputs, donated)
    return nest


def _takes_over(
    nest: Nest,
    written: int,
    storage: Storage,
    dying: AbstractSet[Var],
    donated: AbstractSet[Var],
) -> int | None:
    """The operand that ``written`` may take the place of: a donated one, if any."""
    target = nest.operands[written]
    store = next(
        s for s in nest.statements if isinstance(s, Store) and s.operand == written
    )
    whole = store.level == "element" and store.stage == nest.stages - 1
    taken = any(isinstance(s, Load) and s.operand == written for s in nest.statements)
    if not whole or taken or store.where is not None:
        return None
    if _is_shared(nest, written, storage):
        return None
    fresh_last = sorted(
        range(len(nest.operands)),
        key=lambda k: storage.of(nest.operands[k].array) not in donated,
    )
    for k in fresh_last:
        operand = nest.operands[k]
        same = (operand.strides, operand.offset, operand.dtype) == (
            target.strides,
            target.offset,
            target.dtype,
        )
        if (
            same
            and not operand.written
            and storage.of(operand.array) in dying
            and (operand.array not in donated or _alike(operand, target))
            and operand.array.type.size == target.array.type.size
            and not _is_shared(nest, k, storage)
        ):
            return k
    return None


def _alike(operand: ArrayOperand, target: ArrayOperand) -> bool:
    """Whether the arrays themselves have one type: an argument can be a result."""
    mine, theirs = operand.array.type, target.array.type
    return (mine.shape, mine.dtype, mine.layout) == (
        theirs.shape,
        theirs.dtype,
        theirs.layout,
    )


def _is_shared(nest: Nest, operand: int, storage: Storage) -> bool:
    """Whether another operand of ``nest`` touches the same array."""
    own = storage.of(nest.operands[operand].array)
    return any(
        storage.of(other.array) is own
        for k, other in enumerate(nest.operands)
        if k != operand
    )


def _joined(nest: Nest, read: int, written: int) -> Nest:
    """``nest`` with operand ``read`` taken from ``written``'s pointer."""

    def moved(k: int) -> int:
        k = written if k == read else k
        return k - (k > read)

    operands: Sequence[ArrayOperand] = nest.operands
    return replace(
        nest,
        operands=tuple(o for k, o in enumerate(operands) if k != read),
        statements=tuple(
            replace(s, operand=moved(s.operand)) if isinstance(s, (Load, Store)) else s
            for s in nest.statements
        ),
    )
