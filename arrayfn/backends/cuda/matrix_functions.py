"""Emitters of tensor-core products, 16-bit conversions, and cp.async copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir

from arrayfn.backends.cuda.assembly import (
    F32,
    I32,
    I64,
    Call,
    assembly,
    emits,
    emits_f32,
    emits_ptx,
    global_address,
    intrinsic,
    pure_assembly,
    shared_address,
)
from arrayfn.lowering.scalars.arithmetic import width

_WIDENING: Final = {
    "bf16": ("shl.b32 $0, $1, 16;", "and.b32 $0, $1, 0xffff0000;"),
    "f16": tuple(
        f"{{.reg .b16 low, high;\nmov.b32 {{low, high}}, $1;\ncvt.f32.f16 $0, {half};}}"
        for half in ("low", "high")
    ),
}
"""PTX that converts the (lower, upper) half of a 32-bit word to float32, by dtype.

A bfloat16 is the upper half of a float32.
"""
_LOG2_E: Final = float(np.float32(1 / math.log(2)))

emits_ptx(cp_async_commit="cp.async.commit_group;")
emits_f32(
    approximate_exp2="ex2.approx.ftz.f32",
    approximate_rsqrt="rsqrt.approx.ftz.f32",
    approximate_sqrt="sqrt.approx.f32",
    approximate_divide="div.full.f32",
)


def _pairs(b: ir.IRBuilder, tile: Any, at: Any) -> Any:
    """Emit a pointer to the registers from ``tile[at]`` on, as 32-bit words.

    Each word is a pair of 16-bit elements.
    """
    return b.bitcast(b.gep(tile, [at]), I32.as_pointer())


def _at(b: ir.IRBuilder, pointer: Any, k: int) -> Any:
    """Emit a pointer to element ``k`` after ``pointer``."""
    return b.gep(pointer, [I32(k)])


def _address_in_shared(b: ir.IRBuilder, shared: Any, at: Any, bits: int) -> Any:
    """Emit the 32-bit shared address of element ``at`` of the array ``shared``.

    An element has ``bits`` bits.
    """
    offset = b.mul(b.trunc(at, I32), I32(bits // 8))
    return b.add(shared_address(b, shared), offset)


@emits("ldmatrix", "ldmatrix_trans")
def _ldmatrix(c: Call) -> None:
    """Emit ldmatrix: load four 8x8 matrices from shared memory to a warp's registers.

    Each lane stores its four words at ``tile[tile_at]``; ``shared[at]`` begins the row
    that this lane names.
    """
    b, (shared, at, tile, tile_at) = c.b, c.args
    transposed = ".trans" if c.function.kind == "ldmatrix_trans" else ""
    text = f"ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 "
    text += "{$0, $1, $2, $3}, [$4];"
    result = ir.LiteralStructType([I32] * 4)
    address = _address_in_shared(b, shared, at, bits=16)
    words = assembly(b, text, "=r,=r,=r,=r,r", [address], result)
    pairs = _pairs(b, tile, tile_at)
    for k in range(4):
        b.store(b.extract_value(words, k), _at(b, pairs, k))


@emits("mma")
def _mma(c: Call) -> None:
    """Emit mma.m16n8k16: ``sums[i:] += left[j:] @ right[k:]`` of a warp's fragments.

    A lane holds 4 words of the 16x16 left operand, 2 words of the 16x8 right operand,
    and 4 floats of the 16x8 sums, in registers.
    """
    b, (sums, i, left, j, right, k) = c.b, c.args
    sums = b.gep(sums, [i])
    left, right = _pairs(b, left, j), _pairs(b, right, k)
    arguments = [b.load(_at(b, left, n)) for n in range(4)]
    arguments += [b.load(_at(b, right, n)) for n in range(2)]
    arguments += [b.load(_at(b, sums, n)) for n in range(4)]
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{c.dtype}.{c.dtype}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    # "0" to "3": the old sums are in the registers of the results.
    constraints = ",".join(["=f"] * 4 + ["r"] * 6 + ["0", "1", "2", "3"])
    result = ir.LiteralStructType([F32] * 4)
    new_sums = pure_assembly(b, text, constraints, arguments, result)
    for n in range(4):
        b.store(b.extract_value(new_sums, n), _at(b, sums, n))


@emits("pack")
def _pack(c: Call) -> None:
    """Emit the rounding of x and y to a pair of fp16 or bf16 in the register tile[at].

    PTX's cvt puts its first operand in the upper half of the word.
    """
    x, y, tile, at = c.args
    text = f"cvt.rn.{c.dtype}x2.f32 $0, $1, $2;"
    pair = pure_assembly(c.b, text, "=r,f,f", [y, x], I32)
    c.b.store(pair, _pairs(c.b, tile, at))


def rounded_pairs(c: Call, tile: Any, at: Any) -> Any:
    """Emit the rounding of float32 registers to fp16 or bf16; return a pointer.

    The registers are those from ``tile[at]`` on, as many as the function has lanes. The
    pointer is to 32-bit words, each with two rounded elements.
    """
    b, count = c.b, c.function.lanes // 2
    text = f"cvt.rn.{c.dtype}x2.f32 $0, $1, $2;"
    with b.goto_entry_block():
        pairs = b.alloca(ir.ArrayType(I32, count))
    pairs = b.gep(pairs, [I32(0), I32(0)])
    for k in range(count):
        low, high = (b.load(_at(b, b.gep(tile, [at]), 2 * k + n)) for n in (0, 1))
        # PTX's cvt puts its first operand in the upper half of the word.
        pair = pure_assembly(b, text, "=r,f,f", (high, low), I32)
        b.store(pair, _at(b, pairs, k))
    return pairs


@emits("widen")
def _widen(c: Call) -> None:
    """Emit the conversion of fp16 or bf16 registers to float32 registers.

    The inline assembly has side effects for LLVM, which therefore does not convert
    earlier: the results would occupy twice as many registers for longer.
    """
    b, (tile, tile_at, wide, at) = c.b, c.args
    pairs, floats = _pairs(b, tile, tile_at), b.gep(wide, [at])
    for k in range(c.function.lanes // 2):
        pair = b.load(_at(b, pairs, k))
        for n, text in enumerate(_WIDENING[c.dtype]):
            value = assembly(b, text, "=f,r", (pair,), F32)
            b.store(value, _at(b, floats, 2 * k + n))


@emits("max", "min")
def _extreme(c: Call) -> Any:
    """Emit the maximum or minimum of the float32 x and a vector of fp16 or bf16.

    Pairs of elements are combined by one instruction each. The elements of the
    remaining pair are converted to float32, and combined with x.
    """
    b, name, (tile, at, x) = c.b, c.function.kind, c.args
    pairs = _pairs(b, tile, at)
    extremes = b.load(pairs)
    for k in range(1, c.function.lanes // 2):
        operands = extremes, b.load(_at(b, pairs, k))
        text = f"{name}.NaN.{c.dtype}x2 $0, $1, $2;"
        extremes = pure_assembly(b, text, "=r,r,r", operands, I32)
    for text in _WIDENING[c.dtype]:
        value = pure_assembly(b, text, "=f,r", (extremes,), F32)
        text = f"{name}.NaN.f32 $0, $1, $2;"
        x = pure_assembly(b, text, "=f,f,f", (x, value), F32)
    return x


# Selectors of PTX's prmt, which makes a word of bytes of two words. Their bytes are
# numbered 0 to 7, the first word's 0 to 3, and digit k of the selector, from the right,
# names byte k of the result. The first pair takes the lower, or upper, 16 bits of both
# words; the second pair interleaves the bytes of the words' lower, or upper, 16 bits.
_OF_HALVES: Final = 0x5410, 0x7632
_OF_BYTES: Final = 0x5140, 0x7362


@emits("transpose")
def _transpose(c: Call) -> None:
    """Emit code that transposes a small matrix in a thread's registers.

    The matrix is 2x2 with elements of 16 bits, or 4x4 with elements of 8 bits. Each
    register holds one row. Byte permutations combine two registers at a time: for 4x4,
    first rows 0 and 1, and rows 2 and 3, by bytes; then, as for 2x2, by 16 bits.
    """
    b, (tile, at) = c.b, c.args
    words = _pairs(b, tile, at)
    rows = [b.load(_at(b, words, k)) for k in range(c.function.lanes)]
    pairs = [rows]
    if c.function.lanes == 4:
        pairs = [
            [_permuted(b, digits, part) for part in (rows[:2], rows[2:])]
            for digits in _OF_BYTES
        ]
    columns = [_permuted(b, digits, pair) for pair in pairs for digits in _OF_HALVES]
    for k, word in enumerate(columns):
        b.store(word, _at(b, words, k))


def _permuted(b: ir.IRBuilder, digits: int, pair: Sequence[Any]) -> Any:
    """Emit prmt: a word of four bytes of two words.

    ``digits`` is the selector; each of its hexadecimal digits names a byte.
    """
    return intrinsic(b, "llvm.nvvm.prmt", I32, [*pair, I32(digits)])


@emits("opaque")
def _opaque(c: Call) -> Any:
    """Emit a copy of an integer whose value is hidden from the optimizer."""
    return assembly(c.b, "mov.b64 $0, $1;", "=l,l", c.args, I64)


@emits("cp_async")
def _cp_async(c: Call) -> None:
    """Emit an asynchronous copy of a vector from global to shared memory.

    If ``live`` is 0, nothing is read, and zeros are written.
    """
    b, (array, at, shared, shared_at, live) = c.b, c.args
    source = global_address(b, b.gep(array, [at]))
    target = _address_in_shared(b, shared, shared_at, width(c.dtype))
    nbytes = c.function.lanes * width(c.dtype) // 8
    # Copies of 16 bytes may bypass the L1 cache.
    cache = "cg" if nbytes == 16 else "ca"
    text = f"cp.async.{cache}.shared.global [$0], [$1], {nbytes}, $2;"
    bytes_read = b.mul(b.trunc(live, I32), I32(nbytes))
    assembly(b, text, "r,l,r", [target, source, bytes_read])


@emits("cp_async_wait")
def _cp_async_wait(c: Call) -> None:
    """Emit the wait until at most ``count`` of the newest commit groups are pending."""
    assembly(c.b, f"cp.async.wait_group {c.count};", "", ())


@emits("approximate_exp")
def _approximate_exp(c: Call) -> Any:
    """Emit exp(x) as 2**(x * log2(e)), by the hardware's approximation."""
    exponent = c.b.fmul(c.args[0], F32(_LOG2_E))
    return pure_assembly(c.b, "ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent], F32)
