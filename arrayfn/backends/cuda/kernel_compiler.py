"""Generated kernels to LLVM IR for NVVM, and through it to PTX.

In: a kernel; out: PTX with one entry, which takes pointers and 64-bit integers. See
``kernel_language``. Pointers are typed, as NVVM's dialect has them before Blackwell.
Products and sums are not contracted, so that a kernel gives the bits it gives on a CPU,
but for the order of its reductions.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.cuda.arithmetic import CudaArithmetic
from arrayfn.backends.cuda.device_functions import emit
from arrayfn.backends.cuda.unrolling import unrolled
from arrayfn.backends.kernel_language import (
    STORED,
    KernelCompiler,
    Scalar,
    UnsupportedKernelError,
    parsed,
    unsupported,
    with_names_of,
)
from arrayfn.backends.kernel_variables import variables_in_memory
from arrayfn.backends.llvm_arithmetic import I32, I64, LLVMValue, scalar_type
from arrayfn.lowering import scalars
from arrayfn.lowering.cuda import vocabulary
from arrayfn.lowering.cuda.vocabulary import (
    APPROXIMATE,
    EXTREMES,
    FUNCTIONS,
    SHUFFLES,
    DeviceFunction,
)
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.scalars.arithmetic import COMPLEXES, HALVES, REAL_PART
from arrayfn.lowering.scalars.table import ScalarFunction

__all__ = [
    "GIVING",
    "UnsupportedKernelError",
    "compile_ptx",
    "kernel_ir",
    "with_directives",
]

_MODULES: Final = {
    "arrayfn.lowering.scalars": scalars,
    "arrayfn.lowering.cuda.vocabulary": vocabulary,
}
_OPTIONS: Final = ("-opt=3", "-fma=0", "-ftz=0", "-prec-div=1", "-prec-sqrt=1")
_LAYOUT: Final = (
    "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-"
    "f32:32:32-f64:64:64-v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
)
_ENTRY: Final = ".visible .entry "
# Kinds of functions that give an integer, memory, a value of their dtype, or a truth
# value: others give nothing.
_INTEGERS: Final = (
    *("block_index", "thread_index", "quotient", "remainder"),
    *("match_byte", "match_word", "ballot", "byte", "ticket", "take", "anew"),
)
_MEMORY: Final = ("shared", "registers", "signals", "arena", "window")
_VALUES: Final = (
    *SHUFFLES,
    *APPROXIMATE,
    *("inverse", "divide", "fused", "posted"),
    *EXTREMES,
)
_TRUTHS: Final = ("divides",)
# Of these, those that take memory.
_READING: Final = ("ticket", "take", "posted", *EXTREMES)
GIVING: Final = frozenset((*_INTEGERS, *_MEMORY, *_VALUES, *_TRUTHS))
"""Kinds of functions that give something."""


def compile_ptx(kernel: Kernel, arch: tuple[int, int]) -> str:
    """The PTX of ``kernel`` for compute capability ``arch``; its entry has its name.

    Raises UnsupportedKernelError if it uses what this compiler does not know,
    ImportError where NVIDIA's compiler is not installed.
    """
    nvvm = importlib.import_module("cuda.bindings.nvvm")
    text = kernel_ir(kernel, nvvm.ir_version()).encode()
    program = nvvm.create_program()
    options = [f"-arch=compute_{arch[0]}{arch[1]}", *_OPTIONS]
    try:
        nvvm.add_module_to_program(program, text, len(text), kernel.name)
        if b"@__nv_" in text or b'@"__nv_' in text:
            library = _libdevice()
            nvvm.lazy_add_module_to_program(program, library, len(library), "")
        nvvm.compile_program(program, len(options), options)
        result = bytearray(nvvm.get_compiled_result_size(program))
        nvvm.get_compiled_result(program, result)
    finally:
        nvvm.destroy_program(program)
    return with_directives(result.decode().strip("\0").strip() + "\n", kernel)


@cache
def _libdevice() -> bytes:
    """CUDA's mathematical functions, as LLVM's code."""
    pathfinder = importlib.import_module("cuda.pathfinder")
    find = getattr(pathfinder, "find_bitcode_lib", None)
    if find is None:
        raise ImportError("this cuda-pathfinder does not know where libdevice is")
    return Path(find("device")).read_bytes()


def with_directives(ptx: str, kernel: Kernel) -> str:
    """``ptx`` with what its entry says of launches, besides the threads of a block."""
    directives: list[str] = []
    if kernel.together:
        directives.append(f".minnctapersm {kernel.together}")
    if kernel.cluster > 1:
        directives += [".explicitcluster", f".reqnctapercluster {kernel.cluster}, 1, 1"]
    head, entry, body = ptx.partition(_ENTRY)
    return head + entry + body.replace("\n{", "\n".join(["", *directives, "{"]), 1)


def kernel_ir(kernel: Kernel, version: Sequence[int]) -> str:
    """The LLVM IR of a kernel, for a version of NVVM's dialect."""
    node, names = parsed(kernel.source, kernel.name, _MODULES)
    parameters = with_names_of(node, kernel.parameters)
    return _Kernel(node, names, parameters, kernel.name).text(kernel, version)


def _element(dtype: str) -> Any:
    """The type in memory of a dtype of the vocabulary."""
    if dtype in COMPLEXES:
        return ir.LiteralStructType([scalar_type(REAL_PART[dtype])] * 2)
    return ir.IntType(8) if dtype == "bool" else scalar_type(_value(dtype))


def _count(node: ast.AST, arguments: list[ast.expr]) -> int:
    """The only argument: a whole number, or a product of two."""
    match arguments:
        case [ast.Constant(value=int() as count)]:
            return count
        case [
            ast.BinOp(
                left=ast.Constant(value=int() as count),
                op=ast.Mult(),
                right=ast.Constant(value=int() as times),
            )
        ]:
            return count * times
        case _:
            raise unsupported(node)


def _value(dtype: str) -> str:
    return "u16" if dtype in HALVES else dtype


@dataclass(slots=True)
class _Kernel(KernelCompiler):
    """Compiles one kernel function, or a part of it that it calls."""

    written_out: set[int] = field(default_factory=set[int])
    moving: dict[str, tuple[Any, str]] = field(
        default_factory=dict[str, tuple[Any, str]]
    )

    def text(self, kernel: Kernel, version: Sequence[int]) -> str:
        """The module's text."""
        module: Any = ir.Module(self.symbol)
        module.triple, module.data_layout = "nvptx64-nvidia-cuda", _LAYOUT
        kinds = [
            _element(p.kind[:-1]).as_pointer() if p.kind.endswith("*") else I64
            for p in self.parameters
        ]
        signature = ir.FunctionType(ir.VoidType(), kinds)
        self.function = ir.Function(module, signature, self.symbol)
        if not kernel.cooperative:
            # The plan keeps buffers apart; in one kernel of many steps they are reused.
            for argument in self.function.args:
                if isinstance(argument.type, ir.PointerType):
                    argument.add_attribute("noalias")
        self.body()
        for name, number in (("kernel", 1), ("maxntidx", kernel.threads)):
            words = [self.function, ir.MetaDataString(module, name), I32(number)]
            module.add_named_metadata("nvvm.annotations", words)
        module.add_named_metadata("nvvmir.version", [I32(n) for n in version])
        return str(module)

    def body(self) -> None:
        """The function's instructions."""
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.m = CudaArithmetic(self.builder, "arrayfn")
        self.bind_parameters()
        for name, (pointer, kind) in self.pointers.items():
            self.pointers[name] = pointer, STORED.get(kind, kind)
        self.in_memory = variables_in_memory(self.node)
        self.suite(self.node.body)
        if not self.builder.block.is_terminated:
            self.builder.ret_void()

    def place(self, pointer: Any, index: ir.Value, kind: ir.Type) -> ir.Value:
        """The address of an element: where it is complex, of one of its parts."""
        if isinstance(pointer.type.pointee, ir.LiteralStructType):
            pointer = self.builder.bitcast(pointer, kind.as_pointer())
        return self.builder.gep(pointer, [index])

    def statement(self, node: ast.stmt) -> None:
        """Compile one statement; memory that a function gives is a pointer's."""
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id=called), args=arguments),
            ) if (
                isinstance(function := self.vocabulary.get(called), DeviceFunction)
                and function.kind in _MEMORY
            ):
                if name in self.slots or name in self.values:
                    raise unsupported(node)
                self.pointers[name] = self.memory(node, function, arguments)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name() as value) if (
                self.is_pointer(value)
            ):
                self.point(node, name, self.pointer(node, value))
            case ast.For(
                target=ast.Name(id=name),
                iter=ast.Call(func=ast.Name(id=called), args=[count], keywords=[]),
                body=body,
                orelse=[],
            ) if self.vocabulary.get(called) is FUNCTIONS["unrolled"]:
                self.written_out.add(id(body))
                bounds = I64(0), self.integer(count), I64(1)
                self.loop(node, name, bounds, body)
            case _:
                KernelCompiler.statement(self, node)

    def point(self, node: ast.AST, name: str, to: tuple[Any, str]) -> None:
        """Give a variable a pointer; it may have another one later."""
        pointer, kind = to
        if name in (*self.slots, *self.values, *self.pointers):
            raise unsupported(node)
        if name not in self.moving:
            with self.builder.goto_entry_block():
                self.moving[name] = self.builder.alloca(pointer.type), kind
        address, known = self.moving[name]
        if known != kind:
            raise unsupported(node)
        self.builder.store(pointer, address)

    def pointer(self, node: ast.AST, value: ast.expr) -> tuple[Any, str]:
        """A pointer, and the dtype of what it points to."""
        match value:
            case ast.Name(id=name) if name in self.moving:
                address, kind = self.moving[name]
                return self.builder.load(address), kind
            case ast.Call(func=ast.Name(id=name), args=[array, at]) if (
                isinstance(function := self.vocabulary.get(name), DeviceFunction)
                and function.kind == "window"
            ):
                return self.memory(node, function, [array, at])
            case _:
                return KernelCompiler.pointer(self, node, value)

    def is_pointer(self, value: ast.expr) -> bool:
        """Whether an expression names a pointer."""
        match value:
            case ast.Name(id=name) if name in self.moving:
                return True
            case ast.Call(func=ast.Name(id=name)):
                function = self.vocabulary.get(name)
                return isinstance(function, DeviceFunction) and function.kind in _MEMORY
            case _:
                return KernelCompiler.is_pointer(self, value)

    def mark_loop(self, back: Any, turns: float, body: list[ast.stmt]) -> None:
        """What is over ``unrolled(n)`` is written out."""
        if id(body) in self.written_out:
            back.set_metadata("llvm.loop", unrolled(self.builder.module))

    def memory(
        self, node: ast.AST, function: DeviceFunction, arguments: list[ast.expr]
    ) -> tuple[Any, str]:
        """Memory of the block or the thread, and the dtype of its elements."""
        element, count = _element(function.dtype), 0
        given: list[ir.Value] = []
        if function.kind in ("arena", "window"):
            given = [self.argument(a) for a in arguments]
        else:
            count = _count(node, arguments)
        pointer = emit(self.builder, function, given, element, count)
        return pointer, _value(function.dtype)

    def effect(self, node: ast.stmt, name: str, arguments: list[ast.expr]) -> None:
        """A call of a function of the vocabulary that gives nothing."""
        function = self.vocabulary.get(name)
        if isinstance(function, ast.FunctionDef):
            self.call_part(node, function, arguments)
            return
        if not isinstance(function, DeviceFunction) or function.kind in GIVING:
            raise unsupported(node)
        if function.kind == "await_copies":
            count = _count(node, arguments)
            emit(self.builder, function, [I64(count)], None, count)
            return
        values = [self.argument(a) for a in arguments]
        emit(self.builder, function, values, None, 0)

    def call_part(
        self, node: ast.stmt, part: ast.FunctionDef, arguments: list[ast.expr]
    ) -> None:
        """A call of another function of the source, which is inlined."""
        values: list[Any] = []
        kinds: list[str] = []
        for argument in arguments:
            if self.is_pointer(argument):
                value, kind = self.pointer(node, argument)
                kinds.append(f"{kind}*")
            else:
                value = self.integer(argument)
                kinds.append("i64")
            values.append(value)
        names = [argument.arg for argument in part.args.args]
        if len(names) != len(kinds):
            raise unsupported(node)
        symbol = ".".join([part.name, *kinds])
        known: Any = self.builder.module.globals.get(symbol)
        if known is None:
            signature = ir.FunctionType(ir.VoidType(), [v.type for v in values])
            known = ir.Function(self.builder.module, signature, symbol)
            known.linkage = "internal"
            known.attributes.add("alwaysinline")
            parameters = tuple(map(Parameter, names, kinds))
            inner = _Kernel(part, self.vocabulary, parameters, symbol)
            inner.function = known
            inner.body()
        self.builder.call(known, values)

    def argument(self, node: ast.expr) -> Any:
        """What a function of the vocabulary takes: a pointer or a value."""
        if self.is_pointer(node):
            return self.pointer(node, node)[0]
        return self.packed(self.value(node))

    def packed(self, value: Scalar) -> ir.Value:
        """A value as LLVM's: a complex one as a structure."""
        if not isinstance(value, tuple):
            return value.value
        real, imaginary = (part.value for part in value)
        kind = ir.LiteralStructType([real.type] * 2)
        half = self.builder.insert_value(ir.Constant(kind, ir.Undefined), real, 0)
        return self.builder.insert_value(half, imaginary, 1)

    def value(self, node: ast.expr) -> Scalar:
        """The value of an expression; some functions of one take memory."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=arguments) if (
                isinstance(function := self.vocabulary.get(name), DeviceFunction)
                and function.kind in _READING
            ):
                return self.given(function, [self.argument(a) for a in arguments])
            case _:
                return KernelCompiler.value(self, node)

    def call(self, node: ast.Call, name: str, arguments: list[Scalar]) -> Scalar:
        """A function of either vocabulary, or a typed constant or conversion."""
        function = self.vocabulary.get(name)
        if isinstance(function, ScalarFunction):
            native = self.m.native(function.name, arguments)
            if native is not None:
                return native
        if not isinstance(function, DeviceFunction):
            return KernelCompiler.call(self, node, name, arguments)
        if function.kind not in GIVING or function.kind in _MEMORY:
            raise unsupported(node)
        return self.given(function, [self.packed(a) for a in arguments])

    def given(self, function: DeviceFunction, arguments: Sequence[Any]) -> Scalar:
        """What a function of the CUDA vocabulary gives."""
        result = emit(self.builder, function, arguments, None, 0)
        if function.kind in _INTEGERS:
            return self.m.wrap(result, f"i{result.type.width}")
        if function.kind in _TRUTHS:
            return self.m.wrap(result, "bool")
        if function.kind in EXTREMES:
            return self.m.wrap(result, "f32")
        if function.dtype not in COMPLEXES:
            return self.m.wrap(result, _value(function.dtype))
        part = REAL_PART[function.dtype]
        return tuple(
            self.m.wrap(self.builder.extract_value(result, k), part) for k in range(2)
        )

    def load(self, node: ast.Subscript, name: str) -> Scalar:
        """Read an element; truth values lie in a thread's memory as bytes."""
        if not self.holds_truth(name):
            return KernelCompiler.load(self, node, name)
        address = self.place(self.pointers[name][0], self.integer(node.slice), I32)
        return self.m.wrap(self.builder.load(address), "u8") != 0

    def store(self, node: ast.Subscript, value: Scalar) -> None:
        """Write an element."""
        match node.value:
            case ast.Name(id=name) if self.holds_truth(name):
                if not isinstance(value, LLVMValue) or value.dtype != "bool":
                    raise unsupported(node)
                pointer = self.pointers[name][0]
                address = self.place(pointer, self.integer(node.slice), I32)
                byte = self.builder.zext(value.value, ir.IntType(8))
                self.builder.store(byte, address)
            case _:
                KernelCompiler.store(self, node, value)

    def holds_truth(self, name: str) -> bool:
        """Whether memory holds truth values, and not the bytes that stand for them."""
        return name in self.pointers and self.pointers[name][1] == "bool"
