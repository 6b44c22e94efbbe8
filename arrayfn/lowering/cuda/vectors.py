"""The base of CUDA printers for vector accesses: names, index arithmetic, tiles.

A *tile* is the array of a thread's registers for vectors of an operand. For the operand
that is the parameter ``x_in``, or ``x_out``, it is called ``x_tile``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final, Generic, TypeVar

from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import DType, compute_dtype, short_name
from arrayfn.lowering.cuda.schedule import Schedule, is_vector
from arrayfn.lowering.kernel_ir import Count, Load, Statement, Store
from arrayfn.lowering.kernel_printer import KernelPrinter
from arrayfn.records import record

_MAX_32_BIT_INDEX: Final = 2**31
S = TypeVar("S", bound=Schedule)
AxisIndices = dict[int, str]
"""The expression of the index along each axis of the nest, by axis number."""


@record
class VectorPrinter(KernelPrinter, Generic[S]):
    """Prints index arithmetic, and accesses of vectors of neighbouring elements.

    Methods append lines to the kernel. A method that returns a ``str`` returns an
    expression or a variable of the kernel's source.
    """

    schedule: S = field(kw_only=True)
    result_tiles: set[int] = field(default_factory=set[int])
    """The operands whose tile has the compute dtype, not that in memory.

    fp16 and bf16 results are float32 there; ``store_vector`` rounds them.
    """

    # Text.

    def extent_of(self, axes: Sequence[int], name: str) -> str:
        """Return the expression of the product of the extents of ``axes``.

        For axis 1 it is ``n1``. For several axes it is an integer parameter of the
        kernel, called ``name``.
        """
        if len(axes) == 1:
            return self.extent(axes[0])
        return self.integer(name, self.nest.size_along(axes))

    def quotient(self, x: str, y: str, limit: int) -> str:
        """Return the expression of ``x // y``, given that ``0 <= x <= limit``.

        It is ``quotient(x, y)``, a faster 32-bit division, if ``limit`` is below 2**31.
        Else it is ``(x) // y``. ``x`` and ``y`` are expressions.
        """
        if limit < _MAX_32_BIT_INDEX:
            return f"quotient({x}, {y})"
        return f"({x}) // {y}"

    def remainder(self, x: str, y: str, limit: int) -> str:
        """Return the expression of ``x % y``, given that ``0 <= x <= limit``.

        It is of 32 bits if that suffices, as in ``quotient``.
        """
        if limit < _MAX_32_BIT_INDEX:
            return f"remainder({x}, {y})"
        return f"({x}) % {y}"

    @override
    def decompose(
        self, text: str, axes: Sequence[int], letter: str = "i"
    ) -> AxisIndices:
        """Split a row-major index into one for each of ``axes``; return their names.

        Prints, for ``text="item"``, axes 0, 1 and 2 and the letter "i":

            rest = item
            i2 = remainder(rest, n2)
            rest = quotient(rest, n2)
            i1 = remainder(rest, n1)
            i0 = quotient(rest, n1)

        Args:
            text: The expression of the index.
            axes: Axes of the nest, outermost first.
            letter: Begins the variables' names; the axis's number follows.
        """
        limit = self.nest.size_along(axes)
        variables = {axis: f"{letter}{axis}" for axis in axes}
        if not axes:
            return variables
        if len(axes) > 1:
            self.line(f"rest = {text}")
            text = "rest"
        for axis in reversed(axes[1:]):
            n = self.extent(axis)
            self.line(f"{letter}{axis} = {self.remainder('rest', n, limit)}")
            text = self.quotient("rest", n, limit)
            if axis != axes[1]:
                self.line(f"rest = {text}")
        self.line(f"{letter}{axes[0]} = {text}")
        return variables

    def stored_name(self, dtype: DType) -> str:
        """Return the name of ``dtype`` in functions that access memory: ``f32``.

        It is u16 for fp16 and bf16, and u8 for booleans.
        """
        if dtype == dtypes.bool_:
            return "u8"
        return "u16" if dtype in dtypes.HALF_PRECISION else short_name(dtype)

    def registers(self, name: str, dtype: str, count: int) -> None:
        """Print ``x_tile = registers_f32(8)``: ``count`` registers of each thread.

        ``dtype`` is a short name, such as ``f32``.
        """
        self.line(f"{name} = registers_{dtype}({count})")

    def array_name(self, operand: int) -> str:
        """Return ``x`` for the operand that is the parameter ``x_in`` or ``x_out``."""
        return self.pointer(operand).removesuffix("_in").removesuffix("_out")

    def tile_name(self, operand: int) -> str:
        """Return ``x_tile``, the registers for vectors of operand ``x``."""
        return f"{self.array_name(operand)}_tile"

    @override
    def store(self, s: Store, variables: AxisIndices) -> None:
        """Print the store ``s`` of one element at the indices ``variables``.

        Prints, if ``s`` adds to its target (a scatter-add), and only where a condition
        holds:

            if inside:
                atomic_add_f32(y_out, i0 + index, value)
        """
        if not s.adds:
            super().store(s, variables)
            return
        dtype = self.stored_name(self.nest.operands[s.operand].dtype)
        with self.open_if("" if s.where is None else self.name_of(s.where)):
            target = f"{self.pointer(s.operand)}, {self.full_index(s, variables)}"
            self.line(f"atomic_add_{dtype}({target}, {self.scalar(s.value)})")

    # Vectors of neighbouring elements.

    def vectors(
        self, body: Iterable[Statement], kind: type[Load | Store], lanes: int
    ) -> list[int]:
        """Return the operands that ``body`` loads, or stores, in vectors of ``lanes``.

        ``kind`` is ``Load`` or ``Store``.
        """
        return [
            s.operand
            for s in body
            if isinstance(s, kind) and self.is_vectorized(s, lanes)
        ]

    def is_vectorized(self, s: Load | Store, lanes: int) -> bool:
        """Whether ``s`` is one vector access for ``lanes`` neighbouring elements.

        It is not if the operand is not contiguous and aligned, if indices are computed,
        or if it is a store that is conditional or adds.
        """
        conditional = isinstance(s, Store) and s.where is not None
        return (
            s.level == "element"
            and not s.indices
            and not conditional
            and not (isinstance(s, Store) and s.adds)
            and is_vector(self.nest.operands[s.operand], lanes)
        )

    def vector_name(self, operand: int, lanes: int) -> str:
        """Return ``f32x4``, as in ``load_f32x4``: dtype in memory, number of lanes."""
        return f"{self.stored_name(self.nest.operands[operand].dtype)}x{lanes}"

    def load_vector(
        self,
        operand: int,
        lanes: int,
        variables: AxisIndices,
        register: str,
    ) -> None:
        """Load a vector of ``operand`` from global memory into its tile.

        Prints, for four lanes and a row that begins at ``row``:

            load_f32x4(x_in, row + first, x_tile, vector * 4)

        Args:
            operand: The operand's number.
            lanes: Elements of the vector.
            variables: The index of the vector's first element along each axis: here
                ``first``.
            register: The index of that element in the tile: here ``vector * 4``.
        """
        at = self.index(operand, variables)
        self.move_vector(
            "load", operand, self.vector_name(operand, lanes), at, register
        )

    def move_vector(
        self, direction: str, operand: int, name: str, at: str, register: str
    ) -> None:
        """Print one vector access: ``load_f32x4(x_in, row + first, x_tile, 0)``.

        Args:
            direction: "load" or "store".
            operand: The number of the operand, here ``x``.
            name: The suffix of the function: ``f32x4``.
            at: The index of the vector's first element in memory: ``row + first``.
            register: The index of its first element in the tile: ``0``.
        """
        arrays = f"{self.pointer(operand)}, {at}, {self.tile_name(operand)}"
        self.line(f"{direction}_{name}({arrays}, {register})")

    def declare_result_tiles(self, operands: Iterable[int], count: int) -> None:
        """Declare tiles of ``count`` registers for results that are stored as vectors.

        Tiles of fp16 and bf16 results are float32, as they are computed;
        ``store_vector`` rounds them. Prints, for a bfloat16 result: ``y_tile =
        registers_f32(8)``.
        """
        for operand in operands:
            dtype = compute_dtype(self.nest.operands[operand].dtype)
            if dtype == self.nest.operands[operand].dtype:
                self.declare_tiles([operand], count)
            else:
                self.registers(self.tile_name(operand), short_name(dtype), count)
                self.result_tiles.add(operand)

    @override
    def stored(self, operand: int, text: str) -> str:
        """Return the expression ``text`` as it is stored, rounded if necessary.

        It is not rounded if it goes to a result tile of float32.
        """
        is_unrounded = operand in self.result_tiles and operand in self.staged
        return text if is_unrounded else super().stored(operand, text)

    def store_vector(
        self, operand: int, lanes: int, variables: AxisIndices, register: str
    ) -> None:
        """Store a vector from the operand's tile to memory.

        Prints, for four lanes: ``store_f32x4(y_out, row + first, y_tile, 0)``. For
        bfloat16 the suffix is ``bf16x8`` if the registers are float32, to be rounded,
        and ``u16x8`` if they hold 16 bits each. The arguments are those of
        ``load_vector``.
        """
        name = self.vector_name(operand, lanes)
        if operand in self.result_tiles:
            name = f"{short_name(self.nest.operands[operand].dtype)}x{lanes}"
        at = self.index(operand, variables)
        self.move_vector("store", operand, name, at, register)

    def declare_tiles(self, operands: Iterable[int], count: int) -> None:
        """Declare for each operand a tile of ``count`` registers of its memory dtype.

        Prints, for a bool operand: ``x_tile = registers_u8(8)``.
        """
        for operand in operands:
            dtype = self.stored_name(self.nest.operands[operand].dtype)
            self.registers(self.tile_name(operand), dtype, count)

    def uses_index(self, body: Iterable[Statement], axis: int) -> bool:
        """Whether the lines of ``body`` will read the index along ``axis``.

        Elements that are read from and written to registers (``staged``) do not.
        """
        for s in body:
            if isinstance(s, Count) and s.axis == axis:
                return True
            if (
                isinstance(s, (Load, Store))
                and s.level == "element"
                and s.operand not in self.staged
                and self.nest.operands[s.operand].strides[axis]
            ):
                return True
        return False
