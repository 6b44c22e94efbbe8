"""Compiles and loads kernels: from the disk cache, or by the compiler.

A process that finds all its kernels on disk imports neither Numba nor numba-cuda.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import metadata
from typing import Final
from weakref import WeakValueDictionary

from arrayfn.backends.cuda.driver import current_number, device
from arrayfn.backends.cuda.modules import LoadedKernel, load, unload_unused
from arrayfn.backends.native.loading import Unit, object_codes, source_texts
from arrayfn.backends.numba.dialect import UntypedKernelError
from arrayfn.backends.numba.functions import no_garbage_collection
from arrayfn.backends.object_cache import content_key
from arrayfn.caches import forgets
from arrayfn.errors import BackendError
from arrayfn.lowering.plan import NEUTRAL_NAME, Kernel

ENTRY: Final = NEUTRAL_NAME
"""The name of each kernel in its cubin."""
OVERLAPS_FROM: Final = (9, 0)
"""The first architecture whose kernels may begin before earlier ones end."""
_BEGIN: Final = ".visible .entry "
# Every kernel begins with this instruction, unless its text calls
# ``griddepcontrol_wait()`` somewhere. Only kernels of few blocks, which fill the GPU,
# let the next kernel be launched early (``griddepcontrol_launch_dependents``): each
# block that does so costs 1.2 ns, and early blocks would occupy multiprocessors that
# the running kernel still needs.
_WAIT_FOR_EARLIER: Final = "griddepcontrol.wait;"
# Imported if the cache misses.
_PRINTED_COMPILER: Final = "arrayfn.backends.cuda.kernel_compiler"
_WRITTEN_COMPILER: Final = "arrayfn.backends.cuda.written_kernels"
_LINKER: Final = "cuda.bindings.nvjitlink"
_SOURCES: Final = (
    "lowering/scalars/*.py",
    "lowering/cuda/vocabulary.py",
    "backends/llvm_arithmetic.py",
    "backends/numba/*.py",
    "backends/cuda/arithmetic.py",
    "backends/cuda/assembly.py",
    "backends/cuda/lookback.py",
    "backends/cuda/*_functions.py",
    "backends/cuda/kernel_compiler.py",
    "backends/cuda/numba_target.py",
    "backends/cuda/unrolling.py",
    "backends/cuda/vocabulary.py",
    "backends/cuda/written_kernels.py",
    "backends/cuda/code.py",
)
_LOCK: Final = threading.Lock()
_loaded: Final[WeakValueDictionary[tuple[int, str], LoadedKernel]] = (
    WeakValueDictionary()
)
_recent: Final[deque[LoadedKernel]] = deque(maxlen=256)
"""Kernels loaded last, which stay loaded even if no plan holds them.

A user's function that is defined again in each iteration needs equal kernels again.
"""
_MAX_UNUSED: Final = 64
"""From so many unused modules on, the next load waits for the GPU and unloads them."""
forgets(_recent.clear)  # when the user clears all caches


@cache
def _toolchain() -> str:
    """Return a hash of the compilers' versions and of the sources of code generators.

    It is a part of every kernel's cache key.
    """
    versions = metadata.version("numba-cuda"), metadata.version("llvmlite")
    bytecode = str(sys.implementation.cache_tag)
    return content_key(*versions, bytecode, *source_texts(*_SOURCES))


def kernel_key(kernel: Kernel, arch: tuple[int, int]) -> str:
    """Return the key in the disk cache of a kernel's machine code.

    ``arch`` is the compute capability, as (9, 0).
    """
    signature = ",".join(parameter.kind for parameter in kernel.parameters)
    return content_key(
        "cuda",
        kernel.key,
        signature,
        f"{kernel.threads} {kernel.cluster} {kernel.shared} "
        f"{kernel.blocks_per_multiprocessor} {kernel.cooperative} {kernel.cached}",
        f"sm_{arch[0]}{arch[1]}",
        _toolchain(),
    )


def kernel_ptx(kernel: Kernel, arch: tuple[int, int]) -> str:
    """Compile ``kernel`` to PTX, whose entry is called ``ENTRY``. Needs no GPU."""
    return _ptx(with_neutral_name(kernel), kernel_ir(kernel, arch), arch)


def _compilation(kernel: Kernel, arch: tuple[int, int]) -> Callable[[], bytes]:
    """Make the LLVM IR of ``kernel``; return a function that compiles it to a cubin.

    The IR is made at once, by Numba; the function needs the GIL only briefly, so that
    several can run in threads.
    """
    return partial(_cubin, with_neutral_name(kernel), kernel_ir(kernel, arch), arch)


def _ptx(kernel: Kernel, modules: list[str], arch: tuple[int, int]) -> str:
    """Compile LLVM modules of ``kernel``, given as text, to PTX.

    From Hopper on, the kernel can be launched while earlier ones end.
    """
    ptx: str = importlib.import_module(_PRINTED_COMPILER).ptx_of(kernel, modules, arch)
    return with_dependent_launch(ptx) if arch >= OVERLAPS_FROM else ptx


def _cubin(kernel: Kernel, modules: list[str], arch: tuple[int, int]) -> bytes:
    """Compile LLVM modules of ``kernel``, given as text, to machine code.

    The entry is ``ENTRY``. Where NVIDIA's linker is not installed the result is PTX,
    which the driver compiles.
    """
    text = _ptx(kernel, modules, arch).encode() + b"\0"
    try:
        linker = importlib.import_module(_LINKER)
        # 1 is the number of options.
        handle = linker.create(1, [f"-arch=sm_{arch[0]}{arch[1]}"])
    except (ImportError, RuntimeError):
        return text
    try:
        linker.add_data(handle, linker.InputType.PTX, text, len(text), ENTRY)
        linker.complete(handle)
        cubin = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, cubin)
    finally:
        linker.destroy(handle)
    return bytes(cubin)


def with_neutral_name(kernel: Kernel) -> Kernel:
    """Return ``kernel`` with its source replaced by its key, and the name ``ENTRY``.

    The key is the source with neutral names, so equal kernels compile to equal code.
    """
    text, name = kernel.key, kernel.compiled_name
    if name != ENTRY:
        # A handwritten kernel keeps its name in its key, so its ``def`` is renamed.
        # The text may not define anything else that is called ``ENTRY``.
        head = rf"^def {re.escape(name)}\b"
        text = re.sub(head, f"def {ENTRY}", text, count=1, flags=re.MULTILINE)
    return replace(kernel, name=ENTRY, source=text, key=text)


@no_garbage_collection()
def kernel_ir(kernel: Kernel, arch: tuple[int, int]) -> list[str]:
    """Make the LLVM IR of ``kernel``, with the entry ``ENTRY``: a list of LLVM modules.

    The pipeline for printed kernels is tried first. A kernel that a user edited, which
    may use more of Python, goes through numba-cuda's pipeline if that fails. Raises
    BackendError for a kernel that cannot be compiled.
    """
    neutral = with_neutral_name(kernel)
    try:
        return [importlib.import_module(_PRINTED_COMPILER).printed_ir(neutral)]
    except UntypedKernelError as error:
        if kernel.from_file or not kernel.is_replaced:
            raise BackendError(
                f"kernel {kernel.name} cannot be compiled: {error}"
            ) from error
    return importlib.import_module(_WRITTEN_COMPILER).written_modules(neutral, arch)


def with_dependent_launch(ptx: str) -> str:
    r"""Let the kernel in ``ptx`` be launched while earlier ones end, and wait for them.

    The wait is the first instruction, unless the kernel has one elsewhere. Loads lose
    the modifier ``.nc``: it promises that nothing writes the memory while the kernel
    runs, but earlier kernels may. Loads with ``.nc`` returned older values.

    >>> print(with_dependent_launch(".visible .entry kernel()\n{\n\tret;\n}"))
    .visible .entry kernel()
    {
        griddepcontrol.wait;
        ret;
    }
    """
    head, entry, body = ptx.replace(".global.nc.", ".global.").partition(_BEGIN)
    if _WAIT_FOR_EARLIER not in body:
        body = body.replace("\n{", f"\n{{\n\t{_WAIT_FOR_EARLIER}", 1)
    return head + entry + body


def loaded_kernels(kernels: Sequence[Kernel]) -> dict[str, LoadedKernel]:
    """Load the code of each kernel; return the loaded kernels by name.

    Kernels with the same key share one. Code that is not in the disk cache is compiled:
    NVVM and the linker run in as many threads as there are cores, while numba-cuda
    makes the LLVM IR of further kernels. Many unused modules are unloaded first.
    """
    gpu = device()
    keys = {kernel.name: kernel_key(kernel, gpu.arch) for kernel in kernels}
    by_key = {keys[kernel.name]: kernel for kernel in kernels}
    with _LOCK:
        loaded_by_key: dict[str, LoadedKernel] = {}
        units: dict[str, Unit] = {}
        for key, kernel in by_key.items():
            known = _loaded.get((current_number(), key))
            if known is not None:
                loaded_by_key[key] = known
            else:
                prepare = partial(_compilation, kernel, gpu.arch)
                units[key] = Unit(key, (ENTRY,), prepare)
        if units:
            unload_unused(_MAX_UNUSED)
        for key, cubin in object_codes(units).items():
            kernel = by_key[key]
            # A kernel that uses the L1 cache gets no more shared memory than it needs.
            blocks = kernel.blocks_per_multiprocessor if kernel.cached else 0
            loaded = load(cubin, ENTRY, kernel.shared, kernel.cluster, blocks)
            loaded_by_key[key] = _loaded[current_number(), key] = loaded
            _recent.append(loaded)
        return {name: loaded_by_key[key] for name, key in keys.items()}
