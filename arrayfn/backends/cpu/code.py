"""From kernels to addresses: their keys, and what compiles them.

Generated kernels are compiled by ``kernel_compiler``. What it does not know, as kernels
written by hand may hold, goes through Numba, which only then is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Final

from arrayfn.backends.base import refuse_file
from arrayfn.backends.cpu.signals import look
from arrayfn.backends.native import target
from arrayfn.backends.native.code import native_units
from arrayfn.backends.native.engine import KernelCode
from arrayfn.backends.native.loading import Unit, load, source_texts, toolchain
from arrayfn.backends.object_cache import content_key
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


def kernel_codes(kernels: Iterable[Kernel]) -> dict[str, KernelCode]:
    """The code of each kernel, by its name. Equal kernels share one."""
    units = {kernel.name: kernel_unit(kernel) for kernel in kernels}
    held = load([*native_units(look), *units.values()])
    return {name: held[unit.key] for name, unit in units.items()}


def kernel_unit(kernel: Kernel) -> Unit:
    """The code of a kernel; its entry is the only symbol."""
    signature = ",".join(parameter.kind for parameter in kernel.parameters)
    key = content_key("kernel", kernel.key, signature, _kernel_compiler())
    symbol = f"arrayfn_kernel_{key[:32]}"
    return Unit(key, (symbol,), partial(_prepare, kernel, symbol), is_kernel=True)


def _prepare(kernel: Kernel, symbol: str) -> Callable[[], bytes]:
    text, interleave = _ir(kernel, symbol)
    return partial(target.compile_vectorized, text, interleave=interleave)


def _ir(kernel: Kernel, symbol: str) -> tuple[str, bool]:
    """The LLVM IR of a kernel, and whether all its loops are to be interleaved."""
    definition = kernel.key, kernel.compiled_name, kernel.parameters, symbol
    generated = importlib.import_module(_KERNEL_COMPILER)
    try:
        return generated.kernel_ir(*definition), False
    except generated.UnsupportedKernelError as error:
        refuse_file(kernel, error)
        LOGGER.info("kernel %s is left to Numba: %s", kernel.name, error)
        return importlib.import_module(_NUMBA_COMPILER).kernel_ir(*definition), True


@cache
def _kernel_compiler() -> str:
    """What kernels' code depends on: also Numba, and arrayfn's scalar functions.

    arrayfn counts by the content of the files that determine generated code, so that an
    edited checkout never meets code of its past.
    """
    return content_key(toolchain(), _numba_version(), *source_texts(*_KERNEL_SOURCES))


def _numba_version() -> str:
    """Numba's version, from its package folder: it is not imported for that."""
    specification = importlib.util.find_spec("numba")
    if specification is None or specification.origin is None:
        return ""
    file = Path(specification.origin).with_name("_version.py")
    return file.read_text("utf-8")
