"""Texts of GPU kernels: templates, imports, and blocks."""

from __future__ import annotations

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.handwritten import (
    Handwritten,
    HandwrittenCall,
    fill_template,
)
from arrayfn.lowering.cuda.imports import imports
from arrayfn.lowering.kernel_text import Body
from arrayfn.lowering.libraries.calls import Pointer


def test_parts_with_a_line_for_themselves_are_indented_as_that():
    template = "for i in range({n}):\n    {load}\n{end}"
    made = fill_template(
        template, n=4, load="\nx = a[i]\nif x:\n    b[i] = x\n", end=["y", "z"]
    )
    assert made.splitlines() == [
        "for i in range(4):",
        "    x = a[i]",
        "    if x:",
        "        b[i] = x",
        "y",
        "z",
    ]


def test_imports_are_what_is_called_and_infinities():
    lines = [
        "remainder = max_i64(x, n)  # at quotient(3)",
        "limit = select_f32(remainder == 0, F32_NEG_INF, f32(1))",
        "own(barrier_state)",
    ]
    assert imports(lines) == [
        "from arrayfn.lowering.scalars import F32_NEG_INF, f32, max_i64, select_f32"
    ]
    assert imports(["@device_function", "barrier()"]) == [
        "from arrayfn.lowering.cuda.vocabulary import barrier, device_function"
    ]


def test_blocks_end_with_their_with_statement():
    body = Body()
    with body.open("for i in range(2):"):
        with body.open_if(""):
            body.line("x = i")
        with body.open_if("x > 0"):
            body.line("y = x")
    body.line("z = y")
    assert body.lines == [
        "    for i in range(2):",
        "        x = i",
        "        if x > 0:",
        "            y = x",
        "    z = y",
    ]


def test_a_call_gives_its_arguments_in_the_order_of_the_parameters():
    x, out, flags = (
        Var(ArrayType((8,), t)) for t in (dtypes.float32, dtypes.int32, dtypes.uint64)
    )
    text = Handwritten("copy", "out[n] = i32(x[n])", 32, "Copies.", "a copy", cluster=2)
    call = HandwrittenCall(
        text,
        {"x": Pointer(x, 3)},
        {"out": Pointer(out)},
        {"n": 5},
        7,
        flag_buffer=flags,
    )
    kernel, step = call.kernel("copy_0"), call.step("copy_0")
    parameters = [(p.name, p.kind) for p in kernel.parameters]
    assert parameters == [
        *(("x", "f32*"), ("out", "i32*"), ("flag_buffer", "u64*"), ("n", "i64")),
    ]
    assert kernel.key == (
        "from arrayfn.lowering.scalars import i32\n\n\n"
        "def kernel(x, out, flag_buffer, n):\n    out[n] = i32(x[n])\n"
        "# f32*, i32*, u64*, i64\n"
    )
    assert (kernel.threads, kernel.cluster, step.items) == (32, 2, 7)
    assert step.pointers == [(x, 12), (out, 0), (flags, 0)]
    assert (step.integers, step.reads, step.writes) == ([5], [x], [out, flags])
