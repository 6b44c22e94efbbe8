"""From kernels to loaded functions: the disk cache, and the compiler when it misses.

A process that finds all its kernels on disk imports neither Numba nor numba-cuda.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from arrayfn.backends.base import refuse_file
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.modules import load
from arrayfn.backends.object_cache import content_key, object_cache
from arrayfn.lowering.plan import NEUTRAL_NAME, Kernel

ENTRY: Final = NEUTRAL_NAME  # the name of each kernel in its cubin
OVERLAPS_FROM: Final = (9, 0)  # the arch whose kernels may begin before others end
_BEGIN: Final = ".visible .entry "
# What a kernel does first, or later if it says so (``await_kernels``). Only kernels of
# few blocks, which fill the card, let the next one be launched meanwhile
# (``release_kernels``): the card takes 1.2 ns for each block that says so, and early
# blocks take places where there is work left to share.
_WAIT: Final = "griddepcontrol.wait;"
# Imported if the cache misses.
_COMPILER: Final = "arrayfn.backends.cuda.kernel_compiler"
_NUMBA_COMPILER: Final = "arrayfn.backends.cuda.numba_cuda"
_LINKER: Final = "cuda.bindings.nvjitlink"
_SOURCES: Final = (
    "lowering/scalars/*.py",
    "lowering/cuda/vocabulary.py",
    "backends/llvm_arithmetic.py",
    "backends/nvvm_arithmetic.py",
    "backends/kernel_*.py",
    "backends/numba/*.py",
    "backends/cuda/numba_cuda.py",
    "backends/cuda/arithmetic.py",
    "backends/cuda/assembly.py",
    "backends/cuda/boards.py",
    "backends/cuda/*_functions.py",
    "backends/cuda/kernel_compiler.py",
    "backends/cuda/unrolling.py",
    "backends/cuda/code.py",
)
_LOCK: Final = threading.Lock()
_loaded: dict[str, int] = {}


@cache
def _toolchain() -> str:
    """What cubins depend on besides kernels: numba-cuda, and what determines code."""
    root = Path(__file__).parents[2]
    paths = sorted({path for pattern in _SOURCES for path in root.glob(pattern)})
    texts = [path.read_text("utf-8") for path in paths]
    return content_key(metadata.version("numba-cuda"), *texts)


def kernel_key(kernel: Kernel, arch: tuple[int, int]) -> str:
    """The cache key of a kernel's cubin for a compute capability."""
    signature = ",".join(parameter.kind for parameter in kernel.parameters)
    return content_key(
        "cuda",
        kernel.key,
        signature,
        f"{kernel.threads} {kernel.cluster} {kernel.shared} {kernel.together} "
        f"{kernel.cooperative}",
        f"sm_{arch[0]}{arch[1]}",
        _toolchain(),
    )


def compile_cubin(kernel: Kernel, arch: tuple[int, int]) -> bytes:
    """Machine code of ``kernel``, whose entry is ``ENTRY``.

    Where NVIDIA's linker is not installed it is PTX, which the driver compiles.
    """
    ptx = compile_ptx(neutral(kernel), arch)
    if arch >= OVERLAPS_FROM:
        ptx = overlapping(ptx)
    text = ptx.encode() + b"\0"
    try:
        linker = importlib.import_module(_LINKER)
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


def neutral(kernel: Kernel) -> Kernel:
    """``kernel`` with the text of its key, whose function is called ``ENTRY``."""
    text, name = kernel.key, kernel.compiled_name
    if name != ENTRY:
        # Written by hand; other functions and variables may not have the entry's name.
        head = rf"^def {re.escape(name)}\b"
        text = re.sub(head, f"def {ENTRY}", text, count=1, flags=re.MULTILINE)
    return replace(kernel, name=ENTRY, source=text, key=text)


def compile_ptx(kernel: Kernel, arch: tuple[int, int]) -> str:
    """The PTX of ``kernel``: of one written by hand, perhaps through numba-cuda."""
    compiler = importlib.import_module(_COMPILER)
    try:
        return compiler.compile_ptx(kernel, arch)
    except (compiler.UnsupportedKernelError, ImportError) as error:
        refuse_file(kernel, error)
        return importlib.import_module(_NUMBA_COMPILER).compile_ptx(kernel, arch)


def overlapping(ptx: str) -> str:
    r"""``ptx``, whose kernel is launched while those before it end, and waits for them.

    Its loads are no longer ``.nc``, of memory that nobody writes as long as the kernel
    runs: kernels that it waits for do, and such loads gave what was there before.

    >>> print(overlapping(".visible .entry kernel()\n{\n\tret;\n}"))
    .visible .entry kernel()
    {
        griddepcontrol.wait;
        ret;
    }
    """
    head, entry, body = ptx.replace(".global.nc.", ".global.").partition(_BEGIN)
    if _WAIT not in body:
        body = body.replace("\n{", f"\n{{\n\t{_WAIT}", 1)
    return head + entry + body


def functions(kernels: Iterable[Kernel]) -> dict[str, int]:
    """The loaded function of each kernel, by its name. Equal kernels share one."""
    gpu = device()
    found: dict[str, int] = {}
    with _LOCK:
        for kernel in kernels:
            key = kernel_key(kernel, gpu.arch)
            if key not in _loaded:
                cubin = object_cache().get_or_compile(
                    key, lambda kernel=kernel: compile_cubin(kernel, gpu.arch)
                )
                blocks = kernel.together if kernel.cached else 0
                _loaded[key] = load(cubin, ENTRY, kernel.shared, kernel.cluster, blocks)
            found[kernel.name] = _loaded[key]
    return found
