"""Emitters of decoupled look-back and of work queues, between blocks of one launch.

A flag buffer is words of 64 bits. The first counts dynamic block ids in its low half
and launches in its high half. Every other word holds 32 bits of a value and, above
them, the number of the launch that published it, from 1. Value and flag are one access,
which needs no fence, and flags of earlier launches do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.cuda.assembly import (
    F32,
    I32,
    I64,
    SHARED,
    Call,
    assembly,
    bytes_of,
    emits,
    emits_ptx,
    global_address,
)
from arrayfn.backends.llvm_arithmetic import is_float
from arrayfn.lowering.scalars.arithmetic import COMPLEXES, REAL_PART, width

# The last block to get an id resets the count of ids, and counts the launch.
_DYNAMIC_BLOCK_ID: Final = """{
.reg .pred other, more;
.reg .u32 thread;
.reg .u64 word, step;
mov.u32 thread, %tid.x;
setp.ne.u32 other, thread, 0;
@other bra TAKEN;
atom.add.relaxed.gpu.global.u64 word, [$0], 1;
st.shared.u64 [$1], word;
and.b64 step, word, 0xffffffff;
add.u64 step, step, 1;
setp.ne.u64 more, step, $2;
@more bra TAKEN;
sub.u64 step, 0x100000000, $2;
red.add.relaxed.gpu.global.u64 [$0], step;
TAKEN:
bar.sync 0;
}"""
_WAIT_FOR: Final = """{
.reg .pred early;
.reg .u32 launch;
.reg .u64 word;
AGAIN:
ld.relaxed.gpu.global.u64 word, [$1];
mov.b64 {$0, launch}, word;
setp.ne.u32 early, launch, $2;
@early bra AGAIN;
}"""
# A slot beyond the end counts as published: the register keeps its value.
_LOAD_IF_THERE: Final = """{
.reg .pred there;
mov.b64 $0, {$1, $2};
setp.lt.s64 there, $4, $5;
@there ld.relaxed.gpu.global.u64 $0, [$3];
}"""
_WAIT_AFTER_LOAD: Final = """{
.reg .pred early;
.reg .u32 launch;
.reg .u64 word;
mov.u64 word, $1;
bra LOOK;
AGAIN:
ld.relaxed.gpu.global.u64 word, [$2];
LOOK:
mov.b64 {$0, launch}, word;
setp.ne.u32 early, launch, $3;
@early bra AGAIN;
}"""
_BEGIN: Final = "ld.relaxed.gpu.global.u64 $0, [$1];"
# One thread calls this, which ptxas cannot know. An addend that is the same for all
# lanes it would aggregate over the warp, which then waits for the result at once. An
# addend that may differ by lane it leaves alone, and the wait comes with the first use.
_NEXT_WORK_ITEM: Final = """{
.reg .u32 lane;
.reg .u64 one, numbers;
mov.u32 lane, %lanemask_eq;
popc.b32 lane, lane;
cvt.u64.u32 one, lane;
mul.lo.u64 numbers, one, $2;
atom.add.relaxed.gpu.global.u64 $0, [$1], numbers;
}"""
# The last block to leave resets both counts, and counts the launch.
_END: Final = """{
.reg .pred more;
.reg .u64 word, step;
atom.add.acq_rel.gpu.global.u64 word, [$0], 1;
and.b64 step, word, 0xffffffff;
add.u64 step, step, 1;
setp.ne.u64 more, step, $2;
@more bra CLOSED;
sub.u64 step, 0x100000000, $2;
st.relaxed.gpu.global.u64 [$1], 0;
red.add.relaxed.gpu.global.u64 [$0], step;
CLOSED:
}"""
_FIRST_WORD: Final = "dynamic_block_id"

emits_ptx(fence="fence.acq_rel.gpu;")


def _first_word(b: ir.IRBuilder) -> Any:
    """The block's copy, in shared memory, of the flag buffer's first word.

    It is a variable of the module that ``b`` builds, made at the first call.
    """
    known: Any = b.module.globals.get(_FIRST_WORD)
    if known is None:
        known = ir.GlobalVariable(b.module, I64, _FIRST_WORD, addrspace=SHARED)
        known.linkage, known.align = "internal", 8
        known.initializer = ir.Constant(I64, ir.Undefined)
    return known


@emits("dynamic_block_id")
def _dynamic_block_id(c: Call) -> Any:
    """Emit the block's number in the order in which blocks begin.

    It is the lower half of the flag buffer's first word; the upper half is the launch's
    number.
    """
    b, (flag_buffer, blocks) = c.b, c.args
    variable = _first_word(b)
    arguments = [global_address(b, flag_buffer), b.ptrtoint(variable, I32), blocks]
    assembly(b, _DYNAMIC_BLOCK_ID, "l,r,l", arguments)
    return b.and_(b.load(variable), I64(0xFFFFFFFF))


@emits("begin_work_queue")
def _begin_work_queue(c: Call) -> None:
    """Emit a copy of the flag buffer's first word to shared memory."""
    word = assembly(c.b, _BEGIN, "=l,l", [global_address(c.b, c.args[0])], I64)
    c.b.store(word, _first_word(c.b))


@emits("next_work_item")
def _next_work_item(c: Call) -> Any:
    """Emit an atomic add to a queue's counter; the old value is the next item."""
    b, (flag_buffer, at, numbers) = c.b, c.args
    address = global_address(b, b.gep(flag_buffer, [at]))
    return assembly(b, _NEXT_WORK_ITEM, "=l,l,l", [address, numbers], I64)


@emits("end_work_queue")
def _end_work_queue(c: Call) -> None:
    """Emit a block's departure from a queue, which the last to leave resets."""
    b, (flag_buffer, at, blocks) = c.b, c.args
    counted = global_address(b, b.gep(flag_buffer, [at]))
    assembly(b, _END, "l,l,l", [global_address(b, flag_buffer), counted, blocks])


def _launch_number(b: ir.IRBuilder) -> Any:
    """Emit the number of this launch, from 1, as 32 bits: flags are marked with it.

    The first word of the flag buffer counts the launches before it.
    """
    word = b.load(_first_word(b))
    return b.add(b.trunc(b.lshr(word, I64(32)), I32), I32(1))


def _flag_address(c: Call, flag_buffer: Any, at: Any) -> Any:
    """Emit the address of slot ``at`` of the flag buffer, behind its first word."""
    words = max(1, bytes_of(c.dtype) // 4)
    offset = c.b.add(c.b.mul(at, I64(words)), I64(1))
    return global_address(c.b, c.b.gep(flag_buffer, [offset]))


@emits("publish")
def _publish(c: Call) -> None:
    """Emit stores of a value to a slot, word by word, each with the launch number."""
    b, (flag_buffer, at, value) = c.b, c.args
    launch = b.shl(b.zext(_launch_number(b), I64), I64(32))
    address = _flag_address(c, flag_buffer, at)
    for k, part in enumerate(_value_words(b, value)):
        word = b.or_(launch, b.zext(part, I64))
        own = [b.add(address, I64(8 * k)), word]
        assembly(b, "st.relaxed.gpu.global.u64 [$0], $1;", "l,l", own)


@emits("wait_for")
def _wait_for(c: Call) -> Any:
    """Emit a spinning wait until a slot is published, and the read of its value."""
    b, (flag_buffer, at) = c.b, c.args
    launch = _launch_number(b)
    address = _flag_address(c, flag_buffer, at)

    def read(k: int) -> Any:
        """Emit a wait for word ``k`` of the slot."""
        own = [b.add(address, I64(8 * k)), launch]
        return assembly(b, _WAIT_FOR, "=r,l,r", own, I32)

    return _value_of_words(b, c.dtype, read)


@emits("wait_for_many")
def _wait_for_many(c: Call) -> None:
    """Emit the wait for several slots: all loads are issued before the first wait."""
    b, (flag_buffer, at, step, end, tile) = c.b, c.args
    launch = _launch_number(b)
    all_loaded: list[tuple[Any, list[tuple[Any, Any]]]] = []
    for n in range(c.function.lanes):
        address = _flag_address(c, flag_buffer, at)
        register = b.gep(tile, [I64(n)])
        loaded: list[tuple[Any, Any]] = []
        for k, part in enumerate(_value_words(b, b.load(register))):
            there = b.add(address, I64(8 * k))
            own = [part, launch, there, at, end]
            loaded.append(
                (assembly(b, _LOAD_IF_THERE, "=&l,r,r,l,l,l", own, I64), there)
            )
        all_loaded.append((register, loaded))
        at = b.add(at, step)
    for register, loaded in all_loaded:

        def read(k: int, loaded: list[tuple[Any, Any]] = loaded) -> Any:
            return assembly(b, _WAIT_AFTER_LOAD, "=r,l,l,r", [*loaded[k], launch], I32)

        b.store(_value_of_words(b, c.dtype, read), register)


def _value_of_words(b: ir.IRBuilder, dtype: str, read: Callable[[int], Any]) -> Any:
    """Emit the assembly of a value of ``dtype``, also complex, from 32-bit words.

    ``read(k)`` is word k, of 32 bits.
    """
    if dtype not in COMPLEXES:
        return _real_of_words(b, dtype, read, 0)
    part = REAL_PART[dtype]
    parts = [_real_of_words(b, part, read, k * width(part) // 32) for k in range(2)]
    kind = ir.LiteralStructType([p.type for p in parts])
    half = b.insert_value(ir.Constant(kind, ir.Undefined), parts[0], 0)
    return b.insert_value(half, parts[1], 1)


def _value_words(b: ir.IRBuilder, value: Any) -> list[Any]:
    """Emit the split of ``value`` into LLVM values of 32 bits."""
    kind = value.type
    if isinstance(kind, ir.LiteralStructType):
        parts = (b.extract_value(value, k) for k in range(2))
        return [word for part in parts for word in _value_words(b, part)]
    if isinstance(kind, ir.FloatType):
        return [b.bitcast(value, I32)]
    if isinstance(kind, ir.DoubleType):
        return _value_words(b, b.bitcast(value, I64))
    if kind.width == 64:
        return [b.trunc(value, I32), b.trunc(b.lshr(value, I64(32)), I32)]
    return [b.zext(value, I32) if kind.width < 32 else value]


def _real_of_words(
    b: ir.IRBuilder, dtype: str, read: Callable[[int], Any], first: int
) -> Any:
    """Emit the assembly of a real number of ``dtype`` from 32-bit words.

    ``read(k)`` is word k, of 32 bits; the number's begin at ``first``.
    """
    bits = read(first)
    if width(dtype) == 64:
        high = b.shl(b.zext(read(first + 1), I64), I64(32))
        bits = b.or_(high, b.zext(bits, I64))
    if is_float(dtype):
        return b.bitcast(bits, F32 if dtype == "f32" else ir.DoubleType())
    return b.trunc(bits, ir.IntType(width(dtype))) if width(dtype) < 32 else bits
