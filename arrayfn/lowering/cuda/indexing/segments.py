"""Segmented reduction of updates by their keys: the texts of kernels.

Updates are in the order of their keys, and in their own order where keys are equal. A
thread reduces a chunk of updates, for its elements of the window: it combines each run
of equal keys with the target. The result of a run that began in an earlier chunk
becomes the chunk's partial result. Partial results are again updates in the order of
their keys, so the same kernel combines them, until there is one chunk. The tree of
additions follows only from the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from arrayfn.dtypes import DType, compute_dtype, short_name
from arrayfn.lowering.cuda.handwritten import Handwritten, converted, fill_template
from arrayfn.lowering.scalars.conversions import stored
from arrayfn.records import frozen

THREADS: Final = 128  # threads of a block of most kernels
BIN_THREADS: Final = 512  # threads of a block that has bins
BATCH: Final = 4  # updates that are loaded before any is combined; 8 of one element


@frozen
class IndexMap:
    """Maps a flat index over axes, outermost first, to an offset in several arrays.

    ``extents`` are the axes' extents, and ``strides`` for each array the strides along
    them.
    """

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    def integers(self, index: str) -> dict[str, int]:
        """Return the integer arguments of a kernel that uses the map, by name.

        They are extents and strides, such as ``key_extent1`` and ``key_stride01``
        (array 0, axis 1) for ``index="key"``. The outermost extent is not needed.
        """
        inner = list(enumerate(self.extents))[1:]
        return {f"{index}_extent{k}": extent for k, extent in inner} | {
            f"{index}_stride{a}{k}": stride
            for a, strides in enumerate(self.strides)
            for k, stride in enumerate(strides)
        }

    def lines(self, index: str, *offsets: str) -> str:
        """Return lines that compute from a flat index the element offset in each array.

        ``index`` is the variable of the flat index, ``offsets`` the variables to
        define: one for each array. Gives, for the index ``key`` over two axes:

            part = remainder(key, key_extent1)
            rest = quotient(key, key_extent1)
            place = part * key_stride01
            place = place + rest * key_stride00
        """
        if not self.extents:
            return "\n".join(f"{offset} = i64(0)" for offset in offsets)
        lines: list[str] = []
        rest = index
        last = len(self.extents) - 1
        for k in range(last, -1, -1):
            part = rest
            if k:
                extent = f"{index}_extent{k}"
                lines += [
                    f"part = remainder({rest}, {extent})",
                    f"rest = quotient({rest}, {extent})",
                ]
                part, rest = "part", "rest"
            for a, offset in enumerate(offsets):
                before = "" if k == last else f"{offset} + "
                lines.append(f"{offset} = {before}{part} * {index}_stride{a}{k}")
        return "\n".join(lines)


def index_map(extents: Sequence[int], *strides: Sequence[int]) -> IndexMap:
    """Make the map for axes with these ``extents``, and ``strides`` in each array.

    Axes of extent 1 are left out, and neighbouring axes merge where all arrays allow
    it.
    """
    # Extent and strides in each array of the axes so far.
    axes: list[tuple[int, tuple[int, ...]]] = []
    for extent, axis_strides in zip(extents, zip(*strides, strict=True), strict=True):
        if extent == 1:
            continue
        if axes:
            before, outer = axes[-1]
            # The axis before continues this one in all arrays: merge them.
            if all(a == extent * b for a, b in zip(outer, axis_strides, strict=True)):
                axes[-1] = before * extent, axis_strides
                continue
        axes.append((extent, axis_strides))
    return IndexMap(
        tuple(extent for extent, _ in axes),
        tuple(
            tuple(axis_strides[k] for _, axis_strides in axes)
            for k in range(len(strides))
        ),
    )


@frozen
class Updates:
    """Describes the updates for a kernel: how to combine them, and where they lie.

    Args:
        function: Combines two numbers: ``"add"``, say. Empty if updates overwrite.
        target: The dtype of the targets.
        dtype: The dtype of the updates.
        key: Maps a key to the offset of its target.
        number: Maps an update's number to its offset in the updates array.
        element: Maps an element of the window to two offsets: from its target, and from
            the beginning of the update.
        ordered: Whether the array ``order_in`` has the numbers of updates in the order
            of their keys. Otherwise updates are in that order in memory.
        lanes: Neighbouring elements that a thread computes.
    """

    function: str
    target: DType
    dtype: DType
    key: IndexMap
    number: IndexMap
    element: IndexMap
    ordered: bool = True
    lanes: int = 1

    @property
    def arrays_in(self) -> tuple[str, ...]:
        """The names of the array parameters that the kernel reads."""
        names = ("keys_in", "updates_in")
        return (*names, "order_in") if self.ordered else names

    @property
    def integers(self) -> dict[str, int]:
        """The integer arguments for all three maps, by name."""
        maps = (("key", self.key), ("number", self.number), ("line", self.element))
        return {k: n for index, m in maps for k, n in m.integers(index).items()}

    def find_update(self) -> str:
        """Return lines that compute ``update``, the offset of update number ``at``."""
        number = "number = at"
        if self.ordered:
            number = "number = convert_i32_i64(order_in[at])"
        return f"{number}\n{self.number.lines('number', 'update')}"


# A thread's chunk of updates goes from ``begin`` to ``end``. It has the elements of the
# window from ``line`` on, at the offsets ``within`` in an update and ``inside`` at a
# target. It loads some updates at once (``keys``, ``values``), and the targets of new
# runs (``targets``: their offsets; ``own``: their elements). ``totals`` is the run so
# far, whose target is at ``current``; ``begun`` says that there is one, ``continued``
# that it began in an earlier chunk. ``last`` is its key, ``before`` that of the update
# loaded last.
_COMBINE: Final = """
thread = block_index() * {threads} + thread_index()
chunk = quotient(thread, lines)
begin = chunk * {chunk}
if begin < n:
    line = remainder(thread, lines) * {lanes}
    {inside_and_within}
    end = min_i64(begin + {chunk}, n)
    keys = registers_i64({ahead})
    targets = registers_i64({ahead})
    values = registers_{memory}({ahead} * {lanes})
    own = registers_{out_memory}({ahead} * {lanes})
    totals = registers_{wide}({lanes})
    narrow = registers_{out_memory}({lanes})
    last = i64(-1)
    if begin > 0:
        last = convert_u32_i64(keys_in[begin - 1])
    {carry}
    current = i64(0)
    continued = True
    begun = False
    before = last
    for first in range(begin, end, {ahead}):
        for j in range({ahead}):
            at = min_i64(first + j, end - 1)
            key = convert_u32_i64(keys_in[at])
            keys[j] = key
            if key < limit:
                {find}
                update = update + within
                {load_update}
                if key != before:
                    {place}
                    targets[j] = place
                    place = place + inside
                    {load_target}
            before = key
        for j in range({ahead}):
            if first + j < end:
                key = keys[j]
                if key != last:
                    {store}
                    last = key
                    continued = False
                    begun = key < limit
                    current = targets[j]
                    for lane in range({lanes}):
                        totals[lane] = {own}
                if key < limit:
                    for lane in range({lanes}):
                        value = {value}
                        if begun:
                            value = {function}_{wide}(totals[lane], value)
                        totals[lane] = value
                    begun = True
    {store}
"""
_CARRY: Final = """
carried = limit
if convert_u32_i64(keys_in[begin]) == last:
    carried = last
if line == 0:
    carried_out[chunk] = convert_i64_u32(carried)
"""
_TO_TARGET: Final = """
for lane in range({lanes}):
    narrow[lane] = {narrow}
place = current + inside
{store_target}
"""
_STORE: Final = """
if begun:
    {to_target}
"""
_STORE_OR_CARRY: Final = """
if begun:
    if continued:
        place = chunk * lines * {lanes} + line
        {store_partial}
    else:
        {to_target}
"""


def combine_kernel(updates: Updates, chunk: int, *, partial: bool) -> Handwritten:
    """Return the kernel that combines runs of updates with equal keys.

    A thread goes over a chunk of ``chunk`` updates. With ``partial`` there are several
    chunks: the kernel then also writes their partial results, and the keys of these.

    The parts of the template are lines and expressions. A thread loads ``ahead``
    updates at once: ``values`` are their elements, ``own`` those of their targets.
    ``totals`` is the running result of the current target, which is at ``place``, and
    ``narrow`` is it in the dtype of memory.
    """
    u, lanes = updates, updates.lanes
    memory, wide = stored(short_name(u.dtype)), short_name(compute_dtype(u.dtype))
    target = short_name(u.target)
    out = stored(target)
    # The register at which the elements of update ``j`` begin.
    slot = "j" if lanes == 1 else f"j * {lanes}"
    store_target = _move("target_out", "place", "narrow", "0", out, lanes, store=True)
    to_target = fill_template(
        _TO_TARGET,
        lanes=lanes,
        narrow=converted("totals[lane]", wide, target),
        store_target=store_target,
    )
    to_partial = _move("partial_out", "place", "totals", "0", wide, lanes, store=True)
    body = fill_template(
        _COMBINE,
        threads=THREADS,
        chunk=chunk,
        lanes=lanes,
        ahead=2 * BATCH if lanes == 1 else BATCH,
        memory=memory,
        out_memory=out,
        wide=wide,
        function=u.function,
        inside_and_within=u.element.lines("line", "inside", "within"),
        carry=_CARRY if partial else "",
        find=u.find_update(),
        place=u.key.lines("key", "place"),
        load_update=_move("updates_in", "update", "values", slot, memory, lanes),
        load_target=_move("target_out", "place", "own", slot, out, lanes),
        own=converted(f"own[{slot} + lane]", target, wide),
        value=converted(f"values[{slot} + lane]", short_name(u.dtype), wide),
        store=fill_template(
            _STORE_OR_CARRY if partial else _STORE,
            lanes=lanes,
            store_partial=to_partial,
            to_target=to_target,
        ),
    )
    return Handwritten(
        "segments",
        body,
        THREADS,
        "Combines updates with equal keys, chunk by chunk.",
        "updates of one target combined in their order",
    )


_PUT: Final = """
thread = block_index() * {threads} + thread_index()
at = quotient(thread, lines)
if at < n:
    line = remainder(thread, lines) * {lanes}
    key = convert_u32_i64(keys_in[at])
    wins = key < limit
    if at + 1 < n:
        wins = wins and convert_u32_i64(keys_in[at + 1]) != key
    if wins:
        {inside_and_within}
        {find}
        update = update + within
        {place}
        place = place + inside
        values = registers_{memory}({lanes})
        {load}
        {store}
"""


def put_kernel(updates: Updates) -> Handwritten:
    """Return the kernel that stores the last update of each key at its target.

    ``updates`` says how the kernel addresses updates and targets. The parts of the
    template are lines. They compute offsets: ``update`` and ``place``, where an update
    and its target begin, and ``within`` and ``inside``, the thread's elements in these.
    """
    u, memory = updates, stored(short_name(updates.dtype))
    body = fill_template(
        _PUT,
        threads=THREADS,
        lanes=u.lanes,
        memory=memory,
        inside_and_within=u.element.lines("line", "inside", "within"),
        find=u.find_update(),
        place=u.key.lines("key", "place"),
        load=_move("updates_in", "update", "values", "0", memory, u.lanes),
        store=_move("target_out", "place", "values", "0", memory, u.lanes, store=True),
    )
    return Handwritten(
        "put_kernel",
        body,
        THREADS,
        "Puts the last update of each key at its target.",
        "the last update of each target put there",
    )


_ADD_IN_BINS: Final = """
thread = thread_index()
bins = dynamic_shared_{dtype}(0, {bins})
for key in range(thread, limit, {threads}):
    bins[key] = {dtype}(0)
barrier()
begin = block_index() * share
for at in range(begin + thread, min_i64(begin + share, n), {threads}):
    key = convert_u32_i64(keys_in[at])
    if key < limit:
        {find}
        atomic_add_{dtype}(bins, key, updates_in[update])
barrier()
for key in range(thread, limit, {threads}):
    value = bins[key]
    if value != 0:
        {place}
        atomic_add_{dtype}(target_out, place, value)
"""


def add_in_bins(updates: Updates, bins: int) -> Handwritten:
    """Return the kernel that adds single elements to few targets, atomically.

    There are ``bins`` targets or fewer, a power of two. Each block has sums in shared
    memory, which it then adds to the targets. ``updates`` says how updates and targets
    are addressed.
    """
    u = updates
    body = fill_template(
        _ADD_IN_BINS,
        dtype=short_name(u.target),
        bins=bins,
        threads=BIN_THREADS,
        find=u.find_update(),
        place=u.key.lines("key", "place"),
    )
    return Handwritten(
        "add_in_bins",
        body,
        BIN_THREADS,
        "Adds updates in whatever order threads come: in the block, then in all.",
        "updates added as they come, in bins of blocks",
        shared=bins * u.target.itemsize,
    )


def _move(
    array: str,
    at: str,
    tile: str,
    register: str,
    dtype: str,
    lanes: int,
    *,
    store: bool = False,
) -> str:
    """Return a line that moves ``lanes`` elements between an array and registers.

    Gives ``load_f32x4(updates_in, update, values, 0)``, or ``values[0] =
    updates_in[update]`` for one lane.

    Args:
        array: The array in memory.
        at: The index of the first element there.
        tile: The array of registers.
        register: The index of the first register.
        dtype: The dtype's name in memory.
        lanes: How many elements.
        store: Whether they are stored, not loaded.
    """
    if lanes > 1:
        function = "store" if store else "load"
        return f"{function}_{dtype}x{lanes}({array}, {at}, {tile}, {register})"
    if store:
        return f"{array}[{at}] = {tile}[{register}]"
    return f"{tile}[{register}] = {array}[{at}]"
