"""GPU kernels through numba-cuda: printed ones, and ones written by hand."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from textwrap import dedent

import pytest

from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import (
    kernel_ir,
    kernel_ptx,
    with_dependent_launch,
    with_neutral_name,
)
from arrayfn.backends.numba.dialect import UntypedKernelError
from arrayfn.errors import BackendError
from arrayfn.lowering.plan import Kernel, Parameter

pytestmark = [
    pytest.mark.skipif(bool(missing_packages()), reason=missing_packages()),
    pytest.mark.cuda,
]
ARCH = (9, 0)


def kernel(
    body: str,
    *parameters: str,
    words: str = "block_index, thread_index",
    before: str = "",
    written: bool = False,
) -> Kernel:
    names = ", ".join(p.partition(":")[0] for p in parameters)
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    source = (
        f"from arrayfn.lowering.cuda.vocabulary import {words}\n"
        "from arrayfn.lowering.scalars import add_f32, f32, i64, sqrt_f32\n\n\n"
        f"{before}def kernel({names}):\n{lines}\n"
    )
    made = [Parameter(*p.split(":")) for p in parameters]
    text = source if written else f"# What was fused.\n{source}"
    return Kernel("kernel", text, source, tuple(made), threads=128)


def ir_of(body: str, *parameters: str, **options: str) -> str:
    (text,) = kernel_ir(kernel(body, *parameters, **options), ARCH)
    return text


def test_an_entry_says_how_it_is_launched():
    text = ir_of("x[thread_index()] = f32(1)", "x:f32*")
    assert '!{ void (float*)* @"kernel", !"kernel", i32 1 }' in text
    assert '!{ void (float*)* @"kernel", !"maxntidx", i32 128 }' in text
    assert "float* noalias" in text


def test_truth_lies_in_bytes_and_is_computed_in_bits():
    body = (
        "held = shared_bool(4)\nheld[0] = x[0] < x[1]\nif held[1]:\n    x[2] = f32(0)"
    )
    text = ir_of(body, "x:f32*", words="shared_bool")
    assert "[4 x i8]" in text
    assert "zext i1" in text


def test_small_arrays_lie_within_a_line_of_shared_memory():
    made = {"mbarriers_i64": 9, "shared_f32": 8, "shared_i64": 3, "shared_f64": 500}
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


PART = "def part(p, n):\n    p[n] = f32(0)\n\n\n"


def test_parts_become_one_kernel():
    text = ir_of("part(x, 3)\npart(x, 5)", "x:f32*", before=PART)
    assert text.count("define internal void") == 1
    assert text.count("call void") == 2


def test_a_loop_that_is_to_be_unrolled_says_so():
    body = "for k in unrolled(40):\n    for j in range(n):\n        x[k + j] = f32(k)"
    text = ir_of(body, "x:f32*", "n:i64", words="unrolled")
    assert text.count("llvm.loop.unroll.full") == 1
    assert len(re.findall(r"br label .*!llvm.loop", text)) == 1


def test_a_function_is_called_with_what_a_branch_gives():
    body = "x[0] = sqrt_f32(x[1] if n > 2 else x[2])"
    assert "@llvm.sqrt.f32" in ir_of(body, "x:f32*", "n:i64").replace('"', "")


@pytest.mark.parametrize(
    "body",
    [
        "x[0] = (x[0], x[1])[0]",
        "x[0] = x[0] + 1",
        "x[0] = x[0] ** 2",
        "y = [1]",
        "held = registers_f32(x[0])",
        "held = registers_f32(2)\nfor k in range(2):\n    held = x[0]",
        "x[0] = open('a')",
    ],
)
def test_what_no_printed_kernel_has_is_refused(body):
    with pytest.raises(BackendError, match="kernel cannot be compiled"):
        ir_of(body, "x:f32*", words="registers_f32")


def test_nothing_of_a_printed_kernel_is_executed():
    compiler = importlib.import_module("arrayfn.backends.cuda.kernel_compiler")
    made = kernel("x[0] = f32(1)", "x:f32*", before="import os\n\n\n")
    with pytest.raises(UntypedKernelError, match="import os"):
        compiler.printed_ir(with_neutral_name(made))


WRITTEN = {
    "a tuple": ("a, b = x[0], x[1]\nx[2] = a * b", "mul.rn.f32"),
    "math": ("x[0] = math.sqrt(x[1])", "sqrt.rn.f32"),
    "abs, min and max": ("x[0] = max(abs(x[1]), min(x[2], x[3]))", "abs.f32"),
    "a power": ("x[0] = x[1] ** 2", "mul.rn.f32"),
    "a helper function": ("x[0] = helper(x[1], 2)", "ex2.approx"),
    "shared memory of numba-cuda": (
        (
            "held = cuda.shared.array(128, float32)\n"
            "held[cuda.threadIdx.x] = x[cuda.threadIdx.x]\n"
            "barrier()\n"
            "x[cuda.threadIdx.x] = held[127 - cuda.threadIdx.x]"
        ),
        "st.shared.f32",
    ),
    "an array of numba-cuda in the vocabulary": (
        (
            "held = cuda.local.array(4, float32)\n"
            "load_f32x4(x, thread_index() * 4, held, 0)\n"
            "x[block_index()] = held[0] + held[3]"
        ),
        "ld.global.v4.f32",
    ),
    "the vocabulary": (
        "for k in unrolled(3):\n    x[k] = shuffle_xor_f32(x[k], 1 << k)",
        "shfl.sync.bfly.b32",
    ),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_kernels_written_by_hand_use_what_numba_cuda_knows(case):
    body, instruction = WRITTEN[case]
    before = (
        "import math\n\nfrom numba import cuda, float32\n\n\n"
        "def helper(y, n):\n    return math.exp(y) * float32(n)\n\n\n"
    )
    words = "barrier, block_index, load_f32x4, shuffle_xor_f32, thread_index, unrolled"
    made = kernel(body, "x:f32*", words=words, before=before, written=True)
    assert made.is_replaced
    ptx = kernel_ptx(made, ARCH)
    assert instruction in ptx
    assert re.findall(r"\.entry (\w+)\(", ptx) == ["kernel"]
    assert ".maxntid 128" in ptx
    assert "NumbaEnv" not in ptx


def test_the_simulator_of_numba_cuda_is_named_where_it_compiles_nothing():
    program = "import arrayfn.backends.cuda.kernel_compiler"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "BackendError: NUMBA_ENABLE_CUDASIM is set" in done.stderr


def test_what_numba_cuda_refuses_is_reported_with_the_kernel():
    made = kernel("x[0] = nothing(1)", "x:f32*", written=True)
    with pytest.raises(BackendError, match=r"kernel kernel: (?s:.*)nothing"):
        kernel_ptx(made, ARCH)


def test_a_process_that_compiles_nothing_imports_no_numba():
    program = """
        import sys
        import arrayfn
        from arrayfn.backends.cuda import code, executable
        assert not [m for m in sys.modules if m.partition(".")[0] == "numba"]
    """
    subprocess.run([sys.executable, "-c", dedent(program)], check=True)


def test_a_kernel_waits_for_those_before_it_before_it_touches_memory():
    copying = kernel("y[thread_index()] = x[thread_index()]", "x:f32*", "y:f32*")
    alone = kernel_ptx(copying, (8, 0))
    assert "ld.global.nc.f32" in alone
    ptx = with_dependent_launch(alone)
    assert "ld.global.f32" in ptx
    assert ".nc" not in ptx
    body = ptx[ptx.index("{", ptx.index(".entry")) :]
    assert body.split(";")[0].split() == ["{", "griddepcontrol.wait"]
    assert ptx.count("griddepcontrol") == 1


def test_a_replaced_kernel_is_compiled_from_its_own_text():
    source = "def work(out):\n    out[0] = 2.5\n"
    replaced = Kernel("work", source, source, (Parameter("out", "f32*"),), threads=1)
    assert replaced.is_replaced
    assert "def kernel(out):" in with_neutral_name(replaced).source
    ptx = kernel_ptx(replaced, ARCH)
    assert re.findall(r"\.entry (\w+)\(", ptx) == ["kernel"]
    assert "1075838976" in ptx  # the bits of 2.5


def test_a_generated_kernel_is_compiled_from_its_neutral_text():
    named = "def work(out):\n    out[0] = f32(1.0)\n"
    plain = "def kernel(p0):\n    p0[0] = f32(2.0)\n"
    made = Kernel("work", named, plain, (Parameter("out", "f32*"),), threads=1)
    assert not made.is_replaced
    assert with_neutral_name(made).source == plain
