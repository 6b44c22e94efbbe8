"""Emitters of decoupled look-back and of work queues, between blocks of one launch.

A flag buffer is words of 64 bits. The first word counts dynamic block ids in its low
half and launches in its high half. Every other word holds 32 bits of a value and, above
them, the flag: the number of the launch that published the value, from 1. Value and
flag are one access, so no fence is needed. Flags of earlier launches do not count.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.cuda.assembly import (
    I32,
    I64,
    SHARED,
    Call,
    assembly,
    bytes_of,
    emits,
    emits_ptx,
    global_address,
    value_of_words,
    value_words,
)

# Thread 0 takes the next id. The last block to get an id adds 2**32 - blocks: this
# resets the count of ids in the low half, and counts the launch in the high half.
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
# A slot beyond the end counts as published: the result is the register's value with
# this launch's number.
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
# Only one thread runs this, but ptxas cannot know that. It would aggregate an addend
# that is the same for all lanes over the warp, which then waits for the result at once.
# It does not aggregate an addend that may differ by lane, and the wait comes with the
# first use. So the addend is multiplied by popc(lanemask_eq), which is 1.
_NEXT_WORK_ITEM: Final = """{
.reg .u32 lane;
.reg .u64 one, numbers;
mov.u32 lane, %lanemask_eq;
popc.b32 lane, lane;
cvt.u64.u32 one, lane;
mul.lo.u64 numbers, one, $2;
atom.add.relaxed.gpu.global.u64 $0, [$1], numbers;
}"""
# The last block to leave resets the queue's counter and the count of blocks, and counts
# the launch.
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
    """Return the shared variable with the block's copy of the flag buffer's first word.

    It belongs to the module that ``b`` builds, and is made at the first call.
    """
    known: Any = b.module.globals.get(_FIRST_WORD)
    if known is None:
        known = ir.GlobalVariable(b.module, I64, _FIRST_WORD, addrspace=SHARED)
        known.linkage, known.align = "internal", 8
        known.initializer = ir.Constant(I64, ir.Undefined)
    return known


@emits("dynamic_block_id")
def _dynamic_block_id(c: Call) -> Any:
    """Emit the block's number in the order in which the launch's blocks begin.

    It is the lower half of the flag buffer's first word before the block counts itself.
    The word stays in shared memory for ``_launch_number``.
    """
    b, (flag_buffer, blocks) = c.b, c.args
    variable = _first_word(b)
    arguments = [global_address(b, flag_buffer), b.ptrtoint(variable, I32), blocks]
    assembly(b, _DYNAMIC_BLOCK_ID, "l,r,l", arguments)
    return b.and_(b.load(variable), I64(0xFFFFFFFF))


@emits("begin_work_queue")
def _begin_work_queue(c: Call) -> None:
    """Emit a copy of the flag buffer's first word to shared memory.

    ``_launch_number`` reads it there.
    """
    word = assembly(c.b, _BEGIN, "=l,l", [global_address(c.b, c.args[0])], I64)
    c.b.store(word, _first_word(c.b))


@emits("next_work_item")
def _next_work_item(c: Call) -> Any:
    """Emit an atomic addition of ``numbers`` to the counter of a work queue.

    The counter is word ``at`` of the flag buffer. Its old value is the first of the
    work items that the block claims.
    """
    b, (flag_buffer, at, numbers) = c.b, c.args
    address = global_address(b, b.gep(flag_buffer, [at]))
    return assembly(b, _NEXT_WORK_ITEM, "=l,l,l", [address, numbers], I64)


@emits("end_work_queue")
def _end_work_queue(c: Call) -> None:
    """Emit the departure of a block from a work queue; the last one resets the queue.

    The queue's counter is word ``at`` of the flag buffer; the first word counts the
    ``blocks`` that leave.
    """
    b, (flag_buffer, at, blocks) = c.b, c.args
    counter = global_address(b, b.gep(flag_buffer, [at]))
    assembly(b, _END, "l,l,l", [global_address(b, flag_buffer), counter, blocks])


def _launch_number(b: ir.IRBuilder) -> Any:
    """Emit the number of this launch, from 1, as 32 bits. It is the launch's flag.

    The first word of the flag buffer counts the earlier launches in its high half.
    """
    word = b.load(_first_word(b))
    return b.add(b.trunc(b.lshr(word, I64(32)), I32), I32(1))


def _flag_address(c: Call, flag_buffer: Any, at: Any) -> Any:
    """Emit the address of slot ``at`` of the flag buffer.

    Slots follow the first word; each has a word for every 32 bits of the dtype.
    """
    words = max(1, bytes_of(c.dtype) // 4)
    offset = c.b.add(c.b.mul(at, I64(words)), I64(1))
    return global_address(c.b, c.b.gep(flag_buffer, [offset]))


@emits("publish")
def _publish(c: Call) -> None:
    """Emit stores of a value to a slot: 32 bits at a time, with the launch's number."""
    b, (flag_buffer, at, value) = c.b, c.args
    launch = b.shl(b.zext(_launch_number(b), I64), I64(32))
    address = _flag_address(c, flag_buffer, at)
    for k, part in enumerate(value_words(b, value)):
        word = b.or_(launch, b.zext(part, I64))
        arguments = [b.add(address, I64(8 * k)), word]
        assembly(b, "st.relaxed.gpu.global.u64 [$0], $1;", "l,l", arguments)


@emits("wait_for")
def _wait_for(c: Call) -> Any:
    """Emit a spinning wait until a slot is published; return its value."""
    b, (flag_buffer, at) = c.b, c.args
    launch = _launch_number(b)
    address = _flag_address(c, flag_buffer, at)

    def read(k: int) -> Any:
        """Emit a wait for word ``k`` of the slot; return its 32 bits of the value.

        The slot is at ``address``. The word's flag must become ``launch``.
        """
        arguments = [b.add(address, I64(8 * k)), launch]
        return assembly(b, _WAIT_FOR, "=r,l,r", arguments, I32)

    return value_of_words(b, c.dtype, read)


@emits("wait_for_many")
def _wait_for_many(c: Call) -> None:
    """Emit the wait for slots at, at + step, ... below ``end``; store their values.

    Slot number n of these goes to ``tile[n]``, which keeps its value if the slot is not
    below ``end``. All loads are issued before the first wait.
    """
    b, (flag_buffer, at, step, end, tile) = c.b, c.args
    launch = _launch_number(b)
    # For each slot: its register, and (loaded word, address) of each of its words.
    all_loaded: list[tuple[Any, list[tuple[Any, Any]]]] = []
    for n in range(c.function.lanes):
        address = _flag_address(c, flag_buffer, at)
        register = b.gep(tile, [I64(n)])
        loaded: list[tuple[Any, Any]] = []
        for k, part in enumerate(value_words(b, b.load(register))):
            word_address = b.add(address, I64(8 * k))
            arguments = [part, launch, word_address, at, end]
            word = assembly(b, _LOAD_IF_THERE, "=&l,r,r,l,l,l", arguments, I64)
            loaded.append((word, word_address))
        all_loaded.append((register, loaded))
        at = b.add(at, step)
    for register, loaded in all_loaded:

        def read(k: int, loaded: list[tuple[Any, Any]] = loaded) -> Any:
            """Emit a wait for word ``k``; its load is repeated only if it is early."""
            return assembly(b, _WAIT_AFTER_LOAD, "=r,l,l,r", [*loaded[k], launch], I32)

        b.store(value_of_words(b, c.dtype, read), register)
