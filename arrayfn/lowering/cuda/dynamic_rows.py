"""Dynamic scheduling of a pipeline's rows: clusters claim them from a work queue.

The first block of a cluster claims a row, and sends its number to the others. Slot
``t % SLOTS`` of the shared array ``numbers`` holds the row of iteration t, from an
iteration before its copy begins; a number beyond the last row ends the loop. The first
rows are assigned statically: cluster c has rows c, c + clusters, and so on.

Two threads of different warps do this while the other warps combine their results:
the *producers* of the pipeline. One begins the copy of a later row, the other claims
the row after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.slices import SlicesPrinter
from arrayfn.lowering.cuda.vocabulary import WARP

SLOTS: Final = 8  # of row numbers: more than are in use at a time
NUMBER_BYTES: Final = 8  # of a row's number, as it is sent


@dataclass
class DynamicRowScheduler(SlicesPrinter):
    """Prints what the two producers of a pipeline do, once in each iteration."""

    producers_pending: bool = False
    """Whether the producers' part of this iteration is still to be printed."""

    @property
    def first_rows(self) -> int:
        """How many rows of each cluster are assigned before the work queue is used."""
        return self.schedule.prefetch_rows + 1

    @property
    def claims_rows(self) -> str:
        """The condition that holds for the thread that claims the cluster's rows."""
        return f"{self.thread} == {self.producer_thread(2)}"

    def producer_thread(self, warp: int) -> int:
        """The first thread of ``warp``, or of the last warp if the block has fewer.

        Any but the first warp will do: others wait for its results.
        """
        return WARP * min(warp, self.schedule.threads // WARP - 1)

    def slot_of(self, iteration: str) -> str:
        """The index in ``numbers`` of the row number of ``iteration``.

        Both are expressions of the kernel.
        """
        return f"remainder({iteration}, {SLOTS})"

    def wait_for_row_number(self, iteration: str) -> None:
        """Wait until the number of the row of ``iteration`` has arrived.

        In a cluster another block sends it.
        """
        if self.schedule.cluster == 1:
            return
        iterations = f"quotient({iteration}, {SLOTS})"
        parity = f"remainder({iterations}, 2)"
        self.line(f"mbarrier_wait(numbered, {self.slot_of(iteration)}, {parity})")

    def print_producers(self) -> None:
        """Print the producers' part, unless this iteration has it already.

        The block must have passed a barrier after it loaded this iteration's row, whose
        slot is free then.
        """
        if not self.producers_pending:
            return
        self.producers_pending = False
        with self.open(f"if member == {self.producer_thread(1)}:"):
            self.prefetch_next_row()
        with self.open(f"if {self.claims_rows}:"):
            self.claim_next_row()

    def prefetch_next_row(self) -> None:
        """Begin to copy the row ``prefetch_rows`` iterations later, if there is one.

        After the end of the rows a number beyond them is passed on. The test for that
        is of the row one iteration earlier. If that is this iteration's, the test
        always holds; but with it ptxas peels the first try of each mbarrier wait, and a
        layer norm of long rows takes a tenth less time.
        """
        distance, add = self.schedule.prefetch_rows, "iteration + {}".format
        before = self.slot_of(add(distance - 1) if distance > 1 else "iteration")
        following = self.slot_of(add(distance))
        with self.open(f"if numbers[{before}] < {self.rows}:"):
            self.wait_for_row_number(add(distance))
            self.line(f"other = numbers[{following}]")
            self.copy_row("other", add(distance))
        with self.open("else:"):
            self.line(f"numbers[{following}] = {self.rows}")
        if self.schedule.cluster > 1:
            # All threads have read the number of this iteration's row.
            this = self.slot_of("iteration")
            self.line(f"mbarrier_expect_tx(numbered, {this}, {NUMBER_BYTES})")

    def claim_next_row(self) -> None:
        """Claim a row, unless the last was beyond the end; send it to the cluster.

        ``following`` is the row that was claimed last.
        """
        first, cluster = self.first_rows, self.schedule.cluster
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
