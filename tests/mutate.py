"""Mutation testing: change the source in small ways, and see whether tests notice.

    python -m tests.mutate --count 40 --seed 0 --rooms passes lowering primitives

Each mutant is one change of one expression (a comparison, an operator, a constant, a
condition), in a copy of the package. Stages run against the copy until one fails: the
mutant is killed. First come the tests named as its module, then generated programs,
then every test that runs the changed line, then more programs. A mutant that survives
shows behaviour that no test asserts, or is equivalent to the original.

Before the first mutant all tests run once without any, under ``coverage``, which
records the tests that run each line. What fails then is left out. That run also
compiles the kernels: each mutant starts with these objects, whose keys are what they
were compiled from. The record stays until the package or the tests change.

Survivors take longest: they pass all stages. With ``--seconds`` mutants that are not
killed by then are undecided, and count as if they had survived.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from coverage import CoverageData

from tests.fuzz.devices import install
from tests.fuzz.drawing import draw
from tests.fuzz.run import run_case
from tests.fuzz.worker import compiles, limit_of
from tests.mutants import ROOT, Mutant, mutants_of

PACKAGE = ROOT / "arrayfn"
WARM = ROOT / ".pytest_cache" / "mutate"  # objects compiled without a mutant
RECORD = WARM.with_suffix(".coverage")  # the tests that run each line
MEMORY = 12 << 30  # bytes of address space of a stage

# A stage is a command and its limit in seconds of CPU time: who hangs is killed by it.
Stage = tuple[tuple[str, ...], int]


_HANGS = (
    *("-o", "faulthandler_timeout=120"),
    *("-o", "faulthandler_exit_on_timeout=true"),
)


def programs(device: str, count: int) -> Stage:
    """Generated programs, until one fails."""
    seconds = 60 + 2 * count
    return ("-m", "tests.mutate", "--try-programs", device, str(count)), seconds


def pytest(*paths: str, chosen: Path | None = None, seconds: int = 900) -> Stage:
    """Tests of ``paths``, until one fails; ``chosen``: only ids in this file."""
    options = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow")
    if chosen is not None:
        options += ("-p", "tests.chosen", "--chosen", str(chosen))
    return ("-m", "pytest", *options, *_HANGS, *paths), seconds


# Rooms whose kernels for GPUs run in the emulator; all else runs without kernels.
EMULATED = ("lowering", "lowering/cuda")
ROOMS = (
    *("passes", "primitives", "transforms", "numpy"),
    *("lowering", "lowering/cuda", "lowering/scalars"),
)


def some_programs(room: str, count: int) -> tuple[Stage, ...]:
    """``count`` generated programs on each device that judges ``room``."""
    devices = ["unjitted", "emulator"] if room in EMULATED else ["unjitted"]
    return tuple(programs(device, count) for device in devices)


def told(stage: Stage) -> str:
    """What ``stage`` runs, without pytest's options."""
    words = stage[0]
    begin = words.index(_HANGS[-1]) + 1 if _HANGS[-1] in words else 2
    return " ".join(words[begin:])


def room_of(mutant: Mutant) -> str:
    """The longest of ROOMS that the module lies in."""
    module = mutant.path.relative_to(PACKAGE).as_posix()
    return max((r for r in ROOMS if module.startswith(r + "/")), key=len)


def mirrored(mutant: Mutant) -> Stage:
    """The examples of the mutant's module, and tests named as it or its package is."""
    names = {mutant.path.stem, mutant.path.parent.name} - {"__init__", "cuda"}
    names -= {part for room in ROOMS for part in room.split("/")}
    found = sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if any(name.strip("_") in path.stem for name in names)
    )
    return pytest(mutant.path.relative_to(ROOT).as_posix(), *found)


@contextmanager
def copied(mutant: Mutant | None) -> Generator[Path]:
    """A folder with the repository, its package changed by ``mutant``."""
    with tempfile.TemporaryDirectory(prefix="mutant_") as folder:
        there = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, there / "arrayfn", ignore=ignored)
        for name in ("tests", "docs", "examples", "notebooks", "pyproject.toml"):
            (there / name).symlink_to(ROOT / name)
        if mutant is not None:
            target = there / mutant.path.relative_to(ROOT)
            target.write_text(mutant.source(), encoding="utf-8")
            shutil.copytree(WARM, there / "cache", copy_function=_link)
        yield there


def _link(source: str, target: str) -> None:
    """The same file, if that may be: objects are replaced, never written to."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def succeeds(
    stage: Stage,
    there: Path,
    cache: Path,
    until: float = math.inf,
    log: Path = Path(os.devnull),
) -> bool:
    """Whether ``stage`` passes in the copy ``there``, within its time.

    TimeoutError if that is not known at the time ``until``.
    """
    command, seconds = stage
    if time.monotonic() >= until:
        raise TimeoutError
    environment = {
        **os.environ,
        "PYTHONPATH": str(there),
        "PYTHONDONTWRITEBYTECODE": "1",
        "ARRAYFN_CACHE_DIR": str(cache),
        "ARRAYFN_VERIFY": "1",
        "CUDA_VISIBLE_DEVICES": "",  # mutants are for the emulator
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=there,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))
    resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        limit = min(20 * seconds, until - time.monotonic())
        return process.wait(limit) in (0, 5)  # 5: there are no tests
    except subprocess.TimeoutExpired:
        if time.monotonic() >= until:
            raise TimeoutError from None
        return False  # it waits for something
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def verdict_on(
    mutant: Mutant, tests: Sequence[str], until: float
) -> tuple[Mutant, str, str]:
    """``mutant``, whether it is killed, and by which stage; ``tests`` run its line."""
    room = room_of(mutant)
    with copied(mutant) as there:
        stages = [mirrored(mutant), *some_programs(room, 60)]
        every: Stage | None = None
        if tests:
            (there / "chosen").write_text("\n".join(tests))
            modules = dict.fromkeys(test.partition("::")[0] for test in tests)
            every = pytest(
                *modules, chosen=there / "chosen", seconds=900 + 2 * len(tests)
            )
            stages.append(every)
        stages += some_programs(room, 300)
        for stage in stages:
            try:
                if not succeeds(stage, there, there / "cache", until):
                    by = f"{len(tests)} tests" if stage is every else told(stage)
                    return mutant, "killed", f"  ({by})"
            except TimeoutError:
                return mutant, "undecided", ""
    return mutant, "SURVIVES", f"  ({len(tests)} tests run the line)"


def try_programs(device: str, count: int) -> int:
    """Run generated programs in this process; 1 as soon as one fails."""
    install()
    for index in range(count):
        case = draw(0, index, limit_of(device))
        if run_case(case, device, compiles(device, index)).failed:
            return 1
    return 0


def unmutated(jobs: int) -> None:
    """Run all tests without a mutant, and record the lines that each of them runs.

    Nothing runs if neither the package nor the tests changed since. The record is the
    file RECORD of ``coverage``, with ids of tests as contexts.
    """
    digest = hashlib.sha256()
    for folder in (PACKAGE, ROOT / "tests"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    WARM.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = WARM.with_suffix(".sha256")
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    begin = time.perf_counter()
    log = WARM.with_suffix(".log")
    with copied(None) as there:
        settings = there / "coverage.ini"
        settings.write_text(
            "[run]\nrelative_files = true\nsource = arrayfn\n"
            f"data_file = {there / 'record'}\n"
        )
        (command, _), suite = pytest("tests"), ["--cov", "--cov-context=test"]
        suite += [f"--cov-config={settings}", "--cov-report=", "--maxfail=1000"]
        suite += ["-n", str(jobs), "--dist", "worksteal", "-rfE"]
        left_out = ("tests/fuzz", "tests/test_documentation.py", "tests/examples")
        suite += [f"--ignore={path}" for path in left_out]
        if not succeeds(((*command, *suite), 36_000), there, WARM, log=log):
            print(f"some tests fail without a mutant, and are left out: see {log}")
        if not (there / "record").exists():
            sys.exit(f"the tests do not run without a mutant: see {log}")
        shutil.copy2(there / "record", RECORD)
    print(f"{time.perf_counter() - begin:5.0f} s without a mutant", flush=True)
    stamp.write_text(digest.hexdigest())


def tests_of(mutants: Sequence[Mutant]) -> list[list[str]]:
    """The ids of the tests that run the line of each mutant, and pass without it.

    A line that runs at import alone defines a constant: any test of its module counts.
    """
    log = WARM.with_suffix(".log").read_text()
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", log, re.MULTILINE))
    record = CoverageData(str(RECORD))
    record.read()
    found: list[list[str]] = []
    for mutant in mutants:
        lines = record.contexts_by_lineno(str(mutant.path.relative_to(ROOT)))
        ran = {c for line in mutant.statement() for c in lines.get(line, ())} - {""}
        if not ran:
            ran = {context for line in lines.values() for context in line} - {""}
        tests = {context.rpartition("|")[0] for context in ran}
        found.append(sorted(tests - failed))
    return found


def sample(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants, drawn evenly from the ``rooms``, which take turns."""
    rng = random.Random(seed)
    drawn: list[tuple[int, int, Mutant]] = []
    for number, room in enumerate(rooms):
        paths = sorted((PACKAGE / room).rglob("*.py"))
        mutants = [m for path in paths for m in mutants_of(path) if room_of(m) == room]
        share = count // len(rooms) + (number < count % len(rooms))
        some = rng.sample(mutants, min(share, len(mutants)))
        drawn += [(turn, number, mutant) for turn, mutant in enumerate(some)]
    return [mutant for _, _, mutant in sorted(drawn, key=lambda entry: entry[:2])]


def main() -> int:
    """Draw a sample, test it, and print the score of each room and the survivors."""
    parser = argparse.ArgumentParser("python -m tests.mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--rooms",
        nargs="+",
        default=[
            "passes",
            "lowering",
            "lowering/cuda",
            "lowering/scalars",
            "primitives",
        ],
        choices=sorted(ROOMS),
    )
    parser.add_argument("--at", help="all mutants of a place, such as masks.py:47")
    parser.add_argument("--try-programs", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.try_programs:
        device, count = given.try_programs
        return try_programs(device, int(count))
    if given.at:
        paths = sorted(PACKAGE.rglob(given.at.rpartition(":")[0].rpartition("/")[2]))
        found = [m for path in paths for m in mutants_of(path)]
        drawn = [m for m in found if f"{given.at}: " in str(m)]
    else:
        drawn = sample(given.rooms, given.count, given.seed)
    rooms = list(dict.fromkeys(map(room_of, drawn)))
    unmutated(given.jobs)
    tests = tests_of(drawn)
    begin = time.monotonic()
    tally: Counter[tuple[str, str]] = Counter()
    with ThreadPoolExecutor(given.jobs) as pool:
        until = begin + given.seconds
        tried = [
            pool.submit(verdict_on, mutant, some, until)
            for mutant, some in zip(drawn, tests, strict=True)
        ]
        for future in as_completed(tried):
            mutant, verdict, by = future.result()
            tally[room_of(mutant), verdict] += 1
            print(f"{verdict:9} {mutant}{by}", flush=True)
    for room in rooms:
        print(f"{room}: {score(tally, [room])}")
    print(f"{score(tally, rooms)} in {time.monotonic() - begin:.0f} s")
    return 0


def score(found: Counter[tuple[str, str]], rooms: Sequence[str]) -> str:
    """How many mutants of ``rooms`` were killed.

    >>> score(Counter({("ir", "killed"): 3, ("ir", "undecided"): 1}), ["ir"])
    '3 of 4 killed (75 %), 1 undecided'
    """
    count = {
        verdict: sum(
            n for (room, v), n in found.items() if room in rooms and v == verdict
        )
        for verdict in ("killed", "SURVIVES", "undecided")
    }
    total = sum(count.values())
    text = f"{count['killed']} of {total} killed"
    if total:
        text += f" ({100 * count['killed'] / total:.0f} %)"
    left = count["undecided"]
    return f"{text}, {left} undecided" if left else text


if __name__ == "__main__":
    sys.exit(main())
