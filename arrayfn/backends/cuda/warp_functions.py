"""What the lanes of a warp do together, as LLVM IR for NVVM."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.cuda.assembly import (
    I32,
    I64,
    VOID,
    Emitter,
    assembly,
    intrinsic,
)
from arrayfn.lowering.cuda.vocabulary import DeviceFunction
from arrayfn.lowering.scalars.arithmetic import COMPLEXES

_ALL_LANES: Final = 0xFFFFFFFF


def _shuffle(mode: str, clamp: int) -> Emitter:
    def emitter(
        b: Any, function: DeviceFunction, args: Any, element: Any, count: int
    ) -> Any:
        value, lanes = args
        lanes = b.trunc(lanes, I32)
        if function.dtype in COMPLEXES:
            result = value
            for k in range(2):
                part = _exchange(b, b.extract_value(value, k), lanes, mode, clamp)
                result = b.insert_value(result, part, k)
            return result
        return _exchange(b, value, lanes, mode, clamp)

    return emitter


def _exchange(b: Any, value: Any, lanes: Any, mode: str, clamp: int) -> Any:
    """``value`` of another lane, in words of 32 bits."""
    kind = value.type

    def exchanged(word: Any) -> Any:
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


def _warp_barrier(b: Any, function: Any, args: Any, element: Any, count: int) -> None:
    intrinsic(b, "llvm.nvvm.bar.warp.sync", VOID, [I32(_ALL_LANES)])


def _match_any_byte(b: Any, function: Any, args: Any, element: Any, count: int) -> Any:
    """A vote on each bit: faster than the instruction that compares whole words."""
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
    return assembly(b, text, "=&r,r", [b.trunc(args[0], I32)], I32)


def _match_any_u32(b: Any, function: Any, args: Any, element: Any, count: int) -> Any:
    arguments = [I32(_ALL_LANES), b.trunc(args[0], I32)]
    return intrinsic(b, "llvm.nvvm.match.any.sync.i32", I32, arguments)


def _ballot(b: Any, function: Any, args: Any, element: Any, count: int) -> Any:
    return intrinsic(b, "llvm.nvvm.vote.ballot.sync", I32, [I32(_ALL_LANES), *args])


WARP_EMITTERS: Final[dict[str, Emitter]] = {
    "warp_barrier": _warp_barrier,
    "match_any_byte": _match_any_byte,
    "match_any_u32": _match_any_u32,
    "ballot": _ballot,
    "shuffle_xor": _shuffle("bfly", 31),
    "shuffle_up": _shuffle("up", 0),
    "shuffle_from": _shuffle("idx", 31),
}
