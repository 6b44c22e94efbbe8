"""Elementwise kernels of operands in transposed order: tiles through shared memory."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from typing_extensions import override

from arrayfn.lowering.cuda.printer import AxisIndices, CudaPrinter
from arrayfn.lowering.cuda.schedule import Transpose, is_vector, transposed_operands
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Load, Store


@dataclass
class TransposePrinter(CudaPrinter[Transpose]):
    """Prints kernels whose blocks transpose tiles of 32 by 32 elements, or words.

    A tile extends along the axes ``across``, the schedule's, and ``inner``, the last.
    The ``transposed`` operands are contiguous along the former, others along the
    latter. ``is_whole`` says that tiles divide the array along both.
    """

    def __post_init__(self) -> None:
        """Note the axes of the tile, and which operands are transposed."""
        super().__post_init__()
        axes = self.nest.axes
        self.across, self.inner = self.schedule.axis, len(axes) - 1
        self.transposed = transposed_operands(self.nest, self.across)
        extents = axes[self.across].extent, axes[self.inner].extent
        self.is_whole = not any(extent % self.schedule.side for extent in extents)

    @override
    def body(self) -> None:
        """Print which tile a block has, then its loads, exchange and stores."""
        indices = self.assign_tile()
        if self.schedule.pack > 1:
            self.move_words(indices)
        else:
            self.move_elements(indices)

    def assign_tile(self) -> AxisIndices:
        """Define the first indices of the block's tile, ``tileA`` along axis A.

        Returns the variables of an element's indices; those along the tile's axes are
        defined later, for each element.
        """
        across, inner, side = self.across, self.inner, self.schedule.side
        axes = self.nest.axes
        outer = [k for k in range(inner) if k != across]
        blocks = [-(-axes[k].extent // side) for k in (across, inner)]
        self.items = math.prod(blocks) * math.prod(axes[k].extent for k in outer)
        self.line(f"lane = remainder(thread_index(), {WARP})")
        self.line(f"warp = quotient(thread_index(), {WARP})")
        self.line("rest = block_index()")
        n_across, n_inner = self.extent(across), self.extent(inner)
        for axis, n in ((inner, n_inner), (across, n_across)):
            self.line(f"blocks = ({n} + {side - 1}) // {side}")
            text = self.remainder("rest", "blocks", self.items)
            self.line(f"tile{axis} = {text} * {side}")
            self.line(f"rest = {self.quotient('rest', 'blocks', self.items)}")
        variables = self.decompose("rest", outer)
        self.hoist_offsets(variables)
        return {**variables, across: f"i{across}", inner: f"i{inner}"}

    def lines_name(self, operand: int) -> str:
        """The name of the registers through which an operand goes to its tile."""
        return self.tile_name(operand).removesuffix("_tile") + "_lines"

    def words_name(self, operand: int) -> str:
        """The name of the registers for a word of an operand from its tile."""
        return self.tile_name(operand).removesuffix("_tile") + "_words"

    def inside(self, indices: AxisIndices) -> str:
        """The condition that the element at ``indices`` exists; empty if all do."""
        axes = self.across, self.inner
        tests = [f"{indices[k]} < {self.extent(k)}" for k in axes]
        return "" if self.is_whole else " and ".join(tests)

    # Elements of 32 bits and more.

    def move_elements(self, indices: AxisIndices) -> None:
        """Print a tile whose elements move one by one; ``indices`` are an element's.

        Lines of a tile are padded by an element, against bank conflicts.
        """
        nest, side = self.nest, self.schedule.side
        direct = [
            s.operand
            for s in nest.statements
            if isinstance(s, Load)
            and not s.indices
            and not nest.operands[s.operand].written
            and s.operand not in self.transposed
        ]
        direct = list(dict.fromkeys(direct))
        tiles = {k: self.tile_name(k) for k in (*self.transposed, *direct)}
        lines = {k: self.lines_name(k) for k in self.transposed}
        count = side * side // self.schedule.threads
        for k in self.transposed:
            dtype = self.stored_name(nest.operands[k].dtype)
            self.line(f"{tiles[k]} = shared_{dtype}({side * (side + 1)})")
            self.registers(lines[k], dtype, count)
        self.declare_tiles(direct, count)
        # All loads are on their way before the first value is waited for.
        with self.open_lines(count, "lane", "line", indices):
            for k in self.transposed:
                self.line(f"{lines[k]}[part] = {self.element_at(k, indices)}")
        if direct:
            with self.open_lines(count, "line", "lane", indices):
                for k in direct:
                    self.line(f"{tiles[k]}[part] = {self.element_at(k, indices)}")
        with self.open(f"for part in range({count}):"):
            self.line(f"line = warp + part * {self.schedule.threads // WARP}")
            for k in self.transposed:
                self.line(f"{tiles[k]}[line * {side + 1} + lane] = {lines[k]}[part]")
        self.line("barrier()")
        with self.open_lines(count, "line", "lane", indices):
            self.staged = {
                k: f"{tiles[k]}[lane * {side + 1} + line]" for k in self.transposed
            }
            self.staged |= {k: f"{tiles[k]}[part]" for k in direct}
            for s in nest.statements:
                self.emit(s, indices)
            self.staged = {}

    @contextmanager
    def open_lines(
        self, count: int, across: str, inner: str, indices: AxisIndices
    ) -> Generator[None]:
        """Open the loop over a thread's ``count`` elements of the tile.

        ``across`` and ``inner`` are an element's indices in the tile along its axes:
        the variables ``lane`` and ``line``. ``indices`` are those in the array.
        """
        with self.open(f"for part in range({count}):"):
            self.line(f"line = warp + part * {self.schedule.threads // WARP}")
            self.line(f"i{self.across} = tile{self.across} + {across}")
            self.line(f"i{self.inner} = tile{self.inner} + {inner}")
            with self.open_if(self.inside(indices)):
                yield

    # Elements of 8 and 16 bits.

    def move_words(self, indices: AxisIndices) -> None:
        """Print a tile whose elements of 8 or 16 bits move as words of 32 bits.

        Words of ``pack`` elements along one axis become such along the other. A thread
        has ``pack`` of them, one above the other, and transposes them in registers. In
        shared memory each line is padded by a word, and every 32 lines by one more. So
        neither the words that a warp writes, ``pack`` lines apart, nor those of a line,
        which it reads, have bank conflicts. ``indices`` are those of an element.
        """
        nest, pack, side = self.nest, self.schedule.pack, self.schedule.side
        size = side * (side + pack) + pack * pack
        words = side * WARP // self.schedule.threads
        for k in self.transposed:
            dtype = self.stored_name(nest.operands[k].dtype)
            self.line(f"{self.tile_name(k)} = shared_{dtype}({size})")
            self.registers(self.lines_name(k), dtype, words * pack)
            self.registers(self.words_name(k), dtype, pack)
        accesses = [s for s in nest.statements if isinstance(s, (Load, Store))]
        vectors = [
            k
            for k in dict.fromkeys(s.operand for s in accesses)
            if k not in self.transposed and is_vector(nest.operands[k], pack)
        ]
        read = [k for k in vectors if not nest.operands[k].written]
        written = [k for k in vectors if nest.operands[k].written]
        self.declare_tiles(read, words * pack)
        self.declare_tiles(written, pack)
        self.load_words(words, indices)
        self.line(f"first = tile{self.inner} + lane * {pack}")
        first = {**indices, self.inner: "first"}
        if read:
            with self.open_words(words, first):
                for k in read:
                    self.load_vector(k, pack, first, f"part * {pack}")
        self.transpose_words(words)
        self.line("barrier()")
        with self.open_words(words, first):
            self.compute_word(indices, read, written)
            for k in written:
                self.store_vector(k, pack, first, "0")

    def load_words(self, words: int, indices: AxisIndices) -> None:
        """Load a thread's ``words`` words of each transposed operand into registers.

        ``indices`` are those of an element. All loads are on their way before the first
        word is waited for.
        """
        pack, warps = self.schedule.pack, self.schedule.threads // WARP
        self.line(f"i{self.across} = tile{self.across} + lane * {pack}")
        parts = f"for part in unrolled({words // pack}):"
        with self.open(parts), self.open(f"for slot in unrolled({pack}):"):
            number = f"(warp + part * {warps}) * {pack} + slot"
            self.line(f"i{self.inner} = tile{self.inner} + {number}")
            with self.open_if(self.inside(indices)):
                for k in self.transposed:
                    load = f"load_{self.vector_name(k, pack)}"
                    source = f"{self.pointer(k)}, {self.index(k, indices)}"
                    register = f"(part * {pack} + slot) * {pack}"
                    self.line(f"{load}({source}, {self.lines_name(k)}, {register})")

    def transpose_words(self, words: int) -> None:
        """Transpose a thread's ``words`` words in registers; store them in tiles."""
        pack, warps = self.schedule.pack, self.schedule.threads // WARP
        pitch = self.schedule.side + pack
        self.line(
            f"begin = lane * {pack * pitch} + quotient(lane, {WARP // pack}) * {pack}"
        )
        with self.open(f"for part in unrolled({words // pack}):"):
            for k in self.transposed:
                transpose = f"transpose_{self.vector_name(k, pack)}"
                self.line(f"{transpose}({self.lines_name(k)}, part * {pack * pack})")
            with self.open(f"for slot in unrolled({pack}):"):
                self.line(f"column = (warp + part * {warps}) * {pack}")
                for k in self.transposed:
                    store = f"store_{self.vector_name(k, pack)}"
                    target = f"{self.tile_name(k)}, begin + slot * {pitch} + column"
                    register = f"(part * {pack} + slot) * {pack}"
                    self.line(f"{store}({target}, {self.lines_name(k)}, {register})")

    def compute_word(
        self, indices: AxisIndices, read: list[int], written: list[int]
    ) -> None:
        """Print the statements for each element of the current word.

        Args:
            indices: The indices of an element.
            read: Operands whose words are in registers.
            written: Operands whose words are put in registers.
        """
        pack, pitch = self.schedule.pack, self.schedule.side + self.schedule.pack
        for k in self.transposed:
            load = f"load_{self.vector_name(k, pack)}"
            at = f"line * {pitch} + (quotient(line, {WARP}) + lane) * {pack}"
            self.line(f"{load}({self.tile_name(k)}, {at}, {self.words_name(k)}, 0)")
        with self.open(f"for slot in range({pack}):"):
            self.staged = {k: f"{self.words_name(k)}[slot]" for k in self.transposed}
            self.staged |= {
                k: f"{self.tile_name(k)}[part * {pack} + slot]" for k in read
            }
            self.staged |= {k: f"{self.tile_name(k)}[slot]" for k in written}
            if self.uses_index(self.nest.statements, self.inner):
                self.line(f"i{self.inner} = first + slot")
            for s in self.nest.statements:
                self.emit(s, indices)
            self.staged = {}

    @contextmanager
    def open_words(self, words: int, indices: AxisIndices) -> Generator[None]:
        """Open the loop over a thread's ``words`` words along the last axis.

        ``indices`` are those of a word's first element.
        """
        warps = self.schedule.threads // WARP
        with self.open(f"for part in unrolled({words}):"):
            self.line(f"line = warp + part * {warps}")
            self.line(f"i{self.across} = tile{self.across} + line")
            with self.open_if(self.inside(indices)):
                yield
