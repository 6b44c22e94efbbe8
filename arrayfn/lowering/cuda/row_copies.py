"""Copies to shared memory that a thread makes for itself alone (``cp.async``).

* *Shared tiles*: the last vectors of a long row are in shared memory between stages.
  With them two blocks fit on a multiprocessor where registers alone would allow one.
* *Prefetched operands*: weights, which all rows share. Loads of weights between the
  stores of results would wait for each other. So the first copies begin with the loads
  of the row, and each later one when a slot of its ring is free.

A thread reads only what it has copied or stored itself: it waits for its own copies,
and needs no barrier.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeVar

from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.printer import AxisIndices
from arrayfn.lowering.cuda.row_arithmetic import RowArithmetic
from arrayfn.lowering.cuda.schedule import Columns, Pipeline, Rows
from arrayfn.lowering.kernel_ir import Value

T = TypeVar("T", Rows, Pipeline, Columns)
_NONE: Final = -1


@dataclass
class RowCopiesPrinter(RowArithmetic[T]):
    """Prints a thread's copies to shared memory, and accesses of what was copied."""

    member: str = ""
    """The kernel's variable for the thread's number in its row group."""
    shared_row: int = _NONE
    """The operand whose last vectors are shared tiles."""
    on_shared_tiles: bool = False
    """Whether the loop being printed is over the shared tiles, not the registers'."""
    prefetched: Sequence[int] = ()
    """The prefetched operands, once ``begin_prefetch`` has been printed."""
    vector_span: tuple[int, int] | None = None
    """The vectors of the next loop, if they are neither of the two."""

    @abstractmethod
    def open_vectors(self, after: str = "") -> AbstractContextManager[AxisIndices]:
        """Open the loop over a thread's vectors of the row.

        Yields the index expression of a vector's first element along each axis.
        ``after`` is a line that ends each iteration, also of threads without a vector.
        """

    @abstractmethod
    def preloaded_and_streamed(self, stage: int) -> tuple[list[int], list[int]]:
        """The operands that ``stage`` loads from global memory, in two lists.

        A thread loads all vectors of the first before it computes anything, those of
        the second one by one as it goes along its row.
        """

    @property
    def register_tiles(self) -> int:
        """How many of a thread's vectors are in registers."""
        return self.schedule.tiles - self.schedule.shared_tiles

    @property
    def vector_range(self) -> tuple[int, int]:
        """The range of a thread's vectors that the next loop goes through."""
        shared = self.register_tiles, self.schedule.tiles
        registers = 0, self.register_tiles
        return self.vector_span or (shared if self.on_shared_tiles else registers)

    def copy_vector(self, operand: int, at: AxisIndices, target: str) -> None:
        """Begin to copy one vector of ``operand`` to the operand's shared array.

        Args:
            operand: The operand's number.
            at: The index expression of the vector's first element along each axis.
            target: The expression of its index in the shared array.
        """
        copy = f"cp_async_{self.vector_name(operand, self.schedule.lanes)}"
        source = f"{self.pointer(operand)}, {self.index(operand, at)}"
        self.line(f"{copy}({source}, {self.shared_name(operand)}, {target}, 1)")

    # The last vectors of a row.

    def copy_shared_tiles(self, operands: Sequence[int]) -> None:
        """Allocate the shared tiles, and begin to copy them, as one commit group.

        ``operands`` is the one operand whose rows are kept between stages.
        """
        schedule = self.schedule
        (self.shared_row,) = operands
        self.dynamic_shared_arrays(
            operands, schedule.shared_tiles * schedule.threads_per_row * schedule.lanes
        )
        self.on_shared_tiles = True
        with self.open_vectors() as at:
            self.copy_vector(self.shared_row, at, "shared_at")
        self.line("cp_async_commit()")
        self.on_shared_tiles = False

    def wait_for_shared_tiles(self) -> None:
        """Wait for the shared tiles, not for prefetches, which began later."""
        self.line(f"cp_async_wait({self.schedule.prefetch_distance})")

    @override
    def tile_name(self, operand: int) -> str:
        """As in ``CudaPrinter``; shared tiles go through registers of one vector."""
        if self.on_shared_tiles and operand == self.shared_row:
            return f"{self.array_name(operand)}_vector"
        return super().tile_name(operand)

    def row_name(self, value: Value) -> str:
        """The name of the registers of a kept value: all vectors, or one shared tile.

        In shared memory the value takes the place of the row, which is not needed any
        more.
        """
        return f"{self.name_of(value)}_{'vector' if self.on_shared_tiles else 'row'}"

    def load_shared_tile(
        self, loads: Sequence[int], new: Sequence[Value], kept: Sequence[Value]
    ) -> None:
        """Declare the registers of the current shared tile, and load it into them.

        Args:
            loads: The operands that the stage loads; the tile is loaded if they include
                its operand.
            new: Values that the stage computes for later ones: declared only.
            kept: Values of earlier stages, which the tile has, too.
        """
        lanes = self.schedule.lanes
        if self.shared_row in loads:
            self.declare_tiles([self.shared_row], lanes)
            self.move_shared_vector("load", self.tile_name(self.shared_row))
        for value in (*new, *kept):
            self.registers(self.row_name(value), short_name(value.dtype), lanes)
        for value in kept:
            self.move_shared_vector("load", self.row_name(value))

    def store_shared_tile(self, new: Sequence[Value]) -> None:
        """Store ``new`` values of the current shared tile, for later stages."""
        for value in new:
            self.move_shared_vector("store", self.row_name(value))

    def move_shared_vector(self, operation: str, registers: str) -> None:
        """Load or store the current shared tile.

        ``operation`` is "load" or "store", ``registers`` the name of the thread's
        array.
        """
        name = self.vector_name(self.shared_row, self.schedule.lanes)
        array = self.shared_name(self.shared_row)
        self.line(f"{operation}_{name}({array}, shared_at, {registers}, 0)")

    # What all rows share.

    def begin_prefetch(self) -> None:
        """Allocate rings for the prefetched operands; begin to copy first vectors.

        A ring has ``prefetch_distance`` vectors of each thread. Each vector is a commit
        group. ``member`` and the row's indices must be defined.
        """
        schedule = self.schedule
        distance, lanes = schedule.prefetch_distance, schedule.lanes
        if not distance:
            return
        _, self.prefetched = self.preloaded_and_streamed(self.nest.stages - 1)
        self.dynamic_shared_arrays(
            self.prefetched, distance * schedule.threads_per_row * lanes
        )
        self.vector_span = 0, distance
        # Groups are counted: threads without such a vector commit empty ones.
        with self.open_vectors(after="cp_async_commit()") as at:
            self.vector_span = None
            for operand in self.prefetched:
                self.copy_vector(operand, at, at[self.reduced_axes[0]])

    def load_prefetched(self, operands: Sequence[int]) -> None:
        """Wait for the current vector of each of ``operands``, and load it.

        Defines ``ring_at``, the index of the thread's vector in the ring.
        """
        schedule = self.schedule
        if not operands:
            return
        self.line(f"cp_async_wait({schedule.prefetch_distance - 1})")
        slot = self.member
        if schedule.prefetch_distance > 1:
            iteration = f"remainder(vector, {schedule.prefetch_distance})"
            slot = f"({iteration} * {schedule.threads_per_row} + {slot})"
        self.line(f"ring_at = {slot} * {schedule.lanes}")
        for operand in operands:
            load = f"load_{self.vector_name(operand, schedule.lanes)}"
            tile = f"{self.tile_name(operand)}, 0"
            self.line(f"{load}({self.shared_name(operand)}, ring_at, {tile})")

    def prefetch_next(self, operands: Sequence[int], at: AxisIndices) -> None:
        """Begin to copy the vector that is needed a prefetch distance later.

        Args:
            operands: The prefetched operands. Their vectors go to ``ring_at``, which is
                free.
            at: The index expression of the current vector's first element along each
                axis.
        """
        schedule = self.schedule
        if not operands:
            return
        distance = schedule.prefetch_distance
        if distance < schedule.tiles:
            inner = self.reduced_axes[0]
            step = schedule.threads_per_row * schedule.lanes
            self.line(f"later = {at[inner]} + {distance * step}")
            exists = f"vector < {schedule.tiles - distance}"
            if self.nest.axes[inner].extent % (step * schedule.tiles):
                exists = f"later < {self.extent(inner)}"
            with self.open(f"if {exists}:"):
                for operand in operands:
                    self.copy_vector(operand, {**at, inner: "later"}, "ring_at")
        self.line("cp_async_commit()")
