"""Tracebacks show the user's lines alone, unless all is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, tracebacks
from arrayfn.errors import ArrayfnError

X = np.ones((2, 3))


def raised(call: Any) -> BaseException:
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def files(error: BaseException) -> list[str]:
    trace = error.__traceback__
    found: list[str] = []
    while trace is not None:
        found.append(Path(trace.tb_frame.f_code.co_filename).name)
        trace = trace.tb_next
    return found


def branching(x: Any) -> Any:
    return x if x > 0 else -x


MISTAKES = {
    "shapes": lambda: anp.matmul(X, X),
    "shapes under jit": lambda: af.jit(lambda x: x @ x)(X),
    "a branch": lambda: af.jit(branching)(1.0),
    "in a loop": lambda: lax.fori_loop(0, 3, lambda k, x: x @ x, X),
    "in a gradient": lambda: af.grad(lambda x: anp.sum(x @ x))(X),
    "mapped": lambda: af.vmap(lambda x: x @ anp.ones(7))(X),
    "no array": lambda: af.jit(anp.exp)("x"),
    "no such backend": lambda: af.jit(anp.exp, device="abacus"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_only_the_users_frames_are_left(name: str) -> None:
    error = raised(MISTAKES[name])
    assert isinstance(error, ArrayfnError)
    before = files(error)
    tracebacks.shorten_all(error)
    assert len(files(error)) < len(before)
    assert set(files(error)) == {"test_tracebacks.py"}
    assert error.__notes__ == [
        "(frames of arrayfn are hidden; ARRAYFN_TRACEBACK=full shows them)"
    ]


def test_an_error_of_the_users_function_is_shortened_too() -> None:
    def faulty(x: Any) -> Any:
        return {}["missing"]

    error = raised(lambda: af.jit(af.grad(faulty))(1.0))
    assert isinstance(error, KeyError)
    tracebacks.shorten_all(error)
    assert set(files(error)) == {"test_tracebacks.py"}


def test_a_bug_of_arrayfn_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise TypeError("a bug")

    monkeypatch.setattr("arrayfn.compilation.compiler.trace_function", broken)
    error = raised(lambda: af.jit(lambda x: x)(1.0))
    before = files(error)
    error.__traceback__ = without_last(error.__traceback__)
    tracebacks.shorten_all(error)
    assert files(error) == before[:-1]


def without_last(trace: Any) -> Any:
    """``trace`` without the frame of the function above, which is the test's."""
    from types import TracebackType

    following = None if trace.tb_next.tb_next is None else without_last(trace.tb_next)
    return TracebackType(following, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


@pytest.mark.parametrize("mode", ["", "full"])
def test_a_script_that_fails(tmp_path: Path, mode: str) -> None:
    script = tmp_path / "model.py"
    script.write_text(
        "import numpy as np\nimport arrayfn as af\n\n"
        "@af.jit\ndef f(x, w):\n    return x @ w\n\n"
        "f(np.ones((8, 3)), np.ones((4, 2)))\n"
    )
    made = subprocess.run(
        [sys.executable, str(script)],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"ARRAYFN_TRACEBACK": mode},
    )
    assert made.returncode == 1
    lines = made.stderr.splitlines()
    shown = [line for line in lines if line.startswith('  File "')]
    hidden = f"arrayfn{os.sep}compilation" not in made.stderr
    assert hidden == (mode == "")
    assert f'File "{script}", line 6, in f' in made.stderr
    assert (len(shown) == 2) == (mode == "")
    assert f"{script}:6: matmul: axis 1 of f64[8,3] has extent 3" in made.stderr
    assert ("frames of arrayfn are hidden" in lines[-1]) == (mode == "")
