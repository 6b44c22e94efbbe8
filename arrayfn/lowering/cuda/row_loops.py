"""The loops along a row (or column), which assign its elements to threads.

A row is cut into vectors. Each iteration of the *row loop* computes the
``threads_per_row * tiles`` vectors that a row group has at a time; there is no such
loop if the group's registers hold the whole row. In an iteration a thread loops over
its ``tiles`` vectors, which are ``threads_per_row`` vectors apart.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from typing import Any, TypeVar

from arrayfn.lowering.cuda.printer import CudaPrinter
from arrayfn.lowering.cuda.schedule import Columns, Pipeline, Rows
from arrayfn.lowering.cuda.vectors import AxisIndices
from arrayfn.records import record

T = TypeVar("T", Rows, Pipeline, Columns)
"""The schedules whose threads share rows or columns."""


@record
class RowLoops(CudaPrinter[T]):
    """Prints the loops along a row, which the threads of a row group share."""

    variables: AxisIndices = field(default_factory=dict[int, str])
    """The row's (or column's) index along each kept axis."""
    recompute_thread: str = ""
    """The expression in place of ``member`` while vectors are computed a second time.
    """
    member: str = ""
    """The kernel's variable for the thread's number in its row group."""
    on_shared_tiles: bool = False
    """Whether the loop being printed is over shared tiles, not register tiles."""

    @property
    def register_tiles(self) -> int:
        """How many of a thread's vectors of a row are in registers."""
        return self.schedule.tiles - self.schedule.shared_tiles

    def slot(self, lane: str) -> str:
        """Return the expression of the current element's index in the row's registers.

        For vectors of four elements this is ``vector * 4 + lane``, where ``lane`` is
        the expression of the element's number in its vector. If ``lane`` is empty, the
        result is the index of the vector's first element: ``vector * 4``. If the
        registers hold only one vector, the loop variable ``vector`` does not exist, and
        the result is ``lane`` or 0.
        """
        lanes = self.schedule.lanes
        if self.register_tiles == 1 or self.on_shared_tiles:
            return lane if lane and lanes > 1 else "0"
        if lanes == 1:
            return "vector"
        return f"vector * {lanes} + {lane}" if lane else f"vector * {lanes}"

    def row_elements(self) -> int:
        """Return the number of elements of a row (or column): of the reduced axes."""
        return self.nest.row_length

    def open_row_loop(self) -> AbstractContextManager[Any]:
        """Open the loop along a row: ``for start in range(0, n1, 4096):``.

        Each iteration has ``tiles`` vectors of each thread. Nothing is opened if
        registers hold the whole row at once.
        """
        schedule = self.schedule
        if schedule.register_resident or not self.reduced_axes:
            return nullcontext()
        n = self.extent_of(self.reduced_axes, "elements")
        step = schedule.threads_per_row * schedule.lanes * schedule.tiles
        return self.open(f"for start in range(0, {n}, {step}):")

    @contextmanager
    def open_vectors(
        self, after: str = "", span: tuple[int, int] | None = None
    ) -> Generator[AxisIndices]:
        """Open the loop over a thread's vectors of the row.

        Prints, for 16 vectors of four elements for each of 256 threads, where some
        threads have fewer:

            for vector in range(16):
                first = (vector * 256 + thread) * 4
                if first < n1:

        Yields the expression of the index of a vector's first element along each axis:
        ``first`` along the row. For vectors of one element this variable is called
        ``i1``, after the axis. A nest without reduced axes gets no loop.

        Args:
            after: A line that ends each iteration, also for threads without a vector.
            span: The range of the vectors' numbers. The default is all register tiles,
                or all shared tiles if ``on_shared_tiles``. Over shared tiles the loop
                also defines ``shared_at``, the vector's index in its shared array.
        """
        schedule, reduced = self.schedule, self.reduced_axes
        if not reduced:
            yield dict(self.variables)
            return
        step = schedule.threads_per_row * schedule.lanes
        name = f"i{reduced[0]}"
        if schedule.lanes > 1 or len(reduced) > 1:
            name = "first"
        n = self.extent_of(reduced, "elements")
        # Without a rest, every thread has all of its vectors: no ``if`` is needed.
        is_full = self.row_elements() % (step * schedule.tiles) == 0
        begin, end = 0, self.register_tiles
        if self.on_shared_tiles:
            begin, end = end, schedule.tiles
        begin, end = span or (begin, end)
        is_loop = end > 1 or schedule.prefetch_distance > 0
        numbers = f"{begin}, {end}" if begin else str(end)
        loop = self.open(f"for vector in range({numbers}):") if is_loop else None
        with loop or nullcontext():
            self.line(f"{name} = {self.first_element(is_loop)}")
            with self.open_if("" if is_full else f"{name} < {n}"):
                if self.on_shared_tiles:
                    self.line(f"shared_at = {name} - {begin * step}")
                if len(reduced) == 1:
                    yield {**self.variables, reduced[0]: name}
                else:
                    yield {**self.variables, **self.decompose("first", reduced)}
            if after:
                self.line(after)

    def first_element(self, is_loop: bool) -> str:
        """Return the expression of the row index at which a thread's vector begins.

        ``(vector * 512 + thread) * 4`` for 512 threads and four lanes. ``is_loop`` says
        that the variable ``vector`` is defined: otherwise a thread has one vector,
        which begins at ``thread * 4``. In a row loop the index also has the term
        ``start``.
        """
        schedule = self.schedule
        number = "vector" if is_loop else "0"
        if schedule.threads_per_row > 1:
            number = self.recompute_thread or self.member
            if is_loop:
                number = f"vector * {schedule.threads_per_row} + {number}"
                number = f"({number})" if schedule.lanes > 1 else number
        index = f"{number} * {schedule.lanes}" if schedule.lanes > 1 else number
        return index if schedule.register_resident else f"start + {index}"
