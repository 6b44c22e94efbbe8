"""Kernels whose innermost axis is reduced: an item is a row, or a chunk of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from arrayfn import dtypes
from arrayfn.lowering.cpu.schedule import chunk_size, grain_of
from arrayfn.lowering.cpu.stages import StagedPrinter


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
        self.hoist_offsets(variables)
        for stage in range(max(self.nest.stages, self.last_outer_stage() + 1)):
            for s in self.outer_statements(stage):
                self.emit(s, variables)
            if stage >= self.nest.stages or not self.stage_bodies[stage]:
                continue
            for s in self.reduces(stage):
                self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")
            inner = dict(variables)
            for axis in reduced:
                self.open(f"for i{axis} in range({self.extent(axis)}):")
                inner[axis] = f"i{axis}"
            self.stage_loop_body(stage, inner, self.row_index(reduced))
            for _ in reduced:
                self.close()
        self.close()

    def row_index(self, axes: Sequence[int]) -> str:
        text = ""
        for axis in axes:
            text = (
                f"i{axis}" if not text else f"({text}) * {self.extent(axis)} + i{axis}"
            )
        return text or "0"


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
            value = self.name_of(partial.reduce.result)
            if partial.reduce.result.dtype == dtypes.bool_:
                value = self.narrow(dtypes.bool_, value)
            self.line(f"{self.partial_name(k)}[item] = {value}")
        self.close()
