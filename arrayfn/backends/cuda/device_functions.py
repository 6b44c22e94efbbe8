"""The CUDA vocabulary as LLVM IR for NVVM: what each device function becomes.

Pure llvmlite: whoever compiles kernels calls ``emit``. Pointers are generic ones;
instructions that want an address within shared memory get it from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir

from arrayfn.backends.cuda.assembly import (
    F32,
    I8,
    I32,
    I64,
    SHARED,
    VOID,
    Emitter,
    assembly,
    bytes_of,
    global_address,
    intrinsic,
    pure_assembly,
    shared_address,
)
from arrayfn.backends.cuda.lookback import LOOKBACK_EMITTERS
from arrayfn.backends.cuda.matrix_functions import MATRIX_EMITTERS, rounded_words
from arrayfn.backends.cuda.warp_functions import WARP_EMITTERS
from arrayfn.backends.llvm_arithmetic import is_float
from arrayfn.lowering.cuda.vocabulary import (
    LEAST_DIVIDEND,
    LEAST_DIVISOR,
    SHARED_LINE,
    DeviceFunction,
)
from arrayfn.lowering.scalars.arithmetic import (
    COMPLEXES,
    HALF_PRECISION,
    REAL_PART,
    width,
)


def emit(
    b: Any, function: DeviceFunction, args: Sequence[Any], element: Any, count: int
) -> Any:
    """The value of a call of ``function``; None if it has none.

    ``element`` is the LLVM type of its dtype in memory, ``count`` the constant that
    says how many elements it is about, where it is one.
    """
    return _EMITTERS[function.kind](b, function, args, element, count)


def _special(register: str) -> Emitter:
    def emitter(b: Any, function: Any, args: Any, element: Any, count: int) -> Any:
        value = intrinsic(b, f"llvm.nvvm.read.ptx.sreg.{register}", I32, ())
        return b.zext(value, I64)

    return emitter


def _barrier(b: Any, function: Any, args: Any, element: Any, count: int) -> None:
    intrinsic(b, "llvm.nvvm.barrier0", VOID, ())


def _cluster_barrier(instruction: str) -> Emitter:
    def emitter(b: Any, function: Any, args: Any, element: Any, count: int) -> None:
        assembly(b, f"barrier.cluster.{instruction}.aligned;", "", ())

    return emitter


def _unsigned(instruction: str) -> Emitter:
    """A division of indices below 2**31, in 32 bits: it takes a third of the time."""

    def emitter(b: Any, function: Any, args: Any, element: Any, count: int) -> Any:
        x, y = (b.trunc(a, I32) for a in args)
        return b.zext(getattr(b, instruction)(x, y), I64)

    return emitter


def _byte(b: Any, function: Any, args: Any, element: Any, count: int) -> Any:
    value, shift = args
    shifted = b.lshr(value, shift if value.type == I64 else b.trunc(shift, I32))
    word = shifted if value.type == I32 else b.trunc(shifted, I32)
    return b.zext(b.and_(word, I32(255)), I64)


# Memory.


def _atomic_add(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    array, at, value = args
    place = b.gep(array, [at])
    if not is_float(function.dtype):
        b.atomic_rmw("add", place, value, "monotonic")
        return
    kind = "f" if function.dtype == "f32" else "d"
    text = f"red.add.{function.dtype} [$0], $1;"
    assembly(b, text, f"l,{kind}", [b.ptrtoint(place, I64), value])


def _alignment(function: DeviceFunction, nbytes: int) -> int:
    """How an array of a block lies: mbarriers, and what is a line, begin one.

    Smaller ones share a line: a layer norm of rows of 16384, whose warps exchange two
    sums, took 76 us where each of these arrays had its own, and 68 in one.
    """
    if function.kind == "mbarriers":
        return SHARED_LINE
    return min(SHARED_LINE, max(16, 1 << max(0, nbytes - 1).bit_length()))


def _shared(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> Any:
    array = ir.ArrayType(element, count)
    name = f"{function.name}.{len(b.module.globals)}"
    variable: Any = ir.GlobalVariable(b.module, array, name, addrspace=SHARED)
    nbytes = count * max(1, bytes_of(function.dtype))
    variable.linkage, variable.align = "internal", _alignment(function, nbytes)
    variable.initializer = ir.Constant(array, ir.Undefined)
    pointer = b.gep(variable, [I32(0), I32(0)])
    return b.addrspacecast(pointer, element.as_pointer())


def _dynamic_shared(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> Any:
    name = "dynamic_shared"
    variable: Any = b.module.globals.get(name)
    if variable is None:
        array = ir.ArrayType(I8, 0)
        variable = ir.GlobalVariable(b.module, array, name, addrspace=SHARED)
        variable.linkage, variable.align = "external", SHARED_LINE
    pointer = b.gep(variable, [I64(0), args[0]])
    generic = b.addrspacecast(pointer, I8.as_pointer())
    return b.bitcast(generic, element.as_pointer())


def _registers(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> Any:
    array = ir.ArrayType(element, count)
    with b.goto_entry_block():
        memory = b.alloca(array, name=function.name)
    memory.align = 16
    return b.gep(memory, [I32(0), I32(0)])


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


def _size(word: Any) -> int:
    """Bytes of a word."""
    if isinstance(word, ir.DoubleType):
        return 8
    return 4 if isinstance(word, ir.FloatType) else word.width // 8


def _vector(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    """Copy between memory and registers in the widest accesses."""
    array, at, tile, place = args
    if function.dtype in HALF_PRECISION:
        tile, place = rounded_words(b, function, tile, place), I32(0)
    word, count, most = _words(function.dtype, function.lanes)
    outer = b.bitcast(b.gep(array, [at]), word.as_pointer())
    inner = b.bitcast(b.gep(tile, [place]), word.as_pointer())
    source, target = (outer, inner) if function.kind == "load" else (inner, outer)
    wide = min(count, most)
    vector = ir.VectorType(word, wide) if wide > 1 else word
    size = _size(word)
    for start in range(0, count, wide):
        if function.kind == "load":
            pointer = b.bitcast(b.gep(source, [I32(start)]), vector.as_pointer())
            value = b.load(pointer, align=size * wide)
            for k in range(wide):
                part = b.extract_element(value, I32(k)) if wide > 1 else value
                b.store(part, b.gep(target, [I32(start + k)]))
        else:
            value = ir.Constant(vector, ir.Undefined)
            for k in range(wide):
                part = b.load(b.gep(source, [I32(start + k)]))
                value = b.insert_element(value, part, I32(k)) if wide > 1 else part
            pointer = b.bitcast(b.gep(target, [I32(start)]), vector.as_pointer())
            b.store(value, pointer, align=size * wide)


# Copies that run beside.


def _mbarrier_init(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    for k in range(count):
        address = shared_address(b, b.gep(args[0], [I64(k)]))
        assembly(b, "mbarrier.init.shared.b64 [$0], 1;", "r", [address])


def _fence_mbarrier_init(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    """To other blocks, and to copies."""
    assembly(b, "fence.mbarrier_init.release.cluster;", "", ())
    assembly(b, "fence.proxy.async;", "", ())


def _mbarrier_expect_tx(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    mbarriers, k, nbytes = args
    address = shared_address(b, b.gep(mbarriers, [k]))
    text = "mbarrier.arrive.expect_tx.shared.b64 _, [$0], $1;"
    assembly(b, text, "r,r", [address, b.trunc(nbytes, I32)])


def _bulk_copy(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    array, at, shared, place, elements, mbarriers, k = args
    source = b.gep(array, [at])
    size = bytes_of(function.dtype)
    source = global_address(b, source)
    target = shared_address(b, b.gep(shared, [place]))
    mbarrier = shared_address(b, b.gep(mbarriers, [k]))
    nbytes = b.trunc(b.mul(elements, I64(size)), I32)
    text = (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[$0], [$1], $2, [$3];"
    )
    assembly(b, text, "r,l,r,r", [target, source, nbytes, mbarrier])


def _griddepcontrol_wait(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    assembly(b, "griddepcontrol.wait;", "", ())


def _griddepcontrol_launch_dependents(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    assembly(b, "griddepcontrol.launch_dependents;", "", ())


def _dsmem_store(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    """A store to the shared memory of a block of the cluster, which counts it."""
    array, at, value, rank, mbarriers, k = args
    rank = b.trunc(rank, I32)

    def of_peer(pointer: Any) -> Any:
        own = [shared_address(b, pointer), rank]
        return assembly(b, "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", own, I32)

    place, mbarrier = of_peer(b.gep(array, [at])), of_peer(b.gep(mbarriers, [k]))
    parts = [value]
    if function.dtype in COMPLEXES:
        parts = [b.extract_value(value, n) for n in range(2)]
    size = bytes_of(function.dtype) // len(parts)
    word, letter = (I32, "r") if size == 4 else (I64, "l")
    for n, part in enumerate(parts):
        bits = part if part.type == word else b.bitcast(part, word)
        text = (
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
            f".b{8 * size} [$0], $1, [$2];"
        )
        target = b.add(place, I32(n * size))
        assembly(b, text, f"r,{letter},r", [target, bits, mbarrier])


def _await(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    mbarriers, k, parity = args
    address = shared_address(b, b.gep(mbarriers, [k]))
    text = (
        "{\n.reg .pred arrived;\nAGAIN:\n"
        "mbarrier.try_wait.parity.shared.b64 arrived, [$0], $1;\n"
        "@arrived bra DONE;\nbra AGAIN;\nDONE:\n}"
    )
    assembly(b, text, "r,r", [address, b.trunc(parity, I32)])


# All blocks of a grid.

# Each block adds 1 to the word, but the first one what makes the sum 2**31: then the
# highest bit changes, which all wait for, and the rest is 0 again for the next time.
# To add releases what the block wrote; one fence, after all have met, acquires it.
_GRID_BARRIER: Final = """{
.reg .pred other, first, alone;
.reg .u32 thread, block, step, was, now;
bar.sync 0;
mov.u32 thread, %tid.x;
setp.ne.u32 other, thread, 0;
@other bra MET;
mov.u32 block, %ctaid.x;
setp.eq.u32 first, block, 0;
sub.u32 step, 0x80000001, $1;
selp.u32 step, step, 1, first;
atom.add.release.gpu.global.u32 was, [$0], step;
AGAIN:
ld.relaxed.gpu.global.u32 now, [$0];
xor.b32 now, now, was;
setp.lt.u32 alone, now, 0x80000000;
@alone bra AGAIN;
fence.acq_rel.gpu;
MET:
bar.sync 0;
}"""


def _grid_barrier(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> None:
    barrier_state, blocks = args
    arguments = [global_address(b, barrier_state), b.trunc(blocks, I32)]
    assembly(b, _GRID_BARRIER, "l,r", arguments)


def _subarray(
    b: Any, function: DeviceFunction, args: Any, element: Any, count: int
) -> Any:
    return b.gep(args[0], [args[1]])


# Divisions of many numbers by one.


def _fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    text = "fma.rn.f32 $0, $1, $2, $3;"
    return pure_assembly(b, text, "=f,f,f,f", (x, y, z), F32)


def _negated(b: Any, x: Any) -> Any:
    return b.fsub(F32(-0.0), x)


def _inverse(b: Any, function: Any, args: Any, element: Any, count: int) -> Any:
    """1 / y by the unit for inverses and one step of Newton's."""
    (y,) = args
    near = pure_assembly(b, "rcp.approx.ftz.f32 $0, $1;", "=f,f", (y,), F32)
    error = _fma(b, _negated(b, y), near, F32(1.0))
    return _fma(b, near, error, near)


def _divide(b: Any, function: Any, args: Any, element: Any, count: int) -> Any:
    """What a division does after its inverse (Markstein): a product, corrected."""
    x, y, inverse = args
    near = b.fmul(x, inverse)
    rest = _fma(b, _negated(b, y), near, x)
    return _fma(b, inverse, rest, near)


def _divides(b: Any, function: Any, args: Any, element: Any, count: int) -> Any:
    """Whether nothing in between is too small or too large for all of its bits."""
    least, greatest, y = args
    size = pure_assembly(b, "abs.f32 $0, $1;", "=f,f", (y,), F32)
    tests = (
        b.fcmp_ordered(">=", least, F32(LEAST_DIVIDEND)),
        b.fcmp_ordered("<=", greatest, F32(1 / LEAST_DIVIDEND)),
        b.fcmp_ordered(">=", size, F32(LEAST_DIVISOR)),
        b.fcmp_ordered("<=", size, F32(1 / LEAST_DIVISOR)),
    )
    return b.and_(b.and_(tests[0], tests[1]), b.and_(tests[2], tests[3]))


_EMITTERS: Final[dict[str, Emitter]] = {
    "block_index": _special("ctaid.x"),
    "thread_index": _special("tid.x"),
    "barrier": _barrier,
    "byte": _byte,
    "atomic_add": _atomic_add,
    "cluster_arrive": _cluster_barrier("arrive.relaxed"),
    "cluster_wait": _cluster_barrier("wait"),
    "dsmem_store": _dsmem_store,
    "quotient": _unsigned("udiv"),
    "remainder": _unsigned("urem"),
    "inverse": _inverse,
    "divide": _divide,
    "divides": _divides,
    "fma_rn": lambda b, function, args, element, count: _fma(b, *args),
    "shared": _shared,
    "mbarriers": _shared,
    "dynamic_shared": _dynamic_shared,
    "registers": _registers,
    "load": _vector,
    "store": _vector,
    "mbarrier_init": _mbarrier_init,
    "fence_mbarrier_init": _fence_mbarrier_init,
    "mbarrier_expect_tx": _mbarrier_expect_tx,
    "bulk_copy": _bulk_copy,
    "griddepcontrol_wait": _griddepcontrol_wait,
    "griddepcontrol_launch_dependents": _griddepcontrol_launch_dependents,
    "mbarrier_wait": _await,
    **WARP_EMITTERS,
    **MATRIX_EMITTERS,
    "grid_barrier": _grid_barrier,
    "subarray": _subarray,
    **LOOKBACK_EMITTERS,
}
