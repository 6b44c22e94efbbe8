"""A pytest plugin that runs SciPy's array-API tests on arrayfn; SciPy is not edited.

The fixture ``xp`` is ``arrayfn.numpy``. In the mode "jit" the functions that SciPy
marks as compilable run inside ``af.jit``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import pytest
from scipy._lib._array_api import xpx

import arrayfn.numpy as anp
import arrayfn.scipy.fft
from arrayfn.tracing import Tracer
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

_NAME: Final = anp.__name__


def pytest_configure() -> None:
    """Let tests read values, and SciPy's Fourier transforms take traced arrays."""
    read_values_in_tests()
    api: Any = importlib.import_module("scipy._lib._array_api")
    copied = api._xp_copy_to_numpy

    def copied_to_numpy(x: Any) -> Any:
        return np.array(x.value) if isinstance(x, Tracer) else copied(x)

    api._xp_copy_to_numpy = copied_to_numpy
    fft: Any = importlib.import_module("scipy.fft")
    fft.register_backend(arrayfn.scipy.fft)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the tests of array libraries, and those only that have no result yet."""
    done = finished()
    items[:] = [
        item
        for item in items
        if "xp" in getattr(item, "fixturenames", ()) and name_of(item) not in done
    ]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    """Give ``xp`` our namespace in NumPy's place."""
    if fixturedef.argname == "xp":
        conftest: Any = sys.modules["scipy.conftest"]
        conftest.xp_known_backends.add(_NAME)
        if COMPILED:
            conftest.xp_skip_eager_only_backends.add(_NAME)
            conftest.patch_lazy_xp_functions = _compiled_functions
        request.param = anp
    return (yield)


def _compiled_functions(request: Any, xp: Any) -> AbstractContextManager[None]:
    testing: Any = importlib.import_module(f"{xpx.__name__}.testing")
    return compiled_functions(request.module, testing._ufuncs_tags)
