"""Generated kernels to LLVM IR for a CPU.

In: a kernel's source; out: the text of an LLVM module that exports the uniform entry
``void entry(int64* arguments, int64 begin, int64 end)``. See ``kernel_language``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Final

from llvmlite import ir

from arrayfn import dtypes
from arrayfn.backends.cpu.kernel_interrupts import interrupted_function
from arrayfn.backends.cpu.kernel_memory import memory_function
from arrayfn.backends.cpu.kernel_module import (
    accumulates,
    add_entry,
    interleave_of,
    interleaved,
    unrolled,
)
from arrayfn.backends.kernel_language import (
    KernelCompiler,
    Scalar,
    UnsupportedKernelError,
    parsed,
    unsupported,
    with_names_of,
)
from arrayfn.backends.kernel_variables import variables_in_memory
from arrayfn.backends.llvm_arithmetic import I64, LLVMArithmetic, LLVMValue
from arrayfn.backends.native import target
from arrayfn.lowering import scalars
from arrayfn.lowering.plan import Parameter
from arrayfn.lowering.scalars.control import interrupted
from arrayfn.lowering.scalars.memory import MEMORY

__all__ = ["VOCABULARY", "UnsupportedKernelError", "kernel_ir"]

SHORT: Final = 32  # turns of a loop that is best unrolled, or vectorised as it is
VOCABULARY: Final = "arrayfn.lowering.scalars"


def kernel_ir(
    source: str, name: str, parameters: tuple[Parameter, ...], symbol: str
) -> str:
    """The LLVM IR of a kernel; it exports the uniform entry under ``symbol``."""
    node, vocabulary = parsed(source, name, {VOCABULARY: scalars})
    named = with_names_of(node, parameters, ("begin", "end"))
    return _Kernel(node, vocabulary, named, symbol).text()


@dataclass(slots=True)
class _Kernel(KernelCompiler):
    """Compiles one kernel function."""

    def text(self) -> str:
        """The module's text."""
        module = ir.Module(self.symbol)
        module.triple = target.host().triple
        kinds = [_parameter_type(parameter) for parameter in self.parameters]
        signature = ir.FunctionType(ir.VoidType(), [*kinds, I64, I64])
        self.function = ir.Function(module, signature, "kernel")
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self.function.attributes.add("nounwind")
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.m = LLVMArithmetic(self.builder, "kernel")
        for argument in self.function.args:
            if isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")
        self.bind_parameters(("begin", "end"))
        self.in_memory = variables_in_memory(self.node)
        self.suite(self.node.body)
        if any(name.startswith("store_row") for name in module.globals):
            # Stores past the caches are ordered before what tells other threads.
            self.builder.fence("seq_cst")
        self.builder.ret_void()
        add_entry(module, self.function, self.symbol)
        return str(module)

    def mark_loop(self, back: Any, turns: float, body: list[ast.stmt]) -> None:
        """Reductions are unrolled where they are short, and interleaved."""
        short = turns <= SHORT
        if short and accumulates(body):
            back.set_metadata("llvm.loop", unrolled(self.builder.module))
        elif not short and (times := interleave_of(body)):
            back.set_metadata("llvm.loop", interleaved(self.builder.module, times))

    def effect(self, node: ast.stmt, name: str, arguments: list[ast.expr]) -> None:
        """A call of a memory function: pointers of one dtype, and integers."""
        if self.vocabulary.get(name) not in MEMORY.values():
            raise unsupported(node)
        values: list[ir.Value] = []
        kinds: set[str] = set()
        for argument in arguments:
            if self.is_pointer(argument):
                value, kind = self.pointer(node, argument)
                kinds.add(kind)
            else:
                value = self.integer(argument)
            values.append(value)
        if len(kinds) != 1:
            raise unsupported(node)
        (kind,) = kinds
        size = dtypes.BY_SHORT_NAME[kind].itemsize
        self.builder.call(memory_function(self.builder.module, name, size), values)

    def call(self, node: ast.Call, name: str, arguments: list[Scalar]) -> Scalar:
        """``interrupted``, which looks at what is going on; else as on all targets."""
        if self.vocabulary.get(name) is not interrupted:
            return KernelCompiler.call(self, node, name, arguments)
        match arguments:
            case [LLVMValue(dtype="i64", value=turn)]:
                function = interrupted_function(self.builder.module)
                return self.m.wrap(self.builder.call(function, [turn]), "bool")
            case _:
                raise unsupported(node)


def _parameter_type(parameter: Parameter) -> ir.Type:
    return ir.PointerType() if parameter.kind.endswith("*") else I64
