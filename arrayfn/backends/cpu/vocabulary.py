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
from arrayfn.backends.cpu.micro_kernels import micro_kernel
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
    """The Numba signature of a call of ``function``; None if it is not known here.

    ``function`` is one of ``KNOWN``, or of a library kernel's own module, in which case
    the result's type is that of its annotation. ``arguments`` are Numba types.
    ``constants`` are not used: the parameter is for functions of GPUs.
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
    count = {prefetch_row: 3, store_row: 5}.get(function)
    memory = {a for a in arguments if isinstance(a, (types.CPointer, types.Array))}
    if len(arguments) != count or len(memory) != 1:
        return None
    kinds = [a if a in memory else types.int64 for a in arguments]
    return signature(types.none, *kinds)


def _register() -> dict[Any, Any]:
    """Register the vocabulary with Numba; return the types of scalar functions."""
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
    """Make Numba's typing function for calls of ``function``.

    Numba requires that its parameters are those of the call.
    """

    def row(pointer: Any, begin: Any, count: Any) -> Any:
        return signature_of(function, (pointer, begin, count))

    def rows(target: Any, begin: Any, source: Any, count: Any, far: Any) -> Any:
        return signature_of(function, (target, begin, source, count, far))

    def iteration(number: Any) -> Any:
        return signature_of(function, (number,))

    return {prefetch_row: row, store_row: rows, interrupted: iteration}[function]


def _lowering(function: Any) -> Callable[..., Any]:
    """Make Numba's lowering function, which emits LLVM IR for calls of ``function``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        """Emit the call, whose arguments are LLVM values of the signature's types."""
        if function is interrupted:
            if not getattr(context.active_code_library, "checks_signals", False):
                return _I1(0)  # numba.njit compiles: Python sees to its signals
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
            if isinstance(kind, types.Array):  # numba.njit compiles, for arrays
                values[k] = context.make_array(kind)(context, builder, args[k]).data
        size = context.get_abi_sizeof(context.get_data_type(sig.args[0].dtype))
        builder.call(memory_function(builder.module, function.__name__, size), values)
        return context.get_dummy_value()

    return lower


def _foreign_call(builder: Any, args: Sequence[Any], *, is_fortran: bool) -> Any:
    """Emit a call of the function whose address is the first of ``args``.

    If ``is_fortran``, integers are passed by address, and LAPACK's result ``info`` is
    added as last argument, whose value is the result.
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
    """Store ``value`` in a stack variable; returns its address."""
    with builder.goto_entry_block():
        slot = builder.alloca(value.type)
    builder.store(value, slot)
    return slot


def memory_function(module: ir.Module, name: str, size: int) -> Any:
    """The function ``name`` of the vocabulary for elements of ``size`` bytes."""
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
    """Emit the prefetches of the cache lines of a row of ``size``-byte elements."""
    pointer, begin, count = function.args
    kind = ir.FunctionType(_VOID, [_POINTER, _I32, _I32, _I32])
    module = function.module
    prefetch = module.globals.get("llvm.prefetch.p0")
    prefetch = prefetch or ir.Function(module, kind, "llvm.prefetch.p0")
    start = b.gep(pointer, [begin], source_etype=element)

    def line(offset: ir.Value) -> None:
        address = b.gep(start, [offset], source_etype=element)
        b.call(prefetch, [address, _I32(READ), _I32(STREAMED), _I32(DATA)])

    _loop(b, _I64(0), count, max(1, LINE_BYTES // size), line)


def _store_row(b: ir.IRBuilder, function: Any, element: ir.Type, size: int) -> None:
    """Emit the copy of a row of ``size``-byte elements.

    Far rows, which are not read soon, bypass the caches.
    """
    target, begin, source, count, far = function.args
    start = b.gep(target, [begin], source_etype=element)

    def store_one(index: ir.Value) -> None:
        """Copy element ``index`` of the row."""
        value = b.load(b.gep(source, [index], source_etype=element), typ=element)
        b.store(value, b.gep(start, [index], source_etype=element))

    lanes = VECTOR_BYTES // size
    vector = ir.VectorType(element, lanes)
    marked = b.module.add_metadata([ir.Constant(_I32, 1)])

    def store_vector_past_cache(index: ir.Value) -> None:
        """Copy ``lanes`` elements from ``index`` on by a nontemporal store.

        They go from ``source`` to ``start``, where the row begins in the target.
        ``marked`` is the store's metadata.
        """
        position = b.gep(source, [index], source_etype=element)
        value = b.load(position, align=size, typ=vector)
        address = b.gep(start, [index], source_etype=element)
        b.store(value, address, align=VECTOR_BYTES).set_metadata("nontemporal", marked)

    # Near, whole vectors come from LLVM's vectoriser. Far, elements before the first
    # aligned vector, whole vectors, and the rest.
    near, past, end = (b.append_basic_block(n) for n in ("near", "past", "end"))
    b.cbranch(b.icmp_signed("!=", far, _I64(0)), past, near)
    b.position_at_end(near)
    _loop(b, _I64(0), count, 1, store_one)
    b.branch(end)
    b.position_at_end(past)
    missing = b.and_(b.neg(b.ptrtoint(start, _I64)), _I64(VECTOR_BYTES - 1))
    head = b.udiv(missing, _I64(size))
    head = b.select(b.icmp_signed("<", head, count), head, count)
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
    """Emit a loop that calls ``body(index)`` from ``start`` to ``stop`` by ``step``."""
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
    """Define ``interrupted`` of the vocabulary in ``module``; returns the function.

    It calls ``check_signals`` once in ``ITERATIONS_BETWEEN_CHECKS`` calls.
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
