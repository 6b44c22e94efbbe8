"""Kernels of a lowered function, replaced."""

from __future__ import annotations

import re

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import tree
from arrayfn.backends.cpu import written_kernels
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.backends.registry import BACKENDS
from arrayfn.compilation.stages import Lowered
from arrayfn.errors import ArgumentError, BackendError
from arrayfn.lowering.cuda.lower import lower as lower_for_cuda
from arrayfn.transforms import trace_function

X = np.linspace(-2, 2, 50)


def sum_of_squares(x):
    return anp.sum(x * x)


@pytest.fixture(scope="module")
def lowered():
    return af.jit(lambda x: anp.tanh(x) * 2.0).lower(X)


def test_it_is_shown_by_its_kernels(lowered):
    assert repr(lowered) == "<Lowered function for cpu: elementwise_0>"


@pytest.mark.parametrize(
    ("shown", "given"),
    [
        (np.float32(1), np.float32(3)),
        (np.int16(1), np.int16(3)),
        (np.bool_(True), np.bool_(True)),
        (np.float64(1), 3.0),
        (np.float64(1), np.array(3.0)),
        (1.0, 3.0),
        (1.0, np.float64(3)),
    ],
)
def test_what_is_compiled_takes_numbers_of_its_type(shown, given):
    compiled = af.jit(lambda x: x + x).lower(shown).compile()
    result = compiled(given)
    assert result.dtype == np.asarray(given).dtype
    assert result == given + given


def test_an_edited_kernel_is_what_runs(lowered):
    (kernel,) = lowered.kernels
    edited = kernel.source.replace("* f64(2", "+ f64(2")
    changed = lowered.with_kernel(kernel.name, edited)
    np.testing.assert_allclose(changed.compile()(X), np.tanh(X) + 2)
    np.testing.assert_allclose(lowered.compile()(X), np.tanh(X) * 2)
    assert changed.kernels[0].source == edited
    assert changed.kernels[0].reason.startswith("replaced; was ")


HELPERS = """
import math
import numpy as np

SHIFT = 0.25

def shifted(x):
    return scaled(x) + SHIFT

def scaled(x):
    return 3 * x
"""


def replaced(lowered, expression):
    """``lowered`` with a hand-written kernel of an expression in ``x``."""
    (kernel,) = lowered.kernels
    names = ", ".join(p.name for p in kernel.parameters)
    x, out = (p.name for p in kernel.parameters if p.kind == "f64*")
    source = f"""{HELPERS}
def {kernel.name}({names}, begin, end):
    for i in range(begin, end):
        x = {x}[i]
        {out}[i] = {expression}
"""
    return lowered.with_kernel(kernel.name, source)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("math.exp(x)", np.exp),
        ("abs(x)", np.abs),
        ("min(x, 0.5)", lambda x: np.minimum(x, 0.5)),
        ("x ** 2", np.square),
        ("np.sqrt(x * x)", np.abs),
        ("np.float64(2) * x", lambda x: 2 * x),
        ("shifted(x)", lambda x: 3 * x + 0.25),
        ("(x, 2 * x)[1]", lambda x: 2 * x),
        (
            "-0.5 if x < -0.5 else (0.5 if x > 0.5 else x)",
            lambda x: np.clip(x, -0.5, 0.5),
        ),
        ("divmod(x, 2.0)[1]", lambda x: x % 2),
    ],
)
def test_hand_written_kernels_use_what_numba_knows(lowered, expression, expected):
    result = replaced(lowered, expression).compile()(X)
    np.testing.assert_allclose(result, expected(X), rtol=1e-15)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("nonsense(x)", r"(?s)cannot compile kernel elementwise_0.*'nonsense' is not"),
        ("math.gamma(x)", r"kernel elementwise_0 needs numba_gamma of Numba's runtime"),
        ("[x][0]", r"kernel elementwise_0"),
        (
            "x\n        global y; y = 1",
            r"kernel elementwise_0: Use of unsupported opcode",
        ),
        ("x\n        assert i", r"has 'assert i' in line 17: compiled kernels cannot"),
        (
            "x\n        if i > 9:\n            raise ValueError",
            "has 'raise ValueError'",
        ),
    ],
)
def test_what_kernels_cannot_do_is_an_error(lowered, expression, message):
    with pytest.raises(BackendError, match=message):
        replaced(lowered, expression).compile()


def test_an_edited_kernel_that_is_as_printed_is_compiled_as_one(lowered, monkeypatch):
    (kernel,) = lowered.kernels
    edited = kernel.source.replace("* f64(2", "* f64(3")
    monkeypatch.setattr(written_kernels, "executed_function", pytest.fail)
    result = lowered.with_kernel(kernel.name, edited).compile()(X)
    np.testing.assert_allclose(result, np.tanh(X) * 3)


def test_one_of_several_kernels_is_replaced_and_the_others_stay():
    lowered = af.jit(sum_of_squares).lower(np.ones((40, 30)))
    first, second = lowered.kernels
    source = re.sub(r"(\w+) = (\w+) \* \2\b", r"\1 = \2 + \2", first.source)
    assert source != first.source
    changed = lowered.with_kernel(first.name, source)
    assert changed.kernels[1] is second
    assert float(changed.compile()(np.ones((40, 30)))) == 2400


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("rows_7", "", "there is no generated kernel 'rows_7'"),
        ("elementwise_0", "def f(:", "is not Python"),
        ("elementwise_0", "def other(): pass", "defines no function elementwise_0"),
        ("elementwise_0", "def elementwise_0(a): pass", "must have the parameters"),
    ],
)
def test_what_is_no_kernel_is_refused(lowered, name, source, message):
    with pytest.raises(ArgumentError, match=message):
        lowered.with_kernel(name, source)


def test_kernels_for_a_gpu_are_replaced_by_what_every_thread_does():
    traced = trace_function(lambda x: x + x, (X,), {})
    compiled = lower_for_cuda(traced.program)
    structure = tree.structure(((X,), {}))
    lowered = Lowered(
        traced.program, compiled, structure, traced.out_tree, BACKENDS["cuda"]
    )
    (kernel,) = lowered.kernels
    edited = kernel.source.replace("x + x", "x - x")
    changed = lowered.with_kernel(kernel.name, edited)
    (result,) = run_plan(changed.compiled_program, [X])
    np.testing.assert_array_equal(result, np.zeros_like(X))
    with pytest.raises(ArgumentError, match="must have the parameters x_in, a_out"):
        lowered.with_kernel(kernel.name, f"def {kernel.name}(x): pass")


def test_a_traced_function_is_lowered_later():
    traced = af.jit(lambda x, k: x * k, static_argnums=1).trace(np.ones(3), 2.0)
    assert str(traced.program.output_types[0]) == "f64[3]"
    assert traced.lower().compile()(np.ones(3)).tolist() == [2.0] * 3


def test_what_comes_out_is_known_before_it_is_compiled():
    double = af.jit(lambda x, n: {"y": x * n, "n": n}, static_argnums=1)
    want = {
        "y": af.ShapeDtypeStruct((2, 3), np.float32),
        "n": af.ShapeDtypeStruct((), np.int64, weak_type=True),
    }
    x = af.ShapeDtypeStruct((2, 3), np.float32)
    assert double.eval_shape(x, 2) == double.trace(x, 2).out_info == want
    checked = af.jit(lambda x: x[0], checks="index").lower(np.ones(3))
    assert checked.out_info == af.ShapeDtypeStruct((), np.float64)
