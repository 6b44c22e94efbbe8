"""Functions of the NVIDIA driver that write down how they are called."""

from __future__ import annotations

import ctypes
import itertools

from arrayfn.backends.cuda.caching_allocator import FUNCTIONS, CachingAllocator

I64, I32 = ctypes.c_int64, ctypes.c_int
CONTEXT, STREAM, POOL = 5, 6, 7
OUT_OF_MEMORY = 2


class Driver:
    """Numbers what is allocated, as long as fewer than ``room`` blocks are live."""

    def __init__(self, room=1 << 30):
        self.room = room
        self.launch_status = 0
        self.stream, self.context = STREAM, CONTEXT
        self.live = {}
        self._numbers = itertools.count(1)
        self.calls = []
        kind = ctypes.PYFUNCTYPE
        self._functions = {
            "cuCtxSetCurrent": kind(I32, I64)(lambda context: 0),
            "cuCtxSynchronize": kind(I32)(self._synchronize),
            "cuMemAllocFromPoolAsync": kind(I32, ctypes.POINTER(I64), I64, I64, I64)(
                self._allocate
            ),
            "cuMemFreeAsync": kind(I32, I64, I64)(self._free),
            "cuGraphLaunch": kind(I32, I64, I64)(self._launch_graph),
            "cuLaunchKernelEx": kind(I32, *[I64] * 4)(self._launch),
        }

    def allocator(self, max_idle=1 << 30):
        """A allocator of this driver's memory."""
        addresses = {name: self.address(name) for name in FUNCTIONS.values()}
        return CachingAllocator(addresses, CONTEXT, STREAM, POOL, max_idle)

    def address(self, name):
        """Where a function is."""
        return ctypes.cast(self._functions[name], ctypes.c_void_p).value

    def _allocate(self, result, size, pool, stream):
        assert (pool, stream) == (POOL, STREAM)
        if len(self.live) == self.room:
            return OUT_OF_MEMORY
        self.calls.append("allocate")
        result[0] = pointer = 4096 * next(self._numbers)
        self.live[pointer] = size
        return 0

    def _free(self, pointer, stream):
        assert stream == STREAM
        self.calls.append("free")
        del self.live[pointer]
        return 0

    def _launch(self, *arguments):
        self.calls.append("launch")
        return self.launch_status

    def _launch_graph(self, graph, stream):
        assert stream == STREAM
        self.calls.append(f"graph {graph}")
        return 0

    def _synchronize(self):
        self.calls.append("synchronize")
        return 0
