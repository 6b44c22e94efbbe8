"""Makes ``import autograd`` give arrayfn, and runs autograd's tests with pytest."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import itertools
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest

import arrayfn as af
from arrayfn.test_util import check_grads as compare_with_differences
from tests.conformance import absent
from tests.conformance.shim import Layered

# What tests call of autograd itself, written with arrayfn's functions.


def _by_argument(operator: Callable[[Any], Any]) -> Any:
    """``operator(f, argnum)(*args)`` of an operator on functions of one argument."""

    @functools.wraps(operator)
    def of(f: Any, argnum: Any = 0, *_: Any, **__: Any) -> Any:
        def result(*args: Any, **kwargs: Any) -> Any:
            def g(x: Any) -> Any:
                places = argnum if isinstance(argnum, (tuple, list)) else (argnum,)
                values = x if isinstance(argnum, (tuple, list)) else (x,)
                given = list(args)
                for place, value in zip(places, values, strict=True):
                    given[place] = value
                return f(*given, **kwargs)

            if isinstance(argnum, (tuple, list)):
                return operator(g)(tuple(args[i] for i in argnum))
            return operator(g)(args[argnum])

        return result

    return of


def _unary_to_nary(operator: Any) -> Any:
    return _by_argument(lambda f: functools.partial(operator, f))


def _ones_like(x: Any) -> Any:
    return af.tree.map(af.numpy.ones_like, x)


def elementwise_grad(f: Any) -> Any:
    """The gradient of the sum of f."""
    return lambda x: _vjp_of_ones(f, x)


def _vjp_of_ones(f: Any, x: Any) -> Any:
    value, pull_back = af.vjp(f, x)
    return pull_back(_ones_like(value))[0]


def make_vjp(f: Any, x: Any) -> Any:
    """The pull-back of f at x, and f(x)."""
    value, pull_back = af.vjp(f, x)
    return (lambda g: pull_back(g)[0]), value


def make_jvp(f: Any, x: Any) -> Any:
    """The function from a tangent at x to f(x) and its derivative."""
    return lambda v: af.jvp(f, (x,), (v,))


def check_grads(
    f: Any, argnum: Any = None, modes: Any = ("fwd", "rev"), order: int = 2
) -> Any:
    """autograd's check by differences, of the arguments ``argnum``; by default all."""

    def check(*args: Any, **kwargs: Any) -> None:
        places = range(len(args)) if argnum is None else argnum
        places = (places,) if isinstance(places, int) else tuple(places)

        def g(*values: Any) -> Any:
            given = list(args)
            for place, value in zip(places, values, strict=True):
                given[place] = value
            return f(*given, **kwargs)

        chosen = tuple(args[i] for i in places)
        compare_with_differences(g, chosen, order, tuple(modes or ("fwd", "rev")))

    return check


def combo_check(f: Any, *check_args: Any, **check_kwargs: Any) -> Any:
    """``check_grads`` for all combinations of arguments."""

    def check(*args: Any, **kwargs: Any) -> None:
        options = [
            [(name, value) for value in values] for name, values in kwargs.items()
        ]
        for chosen in itertools.product(*args):
            for named in itertools.product(*options):
                check_grads(f, *check_args, **check_kwargs)(*chosen, **dict(named))

    return check


def scalar_close(a: Any, b: Any) -> bool:
    """autograd's test of two numbers."""
    return abs(a - b) < 1e-6 or abs(a - b) / abs(a + b) < 1e-6


def check_equivalent(x: Any, y: Any) -> None:
    """Whether two pytrees of arrays are equal up to rounding."""
    first, second = af.tree.leaves(x), af.tree.leaves(y)
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def _hessian(f: Any) -> Any:
    return af.jacfwd(af.jacrev(f))


def _make_hvp(f: Any) -> Any:
    return lambda x: (lambda v: af.jvp(af.grad(f), (x,), (v,))[1], af.grad(f)(x))


_BUILTINS = {"list": list, "dict": dict, "tuple": tuple, "isinstance": isinstance}
_OPERATORS = {
    "grad": _by_argument(af.grad),
    "holomorphic_grad": _by_argument(lambda f: af.grad(f, holomorphic=True)),
    "elementwise_grad": _by_argument(elementwise_grad),
    "deriv": _by_argument(lambda f: lambda x: af.jvp(f, (x,), (_ones_like(x),))[1]),
    "jacobian": _by_argument(af.jacrev),
    "hessian": _by_argument(_hessian),
    "value_and_grad": _by_argument(af.value_and_grad),
    "make_vjp": _by_argument(lambda f: functools.partial(make_vjp, f)),
    "make_jvp": _by_argument(lambda f: functools.partial(make_jvp, f)),
    "make_hvp": _by_argument(_make_hvp),
    "grad_and_aux": _by_argument(lambda f: af.grad(f, has_aux=True)),
    "hessian_vector_product": lambda f, argnum=0: (
        lambda *args: _make_hvp(lambda x: f(*args[:argnum], x, *args[argnum + 1 : -1]))(
            args[argnum]
        )[0](args[-1])
    ),
    "checkpoint": af.checkpoint,
}
_MODULES: dict[str, Callable[[str], types.ModuleType]] = {
    "autograd": lambda name: Layered(
        name, otherwise_absent=True, **_OPERATORS, **_BUILTINS
    ),
    "autograd.builtins": lambda name: Layered(name, otherwise_absent=True, **_BUILTINS),
    "autograd.numpy": lambda name: Layered(
        name, af.numpy, np, random=np.random, __version__=np.__version__
    ),
    "autograd.numpy.linalg": lambda name: Layered(name, af.numpy.linalg, np.linalg),
    "autograd.numpy.fft": lambda name: Layered(name, af.numpy.fft, np.fft),
    "autograd.numpy.random": lambda _: np.random,
    "autograd.scipy": lambda name: Layered(name, af.scipy, otherwise_absent=True),
    "autograd.scipy.special": lambda name: Layered(
        name, importlib.import_module("arrayfn.scipy.special")
    ),
    "autograd.scipy.stats": lambda name: Layered(
        name, importlib.import_module("arrayfn.scipy.stats")
    ),
    "autograd.scipy.signal": lambda name: Layered(
        name, importlib.import_module("arrayfn.scipy.signal")
    ),
    "autograd.scipy.linalg": lambda name: Layered(
        name, importlib.import_module("arrayfn.scipy.linalg")
    ),
    "autograd.scipy.integrate": lambda name: Layered(
        name, importlib.import_module("arrayfn.scipy.integrate")
    ),
    "autograd.core": lambda name: Layered(
        name, otherwise_absent=True, make_vjp=make_vjp, make_jvp=make_jvp
    ),
    "autograd.wrap_util": lambda name: Layered(
        name, otherwise_absent=True, unary_to_nary=_unary_to_nary
    ),
    "autograd.test_util": lambda name: Layered(
        name,
        otherwise_absent=True,
        check_grads=check_grads,
        combo_check=combo_check,
        scalar_close=scalar_close,
        check_equivalent=check_equivalent,
    ),
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "autograd" and not name.startswith("autograd."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        make = _MODULES.get(spec.name)
        return make(spec.name) if make else Layered(spec.name, otherwise_absent=True)

    def exec_module(self, module: types.ModuleType) -> None: ...


class _Results:
    """Writes a line of JSON for each test."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        absent.running = True
        try:
            return (yield)
        finally:
            absent.running = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        report = yield
        if call.when == "call" or report.outcome != "passed":
            error = call.excinfo.value if call.excinfo else None
            record = {"test": item.name, "status": report.outcome}
            if isinstance(error, absent.NotApplicable):
                record |= {"status": "absent", "message": str(error)}
            elif error is not None:
                record |= {"type": type(error).__name__, "message": str(error)[:600]}
                record["where"] = str(call.excinfo.traceback[-1])[:200]
            self._lines.write(json.dumps(record) + "\n")
        return report


def run(tests: Path, out: Path, only: str, files: list[str] | None) -> None:
    """Run autograd's tests in the folder ``tests``; results go to ``out``."""
    sys.meta_path.insert(0, _Finder())
    for path in sorted(tests.glob("test_*.py")):
        if files and path.stem not in files:
            continue
        with (out / f"autograd_{path.stem}.jsonl").open("w") as lines:
            arguments = [str(path), "-q", "--no-header", "-p", "no:cacheprovider"]
            arguments += ["-c", "/dev/null", "--rootdir", str(tests), "--tb=no"]
            pytest.main(
                [*arguments, *(["-k", only] if only else [])],
                plugins=[_Results(lines)],
            )
