"""``python -m arrayfn launch -n 4 script.py``: one program in several processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from arrayfn.errors import BackendError


def run(processes: int, command: Sequence[str]) -> int:
    """Run a Python script in ``processes`` processes; return the exit status.

    ``command`` is the script and its arguments. Raises BackendError if MPI is missing.
    Open MPI refuses more processes than processors, and the user root, unless options
    allow them.
    """
    launcher = _launcher()
    version = subprocess.run(
        [launcher, "--version"], capture_output=True, text=True, check=False
    ).stdout
    options: list[str] = []
    if "Open MPI" in version or "OpenRTE" in version:
        options = ["--oversubscribe"]
        if os.geteuid() == 0:
            options.append("--allow-run-as-root")
    line = [launcher, *options, "-n", str(processes), sys.executable, *command]
    return subprocess.run(line, check=False).returncode


def _launcher() -> str:
    """Return the path of ``mpiexec``: beside Python's executable, or in the PATH.

    Raises BackendError if there is none.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if launcher is None:
        raise BackendError(
            "several processes are started by mpiexec, which is not here; install MPI "
            "with pip install 'arrayfn[mpi]'"
        )
    return launcher
