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
"""PTX that converts the lower and the upper half of a word to float32."""
_LOG2_E: Final = float(np.float32(1 / math.log(2)))

emits_ptx(cp_async_commit="cp.async.commit_group;")
emits_f32(
    approximate_exp2="ex2.approx.ftz.f32",
    approximate_rsqrt="rsqrt.approx.ftz.f32",
    approximate_sqrt="sqrt.approx.f32",
    approximate_divide="div.full.f32",
)


def _pairs(b: ir.IRBuilder, tile: Any, at: Any) -> Any:
    """Emit a pointer to the registers from ``tile[at]`` on, as pairs of elements."""
    return b.bitcast(b.gep(tile, [at]), I32.as_pointer())


def _at(b: ir.IRBuilder, pointer: Any, k: int) -> Any:
    return b.gep(pointer, [I32(k)])


def _address_in_shared(b: ir.IRBuilder, shared: Any, at: Any, bits: int) -> Any:
    """Emit the address of element ``at``, of ``bits`` bits, of the array ``shared``.

    It is computed in 32 bits.
    """
    offset = b.mul(b.trunc(at, I32), I32(bits // 8))
    return b.add(shared_address(b, shared), offset)


@emits("ldmatrix", "ldmatrix_trans")
def _ldmatrix(c: Call) -> None:
    """Emit ldmatrix: four 8x8 matrices from shared memory to a warp's registers."""
    b, (shared, at, tile, tile_at) = c.b, c.args
    transposed = ".trans" if c.function.kind == "ldmatrix_trans" else ""
    text = f"ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 "
    text += "{$0, $1, $2, $3}, [$4];"
    result = ir.LiteralStructType([I32] * 4)
    address = _address_in_shared(b, shared, at, 16)
    made = assembly(b, text, "=r,=r,=r,=r,r", [address], result)
    pairs = _pairs(b, tile, tile_at)
    for k in range(4):
        b.store(b.extract_value(made, k), _at(b, pairs, k))


@emits("mma")
def _mma(c: Call) -> None:
    """Emit mma.m16n8k16: ``sums[i:] += left[j:] @ right[k:]``, all in registers."""
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
    constraints = ",".join(["=f"] * 4 + ["r"] * 6 + ["0", "1", "2", "3"])
    result = ir.LiteralStructType([F32] * 4)
    made = pure_assembly(b, text, constraints, arguments, result)
    for n in range(4):
        b.store(b.extract_value(made, n), _at(b, sums, n))


@emits("pack")
def _pack(c: Call) -> None:
    """Emit the rounding of two floats to a pair of fp16 or bf16 in a register."""
    x, y, tile, at = c.args
    text = f"cvt.rn.{c.dtype}x2.f32 $0, $1, $2;"
    pair = pure_assembly(c.b, text, "=r,f,f", [y, x], I32)
    c.b.store(pair, _pairs(c.b, tile, at))


def rounded_pairs(c: Call, tile: Any, at: Any) -> Any:
    """Emit the rounding of float32 registers to 16 bits; a pointer to the pairs.

    The registers are ``tile``, from element ``at`` on.
    """
    b, count = c.b, c.function.lanes // 2
    text = f"cvt.rn.{c.dtype}x2.f32 $0, $1, $2;"
    with b.goto_entry_block():
        pairs = b.alloca(ir.ArrayType(I32, count))
    pairs = b.gep(pairs, [I32(0), I32(0)])
    for k in range(count):
        low, high = (b.load(_at(b, b.gep(tile, [at]), 2 * k + n)) for n in (0, 1))
        pair = pure_assembly(b, text, "=r,f,f", (high, low), I32)
        b.store(pair, _at(b, pairs, k))
    return pairs


@emits("widen")
def _widen(c: Call) -> None:
    """Emit the conversion of fp16 or bf16 registers to float32 registers.

    Inline assembly keeps the compiler from converting early, and so from keeping the
    results in registers, of which they need twice as many.
    """
    b, (tile, tile_at, wide, at) = c.b, c.args
    pairs, made = _pairs(b, tile, tile_at), b.gep(wide, [at])
    for k in range(c.function.lanes // 2):
        pair = b.load(_at(b, pairs, k))
        for n, text in enumerate(_WIDENING[c.dtype]):
            value = assembly(b, text, "=f,r", (pair,), F32)
            b.store(value, _at(b, made, 2 * k + n))


@emits("max", "min")
def _extreme(c: Call) -> Any:
    """Emit the maximum or minimum of a vector of fp16 or bf16, and of a float32.

    Pairs are compared with pairs; the last pair is converted to two float32 numbers.
    """
    b, name, (tile, at, x) = c.b, c.function.kind, c.args
    pairs = _pairs(b, tile, at)
    found = b.load(pairs)
    for k in range(1, c.function.lanes // 2):
        operands = found, b.load(_at(b, pairs, k))
        text = f"{name}.NaN.{c.dtype}x2 $0, $1, $2;"
        found = pure_assembly(b, text, "=r,r,r", operands, I32)
    for text in _WIDENING[c.dtype]:
        value = pure_assembly(b, text, "=f,r", (found,), F32)
        text = f"{name}.NaN.f32 $0, $1, $2;"
        x = pure_assembly(b, text, "=f,f,f", (x, value), F32)
    return x


# Each step takes two words, and chooses bytes of both (PTX ISA, prmt: byte k of the
# result is the one that digit k names).
_OF_HALVES: Final = 0x5410, 0x7632
_OF_BYTES: Final = 0x5140, 0x7362


@emits("transpose")
def _transpose(c: Call) -> None:
    """Emit code that transposes a small matrix in a thread's registers.

    It is 2x2 with elements of 16 bits, or 4x4 with elements of 8 bits. Each register
    holds one row, and byte permutations make the columns.
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
    made = [_permuted(b, digits, pair) for pair in pairs for digits in _OF_HALVES]
    for k, word in enumerate(made):
        b.store(word, _at(b, words, k))


def _permuted(b: ir.IRBuilder, digits: int, pair: Sequence[Any]) -> Any:
    """Emit prmt: four bytes of a ``pair`` of words, selected by the hex ``digits``."""
    return intrinsic(b, "llvm.nvvm.prmt", I32, [*pair, I32(digits)])


@emits("opaque")
def _opaque(c: Call) -> Any:
    """Emit a copy of an integer that the optimizer cannot see through."""
    return assembly(c.b, "mov.b64 $0, $1;", "=l,l", c.args, I64)


@emits("cp_async")
def _cp_async(c: Call) -> None:
    """Emit an asynchronous copy of a vector to shared memory; of zeros if not live."""
    b, (array, at, shared, shared_at, live) = c.b, c.args
    source = global_address(b, b.gep(array, [at]))
    target = _address_in_shared(b, shared, shared_at, width(c.dtype))
    nbytes = c.function.lanes * width(c.dtype) // 8
    # Copies of 16 bytes may bypass the L1 cache.
    cache = "cg" if nbytes == 16 else "ca"
    text = f"cp.async.{cache}.shared.global [$0], [$1], {nbytes}, $2;"
    read = b.mul(b.trunc(live, I32), I32(nbytes))
    assembly(b, text, "r,l,r", [target, source, read])


@emits("cp_async_wait")
def _cp_async_wait(c: Call) -> None:
    assembly(c.b, f"cp.async.wait_group {c.count};", "", ())


@emits("approximate_exp")
def _approximate_exp(c: Call) -> Any:
    exponent = c.b.fmul(c.args[0], F32(_LOG2_E))
    return pure_assembly(c.b, "ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent], F32)
