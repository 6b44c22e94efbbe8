"""Emitters of operations between the lanes of a warp: shuffles, votes, barriers."""

from __future__ import annotations

from typing import Any, Final

from arrayfn.backends.cuda.assembly import (
    I32,
    VOID,
    Call,
    assembly,
    emits,
    intrinsic,
    value_of_words,
    value_words,
)

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

    The instruction takes 32 bits, so the words of the value are shuffled one by one.
    Its second operand is a mask, a distance or a lane's number, as the mode says.
    """
    b, (value, lanes) = c.b, c.args
    lanes = b.trunc(lanes, I32)
    mode, clamp = _SHUFFLES[c.function.kind]
    name = f"llvm.nvvm.shfl.sync.{mode}.i32"
    words = [
        intrinsic(b, name, I32, [I32(_ALL_LANES), word, lanes, I32(clamp)])
        for word in value_words(b, value)
    ]
    return value_of_words(b, c.dtype, words.__getitem__)


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
