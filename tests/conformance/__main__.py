"""Run other projects' test suites on arrayfn, and count.

python -m tests.conformance jax --tests jax/tests --out results
python -m tests.conformance jax --tests jax/tests --out results --only linalg_test
python -m tests.conformance autograd --tests autograd/tests --out results
python -m tests.conformance scipy --out results --mode eager
python -m tests.conformance scipy --out results --mode jit --file fft
python -m tests.conformance einops --out results --mode eager
python -m tests.conformance report --out results

The tests are those of a checkout of the project, which is not part of this repository.
Tests that results hold already are not run again. Those of SciPy, einops and
array-api-extra are in the installed packages; ``--file`` names a package of SciPy's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from tests.conformance import autograd_shim
from tests.conformance.report import (
    JAX_FILES,
    PLUGINS,
    SCIPY_PACKAGES,
    print_report,
)


def _run_file(path: Path, out: Path, limit: int, seconds: int, only: str) -> None:
    """Run workers until the file's tests are through; a crash ends one test only."""
    out.touch()
    command = [sys.executable, "-m", "tests.conformance.worker", str(path), str(out)]
    command += [str(limit), str(seconds), only]
    while True:
        try:
            before = out.stat().st_size
            log = out.with_suffix(".log").open("a")
            code = _watched(command, out, 6 * seconds, log)
        finally:
            log.close()
        if code == 0:
            return
        if code == 3:
            continue
        last = out.read_text().splitlines()[-1:]
        record = json.loads(last[0]) if last else {}
        if record.get("status") != "started" or out.stat().st_size == before:
            print(f"{path.name}: did not load, see {log.name}")
            return
        how = "hang" if code is None else f"crash {code}"
        with out.open("a") as lines:
            fields = {"test": record["test"], "status": "failed", "type": how}
            lines.write(json.dumps({**fields, "message": how, "where": ""}) + "\n")


def _run_plugin(
    suite: str, part: str, out: Path, mode: str, only: str, seconds: int
) -> None:
    """Run the tests of an installed package, or of ``part`` of it, under pytest."""
    results = out / f"{'_'.join(filter(None, (suite, mode, part)))}.jsonl"
    package = ".".join(filter(None, (PLUGINS[suite], part)))
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-W", "ignore"]
    command += ["-p", f"tests.conformance.{suite}_plugin", "-p", "no:cacheprovider"]
    command += ["--pyargs", package, *(["-k", only] if only else [])]
    environment = {
        **os.environ,
        "ARRAYFN_TESTS_MODE": mode,
        "ARRAYFN_TESTS_OUT": str(results.resolve()),
        "ARRAYFN_TESTS_SECONDS": str(seconds),
        "EINOPS_TEST_BACKENDS": "arrayfn",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SCIPY_ARRAY_API": '["numpy"]',  # ours is put in its place
    }
    subprocess.run(command, env=environment, check=False, cwd=out)


def _watched(command: list[str], out: Path, seconds: int, log: TextIO) -> int | None:
    """The exit status, or None if nothing was written for ``seconds``."""
    process = subprocess.Popen(command, stdout=log, stderr=log)
    size = -1
    while True:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            if out.stat().st_size == size:
                process.kill()
                process.wait()
                return None
            size = out.stat().st_size


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    suites = ["jax", "autograd", *PLUGINS, "report"]
    parser.add_argument("suite", choices=suites)
    parser.add_argument("--mode", choices=["eager", "jit"], default="eager")
    parser.add_argument("--tests", type=Path, help="the folder with the test files")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--file", action="append", help="a test file; default: all")
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--cases", type=int, default=3, help="cases of each test")
    parser.add_argument("--seconds", type=int, default=60, help="limit of a test")
    args = parser.parse_args()
    os.environ["JAX_NUM_GENERATED_CASES"] = str(args.cases)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.suite == "jax":
        for name in args.file or JAX_FILES:
            path = args.tests / f"{name}.py"
            out = args.out / f"{name}.jsonl"
            _run_file(path, out, args.cases, args.seconds, args.only)
    elif args.suite == "autograd":
        autograd_shim.run(args.tests, args.out, args.only, args.file)
    elif args.suite in PLUGINS:
        parts = args.file or (SCIPY_PACKAGES if args.suite == "scipy" else [""])
        for part in parts:
            _run_plugin(args.suite, part, args.out, args.mode, args.only, args.seconds)
    print_report(args.out)


if __name__ == "__main__":
    main()
