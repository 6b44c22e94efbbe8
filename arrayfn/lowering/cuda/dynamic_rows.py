"""Dynamic scheduling of a pipeline's rows: clusters claim them from a work queue.

The first block of a cluster claims a row, and sends its number to the others. Slot ``t
% ROW_NUMBER_SLOTS`` of the shared array ``numbers`` holds the row of iteration t, from
an iteration before its copy begins; a number beyond the last row ends the loop. The
first rows are assigned statically: cluster c has rows c, c + clusters, and so on.

Two threads of different warps do this while the other warps combine their results: the
*producers* of the pipeline. One begins the copy of a later row, the other claims the
row after it.
"""

from __future__ import annotations

from typing import Final

from arrayfn.lowering.cuda.slices import SlicesPrinter
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.records import record

ROW_NUMBER_SLOTS: Final = 8
"""Row numbers in shared memory. More than are in use at a time, which is at most the
prefetched rows and the two after them; a power of two for fast remainders.
"""
ROW_NUMBER_BYTES: Final = 8
"""Bytes of a row's number, as it is sent to other blocks."""


@record
class DynamicRowScheduler(SlicesPrinter):
    """Prints what the two producers of a pipeline do, once in each iteration."""

    producers_pending: bool = False
    """Whether the producers' lines are still to be printed in this iteration."""

    @property
    def static_rows(self) -> int:
        """How many rows of each cluster are assigned before the work queue is used."""
        return self.schedule.prefetch_rows + 1

    @property
    def row_claim_condition(self) -> str:
        """The condition that selects the thread which claims rows: ``thread == 64``."""
        return f"{self.thread} == {self.producer_thread(2)}"

    def producer_thread(self, warp: int) -> int:
        """Return the first thread of ``warp``, or of the last warp of the block.

        The last warp is taken if the block has fewer warps. Any warp but the first will
        do: others wait for the first one's results.
        """
        return WARP * min(warp, self.schedule.threads // WARP - 1)

    def slot_of(self, iteration: str) -> str:
        """Return the index in ``numbers`` for ``iteration``.

        It is ``remainder(iteration, 8)``.
        """
        return f"remainder({iteration}, {ROW_NUMBER_SLOTS})"

    def wait_for_row_number(self, iteration: str) -> None:
        """Wait until the number of the row of ``iteration`` has arrived.

        Prints, in a cluster, in which another block sends it:

            mbarrier_wait(numbered, remainder(i, 8), remainder(quotient(i, 8), 2))
        """
        if self.schedule.cluster == 1:
            return
        iterations = f"quotient({iteration}, {ROW_NUMBER_SLOTS})"
        parity = f"remainder({iterations}, 2)"
        self.line(f"mbarrier_wait(numbered, {self.slot_of(iteration)}, {parity})")

    def print_producers(self) -> None:
        """Print what the producers do in an iteration, once: later calls print nothing.

        Prints:

            if member == 32:
                (prefetch_next_row)
            if thread == 64:
                (claim_next_row)

        Before these lines the block must have passed a barrier after it loaded this
        iteration's row, so that the row's buffer is free.
        """
        if not self.producers_pending:
            return
        self.producers_pending = False
        with self.open(f"if member == {self.producer_thread(1)}:"):
            self.prefetch_next_row()
        with self.open(f"if {self.row_claim_condition}:"):
            self.claim_next_row()

    def prefetch_next_row(self) -> None:
        """Begin to copy the row ``prefetch_rows`` iterations later, if there is one.

        Prints, for two prefetched rows and clusters of one block:

            if numbers[remainder(iteration + 1, 8)] < n0:
                other = numbers[remainder(iteration + 2, 8)]
                (copy_row of row other)
            else:
                numbers[remainder(iteration + 2, 8)] = n0

        After the end of the rows a number beyond them is passed on. The test for that
        is of the row one iteration earlier. If that is this iteration's, the test
        always holds; but with it ptxas peels the first try of each mbarrier wait, and a
        layer norm of long rows takes a tenth less time.
        """
        distance = self.schedule.prefetch_rows
        iteration = f"iteration + {distance}"
        before = f"iteration + {distance - 1}" if distance > 1 else "iteration"
        with self.open(f"if numbers[{self.slot_of(before)}] < {self.rows}:"):
            self.wait_for_row_number(iteration)
            self.line(f"other = numbers[{self.slot_of(iteration)}]")
            self.copy_row("other", iteration)
        with self.open("else:"):
            self.line(f"numbers[{self.slot_of(iteration)}] = {self.rows}")
        if self.schedule.cluster > 1:
            # All threads have read the number of this iteration's row, so its slot can
            # expect the next number.
            this = self.slot_of("iteration")
            self.line(f"mbarrier_expect_tx(numbered, {this}, {ROW_NUMBER_BYTES})")

    def claim_next_row(self) -> None:
        """Claim a row and send its number to the cluster, until there are no more.

        Prints, for clusters of 8 blocks, of which each has three rows at first:

            if following < n0:
                following = next_work_item(flag_buffer, 1, 1)
                following = following + clusters * 3
                for peer in range(8):
                    dsmem_store_i64(numbers, slot, following, peer, numbered, slot)

        ``following`` is the row that was claimed last; for ``slot`` see ``slot_of``. A
        cluster of one block has ``numbers[slot] = following`` instead.
        """
        first, cluster = self.static_rows, self.schedule.cluster
        clusters = self.integer("clusters", self.schedule.clusters)
        slot = self.slot_of(f"iteration + {first}")
        with self.open(f"if following < {self.rows}:"):
            self.line("following = next_work_item(flag_buffer, 1, 1)")
            self.line(f"following = following + {clusters} * {first}")
            if cluster == 1:
                self.line(f"numbers[{slot}] = following")
            else:
                with self.open(f"for peer in range({cluster}):"):
                    arguments = f"numbers, {slot}, following, peer, numbered, {slot}"
                    self.line(f"dsmem_store_i64({arguments})")
