"""A GPU's context: the driver's functions, their errors, streams and events.

The driver is called through ctypes, so that a process that finds its kernels on disk
imports nothing of CUDA's packages: ``cuda.bindings.driver`` takes 0.06 s of CPU time to
import and ``cuda.core`` 0.17 s (2-core Xeon), where the rest of a first call takes
0.03 s. What is called often is called by native code, by address.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from contextlib import suppress
from typing import Final

from arrayfn.backends.addresses import function_address
from arrayfn.backends.cuda.requirements import missing_gpu
from arrayfn.backends.object_cache import object_cache
from arrayfn.errors import BackendError, OutOfMemoryError, user_location

# Modules that the first call of a compiled function needs, and those that compile
# kernels for it.
_FIRST_CALL: Final = "arrayfn.lowering.cuda.lower", "arrayfn.backends.cuda.this_gpu"
_COMPILER: Final = ("arrayfn.backends.cuda.kernel_compiler",)
# Names and numbers of cuda.h.
SUCCESS: Final = 0
OUT_OF_MEMORY: Final = 2
_FAULTS: Final = frozenset({700, 702, *range(714, 720)})  # errors of running kernels
_NON_BLOCKING: Final = 1  # CU_STREAM_NON_BLOCKING
_ATTRIBUTE_MULTIPROCESSORS: Final = 16
_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR = 75, 76
_EVENT_WITHOUT_TIMING: Final = 2

_BROKEN: Final = (
    "; this process cannot use the GPU any more. compute-sanitizer names the kernel, "
    "if one that was edited or written by hand has a mistake"
)


class Context:
    """The primary context of the GPU ``number``, with one stream for all of its work.

    ``library`` and ``waiting`` both have the driver's functions. ``library`` calls them
    with the GIL held, so use it for calls that return at once. ``waiting`` releases the
    GIL, so use it for calls that may wait. Enqueuing may wait too: for room in the
    stream's queue, and in a plan with collectives for another Python thread, which
    enqueues its part. ``arch`` is the compute capability, as (9, 0).
    """

    def __init__(self, number: int) -> None:
        """Open the GPU: load the driver, make the context current, create the stream.

        Meanwhile, a thread imports the modules that a first call needs, with numba-cuda
        if the disk cache is empty. Raises BackendError without a driver.
        """
        try:
            self.library = ctypes.PyDLL("libcuda.so.1")
        except OSError:
            raise BackendError(
                f"backend 'cuda' is not available ({missing_gpu()})",
                user_location(),
            ) from None
        self.waiting = ctypes.CDLL("libcuda.so.1")
        modules = _FIRST_CALL + (_COMPILER if object_cache().is_empty() else ())
        threading.Thread(target=_import_modules, args=(modules,)).start()
        self.check(self.waiting.cuInit(0))
        handle = ctypes.c_int()  # a CUdevice
        self.check(self.library.cuDeviceGet(ctypes.byref(handle), number))
        context = ctypes.c_void_p()
        self.check(self.waiting.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle))
        self.context = int(context.value or 0)
        self.number = handle.value
        self.make_current()
        self.arch = (
            self.attribute(_ATTRIBUTE_MAJOR),
            self.attribute(_ATTRIBUTE_MINOR),
        )
        self.multiprocessors = self.attribute(_ATTRIBUTE_MULTIPROCESSORS)
        self.stream = int(self.new_stream().value or 0)

    @property
    def name(self) -> str:
        """The card's name."""
        text = ctypes.create_string_buffer(256)
        self.check(self.library.cuDeviceGetName(text, 256, self.number))
        return text.value.decode()

    def attribute(self, attribute: int) -> int:
        """Return the value of the GPU's CUdevice_attribute ``attribute``."""
        value = ctypes.c_int()
        self.check(
            self.library.cuDeviceGetAttribute(
                ctypes.byref(value), attribute, self.number
            )
        )
        return value.value

    def new_stream(self) -> ctypes.c_void_p:
        """Create a stream that does not synchronize with the default stream."""
        stream = ctypes.c_void_p()
        self.check(self.library.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING))
        return stream

    def address(self, name: str) -> int:
        """Return the address of the driver's function ``name``.

        If the library has ``name`` with the suffix "_v2" too, that version is taken, as
        in cuda.h: the name without a suffix has an older interface.
        """
        for suffix in ("_v2", ""):
            function = getattr(self.library, name + suffix, None)
            if function is not None:
                break
        return function_address(function)

    def make_current(self) -> None:
        """Make this GPU's context current for the calling thread."""
        self.check(self.library.cuCtxSetCurrent(ctypes.c_void_p(self.context)))

    def check(self, status: int, what: str = "") -> None:
        """Raise BackendError unless the driver's ``status`` is success.

        Raises OutOfMemoryError if the driver is out of memory. ``what`` goes into the
        message and says what failed, such as "in a graph".
        """
        if status == SUCCESS:
            return
        if status == OUT_OF_MEMORY:
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

    def wait_for(self, stream: int) -> None:
        """Let later work of this GPU's stream wait for earlier work of ``stream``."""
        self._after(self.stream, stream)

    def let_wait(self, stream: int) -> None:
        """Let later work of ``stream`` wait for earlier work of this GPU's stream."""
        self._after(stream, self.stream)

    def _after(self, later: int, earlier: int) -> None:
        """Let later work of the stream ``later`` wait for all work of ``earlier``."""
        event = self.new_event()
        self.record(event, earlier)
        self.wait_for_event(later, event)
        self.destroy_event(event)

    def new_event(self, *, with_time: bool = False) -> ctypes.c_void_p:
        """Create an event; only one made ``with_time`` can measure the time."""
        self.make_current()
        event = ctypes.c_void_p()
        flags = 0 if with_time else _EVENT_WITHOUT_TIMING
        self.check(self.library.cuEventCreate(ctypes.byref(event), flags))
        return event

    def record(self, event: ctypes.c_void_p, stream: int) -> None:
        """Record ``event`` on ``stream``: it completes once earlier work there ends."""
        self.check(self.waiting.cuEventRecord(event, ctypes.c_void_p(stream)))

    def wait_for_event(self, stream: int, event: ctypes.c_void_p) -> None:
        """Let later work of ``stream`` wait for the last record of ``event``."""
        self.check(self.waiting.cuStreamWaitEvent(ctypes.c_void_p(stream), event, 0))

    def destroy_event(self, event: ctypes.c_void_p) -> None:
        """Destroy ``event``; work that waits for it still does."""
        self.check(self.library.cuEventDestroy_v2(event))


def _import_modules(names: tuple[str, ...]) -> None:
    """Import modules in a thread, while the driver starts: it takes 0.2 s or more."""
    for name in names:
        with suppress(ImportError, BackendError):  # whoever needs it raises it again
            importlib.import_module(name)
