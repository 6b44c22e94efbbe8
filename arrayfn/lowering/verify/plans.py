"""Proves plans before they run: no access out of bounds, no read before a write.

In: a CompiledProgram. Out: a ``Report`` of what was not proved. Raises
VerificationError where a step breaks one of these rules:

* each load and store of a kernel lies inside its buffer, for all work items;

* no two items, or threads, write the same element, and none reads what another writes,
through any arguments, except between threads with a barrier in between;

* all threads of a block reach its barriers;

* what is read was written before, in loops and branches too, and not overwritten by
another array that lies in the same part of the arena;

* all elements of the outputs are written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Final, NamedTuple, NoReturn

import numpy as np

from arrayfn.dtypes import BY_SHORT_NAME
from arrayfn.errors import VerificationError
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import (
    Branch,
    BufferArgument,
    Kernel,
    KernelCall,
    LibraryKernel,
    Loop,
    Parameter,
    ScratchArgument,
    Step,
    walk,
)
from arrayfn.lowering.verify.coverage import Coverage, Span, span_of
from arrayfn.lowering.verify.footprints import (
    AccessSet,
    Footprint,
    Shared,
    footprint,
    user_line,
)
from arrayfn.lowering.verify.intervals import NOTHING, Intervals
from arrayfn.lowering.verify.library_calls import product_footprint
from arrayfn.records import frozen, record

_VECTOR: Final = 16
"""The largest alignment of a vector access, in bytes."""
_FIRST_ITERATIONS: Final = 3  # of a loop, that are checked one by one


@record
class Report:
    """How many kernel calls the plan has, and the claims on them not proved."""

    name: str
    calls: int = 0
    unproved: list[str] = field(default_factory=list[str])


@frozen
class _Location:
    """Where a buffer lies now: in ``buffer``, from byte ``begin`` on.

    Slices and carried buffers of loops move from iteration to iteration. ``span`` has
    the first byte, and the one after the last, relative to ``begin``.
    """

    buffer: int
    begin: int
    span: Span

    @property
    def bytes(self) -> Intervals:
        """The bytes of ``buffer`` that this buffer takes."""
        low, high = self.span
        return Intervals.one(low + self.begin, high + self.begin)


class _Write(NamedTuple):
    """Bytes of a buffer that a call writes, or, if not ``surely``, may write."""

    buffer: int
    bytes: Intervals
    surely: bool


@frozen
class _Operand:
    """An array argument of a call, and where its memory lies.

    Attributes:
        name: the parameter's name.
        label: the buffer's name in the plan.
        size: the bytes of an element.
        span: the first byte of the buffer, and the one after the last.
        offset: the byte of the buffer that the pointer points to.
        buffer: the number of the buffer in whose memory the argument lies (another one,
            if it is a slice or carried); -1 for scratch memory.
        begin: the byte of that buffer that the pointer points to.
    """

    name: str
    label: str
    size: int
    span: Span
    offset: int
    buffer: int = -1
    begin: int = 0

    def known(self, part: AccessSet) -> Intervals:
        """Return the bytes of ``buffer`` that ``part`` surely accesses."""
        return part.intervals.scaled(self.size, self.begin)

    def possible(self, part: AccessSet) -> Intervals:
        """Return the bytes of ``buffer`` from the first to the last possible access."""
        low = min(r.low for r in part.reaches)
        high = max(r.high for r in part.reaches) + 1
        first, stop = (self.begin + element * self.size for element in (low, high))
        return Intervals.one(first, stop)


def verify(compiled: CompiledProgram, donated: Collection[int] = frozenset()) -> Report:
    """Prove what can be proved of ``compiled``; return a report of the rest.

    The plan may overwrite the inputs whose numbers are in ``donated``. Raises
    VerificationError for a wrong plan.
    """
    return _Verifier(compiled, donated).run()


class _Verifier:
    """Walks a plan's steps in order, with ``Coverage`` of the bytes written so far.

    Attributes:
        kernels: the plan's kernels, by name.
        locations: where slices and carried buffers lie in the current iteration of
            their loop, by number of the buffer.
        number: the number of the step that is checked, as a printed plan counts steps;
            -1 outside of all steps.
    """

    def __init__(self, compiled: CompiledProgram, donated: Collection[int]) -> None:
        """Store the arguments of ``verify``."""
        self.compiled = compiled
        self.donated = donated
        self.plan = compiled.plan
        self.buffers = compiled.plan.buffers
        self.kernels = {k.name: k for k in compiled.kernels}
        self.report = Report(compiled.name)
        self.locations: dict[int, _Location] = {}
        self.number = -1

    def run(self) -> Report:
        """Check the whole plan; return the report."""
        cover = Coverage(self.buffers)
        cover.begin()
        for b in self.buffers:
            if b.kind == "temporary" and b.offset + b.nbytes > self.plan.arena:
                self.fail(
                    f"{b.label} ends at byte {b.offset + b.nbytes} of the arena, "
                    f"which has {self.plan.arena}"
                )
        self.steps(self.plan.steps, 0, cover)
        for number, b in enumerate(self.buffers):
            if b.kind == "output":
                self.check_written(number, cover, "the results are read")
        return self.report

    def fail(
        self, problem: str, call: KernelCall | None = None, line: int = 0
    ) -> NoReturn:
        """Raise VerificationError with ``problem``.

        The message names the step, and the ``line`` of the kernel of ``call``, if it is
        not 0.
        """
        raise VerificationError(
            f"arrayfn made a wrong plan of {self.compiled.name} for "
            f"{self.compiled.target}: {self.where(call, line)}{problem}; this is a "
            "bug in arrayfn: please report it, with the function that is compiled"
        )

    def where(self, call: KernelCall | None, line: int) -> str:
        """Return the start of a message: step, kernel of ``call``, and ``line``.

        It is empty outside of all steps.
        """
        if self.number < 0:
            return ""
        text = f"step {self.number}"
        if call is not None:
            kernel = self.kernels[call.kernel]
            text += f", kernel {call.kernel}"
            if isinstance(kernel, Kernel) and line:
                users = user_line(kernel, line)
                text += f", line {line}" + (f" ({users})" if users else "")
        return f"{text}: "

    def unproved(self, claim: str, call: KernelCall, line: int = 0) -> None:
        """Add ``claim``, which could not be proved, to the report."""
        self.report.unproved.append(f"{self.where(call, line)}{claim}")

    def fail_or_note(
        self, text: str, call: KernelCall, line: int, *, proved: bool
    ) -> None:
        """Fail with ``text`` if it is ``proved``, else add it to the report."""
        if proved:
            self.fail(text, call, line)
        self.unproved(text, call, line)

    # Steps.

    def steps(self, steps: Sequence[Step], first: int, cover: Coverage) -> int:
        """Check ``steps`` in order, and update ``cover``.

        ``first`` is the number of the first of them. Returns the number that follows
        those of ``steps`` and of the steps inside them.
        """
        number, outer_number = first, self.number
        for step in steps:
            self.number = number
            if isinstance(step, KernelCall):
                self.call(step, cover)
            elif isinstance(step, Loop):
                self.loop(step, cover)
            else:
                self.branch(step, cover)
            number += len(list(walk([step])))
        self.number = outer_number
        return number

    def branch(self, step: Branch, cover: Coverage) -> None:
        """Check each branch from the state ``cover``, and update it.

        Afterwards, only bytes that all branches write are surely written.
        """
        self.check_written(step.index, cover, "a branch is chosen by it")
        ends: list[Coverage] = []
        first = self.number + 1
        for steps in step.branches:
            inner = cover.copy()
            first = self.steps(steps, first, inner)
            ends.append(inner)
        common = ends[0]
        for end in ends[1:]:
            common = common.merged(end)
        cover.assign(common)

    def loop(self, loop: Loop, cover: Coverage) -> None:
        """Check a loop: the first three iterations, the last one, and the results.

        ``cover`` is updated. Carried buffers alternate between two buffers, so the
        parity of the last iteration tells which one has the results. A loop with a
        predicate may not run at all: its results are then the initial values.
        """
        before = cover.copy()
        last_iteration = _FIRST_ITERATIONS - 1 if loop.count is None else loop.count - 1
        iterations = [t for t in range(_FIRST_ITERATIONS) if t <= last_iteration]
        if last_iteration >= _FIRST_ITERATIONS:
            iterations.append(last_iteration)
        for iteration in iterations:
            if loop.predicate is not None:
                self.check_written(
                    loop.predicate, cover, "it says whether a loop goes on"
                )
            self.locate_iteration(loop, iteration)
            self.steps(loop.body, self.number + 1, cover)
            for c in loop.carries:
                self.check_written(
                    c.next, cover, "a loop carries it to its next iteration"
                )
        for c in loop.carries:
            source = (
                c.initial
                if last_iteration < 0
                else (c.first, c.second)[last_iteration % 2]
            )
            self.check_written(source, cover, "a loop's result is there")
            self.note_written(c.result, cover)
        for s in loop.slices:
            self.all_iterations(loop, s.buffer, cover)
        if loop.predicate is not None:
            for c in loop.carries:
                self.note_written(c.result, before)
            cover.assign(cover.merged(before))

    def locate_iteration(self, loop: Loop, iteration: int) -> None:
        """Set where the slices and carried buffers lie in an iteration.

        An iteration reads the carry where the one before has written it: ``initial``,
        then ``first`` and ``second`` in turn. A slice moves by ``stride`` bytes. Fails
        if a buffer does not fit where it lies.
        """
        for c in loop.carries:
            pair = (c.first, c.second)
            source = c.initial if not iteration else pair[(iteration - 1) % 2]
            for number, target in ((c.current, source), (c.next, pair[iteration % 2])):
                location, nbytes = self.location(target), self.buffers[number].nbytes
                if nbytes > location.span[1]:
                    self.fail(
                        f"{self.buffers[number].label}, of {nbytes} bytes, lies in "
                        f"{self.buffers[target].label}, of {location.span[1]}"
                    )
                self.locations[number] = _Location(
                    location.buffer, location.begin, (0, nbytes)
                )
        for s in loop.slices:
            location, nbytes = self.location(s.source), self.buffers[s.buffer].nbytes
            begin = s.offset + iteration * s.stride
            if nbytes and not location.span[0] <= begin <= location.span[1] - nbytes:
                self.fail(
                    f"{self.buffers[s.buffer].label} lies at bytes {begin} to "
                    f"{begin + nbytes} of {self.buffers[s.source].label} in iteration "
                    f"{iteration}"
                    f", which has {location.span[1]}"
                )
            self.locations[s.buffer] = _Location(
                location.buffer, location.begin + begin, (0, nbytes)
            )

    def all_iterations(self, loop: Loop, number: int, cover: Coverage) -> None:
        """Record the slices of all iterations as written, if the checked ones are.

        ``number`` is the slice's buffer. Only some iterations are checked, so the
        slices of the others are assumed to be written if those of the first iterations
        are whole.
        """
        (s,) = (s for s in loop.slices if s.buffer == number)
        count, nbytes = loop.count or 0, self.buffers[number].nbytes
        source = self.location(s.source)
        for iteration in range(min(count, _FIRST_ITERATIONS)):
            begin = source.begin + s.offset + iteration * s.stride
            run = Intervals.one(begin, begin + nbytes)
            if cover.surely.get(source.buffer, NOTHING).missing(run):
                return
        starts = [source.begin + s.offset + t * s.stride for t in range(count)]
        if starts and nbytes:
            all_slices = Intervals.of(np.array(starts), np.array(starts) + nbytes)
            cover.write(source.buffer, all_slices)

    # Buffers.

    def location(self, number: int) -> _Location:
        """Return where buffer ``number`` lies now.

        Fails for a slice or carried buffer outside of its loop.
        """
        if number in self.locations:
            return self.locations[number]
        b = self.buffers[number]
        if b.kind in ("slice", "carried"):
            self.fail(f"{b.label} is used outside of its loop")
        return _Location(number, 0, span_of(b.type))

    def check_written(self, number: int, cover: Coverage, why: str) -> None:
        """Fail unless each byte of buffer ``number`` may have been written.

        ``cover`` has the bytes written so far; ``why`` says what reads the buffer.
        """
        location, b = self.location(number), self.buffers[number]
        low, high = location.span
        run = Intervals.one(
            low + location.begin, min(high, b.nbytes or high) + location.begin
        )
        missing = cover.perhaps.get(location.buffer, NOTHING).missing(run)
        if missing is not None:
            first, last = (x - location.begin for x in missing)
            self.fail(
                f"bytes {first} to {last} of {b.label} are not written, and {why}"
            )

    def note_written(self, number: int, cover: Coverage) -> None:
        """Record that all of buffer ``number`` is written."""
        location = self.location(number)
        cover.write(location.buffer, location.bytes)

    # Calls.

    def call(self, call: KernelCall, cover: Coverage) -> None:
        """Check a kernel call: its arguments, footprint and accesses.

        A library call that is no matrix product has no footprint: it is checked by
        whole buffers.
        """
        self.report.calls += 1
        kernel = self.kernels[call.kernel]
        if len(call.arguments) != len(kernel.parameters):
            self.fail("its arguments are not those of the kernel", call)
        if call.scratch > self.plan.scratch:
            self.fail(
                f"it needs {call.scratch} bytes of scratch memory, and a thread has "
                f"{self.plan.scratch}",
                call,
            )
        self.check_no_overlap(call, cover)
        if isinstance(kernel, LibraryKernel):
            accesses = product_footprint(kernel, call)
            if accesses is None:
                self.library(call, cover)
                return
        else:
            numbers = [a for a in call.arguments if isinstance(a, int)]
            private = frozenset(
                p.name
                for p, a in zip(kernel.parameters, call.arguments, strict=True)
                if isinstance(a, ScratchArgument)
            )
            accesses = footprint(
                kernel, numbers, call.items, private, self.shared(call)
            )
        for finding in accesses.findings:
            self.fail(finding.text, call, finding.line)
        for finding in accesses.unproved:
            self.unproved(finding.text, call, finding.line)
        self.check_accesses(kernel, call, accesses, cover)

    def shared(self, call: KernelCall) -> list[Shared]:
        """Return the groups of several arguments that lie in the same buffer.

        A group has pairs: the number of the argument, and its distance in bytes from
        the group's first argument.
        """
        groups: dict[int, list[tuple[int, int]]] = {}
        for k, argument in enumerate(call.arguments):
            if isinstance(argument, BufferArgument):
                location = self.location(argument.buffer)
                begin = location.begin + argument.offset
                groups.setdefault(location.buffer, []).append((k, begin))
        return [
            tuple((k, begin - group[0][1]) for k, begin in group)
            for group in groups.values()
            if len(group) > 1
        ]

    def library(self, call: KernelCall, cover: Coverage) -> None:
        """Check a library call by the buffers that the plan says it reads and writes.

        Something of what it reads must have been written; all of what it writes counts
        as written.
        """
        for number in call.reads:
            location = self.location(number)
            if location.bytes and location.buffer not in cover.perhaps:
                self.fail(
                    f"{self.buffers[number].label} is read, and not written", call
                )
        for number in call.writes:
            self.note_written(number, cover)

    def check_no_overlap(self, call: KernelCall, cover: Coverage) -> None:
        """Check that what a call writes does not overlap with its other arguments."""
        argument_buffers = [
            a.buffer for a in call.arguments if isinstance(a, BufferArgument)
        ]
        buffers = {
            self.location(n).buffer
            for n in (*call.reads, *call.writes, *argument_buffers)
        }
        for number in call.writes:
            written = self.location(number).buffer
            for other in buffers - {written}:
                if cover.overlap(written, other):
                    x, y = self.buffers[written].label, self.buffers[other].label
                    self.fail(f"{x}, which it writes, and {y} share memory", call)

    def operand(self, call: KernelCall, k: int, parameter: Parameter) -> _Operand:
        """Describe argument ``k`` of a call, an array.

        Scratch memory ends where the next scratch argument begins.
        """
        argument = call.arguments[k]
        name = parameter.name
        size = BY_SHORT_NAME[parameter.kind.removesuffix("*")].itemsize
        if isinstance(argument, BufferArgument):
            location = self.location(argument.buffer)
            begin = location.begin + argument.offset
            label = self.buffers[argument.buffer].label
            memory = location.span, argument.offset, location.buffer, begin
            return _Operand(name, label, size, *memory)
        assert isinstance(argument, ScratchArgument)
        offsets = [a.offset for a in call.arguments if isinstance(a, ScratchArgument)]
        ends = [x for x in (*offsets, call.scratch) if x > argument.offset]
        span = 0, min(ends, default=argument.offset) - argument.offset
        return _Operand(name, "scratch memory", size, span, offset=0)

    def check_accesses(
        self,
        kernel: Kernel | LibraryKernel,
        call: KernelCall,
        accesses: Footprint,
        cover: Coverage,
    ) -> None:
        """Check the accesses of a kernel call, and update ``cover`` by its writes.

        They must be inside the buffers, aligned, and read only what has been written;
        inputs must not be written unless they are donated.
        """
        writes: list[_Write] = []
        stored: dict[int, Intervals] = {}
        loads: list[tuple[_Operand, AccessSet]] = []
        for k, parameter in enumerate(kernel.parameters):
            if isinstance(call.arguments[k], int):
                continue
            operand = self.operand(call, k, parameter)
            parts = [
                p[k] for p in (accesses.loads, accesses.stores, accesses.adds) if k in p
            ]
            for part in parts:
                self.check_inside(part, operand, call)
            buffer = operand.buffer
            if buffer < 0:  # scratch memory
                continue
            for part in parts:
                self.check_aligned(part, operand, call)
            loads += [
                (operand, p[k]) for p in (accesses.loads, accesses.adds) if k in p
            ]
            if k in accesses.stores:
                part = accesses.stores[k]
                possible = operand.possible(part)
                stored[buffer] = stored.get(buffer, NOTHING).joined(possible)
                writes.append(_Write(buffer, operand.known(part), surely=True))
                if not part.is_complete:
                    writes.append(_Write(buffer, possible, surely=False))
        for operand, part in loads:
            stored_here = stored.get(operand.buffer, NOTHING)
            if stored_here and isinstance(kernel, LibraryKernel):
                self.read_and_written(operand, operand.known(part), writes, call)
            self.check_loads(operand, part, stored_here, call, cover)
        if accesses.partly:
            for number in call.writes:
                location = self.location(number)
                writes.append(_Write(location.buffer, location.bytes, surely=False))
        for buffer, intervals, surely in writes:
            b = self.buffers[buffer]
            is_read_only = b.kind == "input" and b.index not in self.donated
            if surely and intervals and is_read_only:
                self.fail(f"it writes {b.label}", call)
            cover.write(buffer, intervals, surely=surely)

    def read_and_written(
        self,
        operand: _Operand,
        read: Intervals,
        writes: Sequence[_Write],
        call: KernelCall,
    ) -> None:
        """Check that a product does not overwrite what it reads, except its addend.

        ``read`` are the bytes that it reads of ``operand``. The result may have exactly
        the memory of the matrix that is added.
        """
        for write in writes:
            written = write.bytes
            is_same_buffer = write.buffer == operand.buffer
            common = written.common(read) if is_same_buffer else NOTHING
            is_same_range = common and not (
                written.missing(read) or read.missing(written)
            )
            if common and not (operand.name == "added" and is_same_range):
                first, last = int(common.starts[0]), int(common.stops[0])
                label = self.buffers[operand.buffer].label
                self.fail(
                    f"bytes {first} to {last} of {label}, read as {operand.name}, it "
                    "writes",
                    call,
                )

    def check_inside(
        self, part: AccessSet, operand: _Operand, call: KernelCall
    ) -> None:
        """Check that all elements of ``part`` are inside the operand's buffer."""
        (low, high), offset, size = operand.span, operand.offset, operand.size
        # The elements that exist, counted from the pointer.
        first, last = -((offset - low) // size), (high - offset) // size - 1
        for reach in part.reaches:
            if first <= reach.low and reach.high <= last:
                continue
            extent_text = f"has {first} to {last}" if last >= first else "is empty"
            text = (
                f"elements {reach.low} to {reach.high} of argument {operand.name} are "
                f"accessed, and {operand.label} {extent_text} there "
                f"({high - low} bytes)"
            )
            self.fail_or_note(text, call, reach.line, proved=reach.exact)

    def check_aligned(
        self, part: AccessSet, operand: _Operand, call: KernelCall
    ) -> None:
        """Check that vector accesses of an operand are aligned, to at most 16 bytes."""
        # The lowest byte of a buffer's memory is aligned.
        start = operand.begin - self.location(operand.buffer).span[0]
        for reach in part.reaches:
            if reach.lanes == 1:
                continue
            nbytes = min(_VECTOR, reach.lanes * operand.size)
            residue = reach.residue
            if residue is None or (residue * operand.size + start) % nbytes:
                text = (
                    f"a vector of {reach.lanes} elements of {operand.name} is not "
                    "aligned"
                )
                proved = reach.exact and residue is not None
                self.fail_or_note(text, call, reach.line, proved=proved)

    def check_loads(
        self,
        operand: _Operand,
        part: AccessSet,
        stored_here: Intervals,
        call: KernelCall,
        cover: Coverage,
    ) -> None:
        """Check that all bytes loaded were written, by earlier steps or by this call.

        ``part`` are the loads of ``operand``, and ``stored_here`` the bytes that the
        call itself stores in this buffer. Fails if bytes that are surely loaded cannot
        have been written; adds a claim to the report if they may not have been.
        """
        buffer, name = operand.buffer, operand.name
        label = self.buffers[buffer].label
        known = operand.known(part)
        perhaps = cover.perhaps.get(buffer, NOTHING)
        missing = perhaps.joined(stored_here).missing(known) if known else None
        if missing is not None:
            self.fail(
                f"bytes {missing[0]} to {missing[1]} of {label} are read as {name}, "
                "and no step before has written them",
                call,
                part.reaches[0].line,
            )
        surely = cover.surely.get(buffer, NOTHING).joined(stored_here)
        needed = known if part.is_complete else operand.possible(part)
        if surely.missing(needed) is not None:
            self.unproved(f"whether {label}, read as {name}, is written", call)
