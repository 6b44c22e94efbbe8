"""From steps over Vars to the ExecutionPlan: buffers, lifetimes, arena, arguments.

Steps are numbered as the plan prints them: a loop or branch, then what is inside. What
a loop uses from outside lives from its number to that of its last step, so that it is
there in every iteration; what a body makes for itself lives within an iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from arrayfn.errors import OutOfMemoryError, user_location
from arrayfn.ir import Program, Var
from arrayfn.lowering.in_place import Storage
from arrayfn.lowering.memory import Lifetime, lay_out
from arrayfn.lowering.plan import (
    Argument,
    Branch,
    BufferAllocation,
    BufferArgument,
    BufferKind,
    Carry,
    ExecutionPlan,
    KernelCall,
    Loop,
    ScratchArgument,
    Slice,
    Step,
)
from arrayfn.lowering.steps import (
    BranchStep,
    CallStep,
    LoopStep,
    NestStep,
    PlanStep,
)

MAX_WORKSPACE: Final = 1 << 48
"""Bytes of temporaries, or of a thread's scratch memory, that no machine has.

Their sum over the threads fits 64 bits.
"""


def make_plan(
    program: Program,
    donated: Iterable[Var],
    steps: Sequence[PlanStep],
    storage: Storage,
) -> ExecutionPlan:
    """Make a plan of ``steps``, with buffers for all arrays.

    The kernels of ``steps`` have been printed. ``donated`` are the inputs that results
    may be written over, and ``storage`` has the array in whose memory each Var is
    stored. Raises OutOfMemoryError if no machine has the memory for the temporaries.
    """
    plan = _Planner(program, donated, storage).plan(steps)
    if max(plan.arena, plan.scratch) > MAX_WORKSPACE:
        raise OutOfMemoryError(
            f"{program.name} needs {plan.arena:,} bytes for its temporaries, and "
            f"{plan.scratch:,} for each thread; no machine has these",
            user_location(),
        )
    return plan


class _Planner:
    """Gives buffers to Vars, lifetimes to temporaries, and arguments to calls.

    Attributes:
        storage: says in whose memory each Var is stored.
        buffers: the buffers so far.
        numbers: the index in ``buffers`` of each array that has a buffer.
        counts: how many buffers of each kind there are.
        lives: the lifetime of each temporary.
        time: the number of the current step.
        scratch: the largest scratch memory of a call, in bytes.
    """

    def __init__(
        self, program: Program, donated: Iterable[Var], storage: Storage
    ) -> None:
        """Give buffers to the Program's inputs, outputs and constants."""
        self.storage = storage
        self.buffers: list[BufferAllocation] = []
        self.numbers: dict[Var, int] = {}
        self.counts: dict[BufferKind, int] = {}
        self.lives: dict[Var, Lifetime] = {}
        self.time = 0
        self.scratch = 0
        for var in program.inputs:
            self.add(var, "input")
        donors = {
            storage.of(var): number
            for number, var in enumerate(program.inputs)
            if var in set(donated)
        }
        for atom in program.outputs:
            assert isinstance(atom, Var)
            self.add(atom, "output", donors.get(atom))
        for var in program.constants:
            self.add(var, "constant")

    def add(self, var: Var, kind: BufferKind, donor: int | None = None) -> None:
        """Allocate a buffer for ``var``, the next of its ``kind``.

        ``donor`` is the number of the input that an output is written over.
        """
        index = self.counts.get(kind, 0)
        self.counts[kind] = index + 1
        self.numbers[var] = len(self.buffers)
        nbytes = var.type.span()[1] * var.type.dtype.itemsize
        buffer = BufferAllocation(kind, index, var.type, nbytes, donor=donor)
        self.buffers.append(buffer)

    def plan(self, steps: Sequence[PlanStep]) -> ExecutionPlan:
        """Plan ``steps``: lifetimes and the arena first, then the calls."""
        self.set_lifetimes(steps)
        offsets, arena = lay_out(list(self.lives.values()))
        for (var, life), offset in zip(self.lives.items(), offsets, strict=True):
            self.add(var, "temporary")
            self.buffers[-1] = replace(
                self.buffers[-1], offset=offset, first=life.first, last=life.last
            )
        planned = self.steps(steps)
        return ExecutionPlan(tuple(self.buffers), planned, arena, self.scratch)

    # Lifetimes.

    def set_lifetimes(self, steps: Sequence[PlanStep]) -> None:
        """Number all ``steps``, and set the lifetimes of temporaries."""
        for step in steps:
            self.extend_lifetimes(step.arrays())
            self.time += 1
            if isinstance(step, CallStep):
                self.scratch = max(self.scratch, step.scratch_bytes)
            elif isinstance(step, LoopStep):
                self.add_moving(step)
                self.set_lifetimes(step.body)
                self.extend_lifetimes(step.arrays(), ended=True)
            elif isinstance(step, BranchStep):
                for branch in step.branches:
                    self.set_lifetimes(branch)
                self.extend_lifetimes(step.arrays(), ended=True)

    def extend_lifetimes(
        self, variables: Iterable[Var], *, ended: bool = False
    ) -> None:
        """Extend the lifetimes of ``variables`` to the current step.

        If the step has ``ended``, they end at the step before.
        """
        now = self.time - ended
        for var in variables:
            root = self.storage.of(var)
            if root not in self.numbers:
                life = self.lives.get(root, Lifetime(root.type.nbytes, now, now))
                self.lives[root] = replace(life, last=now)

    def add_moving(self, step: LoopStep) -> None:
        """Add buffers for arrays whose address changes with each iteration."""
        for s in step.slices:
            self.add(self.storage.of(s.inner), "slice")
        for c in step.carries:
            if c.first is not None:
                self.add(self.storage.of(c.current), "carried")
                self.add(self.storage.of(c.next), "carried")

    # Steps.

    def number(self, var: Var) -> int:
        """Return the number of the buffer in which ``var`` is stored."""
        return self.numbers[self.storage.of(var)]

    def all_numbers(self, variables: Iterable[Var]) -> tuple[int, ...]:
        """Return the numbers of the buffers of ``variables``, each once."""
        return tuple(dict.fromkeys(self.number(var) for var in variables))

    def steps(self, steps: Sequence[PlanStep]) -> tuple[Step, ...]:
        """Convert ``steps`` to their forms in the plan."""
        return tuple(self.step(step) for step in steps)

    def step(self, step: PlanStep) -> Step:
        """Convert ``step`` to its form in the plan."""
        assert not isinstance(step, NestStep)
        if isinstance(step, CallStep):
            return self.call(step)
        if isinstance(step, LoopStep):
            return self.loop(step)
        return Branch(
            self.number(step.index),
            tuple(self.steps(branch) for branch in step.branches),
            self.all_numbers(step.operands),
            self.all_numbers(step.results),
            origins=step.origins,
        )

    def loop(self, step: LoopStep) -> Loop:
        """Convert a loop to its form in the plan, with its slices and carries."""
        slices = tuple(
            Slice(self.number(s.inner), self.number(s.outer), s.offset, s.stride)
            for s in step.slices
        )
        carries = tuple(
            Carry(
                self.number(c.current),
                self.number(c.next),
                self.number(c.initial),
                self.number(c.first),
                self.number(c.second),
                self.number(c.result),
            )
            for c in step.carries
            if c.first is not None and c.second is not None
        )
        return Loop(
            self.steps(step.body),
            step.count,
            None if step.predicate is None else self.number(step.predicate),
            slices,
            carries,
            self.all_numbers(step.operands),
            self.all_numbers(step.results),
            origins=step.origins,
        )

    def call(self, call: CallStep) -> KernelCall:
        """Convert a kernel call to its form in the plan."""
        arguments: list[Argument] = [
            BufferArgument(self.number(var), offset) for var, offset in call.pointers
        ]
        arguments += [ScratchArgument(offset) for offset in call.scratch]
        arguments += call.integers
        return KernelCall(
            kernel=call.kernel,
            arguments=tuple(arguments),
            items=call.items,
            grain=call.grain,
            scratch=call.scratch_bytes,
            reads=self.all_numbers(call.reads),
            writes=self.all_numbers(call.writes),
            iterations=call.iterations,
            updates=self.all_numbers(call.updates),
            origins=call.origins,
        )
