"""Elementwise kernels: a thread has neighbouring elements of the innermost axis."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager

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
from arrayfn.records import frozen, record


@frozen
class VectorAccesses:
    """How a thread accesses the memory of one vector of elements.

    *Uniform* values are the same for all elements of a vector: nothing that they are
    computed from depends on the innermost axis.

    Args:
        loads: Numbers of the operands that are loaded as vectors.
        stores: Numbers of the operands that are stored as vectors.
        gathers: Loads of whole vectors at computed, uniform indices.
        scatters: Stores of whole vectors at computed, uniform indices.
        uniform: The statements that compute these indices, once a vector.
    """

    loads: list[int]
    stores: list[int]
    gathers: list[Load]
    scatters: list[Store]
    uniform: list[Statement]

    @property
    def loaded(self) -> list[int]:
        """Numbers of the operands whose vectors are in registers before the compute."""
        return [*self.loads, *(s.operand for s in self.gathers)]


@record
class ElementwisePrinter(CudaPrinter[Elementwise]):
    """Prints kernels in which each thread computes one or several vectors."""

    vectors_per_row: str = ""
    """The expression of the number of vectors of a row; set if a thread has several
    vectors.
    """

    @property
    def inner(self) -> int:
        """The innermost axis, along which vectors lie."""
        return len(self.nest.axes) - 1

    @override
    def body(self) -> None:
        """Print the kernel's lines. A nest without axes is computed by one thread."""
        axes, schedule = self.nest.axes, self.schedule
        if not axes:
            with self.open("if thread_index() == 0:"):
                self.elements({})
            return
        vectors_per_row = -(-axes[-1].extent // schedule.lanes)
        total = vectors_per_row * math.prod(a.extent for a in axes[:-1])
        self.items = -(-total // (schedule.threads * schedule.tiles))
        if schedule.tiles > 1:
            self.print_several_vectors(total)
        else:
            self.print_one_vector(total)

    def print_one_vector(self, total: int) -> None:
        """Print a kernel whose threads compute one vector each, of ``total`` vectors.

        Prints, for ``exp`` of 4099 float32, whose last vector is not full:

            first = (block_index() * 256 + thread_index()) * 4
            if first + 3 < n0:
                x_tile = registers_f32(4)
                a_tile = registers_f32(4)
                load_f32x4(x_in, first, x_tile, 0)
                for lane in range(4):
                    x = x_tile[lane]
                    a = exp_f32(x)
                    a_tile[lane] = a
                store_f32x4(a_out, first, a_tile, 0)
            else:
                for i0 in range(first, n0):
                    x = x_in[i0]
                    a = exp_f32(x)
                    a_out[i0] = a

        With more axes ``item`` is the number of the vector; its row and ``first`` are
        the quotient and the remainder of ``item`` by the vectors of a row.
        """
        schedule, inner = self.schedule, self.inner
        lanes = schedule.lanes
        item = f"block_index() * {schedule.threads} + thread_index()"
        n = self.extent(inner)
        first = "first" if lanes > 1 else f"i{inner}"
        scale = f" * {lanes}" if lanes > 1 else ""
        variables: AxisIndices = {}
        # Several axes: split the vector's number into row and place in the row.
        if inner:
            self.line(f"item = {item}")
            self.open(f"if item < {self.integer('items', total)}:")
            if lanes > 1:
                self.line(f"vectors = {n} // {lanes}")
                n = "vectors"
            self.line(f"{first} = {self.remainder('item', n, total)}{scale}")
            row = self.quotient("item", n, total)
            variables = self.decompose(row, range(inner))
            self.hoist_offsets(variables)
        else:
            self.line(f"{first} = ({item}){scale}" if scale else f"i0 = {item}")
            last = first if schedule.full_vectors else f"{first} + {lanes - 1}"
            self.open(f"if {last} < {n}:")
        if lanes > 1:
            self.vector(variables)
        else:
            self.elements({**variables, inner: first})
        self.close()
        if not schedule.full_vectors:
            rest = f"for i{inner} in range(first, {n}):"
            with self.open("else:"), self.open(rest):
                self.elements({inner: f"i{inner}"})

    def elements(self, indices: AxisIndices) -> None:
        """Print the nest's statements for the one element at ``indices``."""
        for s in self.nest.statements:
            self.emit(s, indices)

    def vector(self, outer: AxisIndices) -> None:
        """Print the loads, the arithmetic and the stores of one vector.

        See ``print_one_vector`` for the lines. ``outer`` are the indices along all axes
        but the innermost, along which the vector begins at the variable ``first``.
        """
        accesses, lanes = self.vector_accesses(), self.schedule.lanes
        at = {**outer, self.inner: "first"}
        for s in accesses.uniform:
            self.emit(s, at)
        indexed = [s.operand for s in (*accesses.gathers, *accesses.scatters)]
        tiles = dict.fromkeys((*accesses.loads, *accesses.stores, *indexed))
        self.declare_tiles(tiles, lanes)
        self.load_vectors(accesses, at, "0")
        self.staged = {k: f"{self.tile_name(k)}[lane]" for k in tiles}
        self.vector_elements(accesses, outer)
        self.staged = {}
        for operand in accesses.stores:
            self.store_vector(operand, lanes, at, "0")
        for s in accesses.scatters:
            with self.open_if("" if s.where is None else self.name_of(s.where)):
                self.move_indexed("store", s, at, "0")

    def print_several_vectors(self, total: int) -> None:
        """Load all of a thread's vectors; then compute and store them one by one.

        A thread that gathers rows waits for an index before each load: several loads
        in flight hide that. Prints, for rows of 32 float32 and two vectors each (left
        out are the lines that clamp ``i``):

            x_tile = registers_f32(8)
            y_tile = registers_f32(4)
            begin = block_index() * 2
            for vector in range(2):
                item = (begin + vector) * 256 + thread_index()
                first = remainder(item, 8) * 4
                i0 = quotient(item, 8)
                i = i_in[i0]
                load_f32x4(x_in, first + i * x_in_step0, x_tile, vector * 4)
            for vector in range(2):
                item = (begin + vector) * 256 + thread_index()
                first = remainder(item, 8) * 4
                i0 = quotient(item, 8)
                for lane in range(4):
                    x = x_tile[vector * 4 + lane]
                    y = x
                    y_tile[lane] = y
                store_f32x4(y_out, i0 * n1 + first, y_tile, 0)

        ``total`` is the number of vectors of the kernel.
        """
        accesses, lanes = self.vector_accesses(), self.schedule.lanes
        self.declare_tiles(accesses.loaded, lanes * self.schedule.tiles)
        self.declare_tiles(accesses.stores, lanes)
        self.line(f"begin = block_index() * {self.schedule.tiles}")
        vectors = self.nest.axes[self.inner].extent // lanes
        self.vectors_per_row = str(vectors)
        if vectors & (vectors - 1):
            # Only division by a constant power of two is fast.
            self.vectors_per_row = "vectors"
            self.line(f"vectors = {self.extent(self.inner)} // {lanes}")
        register = f"vector * {lanes}"
        with self.open_tile(total, stores=False) as at:
            for s in accesses.uniform:
                self.emit(s, at)
            self.load_vectors(accesses, at, register)
        with self.open_tile(total, stores=True) as at:
            if self.needs_uniform(accesses):
                for s in accesses.uniform:
                    self.emit(s, at)
            self.staged = {
                k: f"{self.tile_name(k)}[{register} + lane]" for k in accesses.loaded
            }
            self.staged |= {k: f"{self.tile_name(k)}[lane]" for k in accesses.stores}
            self.vector_elements(accesses, at)
            self.staged = {}
            for operand in accesses.stores:
                self.store_vector(operand, lanes, at, "0")

    @contextmanager
    def open_tile(self, total: int, *, stores: bool) -> Generator[AxisIndices]:
        """Open the loop over a thread's vectors; yield the indices of each.

        Prints the first four lines of either loop in ``print_several_vectors``. Vectors
        beyond the end are not stored (``if item < items:``); their loads read the last
        vector (``item = min_i64(item, items - 1)``).

        Args:
            total: The number of vectors of the kernel.
            stores: Whether the loop stores, or only loads.
        """
        schedule, row = self.schedule, self.vectors_per_row
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
                yield {**self.decompose(outer, range(self.inner)), self.inner: "first"}

    def load_vectors(
        self, accesses: VectorAccesses, at: AxisIndices, register: str
    ) -> None:
        """Load a vector of each operand that ``accesses`` reads into its tile.

        Gathers load at computed indices. ``at`` are the indices of the vector's first
        element, ``register`` is that element's index in the tile.
        """
        for operand in accesses.loads:
            self.load_vector(operand, self.schedule.lanes, at, register)
        for s in accesses.gathers:
            self.move_indexed("load", s, at, register)

    def move_indexed(
        self, direction: str, s: Load | Store, at: AxisIndices, register: str
    ) -> None:
        """Load or store (``direction``) the vector of ``s`` at its computed indices.

        Prints, for a gather: ``load_f32x4(x_in, first + i * x_in_step0, x_tile, 0)``.
        ``at`` are the indices of the vector's first element, ``register`` is that
        element's index in the tile.
        """
        name = self.vector_name(s.operand, self.schedule.lanes)
        self.move_vector(direction, s.operand, name, self.full_index(s, at), register)

    def vector_accesses(self) -> VectorAccesses:
        """Determine how the nest accesses one vector; see ``VectorAccesses``.

        An access at computed indices moves a whole vector if its operand is a vector
        along the innermost axis, its indices are uniform and step by whole vectors, and
        it does not add. A value is uniform if it is the same for all elements of a
        vector.
        """
        body, lanes = self.nest.statements, self.schedule.lanes
        uniform: dict[Value, Statement] = {}
        indexed: list[Load | Store] = []
        for s in body:
            has_uniform_indices = all(value in uniform for value in _index_values(s))
            if isinstance(s, (Load, Store)):
                operand = self.nest.operands[s.operand]
                aligned = all(term.stride % lanes == 0 for term in s.indices)
                adds = isinstance(s, Store) and s.adds
                is_whole = aligned and is_vector(operand, lanes) and not adds
                if s.indices and has_uniform_indices and is_whole:
                    indexed.append(s)
                elif (
                    isinstance(s, Load)
                    and has_uniform_indices
                    and not operand.strides[self.inner]
                ):
                    uniform[s.result] = s
            elif isinstance(s, Compute):
                if all(value in uniform for value in uses(s)):
                    uniform[s.result] = s
            elif isinstance(s, Count) and s.axis != self.inner:
                uniform[s.result] = s
        # Keep only the uniform statements that the indices are computed from.
        needed = {value for s in indexed for value in _index_values(s)}
        for value, s in reversed(uniform.items()):
            if value in needed:
                needed |= set(uses(s))
        return VectorAccesses(
            loads=self.vectors(body, Load, lanes),
            stores=self.vectors(body, Store, lanes),
            gathers=[s for s in indexed if isinstance(s, Load)],
            scatters=[s for s in indexed if isinstance(s, Store)],
            uniform=[s for value, s in uniform.items() if value in needed],
        )

    def needs_uniform(self, accesses: VectorAccesses) -> bool:
        """Return whether elements need uniform values, besides for addresses."""
        rest = [s for s in self.nest.statements if s not in accesses.uniform]
        read = {v for s in rest if not isinstance(s, Load) for v in uses(s)}
        computed = {s.result for s in accesses.uniform if not isinstance(s, Store)}
        return not read.isdisjoint(computed)

    def vector_elements(self, accesses: VectorAccesses, outer: AxisIndices) -> None:
        """Print the nest's statements for each element of a vector.

        Prints, for ``y = exp(x)`` (and ``i0 = first + lane`` first if that is needed):

            for lane in range(4):
                x = x_tile[lane]
                y = exp_f32(x)
                y_tile[lane] = y

        ``outer`` are the indices along all axes but the innermost.
        """
        inner = self.inner
        body = [s for s in self.nest.statements if s not in accesses.uniform]
        with self.open(f"for lane in range({self.schedule.lanes}):"):
            if self.uses_index(body, inner):
                self.line(f"i{inner} = first + lane")
            for s in body:
                self.emit(s, {**outer, inner: f"i{inner}"})


def _index_values(s: Statement) -> Sequence[Value]:
    """Return the values that decide where and whether ``s`` accesses memory.

    They are its computed indices, and the condition of a conditional store.
    """
    if not isinstance(s, (Load, Store)):
        return ()
    index_scalars = [term.index for term in s.indices]
    where = s.where if isinstance(s, Store) else None
    return index_scalars if where is None else [*index_scalars, where]
