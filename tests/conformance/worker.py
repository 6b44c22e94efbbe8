"""Runs the tests of one file, one after another, and writes a line of JSON for each.

A line comes before each test too, so that the parent process knows which one a crash or
a hang belongs to.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import json
import re
import signal
import sys
import traceback
import types
import unittest
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import arrayfn as af
from tests.conformance import absent

_TESTS_PER_PROCESS = 400


class TimeLimitError(BaseException):
    """The test ran longer than its limit."""


def _load(path: Path) -> list[unittest.TestCase]:
    sys.path.insert(0, str(path.parent))
    sys.argv[1:] = []
    loader = _Loader(path.stem, str(path))
    spec = importlib.util.spec_from_loader(path.stem, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__[_Attributes.FUNCTION] = _attribute
    sys.modules[path.stem] = module
    jtu: Any = importlib.import_module("jax._src.test_util")
    for name in ("assertRaises", "assertRaisesRegex"):
        setattr(jtu.JaxTestCase, name, getattr(_ErrorsOfOthers, name))
    jtu.request_cpu_devices = af.set_num_devices
    _allow_tests_without_cases()
    loader.exec_module(module)
    suite = unittest.TestLoader().loadTestsFromModule(module)
    return list(_flat(suite))


class _Attributes(ast.NodeTransformer):
    """Reads two attributes of JAX's arrays, which NumPy's lack, by a function.

    ``x.at[i]`` is to mean ``anp.at(x)[i]``, and ``x.block_until_ready()`` to be x.
    """

    FUNCTION = "_attribute_of_an_array"
    NAMES = ("at", "block_until_ready")

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr not in self.NAMES or not isinstance(node.ctx, ast.Load):
            return node
        name = ast.Name(self.FUNCTION, ast.Load())
        return ast.Call(name, [node.value, ast.Constant(node.attr)], [])


def _attribute(x: Any, name: str) -> Any:
    if hasattr(x, name) or not isinstance(x, (np.ndarray, np.generic)):
        return getattr(x, name)
    return af.numpy.at(x) if name == "at" else lambda: x


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a test file with these attributes read by a function."""

    def get_code(self, fullname: str) -> types.CodeType:
        tree = _Attributes().visit(ast.parse(self.get_data(self.path), self.path))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


def _allow_tests_without_cases() -> None:
    """A test whose list of cases is of absent things has none, and is left out."""
    from absl.testing import parameterized

    decorated = parameterized._parameter_decorator

    def decorator(naming: Any, cases: Any) -> Any:
        try:
            return decorated(naming, cases)
        except parameterized.NoTestsError:
            return unittest.skip("uses absent cases")

    parameterized._parameter_decorator = decorator


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        else:
            yield each


def sample(tests: Iterable[unittest.TestCase], limit: int) -> dict[str, Any]:
    """At most ``limit`` cases of each parametrised test, spread over its cases."""
    groups: dict[str, list[unittest.TestCase]] = defaultdict(list)
    for test in tests:
        groups[_stem(test)].append(test)
    chosen: dict[str, Any] = {}
    for group in groups.values():
        places = np.linspace(0, len(group) - 1, min(limit, len(group)))
        chosen |= {_name(group[i]): group[i] for i in places.round().astype(int)}
    return chosen


def _name(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


_DTYPE = re.compile(r"b?(float|u?int|complex)\d+|bool_?|\d+")


def _stem(test: unittest.TestCase) -> str:
    """The name of a test without numbers and dtypes, with the operation it is about."""
    operation = re.search(r"(?:op|op_name|name|fn|f|func)='(\w+)'", test.id())
    return _DTYPE.sub("", _name(test)) + (operation.group(1) if operation else "")


class _ErrorsOfOthers:
    """Errors have other texts here, and arrayfn's own types besides the built-in ones.

    ``assertRaises`` takes any of them for the expected one, and compares no text.
    """

    def assertRaises(self: Any, expected: Any, *args: Any, **kwargs: Any) -> Any:
        return unittest.TestCase.assertRaises(self, _widened(expected), *args, **kwargs)

    def assertRaisesRegex(
        self: Any, expected: Any, _regex: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return unittest.TestCase.assertRaises(self, _widened(expected), *args, **kwargs)


def _widened(expected: Any) -> Any:
    if expected is AssertionError:  # a test of a comparison in the test
        return expected
    types = expected if isinstance(expected, tuple) else (expected,)
    known = tuple(t for t in types if not hasattr(t, "path"))
    return (*known, af.errors.ArrayfnError, *_like(known))


def _like(known: tuple[type, ...]) -> tuple[type, ...]:
    """JAX and NumPy disagree on which of these three bad arguments raise."""
    arguments = (TypeError, ValueError, IndexError, NotImplementedError)
    return arguments if any(issubclass(t, arguments) for t in known) else ()


def where(error: BaseException) -> str:
    """The innermost line of arrayfn, or of the test."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/arrayfn/" in f.filename]
    for frame in reversed(ours or frames):
        short = frame.filename.rpartition("/arrayfn/")[2]
        return f"{short.rpartition('/tests/')[2]}:{frame.lineno} {frame.name}"
    return ""


def _run(test: unittest.TestCase, seconds: int) -> dict[str, Any]:
    from tests.conformance.shim import pass_on_flags

    result = unittest.TestResult()
    errors: list[BaseException] = []

    def keep(*of: Any) -> None:
        if of[-1]:  # a part of a test that passed has no error
            errors.append(of[-1][1])

    result.addError = result.addFailure = result.addSubTest = keep
    signal.setitimer(signal.ITIMER_REAL, seconds)
    set_up = test.setUp

    def begin() -> None:
        set_up()
        pass_on_flags()
        absent.running = True

    test.setUp = begin
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            test.run(result)
    except TimeLimitError as error:
        errors.append(error)
    finally:
        absent.running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    if errors:
        error = errors[0]
        if isinstance(error, absent.NotApplicable):
            return {"status": "absent", "message": str(error)}
        return {
            "status": "failed",
            "type": type(error).__name__,
            "message": str(error)[:600],
            "where": where(error),
        }
    if result.skipped:
        why = result.skipped[0][1]
        status = "absent" if why.startswith("uses ") else "skipped"
        return {"status": status, "message": why[:200]}
    return {"status": "passed"}


def main(path: Path, out: Path, limit: int, seconds: int, only: str) -> int:
    """Run what ``out`` does not hold yet; 3 if there is more to run, else 0."""
    from tests.conformance import shim

    shim.install()
    with out.open("a") as lines:
        return _main(path, out, lines, limit, seconds, only)


def _main(
    path: Path, out: Path, lines: TextIO, limit: int, seconds: int, only: str
) -> int:
    def on_alarm(*_: object) -> None:
        raise TimeLimitError

    signal.signal(signal.SIGALRM, on_alarm)
    done = {json.loads(line)["test"] for line in out.read_text().splitlines()}
    tests = sample(_load(path), limit)
    left = [name for name in tests if re.search(only, name) and name not in done]
    for name in left[:_TESTS_PER_PROCESS]:
        _write(lines, test=name, status="started")
        _write(lines, test=name, **_run(tests[name], seconds))
    return 3 if len(left) > _TESTS_PER_PROCESS else 0


def _write(lines: TextIO, **fields: Any) -> None:
    lines.write(json.dumps(fields) + "\n")
    lines.flush()


if __name__ == "__main__":
    file, results, cases, time_limit, pattern = sys.argv[1:]
    code = main(Path(file), Path(results), int(cases), int(time_limit), pattern)
    sys.exit(code)
