"""What kernels' LLVM modules share: the uniform entry, and marks of reductions."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir

ACCUMULATORS: Final = 4  # of a vectorised reduction
CHAINS: Final = 2  # of long functions side by side
LONG: Final = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logistic"),
        *("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "atan2"),
        *("asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "ndtr", "pow", "cbrt"),
    )
)
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


def interleave_of(body: list[ast.stmt]) -> int:
    """How many times a vectorised innermost loop is interleaved; 0: as LLVM likes.

    A reduction is to have several accumulators, and a long chain of dependent
    operations, as in exp or tanh, another beside it.
    """
    nodes = [node for statement in body for node in ast.walk(statement)]
    if any(isinstance(node, ast.For | ast.While) for node in nodes):
        return 0
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    names = [name.id for name in calls if isinstance(name, ast.Name)]
    if any("accumulate_" in name for name in names):
        return ACCUMULATORS
    return CHAINS if any(name.rpartition("_")[0] in LONG for name in names) else 0


def accumulates(body: list[ast.stmt]) -> bool:
    """Whether an innermost loop is a reduction.

    Where it is short it is unrolled, so that the loop around it can be vectorised.
    """
    nodes = [node for statement in body for node in ast.walk(statement)]
    if any(isinstance(node, ast.For | ast.While) for node in nodes):
        return False
    return any(
        isinstance(node, ast.Name) and "accumulate_" in node.id for node in nodes
    )


def unrolled(module: ir.Module) -> Any:
    """Metadata of a loop to be unrolled as a whole."""
    return _loop_metadata(module, [ir.MetaDataString(module, "llvm.loop.unroll.full")])


def interleaved(module: ir.Module, times: int) -> Any:
    """Metadata of a loop to be interleaved ``times`` times when vectorised."""
    name = ir.MetaDataString(module, "llvm.loop.interleave.count")
    return _loop_metadata(module, [name, ir.Constant(ir.IntType(32), times)])


def _loop_metadata(module: ir.Module, words: Sequence[Any]) -> Any:
    count = module.add_metadata(words)
    loop = ir.MDValue(module, [count], name=str(len(module.metadata)))
    loop.operands = (loop, count)
    return loop
