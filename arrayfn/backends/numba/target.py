"""Mixins of the targets of printed kernels, for classes of Numba and numba-cuda.

Each stands before the class of a target that it is for (``class CpuLibrary(
KernelLibrary, CodeLibrary)``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.numba.dialect import Dialect, UntypedKernelError
from arrayfn.backends.numba.lowering import TYPES
from arrayfn.backends.numba.typed import kernel_types

_VOID: Final = ir.VoidType()


def set_kernel_flags(flags: Any, *, noalias: bool) -> Any:
    """Set the options of Numba's compiler for kernels in ``flags``, and return it.

    There are no wrappers for Python and no machine code. Division by 0 does not raise,
    as in NumPy. With ``noalias`` arrays are promised not to overlap.
    """
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.no_compile = True
    flags.no_rewrites = True
    flags.error_model = "numpy"
    flags.noalias = noalias
    return flags


def inlined_function(
    module: ir.Module, name: str, types: Sequence[Any], add: Callable[[str], object]
) -> Any:
    """Return the LLVM function for ``name`` with arguments of ``types`` in ``module``.

    If the module does not have the function yet, ``add(symbol)`` must compile it into
    the module under the name ``symbol``. LLVM inlines the function wherever it is
    called.
    """
    symbol = ".".join([name, *map(str, types)])
    if symbol not in module.globals:
        add(symbol)
        module.globals[symbol].linkage = "internal"
        module.globals[symbol].attributes.add("alwaysinline")
    return module.globals[symbol]


class KernelLibrary:
    """A mixin of a Numba ``CodeLibrary`` that holds a kernel's LLVM module.

    It does not compile the module. If ``module`` is set before lowering, functions are
    added to it; otherwise lowering makes a new one.
    """

    module: Any = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

    def create_ir_module(self, name: str) -> Any:
        """Return ``module``, into which Numba lowers; make it if it is not set."""
        if self.module is None:
            self.module = super().create_ir_module(name)  # type: ignore[misc]
        return self.module

    def add_ir_module(self, ir_module: Any) -> None:
        """Do nothing: Numba adds the lowered module, which is ``module`` already."""

    def add_linking_library(self, library: Any) -> None:
        """Refuse to link: printed kernels call no functions of other libraries."""
        raise NotImplementedError

    def finalize(self) -> None:
        """Mark the library as finished, without compiling it; Numba calls it last."""
        self._finalized = True

    def get_function(self, name: str) -> Any:
        """Return the LLVM function ``name`` of the module."""
        return self.module.get_global(name)

    def get_llvm_str(self) -> Any:
        """Return the LLVM IR of the module as text."""
        return str(self.module)

    def get_asm_str(self) -> Any:
        """Refuse to show assembly: the library has no machine code."""
        raise NotImplementedError


class KernelCallConv:
    """A mixin of Numba's calling convention for kernels, as in C.

    Kernels return nothing, and the functions that they call return values. Neither can
    raise an exception, so there is no status and no environment, which Numba passes.
    """

    needs_env = False
    context: Any
    _get_arg_packer: Any

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

    def _make_call_helper(self, builder: Any) -> None:
        """Make no helper: Numba needs one only to raise exceptions."""

    def return_value(self, builder: Any, retval: Any) -> None:
        """Emit the return of ``retval``, or a plain return if the function is void."""
        if isinstance(builder.function.function_type.return_type, ir.VoidType):
            builder.ret_void()
        else:
            builder.ret(retval)

    def get_function_type(self, restype: Any, argtypes: Any) -> ir.FunctionType:
        """Return the LLVM type of a function with these argument and result types.

        ``argtypes`` and ``restype`` are Numba types.
        """
        kinds = self._get_arg_packer(argtypes).argument_types
        if str(restype) == "none":
            return ir.FunctionType(_VOID, kinds)
        return ir.FunctionType(self.context.get_value_type(restype), kinds)

    def decorate_function(
        self, fn: Any, args: Any, fe_argtypes: Any, noalias: bool = False
    ) -> None:
        """With ``noalias``, mark the pointer parameters of ``fn`` as not overlapping.

        The plan keeps buffers apart. ``args`` and ``fe_argtypes``, which Numba passes,
        are not used.
        """
        for argument in fn.args:
            if noalias and isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")

    def get_arguments(self, func: Any) -> Any:
        """Return the LLVM arguments of a kernel: all of the function's."""
        return func.args


class KernelTyping:
    """A mixin of a Numba typing context without functions: nothing is inferred."""

    def _load_builtins(self) -> None:
        """Register no functions."""


class KernelContext:
    """A mixin of a Numba target context, which caches the implementations it finds."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

    def init(self) -> None:
        """Make an empty cache; Numba's constructor calls ``init`` at its end."""
        super().init()  # type: ignore[misc]
        self._implementations: dict[Any, Any] = {}

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """Return the implementation of ``fn`` for the signature ``sig``, from a cache.

        Numba's own search takes 50 us. ``_firstcall`` is passed on to it.
        """
        known = self._implementations.get((fn, sig))
        if known is None:
            known = super().get_function(fn, sig, _firstcall)  # type: ignore[misc]
            self._implementations[fn, sig] = known
        return known


class KernelInterpreter:
    """A mixin of Numba's interpreter, which makes Numba IR of Python bytecode."""

    def post_process(self, peepholes: Any, func_ir: Any) -> Any:
        """Return ``func_ir`` without applying Numba's peephole optimisations.

        They treat ``with`` blocks and dicts, which printed kernels do not have.
        """
        return func_ir


class KernelTranslationPass:
    """A mixin of the compiler pass from a kernel's bytecode to Numba IR."""

    _name = "arrayfn_translation"
    interpreter: Any

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> Any:
        """Set ``state.func_ir`` to the Numba IR of the kernel's bytecode.

        ``state`` is the Numba compiler's. Returns True: the state has changed. Raises
        UntypedKernelError if the kernel has another number of parameters than types.
        """
        names = state.func_id.arg_names
        if len(names) != len(state.args):
            raise UntypedKernelError(f"parameters {names} of types {state.args}")
        state.func_ir = self.interpreter(state.func_id).interpret(state.bc)
        return True


class KernelTypePass:
    """A mixin of the compiler pass that gives a kernel's variables their types."""

    _name = "arrayfn_types"
    dialect: Dialect

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> Any:
        """Set ``state.typemap`` and ``state.calltypes``, as Numba's inference would.

        ``state`` is the Numba compiler's. The lowering reads the ``KernelTypes`` from
        its metadata. Returns True: the state has changed.
        """
        signature = state.args, state.return_type
        types = kernel_types(state.func_ir, *signature, self.dialect)
        state.typemap, state.calltypes = types.variables, types.signatures
        state.metadata[TYPES] = types
        return True
