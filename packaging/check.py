"""Build the wheel and the sdist, install each in a fresh environment, and test it.

``python packaging/check.py python3.11`` does so for each interpreter named, without
arguments for the one that runs it. What is installed is tested outside the checkout, by
the tests of the sdist.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/test_jit.py",
    "tests/test_tree.py",
    "tests/test_errors.py",
    "tests/test_packaging.py",
    "tests/functions/test_functions.py",
    "tests/lowering/test_golden_kernels.py",
)
INSTALLED = "import arrayfn, sys; sys.exit('site-packages' not in arrayfn.__file__)"


def run(*command: str | Path, cwd: Path) -> None:
    """Run a command; end with its status if it fails."""
    print("+", *command, flush=True)
    done = subprocess.run(list(map(str, command)), cwd=cwd, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def environment(python: str, folder: Path, *packages: str) -> Path:
    """The interpreter of a new environment with ``packages``."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    own = folder / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check")
    run(own, "-m", "pip", "install", *quiet, *packages, cwd=folder)
    return own


def check(python: str, package: Path, tests: Path, folder: Path) -> None:
    """Install ``package`` in an environment of its own, and run tests there."""
    kind = "wheel" if package.suffix == ".whl" else "sdist"
    name = f"{Path(python).name}-{kind}"
    own = environment(python, folder / name, f"arrayfn[test] @ file://{package}")
    run(own, "-c", INSTALLED, cwd=tests)
    run(own.with_name("arrayfn"), "info", cwd=tests)
    pytest = (own, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    run(*pytest, *TESTS, cwd=tests)


def main() -> None:
    """Check the packages for the interpreters named on the command line."""
    pythons = sys.argv[1:] or [sys.executable]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        builder = environment(pythons[0], folder / "builder", "hatchling")
        run(builder, "-m", "hatchling", "build", "-d", folder / "dist", cwd=ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        (sdist,) = (folder / "dist").glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            # Python before 3.11.4 has no filters, and ignores this.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder)
        # The sources without the package: only the installed one can be imported.
        tests = folder / sdist.name.removesuffix(".tar.gz")
        shutil.rmtree(tests / "arrayfn")
        for python in pythons:
            for package in (wheel, sdist):
                check(python, package, tests, folder)


if __name__ == "__main__":
    main()
