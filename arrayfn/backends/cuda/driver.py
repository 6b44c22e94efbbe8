"""The NVIDIA driver, as far as the runtime needs it: one context, stream and pool.

Called through ctypes, so that a process that finds its kernels on disk imports nothing
of CUDA's packages. ``device()`` opens the first GPU; all work goes to one stream, in
order, and memory is allocated and freed in the order of that stream.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final

from arrayfn.backends.cuda import caching_allocator
from arrayfn.backends.cuda.caching_allocator import CachingAllocator
from arrayfn.backends.cuda.entry import NOT_READY
from arrayfn.backends.cuda.memory import (
    MemoryStats,
    Pool,
    block_size,
)
from arrayfn.backends.cuda.requirements import missing_gpu
from arrayfn.backends.cuda.waiting import waiter
from arrayfn.backends.object_cache import object_cache
from arrayfn.errors import BackendError, OutOfMemoryError, user_location

_COMPILER: Final = "arrayfn.backends.cuda.kernel_compiler"
# Names and numbers of cuda.h.
CAPTURE_RELAXED: Final = 2
_SUCCESS: Final = 0
_OUT_OF_MEMORY: Final = 2
_NO_CONTEXT: Final = 201  # of a thread that has made no call yet
_FAULTS: Final = frozenset({700, 702, *range(714, 720)})  # of kernels
_NON_BLOCKING: Final = 1
_ATTRIBUTE_MULTIPROCESSORS: Final = 16
_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR = 75, 76
_POINTER_MEMORY_TYPE: Final = 2

_BROKEN: Final = (
    "; this process cannot use the GPU any more. compute-sanitizer names the kernel, "
    "if one that was edited or written by hand has a mistake"
)
_MOST_IDLE: Final = 1 << 30  # of all that are kept, or a 16th of the card's
_STAGED_BYTES: Final = 1 << 16  # of results, that come through page-locked memory


class Device:
    """The first GPU: its context, the stream that all work goes to, and its memory."""

    def __init__(self) -> None:
        # One holds the GIL, for calls that only enqueue; the other waits without it.
        try:
            self.library = ctypes.PyDLL("libcuda.so.1")
        except OSError:
            raise BackendError(
                f"backend 'cuda' is not available ({missing_gpu()})",
                user_location(),
            ) from None
        self.waiting = ctypes.CDLL("libcuda.so.1")
        if object_cache().is_empty():
            threading.Thread(target=_import_compiler).start()
        self.check(self.waiting.cuInit(0))
        number = ctypes.c_int()
        self.check(self.library.cuDeviceGet(ctypes.byref(number), 0))
        context = ctypes.c_void_p()
        self.check(self.waiting.cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
        self.context = int(context.value or 0)
        self.enter()
        self.number = number.value
        self.arch = (
            self.attribute(_ATTRIBUTE_MAJOR),
            self.attribute(_ATTRIBUTE_MINOR),
        )
        self.multiprocessors = self.attribute(_ATTRIBUTE_MULTIPROCESSORS)
        self.stream = int(self.new_stream().value or 0)
        self._pool = Pool(self.library, self.check, self.number)
        self.capturing = int(self.new_stream().value or 0)
        self.capture_lock = threading.Lock()
        self._allocator = CachingAllocator(
            {name: self.address(name) for name in caching_allocator.FUNCTIONS.values()},
            self.context,
            self.stream,
            self._pool.handle,
            max(_MOST_IDLE, self._card_bytes()[1] // 16),
        )
        staged = ctypes.c_void_p()
        self.check(
            self.library.cuMemAllocHost_v2(
                ctypes.byref(staged), ctypes.c_size_t(_STAGED_BYTES)
            )
        )
        self._staged = int(staged.value or 0)
        self._staged_lock = threading.Lock()
        self._launch_graph = self._function("cuGraphLaunch", 2)
        self._wait = waiter(self.stream, self.address("cuStreamQuery"))

    @property
    def name(self) -> str:
        """The card's name."""
        text = ctypes.create_string_buffer(256)
        self.check(self.library.cuDeviceGetName(text, 256, self.number))
        return text.value.decode()

    def attribute(self, attribute: int) -> int:
        """What the card says of itself, by a CUdevice_attribute."""
        value = ctypes.c_int()
        self.check(
            self.library.cuDeviceGetAttribute(
                ctypes.byref(value), attribute, self.number
            )
        )
        return value.value

    def new_stream(self) -> ctypes.c_void_p:
        """Another stream, that waits for none."""
        stream = ctypes.c_void_p()
        self.check(self.library.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING))
        return stream

    def _function(self, name: str, words: int) -> Any:
        """A function of ``words`` 64-bit arguments, called with the GIL held."""
        kind = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * words)
        return kind(self.address(name))

    def address(self, name: str) -> int:
        """The address of a function of the driver."""
        # The header gives some names a suffix: the version it declares.
        for suffix in ("_v2", ""):
            function = getattr(self.library, name + suffix, None)
            if function is not None:
                break
        return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    def enter(self) -> None:
        """Make the context the calling thread's."""
        self.check(self.library.cuCtxSetCurrent(ctypes.c_void_p(self.context)))

    def check(self, status: int, what: str = "") -> None:
        """Raise BackendError unless the driver's ``status`` is success.

        It is OutOfMemoryError where the driver has no memory.
        """
        if status == _SUCCESS:
            return
        if status == _OUT_OF_MEMORY:
            raise OutOfMemoryError(
                f"out of GPU memory{what and ' ' + what}: arrays, other libraries or "
                "other processes have it; arrayfn.memory_stats() says how much",
                user_location(),
            )
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self.library.cuGetErrorName(status, ctypes.byref(name))
        self.library.cuGetErrorString(status, ctypes.byref(text))
        meaning = (text.value or b"unknown error").decode()
        label = (name.value or str(status).encode()).decode()
        raise BackendError(
            f"the NVIDIA driver says: {meaning} ({label}){what and ', ' + what}"
            + (_BROKEN if status in _FAULTS else ""),
            user_location(),
        )

    # Memory.

    def allocate(self, nbytes: int) -> int:
        """The address of new memory. Raises OutOfMemoryError if there is none.

        Small blocks that died are given again, those at low addresses first: work is in
        the order of one stream, so what was enqueued before has done with them. A step
        whose results are what the next one is given so comes to have the same two sets
        of addresses in rotation, and graphs are kept by addresses.
        """
        pointer = self._allocator.take(nbytes)
        if not pointer:
            self._make_room(block_size(nbytes))
            pointer = self._allocator.take(nbytes)
        return pointer

    def block(self, nbytes: int) -> tuple[int, object]:
        """As ``allocate``, and an object that the memory is given back with."""
        made = self._allocator.block(nbytes)
        while made is None:
            self._make_room(block_size(nbytes))
            made = self._allocator.block(nbytes)
        return made

    def free_list(self, nbytes: int) -> int:
        """What the native entry takes memory of so many bytes from."""
        return self._allocator.free_list(nbytes)

    def share(self, owner: object) -> None:
        """Have memory of ``block`` wait for other libraries' work when it dies."""
        self._allocator.share(owner)

    def _make_room(self, size: int) -> None:
        """Have the driver be able to give a block; raises its error if it is not."""
        self.enter()
        pointer = ctypes.c_uint64()
        arguments = (
            ctypes.byref(pointer),
            ctypes.c_size_t(size),
            ctypes.c_void_p(self._pool.handle),
            ctypes.c_void_p(self.stream),
        )
        status = self.library.cuMemAllocFromPoolAsync(*arguments)
        if status == _OUT_OF_MEMORY:
            self.trim()
            status = self.library.cuMemAllocFromPoolAsync(*arguments)
        if status == _OUT_OF_MEMORY:
            raise self.out_of_memory(size)
        self.check(status)
        stream = ctypes.c_void_p(self.stream)
        self.check(self.library.cuMemFreeAsync(pointer, stream))

    def free(self, pointer: int) -> None:
        """Give memory of ``allocate`` back, once what is enqueued before has run."""
        self._allocator.give(pointer)

    def trim(self) -> None:
        """Give what is kept, and no array has, back to the card."""
        self._allocator.clear()
        self.synchronize()
        self._pool.trim()

    def out_of_memory(self, nbytes: int) -> OutOfMemoryError:
        """The error of an allocation of ``nbytes``."""
        stats = self.memory_stats()
        return OutOfMemoryError(
            f"out of GPU memory: {nbytes:,} bytes were asked for; arrays hold "
            f"{stats.in_use:,}, and {stats.free:,} of {stats.total:,} are free. Arrays "
            "give theirs back when nothing refers to them; donate_argnums lets results "
            "be written over arguments",
            user_location(),
        )

    def memory_stats(self) -> MemoryStats:
        """What memory is used for now."""
        return self._pool.stats(self._allocator.idle_bytes, *self._card_bytes())

    def _card_bytes(self) -> tuple[int, int]:
        """How many bytes of the card's memory are free, and how many it has."""
        self.enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(
            self.library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        )
        return free.value, total.value

    # Copies and waiting.

    def fill(self, pointer: int, byte: int, nbytes: int) -> None:
        """Set each byte of memory."""
        self.enter()
        self.check(
            self.library.cuMemsetD8Async(
                ctypes.c_uint64(pointer),
                ctypes.c_ubyte(byte),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(self.stream),
            )
        )

    def copy_in(self, pointer: int, address: int, nbytes: int) -> None:
        """From the host; the source may change once this returns."""
        self.enter()
        self.check(
            self.waiting.cuMemcpyHtoDAsync_v2(
                ctypes.c_uint64(pointer),
                ctypes.c_void_p(address),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(self.stream),
            )
        )
        if self._is_page_locked(address):
            self.synchronize()  # it is read only now

    def _is_page_locked(self, address: int) -> bool:
        """Whether the driver reads memory of the host where it is."""
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
        """To the host, once what is enqueued has run. Ctrl-C leaves the wait."""
        # The driver copies to memory that may be paged out only once it has waited for
        # the stream itself, deaf to Ctrl-C.
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
        self.enter()
        self.check(
            self.waiting.cuMemcpyDtoHAsync_v2(
                ctypes.c_void_p(address),
                ctypes.c_uint64(pointer),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(self.stream),
            )
        )

    def copy(self, target: int, source: int, nbytes: int, stream: int = 0) -> None:
        """Within the GPU's memory; on ``stream`` if one is given."""
        self.enter()
        self.check(
            self.library.cuMemcpyDtoDAsync_v2(
                ctypes.c_uint64(target),
                ctypes.c_uint64(source),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(stream or self.stream),
            )
        )

    def synchronize(self) -> None:
        """Wait for all that is enqueued; an error of a kernel is raised here.

        Ctrl-C leaves the wait; what is enqueued goes on.
        """
        status = self._wait()
        while status == NOT_READY:
            status = self._wait()
        if status == _NO_CONTEXT:
            self.enter()
            self.synchronize()
        elif status:
            self.check(status)

    def wait_for(self, stream: int) -> None:
        """Let later work wait for what is on another stream now."""
        self._after(self.stream, stream)

    def let_wait(self, stream: int) -> None:
        """Let later work on another stream wait for what is enqueued here now."""
        self._after(stream, self.stream)

    def _after(self, later: int, earlier: int) -> None:
        self.enter()
        event = ctypes.c_void_p()
        self.check(self.library.cuEventCreate(ctypes.byref(event), 2))  # no timing
        self.check(self.library.cuEventRecord(event, ctypes.c_void_p(earlier)))
        self.check(self.library.cuStreamWaitEvent(ctypes.c_void_p(later), event, 0))
        self.check(self.library.cuEventDestroy_v2(event))

    # Graphs.

    def capture(self, enqueue: Callable[[int], None]) -> int:
        """What can be launched of what ``enqueue`` puts into the stream it is given."""
        graph = self.record(enqueue)
        try:
            return self.instantiate(graph)
        finally:
            self.library.cuGraphDestroy(ctypes.c_void_p(graph))

    def record(self, enqueue: Callable[[int], None]) -> int:
        """The graph of what ``enqueue`` puts into the stream that it is given."""
        self.enter()
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
        """What can be launched of a graph."""
        made = ctypes.c_void_p()
        arguments = ctypes.byref(made), ctypes.c_void_p(graph), ctypes.c_uint64(0)
        status = self.library.cuGraphInstantiateWithFlags(*arguments)
        if status == _OUT_OF_MEMORY:
            self.trim()
            status = self.library.cuGraphInstantiateWithFlags(*arguments)
        self.check(status, "for a graph")
        return int(made.value or 0)

    def launch(self, graph: int) -> None:
        """Enqueue a graph."""
        status = self._launch_graph(graph, self.stream)
        if status:
            self.check(status, "in a graph")

    def forget(self, graph: int) -> None:
        """Destroy a graph; what is enqueued of it still runs."""
        self.enter()
        self.check(self.library.cuGraphExecDestroy(ctypes.c_void_p(graph)))


def _import_compiler() -> None:
    """Import numba-cuda, which takes as long as the driver takes to begin.

    It is needed where no kernel is kept on disk.
    """
    with suppress(ImportError, BackendError):  # said again by who compiles
        importlib.import_module(_COMPILER)


@cache
def device() -> Device:
    """The GPU, opened at the first call."""
    return Device()
