"""The uniform entry of a kernel's LLVM module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llvmlite import ir

_I64: Final = ir.IntType(64)


def add_entry(
    module: ir.Module,
    function: ir.Function,
    symbol: str,
    constants: Mapping[int, int],
    leading: int = 0,
    *,
    has_rest: bool = False,
) -> None:
    """Export ``symbol``: ``void entry(int64* arguments, int64 begin, int64 end)``.

    It loads the arguments of ``function`` and calls it, after ``leading`` pointers to
    memory that is not used. Parameters in ``constants`` get these values. If it
    ``has_rest``, the last parameter points to the remaining arguments.
    """
    kinds = [ir.PointerType(), _I64, _I64]
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), symbol)
    builder = ir.IRBuilder(entry.append_basic_block("entry"))
    arguments, begin, end = entry.args
    values: list[Any] = [builder.alloca(_I64) for _ in range(leading)]
    count = 0
    for position, kind in enumerate(function.function_type.args[leading:-2]):
        if position in constants:
            values.append(_I64(constants[position]))
            continue
        address = builder.gep(arguments, [_I64(count)], source_etype=_I64)
        values.append(builder.load(address, typ=kind))
        count += 1
    if has_rest:
        values[-1] = builder.gep(arguments, [_I64(count - 1)], source_etype=_I64)
    builder.call(function, [*values, begin, end])
    builder.ret_void()
