"""Frames: the memory that one call of a plan needs, kept for the next one.

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
    INLINE_WORKSPACE,
    LINE,
    Frame,
    Image,
    Patch,
)
from arrayfn.backends.native import cast, local, native, size_of
from arrayfn.backends.native.structures import Array


@native
def workspace_bytes(image: Image, threads: int) -> int:
    """Return the bytes that a call needs for temporaries and the threads' scratch."""
    return image.arena_bytes + threads * image.scratch_bytes


@native
def frame_make(image: Image, threads: int) -> Frame | None:
    """Allocate a frame for up to ``threads`` threads; None if memory is out.

    One block of memory holds the Frame, the integers ``bases``, ``numbers`` and
    ``arguments``, the threads' copies of arguments, and a small workspace. A large
    workspace is not allocated (``workspace`` is 0).
    """
    bases = image.input_count + image.output_count + image.moving_count
    integers = bases + image.input_count + image.argument_count
    size = size_of(Frame) + size_of(int) * integers + threads * image.copy_bytes
    size = (size + LINE - 1) & ~(LINE - 1)
    workspace = workspace_bytes(image, threads)
    inline = workspace <= INLINE_WORKSPACE
    result = local(int, 1)
    if posix_memalign(result, LINE, size + workspace if inline else size) != 0:
        return None
    frame = cast(Frame, result[0])
    frame.threads = threads
    frame.patched = 0
    frame.workspace = result[0] + size if inline else 0
    frame.unchecked = 0
    frame.bases = cast(Array[int], result[0] + size_of(Frame))
    frame.numbers = frame.bases + bases
    frame.arguments = frame.numbers + image.input_count
    frame.copies = cast(int, frame.arguments + image.argument_count)
    for k in range(image.argument_count):
        frame.arguments[k] = image.template[k]
    return frame


@native
def frame_acquire(image: Image) -> Frame | None:
    """Take a frame off the image's free list, or allocate one; None on failure.

    Frames made for fewer threads than the pool has are freed.
    """
    threads = image.pool.threads
    frame = image.frames
    while frame is not None:
        image.frames = frame.next
        if frame.threads >= threads:
            return frame
        free(cast(int, frame))
        frame = image.frames
    return frame_make(image, threads)


@native
def frame_release(image: Image, frame: Frame) -> None:
    """Put a frame on its image's free list."""
    frame.next = image.frames
    image.frames = frame


@native
def frames_free(image: Image) -> None:
    """Free all frames on an image's free list, as the image is destroyed."""
    frame = image.frames
    while frame is not None:
        image.frames = frame.next
        free(cast(int, frame))
        frame = image.frames


@native
def patch_workspace(image: Image, frame: Frame, workspace: int) -> None:
    """Write the addresses of temporaries and scratch into the frame's arguments.

    ``workspace`` is the address where the workspace begins.
    """
    for k in range(image.workspace_patch_count):
        patch = image.workspace_patches[k]
        frame.arguments[patch.argument] = workspace + patch.offset
    frame.patched = workspace


@native
def patch_arguments(frame: Frame, patches: Array[Patch], count: int) -> None:
    """Apply ``count`` patches: write addresses in buffers into the frame's arguments.

    ``frame.bases`` has the addresses where the buffers begin.
    """
    for k in range(count):
        patch = patches[k]
        frame.arguments[patch.argument] = frame.bases[patch.base] + patch.offset
