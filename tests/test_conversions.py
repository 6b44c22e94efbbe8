"""Traced values as Python numbers: where that is meant, and where it is refused."""

# What asks for a number is the caller's own instruction, in each of its forms.
# ruff: noqa: PLW0108, RUF015, UP031
from __future__ import annotations

import array
import builtins
import cmath
import contextlib
import copy
import ctypes
import functools
import math
import operator
import os
import pickle
import statistics
import subprocess
import sys
from math import exp
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, optimize

import arrayfn as af
import arrayfn.numpy as anp
import arrayfn.scipy.special
from arrayfn.errors import (
    AbstractValueError,
    ArgumentError,
    InPlaceError,
    TracedConversionError,
)
from arrayfn.tracing import conversions
from arrayfn.tracing.conversions import _counterpart

X = np.array([1.0, 2.0, 3.0])


def test_numbers_that_are_asked_for_are_given():
    def loss(x):
        factor = float(x[1]) + math.sqrt(float(x[2] + 6)) + complex(x[0]).real
        return x.sum() * factor if x[0] > 0 and f"{x[1]:.1f}" == "2.0" else x[0]

    np.testing.assert_array_equal(af.grad(loss)(X), [6.0, 6.0, 6.0])


def test_numbers_are_given_to_who_says_so():
    class Celsius(float):
        pass

    class Settings:
        cast = float

    def in_a_condition(x):
        count = 0.0
        while float(x) > count:
            count += 1.0
        return count

    as_number = float
    ways = [
        lambda x: float(x),
        lambda x: float(float(x)) + 0.0,
        lambda x: builtins.float(x),
        lambda x: Settings.cast(x),
        lambda x: as_number(x),
        lambda x: Celsius(x),
        lambda x: complex(x).real,
        lambda x: int(x),
        lambda x: x.__float__(),
        lambda x: float(*[x]),
        lambda x: float(x if x is not None else 1.0),
        lambda x: float(
            x,
        ),
        lambda x: max(1.0, float(x)),
        lambda x: functools.partial(math.pow, float(x))(1.0),
        lambda x: [float(v) for v in (x, x)][1],
        lambda x: float("%f" % x),
        lambda x: float("%s %.3f" % ("", x)),
        lambda x: float(f"{x:.3f}"),
        lambda x: float(f"{x:.3f}"),
        lambda x: float(str(x)),
        lambda x: x.item(),
        lambda x: 2.0 if x else 0.0,
        lambda x: 2.0 if x > 0 and not x < 0 and any([x == 2.0]) else 0.0,
        lambda x: float(max(x, 1.0)),
        lambda x: float(sorted([x, 1.0])[1]),
        lambda x: (float)(x),
        in_a_condition,
        lambda x: (
            builtins
            # The call's text begins in the next line.
            .float(x)
        ),
    ]
    for way in ways:
        for _ in range(20):  # the interpreter changes its instructions as it runs
            assert af.grad(lambda x, way=way: way(x) * x)(2.0) == 2.0


def test_elements_of_a_list_are_counted_by_traced_integers():
    def f(x, n):
        return x * [1.0, 3.0, 5.0][n] * len(range(n)) * np.ones(n).sum()

    assert af.grad(f)(1.0, 2) == 20.0


def filled(x):
    a = np.zeros(3)
    a.fill(x[0])
    return (x * a).sum()


def put(x):
    a = np.zeros(3)
    np.put(a, [0], x[0])
    return (x * a).sum()


def placed(x):
    a = np.zeros(3)
    np.place(a, a == 0, x)
    return (x * a).sum()


def appended(x):
    a = array.array("d", [0.0])
    a.append(x[0])
    return x.sum() * a[1]


def field_set(x):
    a = ctypes.c_double()
    a.value = x[0]
    return x.sum() * a.value


TO_C = {
    "value of a dict": lambda x: {"sin": math.sin}["sin"](x[0]) * x.sum(),
    "map": lambda x: sum(map(math.sin, [x[0], x[1]])) * x.sum(),
    "loop over a map": lambda x: [y * x.sum() for y in map(math.sin, [x[0]])][0],
    "unpacked map": lambda x: [*map(math.sin, [x[0]])][0] * x.sum(),
    "map of float": lambda x: list(map(float, [x[0]]))[0] * x.sum(),
    "partial": lambda x: functools.partial(math.pow, x[0])(2.0) * x.sum(),
    "second argument": lambda x: math.hypot(float(x[0]), x[1]) * x.sum(),
    "beside a float": lambda x: (math.sin(x[0]) + float(x[0])) * x.sum(),
    "inside a float": lambda x: float(math.sin(x[0])) * x.sum(),
    "getattr": lambda x: getattr(math, "s" + "in")(x[0]) * x.sum(),
    "quad": lambda x: integrate.quad(lambda y: x[0] * y, 0, 1)[0] * x.sum(),
    "brentq": lambda x: optimize.brentq(lambda y: y - x[0], 0, 3) * x.sum(),
    "statistics": lambda x: statistics.fmean([x[0], x[1]]) * x.sum(),
    "fill": filled,
    "append": appended,
    "field": field_set,
}


@pytest.mark.parametrize("name", TO_C)
@pytest.mark.parametrize("transform", [af.grad, af.jit])
def test_functions_of_c_are_given_no_number(name, transform):
    kinds = (TracedConversionError,)
    if transform is af.jit:
        kinds += (AbstractValueError,)  # of a float(x) that comes first, or an if
    with pytest.raises(kinds) as caught:
        transform(TO_C[name])(X)
    assert caught.value.location.file == __file__
    if isinstance(caught.value, TracedConversionError):
        assert "float(x)" in str(caught.value)


@pytest.mark.parametrize("function", [put, placed])
@pytest.mark.parametrize("transform", [af.grad, af.jit])
def test_numpy_functions_that_change_an_array_are_refused(function, transform):
    with pytest.raises(InPlaceError, match="gives a changed copy"):
        transform(function)(X)


def assigned(x):
    a = np.zeros(3)
    a[0] = x[0] * 2
    return (x * a).sum()


def added(x):
    a = np.zeros(3)
    a[1] += x[0] * 2
    return (x * a).sum()


def truncated(x):
    a = np.zeros(3, int)
    a[1] = x[0] * 2
    return (x * a).sum()


@pytest.mark.parametrize("function", [assigned, added, truncated])
@pytest.mark.parametrize("transform", [af.grad, af.jit])
def test_elements_of_numpy_arrays_are_not_assigned(function, transform):
    with pytest.raises(InPlaceError) as caught:
        transform(function)(X)
    assert "test_conversions.py" in str(caught.value)
    assert "arrayfn.numpy.asarray(a).at[index].set(x)" in str(caught.value)


@pytest.mark.parametrize("make", [np.zeros, np.ones, np.empty, np.eye])
def test_a_shape_that_is_traced_is_named(make):
    with pytest.raises(AbstractValueError, match=r"Shapes are static.*static_argnums"):
        af.jit(lambda n: make(n).sum())(3)
    assert af.grad(lambda x, n: x * np.ones(n).sum())(1.0, 3) == 3.0


def test_errors_of_other_code_are_left_alone():
    def f(x):
        with contextlib.suppress(TracedConversionError):
            math.sin(x)
        return np.reshape(np.ones(3), (2, 2))

    with pytest.raises(ValueError, match="cannot reshape"):
        af.grad(f)(1.0)


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda x: math.sin(x), "Use arrayfn.numpy.sin, or math.sin"),
        (lambda x: exp(x), "Use arrayfn.numpy.exp, or math.exp"),
        (lambda x: math.fsum([x, x]), "Use arrayfn.numpy.sum, or math.fsum"),
        (lambda x: math.dist([x], [x]), "Use arrayfn.numpy.linalg.norm, or math.dist"),
        (lambda x: math.fabs(x), "Use arrayfn.numpy.abs, or math.fabs"),
        (lambda x: math.lgamma(x), "Use arrayfn.scipy.special.gammaln, or math.lgamma"),
        (lambda x: math.remainder(x, 2.0), r"Use math.remainder\(float\(x\)\)"),
        (lambda x: cmath.sqrt(x).real, "Use arrayfn.numpy.sqrt, or cmath.sqrt"),
    ],
)
def test_functions_of_math_are_refused(function, advice):
    with pytest.raises(TracedConversionError, match=advice):
        af.grad(function)(1.0)


def test_functions_that_are_advised_exist():
    for module in (math, cmath):
        for name in module.__dict__:
            if name.startswith("_") or not callable(getattr(module, name)):
                continue
            instead = _counterpart(name)
            if instead:
                path = instead.removeprefix("arrayfn.")
                assert callable(operator.attrgetter(path)(af))


def test_float_in_an_installed_package_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "metrics_of_others.py").write_text(
        "def error(y, p):\n    return float(((y - p) ** 2).mean())\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    error = __import__("metrics_of_others").error
    assert error(X, X) == 0
    with pytest.raises(TracedConversionError, match=r"float\(x\) in error .*line 2"):
        af.grad(lambda p: error(X, p))(X)


def test_source_that_is_not_there_is_no_hindrance():
    scope = {"math": math}
    exec("def f(x):\n    return math.exp(float(x[0])) * x.sum()\n", scope)
    np.testing.assert_allclose(af.grad(scope["f"])(X), np.full(3, math.e))
    exec("def f(x):\n    return math.exp(x[0]) * x.sum()\n", scope)
    with pytest.raises(TracedConversionError, match=r"math\.exp takes"):
        af.grad(scope["f"])(X)


def test_copies_of_a_traced_value_are_itself():
    assert af.grad(lambda x: copy.deepcopy(x) * copy.copy(x))(3.0) == 6.0
    assert af.jit(lambda tree: copy.deepcopy(tree)["a"] * 2)({"a": 3.0}) == 6.0


def test_a_traced_value_is_not_pickled():
    with pytest.raises(ArgumentError, match="cannot be pickled"):
        af.grad(lambda x: pickle.loads(pickle.dumps(x)))(3.0)


MATRIX = np.asmatrix(np.eye(2))
MASKED = np.ma.MaskedArray(np.ones(2), [True, False])


@pytest.mark.parametrize(
    ("value", "message"),
    [(MATRIX, "numpy.matrix, whose .* is a product"), (MASKED, "masked array")],
)
def test_classes_that_are_unlike_arrays_are_refused(value, message):
    product = af.jit(lambda m: m * m)
    plain = np.asarray(value)
    np.testing.assert_array_equal(product(plain), plain * plain)
    uses = [
        lambda: product(value),
        lambda: af.grad(lambda m: (m * m).sum())(value),
        lambda: af.vmap(lambda m: m * m)(value),
        lambda: anp.sin(value),
        lambda: af.jit(lambda x: x * anp.exp(value))(1.0),
        lambda: af.jit(lambda x: x * value)(1.0),
    ]
    for use in uses:
        with pytest.raises(ArgumentError, match=message):
            use()


def test_functions_of_scipy_are_known_whatever_was_imported():
    code = (
        "import scipy.special, arrayfn as af\n"
        "print(af.grad(lambda x: scipy.special.erf(x))(0.0))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(run.stdout) == pytest.approx(2 / math.sqrt(math.pi), rel=1e-15)


def test_who_is_given_no_array_names_the_function():
    with pytest.raises(ArgumentError, match="remainder takes arrays and numbers"):
        anp.mod(X, [1.0, 2.0, 3.0])


def test_arrayfn_does_not_count_as_an_installed_package(monkeypatch):
    root = Path(af.__file__).parents[1]
    monkeypatch.setattr(conversions, "_STANDARD", f"{root}{os.sep}")
    conversions._is_installed.cache_clear()
    try:
        with pytest.raises(
            AbstractValueError, match=r"float\(\) needs the value of an"
        ):
            af.jit(float)(2.0)
        assert conversions._is_installed(str(root / "other.py"))
    finally:
        conversions._is_installed.cache_clear()
