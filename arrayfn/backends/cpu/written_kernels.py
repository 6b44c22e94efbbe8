"""Hand-written kernels to LLVM IR: they may use all that Numba compiles.

Numba types them in its own contexts, and links the helper functions they call. The
module is taken before Numba optimises it, as arrayfn does that in threads of its own.
"""

from __future__ import annotations

import ast
import re
from types import FunctionType
from typing import Any, Final

from llvmlite import binding, ir
from numba import njit
from numba.core import codegen, compiler, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numba.core.registry import cpu_target
from typing_extensions import override

from arrayfn.backends.cpu.kernel_entry import add_entry
from arrayfn.backends.cpu.vocabulary import DIALECT
from arrayfn.backends.numba.functions import executed_function
from arrayfn.errors import BackendError
from arrayfn.lowering.plan import Parameter

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, in Numba's messages
_REFUSALS: Final = NumbaError, UnsupportedBytecodeError, NotImplementedError
_RUNTIME: Final = ("numba_", "NRT_", "Py")
"""How symbols begin that Numba's own runtime or Python's defines."""


class WrittenLibrary(codegen.JITCodeLibrary):
    """A Numba code library that links a kernel's callees, without machine code.

    Numba's optimisation is switched off: ``native.target`` optimises the module.
    ``checks_signals`` makes calls of ``interrupted`` check for signals.
    """

    checks_signals = True

    @override
    def _optimize_functions(self, ll_module: Any) -> None:
        """Do nothing."""

    @override
    def _optimize_final_module(self) -> None:
        """Do nothing."""

    @override
    def _finalize_final_module(self) -> None:
        """Mark the library as finished, without generating machine code."""
        self._finalized = True


def written_kernel_ir(
    source: str, name: str, parameters: tuple[Parameter, ...], symbol: str
) -> str:
    """Compile a hand-written kernel to LLVM IR, with Numba's type inference.

    Executes ``source``, a Python module that defines the kernel as function ``name``.
    Its other functions are helpers, which Numba compiles too. The IR exports the
    uniform entry ``void entry(int64* arguments, int64 begin, int64 end)`` as
    ``symbol``. Raises BackendError, with the kernel's name, for ``raise`` and
    ``assert``, for what Numba cannot compile, and for code that needs Numba's runtime.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Raise, ast.Assert)):
            raise BackendError(
                f"kernel {name} has {ast.unparse(node)!r} in line {node.lineno}: "
                "compiled kernels cannot raise exceptions"
            )
    function = executed_function(source, name)
    names = function.__globals__
    for key, value in list(names.items()):
        is_helper = isinstance(value, FunctionType) and value.__globals__ is names
        if is_helper and value is not function:
            names[key] = njit(error_model="numpy")(value)
    kinds = [DIALECT.parameter_type(p.kind) for p in parameters]
    arguments = (*kinds, types.int64, types.int64)  # the last two: begin and end
    try:
        with global_compiler_lock:
            module, mangled = _compiled(function, arguments)
    except _REFUSALS as error:
        message = _COLOURS.sub("", str(error))
        raise BackendError(f"Numba cannot compile kernel {name}: {message}") from error
    declared = [f.name for f in module.functions if f.is_declaration]
    foreign = [symbol for symbol in declared if symbol.startswith(_RUNTIME)]
    if foreign:
        raise BackendError(
            f"kernel {name} needs {', '.join(foreign)} of Numba's runtime, which is "
            "not there when kernels run: kernels allocate no arrays and use no Python "
            "objects"
        )
    return _with_entry(module, mangled, symbol)


def _compiled(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """Compile a kernel with Numba; return its parsed LLVM module and its name there.

    ``arguments`` are the Numba types of its parameters.
    """
    target: Any = cpu_target.target_context
    library: Any = WrittenLibrary(target.codegen(), function.__name__)
    flags: Any = compiler.Flags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.no_compile = True
    flags.error_model = "numpy"
    flags.noalias = True
    result = compiler.compile_extra(
        *(cpu_target.typing_context, target, function, arguments, types.void),
        flags=flags,
        locals={},
        library=library,
    )
    library.finalize()
    return binding.parse_assembly(library.get_llvm_str()), result.fndesc.mangled_name


def _with_entry(module: Any, function: str, symbol: str) -> str:
    """Add the uniform entry to ``module``; return the module's text.

    Only the entry is exported. ``function`` is the kernel's name in the module,
    ``symbol`` the entry's.
    """
    kernel = module.get_function(function)
    entry = ir.Module("entry")
    kinds = [_pointer_or_i64(argument.type) for argument in kernel.arguments]
    # Numba's calling convention: the result is a status, and the first two parameters
    # point to memory for the return value and for an exception.
    declared = ir.Function(entry, ir.FunctionType(ir.IntType(32), kinds), function)
    add_entry(entry, declared, symbol, constants={}, leading=2)
    module.link_in(binding.parse_assembly(str(entry)))
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != symbol:
            value.linkage = "internal"
    kernel = module.get_function(function)
    kernel.add_function_attribute("noinline")
    return str(module)


def _pointer_or_i64(kind: Any) -> ir.Type:
    """Return llvmlite.ir's type of a kernel's parameter of the parsed type ``kind``."""
    return ir.PointerType() if kind.is_pointer else ir.IntType(64)
