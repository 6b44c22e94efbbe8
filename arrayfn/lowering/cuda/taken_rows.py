"""Which rows the blocks of a pipeline have: they take them as they come to them.

Of a cluster the first block does, and tells the others. What is computed in iteration t
has its number in place ``t % PLACES``. It is told an iteration before it is fetched,
and the last one is no row. The first ones are nobody's to take: cluster c has c, c +
clusters, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.slices import SlicesPrinter
from arrayfn.lowering.cuda.vocabulary import WARP

PLACES: Final = 8  # of rows' numbers: more than are known, or still needed, at a time
NUMBER_BYTES: Final = 8  # of a row's number, as it is told


@dataclass
class TakenRowsPrinter(SlicesPrinter):
    """Prints what one thread does for the rows to come while the others wait."""

    has_chores: bool = False  # whether that is still to be done in this iteration

    @property
    def first_rows(self) -> int:
        """The first iterations whose rows nobody takes: a cluster has its own."""
        return self.schedule.ahead + 1

    @property
    def takes(self) -> str:
        """Which thread takes rows for the block, or the cluster."""
        return f"{self.thread} == {self.idle(2)}"

    def idle(self, warp: int) -> int:
        """The first thread of a ``warp`` that the others do not wait for, if any is."""
        return WARP * min(warp, self.schedule.threads // WARP - 1)

    def place_of(self, iteration: str) -> str:
        return f"{self.use_device('remainder')}({iteration}, {PLACES})"

    def await_told(self, iteration: str) -> None:
        """Wait until it is told what is to be computed in ``iteration``."""
        if self.schedule.cluster == 1:
            return
        iterations = f"{self.use_device('quotient')}({iteration}, {PLACES})"
        parity = f"{self.use_device('remainder')}({iterations}, 2)"
        wait = self.use_device("mbarrier_wait")
        self.line(f"{wait}(told, {self.place_of(iteration)}, {parity})")

    def do_chores(self) -> None:
        """Fetch a later iteration's row, and claim another one, while others wait.

        All of the block have met: the place of the iteration's own row is free.
        """
        if not self.has_chores:
            return
        self.has_chores = False
        self.open(f"if member == {self.idle(1)}:")
        self.fetch_following()
        self.close()
        self.open(f"if {self.takes}:")
        self.tell_following()
        self.close()

    def fetch_following(self) -> None:
        """Fetch a row to the slot of this iteration's, if the one before it is a row.

        If the row ahead is the next one, it is asked whether this iteration has one
        although it does: ptxas then gives each wait a first try of its own, and
        layernorm of long rows takes a tenth less time.
        """
        ahead, add = self.schedule.ahead, "iteration + {}".format
        before = self.place_of(add(ahead - 1) if ahead > 1 else "iteration")
        following = self.place_of(add(ahead))
        self.open(f"if numbers[{before}] < {self.rows}:")
        self.await_told(add(ahead))
        self.line(f"other = numbers[{following}]")
        self.fetch_row("other", add(ahead))
        self.close()
        self.open("else:")
        self.line(f"numbers[{following}] = {self.rows}")
        self.close()
        if self.schedule.cluster > 1:
            # All of the block know what this iteration computes.
            expect = self.use_device("mbarrier_expect_tx")
            this = self.place_of("iteration")
            self.line(f"{expect}(told, {this}, {NUMBER_BYTES})")

    def tell_following(self) -> None:
        """Take a row, if the one before it is one, and tell all of the cluster."""
        first, cluster = self.first_rows, self.schedule.cluster
        clusters = self.integer("clusters", self.schedule.clusters)
        place = self.place_of(f"iteration + {first}")
        self.open(f"if following < {self.rows}:")
        self.line(f"following = {self.use_device('next_work_item')}(flag_buffer, 1, 1)")
        self.line(f"following = following + {clusters} * {first}")
        if cluster == 1:
            self.line(f"numbers[{place}] = following")
        else:
            send = self.use_device("dsmem_store_i64")
            self.open(f"for peer in range({cluster}):")
            self.line(f"{send}(numbers, {place}, following, peer, told, {place})")
            self.close()
        self.close()
