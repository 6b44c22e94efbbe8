"""``with profile() as p``: where the time of compiled functions goes.

Each step of a plan is measured where it runs: on a CPU by readings of the clock between
the steps, on a GPU by events. The time of a step is shared among the user's lines that
it computes, by their operations. What a call takes besides its steps (arguments,
memory, Python), what compiling takes and what Python does between calls have rows of
their own, so the rows add up to the wall clock.
"""

from __future__ import annotations

import linecache
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from typing_extensions import override

from arrayfn import dtypes
from arrayfn.backends.base import TimedExecutable, TimingBackend
from arrayfn.compilation.compiled import with_faults
from arrayfn.compilation.watching import Watched, watched
from arrayfn.display.markup import page
from arrayfn.errors import SourceLocation, plural
from arrayfn.lowering.plan import KernelCall, Origin, numbered
from arrayfn.records import frozen, record
from arrayfn.tools.compare import roof
from arrayfn.tools.measured import Roof
from arrayfn.tools.profile_shown import profile_html, profile_text
from arrayfn.tools.profile_trace import write_trace

_MESH: Final = "mesh"  # of a CPU's devices, which share the machine: it has no roof
_ROOF_DTYPES: Final = (dtypes.float64, dtypes.int64, dtypes.complex128)


@frozen
class StepTime:
    """The total of all runs of one step of a plan.

    Attributes:
        function: the name of the compiled function.
        backend: the backend that ran it.
        step: the number of the step in the plan.
        kernel: the name of the kernel.
        runs: the number of runs.
        seconds, bytes, operations: the totals of all runs.
        origins: the equations that the step computes.
        share_of_roof: the time that all runs would take at the machine's roof, of
            memory or of arithmetic, whichever is longer, divided by ``seconds``. It may
            exceed 1 if the data is in a cache, and is None for a step without counted
            bytes and operations.
    """

    function: str
    backend: str
    step: int
    kernel: str
    runs: int
    seconds: float
    bytes: int
    operations: int
    origins: tuple[Origin, ...]
    share_of_roof: float | None

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines that the step computes, those with most operations first."""
        shares = sorted(line_shares(self.origins).items(), key=lambda x: -x[1])
        return tuple(str(line) for line, _ in shares)


@frozen
class LineTime:
    """A line of the user's code, with its share of the time of the steps it is in."""

    location: SourceLocation | None
    seconds: float
    operations: int

    @override
    def __str__(self) -> str:
        """Return ``file:line``."""
        return str(self.location) if self.location else "(no line)"

    @property
    def text(self) -> str:
        """The text of the line in its file, or an empty text if that is not known."""
        if self.location is None:
            return ""
        return linecache.getline(self.location.file, self.location.line).strip()


@frozen
class CallTime:
    """One call of a jitted function: its start and duration, in seconds.

    ``begin`` counts from the start of the profile. ``steps`` has (number, kernel,
    seconds) of each step of the plan.
    """

    function: str
    begin: float
    seconds: float
    steps: tuple[tuple[int, str, float], ...]


@record
class Profile:
    """The measurements of ``profile()``, a context manager.

    ``seconds`` is the elapsed time of the block, without the preparation of the
    measurement. ``compiling`` is the time of tracing and compiling. ``calling`` is the
    time of calls outside their steps. ``outside`` is the remaining time, which Python
    takes. ``calls`` has all calls in order. ``_runs`` has the steps of each compiled
    function, by the id of its ``Watched`` record.
    """

    seconds: float = 0.0
    compiling: float = 0.0
    calls: list[CallTime] = field(default_factory=list[CallTime])
    _runs: dict[int, _Run] = field(default_factory=dict[int, "_Run"], repr=False)
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _begin: float = 0.0  # the clock at the start
    _preparing: float = 0.0  # seconds that the measurement itself has taken

    def __enter__(self) -> Self:
        """Begin: ``_call`` runs all compiled functions of the block."""
        self._stack.enter_context(watched(self._call))
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """End the measurement."""
        self.seconds = time.perf_counter() - self._begin - self._preparing
        self._stack.close()

    @property
    def steps(self) -> tuple[StepTime, ...]:
        """The steps of all functions that ran, the longest first."""
        rows = [row for run in self._runs.values() for row in run.rows()]
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    @property
    def lines(self) -> tuple[LineTime, ...]:
        """The user's lines, those with the most time first.

        The time of a step is divided among its lines by their operations. A step
        without lines counts for the line None.
        """
        seconds: dict[SourceLocation | None, float] = {}
        done: dict[SourceLocation | None, int] = {}
        for row in self.steps:
            shares = line_shares(row.origins) or {None: 1.0}
            for line, share in shares.items():
                seconds[line] = seconds.get(line, 0.0) + share * row.seconds
            for origin in row.origins:
                count = done.get(origin.source, 0)
                done[origin.source] = count + row.runs * origin.operations
        rows = (LineTime(line, t, done.get(line, 0)) for line, t in seconds.items())
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    @property
    def calling(self) -> float:
        """The seconds of calls outside their steps."""
        total = sum(call.seconds for call in self.calls)
        return total - sum(row.seconds for row in self.steps)

    @property
    def outside(self) -> float:
        """The seconds outside compiled functions and their compilation."""
        return self.seconds - self.compiling - sum(c.seconds for c in self.calls)

    @property
    def roofs(self) -> dict[str, Roof]:
        """The roof of each backend that ran."""
        names = {row.backend for row in self.steps} - {_MESH}
        return {name: roof(name) for name in names}

    @override
    def __str__(self) -> str:
        """Return the tables of steps and lines as text."""
        return profile_text(self)

    @override
    def __repr__(self) -> str:
        """Return a line with the seconds and the numbers of calls and steps."""
        return (
            f"<Profile: {self.seconds:.3g} s, {len(self.calls)} calls, "
            f"{plural(len(self.steps), 'step')}>"
        )

    def _repr_html_(self) -> str:
        """Return the tables and the roofline chart as HTML, for notebooks."""
        return profile_html(self)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write a page (``.html``), or a trace (``.json``).

        Perfetto (ui.perfetto.dev) and Chrome show the trace. Raises ValueError for
        another suffix.
        """
        place = Path(file)
        if place.suffix == ".json":
            write_trace(self, place)
        elif place.suffix == ".html":
            place.write_text(page("arrayfn profile", profile_html(self)), "utf-8")
        else:
            raise ValueError(f"a profile is saved as .html or .json, not {place.name}")

    def _call(self, entry: Watched, arrays: tuple[Any, ...]) -> Sequence[Any]:
        """Run ``entry`` on ``arrays``, and record the times of its steps.

        The first call prepares the measurement, whose time is not counted. If the
        function was compiled inside the block, the time of compiling is added.
        """
        run = self._runs.get(id(entry))
        if run is None:
            begin = time.perf_counter()
            run = self._runs[id(entry)] = _Run(entry)
            self._preparing += time.perf_counter() - begin
            if entry.began > self._begin:
                self.compiling += entry.seconds
        before = run.taken()
        begin = time.perf_counter()
        results = run.run(arrays)
        seconds = time.perf_counter() - begin
        self.calls.append(
            CallTime(run.name, begin - self._begin, seconds, run.since(before))
        )
        return results


class _Run:
    """A compiled function that is being measured, and its steps.

    ``timed`` is the executable that measures steps, None if the backend has none.
    ``run`` calls the function.
    """

    def __init__(self, entry: Watched) -> None:
        """Load ``entry`` again so that its steps are timed, if its backend can."""
        self.entry = entry  # while it lives, no other object has its id
        self.name = entry.compiled.name
        self.timed: TimedExecutable | None = None
        run = entry.run
        if isinstance(entry.backend, TimingBackend):
            self.timed = entry.backend.load_timed(entry.compiled)
            run = with_faults(self.timed, entry.sites)
        self.run = run
        self.steps = {
            number: step
            for number, step in numbered(entry.compiled.plan.steps)
            if isinstance(step, KernelCall)
        }

    def taken(self) -> dict[int, tuple[int, float]]:
        """Return (runs, total seconds) of each step so far, by its number."""
        return {} if self.timed is None else dict(self.timed.times_of_steps())

    def since(
        self, before: dict[int, tuple[int, float]]
    ) -> tuple[tuple[int, str, float], ...]:
        """Return (number, kernel, seconds since ``before``) of each step.

        ``before`` is an earlier result of ``taken``.
        """
        return tuple(
            (step, self.steps[step].kernel, total - before.get(step, (0, 0.0))[1])
            for step, (_, total) in self.taken().items()
        )

    def rows(self) -> Iterator[StepTime]:
        """Yield a row of the profile for each step of the plan."""
        if self.timed is None:
            return
        plan, backend = self.entry.compiled.plan, self.timed.backend
        for number, (runs, seconds) in self.taken().items():
            step = self.steps[number]
            nbytes, done = runs * plan.bytes_of(step), runs * step.operations
            # Steps that write 64-bit numbers are compared with the roof of float64.
            written = [plan.buffers[k].type.dtype for k in step.writes]
            double = any(dtype in _ROOF_DTYPES for dtype in written)
            at_roof = 0.0  # the seconds that all runs would take at the roof
            if backend != _MESH:
                top = roof(backend, np.float64 if double else np.float32)
                at_roof = max(nbytes / top.bytes, done / top.flops)
            yield StepTime(
                function=self.name,
                backend=backend,
                step=number,
                kernel=step.kernel,
                runs=runs,
                seconds=seconds,
                bytes=nbytes,
                operations=done,
                origins=step.origins,
                share_of_roof=at_roof / seconds if at_roof and seconds else None,
            )


def line_shares(origins: Sequence[Origin]) -> dict[SourceLocation | None, float]:
    """Return the fraction of a step's operations that each of the user's lines has.

    Without operations, each origin has the same share.
    """
    total = sum(origin.operations for origin in origins)
    shares: dict[SourceLocation | None, float] = {}
    for origin in origins:
        weight = origin.operations / total if total else 1 / len(origins)
        shares[origin.source] = shares.get(origin.source, 0.0) + weight
    return shares


def profile() -> Profile:
    """Measure the calls of compiled functions in a ``with`` block.

    ``steps`` has a row for each step of their plans. ``lines`` has a row for each line
    of the user's code. ``print(p)`` shows both, with the measured limits of the
    machine. A notebook shows them with a roofline chart, and ``p.save("trace.json")``
    writes a trace for Perfetto. The rows add up to the elapsed time, ``p.seconds``.

    Results have the same bits as without profiling. Calls are a little slower, because
    the clock is read after each step, and a GPU launches the steps one by one. A
    backend without plans (``"reference"``) is measured call by call. For a mesh, each
    row is the mean over its devices. The row of a collective includes the wait for
    other members.

    >>> import numpy as np
    >>> import arrayfn as af, arrayfn.numpy as anp
    >>> f = af.jit(lambda x, w: anp.sum(anp.tanh(x @ w)))
    >>> with profile() as p:
    ...     for _ in range(3):
    ...         _ = f(np.ones((64, 32)), np.ones((32, 16)))
    >>> {row.kernel: (row.runs, row.operations) for row in p.steps}["gemm_f64"]
    (3, 196608)
    >>> len(p.calls), p.seconds > sum(row.seconds for row in p.steps)
    (3, True)
    """
    return Profile()
