"""From kernels to addresses: the cache, the compiler when it misses, the engine.

Generated kernels are compiled by ``kernel_compiler``. What it does not know, as kernels
written by hand may hold, goes through Numba, which only then is imported. LLVM works
without the GIL, in as many threads as there are cores.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final

from arrayfn.backends.cpu import target
from arrayfn.backends.cpu.engine import ENGINE
from arrayfn.backends.object_cache import content_key, object_cache
from arrayfn.lowering.plan import Kernel

LOGGER = logging.getLogger(__name__)

# Imported only when the cache misses.
_KERNEL_COMPILER: Final = "arrayfn.backends.cpu.kernel_compiler"
_NUMBA_COMPILER: Final = "arrayfn.backends.cpu.numba_compiler"
_KERNEL_SOURCES: Final = (
    "lowering/scalars/*.py",
    "backends/llvm_arithmetic.py",
    "backends/kernel_*.py",
    "backends/numba_scalars.py",
    "backends/cpu/kernel_*.py",
    "backends/cpu/numba_*.py",
)
LOCK: Final = threading.RLock()
"""Held while code is compiled and loaded; a fork waits for it."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


@cache
def toolchain() -> str:
    """What all object code depends on besides its source: LLVM and the processor."""
    return content_key(
        target.llvm_version(),
        str(target.host()),
        *_texts("backends/cpu/target.py"),
    )


@cache
def _kernel_compiler() -> str:
    """What kernels' code depends on: also Numba, and arrayfn's scalar functions.

    arrayfn counts by the content of the files that determine generated code, so that an
    edited checkout never meets code of its past.
    """
    return content_key(toolchain(), _numba_version(), *_texts(*_KERNEL_SOURCES))


def _texts(*patterns: str) -> list[str]:
    root = Path(__file__).parents[2]
    paths = {path for pattern in patterns for path in root.glob(pattern)}
    return [path.read_text("utf-8") for path in sorted(paths)]


def _numba_version() -> str:
    """Numba's version, from its package folder: it is not imported for that."""
    specification = importlib.util.find_spec("numba")
    if specification is None or specification.origin is None:
        return ""
    file = Path(specification.origin).with_name("_version.py")
    return file.read_text("utf-8")


def kernel_key(kernel: Kernel) -> str:
    """The cache key of a kernel's object code."""
    signature = ",".join(parameter.kind for parameter in kernel.parameters)
    return content_key("kernel", kernel.key, signature, _kernel_compiler())


def _symbol(key: str) -> str:
    return f"arrayfn_kernel_{key[:32]}"


def kernel_addresses(kernels: Iterable[Kernel]) -> dict[str, int]:
    """The entry address of each kernel, by its name. Equal kernels share one."""
    by_key: dict[str, Kernel] = {}
    keys: dict[str, str] = {}
    for kernel in kernels:
        keys[kernel.name] = key = kernel_key(kernel)
        by_key.setdefault(key, kernel)
    known = {key: ENGINE.find(_symbol(key)) for key in by_key}
    missing = {key: by_key[key] for key, address in known.items() if address is None}
    addresses = {key: address for key, address in known.items() if address is not None}
    if missing:
        with LOCK:
            addresses |= _load(missing)
    return {name: addresses[key] for name, key in keys.items()}


def _load(kernels: dict[str, Kernel]) -> dict[str, int]:
    store = object_cache()
    codes = {key: store.get(key) for key in kernels}
    missing = {key: kernels[key] for key, code in codes.items() if code is None}
    codes |= _compile(missing)
    return {
        key: ENGINE.load(key, code, (_symbol(key),))[0]
        for key, code in codes.items()
        if code is not None
    }


def _compile(kernels: Mapping[str, Kernel]) -> dict[str, bytes]:
    return compile_all(_compilation(key, kernel) for key, kernel in kernels.items())


def _compilation(key: str, kernel: Kernel) -> Compilation:
    text, interleave = _ir(kernel, _symbol(key))
    return Compilation(
        key, partial(target.compile_vectorized, text, interleave=interleave)
    )


def _ir(kernel: Kernel, symbol: str) -> tuple[str, bool]:
    """The LLVM IR of a kernel, and whether all its loops are to be interleaved."""
    definition = kernel.source, kernel.name, kernel.parameters, symbol
    generated = importlib.import_module(_KERNEL_COMPILER)
    try:
        return generated.kernel_ir(*definition), False
    except generated.UnsupportedKernelError as error:
        LOGGER.info("kernel %s is left to Numba: %s", kernel.name, error)
        return importlib.import_module(_NUMBA_COMPILER).kernel_ir(*definition), True


class Compilation(threading.Thread):
    """LLVM's part of a compilation; as many run as there are cores."""

    slots = threading.Semaphore(os.cpu_count() or 1)

    def __init__(self, key: str, work: Callable[[], bytes]) -> None:
        super().__init__(name=f"arrayfn-llvm-{key[:8]}")
        self.key = key
        self.work = work
        self.code: bytes | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Compile; an error is kept for the thread that waits."""
        try:
            with self.slots:
                self.code = self.work()
        except Exception as error:  # noqa: BLE001  # raised again in result()
            self.error = error

    def result(self) -> bytes:
        """The object code, once it has run."""
        self.join()
        if self.code is None:
            raise self.error or RuntimeError(f"{self.name} did not run")
        return self.code


def compile_all(compilations: Iterable[Compilation]) -> dict[str, bytes]:
    """Start each compilation as it comes; their object code, also stored, by key."""
    started: list[Compilation] = []
    for compilation in compilations:
        compilation.start()
        started.append(compilation)
    codes = {compilation.key: compilation.result() for compilation in started}
    for key, code in codes.items():
        object_cache().put(key, code)
    return codes
