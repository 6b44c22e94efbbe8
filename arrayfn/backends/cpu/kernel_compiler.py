"""Kernels to LLVM IR for a CPU, through Numba, which a process imports for its first.

In: a kernel; out: the text of an LLVM module that exports the uniform entry ``void
entry(int64* arguments, int64 begin, int64 end)``. The types of a printed kernel are
known: it goes through a pipeline of its own. Hand-written ones go through Numba's.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from arrayfn.backends.cpu.kernel_entry import add_entry
from arrayfn.backends.cpu.numba_target import KernelFrontEnd
from arrayfn.backends.cpu.vocabulary import DIALECT
from arrayfn.backends.numba.functions import printed_function
from arrayfn.lowering import scalars
from arrayfn.lowering.plan import Parameter

VOCABULARY: Final = "arrayfn.lowering.scalars"


def kernel_ir(
    source: str, name: str, parameters: tuple[Parameter, ...], symbol: str
) -> str:
    """The LLVM IR of a printed kernel; it exports the uniform entry under ``symbol``.

    Executes nothing of ``source``. Raises UntypedKernelError for what no printed kernel
    has.
    """
    arguments = [DIALECT.parameter_type(p.kind) for p in parameters]
    i64 = DIALECT.value_type("i64")
    made = printed_function(source, name, {VOCABULARY: scalars})
    module = _front_end().module(made, (*arguments, i64, i64))
    function = module.get_global("kernel")
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    add_entry(module, function, symbol)
    return str(module)


@cache
def _front_end() -> KernelFrontEnd:
    return KernelFrontEnd()
