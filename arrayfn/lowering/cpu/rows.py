"""Kernels whose innermost axis is reduced: an item is a row, or a chunk of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from arrayfn.lowering.cpu.schedule import CPU, chunk_size, grain_of
from arrayfn.lowering.cpu.stages import StagedPrinter
from arrayfn.lowering.kernel_ir import Compute, Reduce

STRIP: Final = 256  # elements that are computed while as many are fetched


@dataclass
class RowsPrinter(StagedPrinter):
    """An item is one index of the kept axes, whose row is passed over in stages."""

    def body(self) -> None:
        kept, reduced = self.kept_axes, self.reduced_axes
        length = math.prod(self.nest.axes[k].extent for k in reduced)
        self.plan_stages()
        self.keep_rows(length)
        self.items = math.prod(self.nest.axes[k].extent for k in kept)
        self.grain = grain_of(self.nest, length)
        if len(kept) == 1:
            self.open(f"for i{kept[0]} in range(begin, end):")
            variables = {kept[0]: f"i{kept[0]}"}
        else:
            self.open("for item in range(begin, end):")
            variables = self.decompose("item", kept)
        self.row(variables)
        self.close()

    def row(self, variables: dict[int, str]) -> None:
        """All stages of the row at ``variables`` of the kept axes."""
        reduced = self.reduced_axes
        self.hoist_offsets(variables)
        busiest = self.busiest_stage()
        for stage in range(max(self.nest.stages, self.last_outer_stage() + 1)):
            for s in self.outer_statements(stage):
                self.emit(s, variables)
            if stage >= self.nest.stages or not self.stage_bodies[stage]:
                continue
            for s in self.reduces(stage):
                self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")
            inner = dict(variables)
            bounds = [self.extent(axis) for axis in reduced]
            if stage == busiest:
                bounds = [self.open_strips()]
            for axis, bound in zip(reduced, bounds, strict=True):
                self.open(f"for i{axis} in range({bound}):")
                inner[axis] = f"i{axis}"
            self.stage_loop_body(stage, inner, self.row_index(reduced))
            for _ in range(len(reduced) + (stage == busiest)):
                self.close()

    def busiest_stage(self) -> int | None:
        """The stage during which the next row is fetched: the one that computes most.

        The first stage waits for memory while later ones compute on what is near; so
        these ask for what the first will need. None if there is nothing to ask for.
        """
        if len(self.reduced_axes) != 1 or not self.kept_axes or self.nest.stages == 1:
            return None
        if not self.rows_fetched():
            return None
        return max(range(1, self.nest.stages), key=self.cost_of_stage)

    def cost_of_stage(self, stage: int) -> int:
        """What the stage computes, without what earlier stages keep for it."""
        return sum(
            s.cost
            for s in self.stage_bodies[stage]
            if isinstance(s, Compute)
            and (s.result.name not in self.kept or self.home[s.result.name] == stage)
        )

    def rows_fetched(self) -> list[int]:
        """The operands read along their rows, another for each item."""
        (axis,), last = self.reduced_axes, self.kept_axes[-1]
        return [
            k
            for k, operand in enumerate(self.nest.operands)
            if not operand.written
            and operand.strides[axis] == 1
            and operand.strides[last]
        ]

    def open_strips(self) -> str:
        """Open a loop over strips of the row; the bounds of the loop inside it."""
        (axis,), last = self.reduced_axes, self.kept_axes[-1]
        n, least = self.extent(axis), self.use("min_i64")
        self.open(f"for near in range(0, {n}, {STRIP}):")
        for k in self.rows_fetched():
            row = self.offsets.get(k, "0")
            place = f"{row} + {self.stride(k, last)} + near"
            self.line(
                f"{self.use('prefetch_row')}({self.pointer(k)}, {place}, {STRIP})"
            )
        return f"near, {least}(near + {STRIP}, {n})"

    def row_index(self, axes: Sequence[int]) -> str:
        text = ""
        for axis in axes:
            text = (
                f"i{axis}" if not text else f"({text}) * {self.extent(axis)} + i{axis}"
            )
        return text or "0"


@dataclass
class RowTotalsPrinter(RowsPrinter):
    """An item is a chunk of rows, whose elements are added up across as well."""

    def body(self) -> None:
        (kept,), (reduced,) = self.kept_axes, self.reduced_axes
        rows, length = self.nest.axes[kept].extent, self.nest.axes[reduced].extent
        self.plan_stages()
        self.keep_rows(length)
        size = chunk_size(rows, min(CPU.column_block, max(1, length)))
        self.items = -(-rows // size)
        self.grain = grain_of(self.nest, size * length)
        chunk, n = self.integer("chunk", size), self.extent(reduced)
        self.open("for item in range(begin, end):")
        self.line(f"first = item * {chunk}")
        last = f"{self.use('min_i64')}(first + {chunk}, {self.extent(kept)})"
        self.line(f"last = {last}")
        self.open(f"for i{reduced} in range({n}):")
        for k, partial in enumerate(self.partials):
            identity = self.constant(partial.reduce.identity)
            self.line(f"{self.total(k)} = {self.narrow_partial(partial, identity)}")
        self.close()
        self.open(f"for i{kept} in range(first, last):")
        self.row({kept: f"i{kept}"})
        self.close()
        self.close()

    def total(self, k: int) -> str:
        (reduced,) = self.reduced_axes
        return f"{self.partial_name(k)}[item * {self.extent(reduced)} + i{reduced}]"

    def accumulate(self, s: Reduce) -> None:
        if not s.across:
            super().accumulate(s)
            return
        names = [p.reduce.result.name for p in self.partials]
        k = names.index(s.result.name)
        place, partial = self.total(k), self.partials[k]
        have = self.widen_partial(partial, place)
        total = f"{self.use(s.function)}({have}, {self.scalar(s.argument)})"
        self.line(f"{place} = {self.narrow_partial(partial, total)}", s.source)


@dataclass
class PartialRowsPrinter(StagedPrinter):
    """Every axis is reduced: an item is a chunk of the first."""

    def body(self) -> None:
        """Every axis is reduced: an item is a chunk of the first."""
        reduced = self.reduced_axes
        first, inner_axes = reduced[0], reduced[1:]
        inner = math.prod(self.nest.axes[k].extent for k in inner_axes)
        size = chunk_size(self.nest.axes[first].extent, inner)
        self.plan_stages()
        self.items = -(-self.nest.axes[first].extent // size)
        self.grain = grain_of(self.nest, size * inner)
        name = self.integer("chunk", size)
        self.open("for item in range(begin, end):")
        self.line(f"start = item * {name}")
        self.line(f"stop = {self.use('min_i64')}(start + {name}, {self.extent(first)})")
        for s in self.outer_statements(0):
            self.emit(s, {})
        for s in self.reduces(0):
            self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")
        variables = {}
        self.open(f"for i{first} in range(start, stop):")
        variables[first] = f"i{first}"
        for axis in inner_axes:
            self.open(f"for i{axis} in range({self.extent(axis)}):")
            variables[axis] = f"i{axis}"
        self.stage_loop_body(0, variables, "0")
        for _ in reduced:
            self.close()
        for k, partial in enumerate(self.partials):
            value = self.narrow_partial(partial, self.name_of(partial.reduce.result))
            self.line(f"{self.partial_name(k)}[item] = {value}")
        self.close()
