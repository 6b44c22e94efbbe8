"""Products of matrices by warps, halves, and copies that threads begin, for NVVM.

Fragments lie in registers as pairs of halves, words of 32 bits.
"""

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
    Emitter,
    assembly,
    global_address,
    intrinsic,
    pure_assembly,
    shared_address,
)
from arrayfn.lowering.cuda.vocabulary import DeviceFunction
from arrayfn.lowering.scalars.arithmetic import width

_WIDENING: Final = {
    "bf16": ("shl.b32 $0, $1, 16;", "and.b32 $0, $1, 0xffff0000;"),
    "f16": tuple(
        f"{{.reg .b16 low, high;\nmov.b32 {{low, high}}, $1;\ncvt.f32.f16 $0, {half};}}"
        for half in ("low", "high")
    ),
}
"""What makes float32 of the lower and of the upper half of a word."""
LOG2_E: Final = float(np.float32(1 / math.log(2)))


def _words(b: Any, tile: Any, place: Any) -> Any:
    """Registers from ``tile[place]`` on as words of two halves."""
    return b.bitcast(b.gep(tile, [place]), I32.as_pointer())


def _at(b: Any, pointer: Any, k: int) -> Any:
    return b.gep(pointer, [I32(k)])


def _shared_place(b: Any, shared: Any, at: Any, bits: int) -> Any:
    """Where element ``at`` lies within shared memory, in arithmetic of 32 bits."""
    offset = b.mul(b.trunc(at, I32), I32(bits // 8))
    return b.add(shared_address(b, shared), offset)


def _ldmatrix(transposed: str) -> Emitter:
    text = f"ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 "
    text += "{$0, $1, $2, $3}, [$4];"
    result = ir.LiteralStructType([I32] * 4)

    def emitter(
        b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
    ) -> None:
        shared, at, tile, place = args
        address = _shared_place(b, shared, at, 16)
        made = assembly(b, text, "=r,=r,=r,=r,r", [address], result)
        words = _words(b, tile, place)
        for k in range(4):
            b.store(b.extract_value(made, k), _at(b, words, k))

    return emitter


def _mma(
    b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
) -> None:
    c, i, left, j, right, k = args
    sums = b.gep(c, [i])
    left, right = _words(b, left, j), _words(b, right, k)
    arguments = [b.load(_at(b, left, n)) for n in range(4)]
    arguments += [b.load(_at(b, right, n)) for n in range(2)]
    arguments += [b.load(_at(b, sums, n)) for n in range(4)]
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{function.dtype}.{function.dtype}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    constraints = ",".join(["=f"] * 4 + ["r"] * 6 + ["0", "1", "2", "3"])
    result = ir.LiteralStructType([F32] * 4)
    made = pure_assembly(b, text, constraints, arguments, result)
    for n in range(4):
        b.store(b.extract_value(made, n), _at(b, sums, n))


def _pack(
    b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
) -> None:
    x, y, tile, place = args
    text = f"cvt.rn.{function.dtype}x2.f32 $0, $1, $2;"
    b.store(pure_assembly(b, text, "=r,f,f", [y, x], I32), _words(b, tile, place))


def rounded_words(b: Any, function: DeviceFunction, tile: Any, place: Any) -> Any:
    """Float32 registers as halves in others, two to a word."""
    count = function.lanes // 2
    text = f"cvt.rn.{function.dtype}x2.f32 $0, $1, $2;"
    with b.goto_entry_block():
        words = b.alloca(ir.ArrayType(I32, count))
    words = b.gep(words, [I32(0), I32(0)])
    for k in range(count):
        low, high = (b.load(_at(b, b.gep(tile, [place]), 2 * k + n)) for n in (0, 1))
        pair = pure_assembly(b, text, "=r,f,f", (high, low), I32)
        b.store(pair, _at(b, words, k))
    return words


def _widen(
    b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
) -> None:
    """Each half by an instruction that the compiler does not see through.

    It would keep what it knows again, in twice the registers.
    """
    tile, place, wide, at = args
    words, made = _words(b, tile, place), b.gep(wide, [at])
    for k in range(function.lanes // 2):
        word = b.load(_at(b, words, k))
        for n, text in enumerate(_WIDENING[function.dtype]):
            value = assembly(b, text, "=f,r", (word,), F32)
            b.store(value, _at(b, made, 2 * k + n))


def _extreme(name: str) -> Emitter:
    """Halves are compared in pairs, and what two are left as float32."""

    def emitter(
        b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
    ) -> Any:
        tile, place, x = args
        words = _words(b, tile, place)
        found = b.load(words)
        for k in range(1, function.lanes // 2):
            pair = found, b.load(_at(b, words, k))
            text = f"{name}.NaN.{function.dtype}x2 $0, $1, $2;"
            found = pure_assembly(b, text, "=r,r,r", pair, I32)
        for text in _WIDENING[function.dtype]:
            value = pure_assembly(b, text, "=f,r", (found,), F32)
            text = f"{name}.NaN.f32 $0, $1, $2;"
            x = pure_assembly(b, text, "=f,f,f", (x, value), F32)
        return x

    return emitter


# Each step takes two words, and chooses bytes of both (PTX ISA, prmt: byte k of the
# result is the one that digit k names).
_HALVES: Final = 0x5410, 0x7632
_PAIRS: Final = 0x5140, 0x7362


def _transpose(
    b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
) -> None:
    tile, place = args
    words = _words(b, tile, place)
    rows = [b.load(_at(b, words, k)) for k in range(function.lanes)]
    pairs = [rows]
    if function.lanes == 4:
        halves = rows[:2], rows[2:]
        pairs = [[_bytes(b, digits, half) for half in halves] for digits in _PAIRS]
    made = [_bytes(b, digits, pair) for pair in pairs for digits in _HALVES]
    for k, word in enumerate(made):
        b.store(word, _at(b, words, k))


def _bytes(b: Any, digits: int, pair: Sequence[Any]) -> Any:
    return intrinsic(b, "llvm.nvvm.prmt", I32, [*pair, I32(digits)])


def _opaque(
    b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
) -> Any:
    return assembly(b, "mov.b64 $0, $1;", "=l,l", args, I64)


def _copy(
    b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
) -> None:
    array, at, shared, place, live = args
    source = global_address(b, b.gep(array, [at]))
    target = _shared_place(b, shared, place, width(function.dtype))
    nbytes = function.lanes * width(function.dtype) // 8
    # Those of 16 bytes need not go through the first cache.
    cache = "cg" if nbytes == 16 else "ca"
    text = f"cp.async.{cache}.shared.global [$0], [$1], {nbytes}, $2;"
    read = b.mul(b.trunc(live, I32), I32(nbytes))
    assembly(b, text, "r,l,r", [target, source, read])


def _cp_async_commit(
    b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
) -> None:
    assembly(b, "cp.async.commit_group;", "", ())


def _cp_async_wait(
    b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
) -> None:
    assembly(b, f"cp.async.wait_group {count};", "", ())


def _approximate(instruction: str) -> Emitter:
    """One instruction of float32 numbers."""

    def emitter(
        b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
    ) -> Any:
        places = "".join(f", ${k}" for k in range(1, len(args) + 1))
        text, kinds = f"{instruction} $0{places};", "=f" + ",f" * len(args)
        return pure_assembly(b, text, kinds, args, F32)

    return emitter


_exp2 = _approximate("ex2.approx.ftz.f32")


def _exp(
    b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
) -> Any:
    return _exp2(b, function, [b.fmul(args[0], F32(LOG2_E))], element, count)


MATRIX_EMITTERS: Final[dict[str, Emitter]] = {
    "ldmatrix": _ldmatrix(""),
    "ldmatrix_trans": _ldmatrix(".trans"),
    "mma": _mma,
    "pack": _pack,
    "widen": _widen,
    "transpose": _transpose,
    "opaque": _opaque,
    "max": _extreme("max"),
    "min": _extreme("min"),
    "cp_async": _copy,
    "cp_async_commit": _cp_async_commit,
    "cp_async_wait": _cp_async_wait,
    "approximate_exp2": _exp2,
    "approximate_exp": _exp,
    "approximate_rsqrt": _approximate("rsqrt.approx.ftz.f32"),
    "approximate_sqrt": _approximate("sqrt.approx.f32"),
    "approximate_divide": _approximate("div.full.f32"),
}
"""By the kinds of functions."""
