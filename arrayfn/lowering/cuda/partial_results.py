"""The partial reductions of one thread, before threads combine theirs."""

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
"""Registers that the partial results of a stage may take up."""


@dataclass
class PartialResultsPrinter(RowCopiesPrinter[T]):
    """Prints what one thread does of a stage's reductions, before threads combine."""

    def identities(self, stage: int) -> None:
        """Set the thread's partial results of all reductions of ``stage``.

        They begin as the reductions' identities (0 of a sum).
        """
        reduces = self.reduces(stage)
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

        In a loop along the row there is one for each element of an iteration, if
        registers allow: chains of additions are shorter, and do not wait for each
        other.
        """
        schedule = self.schedule
        count = schedule.lanes * schedule.tiles
        words = sum(-(-s.result.dtype.itemsize // 4) for s in reduces)
        if (
            not reduces
            or schedule.register_resident
            or words * count > ACCUMULATOR_WORDS
        ):
            return 1
        return count

    def parts_of(self, s: Reduce) -> str:
        """The name of the registers with a thread's partial results of ``s``."""
        return f"{self.name_of(s.result)}_lanes"

    def accumulate_in(self, s: Reduce, register: str) -> None:
        """Accumulate the current element into a partial result of ``s``.

        ``register`` is the element's index expression in the thread's registers of the
        row; it selects which of several partial results is meant.
        """
        if self.accumulators == 1:
            self.accumulate(s)
            return
        if self.accumulators < self.schedule.lanes * self.schedule.tiles:
            register = f"remainder({register}, {self.accumulators})"
        part = f"{self.parts_of(s)}[{register}]"
        function = s.function
        self.line(f"{part} = {function}({part}, {self.scalar(s.argument)})", s.source)

    def combine_lanes(self, stage: int) -> None:
        """Combine a thread's partial results of each reduction, in a tree."""
        if self.accumulators == 1:
            return
        reduces, half = self.reduces(stage), self.accumulators // 2
        while half:
            with self.open(f"for slot in range({half}):"):
                for s in reduces:
                    parts, function = self.parts_of(s), s.function
                    terms = f"{parts}[slot], {parts}[slot + {half}]"
                    self.line(f"{parts}[slot] = {function}({terms})")
            half //= 2
        for s in reduces:
            self.line(f"{self.name_of(s.result)} = {self.parts_of(s)}[0]")
