"""``ARRAYFN_LOG``: which records are printed."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import arrayfn as af
from arrayfn import logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    loggers = (logs.COMPILE, logs.RETRACE, logs.CACHE)
    before = [(x.level, x.handlers[:], x.propagate) for x in loggers]
    yield
    for logger, (level, handlers, propagate) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


def test_what_is_named_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("retrace")
    double = af.jit(lambda x: 2 * x)
    double(np.ones(2))
    double(np.ones(3))
    assert capsys.readouterr().err == (
        "arrayfn.retrace: function: x is f64[3], not f64[2]\n"
    )
    logs.configure("compile, cache")
    double(np.ones(4))
    assert "arrayfn.compile: function for cpu: 1 kernel in " in capsys.readouterr().err


def test_all_and_unknown_names() -> None:
    with pytest.warns(
        RuntimeWarning, match="names retraces; it takes compile, retrace"
    ):
        logs.configure("retraces,compile")
    assert logs.COMPILE.level == logging.INFO
    logs.configure("all")
    assert logs.CACHE.level == logging.INFO


def test_nothing_is_printed_unless_asked_for() -> None:
    code = "import numpy as np, arrayfn as af; af.jit(lambda x: x + 1)(np.ones(2))"
    made = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert made.stdout == made.stderr == ""
