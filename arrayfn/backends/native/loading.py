"""Loads units of code: from the engine, the disk cache, or a compiler.

A compiler's own part is Python and goes on in the calling thread, one unit after the
other; LLVM works on units that are ready in threads of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from typing_extensions import override

from arrayfn.backends.native import target
from arrayfn.backends.native.engine import ENGINE, KernelCode
from arrayfn.backends.object_cache import content_key, object_cache
from arrayfn.lowering.cpu import machine

LOCK: Final = threading.RLock()
"""Held while code is compiled and loaded; a fork waits for it."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


_COMPILER_BYTES: Final = 256 << 20
"""Bytes of address space that must be free to compile: LLVM needs less for one unit."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Code that is compiled, cached and loaded as one.

    ``key`` is a hash of what it is made from, ``symbols`` are those that it defines.
    ``prepare`` does Python's part of compiling it, and returns LLVM's, which makes the
    object code. A kernel has one symbol, and is freed when nobody holds its code.

    ``key`` says what it is made from, ``symbols`` what it defines. ``prepare`` does
    Python's part of compiling it, and returns LLVM's. A kernel has one symbol, and is
    freed when nobody holds its code.
    """

    key: str
    symbols: tuple[str, ...]
    prepare: Callable[[], Callable[[], bytes]]
    is_kernel: bool = False

    def loaded(self) -> KernelCode | bool | None:
        """The kernel's code, if it is loaded; of routines, whether they are."""
        if self.is_kernel:
            return ENGINE.kernel(self.key)
        return ENGINE.has_loaded(self.key)


def load(units: Iterable[Unit]) -> dict[str, KernelCode]:
    """Load ``units``, each of which may call those before it; compile uncached ones.

    Those that the cache does not have are compiled. ``ENGINE`` then has the addresses
    of their symbols; the result has the code of the kernels among them, by their keys,
    which is to be held as long as it may run. Compiles nothing, and waits for nobody,
    where all are loaded.
    """
    held: dict[str, KernelCode] = {}
    missing: dict[str, Unit] = {}
    for unit in units:
        known = unit.loaded()
        if isinstance(known, KernelCode):
            held[unit.key] = known
        elif not known:
            missing[unit.key] = unit
    if missing:
        with LOCK:
            for key, code in object_codes(missing).items():
                unit = missing[key]
                if unit.is_kernel:
                    held[key] = ENGINE.load_kernel(key, code, unit.symbols[0])
                else:
                    ENGINE.load(key, code, unit.symbols)
    return held


def object_codes(units: Mapping[str, Unit]) -> dict[str, bytes]:
    """Read the object code of ``units``, by key, from the cache, or compile it."""
    cache = object_cache()
    found = {key: cache.lookup(key) for key in units}
    compilations: dict[str, _Compilation] = {}
    for key, code in found.items():
        if code is None:
            compilations[key] = _Compilation(key, units[key].prepare())
            compilations[key].begin()
    for compilation in compilations.values():
        if compilation.ident is not None:
            compilation.join()
    for key, compilation in compilations.items():
        cache.put(key, compilation.result())
    return {key: code or compilations[key].result() for key, code in found.items()}


class _Compilation(threading.Thread):
    """A thread for LLVM's part of a compilation; as many run as there are cores."""

    slots = threading.Semaphore(machine.usable_cpus())

    def __init__(self, key: str, work: Callable[[], bytes]) -> None:
        super().__init__(name=f"arrayfn-llvm-{key[:8]}")
        self.key = key
        self.work = work
        self.code: bytes | None = None
        self.error: Exception | None = None

    def begin(self) -> None:
        """Compile in a new thread, or in this one if the system gives no other.

        Raises MemoryError where there is too little: LLVM, and its memory for a new
        thread, would end the process.
        """
        if not target.has_room(_COMPILER_BYTES):
            raise MemoryError("there is no address space left to compile")
        try:
            self.start()
        except RuntimeError:
            self.run()

    @override
    def run(self) -> None:
        """Compile; an error is kept for ``result``."""
        try:
            with self.slots:
                self.code = self.work()
        except Exception as error:  # noqa: BLE001  # raised again in result()
            self.error = error

    def result(self) -> bytes:
        """The object code, after the thread has run. Raises its error."""
        if self.code is None:
            raise self.error or RuntimeError(f"{self.name} did not run")
        return self.code


@cache
def toolchain() -> str:
    """The part of a cache key that identifies LLVM and the processor."""
    return content_key(
        target.llvm_version(),
        str(target.host()),
        *source_texts("backends/native/target.py"),
    )


def source_texts(*patterns: str) -> list[str]:
    """The texts of arrayfn's files that the glob ``patterns`` match, sorted by path."""
    root = Path(__file__).parents[2]
    paths = {path for pattern in patterns for path in root.glob(pattern)}
    return [path.read_text("utf-8") for path in sorted(paths)]
