"""The vocabulary of GPU kernels, known to numba-cuda: importing this registers it.

The scalar functions are those of ``numba.scalars``; here are the functions of
``lowering.cuda.vocabulary``: threads and blocks, memory, warps, copies, matrices. A
kernel that uses them compiles with ``numba.cuda.jit``, on pointers or on contiguous
arrays of one dimension.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Sequence
from functools import cache
from types import FunctionType
from typing import Any, Final

from arrayfn.backends.cuda.arithmetic import CudaArithmetic
from arrayfn.backends.cuda.device_functions import Call, emit
from arrayfn.backends.cuda.unrolling import mark_next_loop
from arrayfn.backends.numba import scalars
from arrayfn.backends.numba.dialect import Dialect, numba_type
from arrayfn.errors import BackendError
from arrayfn.lowering.cuda.vocabulary import (
    FUNCTIONS,
    DeviceFunction,
    DeviceHelper,
)
from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION


def module(name: str) -> Any:
    """A module of numba-cuda, which has no types and need not be installed to lint."""
    return importlib.import_module(f"numba.cuda.{name}")


if module("core.config").ENABLE_CUDASIM:
    raise BackendError(
        "NUMBA_ENABLE_CUDASIM is set: numba-cuda simulates kernels and compiles none. "
        "Unset it to compile for a GPU"
    )
types, extending = map(module, ("types", "extending"))
signature: Final = module("typing").signature
_models: Final = extending.core_models
_registry: Final = module("core.imputils").builtin_registry
_lower: Final = extending.lower_builtin
_Dispatcher: Final = module("dispatcher").CUDADispatcher
_compile: Final = module("compiler").compile_cuda
_stack: Final = module("core.targetconfig").ConfigStack


class BooleanPointer(types.CPointer):
    """A pointer to truth values, which lie in memory as bytes."""

    def __init__(self) -> None:
        super().__init__(types.boolean)


def value_type(dtype: str) -> Any:
    """The type of a dtype's values in kernels."""
    return numba_type(types, dtype)


def pointer_type(dtype: str) -> Any:
    """The type of a pointer to a dtype's elements."""
    return BooleanPointer() if dtype == "bool" else types.CPointer(value_type(dtype))


_TABLE: Final = """
i64: block_index thread_index
none: barrier warp_barrier fence fence_mbarrier_init cluster_arrive cluster_wait
none: cp_async_commit griddepcontrol_wait griddepcontrol_launch_dependents
none i64: cp_async_wait
i32 i64: match_any_byte match_any_u32
i32 bool: ballot
i64 i64 i64: quotient remainder
i64 i64: opaque
i64 T i64: byte
none i64* i64: mbarrier_init
none i64* i64 i64: mbarrier_expect_tx mbarrier_wait
none u32* i64: grid_barrier
i64 u64* i64: dynamic_block_id
none u64*: begin_work_queue
i64 u64* i64 i64: next_work_item
none u64* i64 i64: end_work_queue
none u64* i64 T: publish
T u64* i64: wait_for
none u64* i64 i64 i64 T*: wait_for_many
T* i64: shared registers mbarriers
T* i64 i64: dynamic_shared
T* T* i64: subarray
T T i64: shuffle_xor shuffle_up shuffle_from
T T: approximate_exp2 approximate_exp approximate_rsqrt approximate_sqrt inverse
T T T: approximate_divide
T T T T: fma_rn divide
bool T T T: divides
none T* i64 T: atomic_add
f32 T* i64 f32: max min
none T* i64 f32* i64: widen
none T* i64: transpose
none f32 f32 T* i64: pack
none f32* i64 T* i64 T* i64: mma
none T* i64 T* i64: load store ldmatrix ldmatrix_trans
none T* i64 T* i64 i64: cp_async
none T* i64 T i64 i64* i64: dsmem_store
none T* i64 T* i64 i64 i64* i64: bulk_copy
"""
"""The types of the result and of the arguments, then the kinds of functions.

T is the dtype in the function's name, and T* a pointer to its elements.
"""
_SIGNATURES: Final[dict[str, str]] = {
    kind: types_of_kinds
    for types_of_kinds, _, kinds in (
        line.partition(": ") for line in _TABLE.strip().splitlines()
    )
    for kind in kinds.split()
}
_HALF_STORE: Final = "none T* i64 f32* i64"  # rounds float32 registers
LAST_IS_CONSTANT: Final = (
    "shared",
    "registers",
    "mbarriers",
    "mbarrier_init",
    "cp_async_wait",
)
"""Kinds of functions whose last argument is a constant."""
UNROLLED: Final = FUNCTIONS["unrolled"]


def signature_words(function: DeviceFunction) -> list[str]:
    """The dtypes of a function's result and of its arguments; ``f32*`` is a pointer."""
    text = _SIGNATURES[function.kind]
    if function.kind == "store" and function.dtype in HALF_PRECISION:
        text = _HALF_STORE
    return text.replace("T", function.dtype).split()


@cache
def _numba_types(function: DeviceFunction) -> list[Any]:
    """The Numba types of a function's result and of its arguments."""
    kinds: list[Any] = []
    for word in signature_words(function):
        if word == "none":
            kinds.append(types.none)
        else:
            is_pointer = word.endswith("*")
            kinds.append(pointer_type(word[:-1]) if is_pointer else value_type(word))
    return kinds


def signature_of(
    function: Any, argument_types: Sequence[Any], constants: Sequence[int | None]
) -> Any:
    """The Numba signature of a call of a device function; None if arguments do not fit.

    ``constants`` are the values of arguments that are constant integers. Other
    functions of a kernel's text accept any arguments, and return nothing.

    ``constants`` are the values of arguments that are constant integers. Other
    functions of a kernel's text take what they are argument_types, and return nothing.
    """
    if function is UNROLLED:
        return signature(types.range_state64_type, types.int64)
    if isinstance(function, FunctionType):
        return signature(types.none, *argument_types)
    if not isinstance(function, DeviceFunction):
        return None
    result, *kinds = _numba_types(function)
    if len(argument_types) != len(kinds):
        return None
    if function.kind in LAST_IS_CONSTANT:
        if constants[-1] is None:
            return None
        kinds[-1] = types.literal(constants[-1])
    for k, (own, kind) in enumerate(zip(argument_types, kinds, strict=True)):
        is_index = kind == types.int64 or isinstance(kind, types.IntegerLiteral)
        if own == kind or (is_index and isinstance(own, types.Integer)):
            continue
        if not isinstance(own, types.Array) or not isinstance(kind, types.CPointer):
            return None
        if own.ndim != 1 or own.layout != "C" or own.dtype != kind.dtype:
            return None
        kinds[k] = own
    return signature(result, *kinds)


def lower_call(
    context: Any, builder: Any, function: DeviceFunction, sig: Any, values: Any
) -> Any:
    """Emit a call of a device function, for Numba's lowering; return its value.

    ``values`` are the arguments' LLVM values, of the types of the signature ``sig``.
    """
    element, count = None, 0
    if function.kind in LAST_IS_CONSTANT:
        count = sig.args[-1].literal_value
    if isinstance(sig.return_type, types.CPointer):
        element = context.get_data_type(sig.return_type.dtype)
    values = [
        context.make_array(kind)(context, builder, value).data
        if isinstance(kind, types.Array)
        else value
        for kind, value in zip(sig.args, values, strict=True)
    ]
    return emit(Call(builder, function, values, element, count))


class DeviceFunctionType(types.Callable, types.Opaque):
    """The Numba type of one function of the CUDA vocabulary."""

    def __init__(self, function: DeviceFunction) -> None:
        self.function = function
        super().__init__(f"DeviceFunction({function.name})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """The signature of a call with arguments of types ``args``; called by Numba.

        Raises TypeError if the function does not take them, or for keywords.
        """
        constants = [getattr(a, "literal_value", None) for a in args]
        plain = [types.unliteral(a) for a in args]
        found = None if kws else signature_of(self.function, plain, constants)
        if found is None:
            raise TypeError(f"{self.function.name} does not take {args}")
        return found

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        """No signatures: none is known before the arguments are. Called by Numba."""
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        """The key under which implementations are registered; called by Numba."""
        return type(self), self.function


def _implementation(function: DeviceFunction) -> Any:
    """Return Numba's lowering function, which emits calls of ``function``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        """Emit the call; a dummy value stands for none."""
        if function is UNROLLED:
            mark_next_loop(builder)
            return context.get_function(range, sig)(builder, args)
        value = lower_call(context, builder, function, sig, args)
        return context.get_dummy_value() if value is None else value

    return lower


def _load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    byte = builder.load(builder.gep(*args[:1], args[1:]))
    return builder.icmp_unsigned("!=", byte, byte.type(0))


def _store(context: Any, builder: Any, sig: Any, args: Any) -> None:
    """Emit ``pointer[index] = value`` for bools, which are bytes in memory."""
    pointer, index, value = args
    address = builder.gep(pointer, [index])
    builder.store(builder.zext(value, address.type.pointee), address)


class Helper(_Dispatcher):
    """Numba's dispatcher of a function that kernels call."""

    def __init__(self, helper: DeviceHelper) -> None:
        super().__init__(helper.function, {"device": True})
        self.arch: Any = None

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Compile the function for arguments of types ``args``, or reuse it.

        It is for the GPU architecture that the calling kernel is compiled for.
        """
        arch = _stack().top().compute_capability
        if arch != self.arch:
            self.overloads.clear()
            self.arch = arch
        if args not in self.overloads:
            made = _compile(self.py_func, return_type, args, forceinline=True, cc=arch)
            self.overloads[args] = made
            made.target_context.insert_user_function(
                made.entry_point, made.fndesc, [made.library]
            )
        return self.overloads[args]


_helper: Final = cache(Helper)  # Numba holds none of them


def _register() -> dict[Any, Any]:
    """Register the vocabulary with numba-cuda; return the scalar functions' types."""
    register_model, typeof_impl = extending.register_model, extending.typeof_impl
    known = scalars.register(
        types,
        signature,
        typeof_impl,
        register_model,
        _models.OpaqueModel,
        _registry,
        CudaArithmetic,
    )
    register_model(BooleanPointer)(_models.PointerModel)
    _lower(operator.getitem, BooleanPointer, types.Integer)(_load)
    _lower(operator.setitem, BooleanPointer, types.Integer, types.Boolean)(_store)
    register_model(DeviceFunctionType)(_models.OpaqueModel)
    typeof_impl.register(DeviceHelper)(lambda value, c: _helper(value)._numba_type_)
    kinds = {f: DeviceFunctionType(f) for f in FUNCTIONS.values()}
    typeof_impl.register(DeviceFunction)(lambda value, c: kinds[value])

    @_registry.lower_constant(DeviceFunctionType)
    def constant(context: Any, builder: Any, ty: Any, value: Any) -> Any:
        return context.get_dummy_value()

    for function in kinds:
        key = (DeviceFunctionType, function)
        _lower(key, types.VarArg(types.Any))(_implementation(function))
    return known


DIALECT: Final = Dialect(module("core.ir"), types, signature, signature_of, _register())
