"""Numba's target for printed kernels: a CPU context that makes LLVM IR, and no code.

It has the implementations that printed kernels use (numbers, pointers, the vocabulary);
Numba's own context takes 0.3 s to fill with those of its libraries. Modules are kept as
they are lowered: arrayfn optimises them in threads of its own.
"""

from __future__ import annotations

from typing import Any, Final

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

from arrayfn.backends.cpu.loop_metadata import metadata_of
from arrayfn.backends.cpu.vocabulary import DIALECT
from arrayfn.backends.native import target
from arrayfn.backends.numba.dialect import UntypedKernelError
from arrayfn.backends.numba.lowering import TYPES, KernelLowering
from arrayfn.backends.numba.typed import KernelLoop, kernel_types

_VOID: Final = ir.VoidType()
_BaseLower: Any = lowering.BaseLower


class KernelLibrary(codegen.CodeLibrary):
    """Keeps the module that lowering makes; optimises and links nothing."""

    looks_at_signals = True
    module: ir.Module

    def add_ir_module(self, ir_module: ir.Module) -> None:
        """Keep ``ir_module``."""
        self.module = ir_module

    def add_linking_library(self, library: Any) -> None:
        """Printed kernels call no compiled function."""
        raise NotImplementedError

    def finalize(self) -> None:
        """Called when nothing is to be added any more."""
        self._finalized = True

    def get_function(self, name: str) -> Any:
        """The function ``name`` of the module."""
        return self.module.get_global(name)

    def get_llvm_str(self) -> Any:
        """The module's text."""
        return str(self.module)

    def get_asm_str(self) -> Any:
        """There is no machine code."""
        raise NotImplementedError


class KernelCodegen(codegen.Codegen):
    """Makes empty modules for the host."""

    _library_class = KernelLibrary

    def __init__(self) -> None:
        self._target_data = target.target_machine().target_data
        self._data_layout = str(self._target_data)

    def _create_empty_module(self, name: str) -> Any:
        module = ir.Module(name)
        module.triple = target.host().triple
        module.data_layout = self._data_layout
        return module

    def _add_module(self, module: Any) -> None:
        raise NotImplementedError

    def magic_tuple(self) -> tuple[str, ...]:
        """What code depends on besides its source."""
        return (str(target.host()),)


class KernelCallConv(callconv.BaseCallConv):
    """``void kernel(arguments...)``: kernels raise nothing and return nothing."""

    def _make_call_helper(self, builder: Any) -> None:
        return None

    def return_value(self, builder: Any, retval: Any) -> None:
        """Return."""
        builder.ret_void()

    def get_function_type(self, restype: Any, argtypes: Any) -> ir.FunctionType:
        """The LLVM type of a kernel."""
        return ir.FunctionType(_VOID, self._get_arg_packer(argtypes).argument_types)

    def decorate_function(
        self, fn: Any, args: Any, fe_argtypes: Any, noalias: bool = False
    ) -> None:
        """Kernels' arrays do not overlap: the plan keeps buffers apart."""
        for argument in fn.args:
            if noalias and isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")

    def get_arguments(self, func: Any) -> Any:
        """The arguments of a kernel."""
        return func.args


class KernelTyping(BaseContext):
    """Printed kernels' types are known, so none is looked up in a typing context."""

    def _load_builtins(self) -> None:
        pass


class KernelContext(cpu.CPUContext):
    """Lowers printed kernels to LLVM IR."""

    def init(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.is32bit = False
        self._implementations: dict[Any, Any] = {}
        self._internal_codegen: Any = KernelCodegen()

    def load_additional_registries(self) -> None:
        """What printed kernels use is in the builtin registry."""

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """The implementation of ``fn`` for a signature: Numba's search takes 50 us."""
        known = self._implementations.get((fn, sig))
        if known is None:
            known = super().get_function(fn, sig, _firstcall)
            self._implementations[fn, sig] = known
        return known

    @property
    def call_conv(self) -> Any:
        """How kernels are called."""
        return KernelCallConv(self)

    def mangler(
        self, name: str, types: Any, *, abi_tags: Any = (), uid: Any = None
    ) -> str:
        """A module has one kernel."""
        return "kernel"

    def post_lowering(self, mod: ir.Module, library: Any) -> None:
        """There are no reference counts to remove."""


class CpuLowering(KernelLowering, _BaseLower):
    """Lowers a printed kernel for a CPU."""

    dialect = DIALECT

    def loop_metadata(self, loop: KernelLoop) -> Any:
        longest = max((self.emitted.get(f, 0) for f in loop.functions), default=0)
        return metadata_of(self.module, loop, longest)

    def lower_return(self, statement: Any) -> None:
        if any(name.startswith("store_row") for name in self.module.globals):
            # Stores past the caches are ordered before what tells other threads.
            self.builder.fence("seq_cst")
        super().lower_return(statement)


class KernelInterpreter(interpreter.Interpreter):
    """Makes Numba IR of the bytecode of printed kernels."""

    def post_process(self, peepholes: Any, func_ir: Any) -> Any:
        """Printed kernels have nothing that peepholes are for: no ``with``, no dict."""
        return func_ir


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelTranslationPass(FunctionPass):
    """Makes Numba IR of the bytecode of a printed kernel."""

    _name = "arrayfn_translation"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> Any:
        state.func_ir = KernelInterpreter(state.func_id).interpret(state.bc)
        return True


@register_pass(mutates_CFG=False, analysis_only=False)
class KernelTypePass(FunctionPass):
    """Gives the variables of a printed kernel their types."""

    _name = "arrayfn_types"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> Any:
        found = kernel_types(state.func_ir, state.args, DIALECT)
        state.typemap, state.calltypes = found.variables, found.signatures
        state.metadata[TYPES] = found
        return True


@register_pass(mutates_CFG=False, analysis_only=False)
class KernelLoweringPass(BaseNativeLowering):
    """Lowers a printed kernel."""

    _name = "arrayfn_lowering"

    @property
    def lowering_class(self) -> Any:
        return CpuLowering


class KernelPipeline(compiler.CompilerBase):
    """From the bytecode of a printed kernel to LLVM IR."""

    def define_pipelines(self) -> list[PassManager]:
        passes = PassManager("arrayfn")
        for step in (
            KernelTranslationPass,
            KernelTypePass,
            KernelLoweringPass,
        ):
            passes.add_pass(step)
        passes.finalize()
        return [passes]


def _flags() -> Any:
    flags: Any = compiler.Flags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.no_compile = True
    flags.no_rewrites = True
    flags.error_model = "numpy"
    flags.noalias = True
    return flags


class KernelFrontEnd:
    """Compiles printed kernels to LLVM modules; one per process."""

    def __init__(self) -> None:
        self.typing = KernelTyping()
        self.target = KernelContext(self.typing)
        self.flags = _flags()

    def module(self, function: Any, arguments: tuple[Any, ...]) -> ir.Module:
        """The module of a kernel; its function is called ``kernel``.

        Raises UntypedKernelError.
        """
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        if len(names) != len(arguments):
            raise UntypedKernelError(f"parameters {names} of types {arguments}")
        library = KernelLibrary(self.target.codegen(), "kernel")
        pipeline: Any = KernelPipeline
        try:
            compiler.compile_extra(
                *(self.typing, self.target, function, arguments, types.void),
                flags=self.flags,
                locals={},
                library=library,
                pipeline_class=pipeline,
            )
        except (NumbaError, UnsupportedBytecodeError) as error:
            raise UntypedKernelError(str(error)) from error
        return library.module
