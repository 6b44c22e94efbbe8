"""Scans along rows that are too long for a block: decoupled look-back over parts.

A block reduces one part of a row, publishes its total, and scans another part, which
lies ``lag`` parts before: the totals before that one are published by then, so blocks
hardly wait, and its elements are still in the L2 cache, so memory is read once. Totals
of groups of 512 parts are published, too, half way between. The prefix of a part is the
sum of up to 511 totals of its own group and of the totals of the groups before; a
thread reads eight of them at once. The order of the sums follows from the shapes alone.

Blocks have dynamic ids, and wait for lower ids only. (Merrill and Garland, Single-pass
parallel prefix scan with decoupled look-back, 2016, keep the part in the block
meanwhile, and use whichever prefix is there when they look.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from typing_extensions import override

from arrayfn.lowering.cuda.printer import AxisIndices
from arrayfn.lowering.cuda.scans import S, ScanPrinter
from arrayfn.lowering.cuda.vocabulary import WARP

AT_ONCE: Final = 8
"""Flags that a thread loads at once."""


@dataclass
class PartsPrinter(ScanPrinter[S]):
    """Prints scans of rows in parts; the variable ``tile`` numbers all of these."""

    summing: bool = False  # whether the part is the one that is summed up

    @override
    def body(self) -> None:
        """Print the kernel's lines: a block reduces one part and scans another."""
        store, schedule = self.read_nest(), self.schedule
        self.items = self.all_parts + schedule.lag
        words = max(1, self.reduce.result.dtype.itemsize // 4)
        # The flag buffer: the launches' count, and a slot for the total of each part
        # and of each group of parts.
        self.flag_words = 1 + words * (self.all_parts + self.rows * self.groups)
        self.has_begin = True
        self.line("thread = thread_index()")
        self.begin_lanes("thread")
        loads, stores, moved = self.declare()
        self.summing = True
        self.declare_tiles(loads, schedule.lanes * schedule.tiles)
        self.registers(f"{self.total}_totals", self.dtype, AT_ONCE)
        for suffix in ("parts", "warps", "found", *(("group",) if self.groups else ())):
            self.shared_array(self.reduce.result, suffix, self.warps)
        self.summing = False
        count = self.integer("tiles", self.all_parts)
        # All loads are on their way before the first is waited for.
        with self.begin_scanned():
            self.load_all(loads, self.begin_part())
        self.summing = True
        self.begin_summed()
        with self.open(f"if tile < {count}:"):
            self.load_all(loads, self.begin_part())
        blocks = self.integer("blocks", self.items)
        # Which launch this is; blocks begin in the order of their own numbers.
        self.line(f"number = dynamic_block_id(flag_buffer, {blocks})")
        with self.open(f"if tile < {count}:"):
            self.sum_part(moved, self.begin_part())
        self.summing = False
        with self.begin_scanned():
            variables = self.begin_part()
            self.scan_threads(moved, variables)
            self.scan_warps()
            self.store_warp_total("warps")
        self.line("barrier()")
        self.publish_part(count)
        if self.groups:
            self.sum_group(count)
        with self.begin_scanned():
            variables = self.begin_part()
            self.scan_totals()
            self.look_back()
            self.store_all(store, moved, stores, variables)

    # Parts.

    @property
    def rows(self) -> int:
        """The number of rows."""
        return math.prod(self.nest.axes[k].extent for k in self.kept_axes)

    @property
    def all_parts(self) -> int:
        """The number of parts of all rows."""
        return self.rows * self.schedule.parts

    @property
    def group(self) -> int:
        """Parts of a group, whose total is published, too."""
        return self.schedule.threads // 2 * AT_ONCE

    @property
    def groups(self) -> int:
        """Groups of a row; 0 if there are no more parts than threads in a block."""
        parts = self.schedule.parts
        return 0 if parts <= self.schedule.threads else -(-parts // self.group)

    def begin_summed(self) -> None:
        """Define ``tile`` as the part that the block reduces."""
        self.line("tile = block_index()")

    def begin_scanned(self) -> Self:
        """Open what a block does with the part that it scans, if there is one.

        Defines ``tile`` as that part.
        """
        lag = self.integer("lag", self.schedule.lag)
        self.line(f"tile = block_index() - {lag}")
        return self.open("if tile >= 0:")

    def number_part(self) -> str:
        """Define ``part``, the number of ``tile`` in its row; return the row's text.

        ``tile`` numbers the parts of all rows. Where rows have groups of parts, the row
        is defined as ``start``.
        """
        row = "0"
        if self.kept_axes:
            parts = self.integer("parts", self.schedule.parts)
            self.line(f"part = {self.remainder('tile', parts, self.all_parts)}")
            row = self.quotient("tile", parts, self.all_parts)
        else:
            self.line("part = tile")
        if self.groups:
            self.line(f"start = {row}")
            row = "start"
        return row

    def begin_part(self) -> AxisIndices:
        """Define ``begin``, the first element of ``tile`` in its row.

        Returns the row's indices by kept axis.
        """
        row = self.number_part()
        self.line(f"begin = part * {self.tile_elements}")
        variables = self.decompose(row, self.kept_axes)
        self.offsets, self.offset_axes = {}, frozenset()
        self.hoist_offsets(variables)
        return variables

    @override
    def tile_name(self, operand: int) -> str:
        """The registers of the part that is scanned, or of the one that is reduced."""
        name = super().tile_name(operand)
        return f"{name.removesuffix('_tile')}_next" if self.summing else name

    # Sums.

    def sum_part(self, moved: Sequence[int], variables: AxisIndices) -> None:
        """Store the total of each warp's elements of the part in shared memory.

        ``moved`` are the operands in registers, ``variables`` the row's indices.
        """
        total = self.total
        self.line(f"{total} = {self.constant(self.reduce.identity)}")
        with self.open_vectors(), self.open_accumulation(moved, variables):
            pass
        self.combine_lanes(total, WARP)
        self.store_warp_total("parts")

    def publish_part(self, count: str) -> None:
        """Publish the total of the part that the block reduces, from its first warp.

        ``count`` is the number of parts of all rows.
        """
        total = self.total
        self.begin_summed()
        with self.open(f"if warp == 0 and tile < {count}:"):
            index = f"remainder(lane, {self.warps})"
            self.line(f"{total} = {total}_parts[{index}]")
            self.combine_lanes(total, self.warps)
            self.publish("tile", total)

    def sum_group(self, count: str) -> None:
        """Publish the total of the group that ends half a ``lag`` before, if one does.

        The totals of its parts are published by then: the block reduces the part with
        its own number, and scans the one ``lag`` before. ``count`` is the number of
        parts of all rows.
        """
        group = self.group
        half = self.integer("half_lag", self.schedule.lag // 2)
        parts = self.integer("parts", self.schedule.parts)
        self.line(f"tile = block_index() - {half}")
        self.line(f"part = {self.remainder('max_i64(tile, 0)', parts, self.all_parts)}")
        last = f"remainder(part + 1, {group}) == 0"
        with self.open(f"if tile >= 0 and tile < {count} and {last}:"):
            self.publish_group(count)

    def publish_group(self, count: str) -> None:
        """Publish the total of the group of parts that ends with ``tile``.

        ``count``, the number of parts of all rows, is the slot of the first group.
        """
        group, parts = self.group, self.integer("parts", self.schedule.parts)
        self.line(f"at = tile - {group - 1} + thread")
        self.line("end = tile + 1")
        self.read_totals(self.schedule.threads)
        self.combine_block("group")
        with self.open("if warp == 0:"):
            row = self.quotient("tile", parts, self.all_parts)
            number = f"quotient(part, {group})"
            self.line(f"number = {count} + {row} * {self.groups_of_row} + {number}")
            self.publish("number", "before")

    @property
    def first_group(self) -> str:
        """The flag slot of the first group's total: it follows those of all parts."""
        return self.integer("tiles", self.all_parts)

    @property
    def groups_of_row(self) -> str:
        """The expression of the number of groups of a row."""
        return self.integer("groups", self.groups)

    def look_back(self) -> None:
        """Make ``ahead``, the prefix of the warp in its part, that in the whole row."""
        self.sum_predecessors()
        self.line(f"ahead = {self.combined('before', 'ahead')}")

    def sum_predecessors(self) -> None:
        """Set ``before`` to the total of all parts of the row before this one.

        Half of the threads look at parts of its group, the others at groups before.
        """
        apart, within = self.schedule.threads, "part"
        if self.groups:
            apart, within = apart // 2, f"remainder(part, {self.group})"
        self.line(f"at = tile - {within} + thread")
        self.line("end = tile")
        if self.groups:
            with self.open(f"if thread >= {apart}:"):
                self.line(f"at = {self.first_group} + start * {self.groups_of_row}")
                self.line(f"end = at + quotient(part, {self.group})")
                self.line(f"at = at + thread - {apart}")
        self.read_totals(apart)
        self.combine_block("found")

    def read_totals(self, apart: int) -> None:
        """Set ``before`` to a thread's share of the totals from ``at`` up to ``end``.

        The thread combines every ``apart``-th total, beginning with its own ``at``.
        """
        totals, identity = f"{self.total}_totals", self.constant(self.reduce.identity)
        wait_for_many = f"wait_for_{self.dtype}x{AT_ONCE}"
        self.line(f"before = {identity}")
        with self.open(f"for item in range(at, end, {apart * AT_ONCE}):"):
            with self.open(f"for slot in range({AT_ONCE}):"):
                self.line(f"{totals}[slot] = {identity}")
            self.line(f"{wait_for_many}(flag_buffer, item, {apart}, end, {totals})")
            with self.open(f"for slot in range({AT_ONCE}):"):
                self.line(f"before = {self.combined('before', f'{totals}[slot]')}")

    # Threads.

    def combine_lanes(self, name: str, lanes: int) -> None:
        """Combine ``lanes`` neighbouring lanes' values of the variable ``name``.

        Each lane gets the result. ``lanes`` is a power of two.
        """
        with self.open(f"for step in range({lanes.bit_length() - 1}):"):
            shuffled = self.shuffled("xor", name, f"{lanes // 2} >> step")
            self.line(f"{name} = {self.combined(name, shuffled)}")

    def combine_block(self, suffix: str) -> None:
        """Combine ``before`` of all threads; each thread gets the result.

        ``suffix`` names the shared array for the warps' values.
        """
        found = f"{self.total}_{suffix}"
        self.combine_lanes("before", WARP)
        with self.open("if lane == 0:"):
            self.line(f"{found}[warp] = before")
        self.line("barrier()")
        self.line(f"before = {found}[0]")
        with self.open(f"for item in range(1, {self.warps}):"):
            self.line(f"before = {self.combined('before', f'{found}[item]')}")

    def publish(self, slot: str, value: str, member: str = "lane") -> None:
        """Publish ``value`` in slot ``place``, by the thread whose ``member`` is 0.

        All three are expressions.
        """
        with self.open(f"if {member} == 0:"):
            self.line(f"publish_{self.dtype}(flag_buffer, {slot}, {value})")
