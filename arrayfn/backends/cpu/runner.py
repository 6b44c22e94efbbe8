"""The resident plan runner: native routines that walk a plan's steps.

An *image* is a plan encoded as words (``image.py`` writes it). A *frame* is what one
call of it needs: resolved arguments, the threads' own copies of them, and a small
workspace (arena and scratch memory). Frames go back to a list of their image, so that
concurrent calls are safe and a repeated call allocates nothing. Large workspaces come
from the heap.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.heap import free, heap_give, heap_take, posix_memalign
from arrayfn.backends.cpu.native import CFunction, call, load, native, stack, store
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
IMAGE_BYTES: Final = 256

RELEASE_GIL: Final = 1
PARALLEL: Final = 2
USES_BLAS: Final = 4

# Byte offsets into a step.
STEP_ENTRY: Final = 0
STEP_ARGUMENTS: Final = 8  # word in the template where its arguments begin
STEP_COUNT_ARGUMENTS: Final = 16
STEP_ITEMS: Final = 24
STEP_GRAIN: Final = 32
STEP_SLOTS: Final = 40
STEP_SLOT_COUNT: Final = 48
STEP_BYTES: Final = 56

# Byte offsets into a frame. Bases (a word an input or output), values of scalar inputs,
# arguments, copies and the workspace follow the header.
FRAME_NEXT: Final = 0
FRAME_THREADS: Final = 8
FRAME_PATCHED: Final = 16  # the workspace that the arguments point to
FRAME_WORKSPACE: Final = 24  # its own, or 0 if the heap gives one for each call
FRAME_HEADER: Final = 64
INLINE_WORKSPACE: Final = 1 << 16
LINE: Final = 64

# Byte offsets into the BLAS words: its thread count is 1 while plans that use it run.
BLAS_GET: Final = 0
BLAS_SET: Final = 8
BLAS_USERS: Final = 16
BLAS_SAVED: Final = 24
BLAS_BYTES: Final = 32

PyEval_SaveThread = CFunction("PyEval_SaveThread", 0)
PyEval_RestoreThread = CFunction("PyEval_RestoreThread", 1, "void")
memcpy = CFunction("memcpy", 3)


@native
def frame_arguments(image: int, frame: int) -> int:
    """The address of a frame's arguments."""
    inputs = load(image + INPUT_COUNT)
    return frame + FRAME_HEADER + 8 * (2 * inputs + load(image + OUTPUT_COUNT))


@native
def frame_scalars(image: int, frame: int) -> int:
    """The address of the words that hold the values of scalar inputs."""
    bases = load(image + INPUT_COUNT) + load(image + OUTPUT_COUNT)
    return frame + FRAME_HEADER + 8 * bases


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
    arguments = frame_arguments(image, frame)
    bases = frame + FRAME_HEADER
    patch = load(image + PATCHES)
    for _ in range(load(image + PATCH_COUNT)):
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
        run_steps(image, frame)
        PyEval_RestoreThread(state)
    else:
        run_steps(image, frame)
    if flags & USES_BLAS:
        blas_leave(load(image + BLAS))
    if load(frame + FRAME_WORKSPACE) == 0:
        heap_give(load(image + HEAP), workspace, size)
    return 1


@native
def run_steps(image: int, frame: int) -> int:
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
    first = frame_arguments(image, frame)
    step = load(image + STEPS)
    for _ in range(load(image + STEP_COUNT)):
        entry = load(step + STEP_ENTRY)
        arguments = first + 8 * load(step + STEP_ARGUMENTS)
        items = load(step + STEP_ITEMS)
        if shared and items > load(step + STEP_GRAIN):
            store(pool + JOB_COUNT, load(step + STEP_COUNT_ARGUMENTS))
            store(pool + JOB_SLOTS, load(step + STEP_SLOTS))
            store(pool + JOB_SLOT_COUNT, load(step + STEP_SLOT_COUNT))
            pool_launch(pool, entry, arguments, items, load(step + STEP_GRAIN))
        else:
            call(entry, arguments, 0, items)
        step += STEP_BYTES
    if shared:
        pool_leave(pool)
    return 0


@native
def blas_enter(blas: int) -> int:
    """Make BLAS single-threaded; the GIL guards the count of plans that need it so."""
    users = load(blas + BLAS_USERS)
    if users == 0:
        store(blas + BLAS_SAVED, call(load(blas + BLAS_GET)) & 0xFFFF)
        if load(blas + BLAS_SAVED) != 1:
            call(load(blas + BLAS_SET), 1)
    store(blas + BLAS_USERS, users + 1)
    return 0


@native
def blas_leave(blas: int) -> int:
    """Give BLAS its threads back when the last plan that uses it ends."""
    users = load(blas + BLAS_USERS) - 1
    store(blas + BLAS_USERS, users)
    if users == 0 and load(blas + BLAS_SAVED) != 1:
        call(load(blas + BLAS_SET), load(blas + BLAS_SAVED))
    return 0
