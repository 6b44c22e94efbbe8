"""Elementwise kernels with operands in transposed order: tiles in shared memory."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager

from typing_extensions import override

from arrayfn.lowering.cuda.printer import AxisIndices, CudaPrinter
from arrayfn.lowering.cuda.schedule import Transpose, is_vector, transposed_operands
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Load, Store
from arrayfn.records import record


@record
class TransposePrinter(CudaPrinter[Transpose]):
    """Prints kernels whose blocks transpose square tiles of an array.

    A tile has 32 by 32 elements. If elements have 8 or 16 bits, they move as words of
    32 bits, which have ``pack`` elements each, and a tile has ``pack`` times as many
    elements each way.

    A tile extends along two axes: ``across``, which the schedule names, and ``inner``,
    the last. The ``transposed`` operands are contiguous along ``across``, all others
    along ``inner``. ``is_whole`` says that tiles divide the array along both axes.
    ``indices`` has the variable of an element's index along each axis.

    In the kernel of ``b = x.T + y``, ``x_tile`` is the tile of the transposed operand
    in shared memory, ``x_lines`` are the registers with a thread's elements of ``x``,
    and ``y_tile`` those with its elements of ``y``. Lanes are neighbours along
    ``across`` when they load ``x``, and along ``inner`` when they compute and store.
    """

    def __post_init__(self) -> None:
        """Determine the axes of the tile, and the operands that are transposed."""
        super().__post_init__()
        axes = self.nest.axes
        self.across, self.inner = self.schedule.axis, len(axes) - 1
        self.transposed = transposed_operands(self.nest, self.across)
        extents = axes[self.across].extent, axes[self.inner].extent
        self.is_whole = not any(extent % self.schedule.side for extent in extents)

    @override
    def body(self) -> None:
        """Print which tile a block has, then its loads, exchange and stores."""
        self.indices = self.assign_tile()
        if self.schedule.pack > 1:
            self.move_words()
        else:
            self.move_elements()

    def assign_tile(self) -> AxisIndices:
        """Define the first indices of the block's tile, ``tileA`` along axis A.

        Returns the variables of an element's indices; those along the tile's axes are
        defined later, for each element. Prints, for an array of two axes:

            lane = remainder(thread_index(), 32)
            warp = quotient(thread_index(), 32)
            rest = block_index()
            blocks = (n1 + 31) // 32
            tile1 = remainder(rest, blocks) * 32
            rest = quotient(rest, blocks)
            blocks = (n0 + 31) // 32
            tile0 = remainder(rest, blocks) * 32
            rest = quotient(rest, blocks)
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
        """Return ``x_lines``: registers from which operand ``x`` goes to its tile."""
        return f"{self.array_name(operand)}_lines"

    def words_name(self, operand: int) -> str:
        """Return ``x_words``: registers for one word of operand ``x`` from its tile."""
        return f"{self.array_name(operand)}_words"

    def exists(self, indices: AxisIndices) -> str:
        """Return the condition that the element at ``indices`` is in the array.

        It is empty if tiles divide the array, so that all elements of a tile are in it.
        """
        axes = self.across, self.inner
        tests = [f"{indices[k]} < {self.extent(k)}" for k in axes]
        return "" if self.is_whole else " and ".join(tests)

    # Elements of 32 bits and more.

    def move_elements(self) -> None:
        """Print a tile whose elements move one by one.

        Lines of a tile are padded by an element, against bank conflicts. Prints, for
        ``b = x.T + y`` and tiles of 32 by 32 elements, besides index arithmetic:

            for part in range(4):
                x_lines[part] = x_in[i0 + i1 * x_in_s1]
            for part in range(4):
                y_tile[part] = y_in[i0 * n1 + i1]
            for part in range(4):
                x_tile[line * 33 + lane] = x_lines[part]
            barrier()
            for part in range(4):
                x = x_tile[lane * 33 + line]
                y = y_tile[part]
                b = x + y
                b_out[i0 * n1 + i1] = b
        """
        nest, pitch = self.nest, self.schedule.side + 1
        loads = [s for s in nest.statements if isinstance(s, Load) and not s.indices]
        # These operands are contiguous along the last axis: registers suffice for them.
        direct = [
            k
            for k in dict.fromkeys(s.operand for s in loads)
            if not nest.operands[k].written and k not in self.transposed
        ]
        tiles = {k: self.tile_name(k) for k in (*self.transposed, *direct)}
        lines = {k: self.lines_name(k) for k in self.transposed}
        count = self.schedule.side**2 // self.schedule.threads
        for k in self.transposed:
            dtype = self.stored_name(nest.operands[k].dtype)
            self.line(f"{tiles[k]} = shared_{dtype}({self.schedule.side * pitch})")
            self.registers(lines[k], dtype, count)
        self.declare_tiles(direct, count)
        # All loads are on their way before the first value is waited for.
        with self.open_lines(count, "lane", "line"):
            for k in self.transposed:
                self.line(f"{lines[k]}[part] = {self.element_at(k, self.indices)}")
        if direct:
            with self.open_lines(count, "line", "lane"):
                for k in direct:
                    self.line(f"{tiles[k]}[part] = {self.element_at(k, self.indices)}")
        with self.open(f"for part in range({count}):"):
            self.line(f"line = warp + part * {self.schedule.threads // WARP}")
            for k in self.transposed:
                self.line(f"{tiles[k]}[line * {pitch} + lane] = {lines[k]}[part]")
        self.line("barrier()")
        with self.open_lines(count, "line", "lane"):
            self.staged = {
                k: f"{tiles[k]}[lane * {pitch} + line]" for k in self.transposed
            }
            self.staged |= {k: f"{tiles[k]}[part]" for k in direct}
            for s in nest.statements:
                self.emit(s, self.indices)
            self.staged = {}

    @contextmanager
    def open_lines(self, count: int, across: str, inner: str) -> Generator[None]:
        """Open the loop over a thread's ``count`` elements of the tile.

        ``across`` and ``inner`` are an element's indices in the tile along its axes:
        the variables ``lane`` and ``line``. Prints, for "lane" and "line":

            for part in range(4):
                line = warp + part * 8
                i0 = tile0 + lane
                i1 = tile1 + line
                if i0 < n0 and i1 < n1:
        """
        with self.open(f"for part in range({count}):"):
            self.line(f"line = warp + part * {self.schedule.threads // WARP}")
            self.line(f"i{self.across} = tile{self.across} + {across}")
            self.line(f"i{self.inner} = tile{self.inner} + {inner}")
            with self.open_if(self.exists(self.indices)):
                yield

    # Elements of 8 and 16 bits.

    def move_words(self) -> None:
        """Print a tile whose elements of 8 or 16 bits move as words of 32 bits.

        A word has ``pack`` elements along one axis when it is loaded, and along the
        other when it is stored. A thread loads ``pack`` words one above the other, and
        transposes them in registers. In shared memory each line is padded by a word,
        and every 32 lines by one more. So neither the words that a warp writes,
        ``pack`` lines apart, nor those of a line, which it reads, have bank conflicts.
        """
        nest, pack, side = self.nest, self.schedule.pack, self.schedule.side
        # In elements: padded lines, and a word after every 32 lines.
        size = side * (side + pack) + pack * pack
        # A tile has ``side`` lines of 32 words.
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
        self.load_words(words)
        self.line(f"first = tile{self.inner} + lane * {pack}")
        first = {**self.indices, self.inner: "first"}
        if read:
            with self.open_words(words, first):
                for k in read:
                    self.load_vector(k, pack, first, f"part * {pack}")
        self.transpose_words(words)
        self.line("barrier()")
        with self.open_words(words, first):
            self.compute_word(read, written)
            for k in written:
                self.store_vector(k, pack, first, "0")

    def load_words(self, words: int) -> None:
        """Load a thread's ``words`` words of each transposed operand into registers.

        All loads are in flight before the first word is used. Prints, for two fp16
        numbers a word:

            i0 = tile0 + lane * 2
            for part in unrolled(4):
                for slot in unrolled(2):
                    i1 = tile1 + (warp + part * 8) * 2 + slot
                    load_u16x2(x_in, i0 + i1 * x_in_s1, x_lines, (part * 2 + slot) * 2)
        """
        pack, warps = self.schedule.pack, self.schedule.threads // WARP
        self.line(f"i{self.across} = tile{self.across} + lane * {pack}")
        parts = f"for part in unrolled({words // pack}):"
        with self.open(parts), self.open(f"for slot in unrolled({pack}):"):
            number = f"(warp + part * {warps}) * {pack} + slot"
            self.line(f"i{self.inner} = tile{self.inner} + {number}")
            with self.open_if(self.exists(self.indices)):
                for k in self.transposed:
                    load = f"load_{self.vector_name(k, pack)}"
                    source = f"{self.pointer(k)}, {self.index(k, self.indices)}"
                    register = f"(part * {pack} + slot) * {pack}"
                    self.line(f"{load}({source}, {self.lines_name(k)}, {register})")

    def transpose_words(self, words: int) -> None:
        """Transpose a thread's ``words`` words in registers; store them in the tiles.

        Prints, for two fp16 numbers a word:

            begin = lane * 132 + quotient(lane, 16) * 2
            for part in unrolled(4):
                transpose_u16x2(x_lines, part * 4)
                for slot in unrolled(2):
                    column = (warp + part * 8) * 2
                    store_u16x2(x_tile, begin + slot * 66 + column, x_lines, ...)

        A line has 64 elements and one word of padding: 66 elements. A lane's words go
        to two neighbouring lines, from ``lane * 132`` on; the quotient counts the words
        that pad every 32 lines.
        """
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

    def compute_word(self, read: list[int], written: list[int]) -> None:
        """Print the statements for each element of the current word.

        Words of the operands ``read`` are in registers already. Words of the operands
        ``written`` are computed into registers, to be stored later. Prints, for
        ``b = x.T + y``:

            load_u16x2(x_tile, line * 66 + (quotient(line, 32) + lane) * 2, x_words, 0)
            for slot in range(2):
                x = convert_f16_f32(x_words[slot])
                y = convert_f16_f32(y_tile[part * 2 + slot])
                b = x + y
                b_tile[slot] = convert_f32_f16(b)
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
                self.emit(s, self.indices)
            self.staged = {}

    @contextmanager
    def open_words(self, words: int, indices: AxisIndices) -> Generator[None]:
        """Open the loop over a thread's words: one in each of ``words`` lines.

        A word is ``pack`` neighbours along the last axis, ``inner``. The caller has set
        the index of its first element along this axis, which ``indices`` names. The
        loop sets the index along ``across``. Prints, for two fp16 numbers a word:

            for part in unrolled(8):
                line = warp + part * 8
                i0 = tile0 + line
                if i0 < n0 and first < n1:
        """
        warps = self.schedule.threads // WARP
        with self.open(f"for part in unrolled({words}):"):
            self.line(f"line = warp + part * {warps}")
            self.line(f"i{self.across} = tile{self.across} + line")
            with self.open_if(self.exists(indices)):
                yield
