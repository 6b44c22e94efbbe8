"""A pytest plugin that runs einops' own tests on arrayfn; einops is not edited.

The one library that einops tests is ours. In the mode "jit" each call of an operation
runs inside ``af.jit``.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from tests.conformance.traced_tests import (
    COMPILED,
    compiled,
    finished,
    name_of,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    read_values_in_tests,
)

__all__ = ["pytest_runtest_makereport", "pytest_runtest_protocol"]

_OPERATIONS: Final = ("rearrange", "reduce", "repeat", "einsum", "pack", "unpack")


def pytest_configure() -> None:
    """Make ours the library that the tests collect, before they are imported."""
    read_values_in_tests()
    backends: Any = importlib.import_module("einops._backends")
    tests: Any = importlib.import_module("einops.tests")
    ours = backends._arrayfn_backend

    def collect_test_backends(symbolic: bool = False, layers: bool = False) -> Any:
        return [] if symbolic or layers else [ours()]

    tests.collect_test_backends = collect_test_backends


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the tests that have no result yet; compile what they call."""
    done = finished()
    items[:] = [item for item in items if name_of(item) not in done]
    if COMPILED:
        for module in {item.module for item in items}:
            for name in _OPERATIONS:
                if hasattr(module, name):
                    setattr(module, name, compiled(getattr(module, name)))
