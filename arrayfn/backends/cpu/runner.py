"""The resident plan runner: native routines that walk a plan's steps.

The steps are those of an *image*, run on a *frame* (see ``image_layout`` and
``frames``). A loop moves its buffers by adding strides and by exchanging two addresses.
"""

from __future__ import annotations

from arrayfn.backends.cpu.frames import (
    frame_arguments,
    frame_copies,
    frame_workspace_bytes,
    patch_arguments,
    patch_bases,
    patch_workspace,
)
from arrayfn.backends.cpu.heap import heap_give, heap_take
from arrayfn.backends.cpu.image_layout import (
    BLAS,
    BLAS_FIRST,
    BLAS_GET,
    BLAS_LIBRARY_BYTES,
    BLAS_SAVED,
    BLAS_SET,
    BLAS_USERS,
    BRANCH_COUNT,
    BRANCH_TABLE,
    CARRY_BYTES,
    COPY_BYTES,
    FLAGS,
    FRAME_HEADER,
    FRAME_PATCHED,
    FRAME_SINCE,
    FRAME_THREADS,
    FRAME_WORKSPACE,
    HEAP,
    KIND_CALL,
    KIND_LOOP,
    LOOK_AFTER,
    LOOP_CARRIES,
    LOOP_CARRY_COUNT,
    LOOP_COUNT,
    LOOP_PREDICATE,
    LOOP_SLICE_COUNT,
    LOOP_SLICES,
    LOOP_STEP_COUNT,
    LOOP_STEPS,
    PARALLEL,
    POOL,
    RELEASE_GIL,
    SCRATCH_BYTES,
    SLICE_BYTES,
    STEP_ARGUMENTS,
    STEP_BYTES,
    STEP_COUNT,
    STEP_COUNT_ARGUMENTS,
    STEP_ENTRY,
    STEP_GRAIN,
    STEP_ITEMS,
    STEP_KIND,
    STEP_PATCH_COUNT,
    STEP_PATCHES,
    STEP_SLOT_COUNT,
    STEP_SLOTS,
    STEP_TABLE,
    STEP_WEIGHT,
    STEPS,
    USES_BLAS,
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
from arrayfn.backends.cpu.signals import leave_stopped, look, use_pool
from arrayfn.backends.native import (
    CFunction,
    call,
    load,
    load_i32,
    load_u8,
    native,
    store,
)

PyEval_SaveThread = CFunction("PyEval_SaveThread", 0)
PyEval_RestoreThread = CFunction("PyEval_RestoreThread", 1, "void")
PyErr_NoMemory = CFunction("PyErr_NoMemory", 0)
memcpy = CFunction("memcpy", 3)


@native
def run_frame(image: int, frame: int) -> int:
    """Run the plan on a frame whose bases are set: 1, or 0 with an error set.

    That is that memory is out, or what a signal's handler raised.
    """
    patch_bases(image, frame)
    workspace = load(frame + FRAME_WORKSPACE)
    size = frame_workspace_bytes(image, frame)
    if workspace == 0:
        workspace = heap_take(load(image + HEAP), size)
        if workspace == 0:
            PyErr_NoMemory()
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
    return 1 - leave_stopped()


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
        use_pool()
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
    """Run ``count`` steps from ``step`` on; on ``pool`` unless it is 0.

    1 if the plan is to end before it is done.
    """
    since = bases - FRAME_HEADER + FRAME_SINCE
    for _ in range(count):
        moving = load(step + STEP_PATCH_COUNT)
        if moving:
            patch_arguments(arguments, bases, load(step + STEP_PATCHES), moving)
        own = arguments + 8 * load(step + STEP_ARGUMENTS)
        kind = load(step + STEP_KIND)
        if kind == KIND_CALL:
            items = load(step + STEP_ITEMS)
            shared = pool != 0 and items > load(step + STEP_GRAIN)
            if shared:
                store(pool + JOB_COUNT, load(step + STEP_COUNT_ARGUMENTS))
                store(pool + JOB_SLOTS, load(step + STEP_SLOTS))
                store(pool + JOB_SLOT_COUNT, load(step + STEP_SLOT_COUNT))
                entry = load(step + STEP_ENTRY)
                pool_launch(pool, entry, own, items, load(step + STEP_GRAIN))
            else:
                call(load(step + STEP_ENTRY), own, 0, items)
            weight = load(since) + load(step + STEP_WEIGHT)
            store(since, weight)
            if weight >= LOOK_AFTER:
                store(since, 0)
                if look():
                    return 1
        elif kind == KIND_LOOP:
            if run_loop(arguments, bases, pool, own, load(step + STEP_TABLE)):
                return 1
        elif run_branch(arguments, bases, pool, own, load(step + STEP_TABLE)):
            return 1
        step += STEP_BYTES
    return 0


@native
def run_loop(arguments: int, bases: int, pool: int, own: int, loop: int) -> int:
    """Run a loop whose own arguments are at ``own``; 1 if the plan is to end."""
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
            if run_steps(arguments, bases, pool, steps, step_count):
                return 1
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
    """Run the branch whose number is at the address that is the only argument.

    1 if the plan is to end.
    """
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
