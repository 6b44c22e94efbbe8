"""Kernels of running values: a block goes along a row, tile by tile.

Each thread has neighbouring elements of a tile. It scans them, the threads of a warp
and the warps of the block scan what they have come to, and the tiles' total is carried
on. The order follows from the shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.printer import CudaPrinter
from arrayfn.lowering.cuda.schedule import Scan
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Load, Reduce, Store


@dataclass
class ScanPrinter(CudaPrinter[Scan]):
    """One reduction, stored as it goes along the innermost axis."""

    def body(self) -> None:
        nest, schedule = self.nest, self.schedule
        (reduce,) = (s for s in nest.statements if isinstance(s, Reduce))
        (store,) = (s for s in nest.statements if isinstance(s, Store))
        inner = len(nest.axes) - 1
        kept = list(range(inner))
        self.items = 1
        for axis in kept:
            self.items *= nest.axes[axis].extent
        self.line(f"thread = {self.use_device('thread_index')}()")
        item = f"{self.use_device('block_index')}()" if kept else ""
        variables = self.decompose(item, kept)
        self.hoist_offsets(variables)
        total, dtype = self.name_of(reduce.result), short_name(reduce.result.dtype)
        identity = self.constant(reduce.identity)
        combine = self.use(reduce.function)
        n, each = self.extent(inner), schedule.each
        self.registers(f"{total}_scanned", dtype, each)
        self.shared_array(reduce, "warps", schedule.threads // WARP)
        self.line(f"{total}_carried = {identity}")
        self.open(f"for start in range(0, {n}, {schedule.threads * each}):")
        self.line(f"first = start + thread * {each}")
        loads = self.vectors(nest.statements, Load, schedule.lanes)
        stores = self.vectors(nest.statements, Store, schedule.lanes)
        self.declare_tiles(dict.fromkeys((*loads, *stores)), each)
        for operand in loads:
            self.whole(operand, variables, load=True)
        self.staged = {k: f"{self.tile_name(k)}[slot]" for k in (*loads, *stores)}
        self.line(f"{total} = {identity}")
        self.open(f"for slot in range({each}):")
        self.line(f"i{inner} = first + slot")
        self.open(f"if i{inner} < {n}:")
        for s in nest.statements:
            if isinstance(s, Reduce):
                self.accumulate(s)
            elif not isinstance(s, Store):
                self.emit(s, {**variables, inner: f"i{inner}"})
        self.line(f"{total}_scanned[slot] = {total}")
        self.close()
        self.close()
        self.before(total, dtype, combine, identity)
        self.open(f"for slot in range({each}):")
        self.line(f"i{inner} = first + slot")
        self.open(f"if i{inner} < {n}:")
        self.line(f"{total} = {combine}({total}_before, {total}_scanned[slot])")
        self.emit(store, {**variables, inner: f"i{inner}"})
        self.close()
        self.close()
        self.staged = {}
        for operand in stores:
            self.whole(operand, variables, load=False)
        self.line(f"{total}_carried = {combine}({total}_carried, {total}_sum)")
        self.line(f"{self.use_device('barrier')}()")
        self.close()

    def whole(self, operand: int, variables: dict[int, str], *, load: bool) -> None:
        """Load or store a thread's elements as vectors, those that there are."""
        inner, schedule = len(self.nest.axes) - 1, self.schedule
        self.open(f"for vector in range({schedule.each // schedule.lanes}):")
        self.line(f"place = first + vector * {schedule.lanes}")
        self.open(f"if place < {self.extent(inner)}:")
        at = {**variables, inner: "place"}
        move = self.load_vector if load else self.store_vector
        move(operand, schedule.lanes, at, f"vector * {schedule.lanes}")
        self.close()
        self.close()

    def before(self, total: str, dtype: str, combine: str, identity: str) -> None:
        """What comes before a thread's elements, and the sum of the whole tile."""
        schedule = self.schedule
        warps = schedule.threads // WARP
        up = self.use_device(f"shuffle_up_{dtype}")
        remainder, quotient = self.use_device("remainder"), self.use_device("quotient")
        self.line(f"lane = {remainder}(thread, {WARP})")
        self.line(f"warp = {quotient}(thread, {WARP})")
        self.open(f"for step in range({WARP.bit_length() - 1}):")
        self.line(f"{total}_other = {up}({total}, 1 << step)")
        self.open("if lane >= 1 << step:")
        self.line(f"{total} = {combine}({total}_other, {total})")
        self.close()
        self.close()
        self.open(f"if lane == {WARP - 1}:")
        self.line(f"{total}_warps[warp] = {total}")
        self.close()
        self.line(f"{total}_other = {up}({total}, 1)")
        self.line(f"{self.use_device('barrier')}()")
        self.line(f"{total}_before = {total}_carried")
        self.line(f"{total}_sum = {identity}")
        self.open(f"for other in range({warps}):")
        self.open("if other == warp:")
        self.line(f"{total}_before = {combine}({total}_carried, {total}_sum)")
        self.close()
        self.line(f"{total}_sum = {combine}({total}_sum, {total}_warps[other])")
        self.close()
        self.open("if lane > 0:")
        self.line(f"{total}_before = {combine}({total}_before, {total}_other)")
        self.close()
