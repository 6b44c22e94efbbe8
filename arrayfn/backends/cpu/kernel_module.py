"""What kernels' LLVM modules share: the uniform entry, and marks of reductions."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir

INTERLEAVE: Final = 4  # accumulators of a vectorised reduction
_I64: Final = ir.IntType(64)


def add_entry(
    module: ir.Module,
    function: ir.Function,
    symbol: str,
    leading: Sequence[ir.Type] = (),
) -> None:
    """Export ``symbol``: ``void entry(int64* arguments, int64 begin, int64 end)``.

    It loads the arguments of ``function`` and calls it, after pointers to memory that
    is not used for the ``leading`` types. The function stays a call of its own, so that
    ``noalias`` holds on its parameters.
    """
    function.linkage = "internal"
    function.attributes.add("noinline")
    kinds = [ir.PointerType(), _I64, _I64]
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), symbol)
    builder = ir.IRBuilder(entry.append_basic_block("entry"))
    arguments, begin, end = entry.args
    values: list[Any] = [builder.alloca(kind) for kind in leading]
    for position, kind in enumerate(function.function_type.args[len(leading) : -2]):
        address = builder.gep(arguments, [_I64(position)], source_etype=_I64)
        values.append(builder.load(address, typ=kind))
    builder.call(function, [*values, begin, end])
    builder.ret_void()


def accumulates(body: list[ast.stmt]) -> bool:
    """Whether an innermost loop reduces: then it is to have several accumulators."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    if any(isinstance(node, ast.For | ast.While) for node in nodes):
        return False
    names = (node.func for node in nodes if isinstance(node, ast.Call))
    return any(isinstance(n, ast.Name) and "accumulate_" in n.id for n in names)


def interleaved(module: ir.Module) -> Any:
    """Metadata of a loop to be interleaved ``INTERLEAVE`` times when vectorised."""
    name = ir.MetaDataString(module, "llvm.loop.interleave.count")
    number = ir.Constant(ir.IntType(32), INTERLEAVE)
    count = module.add_metadata([name, number])
    loop = ir.MDValue(module, [count], name=str(len(module.metadata)))
    loop.operands = (loop, count)
    return loop
