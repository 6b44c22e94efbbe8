"""Registers the vocabulary of GPU kernels with numba-cuda, when it is imported.

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
    """Import the module ``numba.cuda.<name>`` of numba-cuda.

    An ordinary import statement would make type checkers look for numba-cuda, which has
    no type annotations and need not be installed.
    """
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
    """The Numba type of a pointer to bools, which are bytes in memory."""

    def __init__(self) -> None:
        super().__init__(types.boolean)


def value_type(dtype: str) -> Any:
    """Return the Numba type of values of ``dtype`` in kernels."""
    return numba_type(types, dtype)


def pointer_type(dtype: str) -> Any:
    """Return the Numba type of a pointer to elements of ``dtype``."""
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
"""Each line: the types of result and arguments, a colon, the functions' kinds.

T is the dtype in the function's name, and T* a pointer to elements of T. "none" is the
result of functions that return nothing.
"""
_SIGNATURES: Final[dict[str, str]] = {
    kind: types_of_kinds
    for types_of_kinds, _, kinds in (
        line.partition(": ") for line in _TABLE.strip().splitlines()
    )
    for kind in kinds.split()
}
# The types of a store to fp16 or bf16, which rounds float32 registers.
_HALF_STORE: Final = "none T* i64 f32* i64"
LAST_IS_CONSTANT: Final = (
    "shared",
    "registers",
    "mbarriers",
    "mbarrier_init",
    "cp_async_wait",
)
"""Kinds of functions whose last argument must be a constant integer."""
UNROLLED: Final = FUNCTIONS["unrolled"]


def signature_words(function: DeviceFunction) -> list[str]:
    """Return the dtypes of a function's result and of its arguments, in this order.

    ``f32*`` is a pointer. For ``load_f32x4`` they are none, f32*, i64, f32* and i64.
    """
    text = _SIGNATURES[function.kind]
    if function.kind == "store" and function.dtype in HALF_PRECISION:
        text = _HALF_STORE
    return text.replace("T", function.dtype).split()


@cache
def _numba_types(function: DeviceFunction) -> list[Any]:
    """Return the Numba types of a function's result and of its arguments."""
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
    """Return the Numba signature of a call in a kernel; None if arguments do not fit.

    ``function`` is a device function, or another function of the kernel's text, which
    accepts any arguments and returns nothing. ``constants`` has the value of each
    argument that is a constant integer, else None. A pointer parameter also accepts a
    contiguous array of one dimension, and an i64 parameter any integer.
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
    for k, (argument, kind) in enumerate(zip(argument_types, kinds, strict=True)):
        is_index = kind == types.int64 or isinstance(kind, types.IntegerLiteral)
        if argument == kind or (is_index and isinstance(argument, types.Integer)):
            continue
        if not isinstance(argument, types.Array) or not isinstance(
            kind, types.CPointer
        ):
            return None
        if argument.ndim != 1 or argument.layout != "C" or argument.dtype != kind.dtype:
            return None
        kinds[k] = argument
    return signature(result, *kinds)


def lower_call(
    context: Any, builder: Any, function: DeviceFunction, sig: Any, values: Any
) -> Any:
    """Emit a call of a device function, for Numba's lowering; return its LLVM value.

    ``values`` are the arguments' LLVM values, of the types of the signature ``sig``.
    Arrays are replaced by pointers to their data.
    """
    # What the emitter of some functions needs besides the values: the element type of
    # the resulting pointer, and the last argument, a constant.
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
        """Return the signature of a call with arguments of types ``args``.

        Numba calls this. Raises TypeError if the arguments do not fit, or for keyword
        arguments ``kws``.
        """
        constants = [getattr(a, "literal_value", None) for a in args]
        plain = [types.unliteral(a) for a in args]
        call = None if kws else signature_of(self.function, plain, constants)
        if call is None:
            raise TypeError(f"{self.function.name} does not take {args}")
        return call

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        """Return no signatures, since they depend on the arguments. Numba calls this.

        True says that the type is parametric.
        """
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        """Return the key of the implementation of calls. Numba calls this."""
        return type(self), self.function


def _implementation(function: DeviceFunction) -> Any:
    """Return Numba's lowering function, which emits calls of ``function``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        """Emit the call; its value is a dummy if the function returns nothing."""
        if function is UNROLLED:
            mark_next_loop(builder)
            return context.get_function(range, sig)(builder, args)
        value = lower_call(context, builder, function, sig, args)
        return context.get_dummy_value() if value is None else value

    return lower


def _load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Emit ``pointer[index]`` for bools, which are bytes in memory."""
    pointer, index = args
    byte = builder.load(builder.gep(pointer, [index]))
    return builder.icmp_unsigned("!=", byte, byte.type(0))


def _store(context: Any, builder: Any, sig: Any, args: Any) -> None:
    """Emit ``pointer[index] = value`` for bools, which are bytes in memory."""
    pointer, index, value = args
    address = builder.gep(pointer, [index])
    builder.store(builder.zext(value, address.type.pointee), address)


class Helper(_Dispatcher):
    """A Numba dispatcher that compiles a function that handwritten kernels call.

    It has compiled code for one GPU architecture at a time.
    """

    def __init__(self, helper: DeviceHelper) -> None:
        super().__init__(helper.function, {"device": True})
        self.arch: Any = None

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Compile the function for arguments of types ``args``, or return a known one.

        The architecture is that of the calling kernel. Numba calls this.
        """
        arch = _stack().top().compute_capability
        if arch != self.arch:
            self.overloads.clear()
            self.arch = arch
        if args not in self.overloads:
            compiled = _compile(
                self.py_func, return_type, args, forceinline=True, cc=arch
            )
            self.overloads[args] = compiled
            compiled.target_context.insert_user_function(
                compiled.entry_point, compiled.fndesc, [compiled.library]
            )
        return self.overloads[args]


_helper: Final = cache(Helper)  # Numba does not keep dispatchers alive


def _register() -> dict[Any, Any]:
    """Register the vocabulary with numba-cuda; return the scalar functions' types.

    Registers bool pointers, device functions, helper functions and scalar functions.
    """
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
        """Emit a dummy value for a device function as a constant."""
        return context.get_dummy_value()

    for function in kinds:
        key = (DeviceFunctionType, function)
        _lower(key, types.VarArg(types.Any))(_implementation(function))
    return known


DIALECT: Final = Dialect(module("core.ir"), types, signature, signature_of, _register())
