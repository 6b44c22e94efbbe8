"""From kernels to addresses: their keys, and what compiles them.

Numba compiles kernels. It is imported where the cache lacks one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from arrayfn.backends.cpu.libraries import (
    provider_arguments,
    provider_constants,
    provider_of,
)
from arrayfn.backends.cpu.libraries.foreign import parameters_of
from arrayfn.backends.native import target
from arrayfn.backends.native.loading import Unit, source_texts, toolchain
from arrayfn.backends.numba.dialect import UntypedKernelError
from arrayfn.backends.numba.functions import no_garbage_collection
from arrayfn.backends.object_cache import content_key
from arrayfn.errors import BackendError
from arrayfn.lowering.plan import Kernel, LibraryKernel

# Imported only when the cache misses.
_PRINTED: Final = "arrayfn.backends.cpu.kernel_compiler"
_WRITTEN: Final = "arrayfn.backends.cpu.written_kernels"
_COMPILER_SOURCES: Final = (
    "lowering/scalars/*.py",
    "lowering/libraries/packed_products.py",
    "backends/llvm_arithmetic.py",
    "backends/numba/*.py",
    "backends/cpu/kernel_*.py",
    "backends/cpu/loop_metadata.py",
    "backends/cpu/micro_kernels.py",
    "backends/cpu/numba_target.py",
    "backends/cpu/vocabulary.py",
    "backends/cpu/written_kernels.py",
)
_LIBRARY_SOURCES: Final = "backends/cpu/libraries/**/*.py"


def kernel_unit(kernel: Kernel) -> Unit:
    """Return the Unit that compiles ``kernel``; it exports only the kernel's entry.

    The key of the Unit, which the disk cache uses, hashes the kernel's text, the kinds
    of its parameters and the compilers.
    """
    signature = ",".join(parameter.kind for parameter in kernel.parameters)
    key = content_key("kernel", kernel.key, signature, _compiler())
    symbol = f"arrayfn_kernel_{key[:32]}"
    return Unit(key, (symbol,), partial(_prepare, kernel, symbol), is_kernel=True)


def kernel_assembly(kernel: Kernel) -> str:
    """Return a kernel's assembly for this processor; its entry is named ``entry``."""
    with no_garbage_collection():
        text, interleave = _ir(kernel, "entry")
    return target.assembly(text, interleave=interleave)


class KernelIR(NamedTuple):
    """The LLVM IR of a kernel before optimization.

    If ``interleave``, LLVM may interleave the kernel's loops.
    """

    text: str
    interleave: bool


def kernel_text(kernel: Kernel | LibraryKernel, symbol: str) -> KernelIR:
    """Return the LLVM IR of a kernel, with its entry exported as ``symbol``.

    Raises BackendError for a library kernel that is not compiled, or that needs
    addresses of this process's functions: its IR would not run anywhere else.
    """
    with no_garbage_collection():
        if isinstance(kernel, Kernel):
            return _ir(kernel, symbol)
        provider = provider_of(kernel.provider)
        if provider.kernel is None or provider_arguments(kernel.provider):
            raise BackendError(f"{kernel.name} calls a library ({kernel.reason})")
        # A provider's name ends with a dtype, as in "sparse_csr_i32_f64".
        parameters = parameters_of(provider.kernel, kernel.provider.rpartition("_")[2])
        constants = provider_constants(kernel.provider)
        compiler = importlib.import_module(_PRINTED)
        text = compiler.function_ir(provider.kernel, parameters, symbol, constants)
        return KernelIR(text, interleave=False)


def library_unit(library_kernel: LibraryKernel) -> Unit:
    """Return the Unit that compiles a library kernel for one dtype.

    The key of the Unit, which the disk cache uses, hashes the kernel's name, the kinds
    of its parameters, its constants and the sources of all library kernels.
    """
    kernel = provider_of(library_kernel.provider).kernel
    assert kernel is not None
    name = f"{kernel.__module__}.{kernel.__name__}"
    # A provider's name ends with a dtype, as in "sparse_csr_i32_f64".
    parameters = parameters_of(kernel, library_kernel.provider.rpartition("_")[2])
    constants = provider_constants(library_kernel.provider)
    signature = ",".join(parameter.kind for parameter in parameters)
    key = content_key("library", name, signature, str(constants), _libraries())
    symbol = f"arrayfn_kernel_{key[:32]}"

    def prepare() -> Callable[[], bytes]:
        """Make the library kernel's LLVM IR; return a function that compiles the IR."""
        with no_garbage_collection():
            compiler = importlib.import_module(_PRINTED)
            text = compiler.function_ir(kernel, parameters, symbol, constants)
        return target.prepare_vectorized(text, interleave=False).compile

    return Unit(key, (symbol,), prepare, is_kernel=True)


def _prepare(kernel: Kernel, symbol: str) -> Callable[[], bytes]:
    """Make the LLVM IR of ``kernel``; return a function that compiles it to an object.

    Numba makes the IR at once, with the GIL held. The function runs LLVM without the
    GIL, so that several kernels compile in parallel.
    """
    with no_garbage_collection():
        text, interleave = _ir(kernel, symbol)
    return target.prepare_vectorized(text, interleave=interleave).compile


def _ir(kernel: Kernel, symbol: str) -> KernelIR:
    """Return the LLVM IR of a kernel, with its entry exported as ``symbol``.

    A kernel that the compiler printed has known types. One that a user edited is
    compiled in the same way if it uses only the Python of printed kernels. Otherwise
    Numba infers its types, and LLVM may interleave its loops. A printed kernel, or one
    from a file, that has no known types raises BackendError.
    """
    definition = kernel.key, kernel.compiled_name, kernel.parameters, symbol
    try:
        text = importlib.import_module(_PRINTED).kernel_ir(*definition)
        return KernelIR(text, interleave=False)
    except UntypedKernelError as error:
        if kernel.from_file or not kernel.is_replaced:
            raise BackendError(
                f"kernel {kernel.name} cannot be compiled: {error}"
            ) from error
    text = importlib.import_module(_WRITTEN).written_kernel_ir(*definition)
    return KernelIR(text, interleave=True)


@cache
def _compiler() -> str:
    """Return the part of a cache key that identifies LLVM, Numba, Python and arrayfn.

    arrayfn is identified by the contents of the files that determine generated code:
    after an edit of such a file, no older code is taken from the cache.
    """
    bytecode = str(sys.implementation.cache_tag)
    versions = toolchain(), _numba_version(), bytecode
    return content_key(*versions, *source_texts(*_COMPILER_SOURCES))


@cache
def _libraries() -> str:
    """Return the part of a cache key that stands for the library kernels' sources.

    It includes the part for the compilers' and Python's versions (``_compiler``).
    """
    return content_key(_compiler(), *source_texts(_LIBRARY_SOURCES))


def _numba_version() -> str:
    """Return the text of Numba's ``_version.py``, or "" if Numba is not installed.

    Reading the file saves the time of importing Numba.
    """
    specification = importlib.util.find_spec("numba")
    if specification is None or specification.origin is None:
        return ""
    file = Path(specification.origin).with_name("_version.py")
    return file.read_text("utf-8")
