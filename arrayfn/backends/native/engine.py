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
"""Kernels, of some 50 KiB, that stay loaded without a plan that holds them."""


class KernelCode:
    """The loaded machine code of a kernel, which is freed with this object."""

    __slots__ = ("__weakref__", "_tracker", "address")

    def __init__(self, address: int, tracker: Any) -> None:
        self.address = address
        self._tracker = tracker


class Engine:
    """Loads routines for good, and kernels while they are held. Thread-safe."""

    def __init__(self) -> None:
        # A collection may free code while code is loaded.
        self._lock = threading.RLock()
        self._execution: Any = None
        self._linker: Any = None
        self._kernels: WeakValueDictionary[str, KernelCode] = WeakValueDictionary()
        self._numbers = itertools.count()
        self._recent: deque[KernelCode] = deque(maxlen=_RECENT)
        forgets(self._recent.clear)
        self._loaded: set[str] = set()
        self._addresses: dict[str, int] = {}
        self._undefined: dict[str, Callable[[], int]] = {}
        """What makes the memory of symbols that the loader does not know yet."""

    def define(self, symbol: str, make: Callable[[], int]) -> None:
        """Let code refer to ``symbol``: memory at the address that ``make`` returns.

        It is made before the next code is loaded.
        """
        with self._lock:
            self._undefined[symbol] = make

    def kernel(self, key: str) -> KernelCode | None:
        """The loaded code of the kernel of ``key``, or None."""
        return self._kernels.get(key)

    @property
    def kernels(self) -> int:
        """The number of kernels whose code is loaded."""
        return len(self._kernels)

    def load_kernel(self, key: str, code: bytes, symbol: str) -> KernelCode:
        """Load a kernel's ``code``, which defines ``symbol`` and may call routines.

        A kernel of the same ``key``, its hash, is loaded once.
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
                if name.encode() in code:
                    library.import_symbol(name, address)
            tracker = library.link(self._linker, f"{symbol}.{next(self._numbers)}")
            made = KernelCode(tracker[symbol], tracker)
            self._kernels[key] = made
            self._recent.append(made)
            return made

    def find(self, symbol: str) -> int | None:
        """The address of a symbol of loaded routines, or None."""
        return self._addresses.get(symbol)

    def has_loaded(self, key: str) -> bool:
        """Whether the routines of ``key`` are loaded."""
        return key in self._loaded

    def address(self, symbol: str) -> int:
        """The address of a symbol of loaded routines; KeyError if there is none."""
        return self._addresses[symbol]

    def load(self, key: str, code: bytes, symbols: tuple[str, ...]) -> list[int]:
        """Load routines' ``code``, once per ``key``; the addresses of ``symbols``."""
        with self._lock:
            if self._execution is None:
                self._execution = _immortal_engine()
            while self._undefined:
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
    """Make an MCJIT engine for routines, which lives as long as the process."""
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
