"""Plans that are proved before they run: nothing is touched outside, or too early.

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
class _Place:
    """Where a buffer lies now: in another one, from byte ``begin`` on."""

    buffer: int
    begin: int
    span: Span


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
        self.places: dict[int, _Place] = {}
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
        cover.surely, cover.perhaps, cover.owners = met.surely, met.perhaps, met.owners

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
            self.place_iteration(loop, iteration)
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
            met = cover.met(before)
            cover.surely, cover.perhaps = met.surely, met.perhaps
            cover.owners = met.owners

    def place_iteration(self, loop: Loop, iteration: int) -> None:
        """Say where the buffers that move are in an iteration."""
        for c in loop.carries:
            pair = (c.first, c.second)
            now = c.initial if not iteration else pair[(iteration - 1) % 2]
            for number, at in ((c.current, now), (c.next, pair[iteration % 2])):
                place, nbytes = self.place(at), self.buffers[number].nbytes
                if nbytes > place.span[1]:
                    self.fail(
                        f"{self.buffers[number].label}, of {nbytes} bytes, lies in "
                        f"{self.buffers[at].label}, of {place.span[1]}"
                    )
                self.places[number] = _Place(place.buffer, place.begin, (0, nbytes))
        for s in loop.slices:
            place, nbytes = self.place(s.source), self.buffers[s.buffer].nbytes
            begin = s.offset + iteration * s.stride
            if nbytes and not place.span[0] <= begin <= place.span[1] - nbytes:
                self.fail(
                    f"{self.buffers[s.buffer].label} lies at bytes {begin} to "
                    f"{begin + nbytes} of {self.buffers[s.source].label} in iteration "
                    f"{iteration}"
                    f", which has {place.span[1]}"
                )
            self.places[s.buffer] = _Place(
                place.buffer, place.begin + begin, (0, nbytes)
            )

    def all_iterations(self, loop: Loop, number: int, cover: Coverage) -> None:
        """Take what the iterations looked at wrote of a moving buffer as of all."""
        (s,) = (s for s in loop.slices if s.buffer == number)
        count, nbytes = loop.count or 0, self.buffers[number].nbytes
        source = self.place(s.source)
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

    def place(self, number: int) -> _Place:
        """Where a buffer is, and which bytes of it there are."""
        if number in self.places:
            return self.places[number]
        b = self.buffers[number]
        if b.kind in ("slice", "carried"):
            self.fail(f"{b.label} is used outside of its loop")
        return _Place(number, 0, span_of(b.type))

    def check_written(self, number: int, cover: Coverage, why: str) -> None:
        """Fail unless each byte may have been written (``cover.perhaps``)."""
        place = self.place(number)
        b = self.buffers[number]
        low, high = place.span
        run = Intervals.one(
            low + place.begin, min(high, b.nbytes or high) + place.begin
        )
        missing = cover.perhaps.get(place.buffer, NOTHING).missing(run)
        if missing is not None:
            a, z = (x - place.begin for x in missing)
            self.fail(f"bytes {a} to {z} of {b.label} are not written, and {why}")

    def note_written(self, number: int, cover: Coverage) -> None:
        place = self.place(number)
        low, high = place.span
        cover.write(place.buffer, Intervals.one(low + place.begin, high + place.begin))

    # Calls.

    def call(self, call: KernelCall, cover: Coverage) -> None:
        self.report.calls += 1
        kernel = self.kernels[call.kernel]
        if len(call.arguments) != len(kernel.parameters):
            self.fail("its arguments are not those of the kernel", call)
        self.scratch(call)
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
                place = self.place(argument.buffer)
                begin = place.begin + argument.offset
                groups.setdefault(place.buffer, []).append((k, begin))
        return [
            tuple((k, begin - group[0][1]) for k, begin in group)
            for group in groups.values()
            if len(group) > 1
        ]

    def library(self, call: KernelCall, cover: Coverage) -> None:
        """A library's call, of which the plan says what it reads and writes."""
        for number in call.reads:
            place = self.place(number)
            low, high = place.span
            if high > low and place.buffer not in cover.perhaps:
                self.fail(
                    f"{self.buffers[number].label} is read, and not written", call
                )
        for number in call.writes:
            self.note_written(number, cover)

    def scratch(self, call: KernelCall) -> None:
        if call.scratch > self.plan.scratch:
            self.fail(
                f"it needs {call.scratch} bytes of scratch memory, and a thread has "
                f"{self.plan.scratch}",
                call,
            )

    def apart(self, call: KernelCall, cover: Coverage) -> None:
        """Check that what a call writes lies apart from its other arguments."""
        given = [a.buffer for a in call.arguments if isinstance(a, BufferArgument)]
        touched = {self.place(n).buffer for n in (*call.reads, *call.writes, *given)}
        for number in call.writes:
            written = self.place(number).buffer
            for other in touched - {written}:
                if cover.overlap(written, other):
                    x, y = self.buffers[written].label, self.buffers[other].label
                    self.fail(f"{x}, which it writes, and {y} share memory", call)

    def check(
        self,
        kernel: Kernel | LibraryKernel,
        call: KernelCall,
        made: Footprint,
        cover: Coverage,
    ) -> None:
        offsets = sorted(
            a.offset for a in call.arguments if isinstance(a, ScratchArgument)
        )
        writes: list[tuple[int, Intervals, bool]] = []
        stored: dict[int, Intervals] = {}
        loads: list[tuple[str, int, Part, int, int]] = []
        for k, parameter in enumerate(kernel.parameters):
            argument = call.arguments[k]
            if isinstance(argument, int):
                continue
            name, size = parameter.name, _size(parameter.kind)
            parts = [p[k] for p in (made.loads, made.stores, made.adds) if k in p]
            if isinstance(argument, ScratchArgument):
                ends = [x for x in (*offsets, call.scratch) if x > argument.offset]
                limit = min(ends, default=argument.offset) - argument.offset
                for part in parts:
                    self.inside(part, name, "scratch memory", (0, limit), size, 0, call)
                continue
            place = self.place(argument.buffer)
            label = self.buffers[argument.buffer].label
            for part in parts:
                offset = argument.offset
                self.inside(part, name, label, place.span, size, offset, call)
                # Memory is aligned where the lowest element of it lies.
                first, _ = self.place(place.buffer).span
                start = place.begin - first + argument.offset
                self.aligned(part, name, size, start, call)
            begin = place.begin + argument.offset
            read = (p[k] for p in (made.loads, made.adds) if k in p)
            loads += [(name, place.buffer, part, size, begin) for part in read]
            if k in made.stores:
                part = made.stores[k]
                intervals = part.intervals.scaled(size, begin)
                known = stored.get(place.buffer, NOTHING)
                stored[place.buffer] = known.joined(_reached(part, size, begin))
                writes.append((place.buffer, intervals, True))
                if not part.whole:
                    writes.append((place.buffer, _reached(part, size, begin), False))
        for name, buffer, part, size, begin in loads:
            own = stored.get(buffer, NOTHING)
            if own and isinstance(kernel, LibraryKernel):
                read = part.intervals.scaled(size, begin)
                self.read_and_written(name, buffer, read, writes, call)
            self.written(name, buffer, part, own, size, begin, call, cover)
        if made.partly:
            for number in call.writes:
                place = self.place(number)
                low, high = (x + place.begin for x in place.span)
                writes.append((place.buffer, Intervals.one(low, high), False))
        for buffer, intervals, surely in writes:
            b = self.buffers[buffer]
            if (
                surely
                and intervals
                and b.kind == "input"
                and b.index not in self.donated
            ):
                self.fail(f"it writes {self.buffers[buffer].label}", call)
            cover.write(buffer, intervals, surely=surely)

    def read_and_written(
        self,
        name: str,
        buffer: int,
        read: Intervals,
        writes: Sequence[tuple[int, Intervals, bool]],
        call: KernelCall,
    ) -> None:
        """Check that a product does not write over what it reads, but an addend."""
        for other, runs, _ in writes:
            common = runs.common(read) if other == buffer else NOTHING
            alike = common and not (runs.missing(read) or read.missing(runs))
            if common and not (name == "added" and alike):
                a, z = int(common.starts[0]), int(common.stops[0])
                label = self.buffers[buffer].label
                self.fail(
                    f"bytes {a} to {z} of {label}, read as {name}, it writes", call
                )

    def inside(
        self,
        part: Part,
        name: str,
        label: str,
        span: Span,
        size: int,
        offset: int,
        call: KernelCall,
    ) -> None:
        """Check that all elements of ``part`` lie in a buffer's ``span`` of bytes."""
        first, last = -((offset - span[0]) // size), (span[1] - offset) // size - 1
        for reach in part.reaches:
            if first <= reach.low and reach.high <= last:
                continue
            have = f"has {first} to {last}" if last >= first else "is empty"
            text = (
                f"elements {reach.low} to {reach.high} of argument {name} are touched, "
                f"and {label} {have} there ({span[1] - span[0]} bytes)"
            )
            if reach.exact:
                self.fail(text, call, reach.line)
            self.unproved(text, call, reach.line)

    def aligned(
        self, part: Part, name: str, size: int, start: int, call: KernelCall
    ) -> None:
        """Check the vectors of an argument, ``start`` bytes into aligned memory."""
        for reach in part.reaches:
            if reach.lanes == 1:
                continue
            nbytes = min(_VECTOR, reach.lanes * size)
            if reach.residue is None or (reach.residue * size + start) % nbytes:
                text = f"a vector of {reach.lanes} elements of {name} is not aligned"
                if reach.exact and reach.residue is not None:
                    self.fail(text, call, reach.line)
                self.unproved(text, call, reach.line)

    def written(
        self,
        name: str,
        buffer: int,
        part: Part,
        own: Intervals,
        size: int,
        begin: int,
        call: KernelCall,
        cover: Coverage,
    ) -> None:
        """Check that what is loaded was written, by earlier steps or this one."""
        b = self.buffers[buffer]
        intervals = part.intervals.scaled(size, begin)
        perhaps = cover.perhaps.get(buffer, NOTHING)
        missing = perhaps.joined(own).missing(intervals) if intervals else None
        if missing is not None:
            # What the call writes itself it may read.
            line = part.reaches[0].line
            self.fail(
                f"bytes {missing[0]} to {missing[1]} of {b.label} are read as {name}, "
                "and no step before has written them",
                call,
                line,
            )
        surely = cover.surely.get(buffer, NOTHING).joined(own)
        wanted = intervals if part.whole else _reached(part, size, begin)
        if surely.missing(wanted) is not None:
            self.unproved(f"whether {b.label}, read as {name}, is written", call)


def _reached(part: Part, size: int, begin: int) -> Intervals:
    """The bytes from the first to the last element that ``part`` may touch."""
    low = min(r.low for r in part.reaches)
    high = max(r.high for r in part.reaches) + 1
    return Intervals.one(low * size + begin, high * size + begin)


def _size(kind: str) -> int:
    return BY_SHORT_NAME[kind.removesuffix("*")].itemsize
