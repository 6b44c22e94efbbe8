"""Emitters of the CUDA vocabulary: the LLVM IR for NVVM of each device function.

The compilers of kernels call ``emit``. The emitters need only llvmlite. Pointers in
kernels are generic; for instructions that need an address in shared memory, emitters
convert them.
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
from arrayfn.backends.llvm_arithmetic import is_float, scalar_type
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
    """Emit the block's index in the grid or the thread's index in the block, as i64."""
    register = "ctaid" if c.function.kind == "block_index" else "tid"
    value = intrinsic(c.b, f"llvm.nvvm.read.ptx.sreg.{register}.x", I32)
    return c.b.zext(value, I64)


@emits("barrier")
def _barrier(c: Call) -> None:
    """Emit a barrier of all threads of the block."""
    intrinsic(c.b, "llvm.nvvm.barrier0", VOID)


@emits("quotient", "remainder")
def _division(c: Call) -> Any:
    """Emit the quotient or remainder of two indices below 2**31, as i64.

    The division has 32 bits, which takes a third of the time of 64.
    """
    x, y = (c.b.trunc(a, I32) for a in c.args)
    divide = c.b.udiv if c.function.kind == "quotient" else c.b.urem
    return c.b.zext(divide(x, y), I64)


@emits("byte")
def _byte(c: Call) -> Any:
    """Emit the byte of the integer ``value`` that begins at bit ``shift``, as i64."""
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
    register = "f" if c.dtype == "f32" else "d"
    text = f"red.add.{c.dtype} [$0], $1;"
    assembly(b, text, f"l,{register}", [b.ptrtoint(element, I64), value])


def _alignment(function: DeviceFunction, nbytes: int) -> int:
    """Return the alignment in bytes of a shared array of ``nbytes``.

    mbarriers, and arrays of at least a line of shared memory, begin at a line. A
    smaller array is aligned to its size, rounded up to a power of two of at least 16.
    So small arrays share a line: a layer norm of rows of 16384, whose warps exchange
    two sums, took 76 us where each of the two arrays had a line, and 68 us with both in
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
    name = f"{c.function.name}.{len(b.module.globals)}"  # unique in the module
    variable: Any = ir.GlobalVariable(b.module, array, name, addrspace=SHARED)
    nbytes = c.count * max(1, bytes_of(c.dtype))
    variable.linkage, variable.align = "internal", _alignment(c.function, nbytes)
    variable.initializer = ir.Constant(array, ir.Undefined)
    pointer = b.gep(variable, [I32(0), I32(0)])
    return b.addrspacecast(pointer, c.element.as_pointer())


@emits("dynamic_shared")
def _dynamic_shared(c: Call) -> Any:
    """Emit a generic pointer to a byte offset in the dynamic shared memory.

    That memory is one external variable of the module, made at the first call.
    """
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
    """Emit an array of each thread, which LLVM keeps in registers.

    The value is a pointer to its first element.
    """
    with c.b.goto_entry_block():
        memory: Any = c.b.alloca(ir.ArrayType(c.element, c.count), name=c.function.name)
    memory.align = 16
    return c.b.gep(memory, [I32(0), I32(0)])


@emits("subarray")
def _subarray(c: Call) -> Any:
    """Emit a pointer to ``array`` from element ``at`` on."""
    array, at = c.args
    return c.b.gep(array, [at])


class _Words(NamedTuple):
    """The words of 1 to 8 bytes as which a vector is loaded and stored."""

    type: Any  # the LLVM type of a word
    number: int  # of words in the vector
    max_per_access: int  # words in 16 bytes, the widest access of a thread


def _words(dtype: str, lanes: int) -> _Words:
    """Split a vector of ``lanes`` elements into the words of its loads and stores.

    Elements below 32 bits are combined into words of 32 bits, or into one narrower
    word. A complex element is two words.
    """
    if dtype in COMPLEXES:
        dtype, lanes = REAL_PART[dtype], 2 * lanes
    bits = width(dtype)
    if bits >= 32:
        return _Words(scalar_type(dtype), lanes, max_per_access=128 // bits)
    total = lanes * bits
    word = ir.IntType(min(32, total))
    return _Words(word, total // word.width, max_per_access=4)


@emits("load", "store")
def _vector(c: Call) -> None:
    """Emit the copy of a vector between memory and registers, in the widest accesses.

    A load copies from ``array[at]`` to ``tile[tile_at]``, a store the other way. A
    store of fp16 or bf16 rounds float32 registers first.
    """
    b, (array, at, tile, tile_at) = c.b, c.args
    if c.dtype in HALF_PRECISION:
        tile, tile_at = rounded_pairs(c, tile, tile_at), I32(0)
    word, count, max_per_access = _words(c.dtype, c.function.lanes)
    memory = b.bitcast(b.gep(array, [at]), word.as_pointer())
    registers = b.bitcast(b.gep(tile, [tile_at]), word.as_pointer())
    is_load = c.function.kind == "load"
    source, target = (memory, registers) if is_load else (registers, memory)
    words = min(count, max_per_access)  # of one access
    vector = ir.VectorType(word, words) if words > 1 else word
    size = c.function.lanes * bytes_of(c.dtype) // count  # of a word
    for start in range(0, count, words):
        if is_load:
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
    """Emit the 32-bit shared address of ``mbarriers[k]``."""
    return shared_address(b, b.gep(mbarriers, [k]))


@emits("mbarrier_init")
def _mbarrier_init(c: Call) -> None:
    """Emit the initialization of the first ``count`` mbarriers.

    One arrival completes a phase of each.
    """
    for k in range(c.count):
        address = _mbarrier(c.b, c.args[0], I64(k))
        assembly(c.b, "mbarrier.init.shared.b64 [$0], 1;", "r", [address])


@emits("fence_mbarrier_init")
def _fence_mbarrier_init(c: Call) -> None:
    """Emit fences that make initialized mbarriers visible to other parties.

    These are the blocks of the cluster, and asynchronous copies.
    """
    assembly(c.b, "fence.mbarrier_init.release.cluster;", "", ())
    assembly(c.b, "fence.proxy.async;", "", ())


@emits("mbarrier_expect_tx")
def _mbarrier_expect_tx(c: Call) -> None:
    """Emit an arrival at ``mbarriers[k]`` that announces ``nbytes`` of copies.

    The mbarrier's phase completes when these bytes have arrived.
    """
    mbarriers, k, nbytes = c.args
    address = _mbarrier(c.b, mbarriers, k)
    text = "mbarrier.arrive.expect_tx.shared.b64 _, [$0], $1;"
    assembly(c.b, text, "r,r", [address, c.b.trunc(nbytes, I32)])


@emits("mbarrier_wait")
def _mbarrier_wait(c: Call) -> None:
    """Emit a spinning wait until the phase of ``mbarriers[k]`` is complete.

    ``parity`` is that of the phase's number, 0 or 1.
    """
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
    """Emit a bulk asynchronous copy from ``array[at]`` to ``shared[shared_at]``.

    It copies ``elements`` elements to shared memory; ``mbarriers[k]`` counts the bytes
    that have arrived.
    """
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
    """Emit a store of ``value`` to ``array[at]`` in the shared memory of another block.

    ``rank`` is the block's number in the cluster. The block's ``mbarriers[k]`` counts
    the bytes. A complex value is two stores.
    """
    b, (array, at, value, rank, mbarriers, k) = c.b, c.args
    rank = b.trunc(rank, I32)

    def of_peer(pointer: Any) -> Any:
        """Emit the other block's address of what is at ``pointer`` in this block."""
        arguments = [shared_address(b, pointer), rank]
        return assembly(
            b, "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", arguments, I32
        )

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

# Thread 0 of each block adds to the word: block 0 adds 2**31 - (blocks - 1), all others
# add 1, in sum 2**31. So the highest bit flips when the last block has added, which all
# wait for, and the lower bits are 0 again for the next barrier. The addition releases
# what the block wrote before; the fence after the wait acquires what others wrote.
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
    """Emit a barrier of all ``blocks`` of the grid.

    The blocks count their arrivals in ``barrier_state[0]``, in global memory.
    """
    barrier_state, blocks = c.args
    arguments = [global_address(c.b, barrier_state), c.b.trunc(blocks, I32)]
    assembly(c.b, _GRID_BARRIER, "l,r", arguments)


# Divisions of many numbers by one.


def _fma(b: ir.IRBuilder, x: Any, y: Any, z: Any) -> Any:
    """Emit x * y + z in float32, rounded once."""
    text = "fma.rn.f32 $0, $1, $2, $3;"
    return pure_assembly(b, text, "=f,f,f,f", (x, y, z), F32)


def _negated(b: ir.IRBuilder, x: Any) -> Any:
    """Emit -x: NVVM has no negation, and -0.0 - x is the same for all x."""
    return b.fsub(F32(-0.0), x)


@emits("fma_rn")
def _fma_rn(c: Call) -> Any:
    """Emit x * y + z in float32, rounded once."""
    return _fma(c.b, *c.args)


@emits("inverse")
def _inverse(c: Call) -> Any:
    """Emit 1 / y: the hardware's approximate reciprocal, and one Newton step."""
    b, (y,) = c.b, c.args
    near = pure_assembly(b, "rcp.approx.ftz.f32 $0, $1;", "=f,f", (y,), F32)
    error = _fma(b, _negated(b, y), near, F32(1.0))
    return _fma(b, near, error, near)


@emits("divide")
def _divide(c: Call) -> Any:
    """Emit x / y from x, y and 1 / y, correctly rounded (Markstein).

    The product x * (1 / y) is corrected by its remainder times 1 / y.
    """
    b, (x, y, inverse) = c.b, c.args
    near = b.fmul(x, inverse)
    rest = _fma(b, _negated(b, y), near, x)
    return _fma(b, inverse, rest, near)


@emits("divides")
def _divides(c: Call) -> Any:
    """Emit the test that ``divide`` by y is correctly rounded.

    It is if nothing underflows or overflows: ``minimum`` and ``maximum`` are bounds of
    the dividends' magnitudes.
    """
    b, (minimum, maximum, y) = c.b, c.args
    size = pure_assembly(b, "abs.f32 $0, $1;", "=f,f", (y,), F32)
    tests = (
        b.fcmp_ordered(">=", minimum, F32(MIN_DIVIDEND)),
        b.fcmp_ordered("<=", maximum, F32(1 / MIN_DIVIDEND)),
        b.fcmp_ordered(">=", size, F32(MIN_DIVISOR)),
        b.fcmp_ordered("<=", size, F32(1 / MIN_DIVISOR)),
    )
    return b.and_(b.and_(tests[0], tests[1]), b.and_(tests[2], tests[3]))
