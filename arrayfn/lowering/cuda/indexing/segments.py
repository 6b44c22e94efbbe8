"""Updates combined at their targets, all targets at once: the kernels' texts.

Updates are taken in the order of their targets' keys, and in their own order where
those are equal. A thread goes over a chunk of them, for its elements of the window, and
writes what each run of equal keys comes to. What belongs to a run that began in an
earlier chunk becomes a partial result of the chunk. Partial results are updates in the
order of their keys again, so the same kernel combines them, as long as there is more
than one chunk. That tree follows from the keys, and the updates of a run that lies in a
chunk are combined in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from arrayfn.dtypes import DType, compute_dtype, short_name
from arrayfn.lowering.cuda.handwritten import Handwritten, indented
from arrayfn.lowering.scalars.conversions import stored

THREADS: Final = 128
BIN_THREADS: Final = 512
AHEAD: Final = 4  # updates that are loaded before any is combined; of one element: 8


@dataclass(frozen=True)
class Split:
    """An index along axes, outermost first: extents, and strides in each array."""

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    def integers(self, index: str) -> dict[str, int]:
        """The integers that say what the axes are, but for the outermost extent."""
        inner = list(enumerate(self.extents))[1:]
        return {f"{index}_extent{k}": extent for k, extent in inner} | {
            f"{index}_stride{a}{k}": stride
            for a, strides in enumerate(self.strides)
            for k, stride in enumerate(strides)
        }

    def lines(self, index: str, *places: str) -> str:
        """Lines that make ``places``, one in each array, of ``index``."""
        if not self.extents:
            return "\n".join(f"{place} = i64(0)" for place in places)
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
            for a, place in enumerate(places):
                before = "" if k == last else f"{place} + "
                lines.append(f"{place} = {before}{part} * {index}_stride{a}{k}")
        return "\n".join(lines)


def merged(extents: Sequence[int], *strides: Sequence[int]) -> Split:
    """Axes without those of extent 1, neighbours merged where all arrays allow it."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for extent, own in zip(extents, zip(*strides, strict=True), strict=True):
        if extent == 1:
            continue
        if axes:
            before, outer = axes[-1]
            if all(a == extent * b for a, b in zip(outer, own, strict=True)):
                axes[-1] = before * extent, own
                continue
        axes.append((extent, own))
    return Split(
        tuple(extent for extent, _ in axes),
        tuple(tuple(own[k] for _, own in axes) for k in range(len(strides))),
    )


@dataclass(frozen=True)
class Updates:
    """What is combined, and how: ``function`` is ``"add"``, say, or ``""`` to put.

    ``target`` and ``given`` are the dtypes of the result and of the updates. A key's
    place is in the target, an update's number says where it lies (its position, if
    ``ordered`` updates do not lie in the order of their keys), and an element of the
    window has a place in both. A thread has ``lanes`` neighbouring elements.
    """

    function: str
    target: DType
    given: DType
    key: Split
    number: Split
    element: Split
    ordered: bool = True
    lanes: int = 1

    @property
    def arrays_in(self) -> tuple[str, ...]:
        """The arrays that are read."""
        names = ("keys_in", "updates_in")
        return (*names, "order_in") if self.ordered else names

    @property
    def integers(self) -> dict[str, int]:
        """The integers of all splits."""
        splits = (("key", self.key), ("number", self.number), ("line", self.element))
        return {k: n for index, s in splits for k, n in s.integers(index).items()}

    def find(self) -> str:
        """Lines that make ``update``, where update ``at`` lies."""
        number = "number = at"
        if self.ordered:
            number = "number = convert_i32_i64(order_in[at])"
        return f"{number}\n{self.number.lines('number', 'update')}"


def combine(updates: Updates, chunk: int, *, partial: bool) -> Handwritten:
    """Runs of equal keys combined by chunks; ``partial`` if there are several."""
    u = updates
    memory, wide = stored(short_name(u.given)), short_name(compute_dtype(u.given))
    out_memory = stored(short_name(u.target))
    lanes = u.lanes
    ahead = 2 * AHEAD if lanes == 1 else AHEAD
    value = _widened(u.given, "values[j * LANES + lane]")
    own = _widened(u.target, "own[j * LANES + lane]")
    narrow = _narrowed(u.target, "totals[lane]")
    to_partial = f"""
    if continued:
        place = chunk * lines * LANES + line
{indented(_move("partial_out", "place", "totals", "0", wide, lanes, store=True), 2)}
    else:"""
    to_target = f"""for lane in range(LANES):
    narrow[lane] = {narrow}
place = current + inside
{_move("target_out", "place", "narrow", "0", out_memory, lanes, store=True)}"""
    store = "if begun:" + (to_partial if partial else "")
    store += "\n" + indented(to_target, 2 if partial else 1)
    head = """
carried = limit
if keys_in[begin] == last:
    carried = last
if line == 0:
    carried_out[chunk] = convert_i64_u32(carried)"""
    # As i64 throughout: what keys_in holds is unsigned.
    key_at = "convert_u32_i64(keys_in[at])"
    body = f"""
thread = block_index() * {THREADS} + thread_index()
chunk = quotient(thread, lines)
begin = chunk * {chunk}
if begin < n:
    line = remainder(thread, lines) * LANES
{indented(u.element.lines("line", "inside", "within"), 1)}
    end = min_i64(begin + {chunk}, n)
    keys = registers_i64({ahead})
    targets = registers_i64({ahead})
    values = registers_{memory}({ahead} * LANES)
    own = registers_{out_memory}({ahead} * LANES)
    totals = registers_{wide}(LANES)
    narrow = registers_{out_memory}(LANES)
    last = i64(-1)
    if begin > 0:
        last = convert_u32_i64(keys_in[begin - 1])
HEAD
    current = i64(0)
    continued = True
    begun = False
    before = last
    for first in range(begin, end, {ahead}):
        for j in range({ahead}):
            at = min_i64(first + j, end - 1)
            key = {key_at}
            keys[j] = key
            if key < limit:
{indented(u.find(), 4)}
                update = update + within
{indented(_move("updates_in", "update", "values", "j * LANES", memory, lanes), 4)}
                if key != before:
{indented(u.key.lines("key", "place"), 5)}
                    targets[j] = place
                    place = place + inside
{indented(_move("target_out", "place", "own", "j * LANES", out_memory, lanes), 5)}
            before = key
        for j in range({ahead}):
            if first + j < end:
                key = keys[j]
                if key != last:
{indented(store, 5)}
                    last = key
                    continued = False
                    begun = key < limit
                    current = targets[j]
                    for lane in range(LANES):
                        totals[lane] = {own}
                if key < limit:
                    for lane in range(LANES):
                        value = {value}
                        if begun:
                            value = {u.function}_{wide}(totals[lane], value)
                        totals[lane] = value
                    begun = True
{indented(store, 1)}
"""
    head = head.replace("keys_in[begin]", "convert_u32_i64(keys_in[begin])")
    body = body.replace("HEAD\n", indented(head.strip(), 1) + "\n" if partial else "")
    return Handwritten(
        "segments",
        body.replace("j * LANES", "j" if lanes == 1 else "j * LANES").replace(
            "LANES", str(lanes)
        ),
        THREADS,
        "Combines updates with equal keys, chunk by chunk.",
        "updates of one target combined in their order",
    )


def put(updates: Updates) -> Handwritten:
    """The last update of each key, put at its target."""
    u = updates
    memory = stored(short_name(u.given))
    body = f"""
thread = block_index() * {THREADS} + thread_index()
at = quotient(thread, lines)
if at < n:
    line = remainder(thread, lines) * LANES
    key = convert_u32_i64(keys_in[at])
    wins = key < limit
    if at + 1 < n:
        wins = wins and convert_u32_i64(keys_in[at + 1]) != key
    if wins:
{indented(u.element.lines("line", "inside", "within"), 2)}
{indented(u.find(), 2)}
        update = update + within
{indented(u.key.lines("key", "place"), 2)}
        place = place + inside
        values = registers_{memory}(LANES)
{indented(_move("updates_in", "update", "values", "0", memory, u.lanes), 2)}
{indented(_move("target_out", "place", "values", "0", memory, u.lanes, store=True), 2)}
"""
    return Handwritten(
        "put",
        body.replace("LANES", str(u.lanes)),
        THREADS,
        "Puts the last update of each key at its target.",
        "the last update of each target put there",
    )


def add_in_bins(updates: Updates, bins: int) -> Handwritten:
    """Single elements added as they come to few targets, first by blocks."""
    u = updates
    name = short_name(u.target)
    body = f"""
thread = thread_index()
bins = dynamic_shared_{name}(0, {bins})
for key in range(thread, limit, {BIN_THREADS}):
    bins[key] = {name}(0)
barrier()
begin = block_index() * share
for at in range(begin + thread, min_i64(begin + share, n), {BIN_THREADS}):
    key = convert_u32_i64(keys_in[at])
    if key < limit:
{indented(u.find(), 2)}
        atomic_add_{name}(bins, key, updates_in[update])
barrier()
for key in range(thread, limit, {BIN_THREADS}):
    value = bins[key]
    if value != 0:
{indented(u.key.lines("key", "place"), 2)}
        atomic_add_{name}(target_out, place, value)
"""
    return Handwritten(
        "add_in_bins",
        body,
        BIN_THREADS,
        "Adds updates in whatever order threads come: in the block, then in all.",
        "updates added as they come, in bins of blocks",
        bins * u.target.itemsize,
    )


def _move(
    array: str,
    at: str,
    tile: str,
    place: str,
    dtype: str,
    lanes: int,
    *,
    store: bool = False,
) -> str:
    """A line that moves elements between memory and registers."""
    if lanes > 1:
        way = "store" if store else "load"
        return f"{way}_{dtype}x{lanes}({array}, {at}, {tile}, {place})"
    if store:
        return f"{array}[{at}] = {tile}[{place}]"
    return f"{tile}[{place}] = {array}[{at}]"


def _widened(dtype: DType, value: str) -> str:
    name = short_name(dtype)
    return f"convert_{name}_f32({value})" if stored(name) == "u16" != name else value


def _narrowed(dtype: DType, value: str) -> str:
    name = short_name(dtype)
    return f"convert_f32_{name}({value})" if stored(name) == "u16" != name else value
