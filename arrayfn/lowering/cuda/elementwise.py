"""Elementwise kernels: a thread has neighbouring elements of the innermost axis."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from typing_extensions import override

from arrayfn.lowering.cuda.printer import AxisIndices, CudaPrinter
from arrayfn.lowering.cuda.schedule import Elementwise, is_vector
from arrayfn.lowering.kernel_ir import (
    Compute,
    Count,
    Load,
    Statement,
    Store,
    Value,
    uses,
)


@dataclass
class ElementwisePrinter(CudaPrinter[Elementwise]):
    """Prints kernels whose threads compute a vector of elements each."""

    vectors_of_row: str = ""
    """The text of the number of vectors of a row, where a thread has several."""

    @override
    def body(self) -> None:
        """Print the kernel's lines: one vector for each thread, or several."""
        schedule = self.schedule
        axes, body = self.nest.axes, self.nest.statements
        if not axes:
            with self.open("if thread_index() == 0:"):
                for s in body:
                    self.emit(s, {})
            return
        inner, lanes = len(axes) - 1, schedule.lanes
        outer = list(range(inner))
        vectors = -(-axes[inner].extent // lanes)
        total = vectors * math.prod(axes[k].extent for k in outer)
        self.items = -(-total // (schedule.threads * schedule.tiles))
        if schedule.tiles > 1:
            self.several_vectors(inner, total)
            return
        position = f"block_index() * {schedule.threads} + thread_index()"
        n = self.extent(inner)
        first = "first" if lanes > 1 else f"i{inner}"
        scale = f" * {lanes}" if lanes > 1 else ""
        if outer:
            self.line(f"item = {position}")
            self.open(f"if item < {self.integer('items', total)}:")
            if lanes > 1:
                self.line(f"vectors = {n} // {lanes}")
                n = "vectors"
            self.line(f"{first} = {self.remainder('item', n, total)}{scale}")
            variables = self.decompose(self.quotient("item", n, total), outer)
            self.hoist_offsets(variables)
        else:
            variables = {}
            self.line(f"{first} = ({position}){scale}" if scale else f"i0 = {position}")
            end = first if schedule.full_vectors else f"{first} + {lanes - 1}"
            self.open(f"if {end} < {n}:")
        self.element_vector(body, variables, inner, lanes)
        self.close()
        if not schedule.full_vectors:
            rest = f"for i{inner} in range(first, {n}):"
            with self.open("else:"), self.open(rest):
                for s in body:
                    self.emit(s, {inner: f"i{inner}"})

    def several_vectors(self, inner: int, total: int) -> None:
        """Load all of a thread's vectors; then compute and store them one by one.

        ``inner`` is the innermost axis, ``total`` the number of vectors of the kernel.
        """
        body, lanes = self.nest.statements, self.schedule.lanes
        indexed, uniform = self.indexed_vectors(body, inner, lanes)
        loads = self.vectors(body, Load, lanes)
        stores = self.vectors(body, Store, lanes)
        loaded = (*loads, *(s.operand for s in indexed))
        self.declare_tiles(loaded, lanes * self.schedule.tiles)
        self.declare_tiles(stores, lanes)
        self.line(f"begin = block_index() * {self.schedule.tiles}")
        count = self.nest.axes[inner].extent // lanes
        self.vectors_of_row = str(count)
        if count & (count - 1):
            # By powers of two it is fast to divide.
            self.vectors_of_row = "vectors"
            self.line(f"vectors = {self.extent(inner)} // {lanes}")
        register = f"vector * {lanes}"
        with self.open_tile(inner, total, stores=False) as at:
            for s in uniform:
                self.emit(s, at)
            for operand in loads:
                self.load_vector(operand, lanes, at, register)
            for s in indexed:
                name = self.vector_name(s.operand, lanes)
                source = self.full_index(s, at)
                self.move_vector("load", s.operand, name, source, register)
        with self.open_tile(inner, total, stores=True) as at:
            rest = [s for s in body if s not in uniform]
            needed = {
                value for s in rest if not isinstance(s, Load) for value in uses(s)
            }
            if any(not isinstance(s, Store) and s.result in needed for s in uniform):
                for s in uniform:
                    self.emit(s, at)
            self.staged = {k: f"{self.tile_name(k)}[{register} + lane]" for k in loaded}
            self.staged |= {k: f"{self.tile_name(k)}[lane]" for k in stores}
            self.vector_elements(rest, at, inner, lanes)
            self.staged = {}
            for operand in stores:
                self.store_vector(operand, lanes, at, "0")

    @contextmanager
    def open_tile(
        self, inner: int, total: int, *, stores: bool
    ) -> Generator[AxisIndices]:
        """Open the loop over a thread's vectors; yield the indices of each.

        Vectors beyond the end are not stored; their loads read the last vector.

        Args:
            inner: The innermost axis, along which vectors lie.
            total: The number of vectors of the kernel.
            stores: Whether the loop stores, or only loads.
        """
        schedule, row = self.schedule, self.vectors_of_row
        ragged = total % (schedule.threads * schedule.tiles) > 0
        items = self.integer("items", total) if ragged else ""
        with self.open(f"for vector in range({schedule.tiles}):"):
            self.line(f"item = (begin + vector) * {schedule.threads} + thread_index()")
            if ragged and not stores:
                self.line(f"item = min_i64(item, {items} - 1)")
            with self.open_if(f"item < {items}" if ragged and stores else ""):
                first = self.remainder("item", row, total)
                self.line(f"first = {first} * {schedule.lanes}")
                outer = self.quotient("item", row, total)
                yield {**self.decompose(outer, range(inner)), inner: "first"}

    def element_vector(
        self,
        body: Sequence[Statement],
        variables: AxisIndices,
        inner: int,
        lanes: int,
    ) -> None:
        """Print ``body`` for the ``lanes`` elements from index ``first`` on.

        Args:
            body: The nest's statements.
            variables: The indices along the other axes than ``inner``.
            inner: The innermost axis, whose index is the variable ``first``.
            lanes: Elements of a vector; if 1, the index is ``i`` and the axis's number.
        """
        if lanes == 1:
            for s in body:
                self.emit(s, {**variables, inner: f"i{inner}"})
            return
        loads = self.vectors(body, Load, lanes)
        stores = self.vectors(body, Store, lanes)
        indexed, uniform = self.indexed_vectors(body, inner, lanes)
        indexed_loads = [s for s in indexed if isinstance(s, Load)]
        indexed_stores = [s for s in indexed if isinstance(s, Store)]
        first_indices = {**variables, inner: "first"}
        for s in uniform:
            self.emit(s, first_indices)
        tiles = dict.fromkeys((*loads, *stores, *(s.operand for s in indexed)))
        self.declare_tiles(tiles, lanes)
        for operand in loads:
            self.load_vector(operand, lanes, first_indices, "0")
        names = {s.operand: self.vector_name(s.operand, lanes) for s in indexed}
        for s in indexed_loads:
            at = self.full_index(s, first_indices)
            self.move_vector("load", s.operand, names[s.operand], at, "0")
        self.staged = {k: f"{self.tile_name(k)}[lane]" for k in tiles}
        self.vector_elements(
            [s for s in body if s not in uniform], variables, inner, lanes
        )
        self.staged = {}
        for operand in stores:
            self.store_vector(operand, lanes, first_indices, "0")
        for s in indexed_stores:
            with self.open_if("" if s.where is None else self.name_of(s.where)):
                at = self.full_index(s, first_indices)
                self.move_vector("store", s.operand, names[s.operand], at, "0")

    def indexed_vectors(
        self, body: Sequence[Statement], inner: int, lanes: int
    ) -> tuple[list[Load | Store], list[Statement]]:
        """The gathers and scatters of whole vectors, and what computes their indices.

        An access of ``body`` is one if its operand is a vector along the last axis, its
        computed indices are the same for all ``lanes`` elements of a vector (*uniform*:
        nothing that they are computed from depends on axis ``inner``) and step by whole
        vectors, and it does not add.
        """
        uniform: dict[Value, Statement] = {}
        indexed: list[Load | Store] = []
        for s in body:
            known = all(value in uniform for value in self.index_values(s))
            if isinstance(s, (Load, Store)):
                operand = self.nest.operands[s.operand]
                aligned = all(step.stride % lanes == 0 for step in s.indices)
                adds = isinstance(s, Store) and s.adds
                if (
                    s.indices
                    and known
                    and aligned
                    and is_vector(operand, lanes)
                    and not adds
                ):
                    indexed.append(s)
                elif isinstance(s, Load) and known and not operand.strides[inner]:
                    uniform[s.result] = s
            elif isinstance(s, Compute):
                if all(value in uniform for value in uses(s)):
                    uniform[s.result] = s
            elif isinstance(s, Count) and s.axis != inner:
                uniform[s.result] = s
        needed = {value for s in indexed for value in self.index_values(s)}
        for value, s in reversed(uniform.items()):
            if value in needed:
                needed |= set(uses(s))
        return indexed, [s for value, s in uniform.items() if value in needed]

    @staticmethod
    def index_values(s: Statement) -> list[Value]:
        """The values that are computed indices of ``s``, or its condition."""
        if not isinstance(s, (Load, Store)):
            return []
        found = [step.index for step in s.indices]
        where = s.where if isinstance(s, Store) else None
        return found if where is None else [*found, where]

    def vector_elements(
        self,
        body: Iterable[Statement],
        variables: AxisIndices,
        inner: int,
        lanes: int,
    ) -> None:
        """Print ``body`` for each of ``lanes`` elements, whose vector is in registers.

        ``variables`` are the indices along the other axes than ``inner``; along that,
        the vector begins at ``first``.
        """
        body = list(body)
        with self.open(f"for lane in range({lanes}):"):
            if self.uses_index(body, inner):
                self.line(f"i{inner} = first + lane")
            for s in body:
                self.emit(s, {**variables, inner: f"i{inner}"})
