"""What type checkers say of a user's file: mypy and pyright, strict."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "typing"
SETTINGS = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    "extraPaths": [str(ROOT)],
}


def found(program: str) -> str:
    """The path of a type checker; skips the test where there is none."""
    beside = Path(sys.executable).parent / program
    path = str(beside) if beside.exists() else shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed; the extra dev has it")
    return path


def of_mypy(file: Path, cache: Path) -> list[tuple[int, str]]:
    """The line and the text of each error of ``mypy --strict``."""
    command = [found("mypy"), "--strict", "--follow-imports=silent", "--no-pretty"]
    command += [f"--python-executable={sys.executable}", f"--cache-dir={cache}"]
    done = subprocess.run(
        [*command, str(file)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert errors or done.returncode == 0, done.stdout + done.stderr
    return [(int(line.split(":")[1]), line) for line in errors]


def of_pyright(file: Path, folder: Path) -> list[tuple[int, str]]:
    """The line and the text of each error of pyright, strict."""
    settings = folder / "pyrightconfig.json"
    settings.write_text(json.dumps(SETTINGS | {"include": [str(file)]}))
    command = [found("basedpyright"), "--outputjson", "-p", str(settings)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return [
        (entry["range"]["start"]["line"] + 1, entry["message"])
        for entry in report["generalDiagnostics"]
    ]


@pytest.mark.parametrize("checker", [of_mypy, of_pyright])
def test_a_users_file_is_clean(checker, tmp_path):
    assert checker(FOLDER / "user.py", tmp_path) == []


@pytest.mark.parametrize("checker", [of_mypy, of_pyright])
def test_mistakes_are_found(checker, tmp_path):
    file = FOLDER / "misuse.py"
    lines = file.read_text(encoding="utf-8").splitlines()
    wrong = {k for k, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert {line for line, _ in checker(file, tmp_path)} == wrong


def test_the_file_runs():
    subprocess.run([sys.executable, str(FOLDER / "user.py")], check=True, cwd=ROOT)
