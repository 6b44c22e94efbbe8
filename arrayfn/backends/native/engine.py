"""Object code to callable addresses: one LLVM execution engine per process.

Only llvmlite is used, so a process that finds all its code in the cache never imports
Numba. Loaded code lives until the process ends: arrays, capsules and sleeping threads
may call it later than any Python object can tell.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from arrayfn.backends.native import target
from arrayfn.backends.native.target import llvm


class Engine:
    """Loads object code. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._execution: Any = None
        self._loaded: set[str] = set()
        self._addresses: dict[str, int] = {}
        self._defined: dict[str, Callable[[], int]] = {}

    def define(self, symbol: str, make: Callable[[], int]) -> None:
        """Let code refer to ``symbol``: memory at the address that ``make`` gives.

        It is made with the engine, before any code is loaded.
        """
        self._defined[symbol] = make

    def find(self, symbol: str) -> int | None:
        """The address of a symbol of loaded code, or None."""
        return self._addresses.get(symbol)

    def has_loaded(self, key: str) -> bool:
        """Whether the code of ``key`` is loaded."""
        return key in self._loaded

    def address(self, symbol: str) -> int:
        """The address of a symbol of loaded code; KeyError if there is none."""
        return self._addresses[symbol]

    def load(self, key: str, code: bytes, symbols: tuple[str, ...]) -> list[int]:
        """Load ``code`` once per ``key``; the addresses of its ``symbols``."""
        with self._lock:
            if self._execution is None:
                self._execution = _immortal_engine()
                for symbol, make in self._defined.items():
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
    target.initialize()
    module = llvm().parse_assembly(f'target triple = "{target.host().triple}"')
    execution = llvm().create_mcjit_compiler(module, target.target_machine())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(execution))
    return execution


ENGINE = Engine()
