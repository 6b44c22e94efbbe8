"""The command line: each command's output, its exit status, and a closed pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import arrayfn as af
from arrayfn.backends.object_cache import ObjectCache
from arrayfn.tools import cli, commands
from arrayfn.tools.commands import argument_of, function_of

SOURCE = """
import numpy as np
import arrayfn as af, arrayfn.numpy as anp

def loss(w, x):
    return anp.sum(anp.tanh(x @ w))

def norm(x):
    return anp.sqrt(anp.sum(x * x))

NUMBER = 3

if __name__ == "__main__":
    import sys
    step = af.jit(af.grad(loss))
    for _ in range(3):
        step(np.ones((8, 4)), np.ones((16, 8)))
    print("arguments", sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "model.py"
    file.write_text(SOURCE)
    return file


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"arrayfn {af.__version__}\n"


def test_long_lines_are_wrapped_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: Path
) -> None:
    command = ["explain", f"{script}:loss", "f32[8,4]", "f32[16,8]", "--grad"]
    assert cli.main(command) == 0
    long = capsys.readouterr().out
    assert max(map(len, long.split("\n"))) > 60
    monkeypatch.setenv("COLUMNS", "60")
    assert cli.main(command) == 0
    wrapped = capsys.readouterr().out
    assert max(map(len, wrapped.split("\n"))) <= 60
    code = "code: 1 generated kernel"
    assert wrapped.partition(code)[0].split() == long.partition(code)[0].split()


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "versions, backends and what they lack" in capsys.readouterr().out


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    for word in ("arrayfn ", "numpy ", "threads ", "  cpu ", "  cuda ", "cache "):
        assert f"\n{word}" in f"\n{text}"
    assert "available (compiled kernels on threads)" in text
    assert (
        "  mesh        used for arrays over several devices; nothing to install" in text
    )


def test_cache(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = tmp_path / "cache"
    kept = ObjectCache(directory)
    kept.put("ab" * 32, b"code")
    kept.put("cd" * 32, b"more code")
    monkeypatch.setattr(commands, "object_cache", lambda: kept)
    assert cli.main(["cache", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[-1] for line in lines[:-1]} == {"ab" * 32, "cd" * 32}
    assert lines[-1].startswith(f"{directory}: 2 entries, ")
    assert cli.main(["cache", "clear"]) == 0
    assert "removed 2 entries" in capsys.readouterr().out
    assert cli.main(["cache", "size"]) == 0
    assert capsys.readouterr().out == f"{directory}: 0 entries, 0 B\n"
    assert kept.get("ab" * 32) is None


def test_explain(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = script.with_suffix(".html")
    given = [f"{script}:loss", "f32[8,4]", "f32[16,8]", "--grad", "--html", str(page)]
    assert cli.main(["explain", *given]) == 0
    text = capsys.readouterr().out
    assert text.startswith("loss(f32[8,4], f32[16,8]) -> (f32[8,4]) for cpu\n")
    assert "a library computes dot_general" in text
    assert "model.py:6" in text
    assert page.read_text().startswith("<!doctype html>")


def test_compare(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", f"{script}:norm", "f32[100]"]) == 0
    text = capsys.readouterr().out
    assert "generated" in text
    assert "roof of cpu" in text


def test_bisect(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bisect", f"{script}:norm", "f32[5]", "--grad"]) == 0
    assert capsys.readouterr().out == "no equation is wrong, and no result is NaN\n"
    assert cli.main(["bisect", f"{script}:norm", "f32[5]", "--grad", "--zeros"]) == 1
    assert "model.py:9: mul gives NaN" in capsys.readouterr().out


def test_profile(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = script.with_suffix(".json")
    path, argv = sys.path[:], sys.argv
    assert cli.main(["profile", "--save", str(trace), str(script), "a", "-b"]) == 0
    assert (sys.path, sys.argv) == (path, argv)
    text = capsys.readouterr().out
    assert "arguments ['a', '-b']" in text
    assert "return anp.sum(anp.tanh(x @ w))" in text
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event.get("cat") == "call" for event in events) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loss", "'loss' names no function"),
        ("nowhere.py:loss", "there is no file nowhere.py"),
        ("no_such_module:f", "no_such_module cannot be imported"),
        ("{script}:other", "defines no other"),
        ("{script}:NUMBER", "is a int, not a function"),
        ("{script}:loss", "missing a required argument: 'w'; name the types of all"),
    ],
)
def test_what_is_no_function_is_said(
    script: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", name.format(script=script)]) == 2
    assert message in capsys.readouterr().err


def test_arguments_are_types_or_numbers() -> None:
    import numpy as np

    random = np.random.default_rng(0)
    assert argument_of("bool[2,3]", random).shape == (2, 3)
    assert argument_of("f32[]", random).shape == ()
    assert argument_of("7", random) == 7
    with pytest.raises(TypeError, match="there is no dtype 'f31'"):
        argument_of("f31[2]", random)
    with pytest.raises(TypeError, match="neither a type"):
        argument_of("x", random)
    assert function_of("numpy:linalg.norm") is np.linalg.norm


def test_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "arrayfn", "info"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before it writes
        assert process.stderr.read() == b""
        assert process.wait() == 0
