"""The same programs over processes that meet through MPI, and their faults."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.program_of_processes import BODIES

PROGRAM = Path(__file__).with_name("program_of_processes.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py"
    ),
]


def launched(count, fault="none"):
    """The exit status, what was printed, and the seconds it took."""
    env = {**os.environ, "ARRAYFN_COLLECTIVE_TIMEOUT": "10", "ARRAYFN_VERIFY": "0"}
    env.pop("ARRAYFN_CPU_DEVICES", None)
    command = [sys.executable, "-m", "arrayfn", "launch", "-n", str(count)]
    start = time.monotonic()
    run = subprocess.run(
        [*command, str(PROGRAM), fault],
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
        check=False,
    )
    return run.returncode, run.stdout + run.stderr, time.monotonic() - start


@pytest.mark.parametrize("count", [2, 4])
def test_processes_compute_what_one_computes(count):
    status, text, _ = launched(count)
    assert status == 0, text
    assert [line for line in text.splitlines() if line in BODIES] == list(BODIES)
    assert "done" in text


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "and ended because rank 1 raised ValueError: rank 1 is tired"),
        ("kill", ""),
        ("late", "within 10 s"),
        ("differ", "is at another collective"),
    ],
)
def test_a_rank_that_fails_ends_the_others(fault, message):
    status, text, seconds = launched(2, fault)
    assert status != 0
    assert "done" not in text
    assert message in text
    if message:
        assert "all_reduce over 'i' at program_of_processes.py:" in text
    assert seconds < 200
