"""Frames: what one call of a plan needs, kept for the next one.

A *frame* has resolved arguments, the threads' own copies of them, and a small
workspace (arena and scratch memory). Frames go back to a list of their image, so that
concurrent calls are safe and a repeated call allocates nothing. Large workspaces come
from the heap.

A *base* is the address of an input, of an output, or of a *moving* buffer, which has
another address in each iteration of a loop. Arguments that point to the first two are
set once a call, those that point to moving ones before each run of their step.
"""

from __future__ import annotations

from arrayfn.backends.cpu.heap import free, posix_memalign
from arrayfn.backends.cpu.image_layout import (
    ARENA_BYTES,
    COPY_BYTES,
    FRAME_HEADER,
    FRAME_NEXT,
    FRAME_PATCHED,
    FRAME_SINCE,
    FRAME_THREADS,
    FRAME_WORKSPACE,
    FRAMES,
    INLINE_WORKSPACE,
    INPUT_COUNT,
    LINE,
    MOVING_COUNT,
    OUTPUT_COUNT,
    PATCH_COUNT,
    PATCHES,
    POOL,
    SCRATCH_BYTES,
    TEMPLATE,
    TEMPLATE_WORDS,
    WORKSPACE_PATCH_COUNT,
    WORKSPACE_PATCHES,
)
from arrayfn.backends.cpu.pool import THREADS
from arrayfn.backends.native import CFunction, load, native, stack, store

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
    store(frame + FRAME_SINCE, 0)
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
