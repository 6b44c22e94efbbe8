"""Composes steps into one persistent, cooperative kernel with grid barriers.

In: steps whose kernels are printed. Each kernel's text becomes a device function that
takes a block index. The composed kernel assigns the blocks of each step to the blocks
of the grid, and puts a grid barrier before a step that has a hazard with an earlier one
(it reads what that wrote, or writes what that read or wrote):

    def persistent_0(a_at, b_at, k_at, c_at, r_at, barrier_state):
        columns_0(block_index(), a_at, b_at, k_at, 128, 128)
        grid_barrier(barrier_state, 64)
        columns_0(block_index(), k_at, c_at, r_at, 128, 128)
        grid_barrier(barrier_state, 64)

Loops and branches of the plan become loops and branches of the text. Buffers whose
address changes from iteration to iteration (double-buffered carries, slices) become
pointer variables. So there is one launch, and a loop never leaves the GPU. Extents are
constants in the text: other shapes compile another kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.barrier_hazards import SEVERAL_BLOCKS, HazardsSinceBarrier
from arrayfn.lowering.cuda.composed_text import ComposedText
from arrayfn.lowering.cuda.persistent import THREADS, Kernels, calls_of
from arrayfn.lowering.kernel_text import WIDTH, filled, wrapped
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.steps import (
    BranchStep,
    CallStep,
    CarriedValue,
    LoopStep,
    PlanStep,
    SliceOf,
)
from arrayfn.records import record


class CannotComposeError(Exception):
    """Raised if steps cannot be one kernel: a pointer variable would have two types."""


def compose(
    steps: Sequence[PlanStep],
    name: str,
    kernels: Kernels,
    multiprocessors: int,
    root_of: Callable[[Var], Var],
    names: Mapping[Var, str],
) -> tuple[Kernel, CallStep, Var]:
    """Make one persistent kernel of ``steps``: return it, its call, its barrier state.

    The barrier state is a word of memory that the grid barrier uses. It must be 0
    before the first call, and is 0 after each.

    Args:
        steps: Calls of printed kernels, and loops and branches of such.
        name: The name of the new kernel.
        kernels: The kernels that the steps call, by name.
        multiprocessors: The most blocks that the kernel may have: all must be resident.
        root_of: Gives the array whose memory an array has.
        names: What to call arrays in the text.
    """
    items = max((call.items for call in calls_of(steps)), default=1)
    blocks = max(1, min(items, multiprocessors))
    barrier_state = Var(ArrayType((1,), dtypes.uint32))
    # The neutral text is the kernel's key: equal keys are compiled once.
    neutral, printed = (
        _Composer(
            names=names,
            readable=readable,
            kernels=kernels,
            blocks=blocks,
            root_of=root_of,
        )
        for readable in (False, True)
    )
    neutral.compose(steps, "kernel")
    printed.compose(steps, name)
    kernel = Kernel(
        name=name,
        source=printed.source,
        key=neutral.source,
        parameters=printed.parameters,
        reason="steps that follow each other, as one kernel whose blocks stay",
        threads=THREADS,
        cooperative=True,
    )
    call = CallStep(
        kernel=name,
        pointers=[*printed.pointers.values(), (barrier_state, 0)],
        scratch=[],
        integers=[],
        items=blocks,
        grain=1,
        scratch_bytes=0,
        reads=list(dict.fromkeys(printed.reads)),
        writes=list(dict.fromkeys([*printed.writes, barrier_state])),
    )
    return kernel, call, barrier_state


@record
class _Composer(ComposedText):
    """Prints one kernel that does what steps do, with ``blocks`` resident blocks.

    Args:
        kernels: The kernels that the steps call, by name.
        blocks: Blocks of the grid.
        root_of: Gives the array whose memory an array has.
        parameters: The kernel's parameters, once composed.
        pointers: The array and the byte offset of each pointer parameter, by its name.
        pointer_kinds: The type of each pointer parameter, such as ``f32*``, by name.
        reads: The arrays in memory that the steps read.
        writes: The arrays in memory that the steps write.
        hazards: What was accessed since the last grid barrier.
        source: The kernel's text, once composed.
    """

    _: KW_ONLY
    kernels: Kernels
    blocks: int
    root_of: Callable[[Var], Var]
    parameters: tuple[Parameter, ...] = ()
    pointers: dict[str, tuple[Var, int]] = field(
        default_factory=dict[str, tuple[Var, int]]
    )
    pointer_kinds: dict[str, str] = field(default_factory=dict[str, str])
    moving_pointers: dict[Var, tuple[str, str]] = field(
        default_factory=dict[Var, tuple[str, str]]
    )
    """The pointer variable of each array whose address changes, and the variable's
    type.
    """
    pointees: dict[Var, tuple[Var, ...]] = field(
        default_factory=dict[Var, tuple[Var, ...]]
    )
    """For each array whose address changes: the arrays that it may lie in."""
    reads: list[Var] = field(default_factory=list[Var])
    writes: list[Var] = field(default_factory=list[Var])
    hazards: HazardsSinceBarrier = field(default_factory=HazardsSinceBarrier)
    source: str = ""

    def compose(self, steps: Sequence[PlanStep], name: str) -> None:
        """Print ``steps`` as the kernel ``name``.

        Fills in ``source``, ``parameters`` and ``pointers``. ``taken`` are the names
        in use, ``parts`` the device functions that kernels became, by kernel.
        """
        self.taken |= {"barrier_state", "block", name}
        self.steps(steps)
        self.parameters = (
            *(
                Parameter(pointer, self.pointer_kinds[pointer])
                for pointer in self.pointers
            ),
            Parameter("barrier_state", "u32*"),
        )
        title = "# " + " ".join(p.kind for p in self.parameters)
        head = wrapped(f"def {name}(", ", ".join(p.name for p in self.parameters), "):")
        if self.readable:
            done = ", ".join(self.parts.values())
            title = f"# {name}: {len(self.parts)} kernels as one: {done}"
            text = f"{THREADS} threads a block, {self.blocks} blocks at the same time."
            head.append(f'    """{text}"""')
        self.source = self.text_of(title, head)

    # Pointers.

    def arrays(self, var: Var) -> tuple[Var, ...]:
        """Return the arrays in whose memory ``var`` may lie.

        There are several if its address changes from iteration to iteration.
        """
        root = self.root_of(var)
        return self.pointees.get(root, (root,))

    def pointer(self, var: Var, offset: int, kind: str) -> str:
        """Return the expression of a pointer to byte ``offset`` of ``var``: ``x_at``.

        ``x_at`` becomes a parameter of the kernel, which is recorded here. An array
        whose address changes has a variable instead: ``h_now``, or
        ``subarray_f32(h_now, 16)`` with an offset. ``kind`` is the pointer's type, such
        as ``f32*``. Raises CannotComposeError if the array's variable has another type.
        """
        root = self.root_of(var)
        if root in self.moving_pointers:
            name, own_kind = self.moving_pointers[root]
            if own_kind != kind:
                raise CannotComposeError  # a pointer variable has one type
            size = dtypes.BY_SHORT_NAME[kind.removesuffix("*")].itemsize
            return self.subarray(name, kind, str(offset // size)) if offset else name
        name = self.name_for((root, offset, kind), f"{self.hint(root)}_at")
        self.pointers[name] = (root, offset)
        self.pointer_kinds[name] = kind
        return name

    def subarray(self, pointer: str, kind: str, at: str) -> str:
        """Return the expression of a pointer that is advanced by ``at`` elements.

        For example ``subarray_f32(e_at, iteration * 1024)``. ``pointer`` and ``at`` are
        expressions, ``kind`` is the pointer's type.
        """
        dtype = kind.removesuffix("*")
        # Kernels store booleans and half-precision numbers as unsigned integers.
        stored = {"bool": "u8", "f16": "u16", "bf16": "u16"}.get(dtype, dtype)
        return f"subarray_{stored}({pointer}, {at})"

    def synchronize(
        self, reads: Iterable[Var], writes: Iterable[Var], items: int = 0
    ) -> tuple[int, int]:
        """Print the barrier that a step needs; return the range of blocks for the step.

        A grid barrier is needed if the step has a hazard with an earlier one. If the
        step has one block and only one block has accessed the arrays of the hazard, the
        step goes to that block, and a barrier of that block is enough:

            if block_index() == 3:
                barrier()

        The accesses are recorded, for later hazards and as accesses of the kernel. The
        range is ``first`` to ``last - 1``.

        Args:
            reads: The arrays that the step reads.
            writes: The arrays that the step writes.
            items: The blocks of its kernel; 0 if all blocks of the grid run it.
        """
        self.reads += (read := [a for var in reads for a in self.arrays(var)])
        self.writes += (written := [a for var in writes for a in self.arrays(var)])
        conflicting_arrays = self.hazards.conflicting_arrays(read, written)
        owners = {self.hazards.owners[var] for var in conflicting_arrays}
        first, last = 0, self.blocks
        if items == 1 and len(owners) == 1 and SEVERAL_BLOCKS not in owners:
            (first,) = owners
            last = first + 1
            with self.open(f"if block_index() == {first}:"):
                self.line("barrier()")
        else:
            if conflicting_arrays:
                self.grid_barrier()
            if 0 < items <= self.blocks:
                first, last = self.assign_blocks(items)
        self.hazards.record_accesses(
            read, written, first if items == 1 else SEVERAL_BLOCKS
        )
        return first, last

    def grid_barrier(self) -> None:
        """Print ``grid_barrier(barrier_state, 64)``; after it there are no hazards.

        Prints nothing if no step has accessed memory since the last one.
        """
        if self.hazards.owners:
            self.line(f"grid_barrier(barrier_state, {self.blocks})")
        self.hazards = HazardsSinceBarrier()

    # Steps.

    def steps(self, steps: Sequence[PlanStep]) -> None:
        """Print ``steps``, in order."""
        for step in steps:
            if isinstance(step, CallStep):
                self.call(step)
            elif isinstance(step, LoopStep):
                self.loop(step)
            else:
                assert isinstance(step, BranchStep)
                self.branch(step)

    def call(self, step: CallStep) -> None:
        """Print the call of a kernel's device function, by some or all blocks.

        For a step of 64 blocks in a grid of 64, of 8 blocks, and of 200:

            columns_0(block_index(), a_at, b_at, k_at, 128, 128)

            if 16 <= block_index() < 24:
                columns_0(block_index() - 16, a_at, b_at, k_at, 128, 128)

            for block in range(block_index(), 200, 64):
                columns_0(block, a_at, b_at, k_at, 128, 128)

        Where a block calls a function that uses shared memory twice, a barrier
        separates the calls.
        """
        kernel = self.kernels[step.kernel]
        assert isinstance(kernel, Kernel)
        if not step.items:
            return
        first, last = self.synchronize(step.reads, step.writes, step.items)
        part = self.part(kernel)
        # The kernel's pointer parameters come first, the integers follow.
        pointers = [
            self.pointer(var, offset, parameter.kind)
            for (var, offset), parameter in zip(
                step.pointers, kernel.parameters, strict=False
            )
        ]
        arguments = ", ".join([*pointers, *map(str, step.integers)])
        # Kernels that use shared memory have barriers.
        shares = "barrier()" in kernel.key
        if shares and part in self.hazards.used_shared_memory:
            self.line("barrier()")
        if step.items > self.blocks:
            span = f"block_index(), {step.items}, {self.blocks}"
            with self.open(f"for block in range({span}):"):
                self.print_call(part, f"block, {arguments}")
                if shares:
                    # The next iteration uses the same shared memory.
                    self.line("barrier()")
            return
        if shares:
            self.hazards.used_shared_memory.add(part)
        if kernel.threads == 1:
            with self.open(f"if block_index() == {first} and thread_index() == 0:"):
                self.print_call(part, arguments)
            return
        condition, block = "", "block_index()"
        if first:
            condition = f"{first} <= block_index() < {last}"
            block = f"block_index() - {first}"
        elif last < self.blocks:
            condition = f"block_index() < {last}"
        with self.open_if(condition):
            self.print_call(part, f"{block}, {arguments}")

    def assign_blocks(self, items: int) -> tuple[int, int]:
        """Choose the range of blocks for a step of ``items``, idle blocks first."""
        first = self.hazards.assigned_blocks
        if first + items > self.blocks:
            first = 0
        self.hazards.assigned_blocks = first + items
        return first, self.hazards.assigned_blocks

    def print_call(self, part: str, arguments: str) -> None:
        """Print ``part(arguments)``, in several lines if it is too long for one.

        ``part`` is a device function, ``arguments`` the text of its arguments.
        """
        indent = "    " * self.depth
        if len(indent) + len(part) + len(arguments) + 2 <= WIDTH:
            self.line(f"{part}({arguments})")
            return
        self.line(f"{part}(")
        self.lines += filled(arguments + ",", indent + "    ")
        self.line(")")

    def loop(self, step: LoopStep) -> None:
        """Print a loop. Carries that cannot be updated in place rotate three pointers.

        For a loop of 128 iterations over slices ``b`` of ``e``, with a carry ``h``:

            h_now = b_at
            h_next = value_at
            h_after = f_at
            for iteration in range(128):
                b = subarray_f32(e_at, iteration * 1024)
                columns_0(block_index(), h_now, c_at, b, h_next, 128)
                grid_barrier(barrier_state, 32)
                h_now = h_next
                h_next = h_after
                h_after = h_now

        A loop with a predicate is ``while flag[0] != 0:``; its number of iterations
        says afterwards which of the buffers has the result.
        """
        self.grid_barrier()
        carries = [c for c in step.carries if c.first is not None]
        rotating = [self.rotating_pointers(c) for c in carries]
        iteration = self.name_for((id(step), "iteration"), "iteration")
        if step.predicate is None:
            self.open(f"for {iteration} in range({step.count}):")
        else:
            flag = self.pointer(step.predicate, 0, "bool*")
            self.line(f"{iteration} = 0")
            self.open(f"while {flag}[0] != 0:")
            self.synchronize([step.predicate], [])
        for s in step.slices:
            self.slice(s, iteration)
        self.steps(step.body)
        self.grid_barrier()
        for current, following, spare in rotating:
            self.line(f"{current} = {following}")
            self.line(f"{following} = {spare}")
            self.line(f"{spare} = {current}")
        if step.predicate is not None:
            self.line(f"{iteration} = {iteration} + 1")
        self.close()
        if step.predicate is not None:
            # To leave the loop, all blocks have read the predicate once more.
            self.synchronize([step.predicate], [])
            for c, (current, _, _) in zip(carries, rotating, strict=True):
                self.copy_result(c.result, current, iteration)

    def rotating_pointers(self, c: CarriedValue) -> tuple[str, str, str]:
        """Define the three pointers of a double-buffered carry; return their names.

        The first points to the current value, which is the initial one in the first
        iteration. The second points to the memory of the next value, one buffer of two,
        and the third to the other buffer. Arrays of the loop's body that are the
        current or the next value are accessed by these pointers.
        """
        assert c.first is not None
        assert c.second is not None
        kind, memory = self.kind_of(c.result), (c.initial, c.first, c.second)
        pointers = [self.pointer(var, 0, kind) for var in memory]
        current, following = self.root_of(c.current), self.root_of(c.next)
        hint = self.hint(current)
        now, then, after = (
            self.name_for((id(c), suffix), hint + suffix)
            for suffix in ("_now", "_next", "_after")
        )
        for name, pointer in zip((now, then, after), pointers, strict=True):
            self.line(f"{name} = {pointer}")
        self.moving_pointers |= {current: (now, kind), following: (then, kind)}
        pointees = tuple(dict.fromkeys(a for var in memory for a in self.arrays(var)))
        self.pointees |= dict.fromkeys((current, following), pointees)
        return now, then, after

    def kind_of(self, var: Var) -> str:
        """Return the type of a pointer to the elements of ``var``, such as ``f32*``."""
        return short_name(var.type.dtype) + "*"

    def slice(self, s: SliceOf, iteration: str) -> None:
        """Print the pointer variable of the slice ``s`` in the loop's ``iteration``.

        Prints: ``b = subarray_f32(e_at, iteration * 1024)``. The body of the loop
        accesses ``s.inner`` by this variable.
        """
        kind = self.kind_of(s.inner)
        size = s.inner.type.dtype.itemsize
        outer_pointer = self.pointer(s.outer, 0, kind)
        at = f"{iteration} * {s.stride // size}"
        if s.offset:
            at = f"{s.offset // size} + {at}"
        root = self.root_of(s.inner)
        name = self.name_for((root, "slice"), self.hint(root))
        self.line(f"{name} = {self.subarray(outer_pointer, kind, at)}")
        self.moving_pointers[root] = name, kind
        self.pointees[root] = self.arrays(s.outer)

    def copy_result(self, result: Var, current: str, iteration: str) -> None:
        """Print the copy of a loop's last value to ``result``, unless it lies there.

        Iterations write to another buffer and to the result alternately, so an odd
        number of them leaves the last value in the buffer. Without an iteration the
        last value is the initial one. Prints:

            if iteration % 2 == 1 or iteration == 0:
                for i in range(block_index() * 256 + thread_index(), 1024, 8192):
                    h_at[i] = h_now[i]

        Args:
            result: The array of the result.
            current: The pointer to the value.
            iteration: The variable of the number of iterations.
        """
        self.synchronize([], [result])
        kind = self.kind_of(result)
        target = self.pointer(result, 0, kind)
        size = result.type.size
        with self.open(f"if {iteration} % 2 == 1 or {iteration} == 0:"):
            span = f"block_index() * {THREADS} + thread_index(), {size}"
            with self.open(f"for i in range({span}, {self.blocks * THREADS}):"):
                self.line(f"{target}[i] = {current}[i]")

    def branch(self, step: BranchStep) -> None:
        """Print a branch as nested if statements on its index.

        Prints, for two branches:

            chosen = index_at[0]
            if chosen <= 0:
                (steps of the first branch)
            else:
                (steps of the second)

        Each branch begins with the hazards from before. Afterwards the hazards of all
        branches count, as any of them may have run.
        """
        self.synchronize([step.index], [])
        index = self.name_for((id(step), "index"), "chosen")
        self.line(f"{index} = {self.pointer(step.index, 0, 'i32*')}[0]")
        last = len(step.branches) - 1
        before = self.hazards
        after = before.copy()
        for number, branch in enumerate(step.branches):
            if number < last:
                self.open(f"if {index} <= {number}:")
            self.hazards = before.copy()
            begin = len(self.lines)
            self.steps(branch)
            if len(self.lines) == begin:
                self.line("pass")
            after.add(self.hazards)
            if number < last:
                self.close()
                self.open("else:")
        for _ in range(last):
            self.close()
        self.hazards = after
