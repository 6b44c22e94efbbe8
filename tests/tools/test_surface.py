"""Names and parameters beside NumPy's, SciPy's and JAX's: nothing lacks a reason."""

from __future__ import annotations

import types
from fnmatch import fnmatchcase

import pytest

from arrayfn.tools import stored_signatures, surface
from arrayfn.tools.left_out import LEFT_OUT, PARAMETERS_LEFT_OUT
from arrayfn.tools.stored_signatures import arguments_of, parsed, written


@pytest.fixture(scope="module")
def names():
    return {each.theirs: each for each in surface.compare_names()}


@pytest.fixture(scope="module")
def parameters():
    return {each.theirs: each for each in surface.compare_parameters()}


def test_no_name_is_missing_without_a_reason(names):
    missing = {each.theirs: each.missing for each in names.values() if each.missing}
    assert missing == {}


def test_no_parameter_is_missing_without_a_reason(parameters):
    missing = {
        each.theirs: each.missing for each in parameters.values() if each.missing
    }
    assert missing == {}
    assert parameters["jax.numpy"].version == "jax 0.10.2"
    assert sum(len(each.here) for each in parameters.values()) > 4000


def test_parameters_that_are_here_are_counted_by_function(parameters):
    here = set(parameters["numpy"].here)
    assert {"sum.a", "sum.out", "concatenate.arrays", "eye.N"} <= here
    left_out = parameters["numpy"].left_out
    assert left_out["exp.where (by name)"].startswith("elements that are not computed")


def test_each_reason_for_a_parameter_is_of_one_that_is_left_out(parameters):
    for namespace, reasons in PARAMETERS_LEFT_OUT.items():
        absent = {
            name.partition(" ")[0]
            for each in parameters.values()
            for name in each.left_out
            if namespace == "ufunc" or fnmatchcase(each.theirs, namespace)
        }
        for patterns in reasons.values():
            for pattern in patterns.split():
                wanted = f"*.{pattern}" if namespace == "ufunc" else pattern
                found = [name for name in absent if fnmatchcase(name, wanted)]
                assert found, (namespace, pattern)


def test_each_name_left_out_is_one_that_there_is():
    for namespace, reasons in LEFT_OUT.items():
        known = surface.names_of(namespace)
        for patterns in reasons.values():
            for pattern in patterns.split():
                found = [n for n in known if fnmatchcase(n, pattern)]
                assert found, (namespace, pattern)


def test_the_array_api_is_whole(names):
    standard = names["array_api"]
    assert standard.missing == ()
    assert standard.left_out == {}
    assert standard.total == 189


def test_traced_arrays_have_the_array_apis_methods(names):
    methods = names["array_api.array"]
    assert methods.missing == ()
    assert {"__add__", "__getitem__", "mT", "to_device"} <= set(methods.here)


@pytest.mark.parametrize(
    ("theirs", "ours", "gaps"),
    [
        ("(a, axis=None)", "(a, axis=None)", {}),
        ("(a, /)", "(x)", {}),
        ("(a)", "(x, /)", {"a": "by name"}),
        ("(a, b)", "(b, a)", {"a": "by position", "b": "by position"}),
        ("(a, k=0)", "(a, k=1)", {"k": "0 by default"}),
        ("(a, k=0)", "(a, k)", {"k": "0 by default"}),
        ("(a, k)", "(a, k=1)", {}),
        ("(a, k=None)", "(a, k=False)", {}),
        ("(a, k=...)", "(a, k=7)", {}),
        ("(a, k=0)", "(a, *, k=0)", {"k": "by position"}),
        ("(a, *, k=0)", "(a, k=0, more=1)", {}),
        ("(*args, **kwargs)", "(a)", {"args": "any number", "kwargs": "any number"}),
        ("(a, b)", "(*args)", {"a": "by name", "b": "by name"}),
    ],
)
def test_gaps_say_how_a_parameter_cannot_be_given(theirs, ours, gaps):
    assert dict(surface.gaps_of(parsed(theirs), parsed(ours))) == gaps


@pytest.mark.parametrize(
    "text",
    [
        "()",
        "(a, /, b=0, *args, c=None, **kwargs)",
        "(a, /)",
        "(*, k='x')",
        "(x=(1, 2))",
    ],
)
def test_signatures_are_read_as_they_are_written(text):
    assert written(parsed(text)) == text


def test_defaults_without_an_expression_have_no_text():
    arguments = arguments_of(lambda a, b=object(), c=float: None)  # noqa: B008
    assert written(arguments) == "(a, b=..., c=float)"
    assert arguments_of(int.__add__) is not None
    assert arguments_of(object()) is None


def test_names_of_a_module_leave_out_modules_and_private_names():
    module = types.ModuleType("example")
    module.public, module._private, module.inner = 1, 2, types.ModuleType("inner")
    assert list(stored_signatures.public_names(module)) == [("public", 1)]


def test_stored_signatures_of_numpy_are_those_of_the_installed_version():
    import numpy.linalg

    if stored_signatures.version("numpy.linalg") != f"numpy {numpy.__version__}":
        pytest.skip("another version of NumPy is installed")
    fresh = [*stored_signatures.lines("numpy.linalg")]
    names = [line.partition("(")[0] for line in fresh[1:]]
    assert names == surface.names_of("numpy.linalg")
    assert fresh[0] == "# numpy " + numpy.__version__
