"""What users are told about their mistakes: the programs of ``mistakes.toml``."""

from __future__ import annotations

import tomllib
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn, optim, random, tracebacks

FILE = "mistake.py"
TABLE = tomllib.loads(
    Path(__file__).with_suffix(".toml").with_stem("mistakes").read_text("utf-8")
)["mistake"]
NAMES = {
    "af": af,
    "anp": anp,
    "lax": lax,
    "nn": nn,
    "np": np,
    "optim": optim,
    "random": random,
}


def raised(code: str) -> Exception:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(code, FILE, "exec"), dict(NAMES))
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def test_there_are_many_mistakes() -> None:
    assert len(TABLE) >= 120
    names = [row["name"] for row in TABLE]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_an_error_names_the_line_and_the_remedy_and_hides_the_library(
    row: dict[str, Any],
) -> None:
    code = row["code"].strip("\n")
    lines = enumerate(code.splitlines(), 1)
    (line,) = [k for k, text in lines if text.endswith("# here")]
    error = raised(code)
    assert type(error).__name__ == row["error"]
    assert row["says"] in str(error)
    tracebacks.shorten_all(error)
    shown = traceback.extract_tb(error.__traceback__)[1:]  # without this file
    assert {frame.filename for frame in shown} == {FILE}
    # Python's own errors, and those of files that cannot be read, name no line.
    named = str(error).startswith(f"{FILE}:{line}: ")
    assert named or (shown[-1].lineno == line and FILE not in str(error))
