"""Functions that Numba compiled, called in traced functions."""

from __future__ import annotations

import math
import re

import numba
import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.errors import (
    ArgumentError,
    DifferentiationError,
    KernelMismatchError,
    ShapeError,
)
from arrayfn.lowering.operator_kernels import KERNELS

X = np.array([1.0, 2.0, -3.0])


@numba.njit
def doubled(x):
    return x * 2


@numba.njit
def wave(x, factor=2.0, shift=0):
    return doubled(x) * factor + np.sin(x) + shift


@numba.njit
def number(a, b):
    return math.exp(max(a, 0.0)) + math.atan2(a, b) - math.floor(b)


@numba.njit
def branch(a):
    if a > 0:
        return a * a
    return -a


@numba.njit
def running_sum(x):
    out = np.empty_like(x)
    total = 0.0
    for k in range(len(x)):
        total += x[k]
        out[k] = total
    return out


@numba.njit
def pair(x):
    return x + 1, x.sum()


@numba.vectorize
def larger_times(a, b):
    return a * b if a > b else a


@numba.vectorize(["float64(float64, float64)"])
def sine_product(a, b):
    return math.sin(a) * b


@numba.guvectorize(["(float64[:], float64[:], float64[:])"], "(n),()->(n)")
def moved(x, by, out):
    out[:] = x + by[0]


@numba.guvectorize("(n)->()")
def total(x, out):
    out[0] = x.sum()


CALLS = {
    "njit": (wave, (X,)),
    "njit with arguments": (lambda x: wave(x, 3.0, shift=x) + wave(x, shift=1), (X,)),
    "njit of a tuple": (lambda x: anp.stack(pair(x)[:1]) * pair(x)[1], (X,)),
    "njit of numbers": (number, (0.5, 1.5)),
    "njit with a branch": (branch, (-2.0,)),
    "vectorize with a branch": (lambda x: larger_times(x, x[::-1]), (X,)),
    "vectorize": (lambda x: sine_product(x, 2.0 * x), (X,)),
    "guvectorize": (lambda x: moved(x, x[:1, None] + 1), (X,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_function_computes_the_same_in_a_traced_one(name):
    function, args = CALLS[name]
    np.testing.assert_allclose(af.jit(function)(*args), function(*args), rtol=1e-15)


def test_it_is_an_operator_whose_kernel_is_the_compiled_function():
    lowered = af.jit(wave).lower(X)
    text = str(lowered.program)
    # Another function of the name, compiled before, leaves the next name to this one.
    assert re.search(r"operator_call\(x\) \{name='numba\.wave(_\d+)?'", text)
    assert re.search(r"operator_call\(a\) \{name='numba\.doubled(_\d+)?'", text)
    assert re.search(r"numba\.wave(_\d+)? by wave", str(lowered.kernels))
    assert not wave.nopython_signatures or wave(X).shape == X.shape


@numba.vectorize(["float64(float64)"])
def wrong_in_numba(x):
    return x + 1.0


def test_the_kernel_is_compared_with_the_source(monkeypatch):
    made = af.adapters.numba(wrong_in_numba)
    monkeypatch.setattr(made, "python", lambda x: x + 2.0)
    with pytest.raises(KernelMismatchError, match=r"operator numba\.wrong_in_numba"):
        af.jit(made)(X)
    made = af.adapters.numba(wrong_in_numba, check=False)
    monkeypatch.setattr(made, "python", lambda x: x + 2.0)
    np.testing.assert_array_equal(af.jit(made)(X), X + 1)


def test_derivatives_and_maps_go_through_the_source():
    by_hand = 4 + np.cos(X)
    np.testing.assert_allclose(
        af.jit(af.grad(lambda x: wave(x).sum()))(X), by_hand, rtol=1e-15
    )
    np.testing.assert_allclose(af.grad(lambda x: wave(x).sum())(X), by_hand, rtol=1e-15)
    mapped = af.jit(af.vmap(number))(X, X + 5)
    np.testing.assert_allclose(
        mapped, [number(a, b) for a, b in zip(X, X + 5, strict=True)], rtol=1e-15
    )
    assert af.grad(branch)(3.0) == 6.0  # of the branch that is taken


def test_maps_of_what_is_not_traced_call_the_compiled_function():
    np.testing.assert_array_equal(af.jit(af.vmap(branch))(X), [1, 4, 3])
    rows = np.stack([X, 2 * X])
    np.testing.assert_array_equal(
        af.jit(af.vmap(lambda x: larger_times(x, X[::-1])))(rows),
        larger_times(rows, X[::-1]),
    )
    np.testing.assert_array_equal(
        af.jit(af.vmap(lambda x: moved(x, 1.0)))(rows), rows + 1
    )


def test_a_gpu_runs_the_source():
    (kernel,) = af.jit(wave, device="cuda").lower(X).kernels
    assert "sin_f64" in kernel.source


def test_operands_that_are_written_to_are_copies():
    @numba.njit
    def cleared(x):
        x[0] = 0.0
        return x

    x = X.copy()
    f = af.jit(af.adapters.numba(cleared, result=lambda x: x))
    np.testing.assert_array_equal(f(x), [0, 2, -3])
    np.testing.assert_array_equal(x, X)


def rule(x, result, cotangent):
    np.testing.assert_array_equal(result.shape, x.shape)
    return (anp.cumsum(cotangent[::-1])[::-1],)


def test_a_result_and_a_rule_can_be_given():
    running = af.adapters.numba(running_sum, result=lambda x: x, vjp=rule)
    np.testing.assert_array_equal(af.jit(running)(X), np.cumsum(X))
    gradient = af.jit(af.grad(lambda x: (running(x) * x).sum()))(X)
    np.testing.assert_allclose(gradient, np.cumsum(X) + np.cumsum(X[::-1])[::-1])
    of_rows = af.jit(af.vmap(running))(np.stack([X, X]))
    np.testing.assert_array_equal(of_rows, np.cumsum([X, X], axis=1))


def test_a_guvectorize_function_that_wants_its_result():
    summed = af.adapters.numba(total, result=lambda x: af.ShapeDtypeStruct((), x.dtype))
    assert af.jit(summed)(X) == 0.0


def test_outside_of_traces_the_compiled_function_runs():
    running = af.adapters.numba(running_sum)
    np.testing.assert_array_equal(running(X), np.cumsum(X))
    assert repr(running) == "<Numba function running_sum>"
    assert wave(X, 1.0).dtype == np.float64


def test_equal_names_are_different_operators():
    def made(step):
        @numba.njit
        def moved_by(x):
            return x + step

        return moved_by

    one, two = made(1.0), made(2.0)
    f = af.jit(lambda x: one(x) * two(x))
    np.testing.assert_array_equal(f(X), (X + 1) * (X + 2))
    names = {n for n in KERNELS.names() if n.startswith("numba.moved_by")}
    assert len(names) == 2


@numba.njit("float64[:](float64[:])")
def declared(x):
    return x + 1


MISTAKES = {
    "writes": (
        lambda: af.jit(running_sum)(X),
        ArgumentError,
        (
            r"Numba compiled, cannot be traced: x\[index\] = y .* what it returns: "
            r"arrayfn\.adapters\.numba\(running_sum, result=lambda x: x\)"
        ),
    ),
    "derivative": (
        lambda: af.jit(af.grad(branch))(2.0),
        DifferentiationError,
        r"adapters\.numba\(f, vjp=rule\)",
    ),
    "signatures": (
        lambda: af.jit(declared)(X),
        ArgumentError,
        r"is compiled for the signatures .* arrayfn\.adapters\.numba\(declared\)",
    ),
    "shape": (
        lambda: af.jit(
            af.adapters.numba(running_sum, result=af.ShapeDtypeStruct((2,), "float64"))
        )(X),
        ShapeError,
        r"running_sum",
    ),
    "python": (
        lambda: af.adapters.numba(np.mean),
        ArgumentError,
        "takes a function that Numba compiled, not mean",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_say_what_to_write(name):
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()


def test_declared_signatures_are_kept_by_the_adapter():
    np.testing.assert_array_equal(
        af.jit(af.adapters.numba(declared))(X[::-1]), declared(X[::-1].copy())
    )


def test_a_kernel_of_cuda_jit_says_how_it_is_registered():
    cuda = pytest.importorskip("numba.cuda")

    @cuda.jit
    def kernel(x, out):
        out[0] = x[0]

    with pytest.raises(ArgumentError, match=r"arrayfn\.adapters\.cuda_jit\(kernel, "):
        af.jit(lambda x: kernel[200, 1](x, x))(X)
