"""Kernels whose operands lie across each other: tiles go through shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cuda.printer import CudaPrinter
from arrayfn.lowering.cuda.schedule import Transpose
from arrayfn.lowering.kernel_ir import Load

_TILE: Final = 32


@dataclass
class TransposePrinter(CudaPrinter[Transpose]):
    """A block has a tile of 32 by 32 elements."""

    def body(self) -> None:
        schedule = self.schedule
        nest, body = self.nest, self.nest.statements
        across, inner = schedule.axis, len(nest.axes) - 1
        outer = [k for k in range(inner) if k != across]
        n_across, n_inner = self.extent(across), self.extent(inner)
        blocks = [-(-nest.axes[k].extent // _TILE) for k in (across, inner)]
        self.items = math.prod(blocks) * math.prod(nest.axes[k].extent for k in outer)
        thread = self.use_device("thread_index")
        self.line(f"lane = {self.use_device('remainder')}({thread}(), {_TILE})")
        self.line(f"warp = {self.use_device('quotient')}({thread}(), {_TILE})")
        self.line(f"rest = {self.use_device('block_index')}()")
        tiles = []
        for axis, n in ((inner, n_inner), (across, n_across)):
            name = f"tile{axis}"
            self.line(f"blocks = ({n} + {_TILE - 1}) // {_TILE}")
            text = self.remainder("rest", "blocks", self.items)
            self.line(f"{name} = {text} * {_TILE}")
            self.line(f"rest = {self.quotient('rest', 'blocks', self.items)}")
            tiles.append(name)
        variables = self.decompose("rest", outer)
        self.hoist_offsets(variables)
        turned = [
            s.operand
            for s in body
            if isinstance(s, Load)
            and not nest.operands[s.operand].written
            and nest.operands[s.operand].strides[across] == 1
            and abs(nest.operands[s.operand].strides[inner]) > 1
        ]
        steady = [
            s.operand
            for s in body
            if isinstance(s, Load)
            and not s.at
            and not nest.operands[s.operand].written
            and s.operand not in turned
        ]
        turned, steady = list(dict.fromkeys(turned)), list(dict.fromkeys(steady))
        names = {k: self.tile_name(k) for k in (*turned, *steady)}
        lines = {k: names[k].removesuffix("_tile") + "_lines" for k in turned}
        count = _TILE * _TILE // schedule.threads
        for k in turned:
            dtype = self.stored_name(nest.operands[k].dtype)
            shared = self.use_device(f"shared_{dtype}")
            self.line(f"{names[k]} = {shared}({_TILE * (_TILE + 1)})")
            self.registers(lines[k], dtype, count)
        self.declare_tiles(steady, count)
        everywhere = {**variables, across: f"i{across}", inner: f"i{inner}"}
        whole = not any(nest.axes[k].extent % _TILE for k in (across, inner))
        inside = "" if whole else f"if i{across} < {n_across} and i{inner} < {n_inner}:"

        def open_lines(first: str, second: str) -> int:
            self.open(f"for part in range({count}):")
            self.line(f"line = warp + part * {schedule.threads // _TILE}")
            self.line(f"i{across} = {tiles[1]} + {first}")
            self.line(f"i{inner} = {tiles[0]} + {second}")
            if inside:
                self.open(inside)
            return 1 + bool(inside)

        # All loads are on their way before the first value is waited for.
        depth = open_lines("lane", "line")
        for k in turned:
            self.line(f"{lines[k]}[part] = {self.element_at(k, everywhere)}")
        self.close_all(depth)
        if steady:
            depth = open_lines("line", "lane")
            for k in steady:
                self.line(f"{names[k]}[part] = {self.element_at(k, everywhere)}")
            self.close_all(depth)
        self.open(f"for part in range({count}):")
        self.line(f"line = warp + part * {schedule.threads // _TILE}")
        for k in turned:
            self.line(f"{names[k]}[line * {_TILE + 1} + lane] = {lines[k]}[part]")
        self.close()
        self.line(f"{self.use_device('barrier')}()")
        depth = open_lines("line", "lane")
        self.staged = {k: f"{names[k]}[lane * {_TILE + 1} + line]" for k in turned}
        self.staged |= {k: f"{names[k]}[part]" for k in steady}
        for s in body:
            self.emit(s, everywhere)
        self.staged = {}
        self.close_all(depth)
