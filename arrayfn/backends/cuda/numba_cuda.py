"""Kernels to PTX, through numba-cuda. Everything specific to that project is here.

It is imported for the first kernel that ``kernel_compiler`` leaves to it.

Importing this module teaches numba-cuda the scalar and the CUDA vocabulary. Pointers
are ``CPointer`` arguments marked ``noalias``; products and sums are not contracted, so
that a kernel gives the bits it gives on a CPU, but for the order of its reductions.
"""

from __future__ import annotations

import importlib
import linecache
from collections.abc import Sequence
from types import FunctionType
from typing import Any, Final

from arrayfn.backends.cuda.arithmetic import CudaArithmetic
from arrayfn.backends.cuda.device_functions import emit
from arrayfn.backends.cuda.kernel_compiler import with_directives
from arrayfn.backends.cuda.unrolling import marked, unroll_marked
from arrayfn.backends.numba import dialect, scalars
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS, DeviceFunction
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.scalars.arithmetic import HALVES


def _module(name: str) -> Any:
    """A module of numba-cuda, which has no types and need not be installed to lint."""
    return importlib.import_module(f"numba.cuda.{name}")


types, compiler = map(_module, ("types", "compiler"))
models, nvvm = map(_module, ("models", "cudadrv.nvvm"))
opaque_model = _module("datamodel").models.OpaqueModel
registry = _module("cudaimpl").registry
signature = _module("typing").signature
typeof_impl = _module("typing.typeof").typeof_impl
Dispatcher: Any = _module("dispatcher").CUDADispatcher

_NVVM_OPTIONS: Final[dict[str, Any]] = {
    "opt": 3,
    "fma": False,  # no contraction: a product keeps its own rounding
    "ftz": False,
    "prec_div": True,
    "prec_sqrt": True,
}


def numba_type(dtype: str) -> Any:
    """The type of a dtype's values in kernels."""
    return dialect.numba_type(types, dtype)


def element_type(dtype: str) -> Any:
    """The type of a dtype's elements in memory."""
    return types.uint8 if dtype == "bool" else numba_type(dtype)


def pointer_type(dtype: str) -> Any:
    """The type of a pointer to a dtype's elements."""
    return types.CPointer(element_type(dtype))


def _types_of(function: DeviceFunction) -> tuple[Any, ...]:
    """The types of a function's result and arguments."""
    none, i64, f32 = types.none, types.int64, types.float32
    signals = types.CPointer(i64)
    plain: dict[str, tuple[Any, ...]] = {
        "block_index": (i64,),
        "thread_index": (i64,),
        "barrier": (none,),
        "warp_barrier": (none,),
        "cluster_arrive": (none,),
        "cluster_wait": (none,),
        "fence": (none,),
        "close_copies": (none,),
        "match_byte": (types.int32, i64),
        "match_word": (types.int32, i64),
        "ballot": (types.int32, types.boolean),
        "quotient": (i64, i64, i64),
        "remainder": (i64, i64, i64),
        "signal_init": (none, signals, i64),
        "show_signals": (none,),
        "expect": (none, signals, i64, i64),
        "await_signal": (none, signals, i64, i64),
        "approximate_exp2": (f32, f32),
        "approximate_exp": (f32, f32),
        "approximate_rsqrt": (f32, f32),
        "approximate_sqrt": (f32, f32),
        "approximate_divide": (f32, f32, f32),
        "anew": (i64, i64),
        "grid_barrier": (none, pointer_type("u32"), i64),
        "ticket": (i64, pointer_type("u64"), i64),
        "open_board": (none, pointer_type("u64")),
        "take": (i64, pointer_type("u64"), i64, i64),
        "close_board": (none, pointer_type("u64"), i64, i64),
        "await_kernels": (none,),
        "release_kernels": (none,),
    }
    if function.kind in plain:
        return plain[function.kind]
    if function.kind == "store" and function.dtype in HALVES:
        return none, pointer_type("u16"), i64, types.CPointer(f32), i64
    value, pointer = numba_type(function.dtype), pointer_type(function.dtype)
    typed: dict[str, tuple[Any, ...]] = {
        "shuffle_xor": (value, value, i64),
        "shuffle_up": (value, value, i64),
        "byte": (i64, value, i64),
        "shuffle_from": (value, value, i64),
        "inverse": (value, value),
        "fused": (value, value, value, value),
        "divide": (value, value, value, value),
        "divides": (types.boolean, value, value, value),
        "atomic_add": (none, pointer, i64, value),
        "post": (none, pointer_type("u64"), i64, value),
        "posted": (value, pointer_type("u64"), i64),
        "postings": (none, pointer_type("u64"), i64, i64, i64, types.CPointer(value)),
        "greatest": (f32, pointer_type("u16"), i64, f32),
        "least": (f32, pointer_type("u16"), i64, f32),
        "widen": (none, pointer_type("u16"), i64, types.CPointer(f32), i64),
        "send": (none, types.CPointer(value), i64, value, i64, signals, i64),
        "turn": (none, pointer, i64),
        "pack": (none, f32, f32, pointer, i64),
        "multiply": (none, types.CPointer(f32), i64, pointer, i64, pointer, i64),
        "copy": (none, pointer, i64, pointer, i64, i64),
        "arena": (pointer, i64, i64),
        "window": (pointer, pointer, i64),
        "fetch": (none, pointer, i64, pointer, i64, i64, signals, i64),
    }
    return typed.get(function.kind, (none, pointer, i64, pointer, i64))


class DeviceFunctionType(types.Callable, types.Opaque):
    """The type of one function of the CUDA vocabulary."""

    def __init__(self, function: DeviceFunction) -> None:
        self.function = function
        super().__init__(f"DeviceFunction({function.name})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        kind = self.function.kind
        if kind in ("shared", "registers", "signals"):
            (count,) = args
            if not isinstance(count, types.IntegerLiteral):
                raise TypeError(f"{self.function.name} takes a constant, not {count}")
            return signature(types.CPointer(numba_type(self.function.dtype)), count)
        if kind in ("await_copies", "unrolled"):
            return signature(types.none, *args)
        return signature(*_types_of(self.function))

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        return type(self), self.function


def _register() -> None:
    scalars.register(
        types,
        signature,
        typeof_impl,
        models.register_model,
        opaque_model,
        registry,
        CudaArithmetic,
    )
    models.register_model(DeviceFunctionType)(opaque_model)
    known = {f: DeviceFunctionType(f) for f in FUNCTIONS.values()}
    typeof_impl.register(DeviceFunction)(lambda value, c: known[value])

    @registry.lower_constant(DeviceFunctionType)
    def constant(context: Any, builder: Any, ty: Any, value: Any) -> Any:
        return context.get_dummy_value()

    def lowering(function: DeviceFunction) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            element, count = None, 0
            if function.kind == "await_copies":
                count = sig.args[0].literal_value
            if isinstance(sig.return_type, types.CPointer):
                element = context.get_data_type(sig.return_type.dtype)
                count = getattr(sig.args[0], "literal_value", 0)
            value = emit(builder, function, args, element, count)
            return context.get_dummy_value() if value is None else value

        return lower

    for function in known:
        key = (DeviceFunctionType, function)
        registry.lower(key, types.VarArg(types.Any))(lowering(function))


_register()


def argument_type(parameter: Parameter) -> Any:
    """The type of a kernel's parameter."""
    if parameter.kind == "i64":
        return types.int64
    dtype = parameter.kind.removesuffix("*")
    return pointer_type("u16" if dtype in HALVES else dtype)


class Part(Dispatcher):
    """A function that a kernel for ``arch`` calls, and that becomes a part of it."""

    def __init__(self, function: FunctionType, arch: tuple[int, int]) -> None:
        super().__init__(function, {"device": True})
        self.arch = arch

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """The function compiled for these types, wherever the kernel will run."""
        if args not in self.overloads:
            made = compiler.compile_cuda(
                self.py_func,
                return_type,
                args,
                forceinline=True,
                nvvm_options=dict(_NVVM_OPTIONS),
                cc=self.arch,
            )
            self.overloads[args] = made
            made.target_context.insert_user_function(
                made.entry_point, made.fndesc, [made.library]
            )
        return self.overloads[args]


def compile_ptx(kernel: Kernel, arch: tuple[int, int]) -> str:
    """The PTX of ``kernel`` for compute capability ``arch``.

    Its entry, ``kernel.name``, takes the parameters: pointers, and 64-bit integers.
    """
    filename = f"<arrayfn {kernel.name}>"
    linecache.cache[filename] = (
        len(kernel.source),
        None,
        kernel.source.splitlines(keepends=True),
        filename,
    )
    namespace: dict[str, Any] = {}
    exec(compile(marked(kernel.source), filename, "exec"), namespace)
    for name, value in namespace.items():
        if isinstance(value, FunctionType) and name != kernel.name:
            # The kernel is of parts, which it calls.
            namespace[name] = Part(value, arch)
    result = compiler.compile_cuda(
        namespace[kernel.name],
        types.void,
        tuple(argument_type(p) for p in kernel.parameters),
        nvvm_options=dict(_NVVM_OPTIONS),
        cc=arch,
    )
    library = result.library
    entry = library.get_function(result.fndesc.llvm_func_name)
    compiler.kernel_fixup(entry, debug=False)
    nvvm.set_launch_bounds(entry, kernel.threads)
    unroll_marked(entry)
    if not kernel.cooperative:
        _mark_pointers(entry, kernel.parameters)
    ptx = library.get_asm_str(cc=arch)
    lines = [line for line in ptx.splitlines() if "NumbaEnv" not in line]
    text = "\n".join(lines).replace(entry.name, kernel.name) + "\n"
    return with_directives(text, kernel)


def _mark_pointers(entry: Any, parameters: Sequence[Parameter]) -> None:
    """Say that the kernel's arrays do not overlap: the plan keeps buffers apart."""
    for argument, parameter in zip(entry.args, parameters, strict=True):
        if parameter.kind != "i64":
            argument.add_attribute("noalias")
