"""Compiles kernels to PTX: numba-cuda makes their LLVM IR, and NVVM compiles that.

The PTX has one entry, which takes pointers and 64-bit integers. Products and sums are
not contracted, so that a kernel computes the same bits as on a CPU, except for the
order of its reductions.

The types of a printed kernel are known: it goes through a pipeline of its own, and
nothing executes it. Handwritten ones go through numba-cuda's.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.cuda.numba_target import kernel_module
from arrayfn.backends.cuda.vocabulary import DIALECT
from arrayfn.backends.numba.functions import printed_function
from arrayfn.lowering import scalars
from arrayfn.lowering.cuda import vocabulary
from arrayfn.lowering.plan import Kernel

_MODULES: Final = {
    "arrayfn.lowering.scalars": scalars,
    "arrayfn.lowering.cuda.vocabulary": vocabulary,
}
_OPTIONS: Final = ("-opt=3", "-fma=0", "-ftz=0", "-prec-div=1", "-prec-sqrt=1")
"""NVVM's options: no contraction, denormals kept, exact division and square root."""
_ENTRY: Final = ".visible .entry "
_I32: Final = ir.IntType(32)


def printed_ir(kernel: Kernel) -> str:
    """Make the LLVM IR of a printed kernel, whose entry has the kernel's name.

    Raises UntypedKernelError for Python code that printed kernels do not use.
    """
    kinds = tuple(DIALECT.parameter_type(p.kind) for p in kernel.parameters)
    # A cooperative kernel's steps reuse memory, so its arrays may overlap.
    noalias = not kernel.cooperative
    function = printed_function(kernel.source, kernel.name, _MODULES)
    module = kernel_module(function, kinds, kernel.name, noalias=noalias)
    _annotate(module.globals[kernel.name], kernel)
    return str(module)


def _annotate(entry: Any, kernel: Kernel) -> None:
    """Declare to NVVM that the LLVM function ``entry`` is a kernel.

    The metadata also declare the most threads of a block, which bounds the registers
    that a thread may use.
    """
    module = entry.module
    for name, number in (("kernel", 1), ("maxntidx", kernel.threads)):
        words = [entry, ir.MetaDataString(module, name), _I32(number)]
        module.add_named_metadata("nvvm.annotations", words)


def ptx_of(kernel: Kernel, modules: list[str], arch: tuple[int, int]) -> str:
    """Compile a kernel's LLVM IR to PTX, and add its launch directives.

    ``modules`` are the texts of its LLVM modules, ``arch`` the compute capability.
    CUDA's libdevice is linked if a module calls one of its functions (``__nv_...``).
    """
    nvvm = importlib.import_module("cuda.bindings.nvvm")
    program = nvvm.create_program()
    options = [f"-arch=compute_{arch[0]}{arch[1]}", *_OPTIONS]
    try:
        for text in map(str.encode, modules):
            nvvm.add_module_to_program(program, text, len(text), kernel.name)
        if any('@"__nv_' in text or "@__nv_" in text for text in modules):
            library = _libdevice()
            nvvm.lazy_add_module_to_program(program, library, len(library), "")
        nvvm.compile_program(program, len(options), options)
        result = bytearray(nvvm.get_compiled_result_size(program))
        nvvm.get_compiled_result(program, result)
    finally:
        nvvm.destroy_program(program)
    return with_directives(result.decode().strip("\0").strip() + "\n", kernel)


@cache
def _libdevice() -> bytes:
    """Read CUDA's library of mathematical functions, as LLVM bitcode.

    Raises ImportError if the installed cuda-pathfinder cannot find it.
    """
    pathfinder = importlib.import_module("cuda.pathfinder")
    find = getattr(pathfinder, "find_bitcode_lib", None)
    if find is None:
        raise ImportError("this cuda-pathfinder does not know where libdevice is")
    return Path(find("device")).read_bytes()


def with_directives(ptx: str, kernel: Kernel) -> str:
    """Add the kernel's launch directives to its entry in ``ptx``.

    These are lines such as ".minnctapersm 2" (blocks per multiprocessor) and
    ".reqnctapercluster 4, 1, 1" (blocks of a cluster), before the entry's "{". The
    directive for the threads of a block is there already.
    """
    directives: list[str] = []
    if kernel.blocks_per_multiprocessor:
        directives.append(f".minnctapersm {kernel.blocks_per_multiprocessor}")
    if kernel.cluster > 1:
        directives += [".explicitcluster", f".reqnctapercluster {kernel.cluster}, 1, 1"]
    head, entry, body = ptx.partition(_ENTRY)
    return head + entry + body.replace("\n{", "\n".join(["", *directives, "{"]), 1)
