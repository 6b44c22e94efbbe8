"""Copies to shared memory that a thread makes for itself alone (``cp.async``).

* The last vectors of a long row, which lie *aside*: with them two blocks fit on a
  multiprocessor where registers alone would allow one.
* Vectors of operands that all rows share, such as weights. The stores between their
loads
  would make each wait for the last; so the first copies begin with the row's, and each
  later one when a slot is free.

A thread reads only what it has copied or stored itself: it waits for its own copies,
and needs no barrier.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeVar

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.row_arithmetic import RowArithmetic
from arrayfn.lowering.cuda.schedule import Columns, Pipeline, Rows
from arrayfn.lowering.kernel_ir import Value

T = TypeVar("T", Rows, Pipeline, Columns)
_NONE: Final = -1


@dataclass
class RowCopiesPrinter(RowArithmetic[T]):
    """Prints copies to shared memory, and what is done with them."""

    member: str = ""  # the name of the thread's number in its group
    row: int = _NONE  # the operand whose last vectors lie aside
    is_aside: bool = False  # whether what is printed is for these
    copied: Sequence[int] = ()  # what all rows share that is copied early
    span: tuple[int, int] | None = None  # a thread's vectors, if not as usual

    @abstractmethod
    def open_row(self, after: str = "") -> AbstractContextManager[dict[int, str]]:
        """Open the loop over a thread's vectors of the row: indices at their start.

        The line ``after`` ends each iteration, for threads without a vector, too.
        """

    @abstractmethod
    def fresh_and_late(self, stage: int) -> tuple[list[int], list[int]]:
        """The operands that ``stage`` loads before anything else, and as it goes on."""

    @property
    def own_tiles(self) -> int:
        """A thread's vectors that are in registers."""
        return self.schedule.tiles - self.schedule.aside

    @property
    def vectors_at_hand(self) -> tuple[int, int]:
        """The first of a thread's vectors that a loop goes through, and their end."""
        aside = self.own_tiles, self.schedule.tiles
        return self.span or (aside if self.is_aside else (0, self.own_tiles))

    def copy_vector(self, operand: int, at: dict[int, str], place: str) -> None:
        """Begin to copy a vector to ``place`` of the operand's shared array."""
        copy = f"cp_async_{self.vector_name(operand, self.schedule.lanes)}"
        source = f"{self.pointer(operand)}, {self.index(operand, at)}"
        self.line(f"{copy}({source}, {self.shared_name(operand)}, {place}, 1)")

    def cp_async_commit(self) -> None:
        """End a group of copies."""
        self.line("cp_async_commit()")

    def cp_async_wait(self, under_way: int) -> None:
        """Wait until only so many groups are still under way."""
        self.line(f"cp_async_wait({under_way})")

    # The last vectors of a row.

    def set_aside(self, operands: Sequence[int]) -> None:
        """Begin to copy the last vectors of the row."""
        schedule = self.schedule
        (self.row,) = operands
        self.dynamic_shared_arrays(
            operands, schedule.aside * schedule.threads_per_row * schedule.lanes
        )
        self.is_aside = True
        with self.open_row() as at:
            self.copy_vector(self.row, at, "aside")
        self.cp_async_commit()
        self.is_aside = False

    def await_aside(self) -> None:
        """Wait for the row, not for what has been begun after it."""
        self.cp_async_wait(self.schedule.early)

    def tile_name(self, operand: int) -> str:
        name = super().tile_name(operand)
        if self.is_aside and operand == self.row:
            return f"{name.removesuffix('tile')}aside"
        return name

    def shared_name(self, operand: int) -> str:
        return f"{super().tile_name(operand).removesuffix('tile')}ahead"

    def row_name(self, value: Value) -> str:
        """The registers in which a thread keeps a value, or has it from shared memory.

        There it takes the place of the row, which is not needed any more.
        """
        return f"{self.name_of(value)}_{'aside' if self.is_aside else 'row'}"

    def load_aside(
        self, loads: Sequence[int], made: Sequence[Value], kept: Sequence[Value]
    ) -> None:
        """Load what lies aside: of the row, or of values that have been kept.

        Those that are ``made`` will have registers, too.
        """
        lanes = self.schedule.lanes
        if self.row in loads:
            self.declare_tiles([self.row], lanes)
            self.move_aside("load", self.tile_name(self.row))
        for value in (*made, *kept):
            self.registers(self.row_name(value), short_name(value.dtype), lanes)
        for value in kept:
            self.move_aside("load", self.row_name(value))

    def store_aside(self, kept: Sequence[Value]) -> None:
        """Store kept values in shared memory, for later stages."""
        for value in kept:
            self.move_aside("store", self.row_name(value))

    def move_aside(self, way: str, registers: str) -> None:
        """Load or store the current vector that lies aside."""
        name = self.vector_name(self.row, self.schedule.lanes)
        function = f"{way}_{name}"
        self.line(f"{function}({self.shared_name(self.row)}, aside, {registers}, 0)")

    # What all rows share.

    def copy_early(self) -> None:
        """Begin to copy what all rows share, if that is to be: its first vectors."""
        schedule = self.schedule
        early, lanes = schedule.early, schedule.lanes
        if not early:
            return
        _, self.copied = self.fresh_and_late(self.nest.stages - 1)
        self.dynamic_shared_arrays(
            self.copied, early * schedule.threads_per_row * lanes
        )
        self.span = 0, early
        # Groups are counted, of threads without such a vector too.
        with self.open_row(after="cp_async_commit()") as at:
            self.span = None
            for operand in self.copied:
                self.copy_vector(operand, at, at[self.reduced_axes[0]])

    def load_copied(self, operands: Sequence[int]) -> None:
        """Wait for the current vector of what is copied early, and load it."""
        schedule = self.schedule
        if not operands:
            return
        self.cp_async_wait(schedule.early - 1)
        own = self.member
        if schedule.early > 1:
            iteration = f"remainder(vector, {schedule.early})"
            own = f"({iteration} * {schedule.threads_per_row} + {own})"
        self.line(f"place = {own} * {schedule.lanes}")
        for operand in operands:
            load = f"load_{self.vector_name(operand, schedule.lanes)}"
            tile = f"{self.tile_name(operand)}, 0"
            self.line(f"{load}({self.shared_name(operand)}, place, {tile})")

    def copy_following(self, operands: Sequence[int], at: dict[int, str]) -> None:
        """Begin to copy a later vector to the place of the one that was loaded."""
        schedule = self.schedule
        if not operands:
            return
        if schedule.early < schedule.tiles:
            inner, step = (
                self.reduced_axes[0],
                schedule.threads_per_row * schedule.lanes,
            )
            self.line(f"later = {at[inner]} + {schedule.early * step}")
            exists = f"vector < {schedule.tiles - schedule.early}"
            if self.nest.axes[inner].extent % (step * schedule.tiles):
                exists = f"later < {self.extent(inner)}"
            with self.open(f"if {exists}:"):
                for operand in operands:
                    self.copy_vector(operand, {**at, inner: "later"}, "place")
        self.cp_async_commit()
