"""Elementwise kernels of operands in transposed order: tiles through shared memory."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from typing_extensions import override

from arrayfn.lowering.cuda.printer import AxisIndices, CudaPrinter
from arrayfn.lowering.cuda.schedule import Transpose, is_vector, transposed_operands
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Load, Store


@dataclass
class TransposePrinter(CudaPrinter[Transpose]):
    """Prints kernels whose blocks transpose tiles of 32 by 32 elements, or words."""

    @override
    def body(self) -> None:
        """Print which tile a block has, then its loads, exchange and stores."""
        schedule = self.schedule
        nest, body = self.nest, self.nest.statements
        across, inner, side = schedule.axis, len(nest.axes) - 1, schedule.side
        outer = [k for k in range(inner) if k != across]
        n_across, n_inner = self.extent(across), self.extent(inner)
        blocks = [-(-nest.axes[k].extent // side) for k in (across, inner)]
        self.items = math.prod(blocks) * math.prod(nest.axes[k].extent for k in outer)
        self.line(f"lane = remainder(thread_index(), {WARP})")
        self.line(f"warp = quotient(thread_index(), {WARP})")
        self.line("rest = block_index()")
        tiles: list[str] = []
        for axis, n in ((inner, n_inner), (across, n_across)):
            name = f"tile{axis}"
            self.line(f"blocks = ({n} + {side - 1}) // {side}")
            text = self.remainder("rest", "blocks", self.items)
            self.line(f"{name} = {text} * {side}")
            self.line(f"rest = {self.quotient('rest', 'blocks', self.items)}")
            tiles.append(name)
        variables = self.decompose("rest", outer)
        self.hoist_offsets(variables)
        transposed = transposed_operands(nest, across)
        whole = not any(nest.axes[k].extent % side for k in (across, inner))
        everywhere = {**variables, across: f"i{across}", inner: f"i{inner}"}
        if schedule.pack > 1:
            self.packed(transposed, everywhere, whole)
            return
        inside = self.inside(everywhere, whole)
        steady = [
            s.operand
            for s in body
            if isinstance(s, Load)
            and not s.indices
            and not nest.operands[s.operand].written
            and s.operand not in transposed
        ]
        steady = list(dict.fromkeys(steady))
        names = {k: self.tile_name(k) for k in (*transposed, *steady)}
        lines = {k: self.lines_name(k) for k in transposed}
        count = side * side // schedule.threads
        for k in transposed:
            dtype = self.stored_name(nest.operands[k].dtype)
            shared = f"shared_{dtype}"
            self.line(f"{names[k]} = {shared}({side * (side + 1)})")
            self.registers(lines[k], dtype, count)
        self.declare_tiles(steady, count)

        @contextmanager
        def open_lines(first: str, second: str) -> Generator[None]:
            with self.open(f"for part in range({count}):"):
                self.line(f"line = warp + part * {schedule.threads // WARP}")
                self.line(f"i{across} = {tiles[1]} + {first}")
                self.line(f"i{inner} = {tiles[0]} + {second}")
                with self.open_if(inside):
                    yield

        # All loads are on their way before the first value is waited for.
        with open_lines("lane", "line"):
            for k in transposed:
                self.line(f"{lines[k]}[part] = {self.element_at(k, everywhere)}")
        if steady:
            with open_lines("line", "lane"):
                for k in steady:
                    self.line(f"{names[k]}[part] = {self.element_at(k, everywhere)}")
        with self.open(f"for part in range({count}):"):
            self.line(f"line = warp + part * {schedule.threads // WARP}")
            for k in transposed:
                self.line(f"{names[k]}[line * {side + 1} + lane] = {lines[k]}[part]")
        self.line("barrier()")
        with open_lines("line", "lane"):
            self.staged = {
                k: f"{names[k]}[lane * {side + 1} + line]" for k in transposed
            }
            self.staged |= {k: f"{names[k]}[part]" for k in steady}
            for s in body:
                self.emit(s, everywhere)
            self.staged = {}

    def lines_name(self, operand: int) -> str:
        """The name of the registers through which an operand goes to its tile."""
        return self.tile_name(operand).removesuffix("_tile") + "_lines"

    def inside(self, variables: AxisIndices, whole: bool) -> str:
        """The condition that an element of a tile exists; empty if ``whole``.

        ``variables`` are its indices. ``whole`` says that tiles divide the array.
        """
        axes = self.schedule.axis, len(self.nest.axes) - 1
        tests = [f"{variables[k]} < {self.extent(k)}" for k in axes]
        return "" if whole else " and ".join(tests)

    def packed(
        self, transposed: Sequence[int], everywhere: AxisIndices, whole: bool
    ) -> None:
        """Print a tile whose elements of 8 or 16 bits move as words of 32 bits.

        Words of ``pack`` elements along one axis become such along the other. A thread
        has ``pack`` of them, one above the other, and transposes them in registers. In
        shared memory each line is padded by a word, and every 32 lines by one more. So
        neither the words that a warp writes, ``pack`` lines apart, nor those of a line,
        which it reads, have bank conflicts.

        Args:
            transposed: The operands that are contiguous along the schedule's axis.
            everywhere: An element's indices along all axes.
            whole: Whether tiles divide the array.
        """
        schedule, nest, body = self.schedule, self.nest, self.nest.statements
        across, inner, pack = schedule.axis, len(nest.axes) - 1, schedule.pack
        side, warps = schedule.side, schedule.threads // WARP
        pitch, size = side + pack, side * (side + pack) + pack * pack
        words = side * WARP // schedule.threads
        for k in transposed:
            dtype = self.stored_name(nest.operands[k].dtype)
            self.line(f"{self.tile_name(k)} = shared_{dtype}({size})")
            self.registers(self.lines_name(k), dtype, words * pack)
            self.registers(self.words_name(k), dtype, pack)
        vectors = [
            k
            for k in dict.fromkeys(
                s.operand for s in body if isinstance(s, (Load, Store))
            )
            if k not in transposed and is_vector(nest.operands[k], pack)
        ]
        read = [k for k in vectors if not nest.operands[k].written]
        written = [k for k in vectors if nest.operands[k].written]
        self.declare_tiles(read, words * pack)
        self.declare_tiles(written, pack)
        # All loads are on their way before the first word is waited for.
        self.line(f"i{across} = tile{across} + lane * {pack}")
        parts = f"for part in unrolled({words // pack}):"
        slots = f"for slot in unrolled({pack}):"
        place = f"(part * {pack} + slot) * {pack}"
        with self.open(parts), self.open(slots):
            number = f"(warp + part * {warps}) * {pack} + slot"
            self.line(f"i{inner} = tile{inner} + {number}")
            with self.open_if(self.inside(everywhere, whole)):
                for k in transposed:
                    load = f"load_{self.vector_name(k, pack)}"
                    at, lines = self.index(k, everywhere), self.lines_name(k)
                    self.line(f"{load}({self.pointer(k)}, {at}, {lines}, {place})")
        self.line(f"first = tile{inner} + lane * {pack}")
        at_first = {**everywhere, inner: "first"}
        if read:
            with self.open_words(words, at_first, whole):
                for k in read:
                    self.load_vector(k, pack, at_first, f"part * {pack}")
        self.line(
            f"begin = lane * {pack * pitch} + quotient(lane, {WARP // pack}) * {pack}"
        )
        with self.open(parts):
            for k in transposed:
                transpose = f"transpose_{self.vector_name(k, pack)}"
                self.line(f"{transpose}({self.lines_name(k)}, part * {pack * pack})")
            with self.open(slots):
                self.line(f"column = (warp + part * {warps}) * {pack}")
                for k in transposed:
                    store = f"store_{self.vector_name(k, pack)}"
                    at, lines = f"begin + slot * {pitch} + column", self.lines_name(k)
                    self.line(f"{store}({self.tile_name(k)}, {at}, {lines}, {place})")
        self.line("barrier()")
        with self.open_words(words, at_first, whole):
            for k in transposed:
                load = f"load_{self.vector_name(k, pack)}"
                at = f"line * {pitch} + (quotient(line, {WARP}) + lane) * {pack}"
                self.line(f"{load}({self.tile_name(k)}, {at}, {self.words_name(k)}, 0)")
            with self.open(f"for slot in range({pack}):"):
                self.staged = {k: f"{self.words_name(k)}[slot]" for k in transposed}
                self.staged |= {
                    k: f"{self.tile_name(k)}[part * {pack} + slot]" for k in read
                }
                self.staged |= {k: f"{self.tile_name(k)}[slot]" for k in written}
                if self.uses_index(body, inner):
                    self.line(f"i{inner} = first + slot")
                for s in body:
                    self.emit(s, everywhere)
                self.staged = {}
            for k in written:
                self.store_vector(k, pack, at_first, "0")

    @contextmanager
    def open_words(
        self, words: int, variables: AxisIndices, whole: bool
    ) -> Generator[None]:
        """Open the loop over the ``words`` along the last axis that a thread has.

        ``variables`` are the indices of a word's first element, ``whole`` says that
        tiles divide the array.
        """
        across, warps = self.schedule.axis, self.schedule.threads // WARP
        with self.open(f"for part in unrolled({words}):"):
            self.line(f"line = warp + part * {warps}")
            self.line(f"i{across} = tile{across} + line")
            with self.open_if(self.inside(variables, whole)):
                yield

    def words_name(self, operand: int) -> str:
        """The name of the registers for a word of an operand from its tile."""
        return self.tile_name(operand).removesuffix("_tile") + "_words"
