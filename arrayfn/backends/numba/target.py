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
    """Set Numba's ``flags`` for kernels, and return them.

    There are no wrappers for Python, division by 0 is NumPy's, and with ``noalias``
    arrays are promised not to overlap.
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
    """Compile a function into the ``module`` that calls it; LLVM inlines it there.

    ``add(symbol)`` compiles the function called ``name``, for arguments of these
    ``types``. It is called only if the module does not have the function yet.
    """
    symbol = ".".join([name, *map(str, types)])
    if symbol not in module.globals:
        add(symbol)
        module.globals[symbol].linkage = "internal"
        module.globals[symbol].attributes.add("alwaysinline")
    return module.globals[symbol]


class KernelLibrary:
    """A Numba ``CodeLibrary`` that holds a kernel's LLVM module, without compiling.

    Given a module, lowering adds to that.
    """

    module: Any = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

    def create_ir_module(self, name: str) -> Any:
        """Return the module to lower into: the given one, or a new one."""
        if self.module is None:
            self.module = super().create_ir_module(name)  # type: ignore[misc]
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

    def get_llvm_str(self) -> Any:
        """The module's text."""
        return str(self.module)

    def get_asm_str(self) -> Any:
        """There is no machine code."""
        raise NotImplementedError


class KernelCallConv:
    """The calling convention of kernels, which return nothing and raise nothing.

    Functions that they call return values.
    """

    needs_env = False
    context: Any
    _get_arg_packer: Any

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

    def _make_call_helper(self, builder: Any) -> None:
        return None

    def return_value(self, builder: Any, retval: Any) -> None:
        """Emit the return of ``retval``, or of nothing from a function of void."""
        if isinstance(builder.function.function_type.return_type, ir.VoidType):
            builder.ret_void()
        else:
            builder.ret(retval)

    def get_function_type(self, restype: Any, argtypes: Any) -> ir.FunctionType:
        """The LLVM type of a function of Numba's types ``argtypes`` to ``restype``."""
        kinds = self._get_arg_packer(argtypes).argument_types
        if str(restype) == "none":
            return ir.FunctionType(_VOID, kinds)
        return ir.FunctionType(self.context.get_value_type(restype), kinds)

    def decorate_function(
        self, fn: Any, args: Any, fe_argtypes: Any, noalias: bool = False
    ) -> None:
        """With ``noalias``, say that the array arguments of ``fn`` do not overlap.

        They do not, as the plan keeps buffers apart. The other parameters are Numba's.
        """
        for argument in fn.args:
            if noalias and isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")

    def get_arguments(self, func: Any) -> Any:
        """The arguments of a kernel."""
        return func.args


class KernelTyping:
    """A Numba typing context without functions: printed kernels need no inference."""

    def _load_builtins(self) -> None:
        pass


class KernelContext:
    """A Numba target context that caches the implementations it has found."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

    def init(self) -> None:
        """Begin with no implementations; called at the end of Numba's constructor."""
        super().init()  # type: ignore[misc]
        self._implementations: dict[Any, Any] = {}

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """The implementation of ``fn`` for the signature ``sig``, from a cache.

        Numba's own search takes 50 us.
        """
        known = self._implementations.get((fn, sig))
        if known is None:
            known = super().get_function(fn, sig, _firstcall)  # type: ignore[misc]
            self._implementations[fn, sig] = known
        return known


class KernelInterpreter:
    """Makes Numba IR of the bytecode of printed kernels."""

    def post_process(self, peepholes: Any, func_ir: Any) -> Any:
        """Printed kernels have nothing that peepholes are for: no ``with``, no dict."""
        return func_ir


class KernelTranslationPass:
    """Makes Numba IR of the bytecode of a printed kernel."""

    _name = "arrayfn_translation"
    interpreter: Any

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> Any:
        """Set ``func_ir`` of the compiler's ``state``.

        Raises UntypedKernelError for a wrong number of parameters.
        """
        names = state.func_id.arg_names
        if len(names) != len(state.args):
            raise UntypedKernelError(f"parameters {names} of types {state.args}")
        state.func_ir = self.interpreter(state.func_id).interpret(state.bc)
        return True


class KernelTypePass:
    """Assigns types to the variables of a printed kernel."""

    _name = "arrayfn_types"
    dialect: Dialect

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> Any:
        """Set the compiler ``state``'s ``typemap`` and ``calltypes``."""
        types = state.args, state.return_type
        found = kernel_types(state.func_ir, *types, self.dialect)
        state.typemap, state.calltypes = found.variables, found.signatures
        state.metadata[TYPES] = found
        return True
