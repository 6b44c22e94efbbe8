"""What examples in docstrings use without importing it, and the machine they show."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.lowering.cpu import machine

ROOT: Final = Path(__file__).parent


def pytest_collect_file(file_path: Path) -> None:
    """Import the package of a module of arrayfn, before pytest imports the module.

    Otherwise pytest imports the package only on the way, runs the module a second time,
    and puts it in the place of a function of the same name, such as ``random.bits``.
    """
    if ROOT / "arrayfn" in file_path.parents:
        importlib.import_module(".".join(file_path.parent.relative_to(ROOT).parts))


@pytest.fixture(autouse=True)
def names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    """``np``, ``af`` and ``anp``, as on the first page of the documentation."""
    doctest_namespace.update(np=np, af=af, anp=anp)


@pytest.fixture
def machine_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are those of a machine without AVX-512, as examples and pages show them."""
    monkeypatch.setattr(machine, "vector_bytes", lambda: 32)


@pytest.fixture(autouse=True)
def machine_of_docstrings(request: pytest.FixtureRequest) -> None:
    """Docstrings show plans of ``machine_of_examples``."""
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("machine_of_examples")
