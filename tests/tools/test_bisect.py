"""Bisection finds seeded faults: 50 of 50, in loops and in the backward pass too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cpu import CpuBackend
from arrayfn.backends.reference import ReferenceBackend
from arrayfn.backends.registry import BACKENDS, register_backend
from arrayfn.ir import Equation, Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import Kernel
from arrayfn.primitives.calls import evaluate
from arrayfn.tools.bisect import bisect

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 5)).astype(np.float32)
W = RNG.standard_normal((5, 4)).astype(np.float32)


def softmax(x: Any) -> Any:
    e = anp.exp(x - anp.max(x, axis=1, keepdims=True))
    return e / anp.sum(e, axis=1, keepdims=True)


def network(w: Any, x: Any) -> Any:
    h = softmax(anp.tanh(x @ w))
    return -anp.mean(anp.log(h + 0.1) * anp.where(h > 0.2, h, 0.5))


def recurrent(w: Any, x: Any) -> Any:
    def body(h: Any, row: Any) -> Any:
        h = anp.tanh(h + row @ w)
        return h, anp.sum(h * h)

    h, ys = lax.scan(body, anp.zeros(4, np.float32), x)
    return anp.sum(ys) * anp.max(h)


def indexed(w: Any, x: Any) -> Any:
    order = anp.argsort(x[:, 0])
    y = x[order].at[1].add(2.0)
    return anp.sum(anp.cumsum(y, axis=0)[2:] * anp.concatenate([w.T, w.T])[2:6])


PROGRAMS = [network, af.grad(network), recurrent, af.grad(recurrent), indexed]
PROGRAMS += [af.grad(indexed), af.value_and_grad(network), af.jacfwd(network)]


class Faulty(ReferenceBackend):
    """The reference, in which one equation, chosen by ``seed``, is wrong."""

    name = "faulty"

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.target: Equation | None = None
        self.programs: dict[int, Program] = {}

    def lower(self, program: Program, *args: Any, **kwargs: Any) -> CompiledProgram:
        if self.target is None:
            every = [eq for eq in executed(program) if eq.outputs[0].type.size]
            self.target = every[int(self.random.integers(len(every)))]
        compiled = super().lower(program, *args, **kwargs)
        self.programs[id(compiled)] = program
        return compiled

    def load(self, compiled: CompiledProgram) -> Any:
        program = self.corrupted(self.programs[id(compiled)])

        def run(arrays: Sequence[Any]) -> list[Any]:
            with np.errstate(all="ignore"):
                return [np.asarray(x) for x in evaluate(program, arrays)]

        return run

    def corrupted(self, program: Program) -> Program:
        """``program`` with a wrong reference for the target."""
        equations: list[Equation] = []
        for equation in program.equations:
            row: Any = equation.primitive
            if equation is self.target:
                row = dataclasses.replace(row, reference=self.wrong(row.reference))
            params = {
                k: self.corrupted(v) if isinstance(v, Program) else v
                for k, v in equation.params.items()
            }
            equations.append(
                dataclasses.replace(equation, primitive=row, params=params)
            )
        return dataclasses.replace(program, equations=tuple(equations))

    def wrong(self, reference: Any) -> Any:
        """``reference`` with one element of its first result changed."""
        place, kind = self.random.random(), int(self.random.integers(3))

        def compute(*operands: Any, **params: Any) -> Any:
            results = reference(*operands, **params)
            several = isinstance(results, (tuple, list))
            first = np.array(results[0] if several else results)
            k = int(place * first.size)
            if first.dtype == np.bool_:
                first.flat[k] = not first.flat[k]
            elif first.dtype.kind in "iu" or first.flat[k] == 0:
                first.flat[k] += 1
            else:
                first.flat[k] *= (1.01, -1.0, np.nan)[kind]
            return (first, *results[1:]) if several else first

        return compute


def executed(program: Program) -> Iterator[Equation]:
    """The equations of a Program, and of those in its loops."""
    for equation in program.equations:
        inner = equation.subprograms()
        if not inner:
            yield equation
        for body in inner:
            yield from executed(body)


@pytest.mark.parametrize("seed", range(50))
def test_a_seeded_fault_is_found(seed: int) -> None:
    backend = Faulty(seed)
    register_backend(backend)
    try:
        fault = bisect(PROGRAMS[seed % len(PROGRAMS)], W, X, device="faulty")
    finally:
        del BACKENDS["faulty"]
    assert fault is not None
    assert fault.equation is backend.target
    assert fault.kind == "wrong"
    assert fault.location == backend.target.source
    assert f"= {backend.target.primitive.name}(" in fault.text


@pytest.mark.parametrize("function", PROGRAMS)
def test_nothing_is_wrong_with_what_is_right(function: Any) -> None:
    assert bisect(function, W, X) is None


class Edited(CpuBackend):
    """The CPU backend with other words in its kernels."""

    name = "edited"

    def __init__(self, old: str, new: str, beside: str = "") -> None:
        self.change = old, new
        self.beside = beside

    def lower(self, *args: Any, **kwargs: Any) -> CompiledProgram:
        compiled = super().lower(*args, **kwargs)
        old, new = self.change
        kernels = tuple(
            dataclasses.replace(k, key=k.key.replace(old, new))
            if isinstance(k, Kernel) and self.beside in k.key
            else k
            for k in compiled.kernels
        )
        return dataclasses.replace(compiled, kernels=kernels)


@pytest.fixture
def edited(request: pytest.FixtureRequest) -> Iterator[Edited]:
    backend = Edited(*request.param)
    register_backend(backend)
    yield backend
    del BACKENDS["edited"]


@pytest.mark.parametrize("edited", [("tanh_f32", "sinh_f32")], indirect=True)
def test_a_wrong_kernel_is_found(edited: Edited) -> None:
    fault = bisect(network, W, X, device="edited")
    assert fault is not None
    assert fault.equation.primitive.name == "tanh"
    assert not fault.fused
    first = network.__code__.co_firstlineno
    assert str(fault).startswith(f"{__file__}:{first + 1}: tanh is wrong at [")


@pytest.mark.parametrize(
    "edited", [("exp_f32", "neg_f32", "accumulate_add_f32")], indirect=True
)
def test_a_fault_of_fusion_is_found(edited: Edited) -> None:
    def total(x: Any) -> Any:
        y = anp.exp(x)
        return anp.sum(y * 2.0, axis=1)

    # Stored, the exponential is right: its kernel has no sum.
    class Alone(Edited):
        def lower(self, program: Program, *args: Any, **kwargs: Any) -> Any:
            stored = len(program.outputs) == len(program.equations) > 1
            lower = super().lower if not stored else CpuBackend().lower
            return lower(program, *args, **kwargs)

    register_backend(Alone(*edited.change, edited.beside), replace=True)
    edited.name = "edited"
    fault = bisect(total, X, device="edited")
    assert fault is not None
    assert fault.fused
    assert fault.equation.primitive.name == "reduce_sum"
    assert "only as a part of a fused kernel" in str(fault)


def test_nan_is_traced_to_its_equation() -> None:
    def norm(x: Any) -> Any:
        return anp.sqrt(anp.sum(x * x))

    fault = bisect(af.grad(norm), np.zeros(3))
    assert fault is not None
    assert fault.kind == "nan"
    assert fault.equation.primitive.name == "mul"
    assert fault.location is not None
    assert fault.location.line == norm.__code__.co_firstlineno + 1
    assert "inf" in str(fault)
    assert bisect(af.grad(norm), np.ones(3)) is None


def test_nan_in_a_loop_names_the_iteration() -> None:
    def run(x: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            return total + anp.log(row), None

        return lax.scan(body, 0.0, x)[0]

    x = np.ones(9)
    x[6] = -1.0
    fault = bisect(run, x)
    assert fault is not None
    assert fault.equation.primitive.name == "log"
    assert fault.inside[0].startswith("iteration 6 of scan at test_bisect.py:")
    assert "-1.0" in str(fault)


def test_nan_in_a_branch_and_in_a_while_loop() -> None:
    def branch(x: Any) -> Any:
        return lax.cond(x < 0, anp.sqrt, lambda x: x, x)

    def halved(x: Any) -> Any:
        return lax.while_loop(lambda x: x > -3, lambda x: anp.log(x) - 1, x)

    fault = bisect(branch, -1.0)
    assert fault is not None
    assert (fault.equation.primitive.name, fault.inside[0][:4]) == ("sqrt", "cond")
    fault = bisect(halved, 1.5)
    assert fault is not None
    assert fault.equation.primitive.name == "log"
    assert "while_loop" in fault.inside[0]


def test_a_nan_that_no_result_has_is_no_fault() -> None:
    assert bisect(lambda x: anp.where(x > 0, anp.log(x), 0.0), np.float64([-1, 2])) is (
        None
    )


def test_arguments_may_lie_in_memory_as_they_like() -> None:
    strided = np.arange(48.0).reshape(6, 8)[::2, ::-1]
    repeated = np.broadcast_to(np.arange(8.0), (3, 8))
    halves = strided.T.astype(np.float16)
    assert (
        bisect(lambda x, y, z: anp.tanh(x * y) @ z, strided, repeated, halves) is None
    )
    fault = bisect(lambda x: anp.log(x - 47.0), strided)
    assert fault is not None
    assert fault.equation.primitive.name == "log"
