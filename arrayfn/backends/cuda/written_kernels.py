"""Compiles hand-written GPU kernels to LLVM IR: they may use all that numba-cuda knows.

numba-cuda types them in its own contexts, and links the helper functions they call.
NVVM compiles the modules, as it does those of printed kernels.
"""

from __future__ import annotations

import re
from types import FunctionType
from typing import Any, Final

from arrayfn.backends.cuda.unrolling import unroll_marked
from arrayfn.backends.cuda.vocabulary import DIALECT, module, types
from arrayfn.backends.numba.functions import executed_function
from arrayfn.errors import BackendError
from arrayfn.lowering.cuda.vocabulary import device_function
from arrayfn.lowering.plan import Kernel

_compiler: Any = module("compiler")
_nvvm: Any = module("cudadrv.nvvm")
_NumbaError: Any = module("core.errors").NumbaError
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Terminal colours in Numba's messages."""


def written_modules(kernel: Kernel, arch: tuple[int, int]) -> list[str]:
    """Compile a handwritten kernel to LLVM IR: texts of its module and its helpers'.

    The kernel's text is executed to define its functions. Those that the kernel may
    call become device functions. ``arch`` is the compute capability. Raises
    BackendError, with the kernel's name and line, for what numba-cuda cannot compile.
    """
    function: Any = executed_function(kernel.source, kernel.name)
    names = function.__globals__
    for name, value in list(names.items()):
        is_helper = isinstance(value, FunctionType) and value.__globals__ is names
        if is_helper and value is not function:
            names[name] = device_function(value)
    kinds = tuple(DIALECT.parameter_type(p.kind) for p in kernel.parameters)
    try:
        result = _compiler.compile_cuda(
            function, types.void, kinds, cc=arch, abi_info={"abi_name": kernel.name}
        )
    except _NumbaError as error:
        message = _COLOURS.sub("", str(error))
        raise BackendError(
            f"numba-cuda cannot compile kernel {kernel.name}: {message}"
        ) from error
    entry = result.library.get_function(kernel.name)
    _compiler.kernel_fixup(entry, debug=False)
    _nvvm.set_launch_bounds(entry, kernel.threads)
    unroll_marked(entry)
    for argument, parameter in zip(entry.args, kernel.parameters, strict=True):
        # A cooperative kernel's steps reuse memory, so its arrays may overlap.
        if parameter.kind.endswith("*") and not kernel.cooperative:
            argument.add_attribute("noalias")
    return [_without_environments(text) for text in result.library.llvm_strs]


def _without_environments(text: str) -> str:
    """Remove globals for Python objects from ``text``, an LLVM module.

    Kernels have no Python objects, and NVVM refuses the globals.
    """
    lines = text.splitlines()
    return "\n".join(line for line in lines if "NumbaEnv" not in line)
