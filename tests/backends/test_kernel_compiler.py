"""Compiled kernels: printed and hand-written ones agree, and with un-jitted Python."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from arrayfn.backends.cpu.kernel_compiler import kernel_ir
from arrayfn.backends.cpu.written_kernels import written_kernel_ir
from arrayfn.backends.native import target
from arrayfn.backends.native.engine import ENGINE
from arrayfn.backends.numba.dialect import UntypedKernelError
from arrayfn.backends.numba.functions import executed_function
from arrayfn.backends.object_cache import content_key
from arrayfn.lowering.plan import Parameter
from arrayfn.lowering.scalars import SCALARS

HEAD = "from arrayfn.lowering.scalars import "


def parameters(signature: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(*p.split(":")) for p in signature.split())


def run(compiler: Any, source: str, signature: str, arrays: Any, *numbers: int) -> Any:
    """Run a kernel over items 0 to ``numbers[-1]``, on copies of arrays."""
    symbol = "arrayfn_test_" + content_key(compiler.__name__, source, signature)[:32]
    text = compiler(source, "k", parameters(signature), symbol)
    code = target.prepare_vectorized(text, interleave=False).compile()
    (address,) = ENGINE.load(symbol, code, (symbol,))
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    copies = [array.copy() for array in arrays]
    words = np.array([*(copy.ctypes.data for copy in copies), *numbers[:-1]], np.int64)
    entry(address)(words.ctypes.data, 0, numbers[-1])
    return copies


def unjitted(source: str, arrays: Any, *numbers: int) -> Any:
    """Run a kernel as Python."""
    function = executed_function(source, "k")
    copies = [array.copy() for array in arrays]
    flat = [copy.reshape(-1) for copy in copies]
    with np.errstate(all="ignore"):
        function(*flat, *numbers[:-1], 0, numbers[-1])
    return copies


def check(source: str, signature: str, arrays: Any, *numbers: int) -> list[Any]:
    """All three give the same bits; the arrays after the run."""
    results = run(kernel_ir, source, signature, arrays, *numbers)
    written = run(written_kernel_ir, source, signature, arrays, *numbers)
    as_python = unjitted(source, arrays, *numbers)
    for ours, numbas, pythons in zip(results, written, as_python, strict=True):
        assert ours.tobytes() == numbas.tobytes()
        assert ours.tobytes() == pythons.tobytes()
    return results


RNG = np.random.default_rng(0)
F32 = RNG.standard_normal(1000).astype(np.float32)
F64 = RNG.standard_normal(1000)


@pytest.mark.parametrize(
    ("kind", "x"), [("f32", F32), ("f64", F64), ("i64", np.arange(-500, 500))]
)
def test_infix_arithmetic(kind, x):
    source = """
def k(x, y, out, begin, end):
    for i in range(begin, end):
        out[i] = x[i] * y[i] + x[i] - y[i]
"""
    out = np.zeros_like(x)
    result = check(source, f"x:{kind}* y:{kind}* out:{kind}*", [x, x[::-1], out], 1000)
    np.testing.assert_array_equal(result[2], x * x[::-1] + x - x[::-1])


@pytest.mark.parametrize("divisor", [1, 3, -3, 7, -(2**62)])
def test_index_arithmetic_rounds_down(divisor):
    source = """
def k(out, n, begin, end):
    for i in range(begin, end):
        shifted = i - 10
        out[2 * i] = shifted // n
        out[2 * i + 1] = shifted % n
"""
    out = check(source, "out:i64* n:i64", [np.zeros(40, np.int64)], divisor, 20)[0]
    expected = [divmod(i - 10, divisor) for i in range(20)]
    np.testing.assert_array_equal(out.reshape(20, 2), expected)


def test_division_by_zero_does_not_trap():
    source = """
def k(out, n, begin, end):
    for i in range(begin, end):
        out[i] = i // n + i % n
"""
    signature = "out:i64* n:i64"
    out = run(kernel_ir, source, signature, [np.zeros(4, np.int64)], 0, 4)[0]
    assert out.shape == (4,)


def test_variables_carried_around_loops():
    source = f"""{HEAD}f64
def k(x, out, n, begin, end):
    for row in range(begin, end):
        total = f64(0)
        last = f64(-1.5)
        for i in range(n):
            value = x[row * n + i]
            total = total + value * last
            last = value
        out[row] = total
        last = total
        out[row + 10] = last
"""
    check(source, "x:f64* out:f64* n:i64", [F64, np.zeros(20)], 100, 10)


def test_a_variable_used_after_its_loop():
    source = """
def k(x, out, n, begin, end):
    for row in range(begin, end):
        for i in range(n):
            value = x[row + i]
        out[row] = value
        out[row + 10] = x[i]
"""
    check(source, "x:f64* out:f64* n:i64", [F64, np.zeros(20)], 100, 10)


def test_a_name_of_a_hand_written_kernel_may_be_of_another_dtype_in_another_loop():
    source = """
def k(x, y, out, begin, end):
    for i in range(begin, end):
        v = x[i]
        out[i] = v
    for i in range(begin, end):
        v = y[i]
        y[i] = v + 1
"""
    arrays = [F64, np.arange(10), np.zeros(1000)]
    signature = "x:f64* y:i64* out:f64*"
    written = run(written_kernel_ir, source, signature, arrays, 10)
    for compiled, python in zip(written, unjitted(source, arrays, 10), strict=True):
        assert compiled.tobytes() == python.tobytes()
    with pytest.raises(UntypedKernelError, match="line 7: v is int64, and was float64"):
        kernel_ir(source, "k", parameters(signature), "entry")


def test_branches():
    source = f"""{HEAD}gt_f64, select_f64
def k(x, out, begin, end):
    for i in range(begin, end):
        if i % 3 == 0:
            out[i] = x[i]
        if gt_f64(x[i], x[i + 1]):
            v = x[i] - x[i + 1]
            out[i] = v
        else:
            if i > 5:
                out[i] = x[i] / x[i + 1]
        out[i] = select_f64(i < 7, out[i], x[i])
"""
    check(source, "x:f64* out:f64*", [F64, np.zeros(20)], 20)


def test_while_break_continue_and_truth_values():
    source = f"""{HEAD}gt_f64
def k(x, out, n, begin, end):
    for row in range(begin, end):
        i = 0
        found = n
        while i < n and not gt_f64(x[row + i], x[row + i + 1]):
            i += 2
            if i == 4 or i > 10 and i < 20:
                continue
            found = i
            if i > 30:
                break
            out[row] += x[i]
        else_value = found * 1000 + i
        steps = 0
        for j in range(i, i + 7, 3):
            steps += j
        for j in range(i, -1, -2):
            if j == 3:
                break
            steps = steps * 2 + j
        out[row + 500] = x[(else_value + steps) % n]
"""
    check(source, "x:f64* out:f64* n:i64", [F64, np.zeros(1000)], 300, 300)


def test_and_does_not_read_what_its_first_operand_guards():
    source = f"""{HEAD}gt_f64
def k(x, out, n, begin, end):
    for i in range(begin, end):
        if i < n and gt_f64(x[i * 100000000000], x[i * 100000000000]) or i == 3:
            out[i] = x[i]
"""
    check(source, "x:f64* out:f64* n:i64", [F64, np.zeros(1000)], 1, 10)


def test_halves_booleans_and_complex_values():
    source = f"""{HEAD}convert_bf16_f32, convert_f32_bf16, convert_bool_u8
from arrayfn.lowering.scalars import convert_u8_bool
from arrayfn.lowering.scalars import f32, lt_f32, mul_c64
def k(h, b, c, begin, end):
    for i in range(begin, end):
        v = convert_bf16_f32(h[i]) * f32(1.5)
        h[i] = convert_f32_bf16(v)
        t = convert_u8_bool(b[i])
        b[i] = convert_bool_u8(lt_f32(v, f32(0)))
        if t:
            c[i] = mul_c64(c[i], c[i + 1])
"""
    halves = F32[:50].astype(ml_dtypes.bfloat16)
    bools = F32[:50] > 0
    complexes = (F32[:51] + 1j * F32[51:102]).astype(np.complex64)
    arrays = [halves.view(np.uint16), bools.view(np.uint8), complexes]
    result = run(kernel_ir, source, "h:bf16* b:bool* c:c64*", arrays, 50)
    numbas = run(written_kernel_ir, source, "h:bf16* b:bool* c:c64*", arrays, 50)
    assert [a.tobytes() for a in result] == [a.tobytes() for a in numbas]
    scaled = (halves.astype(np.float32) * np.float32(1.5)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(result[0].view(ml_dtypes.bfloat16), scaled)
    np.testing.assert_array_equal(result[1], halves.astype(np.float32) * 1.5 < 0)
    assert result[2][np.flatnonzero(~bools)[0]] == complexes[np.flatnonzero(~bools)[0]]


def test_constants_and_conversions():
    source = f"""{HEAD}f32, f64, i64, F32_INF, F32_NEG_INF, F32_NAN
def k(x, y, n, out, begin, end):
    for i in range(begin, end):
        out[6 * i] = F32_INF
        out[6 * i + 1] = F32_NEG_INF
        out[6 * i + 2] = f32(-0.1)
        out[6 * i + 3] = f32(x[i])
        out[6 * i + 4] = f32(i64(i))
        out[6 * i + 5] = f32(1e-45)
        y[i] = f64(out[6 * i + 3]) + 0.1
        n[i] = i64(x[i] * f64(10))
"""
    arrays = [F64, np.zeros(10), np.zeros(10, np.int64), np.zeros(60, np.float32)]
    check(source, "x:f64* y:f64* n:i64* out:f32*", arrays, 10)


def test_complex_variables_carried_around_loops():
    source = f"""{HEAD}add_c64, mul_c64, complex_f32, f32
def k(x, out, n, begin, end):
    for row in range(begin, end):
        total = complex_f32(f32(0), f32(0))
        product = complex_f32(f32(1), f32(0))
        for i in range(n):
            total = add_c64(total, x[row * n + i])
            product = mul_c64(product, total)
        out[row] = product
"""
    x = (F32[:40] + 1j * F32[40:80]).astype(np.complex64)
    check(source, "x:c64* out:c64* n:i64", [x, np.zeros(10, np.complex64)], 4, 10)


def test_constants_of_narrow_and_unsigned_integers():
    source = f"""{HEAD}i8, u8, u64, add_i8, add_u64
def k(x, y, z, begin, end):
    for i in range(begin, end):
        x[i] = add_i8(i8(-128), i8(i))
        y[i] = u8(250)
        z[i] = add_u64(u64(18446744073709551615), z[i])
"""
    arrays = [np.zeros(5, np.int8), np.zeros(5, np.uint8), np.arange(5, dtype="u8")]
    x, y, z = check(source, "x:i8* y:u8* z:u64*", arrays, 5)
    np.testing.assert_array_equal(x, [-128, -127, -126, -125, -124])
    np.testing.assert_array_equal(y, [250] * 5)
    np.testing.assert_array_equal(z, np.arange(5, dtype="u8") - np.uint64(1))


def test_nan_constants():
    source = f"{HEAD}F32_NAN\ndef k(out, begin, end):\n    out[begin] = F32_NAN\n"
    out = run(kernel_ir, source, "out:f32*", [np.zeros(1, np.float32)], 1)[0]
    assert np.isnan(out[0])


def test_the_vocabulary_computes_as_through_numba():
    source = f"""{HEAD}exp_f32, tanh_f32, sin_f32, max_f32, abs_f32, pow_f32
def k(x, out, begin, end):
    for i in range(begin, end):
        e = exp_f32(x[i])
        s = sin_f32(x[i] * x[i])
        out[i] = max_f32(tanh_f32(e), pow_f32(abs_f32(x[i]), s))
"""
    x = np.concatenate([F32, np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e30], "f4")])
    arrays = [x, np.zeros_like(x)]
    results = [
        run(compiler, source, "x:f32* out:f32*", arrays, x.size)[1]
        for compiler in (kernel_ir, written_kernel_ir)
    ]
    assert results[0].tobytes() == results[1].tobytes()


def test_reductions_are_exact_where_their_terms_are():
    source = f"""{HEAD}accumulate_add_f32, accumulate_max_f32, f32, F32_NEG_INF
def k(x, out, n, begin, end):
    for row in range(begin, end):
        s = f32(0)
        m = F32_NEG_INF
        for i in range(n):
            s = accumulate_add_f32(s, x[row * n + i])
            m = accumulate_max_f32(m, x[row * n + i])
        out[2 * row] = s
        out[2 * row + 1] = m
"""
    x = RNG.integers(-1000, 1000, (5, 1037)).astype(np.float32)
    out = run(kernel_ir, source, "x:f32* out:f32* n:i64", [x, x[:2].copy()], 1037, 5)[
        1
    ].reshape(-1)[:10]
    np.testing.assert_array_equal(out[::2], x.sum(1))
    np.testing.assert_array_equal(out[1::2], x.max(1))


@pytest.mark.parametrize(
    ("name", "times"),
    [("exp_f32", 2), ("logaddexp_f64", 2), ("accumulate_add_f64", 4), ("fmod_f32", 0)],
)
def test_loops_of_reductions_and_of_long_functions_are_interleaved(name, times):
    t, count = name[-3:], len(SCALARS[name].arguments)
    source = f"""{HEAD}{name}
def k(x, n, begin, end):
    for i in range(begin, end):
        x[i] = {name}({", ".join(["x[i]"] * count)})
    for i in range(begin, end):
        for j in range(n):
            x[j] = x[i]
"""
    text = kernel_ir(source, "k", parameters(f"x:{t}* n:i64"), "entry")
    assert re.findall(r'"llvm.loop.interleave.count", i32 (\d)', text) == (
        [str(times)] if times else []
    )
    assert len(re.findall(r"br label .*, !llvm.loop", text)) == bool(times)


def test_a_short_reduction_is_unrolled():
    source = f"""{HEAD}accumulate_add_f64, f64
def k(x, out, begin, end):
    for i in range(begin, end):
        s = f64(0)
        for j in range(3):
            s = accumulate_add_f64(s, x[3 * i + j])
        out[i] = s
"""
    text = kernel_ir(source, "k", parameters("x:f64* out:f64*"), "entry")
    assert text.count("llvm.loop.unroll.full") == 1


@pytest.mark.parametrize(
    "body",
    [
        "x[begin] = x[begin] + 1",
        "x[begin] = x[begin] if begin else x[end]",
        "for i in range(begin, end, 0): x[i] = x[i]",
        "x[begin] = begin",
        "x[begin] = n[begin] + begin",
        "x[begin] = abs(x[begin])",
        "v = begin\n    if begin < end:\n        v = x[begin]\n    x[begin] = x[v]",
        "return begin",
    ],
)
def test_what_it_does_not_know_is_unsupported(body):
    source = f"def k(x, n, begin, end):\n    {body}\n"
    with pytest.raises(UntypedKernelError):
        kernel_ir(source, "k", parameters("x:f32* n:i32*"), "s")


@pytest.mark.parametrize(
    "source",
    [
        "import math\ndef k(x, begin, end):\n    x[begin] = x[end]\n",
        "def other(x, begin, end):\n    x[begin] = x[end]\n",
        "def k(x, y, begin, end):\n    x[begin] = y[end]\n",
    ],
)
def test_other_modules_functions_and_parameters_are_unsupported(source):
    with pytest.raises(UntypedKernelError):
        kernel_ir(source, "k", parameters("x:f32*"), "s")


@pytest.mark.parametrize(
    "statement",
    [
        "import os",
        "from os import system",
        "print(1)",
        "from arrayfn.lowering.scalars import absent",
        "class k: pass",
        "@print\ndef other(): pass",
    ],
)
def test_a_printed_text_has_imports_of_the_vocabulary_and_functions(statement):
    source = f"{statement}\ndef k(x, begin, end):\n    x[begin] = x[end]\n"
    with pytest.raises(UntypedKernelError):
        kernel_ir(source, "k", parameters("x:f32*"), "entry")


def test_a_printed_text_is_not_executed(capsys):
    source = "def k(x, begin, end: print(1) = print(2)):\n    x[begin] = x[end]\n"
    kernel_ir(source, "k", parameters("x:f32*"), "entry")
    assert not capsys.readouterr().out


@pytest.mark.parametrize("far", [0, 1])
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.int8, np.uint16, np.complex64, np.complex128]
)
@pytest.mark.parametrize(("begin", "count"), [(0, 64), (3, 61), (5, 0), (1, 3)])
def test_rows_are_stored_whole_whatever_their_alignment(dtype, far, begin, count):
    source = (
        HEAD
        + """prefetch_row, store_row

def k(x, out, begin_, count, far, begin, end):
    for i in range(begin, end):
        prefetch_row(x, begin_ + 70, 500)
        store_row(out, begin_ + i * 70, x, count, far)
"""
    )
    kind = {"<f4": "f32", "<f8": "f64", "|i1": "i8", "<u2": "u16"}.get(
        np.dtype(dtype).str, "c64" if dtype is np.complex64 else "c128"
    )
    x = np.arange(64).astype(dtype)
    out = np.full(140, 7, dtype)
    signature = f"x:{kind}* out:{kind}* begin_:i64 count:i64 far:i64"
    result = check(source, signature, [x, out], begin, count, far, 2)
    expected = out.copy()
    for start in (begin, begin + 70):
        expected[start : start + count] = x[:count]
    np.testing.assert_array_equal(result[1], expected)
