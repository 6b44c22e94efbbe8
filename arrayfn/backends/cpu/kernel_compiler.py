"""Kernels to LLVM IR for a CPU, through Numba, which a process imports for its first.

In: a kernel; out: the text of an LLVM module that exports the uniform entry ``void
entry(int64* arguments, int64 begin, int64 end)``. The types of a printed kernel are
known: it goes through a pipeline of its own. Hand-written ones go through Numba's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

from arrayfn.backends.cpu.kernel_entry import add_entry
from arrayfn.backends.cpu.numba_target import KernelFrontEnd
from arrayfn.backends.cpu.vocabulary import DIALECT
from arrayfn.backends.numba.functions import printed_function
from arrayfn.lowering import scalars
from arrayfn.lowering.plan import Parameter

_KINDS: Final = {"rest": "i64*", "constant": "i64"}
VOCABULARY: Final = "arrayfn.lowering.scalars"


def kernel_ir(
    source: str, name: str, parameters: Sequence[Parameter], symbol: str
) -> str:
    """Compile the text of a printed kernel to LLVM IR.

    ``source`` is a Python module that defines the kernel as function ``name``. It is
    not executed. The IR exports the uniform entry, ``void entry(int64* arguments, int64
    begin, int64 end)``, as ``symbol``. Raises UntypedKernelError for Python that no
    printed kernel has.
    """
    function = printed_function(source, name, {VOCABULARY: scalars})
    return function_ir(function, parameters, symbol)


def function_ir(
    kernel: Callable[..., None],
    parameters: Sequence[Parameter],
    symbol: str,
    constants: Mapping[int, int] | None = None,
) -> str:
    """Compile a kernel that is a Python function to LLVM IR.

    The IR exports the uniform entry, ``void entry(int64* arguments, int64 begin, int64
    end)``, as ``symbol``. ``constants`` are given for library kernels: the values of
    parameters, by position, that are fixed at compile time.
    """
    has_rest = bool(parameters) and parameters[-1].kind == "rest"
    kinds = [_KINDS.get(p.kind, p.kind) for p in parameters]
    arguments = map(DIALECT.parameter_type, kinds)
    i64 = DIALECT.value_type("i64")
    # ``begin`` and ``end`` follow the kernel's parameters.
    module = _front_end().module(kernel, (*arguments, i64, i64))
    function = module.get_global("kernel")
    function.linkage = "internal"
    if constants is None:
        # Inlined into its entry, a kernel would lose ``noalias`` of its parameters,
        # which its loops need. LLVM may inline a library kernel: its calls are short.
        function.attributes.add("noinline")
    function.attributes.add("nounwind")
    add_entry(
        module,
        function,
        symbol,
        constants or {},
        has_rest=has_rest,
        hides_strides=constants is None,
    )
    return str(module)


@cache
def _front_end() -> KernelFrontEnd:
    """Return the process's only KernelFrontEnd."""
    return KernelFrontEnd()
