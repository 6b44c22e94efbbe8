"""Loads object code with LLVM's JIT engines, one of each kind a process.

Only llvmlite is used, so a process that finds all its code in the cache never imports
Numba. The runtime's own code lives until the process ends: arrays, capsules and
sleeping threads may call it later than any Python object can tell. A kernel's is freed
with the last plan that holds it, if it is not among those that were loaded last: a
function that is traced again in each iteration has the same kernels each time.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from arrayfn.backends.native import target
from arrayfn.backends.native.target import llvm
from arrayfn.caches import forgets

_RECENT: Final = 64
"""The number of kernels, of about 50 KiB each, that stay loaded without a plan."""


class KernelCode:
    """The loaded machine code of a kernel, which is freed with this object.

    ``_tracker`` is LLVM's object that owns the memory of the code.
    """

    __slots__ = ("__weakref__", "_tracker", "address")

    def __init__(self, address: int, tracker: Any) -> None:
        self.address = address
        self._tracker = tracker


class Engine:
    """Loads the object code of routines and kernels into this process.

    Routines stay loaded until the process ends. A kernel's code is freed when no
    KernelCode refers to it; the last ``_RECENT`` kernels are kept. Thread-safe.
    """

    def __init__(self) -> None:
        """Begin without code; LLVM's JIT engines are made when code is first loaded."""
        # Reentrant: garbage collection may free a kernel's code in the same thread,
        # while other code is loaded.
        self._lock = threading.RLock()
        self._execution: Any = None  # LLVM's JIT engine for routines
        self._linker: Any = None  # LLVM's JIT engine for kernels
        # By key; an entry goes when its KernelCode is freed.
        self._kernels: WeakValueDictionary[str, KernelCode] = WeakValueDictionary()
        self._numbers = itertools.count()  # of loaded kernels, to tell them apart
        self._recent: deque[KernelCode] = deque(maxlen=_RECENT)  # keeps them alive
        forgets(self._recent.clear)
        self._loaded: set[str] = set()  # keys of routines' code
        self._addresses: dict[str, int] = {}  # of routines, by symbol
        self._undefined: dict[str, Callable[[], int]] = {}
        """Symbols that LLVM does not know yet, with the functions of ``define``."""

    def define(self, symbol: str, make: Callable[[], int]) -> None:
        """Define ``symbol`` for routines: the memory at the address ``make`` returns.

        ``make`` is called once, before the next routines are loaded.
        """
        with self._lock:
            self._undefined[symbol] = make

    def kernel(self, key: str) -> KernelCode | None:
        """Return the code of the kernel with this ``key``, or None if not loaded."""
        return self._kernels.get(key)

    @property
    def kernels(self) -> int:
        """The number of kernels whose code is loaded."""
        return len(self._kernels)

    def load_kernel(self, key: str, code: bytes, symbol: str) -> KernelCode:
        """Load a kernel's object code, or return the code that is loaded for ``key``.

        ``code`` defines the kernel's entry ``symbol`` and may call routines that are
        loaded.
        """
        with self._lock:
            known = self._kernels.get(key)
            if known is not None:
                return known
            if self._linker is None:
                self._linker = _immortal_linker()
            library = llvm().JITLibraryBuilder()
            library.add_object_img(code).export_symbol(symbol).add_current_process()
            for name, address in self._addresses.items():
                if name.encode() in code:  # the code may refer to the routine ``name``
                    library.import_symbol(name, address)
            # Numbered, because a freed kernel may be loaded again under its name.
            tracker = library.link(self._linker, f"{symbol}.{next(self._numbers)}")
            kernel = KernelCode(tracker[symbol], tracker)
            self._kernels[key] = kernel
            self._recent.append(kernel)
            return kernel

    def find(self, symbol: str) -> int | None:
        """Return the address of a loaded routine by its symbol, or None."""
        return self._addresses.get(symbol)

    def has_loaded(self, key: str) -> bool:
        """Return whether the routines whose code has this ``key`` are loaded."""
        return key in self._loaded

    def address(self, symbol: str) -> int:
        """Return the address of a loaded routine; raises KeyError if there is none."""
        return self._addresses[symbol]

    def load(self, key: str, code: bytes, symbols: tuple[str, ...]) -> list[int]:
        """Load the object code of routines; return the addresses of ``symbols``.

        Code is loaded once for each ``key``. Raises RuntimeError if the code does not
        define one of ``symbols``.
        """
        with self._lock:
            if self._execution is None:
                self._execution = _immortal_engine()
            while self._undefined:  # symbols that the code may refer to
                symbol, make = self._undefined.popitem()
                llvm().add_symbol(symbol, make())
            if key not in self._loaded:
                self._execution.add_object_file(llvm().ObjectFileRef.from_data(code))
                self._execution.finalize_object()
                self._loaded.add(key)
            addresses = [self._execution.get_function_address(s) for s in symbols]
        if not all(addresses):
            missing = symbols[addresses.index(0)]
            raise RuntimeError(f"object code {key} does not define {missing}")
        self._addresses.update(zip(symbols, addresses, strict=True))
        return addresses


def _immortal_engine() -> Any:
    """Make an MCJIT engine for routines, which lives as long as the process.

    It begins with an empty module.
    """
    target.initialize()
    module = llvm().parse_assembly(f'target triple = "{target.host().triple}"')
    execution = llvm().create_mcjit_compiler(module, target.target_machine())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(execution))
    return execution


def _immortal_linker() -> Any:
    """Make an LLJIT for kernels, which lives as long as the process."""
    target.initialize()
    linker = llvm().create_lljit_compiler(target.target_machine())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(linker))
    return linker


ENGINE = Engine()
