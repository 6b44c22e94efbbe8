"""Prints a loop as one kernel, if its body is so small that calls would dominate.

The nests of the body are printed one after the other inside the loop, with the loops
and branches in it, as plain code of one thread. Scalars are local variables, carried
from one iteration to the next; small arrays stay in memory; slices of what is scanned
are indices. Extents are printed as numbers, so that short loops are unrolled: unlike
other kernels, these are compiled again for other shapes (not for other lengths).

A loop with ``lanes`` is such a kernel of arrays of any size: a work item is a block of
elements, which go through all iterations (see ``lanes``). A scan over ``steps`` that
carries ``x`` to ``x + sin(x) * step`` is printed as ::

    for item in range(begin, end):
        start = item * width
        stop = min_i64(start + width, n)
        for i0 in range(start, stop):
            a_at[i0] = x_at[i0]
        for iteration in range(iterations):
            for i0 in range(start, stop):
                x = a_at[i0]
                a = sin_f32(x)
                step = steps_at[iteration]
                b = a * step
                c = x + b
                a_at[i0] = c
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.ir import Var
from arrayfn.lowering.cpu.loop_frame import Location, LoopFrame
from arrayfn.lowering.cpu.loop_nest import InlinePrinter
from arrayfn.lowering.cpu.schedule import CPU, work_per_element
from arrayfn.lowering.in_place import Storage
from arrayfn.lowering.kernel_printer import scratch_offsets
from arrayfn.lowering.kernel_text import function_text, shortened, signature
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.scalars.control import ITERATIONS_BETWEEN_CHECKS
from arrayfn.lowering.steps import (
    BranchStep,
    CallStep,
    CarriedValue,
    LoopStep,
    NestStep,
    PlanStep,
)

MANY: Final = 100  # assumed iterations where the trip count is unknown
BLOCK: Final = 1024  # lanes of a work item: a few arrays of them fit in L1


def kernel_of(
    printer: Callable[..., LoopPrinter],
    loop: LoopStep,
    name: str,
    storage: Storage,
    names: Mapping[Var, str],
) -> tuple[Kernel, CallStep]:
    """Print the kernel of ``loop``; return it and the step that calls it.

    Args:
        printer: the class that prints it, for a CPU or a GPU.
        loop: the loop, with its body as steps.
        name: the kernel's name.
        storage: in which array each Var lies.
        names: the names of Vars in the Program's text.
    """
    neutral = printer(loop, "kernel", storage, names, readable=False)
    neutral.print()
    printed = printer(loop, name, storage, names, readable=True)
    printed.print()
    kernel = Kernel(
        name=name,
        source=printed.source,
        key=neutral.source,
        parameters=printed.parameters,
        reason="a loop whose body is small, as one kernel",
        threads=printed.threads,
    )
    scratch, scratch_bytes = scratch_offsets(
        scratch_array.nbytes for scratch_array in printed.scratch
    )
    arrays = list(printed.pointers)
    call = CallStep(
        kernel=name,
        pointers=[(array, 0) for array in arrays],
        scratch=scratch,
        integers=[integer.value for integer in printed.integers.values()],
        items=-(-loop.lanes // printed.block) if loop.lanes else 1,
        grain=printed.grain,
        scratch_bytes=scratch_bytes,
        reads=[a for a in arrays if a not in printed.written],
        writes=[a for a in arrays if a in printed.written],
        iterations=_trip_count(loop),
    )
    return kernel, call


def _trip_count(loop: LoopStep) -> int | None:
    """Return the largest number of iterations in ``loop``, with those of inner loops.

    That is the product of its trip count and the largest one inside; None if unknown.
    """
    inner = [_trip_count(step) for step in loop.body if isinstance(step, LoopStep)]
    counts = [n for n in inner if n is not None]
    if loop.count is None or len(counts) < len(inner):
        return None
    return loop.count * max([1, *counts])


class LoopPrinter(LoopFrame):
    """Prints the kernel of one loop. A work item is a block of lanes.

    Attributes:
        block: the lanes of a work item.
        is_interruptible: whether the loop ends early if the user interrupts the run.
        threads: threads of a block, on a GPU.
        items: the names of the last parameters, which give the range of work items.
        items_text: the sentence about ``items`` in the printed kernel's docstring.
        titles: the primitives of the nests, for the printed kernel's title.
        work: the estimated nanoseconds of one element in one iteration.
    """

    block = BLOCK
    is_interruptible = True
    threads = 0
    items: tuple[str, ...] = ("begin", "end")
    items_text = "Items begin to end."

    def __init__(
        self,
        loop: LoopStep,
        name: str,
        storage: Storage,
        names: Mapping[Var, str],
        *,
        readable: bool,
    ) -> None:
        """Begin without text; ``name`` is the kernel's, the rest as in ``LoopFrame``.

        ``print`` fills in ``source`` and ``parameters``.
        """
        super().__init__(loop, storage, names, readable=readable)
        self.name = name
        self.titles: list[str] = []
        self.work = 0.0
        self.source = ""
        self.parameters: tuple[Parameter, ...] = ()

    @property
    def grain(self) -> int:
        """The smallest number of items worth giving to a thread."""
        item = self.work * (_trip_count(self.step) or MANY) * BLOCK
        return max(1, math.ceil(CPU.chunk_ns / max(1.0, item)))

    @override
    def guard(self, array: Var) -> str:
        """Return the condition for the store of a scalar: only the first item does it.

        Returns "" for arrays of all lanes, and if the loop has no lanes.
        """
        is_scalar = self.step.lanes > 0 and array.type.size == 1
        return "item == 0" if is_scalar else ""

    # Steps.

    def print(self) -> None:
        """Print the kernel: fill in ``source`` and ``parameters``.

        There is one work item. If the loop has lanes (elements that go through all
        iterations independently), there is one for each ``BLOCK`` of them.
        """
        self.open("for item in range(begin, end):")
        if self.step.lanes:
            self.lanes = self.integer("n", self.step.lanes)
            block = self.integer("width", BLOCK)
            self.line(f"start = item * {block}")
            self.line(f"stop = {self.use('min_i64')}(start + {block}, {self.lanes})")
        self.loop(self.step)
        self.close()
        self.finish()

    def steps(self, steps: Sequence[PlanStep]) -> None:
        """Print ``steps``: nests, loops and branches of the body."""
        for step in steps:
            if isinstance(step, NestStep):
                self.titles += step.nest.primitives
                self.work += work_per_element(step.nest)
                InlinePrinter(step.nest, "", frame=self).print()
            elif isinstance(step, LoopStep):
                self.loop(step)
            else:
                assert isinstance(step, BranchStep)
                self.branch(step)

    def branch(self, step: BranchStep) -> None:
        """Print a branch as a chain of ``if`` and ``else``.

        Block k is chosen if the index is at most k and no earlier block was chosen; the
        last block needs no condition. So an index outside of the blocks is clamped.
        """
        index = self.read(self.of(step.index))
        last = len(step.branches) - 1
        for number, branch in enumerate(step.branches):
            if number < last:
                limit = f"{self.use('i32')}({number})"
                self.open(f"if {self.use('le_i32')}({index}, {limit}):")
            line_count = len(self.lines)
            self.steps(branch)
            if len(self.lines) == line_count:
                self.line("pass")
            if number < last:
                self.close()
                self.open("else:")
        for _ in range(last):
            self.close()

    def loop(self, step: LoopStep) -> None:
        """Print a loop with its carried values and slices.

        Carries are set before the loop, advanced at the end of an iteration, and copied
        to the results after the loop.
        """
        carries = [c for c in step.carries if self.enter(c)]
        depth = self.depth
        if step.predicate is not None:
            self.open_while(step, self.read(self.of(step.predicate)))
        else:
            iteration = self.name_for(id(step), "iteration")
            iterations = self.integer("iterations", step.count or 0)
            self.open_for(step, iteration, iterations)
            self.locate_slices(step, iteration, iterations)
        line_count = len(self.lines)
        self.steps(step.body)
        for c in carries:
            self.advance(c)
        if len(self.lines) == line_count:
            self.line("pass")
        self.depth = depth  # ends all loops that were opened since
        for c in carries:
            self.leave(c)

    def locate_slices(self, step: LoopStep, iteration: str, iterations: str) -> None:
        """Record at which element the slices of an iteration begin, in ``locations``.

        ``iteration`` is the variable that counts the iterations, ``iterations`` the
        text of the trip count. If a slice moves backwards, a variable that counts
        backwards is printed first: ``iteration_back = iterations - 1 - iteration``.
        """
        backwards = ""
        for s in step.slices:
            count, number = s.stride // s.inner.type.dtype.itemsize, iteration
            if count < 0:
                if not backwards:
                    backwards = self.name_for((id(step), "back"), f"{iteration}_back")
                    self.line(f"{backwards} = {iterations} - 1 - {iteration}")
                count, number = -count, backwards
            begin = number if count == 1 else f"{number} * {self.extent(count)}"
            outer = self.location(self.of(s.outer))
            if outer.begin:
                begin = f"{outer.begin} + {begin}"
            self.locations[self.of(s.inner)] = Location(outer.array, begin)

    def open_while(self, step: LoopStep, condition: str) -> None:
        """Print the start of a loop that runs while ``condition`` holds.

        An interrupt by the user ends it, if the kernel is interruptible.
        """
        if not self.is_interruptible:
            self.open(f"while {condition}:")
            return
        iteration = self.name_for(id(step), "iteration")
        self.line(f"{iteration} = 0")
        self.open(f"while {condition}:")
        self.break_if_interrupted(iteration)
        self.line(f"{iteration} = {iteration} + 1")

    def open_for(self, step: LoopStep, iteration: str, iterations: str) -> None:
        """Print the start of a loop over the iterations of ``step``.

        ``iteration`` is the name of its variable, ``iterations`` the text of its trip
        count. A long loop is printed as two nested loops, and the outer one looks for
        an interrupt by the user before each part::

            for iteration_first in range(0, iterations, part_iterations):
                if interrupted(0):
                    break
                for iteration in range(iteration_first, min_i64(...)):
        """
        loops = (s for s in step.body if isinstance(s, LoopStep))
        inside = max([1, *(_trip_count(s) or MANY for s in loops)])
        part = max(1, ITERATIONS_BETWEEN_CHECKS // inside)
        if not self.is_interruptible or (step.count or 0) <= part:
            self.open(f"for {iteration} in range({iterations}):")
            return
        first = self.name_for((id(step), "first"), f"{iteration}_first")
        length = self.integer("part_iterations", part)
        self.open(f"for {first} in range(0, {iterations}, {length}):")
        self.break_if_interrupted("0")
        last = f"{self.use('min_i64')}({first} + {length}, {iterations})"
        self.open(f"for {iteration} in range({first}, {last}):")

    def break_if_interrupted(self, iteration: str) -> None:
        """Print ``if interrupted(iteration): break``.

        ``interrupted`` looks for an interrupt at some iterations only.
        """
        self.open(f"if {self.use('interrupted')}({iteration}):")
        self.line("break")
        self.close()

    def enter(self, c: CarriedValue) -> bool:
        """Print what sets the carry ``c`` to its initial value before the loop.

        The carry is kept in a local variable if its values can be variables, else in
        memory: of the result, or (if the next value is written over the current one) of
        ``current``. Returns whether ``advance`` must make the next value the current
        one at the end of an iteration. It need not if an outer loop has the same
        variable, or if the next value is written over the current one.
        """
        current, following = self.of(c.current), self.of(c.next)
        initial, result = self.of(c.initial), self.of(c.result)
        # The initial value may be the first part of a larger array.
        index = self.index_of(current)
        if current in self.registers:
            value = self.read(initial, index)
            if value != self.registers[current]:
                self.line(f"{self.registers[current]} = {value}")
            return False
        if self.can_be_variable(current) and self.can_be_variable(following):
            value = self.read(initial, index)
            self.registers[current] = self.variable(current)
            self.registers.setdefault(following, self.variable(following, "_next"))
            self.line(f"{self.registers[current]} = {value}")
            return True
        if c.second is None:
            if self.location(initial) != self.location(current):
                self.copy(initial, current)
            return False
        self.locations[current] = self.location(result)
        self.locations[following] = self.location(self.of(c.second))
        if self.location(initial) != self.location(result):
            self.copy(initial, result)
        return True

    def advance(self, c: CarriedValue) -> None:
        """Print the assignment of a carry's next value to its current one.

        Nothing is printed if both are the same array.
        """
        current, following = self.of(c.current), self.of(c.next)
        if current is following:
            return
        if current in self.registers:
            self.line(f"{self.registers[current]} = {self.registers[following]}")
        else:
            self.copy(following, current)

    def leave(self, c: CarriedValue) -> None:
        """Print the assignment of a carry's last value to the loop's result.

        Nothing is printed for a carry in memory, whose last value is in the result, and
        for a variable that is the result itself. The carry's variables are forgotten.
        """
        current, following = self.of(c.current), self.of(c.next)
        if current in self.registers:
            result = self.of(c.result)
            if result is current and result not in self.outside | self.locations.keys():
                return
            value = self.registers.pop(current)
            self.registers.pop(following, None)
            self.assign(result, value, self.index_of(current))

    def copy(self, source: Var, target: Var) -> None:
        """Print a copy of an array, element by element: of lanes, the item's block."""
        bounds = self.bounds(target.type.size)
        if bounds is not None:
            self.open(f"for i0 in range({bounds}):")
        text = self.element(source, "i0")
        self.line(f"{self.stored(target, 'i0')} = {text}")
        if bounds is not None:
            self.close()

    # The function around it.

    def finish(self) -> None:
        """Fill in ``source`` and ``parameters`` from the printed lines."""
        pointers = [
            Parameter(name, short_name(root.type.dtype) + "*")
            for root, name in self.pointers.items()
        ]
        pointers += [
            Parameter(array.name, short_name(array.dtype) + "*")
            for array in self.scratch
        ]
        integers = [Parameter(name, "i64") for name in self.integers]
        self.parameters = (*pointers, *integers)
        names = ", ".join(dict.fromkeys(self.titles))
        title = shortened(f"# {self.name}: a loop of {names}")
        types = "# " + " ".join(p.kind for p in self.parameters)
        doc = f"{signature(self.parameters)} {self.items_text}"
        self.source = function_text(
            self.name,
            [*(p.name for p in self.parameters), *self.items],
            [*self.constant_lines, *self.lines],
            comment=title if self.readable else types,
            imports=self.vocabularies(),
            doc=doc if self.readable else "",
        )

    def vocabularies(self) -> list[tuple[str, set[str]]]:
        """Return the modules that the kernel imports from, with the names it uses."""
        return [("scalars", self.imports)]
