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
from dataclasses import field, replace

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
from arrayfn.records import frozen


class Storage:
    """Which array's memory each Var is stored in: its own, or another Var's."""

    def __init__(self) -> None:
        # The Var that each Var was put into, which may be in another one itself.
        self._in: dict[Var, Var] = {}
        self._fixed_results: set[Var] = set()  # see ``keeping``

    def of(self, var: Var) -> Var:
        """Return the Var in whose memory ``var`` is stored: itself, or another one."""
        while var in self._in:
            var = self._in[var]
        return var

    def put(self, var: Var, into: Var) -> None:
        """Store ``var`` in the memory of ``into``, or the other way round.

        The other way round if only ``var``'s memory is that of results kept by
        ``keeping``.
        """
        own, target = self.of(var), self.of(into)
        if own in self._fixed_results and target not in self._fixed_results:
            own, target = target, own
        if own is not target:
            self._in[own] = target

    @contextmanager
    def keeping(self, results: Sequence[Var]) -> Generator[None]:
        """A context in which Vars joined with ``results`` get the memory of these.

        A branch is lowered in it. Its values may share the memory of its results, but
        not replace that memory, which the plan outside of the branch refers to.
        """
        new = {self.of(var) for var in results} - self._fixed_results
        self._fixed_results |= new
        try:
            yield
        finally:
            self._fixed_results -= new


@frozen
class Scope:
    """The arrays of one Program (the whole one or a body) that may be overwritten.

    Attributes:
        outputs: the results of the Program. Their memory is fixed, so an operand is
            moved to the memory of a result, not the other way round.
        donated: inputs that may be overwritten, each with the only output that may
            overwrite it, or None for any output.
    """

    outputs: AbstractSet[Var]
    donated: Mapping[Var, Var | None] = field(default_factory=dict[Var, Var | None])

    def allows(self, operand: Var, result: Var, storage: Storage) -> bool:
        """Whether donation allows writing ``result`` over ``operand``.

        A donated input may be promised to one output.
        """
        only_result = self.donated.get(operand)
        return only_result is None or storage.of(only_result) is storage.of(result)


def place_results(steps: list[PlanStep], storage: Storage, scope: Scope) -> None:
    """Store results of ``steps`` in the memory of operands that are dead by then.

    ``a = exp(x); b = a * 2; return b`` has no memory of its own for ``a``: it lies
    where ``b`` does. ``storage`` is updated; ``scope`` says which arrays may be
    overwritten. Nests are replaced in ``steps``. Loops get the buffers of their carried
    values, and a copy before them of an initial value that is needed later.
    """
    _Placement(steps, storage, scope).run()


class _Placement:
    """Chooses the memory of the results of one Program's steps, in order.

    Arrays are those that ``Storage.of`` gives: a step that writes over an operand makes
    one array of two.

    Attributes:
        steps, storage, scope: as in ``place_results``.
        outputs: the arrays whose memory is fixed.
        last_use: the number of the last step that uses each array.
        overwritable: temporaries and donated inputs.
        accessed: the arrays that steps so far have used.
    """

    def __init__(self, steps: list[PlanStep], storage: Storage, scope: Scope) -> None:
        """Find the last use of each array, and what may be overwritten."""
        self.steps = steps
        self.storage = storage
        self.scope = scope
        of = storage.of
        self.outputs: AbstractSet[Var] = {of(var) for var in scope.outputs}
        self.overwritable = {of(var) for var in scope.donated}
        self.last_use: dict[Var, int] = {}
        self.accessed: set[Var] = set()
        for number, step in enumerate(steps):
            self.last_use.update((of(var), number) for var in step.arrays())
            self.overwritable.update(of(var) for var in step.writes)

    def run(self) -> None:
        """Choose the memory of all results; copies are inserted before their loops."""
        of = self.storage.of
        placed: list[PlanStep] = []
        for number, step in enumerate(self.steps):
            is_accessed = any(of(var) in self.accessed for var in step.writes)
            # Each Var of the step, with its array and last use before the step's own
            # results are placed, which may change both.
            before = [(var, of(var), self.last_use[of(var)]) for var in step.arrays()]
            self.accessed.update(array for _, array, _ in before)
            dying = {
                array
                for _, array, last in before
                if last == number
                and array in self.overwritable
                and array not in self.outputs
            }
            if isinstance(step, BranchStep):
                outputs = self.outputs | set(step.results)
                for branch in step.branches:
                    place_results(branch, self.storage, Scope(outputs))
            elif isinstance(step, LoopStep):
                placed += self.place_loop(step, dying)
            elif isinstance(step, NestStep) and not is_accessed:
                # What an earlier step wrote a part of must stay where it is.
                step.nest = self.write_in_place(step.nest, dying)
            elif isinstance(step, CallStep) and not is_accessed:
                self.write_over_operands(step, dying)
            self.follow_moves(step, number, before)
            if not (isinstance(step, NestStep) and _copies_onto_itself(step)):
                placed.append(step)
        self.steps[:] = placed

    def follow_moves(
        self, step: PlanStep, number: int, before: Sequence[tuple[Var, Var, int]]
    ) -> None:
        """Update ``last_use``, ``overwritable`` and ``accessed`` after ``step``.

        Placing its results may have moved Vars into other arrays. ``before`` has the
        Vars that step ``number`` uses, with the array and last use of each before that.
        """
        of = self.storage.of
        for var, array, last in before:
            self.last_use[of(var)] = max(last, self.last_use.get(of(var), last))
            if array in self.overwritable:
                self.overwritable.add(of(var))
        for var in step.arrays():
            self.last_use.setdefault(of(var), number)
        self.accessed.update(of(var) for var in step.arrays())

    def join(self, result: Var, operand: Var) -> None:
        """Store both Vars in one memory: that of ``result`` if it is fixed."""
        if self.storage.of(result) in self.outputs:
            self.storage.put(operand, into=result)
        else:
            self.storage.put(result, into=operand)

    def has_equal_size(self, result: Var, operand: Var) -> bool:
        """Whether the arrays in which the two are stored have equal sizes.

        An operand may be the first part of a larger array, all of which would be
        overwritten.
        """
        of = self.storage.of
        return of(result).type.nbytes == of(operand).type.nbytes

    # Calls.

    def write_over_operands(self, step: CallStep, dying: AbstractSet[Var]) -> None:
        """Store a call's results in the memory of operands that are dead afterwards.

        ``step.over`` has the pairs that its library can overwrite. ``dying`` are the
        arrays that nothing reads after ``step``.
        """
        of = self.storage.of
        for result, operand in step.over:
            array = of(operand)
            use_count = sum(of(var) is array for var in step.arrays())
            if (
                array in dying
                and use_count == 1
                and self.scope.allows(array, result, self.storage)
                and _same_type(operand, result)
                and self.has_equal_size(result, operand)
            ):
                self.join(result, operand)

    # Loops.

    def place_loop(self, step: LoopStep, dying: AbstractSet[Var]) -> list[PlanStep]:
        """Choose memory for the carried values of ``step``; return copies before it.

        ``dying`` are the arrays that nothing reads after the loop.
        """
        of = self.storage.of
        free = {c.current for c in step.carries if self.is_free(c, step, dying)}
        # To copy an initial value that must stay costs less than a second buffer.
        donated: dict[Var, Var | None] = {c.current: c.next for c in step.carries}
        fixed = {of(var) for var in step.outputs} | self.outputs
        place_results(step.body, self.storage, Scope(fixed, donated))
        copies: list[PlanStep] = []
        for c in step.carries:
            in_place = of(c.current) is of(c.next)
            # The body may store something else over the current value, too: the
            # initial value must then be free, or be copied first.
            is_written_over = of(c.current) is not c.current
            if is_written_over and c.current not in free and not step.serial:
                copied = Var(c.result.type)
                copies.append(_copy(c.initial, copied))
                step.operands.remove(c.initial)
                step.operands.append(copied)
                c.initial = copied
                free.add(c.current)
            if step.lanes and c.result.type.size == 1:
                # Each block of elements reads the initial value, after others end.
                free.discard(c.current)
            is_free = c.current in free
            if in_place or step.serial:
                if is_free:
                    self.join(c.result, c.initial)
                if in_place:
                    self.storage.put(c.next, into=c.result)
                else:
                    c.second = Var(c.result.type)
            else:  # Iterations write two buffers alternately.
                self.choose_buffers(c, step.count, is_free=is_free)
        return copies

    def is_free(
        self, carry: CarriedValue, step: LoopStep, dying: AbstractSet[Var]
    ) -> bool:
        """Whether the loop ``step`` may write over the initial value of ``carry``.

        Nothing reads it afterwards (it is in ``dying``), nor does another operand of
        the loop lie in its memory.
        """
        of = self.storage.of
        initial = of(carry.initial)
        return (
            initial in dying
            and sum(of(var) is initial for var in step.operands) == 1
            and self.has_equal_size(carry.result, initial)
            and self.scope.allows(initial, carry.result, self.storage)
            and (initial not in self.scope.donated or _same_type(initial, carry.result))
        )

    def choose_buffers(
        self, carry: CarriedValue, count: int | None, *, is_free: bool
    ) -> None:
        """Choose the two buffers of ``carry``: the last iteration writes the result.

        Iterations write ``first``, ``second``, ``first`` and so on. The first iteration
        reads the initial value, so only the second may write over it. ``count`` is the
        trip count, if it is known; ``is_free`` says whether the initial value may be
        written over.
        """
        is_odd = count is not None and count % 2 == 1
        # An outer loop learns by its storage that a value was written over.
        is_spare = is_free and self.storage.of(carry.initial) not in self.scope.donated
        if is_free and not is_odd:
            self.join(carry.result, carry.initial)
        other = carry.initial if is_spare and is_odd else Var(carry.result.type)
        if count == 1:
            other = carry.result
        buffers = (carry.result, other) if is_odd else (other, carry.result)
        carry.first, carry.second = buffers

    # Nests.

    def write_in_place(self, nest: Nest, dying: AbstractSet[Var]) -> Nest:
        """Store results of ``nest`` over operands where possible; return the new nest.

        ``dying`` are the arrays that may be overwritten here: temporaries and donated
        inputs that nothing reads later.
        """
        if nest.has_computed_indices or nest.is_in_order or nest.has_totals:
            return nest
        for written in [k for k, o in enumerate(nest.operands) if o.written]:
            read = self.operand_to_overwrite(nest, written, dying)
            if read is None:
                continue
            result, operand = nest.operands[written].array, nest.operands[read].array
            if self.storage.of(operand) in self.outputs:
                continue
            self.join(result, operand)
            nest = _with_shared_pointer(nest, read, written)
            return self.write_in_place(nest, dying - {self.storage.of(operand)})
        return nest

    def operand_to_overwrite(
        self, nest: Nest, written: int, dying: AbstractSet[Var]
    ) -> int | None:
        """Return the index of an operand that result ``written`` may be written over.

        It is one of the arrays ``dying``, donated ones first, which the kernel reads at
        the element that it writes. None if there is none.
        """
        store = next(
            s for s in nest.statements if isinstance(s, Store) and s.operand == written
        )
        is_last_value = store.level == "element" and store.stage == nest.stages - 1
        is_read = any(
            isinstance(s, Load) and s.operand == written for s in nest.statements
        )
        if not is_last_value or is_read or store.where is not None:
            return None
        if self.is_shared(nest, written):
            return None
        donated_first = sorted(
            range(len(nest.operands)),
            key=lambda k: (
                self.storage.of(nest.operands[k].array) not in self.scope.donated
            ),
        )
        fits = (k for k in donated_first if self.may_overwrite(nest, k, written, dying))
        return next(fits, None)

    def may_overwrite(
        self, nest: Nest, read: int, written: int, dying: AbstractSet[Var]
    ) -> bool:
        """Whether result number ``written`` may be written over operand ``read``."""
        operand, result = nest.operands[read], nest.operands[written]
        is_same_element = (operand.strides, operand.offset, operand.dtype) == (
            result.strides,
            result.offset,
            result.dtype,
        )
        if operand.written or not is_same_element:
            return False
        array = self.storage.of(operand.array)
        is_donated = operand.array in self.scope.donated
        return (
            array in dying
            and self.scope.allows(array, result.array, self.storage)
            and (not is_donated or _same_type(operand.array, result.array))
            and self.has_equal_size(result.array, operand.array)
            and not self.is_shared(nest, read)
        )

    def is_shared(self, nest: Nest, operand: int) -> bool:
        """Whether another operand of ``nest`` lies in the same memory."""
        array = self.storage.of(nest.operands[operand].array)
        return any(
            self.storage.of(other.array) is array
            for k, other in enumerate(nest.operands)
            if k != operand
        )


def _copies_onto_itself(step: NestStep) -> bool:
    """Whether ``step`` only copies an array to the memory it is already in."""
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


def _copy(source: Var, target: Var) -> NestStep:
    """Return a step that copies the first elements of ``source`` to ``target``."""
    dtype = source.type.dtype
    value = Value("value", compute_dtype(dtype))
    result = Value("copied", compute_dtype(dtype))
    identity = f"identity_{short_name(compute_dtype(dtype))}"
    nest = Nest(
        # The source may be a larger array, of which the value is the first part.
        (Axis(target.type.size, reduced=False),),
        (
            ArrayOperand(source, dtype, strides=(1,), offset=0, written=False),
            ArrayOperand(target, dtype, strides=(1,), offset=0, written=True),
        ),
        (
            Load(value, 0, "element", stage=0),
            Compute(result, identity, (value,), "element", stage=0, cost=0),
            Store(1, result, "element", stage=0),
        ),
        ("copy",),
        "an initial value that is needed later",
    )
    return NestStep(nest, [])


def _same_type(x: Var, y: Var) -> bool:
    """Whether the shapes, dtypes and layouts are equal."""
    return (x.type.shape, x.type.dtype, x.type.layout) == (
        y.type.shape,
        y.type.dtype,
        y.type.layout,
    )


def _with_shared_pointer(nest: Nest, read: int, written: int) -> Nest:
    """Merge operand ``read`` of ``nest`` into operand ``written``: one pointer.

    Loads of the former become loads of the latter. Later operands move down by one.
    """
    numbers = list(range(len(nest.operands)))
    del numbers[read]
    new_number = {k: n for n, k in enumerate(numbers)}
    new_number[read] = new_number[written]
    return replace(
        nest,
        operands=tuple(nest.operands[k] for k in numbers),
        statements=tuple(
            replace(s, operand=new_number[s.operand])
            if isinstance(s, (Load, Store))
            else s
            for s in nest.statements
        ),
    )
