"""Where things stand in an image, its steps and tables, and a frame: byte offsets.

``image`` writes what is read by the native routines of ``frames``, ``runner`` and
``entry``. An *image* is a plan encoded as words.
"""

from __future__ import annotations

from typing import Final

# Byte offsets into an image.
INPUT_COUNT: Final = 0
OUTPUT_COUNT: Final = 8
INPUT_SPECS: Final = 16  # address of a table of addresses, one spec an input
OUTPUT_SPECS: Final = 24
STEP_COUNT: Final = 32
STEPS: Final = 40
TEMPLATE: Final = 48  # address of the arguments of all steps, constants filled in
TEMPLATE_WORDS: Final = 56
PATCHES: Final = (
    64  # triples (argument word, base, offset); a base is an input or output
)
PATCH_COUNT: Final = 72
WORKSPACE_PATCHES: Final = 80  # pairs (argument word, offset)
WORKSPACE_PATCH_COUNT: Final = 88
ARENA_BYTES: Final = 96
SCRATCH_BYTES: Final = 104  # a thread
COPY_BYTES: Final = 112  # of a thread's own copy of a step's arguments
FRAMES: Final = 120  # head of the list of free frames
FLAGS: Final = 128
POOL: Final = 136
HEAP: Final = 144
BLAS: Final = 152
NDARRAY_TYPE: Final = 160
NEW_FROM_DESCR: Final = 168
MEMORY_HANDLER: Final = 176
FLOAT_TYPE: Final = 184
INT_TYPE: Final = 192
BOOL_TYPE: Final = 200
TUPLE_ITEMS: Final = 208  # byte offset of a tuple's items
KEEPALIVE: Final = 216
MOVING_COUNT: Final = 224
IMAGE_BYTES: Final = 256

RELEASE_GIL: Final = 1
PARALLEL: Final = 2
USES_BLAS: Final = 4

# Byte offsets into a step. A loop's or branch's arguments are the addresses it needs.
STEP_KIND: Final = 0
STEP_ENTRY: Final = 8
STEP_ARGUMENTS: Final = 16  # word in the template where its arguments begin
STEP_COUNT_ARGUMENTS: Final = 24
STEP_ITEMS: Final = 32
STEP_GRAIN: Final = 40
STEP_SLOTS: Final = 48
STEP_SLOT_COUNT: Final = 56
STEP_PATCHES: Final = 64  # as PATCHES, of arguments that point to moving buffers
STEP_PATCH_COUNT: Final = 72
STEP_TABLE: Final = 80  # of a loop or branch
STEP_WEIGHT: Final = 88  # how soon to look at signals after it: see LOOK_AFTER
STEP_BYTES: Final = 96
LOOK_AFTER: Final = 16

KIND_CALL: Final = 0
KIND_LOOP: Final = 1
KIND_BRANCH: Final = 2

# Byte offsets into the table of a loop. A slice is (base, argument with its begin,
# stride). A carry is (base, base of what is next, argument with the initial address,
# bytes); the addresses of the two places and of the result follow the initial one.
LOOP_COUNT: Final = 0  # or -1: while the predicate is true
LOOP_PREDICATE: Final = 8  # the argument with its address
LOOP_STEPS: Final = 16
LOOP_STEP_COUNT: Final = 24
LOOP_SLICES: Final = 32
LOOP_SLICE_COUNT: Final = 40
LOOP_CARRIES: Final = 48
LOOP_CARRY_COUNT: Final = 56
LOOP_BYTES: Final = 64
SLICE_BYTES: Final = 24
CARRY_BYTES: Final = 32

# Into the table of a branch: the number of branches, then (steps, their number) each.
# Its only argument is the address of the index.
BRANCH_COUNT: Final = 0
BRANCH_TABLE: Final = 8

# Byte offsets into a frame. Bases (a word an input, output or moving buffer), values of
# scalar inputs, arguments, copies and the workspace follow the header.
FRAME_NEXT: Final = 0
FRAME_THREADS: Final = 8
FRAME_PATCHED: Final = 16  # the workspace that the arguments point to
FRAME_WORKSPACE: Final = 24  # its own, or 0 if the heap gives one for each call
FRAME_SINCE: Final = 32  # weights of steps since signals were looked at
FRAME_HEADER: Final = 64
INLINE_WORKSPACE: Final = 1 << 16
LINE: Final = 64

# Byte offsets into the BLAS words: the number of plans that run and use BLAS, whose
# thread count is 1 meanwhile; then words of each library, the last one's zeros.
BLAS_USERS: Final = 0
BLAS_FIRST: Final = 8
BLAS_GET: Final = 0
BLAS_SET: Final = 8
BLAS_SAVED: Final = 16
BLAS_LIBRARY_BYTES: Final = 24
BLAS_BYTES: Final = BLAS_FIRST + 3 * BLAS_LIBRARY_BYTES
