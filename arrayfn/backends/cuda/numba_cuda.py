"""Kernels to PTX, through numba-cuda. Everything specific to that project is here.

Importing this module teaches numba-cuda the scalar and the CUDA vocabulary. Pointers
are ``CPointer`` arguments marked ``noalias``; products and sums are not contracted, so
that a kernel gives the bits it gives on a CPU, but for the order of its reductions.
"""

from __future__ import annotations

import importlib
import linecache
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, Final

from llvmlite import ir

from arrayfn.backends import numba_scalars
from arrayfn.backends.llvm_arithmetic import LLVMValue, is_float
from arrayfn.backends.nvvm_arithmetic import NvvmArithmetic
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS, DeviceFunction
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.scalars.arithmetic import COMPLEXES, HALVES, REAL_PART, width


def _module(name: str) -> Any:
    """A module of numba-cuda, which has no types and need not be installed to lint."""
    return importlib.import_module(f"numba.cuda.{name}")


types, cgutils, compiler = map(_module, ("types", "cgutils", "compiler"))
models, nvvm, nvvmutils = map(_module, ("models", "cudadrv.nvvm", "nvvmutils"))
opaque_model = _module("datamodel").models.OpaqueModel
registry = _module("cudaimpl").registry
signature = _module("typing").signature
typeof_impl = _module("typing.typeof").typeof_impl

VERSION: Final = metadata.version("numba-cuda")
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ALL_LANES: Final = 0xFFFFFFFF
_SHARED: Final = nvvm.ADDRSPACE_SHARED
_NVVM_OPTIONS: Final[dict[str, Any]] = {
    "opt": 3,
    "fma": False,  # no contraction: a product keeps its own rounding
    "ftz": False,
    "prec_div": True,
    "prec_sqrt": True,
}


class CudaArithmetic(NvvmArithmetic):
    """Formulas for NVVM, with the instructions that sm_80 brought."""

    def accumulate(self, operation: str, x: LLVMValue, y: Any) -> LLVMValue:
        if operation not in ("max", "min") or x.dtype != "f32":
            return super().accumulate(operation, x, y)
        t = self.type(x.dtype)
        assembly = ir.InlineAsm(
            ir.FunctionType(t, [t, t]), f"{operation}.NaN.f32 $0, $1, $2;", "=f,f,f"
        )
        return self.wrap(
            self.builder.call(assembly, [x.value, self.raw(y, x.dtype)]), x.dtype
        )


def numba_type(dtype: str) -> Any:
    """The type of a dtype's values in kernels."""
    return numba_scalars.numba_type(types, dtype)


def element_type(dtype: str) -> Any:
    """The type of a dtype's elements in memory."""
    return types.uint8 if dtype == "bool" else numba_type(dtype)


def pointer_type(dtype: str) -> Any:
    """The type of a pointer to a dtype's elements."""
    return types.CPointer(element_type(dtype))


class DeviceFunctionType(types.Callable, types.Opaque):
    """The type of one function of the CUDA vocabulary."""

    def __init__(self, function: DeviceFunction) -> None:
        self.function = function
        super().__init__(f"DeviceFunction({function.name})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        kind, dtype = self.function.kind, self.function.dtype
        if kind in ("block_index", "thread_index"):
            return signature(types.int64)
        if kind in ("barrier", "cluster_arrive", "cluster_wait"):
            return signature(types.none)
        if kind == "put":
            value = numba_type(dtype)
            shared = types.CPointer(value)
            return signature(types.none, shared, types.int64, value, types.int64)
        if kind in ("quotient", "remainder"):
            return signature(types.int64, types.int64, types.int64)
        if kind == "shuffle_xor":
            value = numba_type(dtype)
            return signature(value, value, types.int64)
        if kind in ("shared", "registers"):
            (count,) = args
            if not isinstance(count, types.IntegerLiteral):
                raise TypeError(f"{self.function.name} takes a constant, not {count}")
            return signature(types.CPointer(numba_type(dtype)), count)
        pointer = pointer_type(dtype)
        return signature(types.none, pointer, types.int64, pointer, types.int64)

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        return type(self), self.function


Lowering = Callable[[Any, Any, DeviceFunction, Any, Any], Any]


def _sreg(name: str) -> Lowering:
    def lower(
        context: Any, b: Any, function: DeviceFunction, sig: Any, args: Any
    ) -> Any:
        return b.zext(nvvmutils.call_sreg(b, name), _I64)

    return lower


def _barrier(
    context: Any, b: Any, function: DeviceFunction, sig: Any, args: Any
) -> Any:
    kind = ir.FunctionType(ir.VoidType(), ())
    b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.nvvm.barrier0"), ())
    return context.get_dummy_value()


def _cluster_barrier(instruction: str) -> Lowering:
    def lower(
        context: Any, b: Any, function: DeviceFunction, sig: Any, args: Any
    ) -> Any:
        kind = ir.FunctionType(ir.VoidType(), ())
        text = f"barrier.cluster.{instruction}.aligned;"
        b.call(ir.InlineAsm(kind, text, "~{memory}", side_effect=True), ())
        return context.get_dummy_value()

    return lower


def _put(context: Any, b: Any, function: DeviceFunction, sig: Any, args: Any) -> Any:
    """A store to the shared memory of another block of the cluster."""
    array, at, value, rank = args
    kind = ir.FunctionType(_I64, [_I64, _I32])
    place = b.ptrtoint(b.gep(array, [at]), _I64)
    mapa = ir.InlineAsm(kind, "mapa.u64 $0, $1, $2;", "=l,l,r", side_effect=True)
    peer = b.call(mapa, [place, b.trunc(rank, _I32)])
    b.store(value, b.inttoptr(peer, value.type.as_pointer()))
    return context.get_dummy_value()


def _unsigned(instruction: str) -> Lowering:
    """A division of indices below 2**31, in 32 bits: it takes a third of the time."""

    def lower(
        context: Any, b: Any, function: DeviceFunction, sig: Any, args: Any
    ) -> Any:
        x, y = (b.trunc(a, _I32) for a in args)
        return b.zext(getattr(b, instruction)(x, y), _I64)

    return lower


def _shuffle_xor(
    context: Any, b: Any, function: DeviceFunction, sig: Any, args: Any
) -> Any:
    value, mask = args
    mask = b.trunc(mask, _I32)
    if function.dtype in COMPLEXES:
        result = value
        for k in range(2):
            part = _exchange(b, b.extract_value(value, k), mask)
            result = b.insert_value(result, part, k)
        return result
    return _exchange(b, value, mask)


def _exchange(b: Any, value: Any, mask: Any) -> Any:
    """``value`` of the lane that differs by ``mask``, in words of 32 bits."""
    kind = value.type
    if isinstance(kind, ir.FloatType):
        return b.bitcast(_exchange(b, b.bitcast(value, _I32), mask), kind)
    if isinstance(kind, ir.DoubleType):
        return b.bitcast(_exchange(b, b.bitcast(value, _I64), mask), kind)
    if kind.width < 32:
        return b.trunc(_exchange(b, b.zext(value, _I32), mask), kind)
    if kind.width == 64:
        low = _exchange(b, b.trunc(value, _I32), mask)
        high = _exchange(b, b.trunc(b.lshr(value, _I64(32)), _I32), mask)
        return b.or_(b.zext(low, _I64), b.shl(b.zext(high, _I64), _I64(32)))
    function = cgutils.get_or_insert_function(
        b.module,
        ir.FunctionType(_I32, [_I32] * 4),
        "llvm.nvvm.shfl.sync.bfly.i32",
    )
    return b.call(function, [_I32(_ALL_LANES), value, mask, _I32(31)])


def _shared(context: Any, b: Any, function: DeviceFunction, sig: Any, args: Any) -> Any:
    element = context.get_data_type(sig.return_type.dtype)
    array = ir.ArrayType(element, sig.args[0].literal_value)
    name = f"{function.name}.{len(b.module.globals)}"
    variable: Any = ir.GlobalVariable(b.module, array, name, addrspace=_SHARED)
    variable.linkage, variable.align = "internal", 16
    variable.initializer = ir.Constant(array, ir.Undefined)
    pointer = b.gep(variable, [_I32(0), _I32(0)])
    return b.addrspacecast(pointer, element.as_pointer())


def _registers(
    context: Any, b: Any, function: DeviceFunction, sig: Any, args: Any
) -> Any:
    element = context.get_data_type(sig.return_type.dtype)
    array = ir.ArrayType(element, sig.args[0].literal_value)
    memory = cgutils.alloca_once(b, array, name=function.name)
    memory.align = 16
    return b.gep(memory, [_I32(0), _I32(0)])


def _words(dtype: str, lanes: int) -> tuple[Any, int, int]:
    """How a vector of elements is accessed: as words of a type, so many at a time."""
    if dtype in COMPLEXES:
        dtype, lanes = REAL_PART[dtype], 2 * lanes
    bits = width(dtype)
    if is_float(dtype):
        word = ir.FloatType() if dtype == "f32" else ir.DoubleType()
        return word, lanes, 128 // bits
    if bits >= 32:
        return ir.IntType(bits), lanes, 128 // bits
    total = lanes * bits
    word = ir.IntType(min(32, total))
    return word, total // word.width, 4


def _vector(context: Any, b: Any, function: DeviceFunction, sig: Any, args: Any) -> Any:
    """Copy between memory and registers in the widest accesses."""
    array, at, tile, place = args
    word, count, most = _words(function.dtype, function.lanes)
    outer = b.bitcast(b.gep(array, [at]), word.as_pointer())
    inner = b.bitcast(b.gep(tile, [place]), word.as_pointer())
    source, target = (inner, outer) if function.kind == "store" else (outer, inner)
    wide = min(count, most)
    vector = ir.VectorType(word, wide) if wide > 1 else word
    size = context.get_abi_sizeof(word)
    for start in range(0, count, wide):
        if function.kind == "load":
            pointer = b.bitcast(b.gep(source, [_I32(start)]), vector.as_pointer())
            value = b.load(pointer, align=size * wide)
            for k in range(wide):
                part = b.extract_element(value, _I32(k)) if wide > 1 else value
                b.store(part, b.gep(target, [_I32(start + k)]))
        elif function.kind == "stream":
            parts = _passing(b, b.gep(source, [_I32(start)]), word, wide)
            for k, part in enumerate(parts):
                b.store(part, b.gep(target, [_I32(start + k)]))
        else:
            value = ir.Constant(vector, ir.Undefined)
            for k in range(wide):
                part = b.load(b.gep(source, [_I32(start + k)]))
                value = b.insert_element(value, part, _I32(k)) if wide > 1 else part
            pointer = b.bitcast(b.gep(target, [_I32(start)]), vector.as_pointer())
            b.store(value, pointer, align=size * wide)
    return context.get_dummy_value()


_ASSEMBLY: Final = {8: "b8", 16: "b16", 32: "b32", 64: "b64"}
_CONSTRAINTS: Final = {"float": "f", "double": "d", "i16": "h", "i32": "r", "i64": "l"}


def _passing(b: Any, pointer: Any, word: Any, wide: int) -> list[Any]:
    """``wide`` words in one access, which nothing in the nearest cache makes room for.

    An 8-bit word, which no register of PTX has, is loaded as any other.
    """
    name = str(word)
    if name not in _CONSTRAINTS:
        return [b.load(b.gep(pointer, [_I32(k)])) for k in range(wide)]
    bits = {"float": 32, "double": 64}.get(name) or word.width
    many = f".v{wide}" if wide > 1 else ""
    outputs = ", ".join(f"${k}" for k in range(wide))
    outputs = f"{{{outputs}}}" if wide > 1 else outputs
    text = f"ld.global.L1::no_allocate{many}.{_ASSEMBLY[bits]} {outputs}, [${wide}];"
    result = ir.LiteralStructType([word] * wide) if wide > 1 else word
    constraint = ",".join([f"={_CONSTRAINTS[name]}"] * wide + ["l"])
    kind = ir.FunctionType(result, [_I64])
    call = ir.InlineAsm(kind, text, constraint, side_effect=True)
    value = b.call(call, [b.ptrtoint(pointer, _I64)])
    return [b.extract_value(value, k) for k in range(wide)] if wide > 1 else [value]


_LOWERINGS: Final[dict[str, Lowering]] = {
    "block_index": _sreg("ctaid.x"),
    "thread_index": _sreg("tid.x"),
    "barrier": _barrier,
    "cluster_arrive": _cluster_barrier("arrive"),
    "cluster_wait": _cluster_barrier("wait"),
    "put": _put,
    "quotient": _unsigned("udiv"),
    "remainder": _unsigned("urem"),
    "shuffle_xor": _shuffle_xor,
    "shared": _shared,
    "registers": _registers,
    "load": _vector,
    "stream": _vector,
    "store": _vector,
}


def _register() -> None:
    numba_scalars.register(
        types,
        signature,
        typeof_impl,
        models.register_model,
        opaque_model,
        registry,
        CudaArithmetic,
    )
    models.register_model(DeviceFunctionType)(opaque_model)
    known = {f: DeviceFunctionType(f) for f in FUNCTIONS.values()}
    typeof_impl.register(DeviceFunction)(lambda value, c: known[value])

    @registry.lower_constant(DeviceFunctionType)
    def constant(context: Any, builder: Any, ty: Any, value: Any) -> Any:
        return context.get_dummy_value()

    def lowering(function: DeviceFunction) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return _LOWERINGS[function.kind](context, builder, function, sig, args)

        return lower

    for function in known:
        key = (DeviceFunctionType, function)
        registry.lower(key, types.VarArg(types.Any))(lowering(function))


_register()


def argument_type(parameter: Parameter) -> Any:
    """The type of a kernel's parameter."""
    if parameter.kind == "i64":
        return types.int64
    dtype = parameter.kind.removesuffix("*")
    return pointer_type("u16" if dtype in HALVES else dtype)


def compile_ptx(kernel: Kernel, arch: tuple[int, int]) -> str:
    """The PTX of ``kernel`` for compute capability ``arch``.

    Its entry, ``kernel.name``, takes the parameters: pointers, and 64-bit integers.
    """
    filename = f"<arrayfn {kernel.name}>"
    linecache.cache[filename] = (
        len(kernel.source),
        None,
        kernel.source.splitlines(keepends=True),
        filename,
    )
    namespace: dict[str, Any] = {}
    exec(compile(kernel.source, filename, "exec"), namespace)
    result = compiler.compile_cuda(
        namespace[kernel.name],
        types.void,
        tuple(argument_type(p) for p in kernel.parameters),
        nvvm_options=dict(_NVVM_OPTIONS),
        cc=arch,
    )
    library = result.library
    entry = library.get_function(result.fndesc.llvm_func_name)
    compiler.kernel_fixup(entry, debug=False)
    nvvm.set_launch_bounds(entry, kernel.threads)
    _mark_pointers(entry, kernel.parameters)
    ptx = library.get_asm_str(cc=arch)
    lines = [line for line in ptx.splitlines() if "NumbaEnv" not in line]
    text = "\n".join(lines).replace(entry.name, kernel.name) + "\n"
    return text if kernel.cluster == 1 else _in_clusters(text, kernel.cluster)


def _in_clusters(ptx: str, cluster: int) -> str:
    """``ptx`` with an entry that is launched in clusters of so many blocks."""
    head, entry, body = ptx.partition(".visible .entry ")
    directives = f"\n.explicitcluster\n.reqnctapercluster {cluster}, 1, 1\n{{"
    return head + entry + body.replace("\n{", directives, 1)


def _mark_pointers(entry: Any, parameters: Sequence[Parameter]) -> None:
    """Say that the kernel's arrays do not overlap: the plan keeps buffers apart."""
    for argument, parameter in zip(entry.args, parameters, strict=True):
        if parameter.kind != "i64":
            argument.add_attribute("noalias")
