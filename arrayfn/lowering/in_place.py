"""Stores results in the memory of operands that nothing reads afterwards.

A nest may write over an array that it reads, element for element, if nothing needs that
array any more. The kernel then has one pointer for both, so no two of its pointers
overlap.

A loop's value may be written over itself in the same way, if the body's last use of the
value computes its next one. Otherwise it has two buffers alternately. One of them is
the initial value's, if nothing else needs that. No iteration copies the value.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from arrayfn.dtypes import compute_dtype, short_name
from arrayfn.ir import Var
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Axis,
    Compute,
    Load,
    Nest,
    Store,
    Value,
)
from arrayfn.lowering.steps import (
    BranchStep,
    CallStep,
    CarriedValue,
    LoopStep,
    NestStep,
    PlanStep,
)


class Storage:
    """The array in whose memory each Var lies: its own, or another Var's."""

    def __init__(self) -> None:
        self._in: dict[Var, Var] = {}
        self._kept: set[Var] = set()

    def of(self, var: Var) -> Var:
        """The Var whose memory ``var`` lies in."""
        while var in self._in:
            var = self._in[var]
        return var

    def put(self, var: Var, into: Var) -> None:
        """Let ``var`` lie in the memory of ``into``."""
        own, target = self.of(var), self.of(into)
        if own in self._kept and target not in self._kept:
            own, target = target, own
        if own is not target:
            self._in[own] = target

    @contextmanager
    def keeping(self, results: Sequence[Var]) -> Generator[None]:
        """Within this context, Vars joined with ``results`` lie in the memory of these.

        The values of a branch are lowered in it: they may share the memory of its
        results, which the plan outside knows.
        """
        new = {self.of(var) for var in results} - self._kept
        self._kept |= new
        try:
            yield
        finally:
            self._kept -= new


@dataclass(frozen=True)
class Scope:
    """The arrays of one Program (the whole one or a body) that may be overwritten.

    Attributes:
        outputs: the results of the Program. Their memory is fixed, so an operand is
            moved to the memory of a result, not the other way round.
        donated: inputs that may be overwritten, each by one output alone if it has one.
    """

    outputs: AbstractSet[Var]
    donated: Mapping[Var, Var | None] = field(default_factory=dict[Var, Var | None])

    def allows(self, operand: Var, result: Var, storage: Storage) -> bool:
        """Whether ``result`` may be written over ``operand``, as far as donation goes.

        A donated input may be promised to one output alone.
        """
        only_result = self.donated.get(operand)
        return only_result is None or storage.of(only_result) is storage.of(result)


def place_results(steps: list[PlanStep], storage: Storage, scope: Scope) -> None:
    """Stores results of ``steps`` in the memory of operands that are dead by then.

    ``storage`` is updated; ``scope`` says which arrays may be overwritten. Nests are
    replaced in ``steps``. Loops get the buffers of their carried values, and a copy
    before them of an initial value that is needed later.
    """
    of = storage.of
    last: dict[Var, int] = {}
    overwritable = {of(var) for var in scope.donated}
    for number, step in enumerate(steps):
        last.update((of(var), number) for var in step.arrays())
        overwritable.update(of(var) for var in step.writes)
    outputs = {of(var) for var in scope.outputs}
    accessed: set[Var] = set()
    copies: dict[int, list[PlanStep]] = {}
    for number, step in enumerate(steps):
        is_accessed = any(of(var) in accessed for var in step.writes)
        arrays_before = [(var, of(var), last[of(var)]) for var in step.arrays()]
        accessed.update(root for _, root, _ in arrays_before)
        dying = {
            root
            for var in step.arrays()
            if last[root := of(var)] == number
            and root in overwritable
            and root not in outputs
        }
        if isinstance(step, BranchStep):
            for branch in step.branches:
                place_results(branch, storage, Scope(outputs | set(step.results)))
        elif isinstance(step, LoopStep):
            copies[number] = _place_loop(step, storage, dying, outputs, scope)
        elif isinstance(step, NestStep) and not is_accessed:
            # What an earlier step wrote a part of must stay where it is.
            step.nest = write_in_place(step.nest, storage, dying, outputs, scope)
        elif isinstance(step, CallStep) and not is_accessed:
            _write_over(step, storage, dying, outputs, scope)
        for var, root, end in arrays_before:
            last[of(var)] = max(end, last.get(of(var), end))
            if root in overwritable:
                overwritable.add(of(var))
        for var in step.arrays():
            last.setdefault(of(var), number)
        accessed.update(of(var) for var in step.arrays())
    for number in sorted(copies, reverse=True):
        steps[number:number] = copies[number]
    steps[:] = [
        s for s in steps if not (isinstance(s, NestStep) and _copies_onto_itself(s))
    ]


def _copies_onto_itself(step: NestStep) -> bool:
    """Whether ``step`` only copies an array to the memory it already has."""
    nest = step.nest
    if len(nest.operands) != 1 or nest.has_computed_indices or step.partials:
        return False
    loaded: set[Value] = set()
    for s in nest.statements:
        if isinstance(s, Load):
            loaded.add(s.result)
        elif isinstance(s, Compute) and s.function.startswith("identity_"):
            if not loaded.issuperset(s.arguments):
                return False
            loaded.add(s.result)
        elif not isinstance(s, Store) or s.where is not None or s.value not in loaded:
            return False
    return True


def _write_over(
    step: CallStep,
    storage: Storage,
    dying: AbstractSet[Var],
    outputs: AbstractSet[Var],
    scope: Scope,
) -> None:
    """Stores a call's result in the memory of an operand that is dead afterwards.

    ``step.over`` has the pairs that its library can overwrite. ``dying`` are the arrays
    that nothing reads after ``step``, ``outputs`` those whose memory is fixed.
    """
    for result, operand in step.over:
        root = storage.of(operand)
        accessed = sum(storage.of(var) is root for var in step.arrays())
        if (
            root in dying
            and accessed == 1
            and scope.allows(root, result, storage)
            and _same_type(operand, result)
            and _has_equal_size(result, operand, storage)
        ):
            _join(result, operand, storage, outputs)


def _place_loop(
    step: LoopStep,
    storage: Storage,
    dying: AbstractSet[Var],
    outputs: AbstractSet[Var],
    scope: Scope,
) -> list[PlanStep]:
    """Chooses memory for the carried values of ``step``; returns copies to make first.

    ``dying`` are the arrays that nothing reads after the loop, ``outputs`` those whose
    memory is fixed.
    """
    of = storage.of
    roots = [of(var) for var in step.operands]
    free: set[Var] = set()
    for c in step.carries:
        root = of(c.initial)
        if (
            root in dying
            and sum(r is root for r in roots) == 1
            and _has_equal_size(c.result, root, storage)
            and scope.allows(root, c.result, storage)
            and (root not in scope.donated or _same_type(root, c.result))
        ):
            free.add(c.current)
    # To copy an initial value that must stay costs less than a second buffer.
    donated: dict[Var, Var | None] = {c.current: c.next for c in step.carries}
    inner = Scope({of(var) for var in step.outputs} | outputs, donated)
    place_results(step.body, storage, inner)
    copies: list[PlanStep] = []
    for c in step.carries:
        in_place = of(c.current) is of(c.next)
        is_written_over = of(c.current) is not c.current
        if is_written_over and c.current not in free and not step.serial:
            # The initial value may be the first part of a larger array.
            copied = Var(c.result.type)
            copies.append(_copy(c.initial, copied))
            step.operands.remove(c.initial)
            step.operands.append(copied)
            c.initial = copied
            free.add(c.current)
        if step.lanes and c.result.type.size == 1:
            # Each block of elements reads the initial value, when others have ended.
            free.discard(c.current)
        if in_place:
            if c.current in free:
                _join(c.result, c.initial, storage, outputs)
            storage.put(c.next, into=c.result)
        elif step.serial:
            if c.current in free:
                _join(c.result, c.initial, storage, outputs)
            c.second = Var(c.result.type)
        else:
            # An outer loop learns by its storage that a value was written over.
            spare = c.current in free and of(c.initial) not in scope.donated
            _choose_buffers(c, step.count, c.current in free, spare, storage, outputs)
    return copies


def _choose_buffers(
    carry: CarriedValue,
    count: int | None,
    is_free: bool,
    is_spare: bool,
    storage: Storage,
    outputs: AbstractSet[Var],
) -> None:
    """Chooses two buffers of ``carry``: the last iteration is to write the result.

    The first iteration reads the initial value, so only the second may write over it.

    Args:
        carry: the carried value, whose buffers are set.
        count: the trip count, if it is known.
        is_free: whether the initial value may be written over.
        is_spare: whether its memory may be the other buffer.
        storage: in which array each Var lies, which is updated.
        outputs: the arrays whose memory is fixed.
    """
    odd = count is not None and count % 2 == 1
    if is_free and not odd:
        _join(carry.result, carry.initial, storage, outputs)
    second_buffer = carry.initial if is_spare and odd else Var(carry.result.type)
    if count == 1:
        second_buffer = carry.result
    carry.first, carry.second = (
        (carry.result, second_buffer) if odd else (second_buffer, carry.result)
    )


def _join(
    result: Var, operand: Var, storage: Storage, outputs: AbstractSet[Var]
) -> None:
    """Stores both in one memory: ``result``'s if that is fixed, else ``operand``'s.

    ``outputs`` are the arrays whose memory is fixed.
    """
    if storage.of(result) in outputs:
        storage.put(operand, into=result)
    else:
        storage.put(result, into=operand)


def _copy(source: Var, target: Var) -> NestStep:
    """A step that copies the first elements of ``source`` to ``target``."""
    dtype = source.type.dtype
    value = Value("value", compute_dtype(dtype))
    result = Value("copied", compute_dtype(dtype))
    identity = f"identity_{short_name(compute_dtype(dtype))}"
    nest = Nest(
        # The source may be a larger array, of which the value is the first part.
        (Axis(target.type.size, reduced=False),),
        (
            ArrayOperand(source, dtype, (1,), 0, written=False),
            ArrayOperand(target, dtype, (1,), 0, written=True),
        ),
        (
            Load(value, 0, "element", 0),
            Compute(result, identity, (value,), "element", 0, 0),
            Store(1, result, "element", 0),
        ),
        ("copy",),
        "an initial value that is needed later",
    )
    return NestStep(nest, [])


def _has_equal_size(result: Var, operand: Var, storage: Storage) -> bool:
    """Whether the arrays in which the two are stored have equal sizes.

    An operand may be the first part of a larger array; all of that would be written.
    """
    return storage.of(result).type.nbytes == storage.of(operand).type.nbytes


def _same_type(x: Var, y: Var) -> bool:
    """Whether the shapes, dtypes and layouts are equal."""
    mine, theirs = x.type, y.type
    return (mine.shape, mine.dtype, mine.layout) == (
        theirs.shape,
        theirs.dtype,
        theirs.layout,
    )


def write_in_place(
    nest: Nest,
    storage: Storage,
    dying: AbstractSet[Var],
    outputs: AbstractSet[Var],
    scope: Scope,
) -> Nest:
    """``nest`` with results stored over operands where possible; updates ``storage``.

    ``dying`` are the arrays (by storage) that may be overwritten here: temporaries and
    donated inputs that nothing reads later. ``outputs`` are those whose memory is
    fixed.
    """
    if nest.has_computed_indices or nest.is_in_order or nest.has_totals:
        return nest
    for written in [k for k, o in enumerate(nest.operands) if o.written]:
        read = _operand_to_overwrite(nest, written, storage, dying, scope)
        if read is None:
            continue
        result, operand = nest.operands[written].array, nest.operands[read].array
        if storage.of(operand) in outputs:
            continue
        _join(result, operand, storage, outputs)
        nest = _joined(nest, read, written)
        still_dying = dying - {storage.of(operand)}
        return write_in_place(nest, storage, still_dying, outputs, scope)
    return nest


def _operand_to_overwrite(
    nest: Nest,
    written: int,
    storage: Storage,
    dying: AbstractSet[Var],
    scope: Scope,
) -> int | None:
    """The number of an operand that result number ``written`` may be written over.

    It is one of the arrays ``dying``, donated ones first, which the kernel reads at the
    element that it writes. None if there is none.
    """
    target = nest.operands[written]
    store = next(
        s for s in nest.statements if isinstance(s, Store) and s.operand == written
    )
    is_last_value = store.level == "element" and store.stage == nest.stages - 1
    is_read = any(isinstance(s, Load) and s.operand == written for s in nest.statements)
    if not is_last_value or is_read or store.where is not None:
        return None
    if _is_shared(nest, written, storage):
        return None
    donated_first = sorted(
        range(len(nest.operands)),
        key=lambda k: storage.of(nest.operands[k].array) not in scope.donated,
    )
    for k in donated_first:
        operand = nest.operands[k]
        is_same_element = (operand.strides, operand.offset, operand.dtype) == (
            target.strides,
            target.offset,
            target.dtype,
        )
        if (
            is_same_element
            and not operand.written
            and storage.of(operand.array) in dying
            and scope.allows(storage.of(operand.array), target.array, storage)
            and (
                operand.array not in scope.donated
                or _same_type(operand.array, target.array)
            )
            and _has_equal_size(target.array, operand.array, storage)
            and not _is_shared(nest, k, storage)
        ):
            return k
    return None


def _is_shared(nest: Nest, operand: int, storage: Storage) -> bool:
    """Whether another operand of ``nest`` lies in the same memory."""
    array = storage.of(nest.operands[operand].array)
    return any(
        storage.of(other.array) is array
        for k, other in enumerate(nest.operands)
        if k != operand
    )


def _joined(nest: Nest, read: int, written: int) -> Nest:
    """``nest`` with operand number ``read`` accessed through ``written``'s pointer."""

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
