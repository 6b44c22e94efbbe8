"""LLVM IR of ``interrupted``: a look at signals in some turns of a kernel's loop."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.cpu.signals import look
from arrayfn.lowering.scalars.control import TURNS_BETWEEN_LOOKS

_I1, _I64 = ir.IntType(1), ir.IntType(64)
_NAME: Final = "interrupted"


def interrupted_function(module: ir.Module) -> Any:
    """The function of the vocabulary, in ``module``."""
    known = module.globals.get(_NAME)
    if known is not None:
        return known
    external = ir.Function(module, ir.FunctionType(_I64, []), look.symbol)
    external.attributes.add("cold")
    external.attributes.add("nounwind")
    function = ir.Function(module, ir.FunctionType(_I1, [_I64]), _NAME)
    function.linkage = "internal"
    function.attributes.add("alwaysinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    rest = builder.and_(function.args[0], _I64(TURNS_BETWEEN_LOOKS - 1))
    with builder.if_then(builder.icmp_unsigned("==", rest, _I64(0)), likely=False):
        builder.ret(builder.icmp_unsigned("!=", builder.call(external, []), _I64(0)))
    builder.ret(_I1(0))
    return function
