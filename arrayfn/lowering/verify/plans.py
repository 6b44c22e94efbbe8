"""Proves plans before they run: no access out of bounds, or before a write.

In: a CompiledProgram. Out: a ``Report`` of what was not proved. Raises
VerificationError where a step is wrong:

* each load and store of a kernel lies inside its buffer, for all items;
* no two items, or threads, write the same element, and none reads what another writes,
  through whichever arguments, but for threads with a barrier between;
* all threads of a block come to its barriers;
* what is read was written before, in loops and branches too, and not written over by
  another array that lies in the same part of the arena;
* the outputs are written, whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

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
)
from arrayfn.lowering.verify.coverage import Coverage, Span, span_of
from arrayfn.lowering.verify.footprints import (
    Footprint,
    Part,
    Shared,
    footprint,
    user_line,
)
from arrayfn.lowering.verify.intervals import NOTHING, Intervals
from arrayfn.lowering.verify.library_calls import parts_of

_VECTOR: Final = 16
"""Bytes to which an access of a vector is aligned at most."""
_FIRST_ITERATIONS: Final = 3


@dataclass
class Report:
    """How many calls of kernels a plan has, and what was not proved of them."""

    name: str
    calls: int = 0
    unproved: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _Location:
    """Where a buffer lies now: in another one, from byte ``begin`` on."""

    buffer: int
    begin: int
    span: Span

    @property
    def bytes(self) -> Intervals:
        """Its bytes, as those of the other buffer."""
        low, high = self.span
        return Intervals.one(low + self.begin, high + self.begin)


@dataclass(frozen=True)
class _Operand:
    """An array argument: its name, its buffer's label, and where it lies.

    An element has ``size`` bytes. The first one is ``offset`` bytes from that of the
    buffer, of which the bytes ``span`` exist, and ``begin`` bytes from that of
    ``buffer``.
    """

    name: str
    label: str
    size: int
    span: Span
    offset: int
    buffer: int = -1
    begin: int = 0

    def known(self, part: Part) -> Intervals:
        """The bytes that ``part`` surely accesses."""
        return part.intervals.scaled(self.size, self.begin)

    def possible(self, part: Part) -> Intervals:
        """The bytes from the first to the last element that ``part`` may access."""
        low = min(r.low for r in part.reaches)
        high = max(r.high for r in part.reaches) + 1
        return Intervals.one(low * self.size, high * self.size).scaled(1, self.begin)


def verify(compiled: CompiledProgram, donated: Collection[int] = frozenset()) -> Report:
    """Prove what can be proved of ``compiled``, which may write inputs ``donated``."""
    return _Verifier(compiled, donated).run()


class _Verifier:
    """Walks a plan's steps in order, with `Coverage` of the bytes written so far."""

    def __init__(self, compiled: CompiledProgram, donated: Collection[int]) -> None:
        self.compiled = compiled
        self.donated = donated
        self.plan = compiled.plan
        self.buffers = compiled.plan.buffers
        self.kernels = {k.name: k for k in compiled.kernels}
        self.report = Report(compiled.name)
        self.locations: dict[int, _Location] = {}
        self.number = 0

    def run(self) -> Report:
        cover = Coverage(self.buffers)
        cover.begin()
        for b in self.buffers:
            if b.kind == "temporary" and b.offset + b.nbytes > self.plan.arena:
                self.fail(
                    f"{b.label} ends at byte {b.offset + b.nbytes} of the arena, "
                    f"which has {self.plan.arena}"
                )
        self.steps(self.plan.steps, cover)
        for number, b in enumerate(self.buffers):
            if b.kind == "output":
                self.check_written(number, cover, "the results are read")
        return self.report

    def fail(
        self, what: str, call: KernelCall | None = None, line: int = 0
    ) -> NoReturn:
        raise VerificationError(
            f"arrayfn made a wrong plan of {self.compiled.name} for "
            f"{self.compiled.target}: {self.where(call, line)}{what}; this is a fault "
            "of arrayfn, please report it with the function that is compiled"
        )

    def where(self, call: KernelCall | None, line: int) -> str:
        if call is None:
            return f"step {self.number}: " if self.number else ""
        kernel = self.kernels[call.kernel]
        text = f"step {self.number - 1}, kernel {call.kernel}"
        if isinstance(kernel, Kernel) and line:
            users = user_line(kernel, line)
            text += f", line {line}" + (f" ({users})" if users else "")
        return f"{text}: "

    def unproved(self, what: str, call: KernelCall, line: int = 0) -> None:
        self.report.unproved.append(f"{self.where(call, line)}{what}")

    # Steps.

    def steps(self, steps: Sequence[Step], cover: Coverage) -> None:
        for step in steps:
            self.number += 1
            if isinstance(step, KernelCall):
                self.call(step, cover)
            elif isinstance(step, Loop):
                self.loop(step, cover)
            else:
                self.branch(step, cover)

    def branch(self, step: Branch, cover: Coverage) -> None:
        self.check_written(step.index, cover, "a branch is chosen by it")
        ends: list[Coverage] = []
        for steps in step.branches:
            inner = cover.copy()
            self.steps(steps, inner)
            ends.append(inner)
        met = ends[0]
        for end in ends[1:]:
            met = met.met(end)
        cover.become(met)

    def loop(self, loop: Loop, cover: Coverage) -> None:
        before, first_number = cover.copy(), self.number
        last = _FIRST_ITERATIONS - 1 if loop.count is None else loop.count - 1
        iterations = [t for t in range(_FIRST_ITERATIONS) if t <= last]
        if last >= _FIRST_ITERATIONS:
            iterations.append(last)
        for iteration in iterations:
            if loop.predicate is not None:
                self.check_written(
                    loop.predicate, cover, "it says whether a loop goes on"
                )
            self.number = first_number
            self.locate_iteration(loop, iteration)
            self.steps(loop.body, cover)
            for c in loop.carries:
                self.check_written(
                    c.next, cover, "a loop carries it to its next iteration"
                )
        for c in loop.carries:
            source = c.initial if last < 0 else (c.first, c.second)[last % 2]
            self.check_written(source, cover, "a loop's result is there")
            self.note_written(c.result, cover)
        for s in loop.slices:
            self.all_iterations(loop, s.buffer, cover)
        if loop.predicate is not None:
            # It may not have run at all.
            results = [c.result for c in loop.carries]
            for number in results:
                self.note_written(number, before)
            cover.become(cover.met(before))

    def locate_iteration(self, loop: Loop, iteration: int) -> None:
        """Say where the buffers that move are in an iteration."""
        for c in loop.carries:
            pair = (c.first, c.second)
            now = c.initial if not iteration else pair[(iteration - 1) % 2]
            for number, at in ((c.current, now), (c.next, pair[iteration % 2])):
                lies, nbytes = self.location(at), self.buffers[number].nbytes
                if nbytes > lies.span[1]:
                    self.fail(
                        f"{self.buffers[number].label}, of {nbytes} bytes, lies in "
                        f"{self.buffers[at].label}, of {lies.span[1]}"
                    )
                self.locations[number] = _Location(lies.buffer, lies.begin, (0, nbytes))
        for s in loop.slices:
            lies, nbytes = self.location(s.source), self.buffers[s.buffer].nbytes
            begin = s.offset + iteration * s.stride
            if nbytes and not lies.span[0] <= begin <= lies.span[1] - nbytes:
                self.fail(
                    f"{self.buffers[s.buffer].label} lies at bytes {begin} to "
                    f"{begin + nbytes} of {self.buffers[s.source].label} in iteration "
                    f"{iteration}"
                    f", which has {lies.span[1]}"
                )
            self.locations[s.buffer] = _Location(
                lies.buffer, lies.begin + begin, (0, nbytes)
            )

    def all_iterations(self, loop: Loop, number: int, cover: Coverage) -> None:
        """Take what the iterations looked at wrote of a moving buffer as of all."""
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
            every = Intervals.of(np.array(starts), np.array(starts) + nbytes)
            cover.write(source.buffer, every)

    # Buffers.

    def location(self, number: int) -> _Location:
        """Where a buffer is, and which bytes of it there are."""
        if number in self.locations:
            return self.locations[number]
        b = self.buffers[number]
        if b.kind in ("slice", "carried"):
            self.fail(f"{b.label} is used outside of its loop")
        return _Location(number, 0, span_of(b.type))

    def check_written(self, number: int, cover: Coverage, why: str) -> None:
        """Fail unless each byte may have been written (``cover.perhaps``)."""
        lies, b = self.location(number), self.buffers[number]
        low, high = lies.span
        run = Intervals.one(low + lies.begin, min(high, b.nbytes or high) + lies.begin)
        missing = cover.perhaps.get(lies.buffer, NOTHING).missing(run)
        if missing is not None:
            a, z = (x - lies.begin for x in missing)
            self.fail(f"bytes {a} to {z} of {b.label} are not written, and {why}")

    def note_written(self, number: int, cover: Coverage) -> None:
        lies = self.location(number)
        cover.write(lies.buffer, lies.bytes)

    # Calls.

    def call(self, call: KernelCall, cover: Coverage) -> None:
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
        self.apart(call, cover)
        if isinstance(kernel, LibraryKernel):
            made = parts_of(kernel, call)
            if made is None:
                self.library(call, cover)
                return
        else:
            numbers = [a for a in call.arguments if isinstance(a, int)]
            own = frozenset(
                p.name
                for p, a in zip(kernel.parameters, call.arguments, strict=True)
                if isinstance(a, ScratchArgument)
            )
            made = footprint(kernel, numbers, call.items, own, self.shared(call))
        for finding in made.findings:
            self.fail(finding.text, call, finding.line)
        for finding in made.unproved:
            self.unproved(finding.text, call, finding.line)
        self.check(kernel, call, made, cover)

    def shared(self, call: KernelCall) -> list[Shared]:
        """The arguments that lie in one buffer, of each that has several."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for k, argument in enumerate(call.arguments):
            if isinstance(argument, BufferArgument):
                lies = self.location(argument.buffer)
                begin = lies.begin + argument.offset
                groups.setdefault(lies.buffer, []).append((k, begin))
        return [
            tuple((k, begin - group[0][1]) for k, begin in group)
            for group in groups.values()
            if len(group) > 1
        ]

    def library(self, call: KernelCall, cover: Coverage) -> None:
        """A library's call, of which the plan says what it reads and writes."""
        for number in call.reads:
            lies = self.location(number)
            if lies.bytes and lies.buffer not in cover.perhaps:
                self.fail(
                    f"{self.buffers[number].label} is read, and not written", call
                )
        for number in call.writes:
            self.note_written(number, cover)

    def apart(self, call: KernelCall, cover: Coverage) -> None:
        """Check that what a call writes lies apart from its other arguments."""
        given = [a.buffer for a in call.arguments if isinstance(a, BufferArgument)]
        used = {self.location(n).buffer for n in (*call.reads, *call.writes, *given)}
        for number in call.writes:
            written = self.location(number).buffer
            for other in used - {written}:
                if cover.overlap(written, other):
                    x, y = self.buffers[written].label, self.buffers[other].label
                    self.fail(f"{x}, which it writes, and {y} share memory", call)

    def operand(self, call: KernelCall, k: int, parameter: Parameter) -> _Operand:
        """Argument ``k`` of a call, which is an array."""
        argument = call.arguments[k]
        name = parameter.name
        size = BY_SHORT_NAME[parameter.kind.removesuffix("*")].itemsize
        if isinstance(argument, BufferArgument):
            lies = self.location(argument.buffer)
            begin = lies.begin + argument.offset
            label = self.buffers[argument.buffer].label
            where = lies.span, argument.offset, lies.buffer, begin
            return _Operand(name, label, size, *where)
        assert isinstance(argument, ScratchArgument)
        offsets = [a.offset for a in call.arguments if isinstance(a, ScratchArgument)]
        ends = [x for x in (*offsets, call.scratch) if x > argument.offset]
        span = 0, min(ends, default=argument.offset) - argument.offset
        return _Operand(name, "scratch memory", size, span, 0)

    def check(
        self,
        kernel: Kernel | LibraryKernel,
        call: KernelCall,
        made: Footprint,
        cover: Coverage,
    ) -> None:
        writes: list[tuple[int, Intervals, bool]] = []
        stored: dict[int, Intervals] = {}
        loads: list[tuple[_Operand, Part]] = []
        for k, parameter in enumerate(kernel.parameters):
            if isinstance(call.arguments[k], int):
                continue
            operand = self.operand(call, k, parameter)
            parts = [p[k] for p in (made.loads, made.stores, made.adds) if k in p]
            for part in parts:
                self.inside(part, operand, call)
            buffer = operand.buffer
            if buffer < 0:
                continue
            for part in parts:
                self.aligned(part, operand, call)
            loads += [(operand, p[k]) for p in (made.loads, made.adds) if k in p]
            if k in made.stores:
                part = made.stores[k]
                possible = operand.possible(part)
                stored[buffer] = stored.get(buffer, NOTHING).joined(possible)
                writes.append((buffer, operand.known(part), True))
                if not part.whole:
                    writes.append((buffer, possible, False))
        for operand, part in loads:
            own = stored.get(operand.buffer, NOTHING)
            if own and isinstance(kernel, LibraryKernel):
                self.read_and_written(operand, operand.known(part), writes, call)
            self.written(operand, part, own, call, cover)
        if made.partly:
            for number in call.writes:
                lies = self.location(number)
                writes.append((lies.buffer, lies.bytes, False))
        for buffer, intervals, surely in writes:
            b = self.buffers[buffer]
            is_given = b.kind == "input" and b.index not in self.donated
            if surely and intervals and is_given:
                self.fail(f"it writes {b.label}", call)
            cover.write(buffer, intervals, surely=surely)

    def read_and_written(
        self,
        operand: _Operand,
        read: Intervals,
        writes: Sequence[tuple[int, Intervals, bool]],
        call: KernelCall,
    ) -> None:
        """Check that a product does not write over what it reads, but an addend."""
        for other, runs, _ in writes:
            common = runs.common(read) if other == operand.buffer else NOTHING
            alike = common and not (runs.missing(read) or read.missing(runs))
            if common and not (operand.name == "added" and alike):
                a, z = int(common.starts[0]), int(common.stops[0])
                label = self.buffers[operand.buffer].label
                self.fail(
                    f"bytes {a} to {z} of {label}, read as {operand.name}, it writes",
                    call,
                )

    def inside(self, part: Part, operand: _Operand, call: KernelCall) -> None:
        """Check that all elements of ``part`` lie in the operand's buffer."""
        (low, high), offset, size = operand.span, operand.offset, operand.size
        first, last = -((offset - low) // size), (high - offset) // size - 1
        for reach in part.reaches:
            if first <= reach.low and reach.high <= last:
                continue
            have = f"has {first} to {last}" if last >= first else "is empty"
            text = (
                f"elements {reach.low} to {reach.high} of argument {operand.name} are "
                f"accessed, and {operand.label} {have} there ({high - low} bytes)"
            )
            if reach.exact:
                self.fail(text, call, reach.line)
            self.unproved(text, call, reach.line)

    def aligned(self, part: Part, operand: _Operand, call: KernelCall) -> None:
        """Check the vectors of an operand."""
        # Memory is aligned where the lowest element of it lies.
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
                if reach.exact and residue is not None:
                    self.fail(text, call, reach.line)
                self.unproved(text, call, reach.line)

    def written(
        self,
        operand: _Operand,
        part: Part,
        own: Intervals,
        call: KernelCall,
        cover: Coverage,
    ) -> None:
        """Check that what is loaded was written, by earlier steps or this one."""
        buffer, name = operand.buffer, operand.name
        label = self.buffers[buffer].label
        known = operand.known(part)
        perhaps = cover.perhaps.get(buffer, NOTHING)
        missing = perhaps.joined(own).missing(known) if known else None
        if missing is not None:
            # What the call writes itself it may read.
            self.fail(
                f"bytes {missing[0]} to {missing[1]} of {label} are read as {name}, "
                "and no step before has written them",
                call,
                part.reaches[0].line,
            )
        surely = cover.surely.get(buffer, NOTHING).joined(own)
        wanted = known if part.whole else operand.possible(part)
        if surely.missing(wanted) is not None:
            self.unproved(f"whether {label}, read as {name}, is written", call)
