"""Scans along rows that are too long for a block: decoupled look-back over parts.

A block reduces one part of a row, publishes its total, and scans another part, which
lies ``lag`` parts before. By then the totals before that part have been published, so
blocks hardly wait, and its elements are still in the L2 cache, so memory is read once.
Totals of groups of 512 parts are also published, half a ``lag`` later. The prefix of a
part is the sum of up to 511 totals of its own group and of the totals of the groups
before; a thread reads eight of them at once. The order of the sums follows only from
the shapes.

The kernel's variable ``tile`` is a part's number among those of all rows, ``part`` its
number in its row, ``start`` the row. The flag buffer has a slot for the total of each
``tile``, and after these one for the total of each group of parts.

Blocks have dynamic ids, and wait for lower ids only. (Merrill and Garland, "Single-pass
parallel prefix scan with decoupled look-back", 2016, keep the part in the block while
they look back, and use whichever prefix is there.)
"""

from __future__ import annotations

from typing import Final, Self

from typing_extensions import override

from arrayfn.lowering.cuda.scans import S, ScanPrinter
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.records import record

FLAGS_AT_ONCE: Final = 8
"""Flags that a thread loads at once."""


@record
class PartsPrinter(ScanPrinter[S]):
    """Prints scans of rows in parts.

    Besides the variables of ``ScanPrinter``, the kernel of ``a = cumsum(x)`` has these:

    * ``x_next``: registers for the part that is reduced; ``x_tile`` for the one that is
      scanned.
    * ``a_parts`` (shared memory): the warps' totals of the part that is reduced.
    * ``a_totals``: totals that a thread has read from the flag buffer.
    * ``before``: the total of parts before, or of a group of parts.
    """

    reduces_part: bool = False
    """Whether the lines being printed are for the part that is reduced."""

    @override
    def body(self) -> None:
        """Print the kernel's lines: a block reduces one part and scans another."""
        self.read_nest()
        schedule = self.schedule
        # A block reduces the part of its number, and scans the one ``lag`` before. The
        # first ``lag`` blocks scan nothing, the last ones reduce nothing.
        self.items = self.all_parts + schedule.lag
        words = max(1, self.reduce.result.dtype.itemsize // 4)
        # The flag buffer: the launches' count, and a slot for the total of each part
        # and of each group of parts.
        self.flag_words = 1 + words * (self.all_parts + self.rows * self.groups)
        self.has_begin = True
        self.line("thread = thread_index()")
        self.define_lane_and_warp("thread")
        self.declare()
        self.reduces_part = True
        self.declare_tiles(self.loads, schedule.lanes * schedule.tiles)
        self.registers(f"{self.total}_totals", self.dtype, FLAGS_AT_ONCE)
        # Values of each warp: totals of the reduced and of the scanned part, and for
        # sums over the block in ``combine_block``.
        for suffix in ("parts", "warps", "found", *(("group",) if self.groups else ())):
            self.shared_array(self.reduce.result, suffix, self.warps)
        self.reduces_part = False
        count = self.part_count
        # The loads of both parts are issued before the block waits for one of them.
        with self.open_scanned_part():
            self.begin_part()
            self.load_all()
        self.reduces_part = True
        self.line("tile = block_index()")
        with self.open(f"if tile < {count}:"):
            self.begin_part()
            self.load_all()
        blocks = self.integer("blocks", self.items)
        # This says which launch it is, so that flags of earlier launches do not count.
        # The id itself is not needed: blocks begin in the order of their numbers.
        self.line(f"number = dynamic_block_id(flag_buffer, {blocks})")
        with self.open(f"if tile < {count}:"):
            self.begin_part()
            self.reduce_part()
        self.reduces_part = False
        with self.open_scanned_part():
            self.begin_part()
            self.scan_threads()
            self.scan_warps()
            self.store_warp_total("warps")
        self.line("barrier()")
        self.publish_part()
        if self.groups:
            self.sum_group()
        with self.open_scanned_part():
            self.begin_part()
            self.scan_totals()
            self.sum_predecessors()
            self.line(f"ahead = {self.combined('before', 'ahead')}")
            self.store_all()

    # Parts and groups of parts.

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.nest.rows

    @property
    def all_parts(self) -> int:
        """The number of parts of all rows."""
        return self.rows * self.schedule.parts

    @property
    def part_count(self) -> str:
        """The parameter with the number of parts of all rows; ``tile`` is below it.

        It is also the flag buffer's slot of the first group of parts.
        """
        return self.integer("tiles", self.all_parts)

    @property
    def parts(self) -> str:
        """The parameter with the number of parts of a row."""
        return self.integer("parts", self.schedule.parts)

    @property
    def group(self) -> int:
        """Parts in a group, whose total is also published.

        Half of a block's threads read the totals of a whole group at once.
        """
        return self.schedule.threads // 2 * FLAGS_AT_ONCE

    @property
    def groups(self) -> int:
        """Groups of a row; 0 if there are no more parts than threads in a block."""
        parts = self.schedule.parts
        return 0 if parts <= self.schedule.threads else -(-parts // self.group)

    @property
    def groups_of_row(self) -> str:
        """The parameter with the number of groups of a row."""
        return self.integer("groups", self.groups)

    @property
    def ends_group(self) -> str:
        """The condition that ``part`` is the last one of a whole group."""
        return f"remainder(part + 1, {self.group}) == 0"

    def open_scanned_part(self) -> Self:
        """Open the block of lines for the part that is scanned, if there is one.

        Prints:

            tile = block_index() - lag
            if tile >= 0:
        """
        lag = self.integer("lag", self.schedule.lag)
        self.line(f"tile = block_index() - {lag}")
        return self.open("if tile >= 0:")

    def define_part(self) -> str:
        """Define ``part``, the number of ``tile`` in its row; return the row's number.

        Prints, where rows have groups of parts:

            part = remainder(tile, parts)
            start = quotient(tile, parts)

        It returns ``start`` then. Without groups it returns the expression of the
        quotient, or 0 if there is only one row.
        """
        row = "0"
        if self.kept_axes:
            parts = self.parts
            self.line(f"part = {self.remainder('tile', parts, self.all_parts)}")
            row = self.quotient("tile", parts, self.all_parts)
        else:
            self.line("part = tile")
        if self.groups:
            self.line(f"start = {row}")
            row = "start"
        return row

    def begin_part(self) -> None:
        """Define ``begin``, the index in the row at which ``tile`` begins, and the row.

        Prints, for parts of 4096 elements, after the lines of ``define_part``:

            begin = part * 4096
            i0 = start
            row = i0 * n1

        Offsets of operands are hoisted again, as another part may be of another row.
        """
        row = self.define_part()
        self.line(f"begin = part * {self.tile_elements}")
        self.row = self.decompose(row, self.kept_axes)
        self.offsets, self.offset_axes = {}, frozenset()
        self.hoist_offsets(self.row)

    @override
    def tile_name(self, operand: int) -> str:
        """Return ``x_tile``, or ``x_next`` in lines for the part that is reduced."""
        name = super().tile_name(operand)
        return f"{name.removesuffix('_tile')}_next" if self.reduces_part else name

    # Totals that are published, and read.

    def reduce_part(self) -> None:
        """Store the total of each warp's elements of the part in shared memory."""
        total = self.total
        self.line(f"{total} = {self.identity}")
        with self.open_vectors(), self.open_accumulation():
            pass  # running values of elements are not needed
        self.combine_lanes(total, WARP)
        self.store_warp_total("parts")

    def publish_part(self) -> None:
        """Print how the first warp publishes the total of the part that is reduced.

        Prints, for four warps:

            tile = block_index()
            if warp == 0 and tile < tiles:
                a = a_parts[remainder(lane, 4)]
                for step in range(2):
                    a = add_f32(a, shuffle_xor_f32(a, 2 >> step))
                if lane == 0:
                    publish_f32(flag_buffer, tile, a)
        """
        total = self.total
        self.line("tile = block_index()")
        with self.open(f"if warp == 0 and tile < {self.part_count}:"):
            self.line(f"{total} = {total}_parts[remainder(lane, {self.warps})]")
            self.combine_lanes(total, self.warps)
            self.publish("tile", total)

    def sum_group(self) -> None:
        """Publish the total of the group that ends half a ``lag`` before, if one does.

        The totals of its parts are published by then: the block reduces the part with
        its own number, and scans the one ``lag`` before.
        """
        half = self.integer("half_lag", self.schedule.lag // 2)
        parts = self.parts
        self.line(f"tile = block_index() - {half}")
        self.line(f"part = {self.remainder('max_i64(tile, 0)', parts, self.all_parts)}")
        with self.open(
            f"if tile >= 0 and tile < {self.part_count} and {self.ends_group}:"
        ):
            self.publish_group()

    def publish_group(self) -> None:
        """Publish the total of the group of parts that ends with ``tile``.

        ``before`` becomes the total of the parts from ``at`` to below ``end``. Prints,
        for groups of 512 parts, besides the sum of totals:

            at = tile - 511 + thread
            end = tile + 1
            if warp == 0:
                number = tiles + quotient(tile, parts) * groups + quotient(part, 512)
                if lane == 0:
                    publish_f32(flag_buffer, number, before)
        """
        group, parts = self.group, self.parts
        self.line(f"at = tile - {group - 1} + thread")
        self.line("end = tile + 1")
        self.read_totals(self.schedule.threads)
        self.combine_block("group")
        with self.open("if warp == 0:"):
            row = self.quotient("tile", parts, self.all_parts)
            slot = f"{row} * {self.groups_of_row} + quotient(part, {group})"
            self.line(f"number = {self.part_count} + {slot}")
            self.publish("number", "before")

    def sum_predecessors(self) -> None:
        """Set ``before`` to the total of all earlier parts of the row.

        Half of the threads read totals of earlier parts of the same group, the other
        half totals of earlier groups. Without groups all threads read totals of parts.
        ``tile`` is the part's number among all parts, ``part`` its number in its row,
        which is row ``start``. ``at`` and ``end`` are slots of the flag buffer: part t
        has slot t, and the groups follow. Prints, for 128 threads and groups of 512
        parts, before the sum of totals:

            at = tile - remainder(part, 512) + thread
            end = tile
            if thread >= 64:
                at = tiles + start * groups
                end = at + quotient(part, 512)
                at = at + thread - 64
        """
        apart, within = self.schedule.threads, "part"
        if self.groups:
            apart, within = apart // 2, f"remainder(part, {self.group})"
        self.line(f"at = tile - {within} + thread")
        self.line("end = tile")
        if self.groups:
            self.print_lines(f"""
                if thread >= {apart}:
                    at = {self.part_count} + start * {self.groups_of_row}
                    end = at + quotient(part, {self.group})
                    at = at + thread - {apart}
                """)
        self.read_totals(apart)
        self.combine_block("found")

    def read_totals(self, apart: int) -> None:
        """Set ``before`` to a thread's share of the totals in slots ``at`` to ``end``.

        The thread combines every ``apart``-th total, beginning with its own ``at``. It
        waits until these totals are published, ``FLAGS_AT_ONCE`` at a time; slots from
        ``end`` on leave the identity in the registers.
        """
        totals, identity = f"{self.total}_totals", self.identity
        read = f"wait_for_{self.dtype}x{FLAGS_AT_ONCE}"
        self.print_lines(f"""
            before = {identity}
            for item in range(at, end, {apart * FLAGS_AT_ONCE}):
                for slot in range({FLAGS_AT_ONCE}):
                    {totals}[slot] = {identity}
                {read}(flag_buffer, item, {apart}, end, {totals})
                for slot in range({FLAGS_AT_ONCE}):
                    before = {self.combined("before", f"{totals}[slot]")}
            """)

    def combine_lanes(self, name: str, lanes: int) -> None:
        """Combine the variable ``name`` of ``lanes`` neighbouring lanes.

        Each lane gets the result. ``lanes`` is a power of two.
        """
        shuffled = self.shuffled("xor", name, f"{lanes // 2} >> step")
        self.print_lines(f"""
            for step in range({lanes.bit_length() - 1}):
                {name} = {self.combined(name, shuffled)}
            """)

    def combine_block(self, suffix: str) -> None:
        """Combine ``before`` of all threads; each thread gets the result.

        ``suffix`` names the shared array for the warps' values.
        """
        array = f"{self.total}_{suffix}"
        self.combine_lanes("before", WARP)
        self.print_lines(f"""
            if lane == 0:
                {array}[warp] = before
            barrier()
            before = {array}[0]
            for item in range(1, {self.warps}):
                before = {self.combined("before", f"{array}[item]")}
            """)

    def publish(self, slot: str, value: str, member: str = "lane") -> None:
        """Print how one thread publishes ``value`` in ``slot`` of the flag buffer.

        It is the thread whose ``member`` is 0. All three are expressions.
        """
        with self.open(f"if {member} == 0:"):
            self.line(f"publish_{self.dtype}(flag_buffer, {slot}, {value})")
