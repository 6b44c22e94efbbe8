"""What all tests share: hypothesis profiles, and golden files with an update switch."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import HealthCheck, settings

import arrayfn as af
from arrayfn.backends.registry import BACKENDS
from tests.backends.device import SimulatedBackend

# The same examples on every machine, however slow; `--hypothesis-profile explore` looks
# for others.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore",
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

# Every plan that a test makes is proved, or run with checked memory.
os.environ.setdefault("ARRAYFN_VERIFY", "1")
# JAX takes most of a GPU's memory at its first use unless it is told not to.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# The CPU counts as so many devices.
os.environ.setdefault("ARRAYFN_CPU_DEVICES", "8")

SIMULATED = SimulatedBackend()

_GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the texts that tests compare with tests/golden",
    )
    parser.addoption(
        "--device",
        default=SIMULATED.name,
        help="where tests of arrays on a device run: simulated, or cuda",
    )


_PLANS = [0, 0, 0]  # proved, run with checked memory, neither


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Count the plans that this process has looked at."""
    found = importlib.import_module("arrayfn.lowering.verify").COUNTS
    counts = (found.proved, found.run, found.unproved)
    output = getattr(session.config, "workeroutput", None)
    if output is None:
        _add(counts)
    else:
        output["plans"] = counts


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a worker has counted."""
    _add(getattr(node, "workeroutput", {}).get("plans", (0, 0, 0)))


def _add(counts: Sequence[int]) -> None:
    for k, count in enumerate(counts):
        _PLANS[k] += count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many plans were proved, and how many were not."""
    proved, run, neither = _PLANS
    terminalreporter.write_line(
        f"plans: {proved} proved, {run} run with checked memory, {neither} neither"
    )


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device that ``--device`` names."""
    monkeypatch.setitem(BACKENDS, SIMULATED.name, SIMULATED)
    return request.config.getoption("--device")


@pytest.fixture(scope="session")
def one_lapack() -> None:
    """Skip where NumPy's LAPACK finds other eigenvectors than SciPy's.

    A vector is an eigenvector with any sign, and versions of LAPACK differ in it. One
    matrix alone goes to SciPy's, many to NumPy's.
    """
    for seed in range(20):
        x = np.random.default_rng(seed).normal(size=(20, 20))
        of_numpy, of_scipy = np.linalg.eig(x)[1], scipy.linalg.eig(x)[1]
        if not np.allclose(of_numpy, of_scipy, atol=1e-9):
            pytest.skip("NumPy's LAPACK and SciPy's give eigenvectors other signs")


@pytest.fixture
def there(device: str) -> Callable[[Any], Any]:
    """``there(x)``: a pytree of arrays on ``device``."""
    return lambda x: af.device_put(x, device)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)`` asserts that ``golden/name.txt`` holds ``text``."""
    update = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        path = _GOLDEN / f"{name}.txt"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: run pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return check
