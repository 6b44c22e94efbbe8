"""GPUs: memory, copies, waiting and graphs of each; and which GPU a thread uses.

A ``Device`` is a GPU with one context, stream and memory pool. All work goes to its
stream, in order, and memory is allocated and freed in the order of that stream.
``device()`` is the GPU of the calling thread: the first one, except within ``on(gpu)``.
A function that is ``per_device`` computes its result once for each GPU.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Final, ParamSpec, TypeVar

from arrayfn.backends.cuda import caching_allocator
from arrayfn.backends.cuda.caching_allocator import CachingAllocator
from arrayfn.backends.cuda.context import OUT_OF_MEMORY, Context
from arrayfn.backends.cuda.entry import NOT_READY
from arrayfn.backends.cuda.memory import (
    MemoryStats,
    Pool,
    block_size,
)
from arrayfn.backends.cuda.waiting import waiter
from arrayfn.errors import OutOfMemoryError, user_location

# Names and numbers of cuda.h.
CAPTURE_RELAXED: Final = 2
_NO_CONTEXT: Final = 201  # CUDA_ERROR_INVALID_CONTEXT: the thread has none current yet
_POINTER_MEMORY_TYPE: Final = 2
_POINTER_DEVICE: Final = 9

# Most bytes in free lists; a 16th of the card's memory if that is more.
_MAX_IDLE: Final = 1 << 30
# Bytes of the page-locked buffer through which small results are copied to the host.
_STAGED_BYTES: Final = 1 << 16


_P = ParamSpec("_P")
_T = TypeVar("_T")


class Device(Context):
    """A GPU, by its number: its context, its stream and its memory.

    ``capturing`` is the stream on which graphs are captured, under ``capture_lock``.
    ``watch()`` is called when a wait is long: it returns a function that the wait then
    calls now and then, and which raises if the wait cannot end.
    """

    watch: Callable[[], Callable[[], None]] | None = None

    def __init__(self, number: int = 0) -> None:
        """Open the GPU of this number, with a memory pool and an allocator.

        Also allocates the page-locked buffer for small results.
        """
        super().__init__(number)
        self._pool = Pool(self.library, self.check, self.number)
        # The stream on which work is captured into graphs.
        self.capturing = int(self.new_stream().value or 0)
        self.capture_lock = threading.Lock()
        _, card_bytes = self._card_bytes()
        self._allocator = CachingAllocator(
            {name: self.address(name) for name in caching_allocator.FUNCTIONS.values()},
            self.context,
            self.stream,
            self._pool.handle,
            max(_MAX_IDLE, card_bytes // 16),
        )
        staged = ctypes.c_void_p()
        self.check(
            self.library.cuMemAllocHost_v2(
                ctypes.byref(staged), ctypes.c_size_t(_STAGED_BYTES)
            )
        )
        self._staged = int(staged.value or 0)
        self._staged_lock = threading.Lock()
        self._wait = waiter(self.stream, self.address("cuStreamQuery"))

    # Memory.

    def allocate(self, nbytes: int) -> int:
        """Allocate ``nbytes`` and return their address, or raise OutOfMemoryError.

        Freed blocks are reused, the lowest address first. This is safe because work is
        on one stream, which waits for collectives on another one before a plan ends. So
        work that was enqueued earlier ends before work that reuses the block.
        By this order a training step, whose results are the next step's arguments,
        alternates between two sets of addresses, for which graphs are cached.
        """
        pointer = self._allocator.allocate(nbytes)
        if not pointer:
            self._make_room(block_size(nbytes))
            pointer = self._allocator.allocate(nbytes)
        return pointer

    def block(self, nbytes: int) -> tuple[int, object]:
        """Allocate ``nbytes``; return their address and an object that owns them.

        The owner's destructor frees the memory. Raises OutOfMemoryError if there is not
        enough.
        """
        block = self._allocator.block(nbytes)
        while block is None:
            self._make_room(block_size(nbytes))
            block = self._allocator.block(nbytes)
        return block

    def free_list(self, nbytes: int) -> int:
        """Return the address of the native free list of blocks that hold ``nbytes``.

        The native call entry allocates from it.
        """
        return self._allocator.free_list(nbytes)

    def share(self, owner: object) -> None:
        """Record that another library has seen the memory of the block ``owner``.

        The block is reused only after all work on the GPU has run, since the library's
        work may be on another stream.
        """
        self._allocator.share(owner)

    def _make_room(self, size: int) -> None:
        """Make the driver's pool large enough for a block of ``size`` bytes.

        Allocates such a block and frees it again: the pool keeps the memory. If the
        driver has none, idle memory is returned to it first. Raises OutOfMemoryError if
        that does not help.
        """
        self.make_current()
        pointer = ctypes.c_uint64()
        arguments = (
            ctypes.byref(pointer),
            ctypes.c_size_t(size),
            ctypes.c_void_p(self._pool.handle),
            ctypes.c_void_p(self.stream),
        )
        status = self.library.cuMemAllocFromPoolAsync(*arguments)
        if status == OUT_OF_MEMORY:
            self.trim()
            status = self.library.cuMemAllocFromPoolAsync(*arguments)
        if status == OUT_OF_MEMORY:
            raise self.out_of_memory(size)
        self.check(status)
        stream = ctypes.c_void_p(self.stream)
        self.check(self.library.cuMemFreeAsync(pointer, stream))

    def free(self, pointer: int) -> None:
        """Free the memory at ``pointer``, which ``allocate`` returned, in stream order.

        Work that was enqueued before may still use it.
        """
        self._allocator.free(pointer)

    def trim(self) -> None:
        """Return the memory of free lists and pool that no array uses to the card.

        Waits for all enqueued work.
        """
        self._allocator.clear()
        self.synchronize()
        self._pool.trim()

    def out_of_memory(self, nbytes: int) -> OutOfMemoryError:
        """Make the error for a failed allocation of ``nbytes``."""
        stats = self.memory_stats()
        return OutOfMemoryError(
            f"out of GPU memory: {nbytes:,} bytes were asked for; arrays hold "
            f"{stats.in_use:,}, and {stats.free:,} of {stats.total:,} are free. "
            "Arrays free theirs when nothing refers to them; donate_argnums lets "
            "results overwrite arguments",
            user_location(),
        )

    def memory_stats(self) -> MemoryStats:
        """Return the statistics of the GPU's memory at present."""
        return self._pool.stats(self._allocator.idle_bytes, *self._card_bytes())

    def _card_bytes(self) -> tuple[int, int]:
        """Return the free bytes of the card's memory, and its total bytes."""
        self.make_current()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(
            self.library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        )
        return free.value, total.value

    # Copies and waiting.

    def fill(self, pointer: int, byte: int, nbytes: int, stream: int = 0) -> None:
        """Enqueue a fill of ``nbytes`` at ``pointer`` with ``byte``.

        It is on ``stream``, or on the GPU's own stream if that is 0.
        """
        self.make_current()
        self.check(
            self.waiting.cuMemsetD8Async(
                ctypes.c_uint64(pointer),
                ctypes.c_ubyte(byte),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(stream or self.stream),
            )
        )

    def copy_in(self, pointer: int, address: int, nbytes: int) -> None:
        """Copy ``nbytes`` from the host's ``address`` to the GPU's ``pointer``.

        The source may change once this returns: the driver has copied pageable memory
        by then, and for page-locked memory this waits.
        """
        self.make_current()
        self.check(
            self.waiting.cuMemcpyHtoDAsync_v2(
                ctypes.c_uint64(pointer),
                ctypes.c_void_p(address),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(self.stream),
            )
        )
        if self._is_page_locked(address):
            self.synchronize()  # the GPU reads the source when it executes the copy

    def _is_page_locked(self, address: int) -> bool:
        """Whether the host's memory at ``address`` is page-locked.

        The GPU reads such memory directly, when it executes the copy.
        """
        attribute, kind = ctypes.c_int(_POINTER_MEMORY_TYPE), ctypes.c_uint()
        value = ctypes.c_void_p(ctypes.addressof(kind))
        self.check(
            self.library.cuPointerGetAttributes(
                1,
                ctypes.byref(attribute),
                ctypes.byref(value),
                ctypes.c_uint64(address),
            )
        )
        return kind.value != 0

    def copy_out(self, address: int, pointer: int, nbytes: int) -> None:
        """Copy ``nbytes`` from the GPU's ``pointer`` to the host's ``address``.

        This waits until the enqueued work and the copy have run. Ctrl-C ends the wait.
        Small copies go through a page-locked buffer, unless another thread uses it.
        """
        # For pageable memory the driver waits for the stream inside of its copy, where
        # Ctrl-C cannot end the wait. So a copy to such memory begins only after
        # ``synchronize``.
        if nbytes > _STAGED_BYTES or not self._staged_lock.acquire(blocking=False):
            self.synchronize()
            self._begin_copy_out(address, pointer, nbytes)
            self.synchronize()
            return
        try:
            self._begin_copy_out(self._staged, pointer, nbytes)
            self.synchronize()
            ctypes.memmove(address, self._staged, nbytes)
        finally:
            self._staged_lock.release()

    def _begin_copy_out(self, address: int, pointer: int, nbytes: int) -> None:
        """Enqueue a copy of ``nbytes`` from ``pointer`` to the host's ``address``."""
        self.make_current()
        self.check(
            self.waiting.cuMemcpyDtoHAsync_v2(
                ctypes.c_void_p(address),
                ctypes.c_uint64(pointer),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(self.stream),
            )
        )

    def copy(self, target: int, source: int, nbytes: int, stream: int = 0) -> None:
        """Enqueue a copy of ``nbytes`` from ``source`` to ``target`` on this GPU.

        It is on ``stream``, or on the GPU's own stream if that is 0.
        """
        self.make_current()
        self.check(
            self.waiting.cuMemcpyDtoDAsync_v2(
                ctypes.c_uint64(target),
                ctypes.c_uint64(source),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(stream or self.stream),
            )
        )

    def owner_of(self, pointer: int) -> int:
        """Return the number of the GPU whose memory has the address ``pointer``."""
        number = ctypes.c_int()
        self.check(
            self.library.cuPointerGetAttribute(
                ctypes.byref(number), _POINTER_DEVICE, ctypes.c_uint64(pointer)
            )
        )
        return number.value

    def copy_from(self, other: Device, target: int, source: int, nbytes: int) -> None:
        """Enqueue a copy of ``nbytes`` from another GPU's memory on this GPU's stream.

        ``source`` is an address in the memory of ``other``, ``target`` one in this
        GPU's.
        """
        self.make_current()
        self.check(
            self.library.cuMemcpyPeerAsync(
                ctypes.c_uint64(target),
                ctypes.c_void_p(self.context),
                ctypes.c_uint64(source),
                ctypes.c_void_p(other.context),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(self.stream),
            )
        )

    def synchronize(self) -> None:
        """Wait for all work on the stream, and raise errors of its kernels.

        Ctrl-C ends the wait, but not the work. Each native wait returns NOT_READY after
        a while; between two of them Python handles signals.
        """
        status = self._wait()
        if status == NOT_READY:
            check = self.watch() if self.watch is not None else None
            while status == NOT_READY:
                if check is not None:
                    check()  # raises if the work cannot end
                status = self._wait()
        if status == _NO_CONTEXT:  # this thread has not used the GPU yet
            self.make_current()
            self.synchronize()
        elif status:
            self.check(status)

    # Graphs.

    def executable_graph(self, enqueue: Callable[[int], None]) -> int:
        """Capture the work of ``enqueue(stream)``; return an executable CUgraphExec."""
        graph = self.capture(enqueue)
        try:
            return self.instantiate(graph)
        finally:
            self.library.cuGraphDestroy(ctypes.c_void_p(graph))

    def capture(self, enqueue: Callable[[int], None]) -> int:
        """Capture the work that ``enqueue(stream)`` enqueues there; return a CUgraph.

        One thread at a time captures.
        """
        self.make_current()
        stream, graph = ctypes.c_void_p(self.capturing), ctypes.c_void_p()
        with self.capture_lock:
            self.check(self.library.cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED))
            try:
                enqueue(self.capturing)
            finally:
                status = self.library.cuStreamEndCapture(stream, ctypes.byref(graph))
        self.check(status)
        return int(graph.value or 0)

    def instantiate(self, graph: int) -> int:
        """Make the executable graph (CUgraphExec) of ``graph``, a CUgraph.

        If memory is exhausted, idle memory is returned to the card for a second try.
        """
        executable = ctypes.c_void_p()
        arguments = ctypes.byref(executable), ctypes.c_void_p(graph), ctypes.c_uint64(0)
        status = self.library.cuGraphInstantiateWithFlags(*arguments)
        if status == OUT_OF_MEMORY:
            self.trim()
            status = self.library.cuGraphInstantiateWithFlags(*arguments)
        self.check(status, "for a graph")
        return int(executable.value or 0)

    def launch_graph(self, graph: int) -> None:
        """Enqueue the executable graph ``graph`` on the GPU's stream."""
        self.make_current()
        stream = ctypes.c_void_p(self.stream)
        self.check(
            self.library.cuGraphLaunch(ctypes.c_void_p(graph), stream), "in a graph"
        )

    def destroy_graph(self, graph: int) -> None:
        """Destroy an executable graph; launches enqueued earlier still run."""
        self.make_current()
        self.check(self.library.cuGraphExecDestroy(ctypes.c_void_p(graph)))


@cache
def gpu(number: int) -> Device:
    """Return GPU ``number``, which the first call opens."""
    return Device(number)


@cache
def gpu_count() -> int:
    """Return the number of GPUs; 0 without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    failed = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


class _Current(threading.local):
    """The GPU that each thread works on; None means GPU 0."""

    gpu: Device | None = None


_CURRENT: Final = _Current()


def current_number() -> int:
    """Return the number of the GPU that this thread works on, without opening it."""
    return _CURRENT.gpu.number if _CURRENT.gpu else 0


def device() -> Device:
    """Return the GPU that this thread works on; opens GPU 0 if it is not open yet."""
    return _CURRENT.gpu or gpu(0)


@contextmanager
def on(device: Device) -> Generator[None, None, None]:
    """Let this thread work on the GPU ``device`` within a ``with`` block."""
    before, _CURRENT.gpu = _CURRENT.gpu, device
    try:
        yield
    finally:
        _CURRENT.gpu = before


def per_device(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate ``function`` to cache its results by the thread's GPU and arguments."""

    @cache
    def cached(number: int, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call ``function``; the GPU's ``number`` is only a part of the cache's key."""
        return function(*args, **kwargs)

    @wraps(function)
    def on_current_gpu(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return the cached result for this thread's GPU and the arguments."""
        return cached(current_number(), *args, **kwargs)

    return on_current_gpu
