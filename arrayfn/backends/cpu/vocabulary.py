"""Registers the vocabulary of kernels with Numba for CPUs, when imported.

The scalar functions are those of ``scalars``; here are the functions about memory
(prefetches, and stores past the caches), ``interrupted``, which checks for signals, and
the calls of libraries' functions (``libraries.foreign``). The first three are functions
of their own in a kernel's LLVM module, for one element type; LLVM inlines what is
short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Final

from llvmlite import ir
from numba.core import ir as numba_ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.imputils import builtin_registry
from numba.core.typing.templates import signature
from numba.extending import (
    lower_builtin,
    register_model,
    type_callable,
    typeof_impl,
)

from arrayfn.backends.cpu.libraries.foreign import (
    address_of,
    c_function,
    fortran,
    multiply_panels,
    stack_integers,
    transpose_block,
)
from arrayfn.backends.cpu.micro_kernels import declared, micro_kernel
from arrayfn.backends.cpu.signals import check_signals
from arrayfn.backends.numba import scalars
from arrayfn.backends.numba.dialect import Dialect
from arrayfn.lowering.scalars.control import ITERATIONS_BETWEEN_CHECKS, interrupted
from arrayfn.lowering.scalars.memory import (
    LINE_BYTES,
    MEMORY,
    prefetch_row,
    store_row,
)

VECTOR_BYTES: Final = 32  # of nontemporal stores
READ, STREAMED, DATA = 0, 0, 1  # the arguments of llvm.prefetch
_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_POINTER: Final = ir.PointerType()
_VOID: Final = ir.VoidType()


FOREIGN: Final = fortran, c_function, stack_integers, address_of
MICRO_KERNELS: Final = multiply_panels, transpose_block
KNOWN: Final = *MEMORY.values(), interrupted, *FOREIGN, *MICRO_KERNELS
"""The functions about memory, signals and libraries."""
_RESULTS: Final = {
    "None": types.none,
    "int": types.int64,
    "float": types.float64,
    "bool": types.boolean,
}
"""The types of what functions return, by their annotations."""


def signature_of(
    function: Any, arguments: Sequence[Any], constants: Sequence[int | None] = ()
) -> Any:
    """Return the Numba signature of a call of ``function``; None if it is not known.

    ``function`` is one of ``KNOWN``, or a Python function of a library kernel's module,
    whose annotation gives the type of its result. ``arguments`` are the Numba types of
    the call's arguments. ``constants`` are not used: the parameter is for functions of
    GPUs.
    """
    if function is interrupted:
        return signature(types.boolean, types.int64)
    if function in (fortran, c_function, address_of):
        return signature(types.int64, *arguments)
    if function in MICRO_KERNELS:
        return signature(types.none, *arguments)
    if function is stack_integers:
        return signature(types.CPointer(types.int64), types.int64)
    if isinstance(function, FunctionType) and function not in KNOWN:
        result = _RESULTS.get(str(function.__annotations__.get("return")))
        return None if result is None else signature(result, *arguments)
    # The two functions of rows: pointers of one type, and integers.
    count = {prefetch_row: 3, store_row: 5}.get(function)
    memory = {a for a in arguments if isinstance(a, (types.CPointer, types.Array))}
    if len(arguments) != count or len(memory) != 1:
        return None
    kinds = [a if a in memory else types.int64 for a in arguments]
    return signature(types.none, *kinds)


def _register() -> dict[Any, Any]:
    """Register the vocabulary with Numba; return the Numba types of scalar functions.

    Each function gets its types for numba.njit, and a lowering that emits LLVM IR.
    """
    known = scalars.register(
        types,
        signature,
        typeof_impl,
        register_model,
        models.OpaqueModel,
        builtin_registry,
    )
    for function in (*MEMORY.values(), interrupted):
        type_callable(function)(lambda context, f=function: _typer(f))
    for function in KNOWN:
        lower_builtin(function, types.VarArg(types.Any))(_lowering(function))
    return known


def _typer(function: Any) -> Callable[..., Any]:
    """Return the function that gives Numba the signature of calls of ``function``.

    Numba binds a call's arguments to the parameters of the returned function, so there
    is one for each ``function``.
    """

    def type_prefetch(pointer: Any, begin: Any, count: Any) -> Any:
        """Return the signature of a call of ``prefetch_row``."""
        return signature_of(function, (pointer, begin, count))

    def type_store(target: Any, begin: Any, source: Any, count: Any, far: Any) -> Any:
        """Return the signature of a call of ``store_row``."""
        return signature_of(function, (target, begin, source, count, far))

    def type_interrupted(number: Any) -> Any:
        """Return the signature of a call of ``interrupted``."""
        return signature_of(function, (number,))

    typers = {
        prefetch_row: type_prefetch,
        store_row: type_store,
        interrupted: type_interrupted,
    }
    return typers[function]


def _lowering(function: Any) -> Callable[..., Any]:
    """Return the function by which Numba emits LLVM IR for calls of ``function``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        """Emit the call ``function(*args)`` and return the LLVM value of its result.

        ``args`` are LLVM values, ``sig`` has their Numba types.
        """
        if function is interrupted:
            if not getattr(context.active_code_library, "checks_signals", False):
                return _I1(0)  # in code of numba.njit, which never ends early
            return builder.call(interrupted_function(builder.module), args)
        if function is stack_integers:
            with builder.goto_entry_block():
                return builder.alloca(_I64, args[0].constant)
        if function is address_of:
            return builder.ptrtoint(args[0], _I64)
        if function in (fortran, c_function):
            return _foreign_call(builder, args, is_fortran=function is fortran)
        if function in MICRO_KERNELS:
            element = context.get_data_type(sig.args[0].dtype)
            name = function.__name__
            builder.call(micro_kernel(builder.module, name, element), args)
            return context.get_dummy_value()
        values = list(args)
        for k, kind in enumerate(sig.args):
            if isinstance(kind, types.Array):  # in code of numba.njit: pass its data
                values[k] = context.make_array(kind)(context, builder, args[k]).data
        size = context.get_abi_sizeof(context.get_data_type(sig.args[0].dtype))
        builder.call(memory_function(builder.module, function.__name__, size), values)
        return context.get_dummy_value()

    return lower


def _foreign_call(builder: Any, args: Sequence[Any], *, is_fortran: bool) -> Any:
    """Emit a call of the C function whose address is the first of ``args``.

    The remaining ``args`` are passed; the result is an int64. If ``is_fortran``, the
    function is one of LAPACK: integers are passed by address, and the address of a
    variable ``info`` is added as last argument. The result is then the value of
    ``info`` after the call.
    """
    address, *values = args
    info = None
    if is_fortran:
        values = [
            v if isinstance(v.type, ir.PointerType) else _stored(builder, v)
            for v in values
        ]
        info = _stored(builder, _I64(0))
        values.append(info)
    kind = ir.FunctionType(_I64, [value.type for value in values])
    function = builder.inttoptr(address, kind.as_pointer())
    result = builder.call(function, values)
    return result if info is None else builder.load(info, typ=_I64)


def _stored(builder: Any, value: Any) -> Any:
    """Emit a store of ``value`` to a stack variable; return the variable's address."""
    with builder.goto_entry_block():
        slot = builder.alloca(value.type)
    builder.store(value, slot)
    return slot


def memory_function(module: ir.Module, name: str, size: int) -> Any:
    """Return ``prefetch_row`` or ``store_row`` for elements of ``size`` bytes.

    ``name`` says which. The first call defines it as a function of ``module``.
    """
    element = ir.IntType(8 * size)
    symbol = f"{name}_{size}"
    known = module.globals.get(symbol)
    if known is not None:
        return known
    pointers = [_POINTER, _I64, _I64]
    if name == "store_row":
        pointers = [_POINTER, _I64, _POINTER, _I64, _I64]
    function = ir.Function(module, ir.FunctionType(_VOID, pointers), symbol)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    _BODIES[name](builder, function, element, size)
    builder.ret_void()
    return function


def _prefetch_row(b: ir.IRBuilder, function: Any, element: ir.Type, size: int) -> None:
    """Emit the body of ``prefetch_row(pointer, begin, count)``.

    It prefetches each cache line of the ``count`` elements, of ``size`` bytes each,
    from ``pointer + begin`` on.
    """
    pointer, begin, count = function.args
    kind = ir.FunctionType(_VOID, [_POINTER, _I32, _I32, _I32])
    prefetch = declared(function.module, "llvm.prefetch.p0", kind)
    start = b.gep(pointer, [begin], source_etype=element)

    def prefetch_line(offset: ir.Value) -> None:
        """Emit the prefetch of the line with element ``offset`` of the row."""
        address = b.gep(start, [offset], source_etype=element)
        b.call(prefetch, [address, _I32(READ), _I32(STREAMED), _I32(DATA)])

    _loop(b, _I64(0), count, max(1, LINE_BYTES // size), prefetch_line)


def _store_row(b: ir.IRBuilder, function: Any, element: ir.Type, size: int) -> None:
    """Emit the body of ``store_row(target, begin, source, count, far)``.

    It copies ``count`` elements, of ``size`` bytes each, from ``source`` to ``target +
    begin``. If ``far`` is not 0, whole vectors are written past the caches.
    """
    target, begin, source, count, far = function.args
    start = b.gep(target, [begin], source_etype=element)

    def store_one(index: ir.Value) -> None:
        """Emit the copy of element ``index`` of the row."""
        value = b.load(b.gep(source, [index], source_etype=element), typ=element)
        b.store(value, b.gep(start, [index], source_etype=element))

    lanes = VECTOR_BYTES // size
    vector = ir.VectorType(element, lanes)
    marked = b.module.add_metadata([ir.Constant(_I32, 1)])

    def store_vector_past_cache(index: ir.Value) -> None:
        """Emit the copy of ``lanes`` elements from ``index`` on by a nontemporal store.

        The store is aligned: ``start + index`` is a multiple of ``VECTOR_BYTES``.
        """
        position = b.gep(source, [index], source_etype=element)
        value = b.load(position, align=size, typ=vector)
        address = b.gep(start, [index], source_etype=element)
        b.store(value, address, align=VECTOR_BYTES).set_metadata("nontemporal", marked)

    # Near rows: a loop of single elements, which LLVM vectorises. Far rows: elements
    # before the first aligned vector, then whole vectors, then the remaining elements.
    near, past, end = (b.append_basic_block(n) for n in ("near", "past", "end"))
    b.cbranch(b.icmp_signed("!=", far, _I64(0)), past, near)
    b.position_at_end(near)
    _loop(b, _I64(0), count, 1, store_one)
    b.branch(end)
    b.position_at_end(past)
    # Bytes to the next aligned address: -address modulo VECTOR_BYTES, a power of 2.
    missing = b.and_(b.neg(b.ptrtoint(start, _I64)), _I64(VECTOR_BYTES - 1))
    head = b.udiv(missing, _I64(size))
    head = b.select(b.icmp_signed("<", head, count), head, count)  # min(head, count)
    # The end of the last whole vector: ``& -lanes`` rounds down to whole vectors.
    middle: Any = b.add(head, b.and_(b.sub(count, head), _I64(-lanes)))
    _loop(b, _I64(0), head, 1, store_one)
    _loop(b, head, middle, lanes, store_vector_past_cache)
    _loop(b, middle, count, 1, store_one)
    b.branch(end)
    b.position_at_end(end)


_BODIES: Final[dict[str, Callable[..., None]]] = {
    "prefetch_row": _prefetch_row,
    "store_row": _store_row,
}
assert set(_BODIES) == set(MEMORY)


def _loop(
    b: ir.IRBuilder,
    start: ir.Value,
    stop: ir.Value,
    step: int,
    body: Callable[[ir.Value], None],
) -> None:
    """Emit a loop over range(start, stop, step); ``body(index)`` emits its body."""
    before = b.block
    head, inside, after = (b.append_basic_block(n) for n in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    count = b.phi(_I64)
    count.add_incoming(start, before)
    b.cbranch(b.icmp_signed("<", count, stop), inside, after)
    b.position_at_end(inside)
    body(count)
    count.add_incoming(b.add(count, _I64(step)), b.block)
    b.branch(head)
    b.position_at_end(after)


def interrupted_function(module: ir.Module) -> Any:
    """Return ``interrupted`` of the vocabulary, which the first call defines.

    It takes a loop's iteration number and says whether the kernel must end. It calls
    ``check_signals`` if the number is a multiple of ``ITERATIONS_BETWEEN_CHECKS``, a
    power of 2, and otherwise returns false.
    """
    known = module.globals.get("interrupted")
    if known is not None:
        return known
    external = ir.Function(module, ir.FunctionType(_I64, []), check_signals.symbol)
    external.attributes.add("cold")
    external.attributes.add("nounwind")
    function = ir.Function(module, ir.FunctionType(_I1, [_I64]), "interrupted")
    function.linkage = "internal"
    function.attributes.add("alwaysinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    rest = builder.and_(function.args[0], _I64(ITERATIONS_BETWEEN_CHECKS - 1))
    with builder.if_then(builder.icmp_unsigned("==", rest, _I64(0)), likely=False):
        builder.ret(builder.icmp_unsigned("!=", builder.call(external, []), _I64(0)))
    builder.ret(_I1(0))
    return function


DIALECT: Final = Dialect(numba_ir, types, signature, signature_of, _register())
