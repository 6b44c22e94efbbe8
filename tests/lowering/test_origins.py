"""Plan steps know which equations they compute, and what they cost."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.registry import BACKENDS
from arrayfn.ir.format import equation_lines, format_program
from arrayfn.lowering.operations import operations_of
from arrayfn.lowering.plan import kernel_calls, numbered
from arrayfn.primitives.table import TABLE
from arrayfn.transforms import make_program
from tests.lowering.test_kernels_of_the_table import program_of_samples

X = np.ones((16, 8), np.float32)
W = np.ones((8, 8), np.float32)


def softmax(x: Any) -> Any:
    e = anp.exp(x - anp.max(x, axis=1, keepdims=True))
    return e / anp.sum(e, axis=1, keepdims=True)


def network(w: Any, x: Any) -> Any:
    h = anp.tanh(x @ w)
    return -anp.mean(anp.log(softmax(h.T)))


def loop(w: Any, x: Any) -> Any:
    def body(h: Any, row: Any) -> Any:
        h = anp.tanh(w @ h + row)
        return h, anp.sum(h)

    h, sums = lax.scan(body, x[0], x)
    return anp.sum(h) + lax.cond(sums[0] > 0, anp.sum, anp.max, sums)


def algebra(w: Any, x: Any) -> Any:
    return anp.sort(anp.linalg.solve(w + anp.eye(8), x.T)), anp.argmax(x, axis=0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "function",
    [network, af.grad(network), loop, af.grad(loop), algebra],
    ids=["network", "its gradient", "loop", "its gradient in reverse", "algebra"],
)
def test_every_equation_belongs_to_a_step(function: Any, device: str) -> None:
    lowered = af.jit(function, device=device).lower(W, X)
    lines = lowered.compiled_program.text.splitlines()
    wanted = {k for k, line in enumerate(lines, 1) if re.search(r": .* = \w+\(", line)}
    # A copy that only hands an input on may have become the loop's own.
    wanted -= {k for k in wanted if "= relayout(" in lines[k - 1]}
    found: set[int] = set()
    for _, step in numbered(lowered.plan.steps):
        for origin in step.origins:
            found.add(origin.line)
            assert str(origin.source or "") in lines[origin.line - 1]
    assert wanted <= found


def test_lines_are_those_of_the_text() -> None:
    program = make_program(af.grad(loop))(W, X)
    text = format_program(program).splitlines()
    found = dict(equation_lines(program))
    assert len(found) == sum(re.search(r": .* = \w+\(", t) is not None for t in text)
    for line, equation in found.items():
        assert f"= {equation.primitive.name}(" in text[line - 1]


def test_operations_count_what_a_kernel_computes_again() -> None:
    lowered = af.jit(softmax).lower(X)
    (step,) = lowered.plan.steps
    done = {o.line: o.operations for o in step.origins}
    text = lowered.compiled_program.text.splitlines()
    by_name = {text[k - 1].split(" = ")[1].split("(")[0]: n for k, n in done.items()}
    assert by_name["reduce_max"] == by_name["reduce_sum"] == 16 * 8
    assert by_name["exp"] % (16 * 8) == 0
    assert by_name["broadcast_in_dim"] == 0


def test_cost_and_memory() -> None:
    lowered = af.jit(loop).lower(W, X)
    cost = lowered.cost()
    product = 16 * 2 * 8 * 8
    assert product <= cost.operations < 2 * product
    assert cost.bytes == sum(step.bytes for step in cost.steps)
    text = str(cost)
    assert text.splitlines()[-1].split() == [
        "total",
        str(cost.operations),
        str(cost.bytes),
    ]
    memory = lowered.memory()
    assert memory.inputs == W.nbytes + X.nbytes
    assert memory.outputs == 4
    assert memory.total >= memory.inputs + memory.temporaries


def test_how_often_a_while_loop_runs_is_not_known() -> None:
    def doubled(x: Any) -> Any:
        return lax.while_loop(lambda x: anp.sum(x) < 9.0, lambda x: x @ W + x, x)

    big = np.ones((256, 8), np.float32)
    runs = {step.runs for step in af.jit(doubled).lower(big).cost().steps}
    assert None in runs


def test_a_result_in_place_is_read_and_written() -> None:
    x = np.ones((64, 32))
    cost = af.jit(lambda w, x: x @ w + 1).lower(np.ones((32, 16)), x).cost()
    assert cost.steps[1].bytes == 2 * 8 * 64 * 16


def test_assembly_of_a_kernel() -> None:
    lowered = af.jit(softmax).lower(X)
    (kernel,) = lowered.kernels
    text = lowered.assembly(kernel.name)
    assert text.startswith(f"// {kernel.name}\n")
    assert "entry:" in text
    with pytest.raises(TypeError, match="there is no generated kernel 'other'"):
        lowered.assembly("other")
    with pytest.raises(TypeError, match=r"lowered for cpu, not cuda: lower jit\(f, "):
        lowered.ptx()


@pytest.mark.cuda
def test_ptx_without_a_gpu() -> None:
    pytest.importorskip("numba_cuda")
    lowered = af.jit(softmax, device="cuda").lower(X)
    assert ".visible .entry kernel(" in lowered.ptx()
    with pytest.raises(TypeError, match=r"ptx\(\) is the PTX of a GPU's kernels"):
        lowered.assembly()


ROWS = ["qr", "fft", "cumsum", "padded_convolution", "cholesky", "scatter_add"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ROWS)
def test_every_call_of_a_primitives_plan_has_an_origin(name: str, device: str) -> None:
    program, _, _ = program_of_samples(TABLE[name])
    compiled = BACKENDS[device].lower(program, frozenset())
    done = 0
    for call in kernel_calls(compiled.plan.steps):
        assert call.origins, call.kernel
        done += call.operations
    # Steps of one equation share its operations.
    counted = sum(operations_of(equation) for equation in program.equations)
    if name in ("qr", "fft", "cholesky"):
        assert 0.9 * counted <= done
