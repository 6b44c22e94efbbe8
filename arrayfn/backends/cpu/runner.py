"""The resident plan runner: native routines that walk a plan's steps.

An *image* is a plan encoded as words (``image.py`` writes it). A *frame* is what one
call of it needs: resolved arguments, the threads' own copies of them, and a small
workspace (arena and scratch memory). Frames go back to a list of their image, so that
concurrent calls are safe and a repeated call allocates nothing. Large workspaces come
from the heap.

A *base* is the address of an input, of an output, or of a *moving* buffer, which has
another address in each iteration of a loop. Arguments that point to the first two are
set once a call, those that point to moving ones before each run of their step. A loop
moves its buffers by adding strides and by exchanging two addresses.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.heap import free, heap_give, heap_take, posix_memalign
from arrayfn.backends.cpu.native import (
    CFunction,
    call,
    load,
    load_i32,
    load_u8,
    native,
    stack,
    store,
)
from arrayfn.backends.cpu.pool import (
    JOB_COPIES,
    JOB_COPY_STRIDE,
    JOB_COUNT,
    JOB_SCRATCH_STRIDE,
    JOB_SLOT_COUNT,
    JOB_SLOTS,
    THREADS,
    pool_enter,
    pool_launch,
    pool_leave,
)

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
STEP_POOL: Final = 88  # byte offset of the argument for the pool; negative: none
STEP_BYTES: Final = 96

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

PyEval_SaveThread = CFunction("PyEval_SaveThread", 0)
PyEval_RestoreThread = CFunction("PyEval_RestoreThread", 1, "void")
memcpy = CFunction("memcpy", 3)


@native
def frame_arguments(image: int, frame: int) -> int:
    """The address of a frame's arguments."""
    return frame_scalars(image, frame) + 8 * load(image + INPUT_COUNT)


@native
def frame_scalars(image: int, frame: int) -> int:
    """The address of the words that hold the values of scalar inputs."""
    bases = load(image + INPUT_COUNT) + load(image + OUTPUT_COUNT)
    return frame + FRAME_HEADER + 8 * (bases + load(image + MOVING_COUNT))


@native
def frame_copies(image: int, frame: int) -> int:
    """The address of the threads' copies of a step's arguments."""
    return frame_arguments(image, frame) + 8 * load(image + TEMPLATE_WORDS)


@native
def frame_workspace_bytes(image: int, frame: int) -> int:
    """The bytes of arena and scratch memory that a call needs."""
    return load(image + ARENA_BYTES) + load(frame + FRAME_THREADS) * load(
        image + SCRATCH_BYTES
    )


@native
def frame_make(image: int, threads: int) -> int:
    """A frame for up to ``threads`` threads; 0 if memory is out."""
    copies = frame_copies(image, 0) + threads * load(image + COPY_BYTES)
    size = (copies + LINE - 1) & ~(LINE - 1)
    workspace = load(image + ARENA_BYTES) + threads * load(image + SCRATCH_BYTES)
    inline = workspace <= INLINE_WORKSPACE
    total = size
    if inline:
        total += workspace
    result = stack(1)
    if posix_memalign(result, LINE, total) != 0:
        return 0
    frame = load(result)
    store(frame + FRAME_THREADS, threads)
    store(frame + FRAME_PATCHED, 0)
    store(frame + FRAME_WORKSPACE, 0)
    if inline:
        store(frame + FRAME_WORKSPACE, frame + size)
    words = 8 * load(image + TEMPLATE_WORDS)
    memcpy(frame_arguments(image, frame), load(image + TEMPLATE), words)
    return frame


@native
def frame_take(image: int) -> int:
    """A free frame of the image, or a new one; 0 if memory is out."""
    threads = load(load(image + POOL) + THREADS)
    frame = load(image + FRAMES)
    while frame != 0:
        store(image + FRAMES, load(frame + FRAME_NEXT))
        if load(frame + FRAME_THREADS) >= threads:
            return frame
        free(frame)
        frame = load(image + FRAMES)
    return frame_make(image, threads)


@native
def frame_give(image: int, frame: int) -> int:
    """Put a frame on its image's list."""
    store(frame + FRAME_NEXT, load(image + FRAMES))
    store(image + FRAMES, frame)
    return 0


@native
def frames_free(image: int) -> int:
    """Free all frames of an image that dies."""
    frame = load(image + FRAMES)
    while frame != 0:
        store(image + FRAMES, load(frame + FRAME_NEXT))
        free(frame)
        frame = load(image + FRAMES)
    return 0


@native
def patch_workspace(image: int, frame: int, workspace: int) -> int:
    """Point the arguments at a workspace."""
    arguments = frame_arguments(image, frame)
    patch = load(image + WORKSPACE_PATCHES)
    for _ in range(load(image + WORKSPACE_PATCH_COUNT)):
        store(arguments + 8 * load(patch), workspace + load(patch + 8))
        patch += 16
    store(frame + FRAME_PATCHED, workspace)
    return 0


@native
def patch_bases(image: int, frame: int) -> int:
    """Point the arguments at the inputs and outputs that the frame's bases hold."""
    return patch_arguments(
        frame_arguments(image, frame),
        frame + FRAME_HEADER,
        load(image + PATCHES),
        load(image + PATCH_COUNT),
    )


@native
def patch_arguments(arguments: int, bases: int, patch: int, count: int) -> int:
    """Set arguments from bases."""
    for _ in range(count):
        base = load(bases + 8 * load(patch + 8))
        store(arguments + 8 * load(patch), base + load(patch + 16))
        patch += 24
    return 0


@native
def run_frame(image: int, frame: int) -> int:
    """Run the plan on a frame whose bases are set: 1, or 0 if memory is out."""
    patch_bases(image, frame)
    workspace = load(frame + FRAME_WORKSPACE)
    size = frame_workspace_bytes(image, frame)
    if workspace == 0:
        workspace = heap_take(load(image + HEAP), size)
        if workspace == 0:
            return 0
    if load(frame + FRAME_PATCHED) != workspace:
        patch_workspace(image, frame, workspace)
    flags = load(image + FLAGS)
    if flags & USES_BLAS:
        blas_enter(load(image + BLAS))
    if flags & RELEASE_GIL:
        state = PyEval_SaveThread()
        run_plan(image, frame)
        PyEval_RestoreThread(state)
    else:
        run_plan(image, frame)
    if flags & USES_BLAS:
        blas_leave(load(image + BLAS))
    if load(frame + FRAME_WORKSPACE) == 0:
        heap_give(load(image + HEAP), workspace, size)
    return 1


@native
def run_plan(image: int, frame: int) -> int:
    """Run all steps, on the pool where they are large enough and it is free."""
    pool = load(image + POOL)
    shared = 0
    if (load(image + FLAGS) & PARALLEL) and load(pool + THREADS) > 1:
        shared = load(pool + THREADS) <= load(frame + FRAME_THREADS) and pool_enter(
            pool
        )
    if shared:
        store(pool + JOB_COPIES, frame_copies(image, frame))
        store(pool + JOB_COPY_STRIDE, load(image + COPY_BYTES))
        store(pool + JOB_SCRATCH_STRIDE, load(image + SCRATCH_BYTES))
        pool_of_plan = pool
    else:
        pool_of_plan = 0
    run_steps(
        frame_arguments(image, frame),
        frame + FRAME_HEADER,
        pool_of_plan,
        load(image + STEPS),
        load(image + STEP_COUNT),
    )
    if shared:
        pool_leave(pool)
    return 0


@native
def run_steps(arguments: int, bases: int, pool: int, step: int, count: int) -> int:
    """Run ``count`` steps from ``step`` on; on ``pool`` unless it is 0."""
    for _ in range(count):
        moving = load(step + STEP_PATCH_COUNT)
        if moving:
            patch_arguments(arguments, bases, load(step + STEP_PATCHES), moving)
        own = arguments + 8 * load(step + STEP_ARGUMENTS)
        kind = load(step + STEP_KIND)
        if kind == KIND_CALL:
            items = load(step + STEP_ITEMS)
            shared = pool != 0 and items > load(step + STEP_GRAIN)
            if load(step + STEP_POOL) >= 0:
                store(own + load(step + STEP_POOL), pool * (1 - shared))
            if shared:
                store(pool + JOB_COUNT, load(step + STEP_COUNT_ARGUMENTS))
                store(pool + JOB_SLOTS, load(step + STEP_SLOTS))
                store(pool + JOB_SLOT_COUNT, load(step + STEP_SLOT_COUNT))
                entry = load(step + STEP_ENTRY)
                pool_launch(pool, entry, own, items, load(step + STEP_GRAIN))
            else:
                call(load(step + STEP_ENTRY), own, 0, items)
        elif kind == KIND_LOOP:
            run_loop(arguments, bases, pool, own, load(step + STEP_TABLE))
        else:
            run_branch(arguments, bases, pool, own, load(step + STEP_TABLE))
        step += STEP_BYTES
    return 0


@native
def run_loop(arguments: int, bases: int, pool: int, own: int, loop: int) -> int:
    """Run a loop whose own arguments are at ``own``."""
    enter_loop(bases, own, loop)
    steps = load(loop + LOOP_STEPS)
    step_count = load(loop + LOOP_STEP_COUNT)
    left = load(loop + LOOP_COUNT)
    predicate = 0
    if left < 0:
        predicate = load(own + 8 * load(loop + LOOP_PREDICATE))
    while left:
        if predicate != 0 and load_u8(predicate) == 0:
            left = 0
        else:
            run_steps(arguments, bases, pool, steps, step_count)
            advance_loop(bases, own, loop)
            left -= 1
    return leave_loop(bases, own, loop)


@native
def enter_loop(bases: int, own: int, loop: int) -> int:
    """Put a loop's moving buffers where the first iteration has them."""
    piece = load(loop + LOOP_SLICES)
    for _ in range(load(loop + LOOP_SLICE_COUNT)):
        store(bases + 8 * load(piece), load(own + 8 * load(piece + 8)))
        piece += SLICE_BYTES
    carry = load(loop + LOOP_CARRIES)
    for _ in range(load(loop + LOOP_CARRY_COUNT)):
        places = own + 8 * load(carry + 16)
        store(bases + 8 * load(carry), load(places))
        store(bases + 8 * load(carry + 8), load(places + 8))
        carry += CARRY_BYTES
    return 0


@native
def advance_loop(bases: int, own: int, loop: int) -> int:
    """Move a loop's buffers to where the next iteration has them."""
    piece = load(loop + LOOP_SLICES)
    for _ in range(load(loop + LOOP_SLICE_COUNT)):
        base = bases + 8 * load(piece)
        store(base, load(base) + load(piece + 16))
        piece += SLICE_BYTES
    carry = load(loop + LOOP_CARRIES)
    for _ in range(load(loop + LOOP_CARRY_COUNT)):
        places = own + 8 * load(carry + 16)
        following = bases + 8 * load(carry + 8)
        written = load(following)
        store(bases + 8 * load(carry), written)
        store(following, load(places + 8) + load(places + 16) - written)
        carry += CARRY_BYTES
    return 0


@native
def leave_loop(bases: int, own: int, loop: int) -> int:
    """Bring a loop's values to where its results are to be."""
    carry = load(loop + LOOP_CARRIES)
    for _ in range(load(loop + LOOP_CARRY_COUNT)):
        result = load(own + 8 * load(carry + 16) + 24)
        value = load(bases + 8 * load(carry))
        if value != result:
            memcpy(result, value, load(carry + 24))
        carry += CARRY_BYTES
    return 0


@native
def run_branch(arguments: int, bases: int, pool: int, own: int, table: int) -> int:
    """Run the branch whose number is at the address that is the only argument."""
    index = load_i32(load(own))
    last = load(table + BRANCH_COUNT) - 1
    if index > last:
        index = last
    if index < 0:
        index = 0
    branch = table + BRANCH_TABLE + 16 * index
    return run_steps(arguments, bases, pool, load(branch), load(branch + 8))


@native
def blas_enter(blas: int) -> int:
    """Make BLAS single-threaded; the GIL guards the count of plans that need it so."""
    users = load(blas + BLAS_USERS)
    store(blas + BLAS_USERS, users + 1)
    library = blas + BLAS_FIRST
    while users == 0 and load(library + BLAS_GET):
        store(library + BLAS_SAVED, call(load(library + BLAS_GET)) & 0xFFFF)
        if load(library + BLAS_SAVED) != 1:
            call(load(library + BLAS_SET), 1)
        library += BLAS_LIBRARY_BYTES
    return 0


@native
def blas_leave(blas: int) -> int:
    """Give BLAS its threads back when the last plan that uses it ends."""
    users = load(blas + BLAS_USERS) - 1
    store(blas + BLAS_USERS, users)
    library = blas + BLAS_FIRST
    while users == 0 and load(library + BLAS_GET):
        if load(library + BLAS_SAVED) != 1:
            call(load(library + BLAS_SET), load(library + BLAS_SAVED))
        library += BLAS_LIBRARY_BYTES
    return 0
