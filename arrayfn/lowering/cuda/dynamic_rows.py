"""Dynamic scheduling of a pipeline's rows: clusters claim them from a work queue.

The first block of a cluster claims a row, and sends its number to the others. Slot
``t % SLOTS`` of ``numbers`` holds the row of iteration t, from an iteration before its
copy begins; a number beyond the last row ends the loop. The first rows are
assigned statically: cluster c has rows c, c + clusters, and so on.
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
    """Prints how one thread claims and prefetches later rows while others wait."""

    has_chores: bool = False  # whether this iteration still has to print that

    @property
    def first_rows(self) -> int:
        """The number of a cluster's first rows, which are assigned statically."""
        return self.schedule.ahead + 1

    @property
    def takes(self) -> str:
        """The condition of the thread that claims rows for the block or cluster."""
        return f"{self.thread} == {self.idle(2)}"

    def idle(self, warp: int) -> int:
        """The first thread of a ``warp`` that the others do not wait for, if any is."""
        return WARP * min(warp, self.schedule.threads // WARP - 1)

    def slot_of(self, iteration: str) -> str:
        return f"remainder({iteration}, {SLOTS})"

    def wait_for_number(self, iteration: str) -> None:
        """Wait until the number of the row of ``iteration`` has arrived."""
        if self.schedule.cluster == 1:
            return
        iterations = f"quotient({iteration}, {SLOTS})"
        parity = f"remainder({iterations}, 2)"
        self.line(f"mbarrier_wait(numbered, {self.slot_of(iteration)}, {parity})")

    def do_chores(self) -> None:
        """Fetch a later iteration's row, and claim another one, while others wait.

        The block has passed a barrier: the slot of the iteration's own row is free.
        """
        if not self.has_chores:
            return
        self.has_chores = False
        with self.open(f"if member == {self.idle(1)}:"):
            self.fetch_following()
        with self.open(f"if {self.takes}:"):
            self.claim_following()

    def fetch_following(self) -> None:
        """Fetch a row to the slot of this iteration's, if the one before it is a row.

        If the row ahead is the next one, the test is of this iteration's row, and
        always holds: with it ptxas gives each wait a first try of its own, and a layer
        norm of long rows takes a tenth less time.
        """
        ahead, add = self.schedule.ahead, "iteration + {}".format
        before = self.slot_of(add(ahead - 1) if ahead > 1 else "iteration")
        following = self.slot_of(add(ahead))
        with self.open(f"if numbers[{before}] < {self.rows}:"):
            self.wait_for_number(add(ahead))
            self.line(f"other = numbers[{following}]")
            self.fetch_row("other", add(ahead))
        with self.open("else:"):
            self.line(f"numbers[{following}] = {self.rows}")
        if self.schedule.cluster > 1:
            # All threads have read the number of this iteration's row.
            this = self.slot_of("iteration")
            self.line(f"mbarrier_expect_tx(numbered, {this}, {NUMBER_BYTES})")

    def claim_following(self) -> None:
        """Claim a row, unless the last was beyond the end; send it to the cluster."""
        first, cluster = self.first_rows, self.schedule.cluster
        clusters = self.integer("clusters", self.schedule.clusters)
        place = self.slot_of(f"iteration + {first}")
        with self.open(f"if following < {self.rows}:"):
            self.line("following = next_work_item(flag_buffer, 1, 1)")
            self.line(f"following = following + {clusters} * {first}")
            if cluster == 1:
                self.line(f"numbers[{place}] = following")
            else:
                with self.open(f"for peer in range({cluster}):"):
                    given = f"numbers, {place}, following, peer, numbered, {place}"
                    self.line(f"dsmem_store_i64({given})")
