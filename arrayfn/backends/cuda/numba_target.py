"""numba-cuda's target for printed kernels: it makes LLVM IR for NVVM.

It has the implementations that printed kernels use (numbers, pointers, the vocabulary);
numba-cuda's own context takes 0.35 s to fill with those of its libraries, and is left
to kernels written by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.cuda.unrolling import mark, unroll_marked
from arrayfn.backends.cuda.vocabulary import (
    DIALECT,
    UNROLLED,
    lower_call,
    module,
    types,
)
from arrayfn.backends.numba.lowering import TYPES, KernelLowering, Range
from arrayfn.backends.numba.typed import kernel_types
from arrayfn.lowering.cuda.vocabulary import DeviceFunction

compiler: Any = module("compiler")
callconv: Any = module("core.callconv")
codegen: Any = module("core.codegen")
lowering: Any = module("lowering")
typing: Any = module("typing")
target: Any = module("target")
untyped: Any = module("core.untyped_passes")
typed: Any = module("core.typed_passes")
machinery: Any = module("core.compiler_machinery")
nvvm: Any = module("cudadrv.nvvm")
numbers: Any = module("cpython.numbers")
builtins: Any = module("cpython.builtins")

_VOID: Final = ir.VoidType()


class KernelLibrary(codegen.CodeLibrary):
    """Keeps the module that lowering makes, or adds to one; compiles nothing."""

    def __init__(self, made_by: Any, name: str, part_of: Any = None) -> None:
        super().__init__(made_by, name)
        self.module: Any = part_of

    def create_ir_module(self, name: str) -> Any:
        """The module of the kernel that is compiled."""
        if self.module is None:
            self.module = super().create_ir_module(name)
        return self.module

    def add_ir_module(self, ir_module: Any) -> None:
        """The module is known already."""

    def add_linking_library(self, library: Any) -> None:
        """Printed kernels call no compiled function."""
        raise NotImplementedError

    def finalize(self) -> None:
        """Called when nothing is to be added any more."""
        self._finalized = True

    def get_function(self, name: str) -> Any:
        """The function ``name`` of the module."""
        return self.module.get_global(name)

    def get_llvm_str(self) -> str:
        """The module's text."""
        return str(self.module)

    def get_asm_str(self) -> str:
        """There is no machine code."""
        raise NotImplementedError


class KernelCallConv(callconv.BaseCallConv):
    """``void kernel(arguments...)``: kernels raise nothing and return nothing."""

    needs_env = False

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


class KernelTyping(typing.BaseContext):
    """Printed kernels' types are known, so none is looked up in a typing context."""

    def _load_builtins(self) -> None:
        pass


class KernelContext(target.CUDATargetContext):
    """Lowers printed kernels to LLVM IR."""

    def init(self) -> None:
        """Called by numba-cuda when all else is set."""
        super().init()
        self._implementations: dict[Any, Any] = {}

    def load_additional_registries(self) -> None:
        """What printed kernels use besides the vocabulary."""
        self.install_registry(numbers.registry)
        self.install_registry(builtins.registry)

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """The implementation of ``fn`` for a signature: numba-cuda's search is slow."""
        known = self._implementations.get((fn, sig))
        if known is None:
            known = super().get_function(fn, sig, _firstcall)
            self._implementations[fn, sig] = known
        return known


class CudaLowering(KernelLowering, lowering.BaseLower):
    """Lowers a printed kernel for a GPU."""

    dialect = DIALECT

    def emit_call(self, node: Any) -> Any:
        """A call: of a device function, or of another function of the text."""
        function = self.types.functions[node.func.name]
        signature = self.types.signatures[node]
        if function is UNROLLED:
            mark(self.builder)
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
            self.builder.call(part(self.module, function, signature.args), values)
            return None
        return super().emit_call(node)


_I64: Final = ir.IntType(64)


class KernelInterpreter(compiler.CUDABytecodeInterpreter):
    """Makes Numba's IR of a printed kernel's bytecode."""

    def post_process(self, peepholes: Any, func_ir: Any) -> Any:
        """Printed kernels have no lists, dicts and ``with``, which these rewrite."""
        return func_ir


@machinery.register_pass(mutates_CFG=True, analysis_only=False)
class TranslateKernel(machinery.FunctionPass):
    """From bytecode to Numba's IR."""

    _name = "arrayfn_bytecode"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Set the compiler's ``func_ir``."""
        state.func_ir = KernelInterpreter(state.func_id).interpret(state.bc)
        return True


@machinery.register_pass(mutates_CFG=False, analysis_only=False)
class KernelTypePass(machinery.FunctionPass):
    """Gives the variables of a printed kernel their types."""

    _name = "arrayfn_types"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Set the compiler's ``typemap`` and ``calltypes``."""
        found = kernel_types(state.func_ir, state.args, DIALECT)
        state.typemap, state.calltypes = found.variables, found.signatures
        state.metadata[TYPES] = found
        return True


@machinery.register_pass(mutates_CFG=False, analysis_only=False)
class KernelLoweringPass(typed.BaseNativeLowering):
    """Lowers a printed kernel."""

    _name = "arrayfn_lowering"

    @property
    def lowering_class(self) -> type[CudaLowering]:
        """What lowers it."""
        return CudaLowering


class KernelPipeline(compiler.CUDACompiler):
    """From the bytecode of a printed kernel to LLVM IR for NVVM."""

    def define_pipelines(self) -> list[Any]:
        """The only pipeline."""
        passes = machinery.PassManager("arrayfn")
        for step in (
            TranslateKernel,
            untyped.FixupArgs,
            KernelTypePass,
            KernelLoweringPass,
            compiler.CUDABackend,
        ):
            passes.add_pass(step)
        passes.finalize()
        return [passes]


_TYPING: Final = KernelTyping()
_TARGET: Final = KernelContext(_TYPING)


def kernel_module(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    name: str,
    *,
    noalias: bool,
) -> Any:
    """The module of a kernel, whose entry is called ``name``."""
    library = KernelLibrary(_TARGET.codegen(), name)
    _compile(library, function, arguments, name, noalias=noalias)
    return library.module


def part(module: Any, function: FunctionType, arguments: tuple[Any, ...]) -> Any:
    """A function that a kernel calls, in the kernel's module; NVVM inlines it."""
    symbol = ".".join([function.__name__, *map(str, arguments)])
    known = module.globals.get(symbol)
    if known is None:
        library = KernelLibrary(_TARGET.codegen(), symbol, module)
        _compile(library, function, arguments, symbol, noalias=False)
        known = module.globals[symbol]
        known.linkage = "internal"
        known.attributes.add("alwaysinline")
    return known


def _compile(
    library: KernelLibrary,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    symbol: str,
    *,
    noalias: bool,
) -> None:
    flags = compiler.CUDAFlags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.no_compile = True
    flags.no_rewrites = True
    flags.error_model = "numpy"
    flags.noalias = noalias
    compiler.compile_extra(
        *(_TYPING, _TARGET, function, arguments, types.void),
        flags=flags,
        locals={},
        library=library,
        pipeline_class=KernelPipeline,
        call_conv=KernelCallConv(_TARGET),
        abi_info={"abi_name": symbol},
    )
    unroll_marked(library.get_function(symbol))
