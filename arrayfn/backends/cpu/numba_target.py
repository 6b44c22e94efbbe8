"""Numba's target for printed kernels: a CPU context that makes LLVM IR, and no code.

It has the implementations that printed kernels use (numbers, pointers, the vocabulary);
Numba's own context takes 0.3 s to fill with those of its libraries. Modules are kept as
they are lowered: arrayfn optimises them in threads of its own.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from llvmlite import ir
from numba.core import callconv, codegen, compiler, cpu, interpreter, lowering, types
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numba.core.typed_passes import BaseNativeLowering
from numba.core.typing.context import BaseContext
from numba.cpython import (  # they register
    builtins,  # noqa: F401  # pyright: ignore[reportUnusedImport]
    numbers,  # noqa: F401  # pyright: ignore[reportUnusedImport]
)
from typing_extensions import override

from arrayfn.backends.cpu.loop_metadata import metadata_of
from arrayfn.backends.cpu.vocabulary import DIALECT, KNOWN
from arrayfn.backends.native import target
from arrayfn.backends.numba import target as shared
from arrayfn.backends.numba.dialect import UntypedKernelError
from arrayfn.backends.numba.lowering import KernelLowering
from arrayfn.backends.numba.typed import KernelLoop

_BaseLower: Any = lowering.BaseLower


class KernelLibrary(shared.KernelLibrary, codegen.CodeLibrary):
    """A Numba code library that only holds a kernel's LLVM module.

    ``checks_signals`` makes calls of ``interrupted`` check for signals. ``front_end``
    compiles the functions that the kernel calls.
    """

    checks_signals = True
    front_end: KernelFrontEnd


class KernelCodegen(codegen.Codegen):
    """Makes empty LLVM modules for the host, in place of Numba's code generator."""

    _library_class = KernelLibrary

    def __init__(self) -> None:
        self._target_data = target.target_machine().target_data
        self._data_layout = str(self._target_data)

    @override
    def _create_empty_module(self, name: str) -> Any:
        """Make an empty LLVM module for the host, called ``name``."""
        module = ir.Module(name)
        module.triple = target.host().triple
        module.data_layout = self._data_layout
        return module

    @override
    def _add_module(self, module: Any) -> None:
        """Refuse to load a module: ``native.target`` compiles kernels instead."""
        raise NotImplementedError

    def magic_tuple(self) -> tuple[str, ...]:
        """Numba's cache key of the target: the host's processor and features."""
        return (str(target.host()),)


class KernelCallConv(shared.KernelCallConv, callconv.BaseCallConv):
    """The calling convention of kernels."""


class KernelTyping(shared.KernelTyping, BaseContext):
    """A Numba typing context without functions: kernels' types are known."""


class KernelContext(shared.KernelContext, cpu.CPUContext):
    """Numba's CPU target context, reduced to what printed kernels need.

    ``symbol`` is the name that the next compiled function gets in its LLVM module.
    """

    symbol = "kernel"

    @override
    def init(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Prepare the context without Numba's ``init``, which makes a JIT engine."""
        self.is32bit = False
        self._implementations: dict[Any, Any] = {}
        self._internal_codegen: Any = KernelCodegen()

    @override
    def load_additional_registries(self) -> None:
        """Install no more implementations than Numba's builtin registry has.

        Printed kernels need no others, and Numba takes 0.3 s to install its own.
        """

    @property
    @override
    def call_conv(self) -> Any:
        """The calling convention of kernels."""
        return KernelCallConv(self)

    @override
    def mangler(
        self, name: str, types: Any, *, abi_tags: Any = (), uid: Any = None
    ) -> str:
        """Return ``symbol`` as the name of the compiled function, without mangling."""
        return self.symbol

    @override
    def post_lowering(self, mod: ir.Module, library: Any) -> None:
        """Do nothing: kernels have no reference counts, which Numba removes here."""


class CpuLowering(KernelLowering, _BaseLower):
    """Lowers a printed kernel for a CPU."""

    dialect = DIALECT
    context: Any
    library: Any

    @override
    def emit_call(self, node: Any) -> Any:
        """Emit a call; a Python function is first compiled into the kernel's module.

        Functions of the vocabulary have implementations in the target context.
        """
        function = self.types.functions[node.func.name]
        if not isinstance(function, FunctionType) or function in KNOWN:
            return super().emit_call(node)
        signature = self.types.signatures[node]
        values = list(map(self.read_as, node.args, signature.args))
        called = self.library.front_end.callee(self.module, function, signature)
        return self.builder.call(called, values)

    @override
    def loop_metadata(self, loop: KernelLoop) -> Any:
        """Return the LLVM metadata of the loop's branch back to its head, or None."""
        # Instructions of the longest function that the loop calls.
        longest = max((self.emitted.get(f, 0) for f in loop.functions), default=0)
        return metadata_of(self.module, loop, longest)

    @override
    def lower_return(self, statement: Any) -> None:
        """Emit the return, after a fence if the kernel stores past the caches."""
        if any(name.startswith("store_row") for name in self.module.globals):
            # Nontemporal stores must be visible before other threads learn that this
            # kernel has ended.
            self.builder.fence("seq_cst")
        super().lower_return(statement)


class KernelInterpreter(shared.KernelInterpreter, interpreter.Interpreter):
    """Makes Numba IR of the bytecode of printed kernels."""


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelTranslationPass(shared.KernelTranslationPass, FunctionPass):
    """Makes Numba IR of the bytecode of a printed kernel."""

    interpreter = KernelInterpreter


@register_pass(mutates_CFG=False, analysis_only=False)
class KernelTypePass(shared.KernelTypePass, FunctionPass):
    """Gives the variables of a printed kernel their types."""

    dialect = DIALECT


@register_pass(mutates_CFG=False, analysis_only=False)
class KernelLoweringPass(BaseNativeLowering):
    """Lowers a printed kernel."""

    _name = "arrayfn_lowering"

    @property
    @override
    def lowering_class(self) -> Any:
        """The class that lowers Numba IR to LLVM IR."""
        return CpuLowering


class KernelPipeline(compiler.CompilerBase):
    """The Numba compiler from the bytecode of a printed kernel to LLVM IR."""

    @override
    def define_pipelines(self) -> list[PassManager]:
        """Return one pipeline with three passes: translation, types, lowering."""
        passes = PassManager("arrayfn")
        for step in (
            KernelTranslationPass,
            KernelTypePass,
            KernelLoweringPass,
        ):
            passes.add_pass(step)
        passes.finalize()
        return [passes]


class KernelFrontEnd:
    """Compiles printed kernels to LLVM modules; one per process."""

    def __init__(self) -> None:
        self.typing = KernelTyping()  # Numba's typing context
        self.target = KernelContext(self.typing)  # Numba's target context

    def module(self, function: Any, arguments: tuple[Any, ...]) -> ir.Module:
        """Compile a printed kernel to an LLVM module with one function ``kernel``.

        ``arguments`` are the Numba types of its parameters. Raises UntypedKernelError
        for Python whose types are not known without inference.
        """
        return self._compile("kernel", function, arguments, types.void).module

    def callee(self, module: ir.Module, function: Any, signature: Any) -> Any:
        """Return a function that a kernel calls, compiled into the kernel's ``module``.

        The first call for a signature compiles it; LLVM will inline it. ``signature``
        is the Numba signature of the call.
        """
        kinds, result = signature.args, signature.return_type

        def add(symbol: str) -> None:
            """Add the function to ``module`` under the name ``symbol``."""
            self._compile(symbol, function, kinds, result, module, noalias=False)

        return shared.inlined_function(module, function.__name__, kinds, add)

    def _compile(
        self,
        symbol: str,
        function: Any,
        arguments: tuple[Any, ...],
        result: Any,
        module: ir.Module | None = None,
        *,
        noalias: bool = True,
    ) -> KernelLibrary:
        """Compile ``function`` to LLVM IR, under the name ``symbol``.

        The function is added to ``module`` if one is given, else to a new module, which
        the returned library holds. ``arguments`` and ``result`` are Numba types; with
        ``noalias`` arrays are promised not to overlap. Raises UntypedKernelError for
        Python that Numba refuses.
        """
        library = KernelLibrary(self.target.codegen(), symbol)
        library.module, library.front_end = module, self
        pipeline: Any = KernelPipeline
        # A kernel's callees are compiled while the kernel is: restore its symbol.
        before, self.target.symbol = self.target.symbol, symbol
        try:
            compiler.compile_extra(
                *(self.typing, self.target, function, arguments, result),
                flags=shared.set_kernel_flags(compiler.Flags(), noalias=noalias),
                locals={},
                library=library,
                pipeline_class=pipeline,
            )
        except (NumbaError, UnsupportedBytecodeError) as error:
            raise UntypedKernelError(str(error)) from error
        finally:
            self.target.symbol = before
        return library
