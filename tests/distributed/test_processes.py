"""The same programs over processes that meet through MPI, and their faults."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from arrayfn import Mesh, NamedSharding, distributed
from arrayfn import PartitionSpec as P
from tests.distributed.program_of_processes import BODIES

PROGRAM = Path(__file__).with_name("program_of_processes.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py"
    ),
]


def launched(count, folder, fault="none"):
    """The exit status, what was printed, and the seconds it took."""
    env = {**os.environ, "ARRAYFN_COLLECTIVE_TIMEOUT": "10", "ARRAYFN_VERIFY": "0"}
    env.pop("ARRAYFN_CPU_DEVICES", None)
    command = [sys.executable, "-m", "arrayfn", "launch", "-n", str(count)]
    start = time.monotonic()
    run = subprocess.run(
        [*command, str(PROGRAM), fault, str(folder)],
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
        check=False,
    )
    return run.returncode, run.stdout + run.stderr, time.monotonic() - start


@pytest.mark.parametrize("count", [2, 4])
def test_processes_compute_what_one_computes(count, tmp_path):
    status, text, _ = launched(count, tmp_path)
    assert status == 0, text
    assert [line for line in text.splitlines() if line in BODIES] == list(BODIES)
    assert "done" in text
    # What they saved is loaded by one process, on two devices.
    x = np.random.default_rng(0).standard_normal((8, 16))
    there = NamedSharding(Mesh((2,), ("j",)), P("j"))
    found = distributed.load(tmp_path, {"x": there, "step": None})
    np.testing.assert_array_equal(np.asarray(found["x"]), x)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "and ended because rank 1 raised ValueError: rank 1 is tired"),
        ("kill", ""),
        ("kill in save", ""),
        ("late", "within 10 s"),
        ("differ", "is at another collective"),
    ],
)
def test_a_rank_that_fails_ends_the_others(fault, message, tmp_path):
    distributed.save(tmp_path, {"x": np.arange(3)})
    status, text, seconds = launched(2, tmp_path, fault)
    assert distributed.load(tmp_path, {"x": None})["x"].tolist() == [0, 1, 2]
    assert status != 0
    assert "done" not in text
    assert message in text
    if message:
        assert "all_reduce over 'i' at program_of_processes.py:" in text
    assert seconds < 200
