"""The native plan runner: one call launches all steps of a plan, or a run of them.

``run(plan, buffers)`` takes two addresses; it is compiled from the text below.
``buffers`` holds a 64-bit address for each buffer of the plan. ``plan`` is words of 64
bits: the header, whose fields ``Header`` numbers, then the tables that it points to:

* slots: ``address of the slot, buffer, offset``: a kernel's pointer argument is read
  from its slot, which is written before each run;
* steps, of ``STEP_WORDS`` words: a kernel launch, a matrix product, or zeros.

The result is 0, or ``status * 256 + stage`` of the first call that failed (``Stage``).
The caller holds the GIL, so slots are not written by two threads at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

from llvmlite import binding


class Header(IntEnum):
    """Word numbers of the plan's header."""

    CONTEXT = 0
    STREAM = 1
    SLOTS = 2
    SLOT_COUNT = 3
    STEPS = 4
    STEP_COUNT = 5
    SET_CURRENT = 6
    LAUNCH = 7
    FILL = 8
    MATMUL = 9
    SET_ATTRIBUTE = 10
    COOPERATIVE = 11
    WORDS = 12


class Stage(IntEnum):
    """Which call failed."""

    CONTEXT = 1
    KERNEL = 2
    MATMUL = 3
    FILL = 4
    COOPERATIVE = 5


class Step(IntEnum):
    """The first word of a step, which says what follows.

    ``KERNEL``: function, blocks, threads, parameters, bytes of shared memory.
    ``MATMUL``: handle, operation, alpha, slot of a, layout of a, slot of b, layout of
    b, beta, slot of c, layout of c, algorithm, workspace, its bytes, slot of the bias
    or 0, slot of what is added times beta, its layout, slot of alpha or 0. ``FILL``:
    slot, bytes (to be zero). ``COOPERATIVE``: as ``KERNEL``; all blocks run at once.
    """

    KERNEL = 0
    MATMUL = 1
    FILL = 2
    COOPERATIVE = 3


STEP_WORDS = 18
WORKSPACE_WORD = 12  # of a product, then its bytes
BIAS_POINTER = 8  # CUBLASLT_MATMUL_DESC_BIAS_POINTER

_TEXT = """
define i64 @run(i64* %plan, i64* %buffers) {
start:
  %context = call i64 @word(i64* %plan, i64 CONTEXT)
  %stream = call i64 @word(i64* %plan, i64 STREAM)
  %set_ = call i64 @word(i64* %plan, i64 SET_CURRENT)
  %set = inttoptr i64 %set_ to i32 (i64)*
  %entered = call i32 %set(i64 %context)
  %bad0 = icmp ne i32 %entered, 0
  br i1 %bad0, label %fail0, label %slots
fail0:
  %r0 = call i64 @failure(i32 %entered, i64 STAGE_CONTEXT)
  ret i64 %r0

slots:
  %stable_ = call i64 @word(i64* %plan, i64 SLOTS)
  %stable = inttoptr i64 %stable_ to i64*
  %scount = call i64 @word(i64* %plan, i64 SLOT_COUNT)
  br label %snext
snext:
  %s = phi i64 [0, %slots], [%s1, %sbody]
  %smore = icmp slt i64 %s, %scount
  br i1 %smore, label %sbody, label %steps
sbody:
  %splace = mul i64 %s, 3
  %sslot_ = call i64 @word(i64* %stable, i64 %splace)
  %sslot = inttoptr i64 %sslot_ to i64*
  %splace1 = add i64 %splace, 1
  %sbuffer = call i64 @word(i64* %stable, i64 %splace1)
  %splace2 = add i64 %splace, 2
  %soffset = call i64 @word(i64* %stable, i64 %splace2)
  %sbase = call i64 @word(i64* %buffers, i64 %sbuffer)
  %svalue = add i64 %sbase, %soffset
  store i64 %svalue, i64* %sslot
  %s1 = add i64 %s, 1
  br label %snext

steps:
  %table_ = call i64 @word(i64* %plan, i64 STEPS)
  %table = inttoptr i64 %table_ to i64*
  %count = call i64 @word(i64* %plan, i64 STEP_COUNT)
  %launch_ = call i64 @word(i64* %plan, i64 LAUNCH)
  %launch = inttoptr i64 %launch_ to LAUNCH_TYPE
  %fill_ = call i64 @word(i64* %plan, i64 FILL)
  %fill = inttoptr i64 %fill_ to i32 (i64, i8, i64, i64)*
  %together_ = call i64 @word(i64* %plan, i64 COOPERATIVE)
  %together = inttoptr i64 %together_ to COOPERATIVE_TYPE
  %matmul_ = call i64 @word(i64* %plan, i64 MATMUL)
  %matmul = inttoptr i64 %matmul_ to MATMUL_TYPE
  %attribute_ = call i64 @word(i64* %plan, i64 SET_ATTRIBUTE)
  %attribute = inttoptr i64 %attribute_ to i32 (i64, i32, i64, i64)*
  br label %next
next:
  %n = phi i64 [0, %steps], [%n1, %done]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %body, label %end
body:
  %place = mul i64 %n, STEP_WORDS
  %step = getelementptr i64, i64* %table, i64 %place
  %kind = call i64 @word(i64* %step, i64 0)
  %w1 = call i64 @word(i64* %step, i64 1)
  %w2 = call i64 @word(i64* %step, i64 2)
  %w3 = call i64 @word(i64* %step, i64 3)
  %w4 = call i64 @word(i64* %step, i64 4)
  switch i64 %kind, label %kernel [i64 1, label %product i64 2, label %zeros
    i64 3, label %cooperative]
kernel:
  %grid = trunc i64 %w2 to i32
  %block = trunc i64 %w3 to i32
  %k5 = call i64 @word(i64* %step, i64 5)
  %shared = trunc i64 %k5 to i32
  %kstatus = call i32 %launch(i64 %w1, i32 %grid, i32 1, i32 1, i32 %block, i32 1,
    i32 1, i32 %shared, i64 %stream, i64 %w4, i64 0)
  br label %done_or_not
cooperative:
  %cgrid = trunc i64 %w2 to i32
  %cblock = trunc i64 %w3 to i32
  %c5 = call i64 @word(i64* %step, i64 5)
  %cshared = trunc i64 %c5 to i32
  %cstatus = call i32 %together(i64 %w1, i32 %cgrid, i32 1, i32 1, i32 %cblock, i32 1,
    i32 1, i32 %cshared, i64 %stream, i64 %w4)
  br label %done_or_not
product:
  %w5 = call i64 @word(i64* %step, i64 5)
  %w6 = call i64 @word(i64* %step, i64 6)
  %w7 = call i64 @word(i64* %step, i64 7)
  %w8 = call i64 @word(i64* %step, i64 8)
  %w9 = call i64 @word(i64* %step, i64 9)
  %w10 = call i64 @word(i64* %step, i64 10)
  %w11 = call i64 @word(i64* %step, i64 11)
  %w12 = call i64 @word(i64* %step, i64 12)
  %w13 = call i64 @word(i64* %step, i64 13)
  %pa = call i64 @at(i64 %w4)
  %pb = call i64 @at(i64 %w6)
  %pc = call i64 @at(i64 %w9)
  %w14 = call i64 @word(i64* %step, i64 14)
  %w15 = call i64 @word(i64* %step, i64 15)
  %w16 = call i64 @word(i64* %step, i64 16)
  %pd = call i64 @at(i64 %w15)
  %w17 = call i64 @word(i64* %step, i64 17)
  %is_moving = icmp ne i64 %w17, 0
  %alpha_slot = select i1 %is_moving, i64 %w17, i64 %w15
  %moving = call i64 @at(i64 %alpha_slot)
  %alpha = select i1 %is_moving, i64 %moving, i64 %w3
  %has_bias = icmp ne i64 %w14, 0
  br i1 %has_bias, label %bias, label %multiply
bias:
  %bstatus = call i32 %attribute(i64 %w2, i32 BIAS_POINTER, i64 %w14, i64 8)
  %bad_bias = icmp ne i32 %bstatus, 0
  br i1 %bad_bias, label %done_or_not, label %multiply
multiply:
  %pstatus = call i32 %matmul(i64 %w1, i64 %w2, i64 %alpha, i64 %pa, i64 %w5, i64 %pb,
    i64 %w7, i64 %w8, i64 %pd, i64 %w16, i64 %pc, i64 %w10, i64 %w11, i64 %w12,
    i64 %w13, i64 %stream)
  br label %done_or_not
zeros:
  %pz = call i64 @at(i64 %w1)
  %zstatus = call i32 %fill(i64 %pz, i8 0, i64 %w2, i64 %stream)
  br label %done_or_not
done_or_not:
  %status = phi i32 [%kstatus, %kernel], [%bstatus, %bias], [%pstatus, %multiply],
    [%zstatus, %zeros], [%cstatus, %cooperative]
  %bad = icmp ne i32 %status, 0
  br i1 %bad, label %fail, label %done
done:
  %n1 = add i64 %n, 1
  br label %next
fail:
  %stage = add i64 %kind, STAGE_KERNEL
  %r = call i64 @failure(i32 %status, i64 %stage)
  ret i64 %r

end:
  ret i64 0
}

define internal i64 @word(i64* %words, i64 %k) alwaysinline {
  %p = getelementptr i64, i64* %words, i64 %k
  %w = load i64, i64* %p
  ret i64 %w
}

define internal i64 @at(i64 %slot) alwaysinline {
  %p = inttoptr i64 %slot to i64*
  %w = load i64, i64* %p
  ret i64 %w
}

define internal i64 @failure(i32 %status, i64 %stage) alwaysinline {
  %wide = zext i32 %status to i64
  %high = shl i64 %wide, 8
  %r = or i64 %high, %stage
  ret i64 %r
}
"""


def _text() -> str:
    """The functions, with the names of words and types put in."""
    names = {f"STAGE_{stage.name}": str(int(stage)) for stage in Stage}
    names |= {
        "LAUNCH_TYPE": "i32 (i64, i32, i32, i32, i32, i32, i32, i32, i64, i64, i64)*",
        "COOPERATIVE_TYPE": "i32 (i64, i32, i32, i32, i32, i32, i32, i32, i64, i64)*",
        "MATMUL_TYPE": "i32 (" + ", ".join(["i64"] * 16) + ")*",
        "STEP_WORDS": str(STEP_WORDS),
        "BIAS_POINTER": str(BIAS_POINTER),
    }
    text = _TEXT
    for name, value in names.items():
        text = text.replace(name, value)
    for word in sorted(Header, key=lambda w: -len(w.name)):
        text = text.replace(f"i64 {word.name})", f"i64 {int(word)})")
    return text.replace("i64*", "ptr") if binding.llvm_version_info[0] > 16 else text


@cache
def _engine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(opt=2)
    module = binding.parse_assembly(_text())
    module.verify()
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


@cache
def run() -> Callable[[int, int], int]:
    """The runner: a function of the addresses of plan and buffers."""
    words = (ctypes.c_void_p, ctypes.c_void_p)
    kind = ctypes.PYFUNCTYPE(ctypes.c_int64, *words)
    return kind(_engine().get_function_address("run"))
