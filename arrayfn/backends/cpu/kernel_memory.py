"""LLVM IR of the vocabulary's memory functions: prefetches, and stores past the caches.

Each is a function of its own in the kernel's module, for one element type; LLVM inlines
what is short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir

from arrayfn.lowering.scalars.memory import LINE_BYTES, MEMORY

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_POINTER: Final = ir.PointerType()
_VOID: Final = ir.VoidType()
VECTOR_BYTES: Final = 32
READ, STREAMED, DATA = 0, 0, 1  # the arguments of llvm.prefetch


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
    target, begin, source, count, far = function.args
    start = b.gep(target, [begin], source_etype=element)

    def one(index: ir.Value) -> None:
        value = b.load(b.gep(source, [index], source_etype=element), typ=element)
        b.store(value, b.gep(start, [index], source_etype=element))

    lanes = VECTOR_BYTES // size
    vector = ir.VectorType(element, lanes)
    marked = b.module.add_metadata([ir.Constant(_I32, 1)])

    def several(index: ir.Value) -> None:
        place = b.gep(source, [index], source_etype=element)
        value = b.load(place, align=size, typ=vector)
        address = b.gep(start, [index], source_etype=element)
        b.store(value, address, align=VECTOR_BYTES).set_metadata("nontemporal", marked)

    # Near, whole vectors come from LLVM's vectoriser. Far, elements before the first
    # aligned vector, whole vectors, and the rest.
    near, past, end = (b.append_basic_block(n) for n in ("near", "past", "end"))
    b.cbranch(b.icmp_signed("!=", far, _I64(0)), past, near)
    b.position_at_end(near)
    _loop(b, _I64(0), count, 1, one)
    b.branch(end)
    b.position_at_end(past)
    missing = b.and_(b.neg(b.ptrtoint(start, _I64)), _I64(VECTOR_BYTES - 1))
    head = b.udiv(missing, _I64(size))
    head = b.select(b.icmp_signed("<", head, count), head, count)
    middle: Any = b.add(head, b.and_(b.sub(count, head), _I64(-lanes)))
    _loop(b, _I64(0), head, 1, one)
    _loop(b, head, middle, lanes, several)
    _loop(b, middle, count, 1, one)
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
