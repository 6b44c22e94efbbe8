"""A pytest plugin that runs array-api-extra's own tests on arrayfn, in NumPy's place.

In the mode "jit" the functions that array-api-extra marks as compilable run inside
``af.jit``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

import arrayfn.numpy as anp
from tests.conformance.traced_tests import (
    COMPILED,
    compiled_functions,
    finished,
    name_of,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    read_values_in_tests,
)

__all__ = ["pytest_runtest_makereport", "pytest_runtest_protocol"]


def pytest_configure() -> None:
    """Let tests read values."""
    read_values_in_tests()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep NumPy's case of each test, unless it has a result."""
    done = finished()
    items[:] = [
        item
        for item in items
        if str(getattr(getattr(item, "callspec", None), "params", {}).get("library"))
        == "Backend.NUMPY"
        and name_of(item) not in done
    ]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    """Give ``xp`` our namespace."""
    given = yield
    if fixturedef.argname != "xp":
        return given
    if COMPILED:
        functions = compiled_functions(request.module, {})
        functions.__enter__()
        request.addfinalizer(lambda: functions.__exit__(None, None, None))
    fixturedef.cached_result = (anp, *fixturedef.cached_result[1:])
    return anp
