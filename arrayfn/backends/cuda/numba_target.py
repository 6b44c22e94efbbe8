"""numba-cuda's compilation target for printed kernels, which makes LLVM IR for NVVM.

It has only the implementations that printed kernels use (numbers, pointers, the
vocabulary). Handwritten kernels use numba-cuda's own target, which takes 0.35 s to
register the implementations of its libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from llvmlite import ir
from typing_extensions import override

from arrayfn.backends.cuda.unrolling import mark_next_loop, unroll_marked
from arrayfn.backends.cuda.vocabulary import (
    DIALECT,
    UNROLLED,
    lower_call,
    module,
    types,
)
from arrayfn.backends.numba import target as shared
from arrayfn.backends.numba.dialect import UntypedKernelError
from arrayfn.backends.numba.lowering import KernelLowering, Range
from arrayfn.lowering.cuda.vocabulary import DeviceFunction

compiler: Any = module("compiler")
callconv: Any = module("core.callconv")
codegen: Any = module("core.codegen")
lowering: Any = module("lowering")
typing: Any = module("typing")
errors: Any = module("core.errors")
target: Any = module("target")
typed: Any = module("core.typed_passes")
machinery: Any = module("core.compiler_machinery")
numbers: Any = module("cpython.numbers")
builtins: Any = module("cpython.builtins")

_I64: Final = ir.IntType(64)


class KernelLibrary(shared.KernelLibrary, codegen.CodeLibrary):
    """A Numba code library that only keeps the LLVM module of a kernel."""


class KernelCallConv(shared.KernelCallConv, callconv.BaseCallConv):
    """The calling convention of kernels."""


class KernelTyping(shared.KernelTyping, typing.BaseContext):
    """The typing context of printed kernels."""


class KernelContext(shared.KernelContext, target.CUDATargetContext):
    """The Numba target context that lowers printed kernels to LLVM IR."""

    def load_additional_registries(self) -> None:
        """Install the implementations of numbers and builtins. Numba calls this."""
        self.install_registry(numbers.registry)
        self.install_registry(builtins.registry)


class CudaLowering(KernelLowering, lowering.BaseLower):
    """Lowers a printed kernel's typed Numba IR to LLVM IR for a GPU."""

    dialect = DIALECT

    @override
    def emit_call(self, node: Any) -> Any:
        """Emit a call in a kernel; return its value, or None if it has none.

        ``node`` calls ``unrolled``, a device function, a function of the kernel's text,
        which is compiled into the module, or a scalar function.
        """
        function = self.types.functions[node.func.name]
        signature = self.types.signatures[node]
        if function is UNROLLED:
            mark_next_loop(self.builder)
            return Range(_I64(0), self.read(node.args[0]), _I64(1))
        if isinstance(function, DeviceFunction):
            values = [
                self.read(value)
                if isinstance(kind, types.IntegerLiteral)
                else self.read_as(value, kind)
                for value, kind in zip(node.args, signature.args, strict=True)
            ]
            return lower_call(self.context, self.builder, function, signature, values)
        if isinstance(function, FunctionType):
            values = list(map(self.read_as, node.args, signature.args))
            self.builder.call(
                helper_function(self.module, function, signature.args), values
            )
            return None
        return super().emit_call(node)


class KernelInterpreter(shared.KernelInterpreter, compiler.CUDABytecodeInterpreter):
    """Translates the bytecode of printed kernels to Numba IR."""


@machinery.register_pass(mutates_CFG=True, analysis_only=False)
class KernelTranslationPass(shared.KernelTranslationPass, machinery.FunctionPass):
    """The pass that translates a printed kernel's bytecode to Numba IR."""

    interpreter = KernelInterpreter


@machinery.register_pass(mutates_CFG=False, analysis_only=False)
class KernelTypePass(shared.KernelTypePass, machinery.FunctionPass):
    """The pass that infers the types of a printed kernel's variables."""

    dialect = DIALECT


@machinery.register_pass(mutates_CFG=False, analysis_only=False)
class KernelLoweringPass(typed.BaseNativeLowering):
    """The pass that lowers a printed kernel to LLVM IR."""

    _name = "arrayfn_lowering"

    @property
    def lowering_class(self) -> type[CudaLowering]:
        """The class that lowers kernels to LLVM IR. Numba reads this."""
        return CudaLowering


class KernelPipeline(compiler.CUDACompiler):
    """Numba's passes for a printed kernel: from bytecode to LLVM IR for NVVM."""

    def define_pipelines(self) -> list[Any]:
        """Return the only pipeline: a list of one pass manager. Numba calls this."""
        passes = machinery.PassManager("arrayfn")
        for step in (
            KernelTranslationPass,
            KernelTypePass,
            KernelLoweringPass,
            compiler.CUDABackend,
        ):
            passes.add_pass(step)
        passes.finalize()
        return [passes]


_REFUSALS: Final = (
    errors.NumbaError,
    errors.UnsupportedBytecodeError,
    NotImplementedError,  # no implementation of an operation
)
"""The exceptions that Numba raises for a kernel that it cannot compile."""
_TYPING: Final = KernelTyping()
_TARGET: Final = KernelContext(_TYPING)


def kernel_module(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    name: str,
    *,
    noalias: bool,
) -> Any:
    """Compile a printed kernel to an LLVM module, whose entry is called ``name``.

    ``arguments`` are the Numba types of its parameters; ``noalias`` promises that its
    arrays do not overlap. Raises UntypedKernelError if Numba cannot compile it.
    """
    library = KernelLibrary(_TARGET.codegen(), name)
    _compile(library, function, arguments, name, noalias=noalias)
    return library.module


def helper_function(
    module: Any, function: FunctionType, arguments: tuple[Any, ...]
) -> Any:
    """Compile a function that a kernel calls into the kernel's LLVM ``module``.

    Returns the LLVM function, which NVVM inlines. ``arguments`` are the Numba types of
    its parameters; for the same types it is compiled once.
    """

    def add(symbol: str) -> None:
        """Compile the function into the module as ``symbol``."""
        library = KernelLibrary(_TARGET.codegen(), symbol)
        library.module = module
        _compile(library, function, arguments, symbol, noalias=False)

    return shared.inlined_function(module, function.__name__, arguments, add)


def _compile(
    library: KernelLibrary,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    symbol: str,
    *,
    noalias: bool,
) -> None:
    """Compile ``function`` into ``library`` as ``symbol``, by ``KernelPipeline``.

    Raises UntypedKernelError if Numba cannot compile it. Marked loops get metadata that
    makes NVVM unroll them.
    """
    try:
        compiler.compile_extra(
            *(_TYPING, _TARGET, function, arguments, types.void),
            flags=shared.set_kernel_flags(compiler.CUDAFlags(), noalias=noalias),
            locals={},
            library=library,
            pipeline_class=KernelPipeline,
            call_conv=KernelCallConv(_TARGET),
            abi_info={"abi_name": symbol},
        )
    except _REFUSALS as error:
        raise UntypedKernelError(str(error)) from error
    unroll_marked(library.get_function(symbol))
