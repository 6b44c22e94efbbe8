"""Emitters of operations between the lanes of a warp: shuffles, votes, barriers."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.cuda.assembly import (
    I32,
    I64,
    VOID,
    Call,
    assembly,
    emits,
    intrinsic,
)
from arrayfn.lowering.scalars.arithmetic import COMPLEXES

_ALL_LANES: Final = 0xFFFFFFFF
_SHUFFLES: Final = {
    "shuffle_xor": ("bfly", 31),
    "shuffle_up": ("up", 0),
    "shuffle_from": ("idx", 31),
}
"""For each function, the mode of PTX's shfl and its operand c.

The operand bounds the source lane: 31 allows all lanes below 32; in the mode "up", 0
allows all lanes from 0.
"""


@emits(*_SHUFFLES)
def _shuffle(c: Call) -> Any:
    """Emit a shuffle: each lane reads the value of another lane of the warp.

    The real and the imaginary part of a complex value are shuffled one by one.
    """
    b, (value, lanes) = c.b, c.args
    lanes = b.trunc(lanes, I32)
    mode, clamp = _SHUFFLES[c.function.kind]  # operands of PTX's shfl
    if c.dtype in COMPLEXES:
        result = value
        for k in range(2):
            part = _exchange(b, b.extract_value(value, k), lanes, mode, clamp)
            result = b.insert_value(result, part, k)
        return result
    return _exchange(b, value, lanes, mode, clamp)


def _exchange(b: ir.IRBuilder, value: Any, lanes: Any, mode: str, clamp: int) -> Any:
    """Emit a shuffle of ``value``, a real number.

    The instruction takes 32 bits: narrower values are widened, and 64 bits are two
    shuffles. ``mode`` and ``clamp`` are operands of PTX's shfl; ``lanes`` is the
    operand of the mode: a lane's number (idx), a distance (up) or a mask (bfly).
    """
    kind = value.type

    def exchanged(word: Any) -> Any:
        """Emit the same shuffle of ``word``, which has another type."""
        return _exchange(b, word, lanes, mode, clamp)

    if isinstance(kind, ir.FloatType):
        return b.bitcast(exchanged(b.bitcast(value, I32)), kind)
    if isinstance(kind, ir.DoubleType):
        return b.bitcast(exchanged(b.bitcast(value, I64)), kind)
    if kind.width < 32:
        return b.trunc(exchanged(b.zext(value, I32)), kind)
    if kind.width == 64:
        low = exchanged(b.trunc(value, I32))
        high = exchanged(b.trunc(b.lshr(value, I64(32)), I32))
        return b.or_(b.zext(low, I64), b.shl(b.zext(high, I64), I64(32)))
    arguments = [I32(_ALL_LANES), value, lanes, I32(clamp)]
    return intrinsic(b, f"llvm.nvvm.shfl.sync.{mode}.i32", I32, arguments)


@emits("warp_barrier")
def _warp_barrier(c: Call) -> None:
    """Emit a barrier of all 32 lanes of a warp."""
    intrinsic(c.b, "llvm.nvvm.bar.warp.sync", VOID, [I32(_ALL_LANES)])


@emits("match_any_byte")
def _match_any_byte(c: Call) -> Any:
    """Emit the 32-bit mask of the lanes whose byte equals this lane's.

    The lanes vote on each bit of the byte, and each lane removes those that differ from
    the mask. That is faster than the instruction that compares whole words.
    """
    lines = ["{", ".reg .pred mine;", ".reg .b32 bit, votes;", "mov.b32 $0, -1;"]
    for bit in range(8):
        lines += [
            f"and.b32 bit, $1, {1 << bit};",
            "setp.ne.u32 mine, bit, 0;",
            "vote.sync.ballot.b32 votes, mine, 0xffffffff;",
            "@!mine not.b32 votes, votes;",
            "and.b32 $0, $0, votes;",
        ]
    text = "\n".join([*lines, "}"])
    return assembly(c.b, text, "=&r,r", [c.b.trunc(c.args[0], I32)], I32)


@emits("match_any_u32")
def _match_any_u32(c: Call) -> Any:
    """Emit the 32-bit mask of the lanes whose u32 equals this lane's."""
    arguments = [I32(_ALL_LANES), c.b.trunc(c.args[0], I32)]
    return intrinsic(c.b, "llvm.nvvm.match.any.sync.i32", I32, arguments)


@emits("ballot")
def _ballot(c: Call) -> Any:
    """Emit the 32-bit mask of the lanes for which the argument is true."""
    arguments = [I32(_ALL_LANES), *c.args]
    return intrinsic(c.b, "llvm.nvvm.vote.ballot.sync", I32, arguments)
