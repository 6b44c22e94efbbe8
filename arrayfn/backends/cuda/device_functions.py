"""Emitters of the CUDA vocabulary: the LLVM IR for NVVM of each device function.

They need only llvmlite; the compilers of kernels call ``emit``. Pointers are generic;
instructions that need an address within shared memory get it from them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from llvmlite import ir

from arrayfn.backends.cuda import lookback, warp_functions
from arrayfn.backends.cuda.assembly import (
    EMITTERS,
    F32,
    I8,
    I32,
    I64,
    SHARED,
    VOID,
    Call,
    assembly,
    bytes_of,
    emits,
    emits_ptx,
    global_address,
    intrinsic,
    pure_assembly,
    shared_address,
)
from arrayfn.backends.cuda.matrix_functions import rounded_pairs
from arrayfn.backends.llvm_arithmetic import is_float
from arrayfn.lowering.cuda.vocabulary import (
    MIN_DIVIDEND,
    MIN_DIVISOR,
    SHARED_LINE,
    DeviceFunction,
)
from arrayfn.lowering.scalars.arithmetic import (
    COMPLEXES,
    HALF_PRECISION,
    REAL_PART,
    width,
)

REGISTERED: Final = (lookback, warp_functions)
"""Other modules that register emitters when they are imported."""


def emit(call: Call) -> Any:
    """Emit ``call``; return its value, or None if it has none."""
    return EMITTERS[call.function.kind](call)


emits_ptx(
    cluster_arrive="barrier.cluster.arrive.relaxed.aligned;",
    cluster_wait="barrier.cluster.wait.aligned;",
    griddepcontrol_wait="griddepcontrol.wait;",
    griddepcontrol_launch_dependents="griddepcontrol.launch_dependents;",
)


@emits("block_index", "thread_index")
def _index(c: Call) -> Any:
    """Emit ``block_index`` or ``thread_index``, as i64."""
    register = "ctaid" if c.function.kind == "block_index" else "tid"
    value = intrinsic(c.b, f"llvm.nvvm.read.ptx.sreg.{register}.x", I32)
    return c.b.zext(value, I64)


@emits("barrier")
def _barrier(c: Call) -> None:
    intrinsic(c.b, "llvm.nvvm.barrier0", VOID)


@emits("quotient", "remainder")
def _division(c: Call) -> Any:
    """Emit a division of indices below 2**31, in 32 bits for a third of the time."""
    x, y = (c.b.trunc(a, I32) for a in c.args)
    divide = c.b.udiv if c.function.kind == "quotient" else c.b.urem
    return c.b.zext(divide(x, y), I64)


@emits("byte")
def _byte(c: Call) -> Any:
    """Emit the byte of a word that begins at bit ``shift``."""
    b, (value, shift) = c.b, c.args
    shifted = b.lshr(value, shift if value.type == I64 else b.trunc(shift, I32))
    word = shifted if value.type == I32 else b.trunc(shifted, I32)
    return b.zext(b.and_(word, I32(255)), I64)


# Memory.


@emits("atomic_add")
def _atomic_add(c: Call) -> None:
    """Emit an atomic addition to an element of an array; floats use PTX's ``red``."""
    b, (array, at, value) = c.b, c.args
    element = b.gep(array, [at])
    if not is_float(c.dtype):
        b.atomic_rmw("add", element, value, "monotonic")
        return
    kind = "f" if c.dtype == "f32" else "d"
    text = f"red.add.{c.dtype} [$0], $1;"
    assembly(b, text, f"l,{kind}", [b.ptrtoint(element, I64), value])


def _alignment(function: DeviceFunction, nbytes: int) -> int:
    """The alignment in bytes of a shared array of ``nbytes``.

    mbarriers, and arrays of a line of shared memory or more, begin at a line. Smaller
    arrays share a line: a layer norm of rows of 16384, whose warps exchange two sums,
    took 76 us where each of these arrays had a line of its own, and 68 us with both in
    one.
    """
    if function.kind == "mbarriers":
        return SHARED_LINE
    return min(SHARED_LINE, max(16, 1 << max(0, nbytes - 1).bit_length()))


@emits("shared", "mbarriers")
def _shared(c: Call) -> Any:
    """Emit a static array in shared memory; the value is a generic pointer to it."""
    b = c.b
    array = ir.ArrayType(c.element, c.count)
    name = f"{c.function.name}.{len(b.module.globals)}"
    variable: Any = ir.GlobalVariable(b.module, array, name, addrspace=SHARED)
    nbytes = c.count * max(1, bytes_of(c.dtype))
    variable.linkage, variable.align = "internal", _alignment(c.function, nbytes)
    variable.initializer = ir.Constant(array, ir.Undefined)
    pointer = b.gep(variable, [I32(0), I32(0)])
    return b.addrspacecast(pointer, c.element.as_pointer())


@emits("dynamic_shared")
def _dynamic_shared(c: Call) -> Any:
    """Emit a pointer into the dynamic shared memory, at a byte offset."""
    b, name = c.b, "dynamic_shared"
    variable: Any = b.module.globals.get(name)
    if variable is None:
        array = ir.ArrayType(I8, 0)
        variable = ir.GlobalVariable(b.module, array, name, addrspace=SHARED)
        variable.linkage, variable.align = "external", SHARED_LINE
    pointer = b.gep(variable, [I64(0), c.args[0]])
    generic = b.addrspacecast(pointer, I8.as_pointer())
    return b.bitcast(generic, c.element.as_pointer())


@emits("registers")
def _registers(c: Call) -> Any:
    """Emit an array of the thread, which LLVM keeps in registers."""
    with c.b.goto_entry_block():
        memory: Any = c.b.alloca(ir.ArrayType(c.element, c.count), name=c.function.name)
    memory.align = 16
    return c.b.gep(memory, [I32(0), I32(0)])


@emits("subarray")
def _subarray(c: Call) -> Any:
    array, at = c.args
    return c.b.gep(array, [at])


class _Words(NamedTuple):
    """A vector in memory as words of 1 to 8 bytes, as it is loaded and stored."""

    type: Any  # LLVM's
    number: int
    max_per_access: int  # 16 bytes, the widest access of a thread


def _words(dtype: str, lanes: int) -> _Words:
    """Split a vector of ``lanes`` elements into the words of its loads and stores.

    Elements below 32 bits are combined into words of 32 bits, or into one narrower
    word.
    """
    if dtype in COMPLEXES:
        dtype, lanes = REAL_PART[dtype], 2 * lanes
    bits = width(dtype)
    if is_float(dtype):
        word = ir.FloatType() if dtype == "f32" else ir.DoubleType()
        return _Words(word, lanes, 128 // bits)
    if bits >= 32:
        return _Words(ir.IntType(bits), lanes, 128 // bits)
    total = lanes * bits
    word = ir.IntType(min(32, total))
    return _Words(word, total // word.width, 4)


def _size(word: Any) -> int:
    """Bytes of a word."""
    if isinstance(word, ir.DoubleType):
        return 8
    return 4 if isinstance(word, ir.FloatType) else word.width // 8


@emits("load", "store")
def _vector(c: Call) -> None:
    """Emit a copy between memory and registers, in the widest accesses."""
    b, (array, at, tile, tile_at) = c.b, c.args
    if c.dtype in HALF_PRECISION:
        tile, tile_at = rounded_pairs(c, tile, tile_at), I32(0)
    word, count, max_per_access = _words(c.dtype, c.function.lanes)
    outer = b.bitcast(b.gep(array, [at]), word.as_pointer())
    inner = b.bitcast(b.gep(tile, [tile_at]), word.as_pointer())
    source, target = (outer, inner) if c.function.kind == "load" else (inner, outer)
    words = min(count, max_per_access)  # of one access
    vector = ir.VectorType(word, words) if words > 1 else word
    size = _size(word)
    for start in range(0, count, words):
        if c.function.kind == "load":
            pointer = b.bitcast(b.gep(source, [I32(start)]), vector.as_pointer())
            value = b.load(pointer, align=size * words)
            for k in range(words):
                part = b.extract_element(value, I32(k)) if words > 1 else value
                b.store(part, b.gep(target, [I32(start + k)]))
        else:
            value = ir.Constant(vector, ir.Undefined)
            for k in range(words):
                part = b.load(b.gep(source, [I32(start + k)]))
                value = b.insert_element(value, part, I32(k)) if words > 1 else part
            pointer = b.bitcast(b.gep(target, [I32(start)]), vector.as_pointer())
            b.store(value, pointer, align=size * words)


# Asynchronous copies.


def _mbarrier(b: ir.IRBuilder, mbarriers: Any, k: Any) -> Any:
    """The address of an mbarrier in shared memory."""
    return shared_address(b, b.gep(mbarriers, [k]))


@emits("mbarrier_init")
def _mbarrier_init(c: Call) -> None:
    """Emit the initialization of ``count`` mbarriers, for one arrival each."""
    for k in range(c.count):
        address = _mbarrier(c.b, c.args[0], I64(k))
        assembly(c.b, "mbarrier.init.shared.b64 [$0], 1;", "r", [address])


@emits("fence_mbarrier_init")
def _fence_mbarrier_init(c: Call) -> None:
    """Emit fences that show initialized mbarriers to other blocks and copies."""
    assembly(c.b, "fence.mbarrier_init.release.cluster;", "", ())
    assembly(c.b, "fence.proxy.async;", "", ())


@emits("mbarrier_expect_tx")
def _mbarrier_expect_tx(c: Call) -> None:
    """Emit an arrival at an mbarrier, and how many bytes it has to wait for."""
    mbarriers, k, nbytes = c.args
    address = _mbarrier(c.b, mbarriers, k)
    text = "mbarrier.arrive.expect_tx.shared.b64 _, [$0], $1;"
    assembly(c.b, text, "r,r", [address, c.b.trunc(nbytes, I32)])


@emits("mbarrier_wait")
def _mbarrier_wait(c: Call) -> None:
    """Emit a spinning wait until an mbarrier's phase of ``parity`` is complete."""
    mbarriers, k, parity = c.args
    address = _mbarrier(c.b, mbarriers, k)
    text = (
        "{\n.reg .pred arrived;\nAGAIN:\n"
        "mbarrier.try_wait.parity.shared.b64 arrived, [$0], $1;\n"
        "@arrived bra DONE;\nbra AGAIN;\nDONE:\n}"
    )
    assembly(c.b, text, "r,r", [address, c.b.trunc(parity, I32)])


@emits("bulk_copy")
def _bulk_copy(c: Call) -> None:
    """Emit a bulk asynchronous copy to shared memory; an mbarrier counts its bytes."""
    b, (array, at, shared, shared_at, elements, mbarriers, k) = c.b, c.args
    source = global_address(b, b.gep(array, [at]))
    target = shared_address(b, b.gep(shared, [shared_at]))
    mbarrier = _mbarrier(b, mbarriers, k)
    nbytes = b.trunc(b.mul(elements, I64(bytes_of(c.dtype))), I32)
    text = (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[$0], [$1], $2, [$3];"
    )
    assembly(b, text, "r,l,r,r", [target, source, nbytes, mbarrier])


@emits("dsmem_store")
def _dsmem_store(c: Call) -> None:
    """Emit a store to another block's shared memory; an mbarrier there counts it."""
    b, (array, at, value, rank, mbarriers, k) = c.b, c.args
    rank = b.trunc(rank, I32)

    def of_peer(pointer: Any) -> Any:
        own = [shared_address(b, pointer), rank]
        return assembly(b, "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", own, I32)

    address, mbarrier = of_peer(b.gep(array, [at])), of_peer(b.gep(mbarriers, [k]))
    parts = [value]
    if c.dtype in COMPLEXES:
        parts = [b.extract_value(value, n) for n in range(2)]
    size = bytes_of(c.dtype) // len(parts)
    word, letter = (I32, "r") if size == 4 else (I64, "l")
    for n, part in enumerate(parts):
        bits = part if part.type == word else b.bitcast(part, word)
        text = (
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
            f".b{8 * size} [$0], $1, [$2];"
        )
        target = b.add(address, I32(n * size))
        assembly(b, text, f"r,{letter},r", [target, bits, mbarrier])


# All blocks of a grid.

# Each block adds 1 to the word, but the first one adds what makes the sum 2**31: then
# the highest bit changes, which all wait for, and the rest is 0 for the next time.
# The addition releases what the block wrote; one fence after the wait acquires it.
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


@emits("grid_barrier")
def _grid_barrier(c: Call) -> None:
    """Emit a barrier of all blocks of the grid, counted in global memory."""
    barrier_state, blocks = c.args
    arguments = [global_address(c.b, barrier_state), c.b.trunc(blocks, I32)]
    assembly(c.b, _GRID_BARRIER, "l,r", arguments)


# Divisions of many numbers by one.


def _fma(b: ir.IRBuilder, x: Any, y: Any, z: Any) -> Any:
    text = "fma.rn.f32 $0, $1, $2, $3;"
    return pure_assembly(b, text, "=f,f,f,f", (x, y, z), F32)


def _negated(b: ir.IRBuilder, x: Any) -> Any:
    return b.fsub(F32(-0.0), x)


@emits("fma_rn")
def _fma_rn(c: Call) -> Any:
    return _fma(c.b, *c.args)


@emits("inverse")
def _inverse(c: Call) -> Any:
    """Emit 1 / y, by the reciprocal unit and one Newton step."""
    b, (y,) = c.b, c.args
    near = pure_assembly(b, "rcp.approx.ftz.f32 $0, $1;", "=f,f", (y,), F32)
    error = _fma(b, _negated(b, y), near, F32(1.0))
    return _fma(b, near, error, near)


@emits("divide")
def _divide(c: Call) -> Any:
    """Emit x / y from x, y and 1 / y: a product and its correction (Markstein)."""
    b, (x, y, inverse) = c.b, c.args
    near = b.fmul(x, inverse)
    rest = _fma(b, _negated(b, y), near, x)
    return _fma(b, inverse, rest, near)


@emits("divides")
def _divides(c: Call) -> Any:
    """Emit the test that ``divide`` is exact: nothing in it under- or overflows."""
    b, (minimum, maximum, y) = c.b, c.args
    size = pure_assembly(b, "abs.f32 $0, $1;", "=f,f", (y,), F32)
    tests = (
        b.fcmp_ordered(">=", minimum, F32(MIN_DIVIDEND)),
        b.fcmp_ordered("<=", maximum, F32(1 / MIN_DIVIDEND)),
        b.fcmp_ordered(">=", size, F32(MIN_DIVISOR)),
        b.fcmp_ordered("<=", size, F32(1 / MIN_DIVISOR)),
    )
    return b.and_(b.and_(tests[0], tests[1]), b.and_(tests[2], tests[3]))
