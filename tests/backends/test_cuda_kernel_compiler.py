"""The compiler of kernels for a GPU: what it knows, and what it leaves to Numba."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from arrayfn.backends.cuda import kernel_compiler, missing_packages
from arrayfn.backends.cuda.code import compile_ptx, neutral, overlapping
from arrayfn.backends.kernel_language import UnsupportedKernelError
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS
from arrayfn.lowering.plan import Kernel, Parameter

VERSION = (2, 0, 3, 2)
needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())


def kernel(body: str, *parameters: str, words: str = "block_index, thread_index"):
    names = ", ".join(p.partition(":")[0] for p in parameters)
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    source = (
        f"from arrayfn.lowering.cuda.vocabulary import {words}\n"
        "from arrayfn.lowering.scalars import add_f32, f32, i64, sqrt_f32\n\n\n"
        f"def work({names}):\n{lines}\n"
    )
    made = [Parameter(*p.split(":")) for p in parameters]
    return Kernel("work", source, source, tuple(made), threads=128)


def ir_of(body: str, *parameters: str, **options: str) -> str:
    return kernel_compiler.kernel_ir(kernel(body, *parameters, **options), VERSION)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=lambda f: f.name)
@needs_compiler
def test_what_gives_a_value_is_what_numba_gives_a_type(function):
    numba_cuda = importlib.import_module("arrayfn.backends.cuda.numba_cuda")
    counted = ("shared", "registers", "signals", "await_copies", "unrolled")
    if function.kind not in counted:
        result = numba_cuda._types_of(function)[0]
        given = result is not numba_cuda.types.none
        assert given == (function.kind in kernel_compiler.GIVING)


def test_an_entry_says_how_it_is_launched():
    text = ir_of("x[thread_index()] = f32(1)", "x:f32*")
    assert '!{ void (float*)* @"work", !"kernel", i32 1 }' in text
    assert '!{ void (float*)* @"work", !"maxntidx", i32 128 }' in text
    assert "float* noalias" in text


def test_truth_lies_in_bytes_and_is_computed_in_bits():
    body = (
        "held = shared_bool(4)\nheld[0] = x[0] < x[1]\nif held[1]:\n    x[2] = f32(0)"
    )
    text = ir_of(body, "x:f32*", words="shared_bool")
    assert "[4 x i8]" in text
    assert "zext i1" in text


def test_small_arrays_lie_within_a_line_of_shared_memory():
    made = {"signals_i64": 9, "shared_f32": 8, "shared_i64": 3, "shared_f64": 500}
    body = "\n".join(f"{name}_a = {name}({n})" for name, n in made.items())
    text = ir_of(body, words=", ".join(made))
    found = re.findall(r"\[(\d+) x \w+\] undef, align (\d+)", text)
    assert dict(found) == {"9": "128", "8": "32", "3": "32", "500": "128"}


def test_complex_numbers_are_exchanged_as_structures():
    words = "registers_c64, shuffle_xor_c64"
    body = "t = registers_c64(2)\nt[0] = x[0]\nx[1] = shuffle_xor_c64(t[0], 1)"
    text = ir_of(body, "x:c64*", words=words)
    assert text.count('call i32 @"llvm.nvvm.shfl.sync.bfly.i32"') == 2


def test_pointers_may_move():
    body = "now = x\nfor k in range(3):\n    now[k] = y[k]\n    now = y"
    text = ir_of(body, "x:f32*", "y:f32*")
    assert "alloca float*" in text


def test_parts_become_one_kernel():
    made = kernel("part(x, 3)\npart(x, 5)", "x:f32*")
    source = made.source.replace(
        "def work", "def part(p, n):\n    p[n] = f32(0)\n\n\ndef work"
    )
    text = kernel_compiler.kernel_ir(
        Kernel("work", source, source, made.parameters, threads=128), VERSION
    )
    assert text.count("define internal void") == 1
    assert text.count("call void") == 2


@pytest.mark.parametrize(
    "body",
    [
        "x[0] = (x[0], x[1])[0]",
        "x[0] = x[0] + 1",
        "x[0] = x[0] ** 2",
        "y = [1]",
        "held = registers_f32(x[0])",
        "held = registers_f32(2)\nheld = x[0]",
    ],
)
def test_what_it_does_not_know_is_unsupported(body):
    with pytest.raises(UnsupportedKernelError):
        ir_of(body, "x:f32*", words="registers_f32")


@needs_compiler
@pytest.mark.cuda
def test_kernels_that_use_more_of_python_go_to_numba():
    made = kernel("a, b = x[0], x[1]\nx[2] = a * b", "x:f32*")
    with pytest.raises(UnsupportedKernelError):
        kernel_compiler.compile_ptx(made, (9, 0))
    assert "mul.rn.f32" in compile_ptx(made, (9, 0))


@needs_compiler
@pytest.mark.cuda
def test_generated_code_needs_no_numba():
    made = kernel("x[thread_index()] = sqrt_f32(x[block_index()])", "x:f32*")
    before = set(sys.modules)
    ptx = kernel_compiler.compile_ptx(made, (9, 0))
    assert "sqrt.rn.f32" in ptx
    assert ".maxntid 128" in ptx
    assert not {m for m in set(sys.modules) - before if m.startswith("numba")}


@needs_compiler
def test_a_kernel_waits_for_those_before_it_before_it_touches_memory():
    copying = kernel("y[thread_index()] = x[thread_index()]", "x:f32*", "y:f32*")
    alone = compile_ptx(copying, (9, 0))
    assert "ld.global.nc.f32" in alone
    ptx = overlapping(alone)
    assert "ld.global.f32" in ptx
    assert ".nc" not in ptx
    body = ptx[ptx.index("{", ptx.index(".entry")) :]
    assert body.split(";")[0].split() == ["{", "griddepcontrol.wait"]
    assert ptx.count("griddepcontrol") == 1


@needs_compiler
def test_a_replaced_kernel_is_compiled_from_its_own_text():
    replaced = kernel("out[thread_index()] = f32(2.5)", "out:f32*")
    assert replaced.is_replaced
    text = neutral(replaced)
    assert "def kernel(out):" in text.source
    ptx = compile_ptx(text, (9, 0))
    assert re.findall(r"\.entry (\w+)\(", ptx) == ["kernel"]
    assert "1075838976" in ptx  # the bits of 2.5


def test_a_generated_kernel_is_compiled_from_its_neutral_text():
    named = "def work(out):\n    out[0] = f32(1.0)\n"
    plain = "def kernel(p0):\n    p0[0] = f32(2.0)\n"
    made = Kernel("work", named, plain, (Parameter("out", "f32*"),), threads=1)
    assert not made.is_replaced
    assert neutral(made).source == plain
