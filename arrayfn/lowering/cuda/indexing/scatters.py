"""Scatters whose updates may have equal targets: by keys, a sort, and segments.

The key of an update is the number of its target among all elements at which windows can
begin. An update that is left out has the number of targets as its key. Where windows
that begin at different targets may overlap, each of their elements is an update by
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import compute_dtype, short_name
from arrayfn.ir import ArrayType, Equation, Literal, Var
from arrayfn.ir.layout import RowMajor
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.handwritten import Handwritten, HandwrittenCall
from arrayfn.lowering.cuda.indexing.additions import Ranges, add_by_ranges, ranges_of
from arrayfn.lowering.cuda.indexing.scatter_form import Scatter, scatter_of
from arrayfn.lowering.cuda.indexing.scatter_keys import keys_nest
from arrayfn.lowering.cuda.indexing.scatter_tiles import (
    MIN_TARGETS,
    Tiles,
    scatter_in_tiles,
)
from arrayfn.lowering.cuda.indexing.segments import (
    THREADS,
    IndexMap,
    Updates,
    add_in_bins,
    combine_kernel,
    index_map,
    put_kernel,
)
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.cuda.sorting.keys import Keys
from arrayfn.lowering.cuda.sorting.sorts import SortedRows, sort_rows
from arrayfn.lowering.cuda.sorting.tiles import SortData
from arrayfn.lowering.cuda.vocabulary import vector_lanes
from arrayfn.lowering.kernel_ir import (
    Nest,
    constant_of,
)
from arrayfn.lowering.libraries.calls import Pointer, new_array
from arrayfn.lowering.templates.indexing import atomic_scatter_add
from arrayfn.lowering.templates.nest_builder import (
    Names,
    NestBuilder,
    StridedArray,
    array_of,
    output_array,
)
from arrayfn.passes.reads import Reads

FUNCTIONS: Final = {
    "scatter": "",
    "scatter_add": "add",
    "scatter_mul": "mul",
    "scatter_min": "min",
    "scatter_max": "max",
}
IN_ORDER: Final = 32  # up to so many updates, each thread goes over them all
_MAX: Final = 2**31 - 1  # the largest index that kernels divide
_ATOMIC_INTEGERS: Final = frozenset(
    (dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64)
)
_ATOMIC: Final = _ATOMIC_INTEGERS | {dtypes.float32, dtypes.float64}
_NARROW: Final = 4  # elements of an update, up to which atomic additions are fast
_BINS: Final = 4096  # targets that a block can sum in shared memory
_MAX_UPDATES_EACH: Final = 4  # updates per target, up to which tiles are faster
_MAX_TARGETS_EACH: Final = 64  # targets per update, up to which tiles are, if in place
_CHUNKS: Final = (32, 16, 8)
_LANES: Final = 4


def combines_in_parallel(equation: Equation) -> bool:
    """Return whether ``scatter`` should lower ``equation``, not one nest.

    It should if several updates may have the same target, and updates are not few. The
    template's one nest goes over the updates in order. Arrays must have indices of 31
    bits, which kernels can divide.
    """
    params = equation.params
    x, _, updates = (atom.type for atom in equation.inputs)
    if params["unique_indices"] or not x.size or not updates.size:
        return False
    s = scatter_of(equation)
    fits = max(x.size, updates.size) <= _MAX
    return s.count > IN_ORDER and fits


def scatter(
    equation: Equation,
    reads: Reads,
    names: Names,
    gpu: GpuConfig,
    *,
    deterministic: bool,
    vectors: bool,
) -> Iterator[Nest | HandwrittenCall]:
    """Yield the steps of a scatter into its operand, in whose memory the result lies.

    Additions that may be done in any order are atomic. Other updates are sorted by key,
    and runs of equal keys are combined.

    Args:
        equation: The scatter.
        reads: Where each operand lies.
        names: What to call arrays.
        gpu: The GPU.
        deterministic: Results must not depend on the order of additions.
        vectors: Arrays begin at multiples of 16 bytes.
    """
    s = scatter_of(equation)
    function = FUNCTIONS[equation.primitive.name]
    is_atomic = _uses_atomics(s, deterministic)
    # Many updates of few targets, which fit into a block's shared memory.
    in_bins = s.width == 1 and power_of_two(s.limit) <= _BINS <= s.count
    if is_atomic and not in_bins:
        yield from atomic_scatter_add(equation, reads, names)
        return
    keys = Var(ArrayType((s.count,), dtypes.uint32))
    yield keys_nest(s, reads, names, keys)
    source = _updates_array(equation, reads)
    if isinstance(equation.inputs[2], Literal):
        yield _literal_update(equation, names, source.array)
    updates = _updates(s, source, function, vectors)
    values = Pointer(source.array, source.offset)
    out = Pointer(equation.outputs[0])
    if is_atomic:
        yield _in_bins(s, updates, [Pointer(keys), values], out, gpu)
        return
    sort, updates, read = _sorted(s, updates, Pointer(keys), source, gpu)
    yield from sort
    if function:
        yield from _combine_runs(s, updates, read, out, gpu)
    else:
        yield _call(put_kernel(updates), updates, read, [out], s, s.count)


def _sorted(
    s: Scatter, updates: Updates, keys: Pointer, source: StridedArray, gpu: GpuConfig
) -> tuple[Iterable[HandwrittenCall], Updates, list[Pointer]]:
    """Return the calls that sort updates by their keys, and how to read the result.

    The second and third value say that: ``updates``, changed, and the arrays that
    kernels then read: keys, updates, and perhaps the order of updates.

    Args:
        s: The scatter.
        updates: How kernels address updates in their own order.
        keys: The key of each update.
        source: The updates array.
        gpu: The GPU's numbers, which the sort depends on.
    """
    n, values = s.count, Pointer(source.array, source.offset)
    in_memory = replace(updates, ordered=False)
    if s.is_sorted:
        return (), in_memory, [keys, values]
    data = SortData(Keys(dtypes.uint32), key_output="words")
    before, after = [keys], [new_array(dtypes.uint32, n)]
    if isinstance(s.equation.inputs[2], Literal):
        # All updates are the same: only the keys are sorted.
        updates, read = in_memory, [*after, values]
    elif s.width == 1 and updates.number.strides == ((1,),) and _is_carried(source):
        # The sort moves the updates with their keys: they need not be gathered.
        name = short_name(source.dtype)
        data = replace(data, reads_values=True, output_values=name, value_dtype=name)
        before.append(values)
        after.append(new_array(source.dtype, n))
        updates, read = in_memory, after
    else:
        # The sort gives the order of the updates, which are gathered later.
        data = replace(data, output_values="i32")
        after.append(new_array(dtypes.int32, n))
        read = [after[0], values, after[1]]
    rows = SortedRows(count=1, n=n, keep=n)
    # Keys are at most the limit: their higher bits are 0.
    calls = sort_rows(rows, data, before, after, gpu, bits=s.limit.bit_length())
    return calls, updates, read


def _uses_atomics(s: Scatter, deterministic: bool) -> bool:
    """Return whether to scatter by atomic additions: if they are allowed, and fast.

    With ``deterministic`` only additions of integers are allowed. They are fast for
    updates of few elements.
    """
    in_any_order = _ATOMIC_INTEGERS if deterministic else _ATOMIC
    adds = FUNCTIONS[s.equation.primitive.name] == "add"
    return adds and s.operand.dtype in in_any_order and s.width <= _NARROW


def choose_parts(
    equation: Equation,
    reads: Reads,
    *,
    deterministic: bool,
    vectors: bool,
    copied: bool,
) -> Tiles | Ranges | None:
    """Choose tiles or ranges of targets; None if ``scatter`` is faster.

    A scatter by tiles or ranges reads and writes all targets. Ranges are for atomic
    additions, tiles for other functions. If ``copied``, ``scatter`` would need a copy
    of the operand, which reads and writes all targets as well. The other arguments are
    those of ``scatter``.
    """
    s, function = scatter_of(equation), FUNCTIONS[equation.primitive.name]
    if _uses_atomics(s, deterministic):
        return ranges_of(s) if copied else None
    if isinstance(equation.inputs[2], Literal) or not function or s.width > 1:
        return None
    source, dtype = _updates_array(equation, reads), s.operand.dtype
    u = _updates(s, source, function, vectors)
    # Updates, and targets, follow each other in memory.
    in_a_row = u.number.strides == ((1,),) and u.key.strides == ((1,),)
    pays = s.limit >= MIN_TARGETS and s.count <= _MAX_UPDATES_EACH * s.limit
    pays = pays and (copied or s.limit <= _MAX_TARGETS_EACH * s.count)
    if not in_a_row or not pays or s.is_sorted or not _is_carried(source):
        return None
    lanes = vector_lanes(dtype) if vectors else 1
    lanes = lanes if s.limit % lanes == 0 else 1
    return Tiles(function, dtype, s.count, s.limit, lanes)


def scatter_by_parts(
    way: Tiles | Ranges,
    equation: Equation,
    reads: Reads,
    names: Names,
    gpu: GpuConfig,
    operand: Var,
) -> Iterator[Nest | HandwrittenCall]:
    """Yield the steps of a scatter of ``operand`` by tiles or ranges of the targets.

    ``way`` are the tiles or ranges; the other parameters are as in ``scatter``. The
    result may have the memory of ``operand``.
    """
    if isinstance(way, Ranges):
        yield from add_by_ranges(way, equation, reads, names, operand)
        return
    keys = Var(ArrayType((way.count,), dtypes.uint32))
    yield keys_nest(scatter_of(equation), reads, names, keys)
    source = _updates_array(equation, reads)
    values_in = Pointer(source.array, source.offset)
    result = equation.outputs[0]
    yield from scatter_in_tiles(way, Pointer(keys), values_in, operand, result, gpu)


def _is_carried(source: StridedArray) -> bool:
    """Whether a radix sort can move the updates along with their keys.

    They must be a whole array of elements of 32 or 64 bits.
    """
    return source.dtype == source.array.type.dtype and source.dtype in _ATOMIC


def _in_bins(
    s: Scatter, updates: Updates, read: list[Pointer], out: Pointer, gpu: GpuConfig
) -> HandwrittenCall:
    """Return the call that adds updates to few targets.

    Each block adds its updates in shared memory, and then its sums to the targets
    atomically.

    Args:
        s: The scatter.
        updates: How kernels address updates and targets.
        read: The arrays of keys and of updates.
        out: The result.
        gpu: The GPU.
    """
    plain = replace(updates, ordered=False, lanes=1)
    blocks = min(2 * gpu.multiprocessors, -(-s.count // _BINS))
    share = -(-s.count // blocks)  # updates of a block
    integers = {"n": s.count, "share": share, "limit": s.limit, **plain.integers}
    reads = dict(zip(plain.arrays_in, read, strict=True))
    text = add_in_bins(plain, power_of_two(s.limit))
    return HandwrittenCall(
        text, reads=reads, writes={"target_out": out}, integers=integers, blocks=blocks
    )


def _combine_runs(
    s: Scatter, updates: Updates, read: list[Pointer], out: Pointer, gpu: GpuConfig
) -> Iterator[HandwrittenCall]:
    """Yield the calls that reduce sorted updates by chunks, then their partial results.

    Each call combines the partial results of the one before, until one chunk is left.
    The arguments are those of ``_in_bins``; ``read`` may also have the order of the
    updates. ``gpu`` decides the size of chunks.
    """
    n = s.count
    lines = s.width // updates.lanes  # vectors of an update
    threads = gpu.multiprocessors * gpu.max_threads
    # The first size of chunks with which there are enough of them for all threads.
    size = next((c for c in _CHUNKS if n * lines >= c * threads), _CHUNKS[-1])
    wide = compute_dtype(updates.dtype)
    while n > size:
        chunks = -(-n // size)
        carried = new_array(dtypes.uint32, chunks)
        partial = new_array(wide, chunks * s.width)
        text = combine_kernel(updates, size, partial=True)
        yield _call(text, updates, read, [out, carried, partial], s, n, chunks)
        n, read = chunks, [carried, partial]
        # The next call reads the partial results: contiguous, in the order of their
        # keys.
        inside = updates.element
        updates = replace(
            updates,
            dtype=wide,
            ordered=False,
            number=IndexMap((n,), ((s.width,),)),
            element=IndexMap(
                inside.extents, (inside.strides[0], RowMajor().strides(inside.extents))
            ),
        )
        size = _CHUNKS[0]
    yield _call(
        combine_kernel(updates, size, partial=False), updates, read, [out], s, n, 1
    )


def _call(
    text: Handwritten,
    updates: Updates,
    read: list[Pointer],
    written: list[Pointer],
    s: Scatter,
    n: int,
    chunks: int | None = None,
) -> HandwrittenCall:
    """Return the call of ``text`` with a thread for each vector of updates.

    There is a thread for each vector of each update, or of each chunk.

    Args:
        text: The kernel.
        updates: How the kernel addresses updates and targets.
        read: The arrays of keys, of updates and perhaps of their order.
        written: The result, and the arrays of partial results.
        s: The scatter.
        n: How many updates there are.
        chunks: How many chunks of updates, if a thread computes a chunk.
    """
    lines = s.width // updates.lanes
    items = (n if chunks is None else chunks) * lines
    # Without partial results there is only the first.
    names = ("target_out", "carried_out", "partial_out")
    return HandwrittenCall(
        text,
        reads=dict(zip(updates.arrays_in, read, strict=True)),
        writes=dict(zip(names, written, strict=False)),
        integers={"n": n, "lines": lines, "limit": s.limit, **updates.integers},
        blocks=-(-items // THREADS),
    )


def _updates_array(equation: Equation, reads: Reads) -> StridedArray:
    """Return the updates array; a literal becomes an array of one element.

    ``reads`` says where operands lie.
    """
    atom = equation.inputs[2]
    if isinstance(atom, Literal):
        single = Var(ArrayType((), atom.type.dtype))
        return StridedArray(single, atom.type.dtype, (0,) * atom.type.ndim)
    return array_of(atom, reads)


def _literal_update(equation: Equation, names: Names, single: Var) -> Nest:
    """Return the nest that stores a literal update in ``single``.

    ``single`` is an array of one element. ``names`` says what to call arrays.
    """
    b = NestBuilder(equation, names)
    atom = equation.inputs[2]
    assert isinstance(atom, Literal)
    value = constant_of(atom)
    dtype = value.dtype
    result = b.compute("update", "identity", value, dtype=dtype)
    b.store(
        b.operand(StridedArray(single, single.type.dtype, ()), written=True), result
    )
    return b.nest((), "the value of all updates")


def _updates(s: Scatter, source: StridedArray, function: str, vectors: bool) -> Updates:
    """Describe how kernels address updates in ``source``, and their targets.

    ``function`` combines two numbers, or is empty; ``vectors`` says that arrays begin
    at multiples of 16 bytes.
    """
    target = output_array(s.equation)
    # The operand's axis along each window axis of the updates.
    kept = s.windows.kept(s.operand.ndim)
    along = {w: a for a, w in zip(kept, s.windows.window_axes, strict=True)}
    key = index_map(
        [s.operand.shape[a] for a in s.key_axes],
        [target.strides[a] for a in s.key_axes],
    )
    number = index_map(
        [s.updates.shape[k] for k in s.number_axes],
        [source.strides[k] for k in s.number_axes],
    )
    element = index_map(
        [s.updates.shape[k] for k in s.element_axes],
        [target.strides[along[k]] for k in s.element_axes],
        [source.strides[k] for k in s.element_axes],
    )
    dtype = s.operand.dtype
    updates = Updates(function, dtype, s.updates.dtype, key, number, element)
    # Vectors of elements are aligned if all distances but those between elements are
    # multiples of the lanes.
    steps = [*key.strides[0], *number.strides[0], source.offset]
    steps += [n for own in element.strides for n in own[:-1]]
    contiguous = element.extents and all(own[-1] == 1 for own in element.strides)
    aligned = contiguous and all(
        step % _LANES == 0 for step in (*steps, element.extents[-1])
    )
    if vectors and aligned and _LANES * dtype.itemsize <= 16 and dtype in _VECTORS:
        return replace(updates, lanes=_LANES)
    return updates


_VECTORS: Final = frozenset((dtypes.float32, dtypes.float16, dtypes.bfloat16))
"""The dtypes of updates that kernels access by vectors."""
