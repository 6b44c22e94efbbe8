"""Mutation testing: change the source in small ways, and see whether tests notice.

    python -m tests.mutate --count 40 --seed 0 --rooms passes lowering primitives

Each mutant is one change of one expression (a comparison, an operator, a constant, a
condition), in a copy of the package. Stages of its room run against the copy, the
quickest first, until one fails: the mutant is killed. A stage is a run of generated
programs or one of pytest. A mutant that survives shows behaviour that no test asserts,
or is equivalent to the original.

Before the first mutant each stage runs once without any, so that what fails is known to
fail for the mutant. That also compiles the kernels: each mutant starts with a copy of
these objects, whose keys are what they were compiled from.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.devices import install
from tests.fuzz.drawing import draw
from tests.fuzz.run import run_case
from tests.fuzz.worker import compiles, limit_of
from tests.mutants import ROOT, Mutant, mutants_of

PACKAGE = ROOT / "arrayfn"
WARM = ROOT / ".pytest_cache" / "mutate"  # objects compiled without a mutant
MEMORY = 12 << 30  # bytes of address space of a stage

# A stage is a command and its limit in seconds of CPU time: who hangs is killed by it.
Stage = tuple[tuple[str, ...], int]


_HANGS = (
    *("-o", "faulthandler_timeout=120"),
    *("-o", "faulthandler_exit_on_timeout=true"),
)


def programs(device: str, count: int) -> Stage:
    """Generated programs, until one fails."""
    return ("-m", "tests.mutate", "--try-programs", device, str(count)), 60


def pytest(*paths: str, slow: bool = False) -> Stage:
    """Tests, until one fails."""
    marked = () if slow else ("-m", "not slow")
    options = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", *marked)
    return ("-m", "pytest", *options, *_HANGS, *paths), 900


_UNJITTED = programs("unjitted", 60)
_EMULATOR = programs("emulator", 40)
_STRUCTURE = pytest(
    *(f"tests/lowering/test_{name}.py" for name in ("golden_kernels", "fusion")),
    *(f"tests/lowering/test_{name}.py" for name in ("templates", "in_place", "memory")),
)
_RANDOM = pytest("tests/test_random_programs.py", "tests/test_checks.py", "tests/lax")
STAGES: dict[str, tuple[Stage, ...]] = {
    "passes": (
        pytest("tests/passes"),
        _UNJITTED,
        _STRUCTURE,
        pytest("tests/transforms"),
        _RANDOM,
        programs("unjitted", 300),
        pytest("tests/lowering"),
        pytest("tests/backends"),
    ),
    "primitives": (
        _UNJITTED,
        pytest("tests/primitives"),
        pytest("tests/transforms", "tests/functions", "tests/test_custom.py"),
        pytest("tests/numpy", "tests/linalg"),
        _RANDOM,
        pytest("tests/lowering", "tests/nn", "tests/passes"),
    ),
    "transforms": (
        pytest("tests/transforms", "tests/functions"),
        _UNJITTED,
        _RANDOM,
        pytest("tests/test_custom.py", "tests/lowering"),
    ),
    "lowering/cuda": (
        _EMULATOR,
        pytest("tests/backends"),
        pytest("tests/lowering"),
        programs("emulator", 200),
    ),
    "lowering/scalars": (
        pytest("tests/lowering/test_scalars.py", "tests/lowering/test_vector_math.py"),
        pytest("tests/scipy/test_special.py", "tests/scipy/test_accuracy.py"),
        pytest("tests/lowering", "tests/numpy"),
    ),
    "lowering": (
        _UNJITTED,
        _EMULATOR,
        _STRUCTURE,
        pytest("tests/lowering"),
        pytest("tests/backends", "tests/test_jit_donation.py"),
        pytest("tests/linalg", "tests/numpy"),
        _RANDOM,
        programs("unjitted", 300),
    ),
    "numpy": (
        _UNJITTED,
        pytest("tests/numpy"),
        pytest("tests/tools/test_coverage.py", "tests/test_errors.py"),
    ),
}


def told(stage: Stage) -> str:
    """What ``stage`` runs, without pytest's options."""
    words = stage[0]
    begin = words.index(_HANGS[-1]) + 1 if _HANGS[-1] in words else 2
    return " ".join(words[begin:])


def room_of(mutant: Mutant) -> str:
    """The longest key of STAGES that the module lies in."""
    module = mutant.path.relative_to(PACKAGE).as_posix()
    return max((r for r in STAGES if module.startswith(r + "/")), key=len)


def mirrored(mutant: Mutant) -> Stage:
    """The examples of the mutant's module, and tests named as it or its package is."""
    names = {mutant.path.stem, mutant.path.parent.name} - {"__init__", "cuda"}
    names -= {part for room in STAGES for part in room.split("/")}
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
            shutil.copytree(WARM, there / "cache")
        yield there


def succeeds(stage: Stage, there: Path, cache: Path) -> bool:
    """Whether ``stage`` passes in the copy ``there``, within its time."""
    command, seconds = stage
    environment = {
        **os.environ,
        "PYTHONPATH": str(there),
        "PYTHONDONTWRITEBYTECODE": "1",
        "ARRAYFN_CACHE_DIR": str(cache),
        "ARRAYFN_VERIFY": "1",
    }
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=there,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))
    resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        return process.wait(20 * seconds) in (0, 5)  # 5: there are no tests
    except subprocess.TimeoutExpired:  # it waits for something
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def killer(mutant: Mutant) -> Stage | None:
    """The first stage that notices ``mutant``."""
    with copied(mutant) as there:
        for stage in dict.fromkeys([mirrored(mutant), *STAGES[room_of(mutant)]]):
            if not succeeds(stage, there, there / "cache"):
                return stage
    return None


def try_programs(device: str, count: int) -> int:
    """Run generated programs in this process; 1 as soon as one fails."""
    install()
    for index in range(count):
        case = draw(0, index, limit_of(device))
        if run_case(case, device, compiles(device, index)).failed:
            return 1
    return 0


def unmutated(stages: Sequence[Stage]) -> None:
    """Check that ``stages`` pass without a mutant, unless that is known already."""
    digest = hashlib.sha256(repr(stages).encode())
    for folder in (PACKAGE, ROOT / "tests"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    WARM.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = WARM.with_suffix(".sha256")
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    with copied(None) as there:
        for stage in stages:
            begin = time.perf_counter()
            if not succeeds(stage, there, WARM):
                sys.exit(f"fails without a mutant: {told(stage)}")
            print(f"{time.perf_counter() - begin:5.0f} s {told(stage)}")
    stamp.write_text(digest.hexdigest())


def sample(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants, drawn evenly from the ``rooms``."""
    rng = random.Random(seed)
    drawn: list[Mutant] = []
    for number, room in enumerate(rooms):
        paths = sorted((PACKAGE / room).rglob("*.py"))
        mutants = [m for path in paths for m in mutants_of(path) if room_of(m) == room]
        share = count // len(rooms) + (number < count % len(rooms))
        drawn += rng.sample(mutants, min(share, len(mutants)))
    return drawn


def main() -> int:
    """Draw a sample, test it, and print the score of each room and the survivors."""
    parser = argparse.ArgumentParser("python -m tests.mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
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
        choices=sorted(STAGES),
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
    unmutated(list(dict.fromkeys(stage for room in rooms for stage in STAGES[room])))
    begin = time.perf_counter()
    killed = dict.fromkeys(rooms, 0)
    total = dict.fromkeys(rooms, 0)
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, stage in zip(drawn, pool.map(killer, drawn), strict=True):
            total[room_of(mutant)] += 1
            killed[room_of(mutant)] += stage is not None
            by = "" if stage is None else f"  ({told(stage)})"
            print("killed  " if by else "SURVIVES", f"{mutant}{by}", flush=True)
    for room in rooms:
        print(f"{room}: {killed[room]} of {total[room]} killed")
    seconds = time.perf_counter() - begin
    print(f"{sum(killed.values())} of {len(drawn)} killed in {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
