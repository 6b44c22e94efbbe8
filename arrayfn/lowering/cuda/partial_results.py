"""Prints how one thread reduces its share of a row, before threads combine theirs.

In a loop along the row a thread has several accumulators for each reduction, so that
additions do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.row_copies import RowCopiesPrinter
from arrayfn.lowering.cuda.row_loops import T
from arrayfn.lowering.kernel_ir import Reduce
from arrayfn.records import record

ACCUMULATOR_WORDS: Final = 32
"""32-bit registers that the partial results of a stage may take up."""


@record
class PartialResultsPrinter(RowCopiesPrinter[T]):
    """Prints the reductions of one thread's share of a row."""

    def identities(self, stage: int) -> None:
        """Initialize a thread's accumulators of ``stage`` with identities.

        Prints, for a sum ``b`` with one accumulator or, in a loop along the row, four:

            b = f32(0)

            b_lanes = registers_f32(4)
            for slot in range(4):
                b_lanes[slot] = f32(0)
        """
        reduces = self.row_reductions(stage)
        self.accumulators = self.accumulator_count(reduces)
        if self.accumulators > 1:
            for s in reduces:
                name, dtype = self.accumulators_name(s), short_name(s.result.dtype)
                self.registers(name, dtype, self.accumulators)
            with self.open(f"for slot in range({self.accumulators}):"):
                for s in reduces:
                    name = self.accumulators_name(s)
                    self.line(f"{name}[slot] = {self.constant(s.identity)}")
            return
        for s in reduces:
            self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")

    def accumulator_count(self, reduces: Sequence[Reduce]) -> int:
        """Choose how many accumulators a thread has for each of ``reduces``.

        In a loop along the row there is one for each element that a thread has in an
        iteration, if registers allow: chains of additions are shorter, and do not wait
        for each other. Otherwise one.
        """
        schedule = self.schedule
        count = schedule.lanes * schedule.tiles
        words = sum(-(-s.result.dtype.itemsize // 4) for s in reduces)
        is_loop = not schedule.register_resident
        fits = words * count <= ACCUMULATOR_WORDS
        return count if reduces and is_loop and fits else 1

    def accumulators_name(self, s: Reduce) -> str:
        """Return ``b_lanes``: a thread's accumulators for the reduction ``b``."""
        return f"{self.name_of(s.result)}_lanes"

    def accumulate_in(self, s: Reduce, register: str) -> None:
        """Accumulate the current element in the accumulator of ``s`` for ``register``.

        Prints, with one accumulator:

            b = accumulate_add_f32(b, x)

        Prints, with one for each of four lanes:

            b_lanes[lane] = accumulate_add_f32(b_lanes[lane], x)

        Args:
            s: The reduction.
            register: The element's index among those that the thread has in an
                iteration, here ``lane``. It selects the accumulator, modulo their
                number.
        """
        if self.accumulators == 1:
            self.accumulate(s)
            return
        if self.accumulators < self.schedule.lanes * self.schedule.tiles:
            register = f"remainder({register}, {self.accumulators})"
        part = f"{self.accumulators_name(s)}[{register}]"
        element = self.scalar(s.argument)
        self.line(f"{part} = {s.function}({part}, {element})", s.source)

    def combine_lanes(self, stage: int) -> None:
        """Combine a thread's accumulators of each reduction of ``stage``, in a tree.

        Prints, for a sum in two accumulators:

            for slot in range(1):
                b_lanes[slot] = accumulate_add_f32(b_lanes[slot], b_lanes[slot + 1])
            b = b_lanes[0]
        """
        if self.accumulators == 1:
            return
        reduces, half = self.row_reductions(stage), self.accumulators // 2
        while half:
            with self.open(f"for slot in range({half}):"):
                for s in reduces:
                    parts, function = self.accumulators_name(s), s.function
                    terms = f"{parts}[slot], {parts}[slot + {half}]"
                    self.line(f"{parts}[slot] = {function}({terms})")
            half //= 2
        for s in reduces:
            self.line(f"{self.name_of(s.result)} = {self.accumulators_name(s)}[0]")
