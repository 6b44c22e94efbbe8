"""The PTX of the kernels that only CUDA graphs need.

They set the conditions of loops and branches, copy a loop's slices, and copy arguments
and results to staging buffers and back. ``loaded`` loads one of them.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cuda.driver import per_device
from arrayfn.backends.cuda.modules import LoadedKernel, load

COPY_UNIT: Final = 16  # bytes that a thread of copy_parts copies per iteration

_HEAD: Final = """
.version 8.0
.target sm_80
.address_size 64
"""

# Kernels end by setting a condition to %v. The driver links cudaGraphSetConditional.
_EXTERN: Final = """
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
"""
_SET_CONDITION: Final = """\
  {
  .param .b64 to;
  .param .b32 value;
  st.param.b64 [to], %h;
  st.param.b32 [value], %v;
  call.uni cudaGraphSetConditional, (to, value);
  }
  ret;
}
"""

# The condition is the scalar at `number`, clamped to 0 to `last`.
_SCALAR: Final = """\
.visible .entry set_condition(
  .param .u64 handle, .param .u64 number, .param .u64 last)
{
  .reg .b64 %h, %p, %m;
  .reg .b32 %v, %l;
  ld.param.u64 %h, [handle];
  ld.param.u64 %p, [number];
  ld.param.u64 %m, [last];
  cvta.to.global.u64 %p, %p;
  cvt.u32.u64 %l, %m;
  LOAD
  max.s32 %v, %v, 0;
  min.s32 %v, %v, %l;
"""
_LOADS: Final = {"u8": "ld.global.u8 %v, [%p];", "i32": "ld.global.s32 %v, [%p];"}

# Counts an iteration, or with a `step` of 0 resets the counter. The condition is
# whether there is another iteration before the trip count.
_COUNT: Final = """\
.visible .entry count_iteration(
  .param .u64 handle, .param .u64 counter, .param .u64 step, .param .u64 trip_count)
{
  .reg .pred %more;
  .reg .b64 %h, %p, %n, %s, %m;
  .reg .b32 %v;
  ld.param.u64 %h, [handle];
  ld.param.u64 %p, [counter];
  ld.param.u64 %s, [step];
  ld.param.u64 %m, [trip_count];
  cvta.to.global.u64 %p, %p;
  ld.global.u64 %n, [%p];
  add.u64 %n, %n, 1;
  mul.lo.u64 %n, %n, %s;
  st.global.u64 [%p], %n;
  setp.lt.u64 %more, %n, %m;
  selp.u32 %v, 1, 0, %more;
"""

# Each thread copies UNIT bytes from `source` to `target`, which are strided by the
# counter.
_MOVE: Final = """
.visible .entry move(
  .param .u64 target, .param .u64 source, .param .u64 counter,
  .param .u64 target_step, .param .u64 source_step, .param .u64 units)
{
  .reg .pred %over;
  .reg .b64 %t, %s, %c, %n, %i, %k, %step;
  .reg .b32 %block, %size, %thread, %a, %b, %d, %e;
  ld.param.u64 %n, [units];
  mov.u32 %block, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mov.u32 %thread, %tid.x;
  mul.wide.u32 %i, %block, %size;
  cvt.u64.u32 %k, %thread;
  add.u64 %i, %i, %k;
  setp.ge.u64 %over, %i, %n;
  @%over ret;
  ld.param.u64 %t, [target];
  ld.param.u64 %s, [source];
  ld.param.u64 %c, [counter];
  cvta.to.global.u64 %t, %t;
  cvta.to.global.u64 %s, %s;
  cvta.to.global.u64 %c, %c;
  ld.global.u64 %c, [%c];
  ld.param.u64 %step, [target_step];
  mad.lo.u64 %t, %c, %step, %t;
  ld.param.u64 %step, [source_step];
  mad.lo.u64 %s, %c, %step, %s;
  mad.lo.u64 %t, %i, UNIT, %t;
  mad.lo.u64 %s, %i, UNIT, %s;
  ld.global.WORD, [%s];
  st.global.STORED;
  ret;
}
"""
COPY_UNITS: Final = {
    16: ("v4.u32 {%a, %b, %d, %e}", "v4.u32 [%t], {%a, %b, %d, %e}"),
    4: ("u32 %a", "u32 [%t], %a"),
    1: ("u8 %a", "u8 [%t], %a"),
}

# `parts` is a table of target, source and number of bytes; `each` blocks copy one row.
_COPY_PARTS: Final = """
.visible .entry copy_parts(.param .align 8 .b8 parts[BYTES], .param .u32 each)
{
  .reg .pred %over;
  .reg .b64 %part, %t, %s, %n, %i, %k, %step;
  .reg .b32 %block, %each, %number, %size, %thread, %a, %b, %c, %d;
  ld.param.u32 %each, [each];
  mov.u32 %block, %ctaid.x;
  div.u32 %number, %block, %each;
  rem.u32 %block, %block, %each;
  mov.b64 %part, parts;
  mul.wide.u32 %k, %number, 24;
  add.u64 %part, %part, %k;
  ld.param.u64 %t, [%part];
  ld.param.u64 %s, [%part+8];
  ld.param.u64 %n, [%part+16];
  cvta.to.global.u64 %t, %t;
  cvta.to.global.u64 %s, %s;
  mov.u32 %size, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %thread, %block, %size, %thread;
  mul.wide.u32 %i, %thread, UNIT;
  mul.lo.u32 %size, %size, %each;
  mul.wide.u32 %step, %size, UNIT;
  add.u64 %t, %t, %i;
  add.u64 %s, %s, %i;
UNITS:
  add.u64 %k, %i, UNIT;
  setp.gt.u64 %over, %k, %n;
  @%over bra BYTES_LEFT;
  ld.global.v4.u32 {%a, %b, %c, %d}, [%s];
  st.global.v4.u32 [%t], {%a, %b, %c, %d};
  add.u64 %i, %i, %step;
  add.u64 %t, %t, %step;
  add.u64 %s, %s, %step;
  bra UNITS;
BYTES_LEFT:
  setp.ge.u64 %over, %i, %n;
  @%over ret;
  ld.global.u8 %a, [%s];
  st.global.u8 [%t], %a;
  add.u64 %i, %i, 1;
  add.u64 %t, %t, 1;
  add.u64 %s, %s, 1;
  bra BYTES_LEFT;
}
"""


@per_device
def loaded(text: str, entry: str) -> LoadedKernel:
    """Load the kernel ``entry`` of the PTX ``text``; cached for each GPU."""
    return load(text.encode() + b"\0", entry)


def set_condition_ptx(kind: str) -> str:
    """Return the PTX of a kernel that sets a condition to a scalar, clamped.

    ``kind`` is the scalar's dtype, "u8" or "i32".
    """
    load = _SCALAR.replace("LOAD", _LOADS[kind])
    return _HEAD + _EXTERN + load + _SET_CONDITION


def count_iteration_ptx() -> str:
    """Return the PTX of a kernel that counts a loop's iterations.

    It also sets the loop's condition: whether there is another iteration.
    """
    return _HEAD + _EXTERN + _COUNT + _SET_CONDITION


def copy_ptx(unit: int) -> str:
    """Return the PTX of a kernel that copies between strided addresses.

    Each thread copies ``unit`` bytes: 16, 4 or 1.
    """
    load, store = COPY_UNITS[unit]
    text = _MOVE.replace("WORD", load).replace("STORED", store)
    return _HEAD + text.replace("UNIT", str(unit))


def copy_parts_ptx(parts: int) -> str:
    """Return the PTX of a kernel that copies ``parts`` buffers in one launch."""
    # The parameter is a table whose rows are target, source and bytes, 8 bytes each.
    text = _COPY_PARTS.replace("[BYTES]", f"[{24 * parts}]")
    return _HEAD + text.replace("UNIT;", f"{COPY_UNIT};")
