"""Kernels to LLVM IR through Numba's front end: the only module that imports Numba.

It is imported for the first kernel that ``kernel_compiler`` leaves to it. ``kernel_ir``
takes a kernel's source and gives LLVM IR that exports the uniform entry ``void
entry(int64* arguments, int64 begin, int64 end)``. The front end is driven pass by pass
with the passes that kernels need, in contexts that hold the operators kernels use and
none of Numba's overloads: the stock contexts cost 0.45 s to fill, these 0.04 s.
"""

from __future__ import annotations

import gc
import linecache
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from llvmlite import ir
from numba.core import (
    bytecode,
    codegen,
    compiler,
    cpu,
    errors,
    funcdesc,
    lowering,
    targetconfig,
    types,
)
from numba.core.typed_passes import (
    IRLegalization,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.typing import templates
from numba.core.typing.context import Context
from numba.core.untyped_passes import (
    ExtractByteCode,
    FixupArgs,
    IRProcessing,
    ReconstructSSA,
    TranslateByteCode,
)
from numba.cpython import (  # they register
    builtins,  # noqa: F401  # pyright: ignore[reportUnusedImport]
    numbers,  # noqa: F401  # pyright: ignore[reportUnusedImport]
    rangeobj,  # noqa: F401  # pyright: ignore[reportUnusedImport]
    tupleobj,  # noqa: F401  # pyright: ignore[reportUnusedImport]
)

from arrayfn.backends import (  # it registers the vocabulary
    numba_scalars,  # noqa: F401  # pyright: ignore[reportUnusedImport]
)
from arrayfn.backends.cpu import (  # it registers the memory functions
    numba_memory,  # noqa: F401  # pyright: ignore[reportUnusedImport]
)
from arrayfn.backends.cpu.kernel_module import add_entry
from arrayfn.backends.native import target
from arrayfn.errors import BackendError
from arrayfn.lowering.plan import Parameter

_ELEMENTS: Final[dict[str, Any]] = {
    "bool": types.uint8,
    "i8": types.int8,
    "i16": types.int16,
    "i32": types.int32,
    "i64": types.int64,
    "u8": types.uint8,
    "u16": types.uint16,
    "u32": types.uint32,
    "u64": types.uint64,
    "f16": types.uint16,
    "bf16": types.uint16,
    "f32": types.float32,
    "f64": types.float64,
    "c64": types.complex64,
    "c128": types.complex128,
}
_PASSES: Final = (
    ExtractByteCode,
    TranslateByteCode,
    FixupArgs,
    IRProcessing,
    ReconstructSSA,
    NopythonTypeInference,
    PreLowerStripPhis,
    IRLegalization,
)
_OVERLOADS: Final = (
    templates._OverloadFunctionTemplate,
    templates._OverloadAttributeTemplate,
    templates._IntrinsicTemplate,
)
_ROOT: Final = __name__.split(".")[0]
_LOCK = threading.RLock()


class _Library(codegen.CodeLibrary):
    """Collects the modules that lowering makes; optimises and links nothing."""

    def __init__(self, generator: Any, name: str) -> None:
        super().__init__(generator, name)
        self.modules: list[ir.Module] = []

    def add_linking_library(self, library: Any) -> None:
        raise NotImplementedError("kernels consist of one function")

    def add_ir_module(self, ir_module: ir.Module) -> None:
        self.modules.append(ir_module)

    def finalize(self) -> None:
        self._finalized = True

    def get_function(self, name: str) -> Any:
        raise NotImplementedError

    def get_llvm_str(self) -> Any:
        return "\n".join(str(module) for module in self.modules)

    def get_asm_str(self) -> Any:
        raise NotImplementedError


class _Codegen(codegen.Codegen):
    """Makes empty modules for the host."""

    _library_class = _Library

    def __init__(self) -> None:
        self._machine = target.target_machine()
        self._target_data = self._machine.target_data
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


class _TypingContext(Context):
    """Types the builtin operators, and what arrayfn registers with Numba."""

    def _load_builtins(self) -> None:
        self.install_registry(_without_overloads(templates.builtin_registry))

    def load_additional_registries(self) -> None:
        """None: kernels use no Numba library."""

    def resolve_value_type(self, val: Any) -> Any:
        """The type of a global. What is registered is found before it is looked at.

        Looking at ``range``, Numba would import its typed containers.
        """
        return self._lookup_global(val) or super().resolve_value_type(val)


class _TargetContext(cpu.CPUContext):
    """Lowers to LLVM IR for the host, without reference counts."""

    def init(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.is32bit = False
        self._internal_codegen = _Codegen()

    def load_additional_registries(self) -> None:
        """None: kernels use no Numba library."""

    def post_lowering(self, mod: ir.Module, library: Any) -> None:
        """Nothing: there are no reference counts to link."""


def _is_ours(template: Any) -> bool:
    function = getattr(template, "_overload_func", None)
    function = function or getattr(template, "_definition_func", None)
    return str(getattr(function, "__module__", "")).startswith(_ROOT + ".")


def _kept(template: Any) -> bool:
    return not issubclass(template, _OVERLOADS) or _is_ours(template)


def _without_overloads(registry: Any) -> Any:
    """A copy of a typing registry without the overloads that are not arrayfn's."""
    copy = templates.Registry()
    copy.functions = [t for t in registry.functions if _kept(t)]
    copy.attributes = [t for t in registry.attributes if _kept(t)]
    for value, numba_type in registry.globals:
        members = getattr(numba_type, "templates", ())
        if all(_kept(member) for member in members):
            copy.globals.append((value, numba_type))
    return copy


class _FrontEnd:
    """The contexts and flags that kernels are compiled in; one per process."""

    def __init__(self) -> None:
        self.typing = _TypingContext()
        self.target = _TargetContext(self.typing)
        self.target.refresh()
        flags: Any = compiler.Flags()
        flags.no_cpython_wrapper = True
        flags.no_cfunc_wrapper = True
        flags.no_compile = True
        flags.no_rewrites = True
        flags.nrt = False
        flags.enable_pyobject = False
        flags.enable_ssa = True
        flags.error_model = "numpy"
        flags.noalias = True
        self.flags = flags

    def lower(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> Any:
        """The LLVM module of ``function`` and the descriptor of what it defines."""
        state = self.state(arguments)
        with targetconfig.ConfigStack().enter(self.flags.copy()):
            state.func_id = bytecode.FunctionIdentity.from_function(function)
            for compiler_pass in _PASSES:
                compiler_pass().run_pass(state)
            library = _Library(state.targetctx.codegen(), function.__name__)
            description = funcdesc.PythonFunctionDescriptor.from_specialized_function(
                state.func_ir,
                state.typemap,
                state.return_type,
                state.calltypes,
                mangler=state.targetctx.mangler,
                inline=False,
                noalias=True,
                abi_tags=[],
            )
            with state.targetctx.push_code_library(library):
                lowering.Lower(
                    state.targetctx,
                    library,
                    description,
                    state.func_ir,
                    metadata=state.metadata,
                ).lower()
        (module,) = library.modules
        return module, description

    def state(self, arguments: tuple[Any, ...]) -> Any:
        """What Numba's passes work on."""
        state = compiler.StateDict()
        state.update(
            typingctx=self.typing,
            targetctx=compiler._make_subtarget(self.target, self.flags),
            library=None,
            args=arguments,
            return_type=types.void,
            flags=self.flags,
            locals={},
            metadata={},
            reload_init=[],
            pipeline=None,
            status=compiler._CompileStatus(can_fallback=False),
            bc=None,
            func_id=None,
            func_ir=None,
            lifted=(),
            lifted_from=None,
            typemap=None,
            calltypes=None,
            type_annotation=None,
        )
        return state


@contextmanager
def _no_garbage_collection() -> Generator[None, None, None]:
    """Numba makes thousands of objects a kernel, and none of them is garbage yet."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def _the_front_end() -> _FrontEnd:
    return _FrontEnd()


def load_function(source: str, name: str) -> Callable[..., None]:
    """Execute a kernel's source; tracebacks and debuggers see its lines."""
    filename = f"<arrayfn kernel {name}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    namespace: dict[str, Any] = {"__name__": f"arrayfn_kernel_{name}"}
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


def numba_types(parameters: Iterable[Parameter]) -> tuple[Any, ...]:
    """The Numba types of a kernel's parameters, ``begin`` and ``end`` included."""
    kinds: list[Any] = []
    for parameter in parameters:
        if parameter.kind.endswith("*"):
            kinds.append(types.CPointer(_ELEMENTS[parameter.kind[:-1]]))
        else:
            kinds.append(_ELEMENTS[parameter.kind])
    return (*kinds, types.int64, types.int64)


def kernel_ir(
    source: str, name: str, parameters: tuple[Parameter, ...], symbol: str
) -> str:
    """The LLVM IR of a kernel; it exports the uniform entry under ``symbol``.

    Raises BackendError, with the kernel's name and line, for what Numba cannot compile.
    """
    function = load_function(source, name)
    with _LOCK, _no_garbage_collection():
        try:
            module, description = _the_front_end().lower(
                function, numba_types(parameters)
            )
        except (errors.NumbaError, NotImplementedError) as error:
            raise BackendError(
                f"Numba cannot compile kernel {name}: {error}"
            ) from error
        function = module.get_global(description.mangled_name)
        for variable in module.global_values:
            if isinstance(variable, ir.GlobalVariable) and variable.linkage == "common":
                variable.linkage = "internal"
        status = [argument.type.pointee for argument in function.args[:2]]
        add_entry(module, function, symbol, leading=status)
        return str(module)
