"""Copies to shared memory that a thread makes only for itself (``cp.async``).

* *Shared tiles*: the last vectors of a long row are in shared memory between stages.
  With them two blocks fit on a multiprocessor where registers would allow one.
* *Prefetched operands*: weights, which all rows share. Loads of weights between the
  stores of results would wait for each other. So a thread copies its vectors to a ring
  buffer: the first ones while it loads the row, each later one when a slot is free.

A thread reads only what it has copied or stored itself: it waits for its own copies,
and needs no barrier.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.row_arithmetic import RowArithmetic
from arrayfn.lowering.cuda.row_loops import T
from arrayfn.lowering.cuda.vectors import AxisIndices
from arrayfn.lowering.kernel_ir import Value
from arrayfn.records import record

_NONE: Final = -1


@record
class RowCopiesPrinter(RowArithmetic[T]):
    """Prints a thread's copies to shared memory, and its accesses to them."""

    shared_row: int = _NONE
    """The operand whose last vectors are shared tiles; -1 if there is none."""
    prefetched: Sequence[int] = ()
    """The prefetched operands, once ``begin_prefetch`` has been printed."""

    @abstractmethod
    def preloaded_and_streamed(self, stage: int) -> tuple[list[int], list[int]]:
        """Return the operands that ``stage`` loads from global memory, in two lists.

        A thread loads all vectors of the operands in the first list before it computes
        anything. It loads vectors of the second list one by one as it goes along its
        row.
        """

    def copy_vector(self, operand: int, at: AxisIndices, target: str) -> None:
        """Begin to copy one vector of ``operand`` to its shared array.

        Prints: ``cp_async_f32x4(x_in, row + first, x_shared, shared_at, 1)``.

        Args:
            operand: The operand's number.
            at: The index of the vector's first element along each axis.
            target: The index of that element in the shared array.
        """
        copy = f"cp_async_{self.vector_name(operand, self.schedule.lanes)}"
        source = f"{self.pointer(operand)}, {self.index(operand, at)}"
        self.line(f"{copy}({source}, {self.shared_name(operand)}, {target}, 1)")

    # The last vectors of a row.

    def copy_shared_tiles(self, operands: Sequence[int]) -> None:
        """Allocate the shared tiles, and begin to copy them, as one commit group.

        Prints, for vectors 3 to 15 of each of 512 threads:

            a_shared = dynamic_shared_f32(0, 26624)
            for vector in range(3, 16):
                first = (vector * 512 + thread) * 4
                shared_at = first - 6144
                cp_async_f32x4(a_in, row + first, a_shared, shared_at, 1)
            cp_async_commit()

        ``operands`` is the one operand whose row is kept between stages.
        """
        schedule = self.schedule
        (self.shared_row,) = operands
        self.dynamic_shared_arrays(
            operands, schedule.shared_tiles * schedule.threads_per_row * schedule.lanes
        )
        # ``open_vectors`` loops over shared tiles.
        self.on_shared_tiles = True
        with self.open_vectors() as at:
            self.copy_vector(self.shared_row, at, "shared_at")
        self.line("cp_async_commit()")
        self.on_shared_tiles = False

    def wait_for_shared_tiles(self) -> None:
        """Wait for the shared tiles, but not for prefetches, which began later.

        Prints: ``cp_async_wait(5)``, for a prefetch distance of 5 commit groups.
        """
        self.line(f"cp_async_wait({self.schedule.prefetch_distance})")

    @override
    def tile_name(self, operand: int) -> str:
        """Return ``x_tile`` or, for a shared tile, ``x_vector``: a register array."""
        if self.on_shared_tiles and operand == self.shared_row:
            return f"{self.array_name(operand)}_vector"
        return super().tile_name(operand)

    def row_name(self, value: Value) -> str:
        """Return ``e_row``, the registers of a value ``e`` that stages keep.

        In the loop over shared tiles it is ``e_vector``, the registers of the current
        vector. Between the stages the value then lies in shared memory, in place of the
        row, which is not needed any more.
        """
        return f"{self.name_of(value)}_{'vector' if self.on_shared_tiles else 'row'}"

    def load_shared_tile(
        self, loads: Sequence[int], new: Sequence[Value], kept: Sequence[Value]
    ) -> None:
        """Load the current shared tile into registers, which are declared here.

        Prints, in the first stage:

            a_vector = registers_f32(4)
            load_f32x4(a_shared, shared_at, a_vector, 0)

        In the first stage the shared tile has elements of the row. Later it has those
        of the kept value, which has overwritten the row.

        Args:
            loads: The operands that the stage loads; the tile is loaded if its operand
                is one.
            new: Values that the stage computes for later ones: their registers are
                declared.
            kept: Values of earlier stages: loaded, as they have replaced the row.
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
        """Store the ``new`` values of the current shared tile, for later stages.

        Prints: ``store_f32x4(a_shared, shared_at, e_vector, 0)``.
        """
        for value in new:
            self.move_shared_vector("store", self.row_name(value))

    def move_shared_vector(self, operation: str, registers: str) -> None:
        """Print the load or the store of the current vector of the shared tile.

        For example ``load_f32x4(a_shared, shared_at, a_vector, 0)``. ``operation`` is
        "load" or "store", ``registers`` the thread's array: ``a_vector``.
        """
        name = self.vector_name(self.shared_row, self.schedule.lanes)
        array = self.shared_name(self.shared_row)
        self.line(f"{operation}_{name}({array}, shared_at, {registers}, 0)")

    # Prefetched operands, which all rows share.

    def begin_prefetch(self) -> None:
        """Allocate a ring for each prefetched operand; begin to copy its first vectors.

        Prints, for a prefetch distance of 5 vectors for each of 512 threads (each
        vector is a commit group):

            w_shared = dynamic_shared_f32(0, 10240)
            for vector in range(5):
                first = (vector * 512 + thread) * 4
                cp_async_f32x4(w_in, first, w_shared, first, 1)
                cp_async_commit()
        """
        schedule = self.schedule
        distance, lanes = schedule.prefetch_distance, schedule.lanes
        if not distance:
            return
        _, self.prefetched = self.preloaded_and_streamed(self.nest.stages - 1)
        self.dynamic_shared_arrays(
            self.prefetched, distance * schedule.threads_per_row * lanes
        )
        # Waits count commit groups. So threads without a vector commit an empty group.
        with self.open_vectors(after="cp_async_commit()", span=(0, distance)) as at:
            for operand in self.prefetched:
                self.copy_vector(operand, at, at[self.reduced_axes[0]])

    def load_prefetched(self, operands: Sequence[int]) -> None:
        """Wait for the current vector of ``operands``, and load it from their rings.

        Prints, for a prefetch distance of 5:

            cp_async_wait(4)
            ring_at = (remainder(vector, 5) * 512 + thread) * 4
            load_f32x4(w_shared, ring_at, w_tile, 0)
        """
        schedule = self.schedule
        if not operands:
            return
        self.line(f"cp_async_wait({schedule.prefetch_distance - 1})")
        place = self.member
        if schedule.prefetch_distance > 1:
            slot = f"remainder(vector, {schedule.prefetch_distance})"
            place = f"({slot} * {schedule.threads_per_row} + {self.member})"
        self.line(f"ring_at = {place} * {schedule.lanes}")
        for operand in operands:
            load = f"load_{self.vector_name(operand, schedule.lanes)}"
            tile = f"{self.tile_name(operand)}, 0"
            self.line(f"{load}({self.shared_name(operand)}, ring_at, {tile})")

    def prefetch_next(self, operands: Sequence[int], at: AxisIndices) -> None:
        """Begin to copy the vector that is needed a prefetch distance later.

        It goes to the slot of the ring whose vector has just been used, which begins at
        the kernel's ``ring_at``. Prints, for 8 vectors a thread and a prefetch distance
        of 5:

            later = first + 10240
            if vector < 3:
                cp_async_f32x4(w_in, later, w_shared, ring_at, 1)
            cp_async_commit()

        Args:
            operands: The prefetched operands.
            at: The index of the current vector's first element along each axis.
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
