"""Loads units of code: from the engine, the disk cache, or a compiler.

A compiler's own part is Python and goes on in the calling thread, one unit after the
other; LLVM works on units that are ready in threads of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from typing_extensions import override

from arrayfn.backends.native import target
from arrayfn.backends.native.engine import ENGINE, KernelCode
from arrayfn.backends.object_cache import content_key, object_cache
from arrayfn.lowering.cpu import machine
from arrayfn.records import frozen

LOCK: Final = threading.RLock()
"""Held while code is compiled and loaded; a fork waits for it."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


_COMPILER_BYTES: Final = 256 << 20
"""Bytes of address space that must be free to compile: LLVM needs less for one unit."""


@frozen(slots=True)
class Unit:
    """Code that is compiled, cached and loaded as one.

    ``key`` is a hash of all that determines the code; ``symbols`` are those that the
    code defines. ``prepare`` does Python's part of the compilation, and returns a
    function for LLVM's part, which makes the object code. A kernel has one symbol, and
    is freed when nobody holds its code.
    """

    key: str
    symbols: tuple[str, ...]
    prepare: Callable[[], Callable[[], bytes]]
    is_kernel: bool = False

    def loaded(self) -> KernelCode | bool | None:
        """Return whether the unit is loaded; for a kernel, its code or None."""
        if self.is_kernel:
            return ENGINE.kernel(self.key)
        return ENGINE.has_loaded(self.key)


def load(units: Iterable[Unit]) -> dict[str, KernelCode]:
    """Load ``units``, each of which may call the units before it.

    Units that the cache does not have are compiled. Returns the code of the kernels by
    key; the caller must hold it as long as the kernels may run. The addresses of
    routines are then in ``ENGINE``. If all units are loaded already, this takes no
    lock.
    """
    kernels: dict[str, KernelCode] = {}
    missing: dict[str, Unit] = {}
    for unit in units:
        known = unit.loaded()
        if isinstance(known, KernelCode):
            kernels[unit.key] = known
        elif not known:
            missing[unit.key] = unit
    if missing:
        with LOCK:
            for key, code in object_codes(missing).items():
                unit = missing[key]
                if unit.is_kernel:
                    kernels[key] = ENGINE.load_kernel(key, code, unit.symbols[0])
                else:
                    ENGINE.load(key, code, unit.symbols)
    return kernels


def object_codes(units: Mapping[str, Unit]) -> dict[str, bytes]:
    """Return the object code of ``units`` by key, from the disk cache if it is there.

    The others are compiled and put into the cache: Python's part one after the other in
    this thread, LLVM's part in parallel threads. An error of a compilation is raised.
    """
    cache = object_cache()
    cached = {key: cache.lookup(key) for key in units}
    compilations: dict[str, _Compilation] = {}
    for key, code in cached.items():
        if code is None:
            compilations[key] = _Compilation(key, units[key].prepare())
            compilations[key].begin()
    for compilation in compilations.values():
        # A compilation that could not start a thread has run in this one.
        if compilation.ident is not None:
            compilation.join()
    for key, compilation in compilations.items():
        cache.put(key, compilation.result())
    return {key: code or compilations[key].result() for key, code in cached.items()}


class _Compilation(threading.Thread):
    """A thread for LLVM's part of a compilation, ``work``.

    ``slots`` lets as many threads compile at once as there are cores. After the run,
    ``code`` or ``error`` is set.
    """

    slots = threading.Semaphore(machine.usable_cpus())

    def __init__(self, key: str, work: Callable[[], bytes]) -> None:
        super().__init__(name=f"arrayfn-llvm-{key[:8]}")
        self.key = key
        self.work = work
        self.code: bytes | None = None
        self.error: Exception | None = None

    def begin(self) -> None:
        """Compile in a new thread, or in this one if no thread can be started.

        Raises MemoryError if there is too little address space to compile: LLVM ends
        the process when it cannot allocate memory.
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
        """Return the object code after the thread has run, or raise its error."""
        if self.code is None:
            raise self.error or RuntimeError(f"{self.name} did not run")
        return self.code


@cache
def toolchain() -> str:
    """Return the part of a cache key that identifies LLVM and the processor."""
    return content_key(
        target.llvm_version(),
        str(target.host()),
        *source_texts("backends/native/target.py"),
    )


def source_texts(*patterns: str) -> list[str]:
    """Return the texts of arrayfn's files that match glob ``patterns``, by path."""
    root = Path(__file__).parents[2]
    paths = {path for pattern in patterns for path in root.glob(pattern)}
    return [path.read_text("utf-8") for path in sorted(paths)]
