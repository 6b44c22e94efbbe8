"""The partial results of one thread, before threads combine theirs.

In a loop along the row a thread keeps several partial results of each reduction
(accumulators), so that additions do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.row_copies import RowCopiesPrinter
from arrayfn.lowering.cuda.schedule import Columns, Pipeline, Rows
from arrayfn.lowering.kernel_ir import Reduce

T = TypeVar("T", Rows, Pipeline, Columns)
ACCUMULATOR_WORDS: Final = 32
"""32-bit registers that the partial results of a stage may take up."""


@dataclass
class PartialResultsPrinter(RowCopiesPrinter[T]):
    """Prints one thread's share of a stage's reductions."""

    def identities(self, stage: int) -> None:
        """Set the thread's partial results of ``stage`` to the reductions' identities.

        Prints, for a sum ``b`` in one register or, in a loop along the row, in four:

            b = f32(0)

            b_lanes = registers_f32(4)
            for slot in range(4):
                b_lanes[slot] = f32(0)
        """
        reduces = self.row_reductions(stage)
        self.accumulators = self.accumulators_of(reduces)
        if self.accumulators > 1:
            for s in reduces:
                name, dtype = self.parts_of(s), short_name(s.result.dtype)
                self.registers(name, dtype, self.accumulators)
            with self.open(f"for slot in range({self.accumulators}):"):
                for s in reduces:
                    self.line(f"{self.parts_of(s)}[slot] = {self.constant(s.identity)}")
            return
        for s in reduces:
            self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")

    def accumulators_of(self, reduces: Sequence[Reduce]) -> int:
        """How many partial results a thread keeps of each of ``reduces``.

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

    def parts_of(self, s: Reduce) -> str:
        """``b_lanes``, the registers of a thread's partial results of ``b``."""
        return f"{self.name_of(s.result)}_lanes"

    def accumulate_in(self, s: Reduce, register: str) -> None:
        """Accumulate the current element into a partial result of ``s``.

        Prints, with one partial result, or with one for each of four lanes:

            b = accumulate_add_f32(b, x)

            b_lanes[lane] = accumulate_add_f32(b_lanes[lane], x)

        Args:
            s: The reduction.
            register: The element's index among those that the thread has in an
                iteration, here ``lane``. It selects the partial result, modulo their
                number.
        """
        if self.accumulators == 1:
            self.accumulate(s)
            return
        if self.accumulators < self.schedule.lanes * self.schedule.tiles:
            register = f"remainder({register}, {self.accumulators})"
        part = f"{self.parts_of(s)}[{register}]"
        element = self.scalar(s.argument)
        self.line(f"{part} = {s.function}({part}, {element})", s.source)

    def combine_lanes(self, stage: int) -> None:
        """Combine a thread's partial results of each reduction of ``stage``, in a tree.

        Prints, for a sum in two partial results:

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
                    parts, function = self.parts_of(s), s.function
                    terms = f"{parts}[slot], {parts}[slot + {half}]"
                    self.line(f"{parts}[slot] = {function}({terms})")
            half //= 2
        for s in reduces:
            self.line(f"{self.name_of(s.result)} = {self.parts_of(s)}[0]")
