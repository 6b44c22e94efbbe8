"""Elementwise kernels: a thread has neighbouring elements of the innermost axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arrayfn.lowering.cuda.printer import CudaPrinter
from arrayfn.lowering.cuda.schedule import Elementwise
from arrayfn.lowering.kernel_ir import Load, Statement, Store


@dataclass
class ElementwisePrinter(CudaPrinter[Elementwise]):
    """A thread loads a vector, computes its lanes, and stores a vector."""

    def body(self) -> None:
        schedule = self.schedule
        axes, body = self.nest.axes, self.nest.statements
        thread = self.use_device("thread_index")
        if not axes:
            self.open(f"if {thread}() == 0:")
            for s in body:
                self.emit(s, {})
            self.close()
            return
        inner, lanes = len(axes) - 1, schedule.lanes
        outer = list(range(inner))
        vectors = -(-axes[inner].extent // lanes)
        total = vectors * math.prod(axes[k].extent for k in outer)
        self.items = -(-total // schedule.threads)
        block = self.use_device("block_index")
        position = f"{block}() * {schedule.threads} + {thread}()"
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
            end = first if schedule.whole else f"{first} + {lanes - 1}"
            self.open(f"if {end} < {n}:")
        self.element_vector(body, variables, inner, lanes)
        self.close()
        if not schedule.whole:
            self.open("else:")
            self.open(f"for i{inner} in range(first, {n}):")
            for s in body:
                self.emit(s, {inner: f"i{inner}"})
            self.close()
            self.close()

    def element_vector(
        self,
        body: Sequence[Statement],
        variables: dict[int, str],
        inner: int,
        lanes: int,
    ) -> None:
        """``body`` for the ``lanes`` elements from ``first`` on."""
        if lanes == 1:
            for s in body:
                self.emit(s, {**variables, inner: f"i{inner}"})
            return
        loads = self.vectors(body, Load, lanes)
        stores = self.vectors(body, Store, lanes)
        at_first = {**variables, inner: "first"}
        self.declare_tiles(dict.fromkeys((*loads, *stores)), lanes)
        for operand in loads:
            self.load_vector(operand, lanes, at_first, "0")
        self.staged = {k: f"{self.tile_name(k)}[lane]" for k in (*loads, *stores)}
        self.lanes(body, variables, inner, lanes)
        self.staged = {}
        for operand in stores:
            self.store_vector(operand, lanes, at_first, "0")

    def lanes(
        self,
        body: Iterable[Statement],
        variables: dict[int, str],
        inner: int,
        lanes: int,
    ) -> None:
        """The loop over the elements of a vector whose tiles are staged."""
        body = list(body)
        self.open(f"for lane in range({lanes}):")
        if self.moves_along(body, inner):
            self.line(f"i{inner} = first + lane")
        for s in body:
            self.emit(s, {**variables, inner: f"i{inner}"})
        self.close()
