"""The resident plan runner: native routines that walk a plan's steps.

The steps are those of an *image*, run on a *frame* (see ``image_layout`` and
``frames``). A loop moves its buffers by adding strides and by exchanging two addresses.
"""

from __future__ import annotations

from arrayfn.backends.cpu.frames import (
    patch_arguments,
    patch_workspace,
    workspace_bytes,
)
from arrayfn.backends.cpu.heap import heap_allocate, heap_free
from arrayfn.backends.cpu.image_layout import (
    CARRY_FIRST,
    CARRY_INITIAL,
    CARRY_RESULT,
    CARRY_SECOND,
    CHECK_AFTER,
    PARALLEL,
    RELEASE_GIL,
    USES_BLAS,
    USES_THREADED_BLAS,
    Blas,
    Branch,
    Frame,
    Image,
    Loop,
    Step,
    StepKind,
)
from arrayfn.backends.cpu.pool import Pool, pool_enter, pool_launch, pool_leave
from arrayfn.backends.cpu.signals import check_signals, reset_stopped, use_pool
from arrayfn.backends.native import CFunction, cast, native
from arrayfn.backends.native.python_objects import (
    PyErr_NoMemory,
    PyEval_RestoreThread,
    PyEval_SaveThread,
)
from arrayfn.backends.native.structures import Array, i32, u8

memcpy = CFunction[[int, int, int], int]("memcpy")


@native
def run_frame(image: Image, frame: Frame) -> bool:
    """Run the plan of ``image`` on a frame whose bases are set.

    Takes a workspace from the heap if the frame has none of its own, sets the threads
    of BLAS libraries that the plan uses, and releases the GIL if the image's flags say
    so. Returns False with an exception set: MemoryError, or one that a signal handler
    raised.
    """
    patch_arguments(frame, image.patches, image.patch_count)
    workspace = frame.workspace
    size = workspace_bytes(image, frame.threads)
    if workspace == 0:
        workspace = heap_allocate(image.heap, size)
        if workspace == 0:
            PyErr_NoMemory()
            return False
    if frame.patched != workspace:
        patch_workspace(image, frame, workspace)
    if image.flags & USES_BLAS:
        blas_enter(image.blas, 1)
    if image.flags & USES_THREADED_BLAS:
        blas_enter(image.threaded_blas, image.pool.threads)
    if image.flags & RELEASE_GIL:
        state = PyEval_SaveThread()
        run_plan(image, frame)
        PyEval_RestoreThread(state)
    else:
        run_plan(image, frame)
    if image.flags & USES_THREADED_BLAS:
        blas_leave(image.threaded_blas)
    if image.flags & USES_BLAS:
        blas_leave(image.blas)
    if frame.workspace == 0:
        heap_free(image.heap, workspace, size)
    return not reset_stopped()


@native
def run_plan(image: Image, frame: Frame) -> None:
    """Run all steps of the plan.

    The thread pool is used if some step is large enough, no other plan uses the pool,
    and the frame has room for its threads. Otherwise this thread runs all steps.
    """
    pool = image.pool
    threads = pool.threads if image.flags & PARALLEL else 1
    if threads > 1 and frame.threads >= threads and pool_enter(pool):
        use_pool()
        pool.job.copies = frame.copies
        pool.job.copy_bytes = image.copy_bytes
        pool.job.scratch_bytes = image.scratch_bytes
        run_steps(frame, pool, image.steps, image.step_count)
        pool_leave(pool)
    else:
        run_steps(frame, None, image.steps, image.step_count)


@native
def run_steps(frame: Frame, pool: Pool | None, steps: Array[Step], count: int) -> bool:
    """Run ``count`` steps; large kernel calls run on ``pool`` if it is not None.

    Returns True if a signal has come and the plan must end before the remaining steps.
    """
    for k in range(count):
        step = steps[k]
        if step.patch_count:
            patch_arguments(frame, step.patches, step.patch_count)
        own = frame.arguments + step.arguments  # the step's own arguments
        kind = step.kind
        if kind == StepKind.CALL:
            if pool is not None and step.items > step.grain:
                # Each worker copies the arguments and moves those in ``slots``, which
                # point to scratch memory, to scratch memory of its own.
                pool.job.argument_count = step.argument_count
                pool.job.slots = step.slots
                pool.job.slot_count = step.slot_count
                pool_launch(pool, step.entry, own, step.items, step.grain)
            else:
                step.entry(own, 0, step.items)
            frame.unchecked += step.weight
            if frame.unchecked >= CHECK_AFTER:
                frame.unchecked = 0
                if check_signals():
                    return True
        elif kind == StepKind.LOOP:
            if run_loop(frame, pool, own, step.loop):
                return True
        elif run_branch(frame, pool, own, step.branch):
            return True
    return False


@native
def run_loop(frame: Frame, pool: Pool | None, own: Array[int], loop: Loop) -> bool:
    """Run a loop whose own arguments are at ``own``.

    Returns True if a signal has come and the plan must end before the remaining steps.
    """
    enter_loop(frame.bases, own, loop)
    left = loop.count  # negative for a loop with a predicate: never reaches 0
    predicate: Array[u8] | None = None
    if left < 0:
        predicate = cast(Array[u8], own[loop.predicate])
    while left:
        if predicate is not None and predicate[0] == 0:
            break
        if run_steps(frame, pool, loop.steps, loop.step_count):
            return True
        advance_loop(frame.bases, own, loop)
        left -= 1
    leave_loop(frame.bases, own, loop)
    return False


@native
def enter_loop(bases: Array[int], own: Array[int], loop: Loop) -> None:
    """Set the addresses of a loop's slices and carries for its first iteration.

    ``bases`` are the frame's, and ``own`` the loop's arguments. A carry is read from
    its initial value and written to the first of its two buffers.
    """
    for k in range(loop.slice_count):
        part = loop.slices[k]
        bases[part.base] = own[part.argument]
    for k in range(loop.carry_count):
        carry = loop.carries[k]
        bases[carry.base] = own[carry.argument + CARRY_INITIAL]
        bases[carry.next_base] = own[carry.argument + CARRY_FIRST]


@native
def advance_loop(bases: Array[int], own: Array[int], loop: Loop) -> None:
    """Change the addresses of a loop's slices and carries to the next iteration's.

    A slice moves by its stride. A carry is read where it was just written, and will be
    written to the other one of its two buffers.
    """
    for k in range(loop.slice_count):
        part = loop.slices[k]
        bases[part.base] += part.stride
    for k in range(loop.carry_count):
        carry = loop.carries[k]
        written = bases[carry.next_base]
        bases[carry.base] = written
        # The sum of both buffers' addresses, minus one of them, is the other one.
        both = own[carry.argument + CARRY_FIRST] + own[carry.argument + CARRY_SECOND]
        bases[carry.next_base] = both - written


@native
def leave_loop(bases: Array[int], own: Array[int], loop: Loop) -> None:
    """Copy a loop's final carries to its results, unless they are there already.

    ``bases`` are the frame's, and ``own`` the loop's arguments.
    """
    for k in range(loop.carry_count):
        carry = loop.carries[k]
        result = own[carry.argument + CARRY_RESULT]
        value = bases[carry.base]
        if value != result:
            memcpy(result, value, carry.nbytes)


@native
def run_branch(
    frame: Frame, pool: Pool | None, own: Array[int], branch: Branch
) -> bool:
    """Run one block of ``branch``: ``own[0]`` is the address of its int32 index.

    An index outside of the blocks is clamped. Returns True if a signal has come and the
    plan must end before the remaining steps.
    """
    index = cast(Array[i32], own[0])[0]
    block = branch.blocks[max(min(index, branch.block_count - 1), 0)]
    return run_steps(frame, pool, block.steps, block.step_count)


@native
def blas_enter(blas: Blas, threads: int) -> None:
    """Count one more plan that uses a BLAS library; the first sets its threads.

    The caller holds the GIL, which guards the count.
    """
    if blas.users == 0 and blas.set_threads is not None:
        blas.saved = blas.get_threads()
        blas.threads = threads
        if blas.saved != threads:
            blas.set_threads(threads)
    blas.users += 1


@native
def blas_leave(blas: Blas) -> None:
    """Count one plan less that uses a BLAS library; the last restores its threads."""
    blas.users -= 1
    if blas.users or blas.set_threads is None:
        return
    if blas.saved != blas.threads:
        blas.set_threads(blas.saved)
