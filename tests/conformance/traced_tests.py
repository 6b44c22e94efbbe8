"""What the pytest plugins for other projects' tests share: hooks and traced arrays.

Each test runs inside a trace with values, as under ``af.grad``, and every array that
it creates is a traced one. In the mode "jit" the functions under test run inside
``af.jit`` besides, where no value is known. A line of JSON per test goes to a file. The
environment has the mode (``ARRAYFN_TESTS_MODE``), the file (``ARRAYFN_TESTS_OUT``) and
the limit of a test in seconds (``ARRAYFN_TESTS_SECONDS``).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from scipy._lib._array_api import xpx

import arrayfn as af
from arrayfn.tracing import Tracer, constant, conversions
from arrayfn.tracing.frames import Frame
from tests.conformance.worker import TimeLimitError, where

helpers: Any = importlib.import_module(f"{xpx.__name__}._lib._utils._helpers")

COMPILED: Final = os.environ.get("ARRAYFN_TESTS_MODE") == "jit"
_OUT: Final = Path(os.environ.get("ARRAYFN_TESTS_OUT", os.devnull))
_SECONDS: Final = int(os.environ.get("ARRAYFN_TESTS_SECONDS", "60"))
_TEST: Final = re.compile(
    r"[./]tests[./]|^numpy\.testing|[./]conftest|^tests\.conf|extra\.testing|\._testing"
)
_ALIKE: Final = "jax.numpy"
"""The library of SciPy's list whose arrays are immutable and compiled, as ours."""


def read_values_in_tests() -> None:
    """Let code of tests convert traced arrays to NumPy's and to numbers."""
    refused, installed = Tracer.__array__, conversions._is_installed

    def to_numpy(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if self.value is not None and _TEST.search(caller):
            return np.array(self.value, dtype=dtype)
        return refused(self, dtype, copy)

    def is_installed(file: str) -> bool:
        return installed(file) and not _TEST.search(file)

    Tracer.__array__ = to_numpy
    conversions._is_installed = is_installed


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` inside ``af.jit``; traced arguments are inputs, others static."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        arrays, rest = helpers.pickle_flatten((args, kwargs), Tracer)
        structure: list[Any] = []

        @functools.partial(af.jit, device="reference")
        def inner(arrays: list[Any]) -> list[Any]:
            args, kwargs = helpers.pickle_unflatten(arrays, rest)
            result = function(*args, **kwargs)
            found, structure[:] = helpers.pickle_flatten(result, Tracer)
            return found

        # A call inside of a compiled function is part of its trace.
        found = inner([x if x.value is None else x.value for x in arrays])
        traced = [x if isinstance(x, Tracer) else constant(x) for x in found]
        return helpers.pickle_unflatten(traced, structure)

    return call


@contextmanager
def compiled_functions(module: Any, tags_of_ufuncs: Any) -> Iterator[None]:
    """Put functions inside ``af.jit`` that the tests' project marks as compilable.

    They are the marked functions that ``module``, a module of tests, uses.
    """
    before: list[tuple[Any, str, Any]] = []
    for each in (module, *getattr(module, "lazy_xp_modules", ())):
        for name, function in list(vars(each).items()):
            tags = getattr(function, "_lazy_xp_function", None)
            if tags is None and isinstance(function, np.ufunc):
                tags = tags_of_ufuncs.get(function)
            # The body of a generator runs after the call, outside of the trace.
            if inspect.isgeneratorfunction(function):
                continue
            if isinstance(tags, dict) and tags["jax_jit"]:
                before.append((each, name, function))
                setattr(each, name, compiled(function))
    try:
        yield
    finally:
        for each, name, function in before:
            setattr(each, name, function)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Generator[None, Any, Any]:
    """A trace with values around each test, and a limit of time."""

    def on_alarm(*_: object) -> None:
        raise TimeLimitError

    _write(item, status="started")
    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        with Frame("test", abstract=False, parent=None).entered():
            return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    """Write what came of a test."""
    report = yield
    if report.when != "call" and report.passed:
        return report
    if report.passed:
        _write(item, status="passed")
    elif report.skipped:
        _write(item, status="skipped", message=str(call.excinfo.value)[:300])
    else:
        error = call.excinfo.value
        _write(
            item,
            status="failed",
            type=type(error).__name__,
            message=_shown(item, error),
            where=where(error),
        )
    return report


def _shown(item: Any, error: BaseException) -> str:
    """The message, with SciPy's own reason and the innermost line of the project."""
    parts = [_excluded(item), str(error)[:500], _innermost(item, error)]
    return " | ".join(part for part in parts if part)


def _excluded(item: Any) -> str:
    """Why SciPy's own list leaves a test out for libraries like ours; empty if not."""
    for kind in ("skip", "xfail"):
        for mark in item.iter_markers(f"{kind}_xp_backends"):
            if mark.args == (_ALIKE,) or mark.kwargs.get("eager_only"):
                return f"SciPy leaves it out: {mark.kwargs.get('reason') or kind}"
    return ""


def _innermost(item: Any, error: BaseException) -> str:
    """The innermost line of the project outside of its tests and vendored libraries."""
    root = f"/{item.module.__name__.partition('.')[0]}/"
    place, found = error.__traceback__, ""
    while place is not None:
        file = place.tb_frame.f_code.co_filename
        if root in file and not re.search(r"/tests/|/_lib/|conftest", file):
            line = f"{file.rpartition(root)[2]}:{place.tb_lineno}"
            found = f"in {line} {place.tb_frame.f_code.co_name}"
        place = place.tb_next
    return found


def name_of(item: Any) -> str:
    """The test's file inside its project, and its name."""
    return f"{item.module.__name__}::{item.nodeid.partition('::')[2]}"


def finished() -> set[str]:
    """The names of the tests that the file of results has."""
    if not _OUT.is_file():
        return set()
    return {json.loads(line)["test"] for line in _OUT.read_text().splitlines()}


def _write(item: Any, **fields: Any) -> None:
    with _OUT.open("a") as lines:
        lines.write(json.dumps({"test": name_of(item), **fields}) + "\n")
