"""Many programs over many processes: counted, failures shrunk and printed."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

from tests.fuzz.case import Case
from tests.fuzz.devices import install
from tests.fuzz.drawing import draw
from tests.fuzz.run import CRASHED, PASSED, RAW, REFUSED, SLOW, WRONG, Outcome
from tests.fuzz.shrink import in_a_fork, shrink
from tests.fuzz.worker import compiles, limit_of

PROGRAM_SECONDS: Final = 120.0
SHRINK_SECONDS: Final = 25.0
MOST_SHRUNK: Final = 25
STEP: Final = 1 << 20


@dataclass(frozen=True)
class Failure:
    """A program that failed."""

    index: int
    outcome: Outcome


@dataclass
class Report:
    """What a campaign found."""

    device: str
    seed: int
    statuses: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def programs(self) -> int:
        """How many were run."""
        return sum(self.statuses.values())

    def add(self, index: int, outcome: Outcome) -> None:
        """Count one program."""
        self.statuses[outcome.status] += 1
        if outcome.status == REFUSED:
            self.refusals[outcome.signature] += 1
        elif outcome.failed:
            self.failures.append(Failure(index, outcome))

    def summary(self) -> str:
        """One line, and the reasons of refusals."""
        count = self.statuses
        rate = self.programs / max(self.seconds, 1e-9)
        lines = [
            (
                f"{self.device}, seed {self.seed}: {self.programs} programs, "
                f"{count[WRONG]} wrong, {count[RAW]} raw errors, "
                f"{count[CRASHED]} crashes, {count[SLOW]} timeouts, "
                f"{count[PASSED]} passed, {count[REFUSED]} refused; "
                f"{rate:.1f} programs/s"
            )
        ]
        lines += [f"  refused {n}: {why}" for why, n in self.refusals.most_common(8)]
        return "\n".join(lines)


@dataclass
class _Worker:
    process: subprocess.Popen[str]
    number: int
    next_index: int
    errors: IO[str]
    running: int | None = None
    since: float = 0.0


class Campaign:
    """Runs programs until their count, or the time, is up."""

    def __init__(
        self,
        device: str,
        seed: int,
        *,
        count: int = STEP,
        seconds: float = 1e9,
        jobs: int = 1,
        only: Sequence[str] = (),
        tell: Callable[[str], None] = print,
        command: Sequence[str] = (sys.executable, "-m", "tests.fuzz.worker"),
    ) -> None:
        self.device, self.seed, self.only = device, seed, list(only)
        self.count, self.seconds, self.jobs = count, seconds, jobs
        self.tell, self.command = tell, command
        self.report = Report(device, seed)
        self.selector = selectors.DefaultSelector()
        self.workers: list[_Worker] = []

    def run(self) -> Report:
        """Run them all."""
        start = time.monotonic()
        for number in range(min(self.jobs, self.count)):
            self._start(number, number)
        try:
            while self.workers and time.monotonic() - start < self.seconds:
                for key, _ in self.selector.select(0.5):
                    self._read(key.data)
                self._stop_slow_ones()
        finally:
            for worker in list(self.workers):
                self._end(worker)
        self.report.seconds = time.monotonic() - start
        return self.report

    def _start(self, number: int, first: int) -> None:
        given = {
            "device": self.device,
            "seed": self.seed,
            "first": first,
            "end": self.count,
            "step": self.jobs,
            "only": self.only,
        }
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        environment.setdefault("ARRAYFN_VERIFY", "1")
        environment.setdefault("NUMBA_NUM_THREADS", "2")
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- as long as it runs
        process = subprocess.Popen(
            [*self.command, json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        worker = _Worker(process, number, first, errors)
        assert process.stdout is not None
        self.selector.register(process.stdout, selectors.EVENT_READ, worker)
        self.workers.append(worker)

    def _read(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        line = worker.process.stdout.readline()
        if not line:
            self._died(worker)
            return
        said = json.loads(line)
        if "begin" in said:
            worker.running, worker.since = said["begin"], time.monotonic()
        elif "done" in said:
            # The next one begins at once: that line may be in the buffer already.
            worker.next_index = said["done"] + self.jobs
            more = worker.next_index < self.count
            worker.running = worker.next_index if more else None
            worker.since = time.monotonic()
            outcome = Outcome(said["status"], said["message"], said["signature"])
            self._add(said["done"], outcome)
        else:
            self._end(worker)
            if "leave" in said:
                self._start(worker.number, worker.next_index)

    def _died(self, worker: _Worker, outcome: Outcome | None = None) -> None:
        if outcome is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(10)  # before it is killed, to know how it ended
        index = worker.running
        if index is None:  # while it started, or between programs
            raise RuntimeError(
                f"a worker ended with status {worker.process.returncode} before a "
                f"program began; run python -m tests.fuzz.worker by hand"
            )
        if outcome is None:
            code = worker.process.returncode
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            worker.errors.seek(0)
            last = worker.errors.read().strip().rpartition("\n")[2]
            message = f"the process ended: {name}: {last[:200]}"
            outcome = Outcome(CRASHED, message, "crash")
        self._end(worker)
        self._add(index, outcome)
        self._start(worker.number, index + self.jobs)

    def _add(self, index: int, outcome: Outcome) -> None:
        self.report.add(index, outcome)
        if outcome.failed:
            self.tell(f"{self.seed}:{index} {outcome.status}: {outcome.message}")

    def _stop_slow_ones(self) -> None:
        now = time.monotonic()
        for worker in list(self.workers):
            if worker.running is not None and now - worker.since > PROGRAM_SECONDS:
                message = f"no result after {PROGRAM_SECONDS:.0f} s"
                worker.process.kill()
                self._died(worker, Outcome(SLOW, message, "timeout"))

    def _end(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        self.selector.unregister(worker.process.stdout)
        worker.process.kill()
        worker.process.stdout.close()
        worker.process.wait()
        worker.errors.close()
        self.workers.remove(worker)


def shrunk(
    device: str,
    seed: int,
    failure: Failure,
    only: Sequence[str] = (),
    seconds: float = SHRINK_SECONDS,
) -> tuple[Case, Outcome]:
    """The failing program, made small."""
    install()
    case = draw(seed, failure.index, limit_of(device), only)
    compiled = compiles(device, failure.index)
    outcome = in_a_fork(case, device, compiled)
    if not outcome.failed:
        return case, failure.outcome  # it takes what ran before it
    return shrink(case, device, outcome, seconds, compiled)


def different(failures: Sequence[Failure]) -> list[Failure]:
    """The first of each kind, wrong values and crashes several times."""
    seen: Counter[str] = Counter()
    kept: list[Failure] = []
    for failure in sorted(failures, key=lambda f: f.index):
        signature = failure.outcome.signature
        seen[signature] += 1
        if seen[signature] <= (1 if failure.outcome.status == RAW else 8):
            kept.append(failure)
    return kept[:MOST_SHRUNK]


def described(device: str, seed: int, failure: Failure, only: Sequence[str]) -> str:
    """A failure as a script that shows it."""
    case, outcome = shrunk(device, seed, failure, only)
    lines = [
        f"# {outcome.status} on {device}, seed {seed}:{failure.index}",
        f"# {outcome.message}",
        case.source(device),
    ]
    return "\n".join(lines)
