"""CUDA's codegen target: nests as Python source that numba-cuda compiles.

One kernel is one function ``name(pointers, integers)``, run by every thread of every
block. Statements look as on a CPU; what is around them says which thread has which
elements, and how threads combine what they have.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.lowering.cuda.schedule import (
    Columns,
    Elementwise,
    Rows,
    Schedule,
    StagePlan,
    Transpose,
    choose,
    is_vector,
    plan_stages,
)
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.kernel_ir import Count, Load, Nest, Reduce, Statement, Store
from arrayfn.lowering.kernel_printer import (
    WIDTH,
    KernelPrinter,
    ScheduledKernel,
    wrapped,
)
from arrayfn.lowering.plan import Kernel, Parameter

_TILE = 32
_SMALL = 2**31
_RESERVED = frozenset(
    (
        *("thread", "lane", "warp", "part", "item", "items", "live", "first", "vector"),
        *(
            "vectors",
            "step",
            "start",
            "other",
            "column",
            "line",
            "row",
            "blocks",
            "tile",
        ),
        *("rest", "elements", "kernel"),
    )
)
"""Names of a kernel's own variables."""


def print_kernel(
    nest: Nest, name: str, schedule: Schedule | None = None
) -> ScheduledKernel:
    """The kernel of ``nest``; its ``items`` are the blocks to launch."""
    schedule = choose(nest) if schedule is None else schedule
    neutral = _CudaPrinter(nest, "kernel", (), False, schedule=schedule).print()
    printed = _CudaPrinter(nest, name, (), True, schedule=schedule).print()
    # Infix arithmetic reads the same for every dtype: the types are part of the key.
    signature = ", ".join(parameter.kind for parameter in neutral.parameters)
    kernel = Kernel(
        name=name,
        source=printed.source,
        key=f"{neutral.source}# {signature}\n",
        parameters=printed.parameters,
        reason=nest.reason,
        threads=schedule.threads,
    )
    integers = tuple(printed.integers.values())
    return ScheduledKernel(kernel, nest.operands, (), (), integers, printed.items, 1)


@dataclass
class _CudaPrinter(KernelPrinter):
    schedule: Schedule = field(default_factory=lambda: Elementwise(WARP, 1, True))
    device: set[str] = field(default_factory=set)

    def body(self) -> None:
        schedule = self.schedule
        if isinstance(schedule, Elementwise):
            self.elementwise_threads(schedule)
        elif isinstance(schedule, Transpose):
            self.transpose(schedule)
        elif isinstance(schedule, Rows):
            self.team_rows(schedule)
        else:
            self.warp_columns(schedule)

    # Text.

    def use_device(self, name: str) -> str:
        self.device.add(name)
        return name

    def name_of(self, value: object) -> str:
        name = super().name_of(value)  # type: ignore[arg-type]
        return f"{name}_" if name in _RESERVED else name

    def extent_of(self, axes: Sequence[int], name: str) -> str:
        """The number of indices of ``axes`` together."""
        if len(axes) == 1:
            return self.extent(axes[0])
        return self.integer(name, math.prod(self.nest.axes[k].extent for k in axes))

    def quotient(self, x: str, y: str, most: int) -> str:
        """The text of ``x // y`` for an ``x`` up to ``most``: divisions are dear."""
        if most < _SMALL:
            return f"{self.use_device('quotient')}({x}, {y})"
        return f"({x}) // {y}"

    def remainder(self, x: str, y: str, most: int) -> str:
        if most < _SMALL:
            return f"{self.use_device('remainder')}({x}, {y})"
        return f"({x}) % {y}"

    def decompose(self, text: str, axes: Sequence[int]) -> dict[int, str]:
        most = math.prod(self.nest.axes[k].extent for k in axes)
        variables = {axis: f"i{axis}" for axis in axes}
        if not axes:
            return variables
        if len(axes) > 1:
            self.line(f"rest = {text}")
            text = "rest"
        for axis in reversed(axes[1:]):
            n = self.extent(axis)
            self.line(f"i{axis} = {self.remainder('rest', n, most)}")
            if axis == axes[1]:
                text = self.quotient("rest", n, most)
            else:
                self.line(f"rest = {self.quotient('rest', n, most)}")
        self.line(f"i{axes[0]} = {text}")
        return variables

    def stored_name(self, dtype: DType) -> str:
        """The vocabulary's name of a dtype as it lies in memory."""
        if dtype == dtypes.bool_:
            return "u8"
        return "u16" if dtype in dtypes.HALVES else short_name(dtype)

    def registers(self, name: str, dtype: str, count: int) -> None:
        self.line(f"{name} = {self.use_device(f'registers_{dtype}')}({count})")

    def tile_name(self, operand: int) -> str:
        pointer = self.pointer(operand).removesuffix("_in").removesuffix("_out")
        return f"{pointer}_tile"

    # Vectors of neighbouring elements.

    def vectors(
        self, body: Iterable[Statement], kind: type[Load | Store], lanes: int
    ) -> list[int]:
        """The operands that ``body`` loads (or stores) as whole vectors."""
        return [
            s.operand for s in body if isinstance(s, kind) and self.is_whole(s, lanes)
        ]

    def is_whole(self, s: Load | Store, lanes: int) -> bool:
        """Whether ``s`` can be done for ``lanes`` neighbouring elements at once."""
        conditional = isinstance(s, Store) and s.where is not None
        return (
            s.level == "element"
            and not s.at
            and not conditional
            and is_vector(self.nest.operands[s.operand], lanes)
        )

    def vector_name(self, operand: int, lanes: int) -> str:
        return f"{self.stored_name(self.nest.operands[operand].dtype)}x{lanes}"

    def load_vector(
        self, operand: int, lanes: int, variables: dict[int, str], place: str
    ) -> None:
        function = self.use_device(f"load_{self.vector_name(operand, lanes)}")
        at = self.index(operand, variables)
        tile = self.tile_name(operand)
        self.line(f"{function}({self.pointer(operand)}, {at}, {tile}, {place})")

    def store_vector(
        self, operand: int, lanes: int, variables: dict[int, str], place: str
    ) -> None:
        function = self.use_device(f"store_{self.vector_name(operand, lanes)}")
        at = self.index(operand, variables)
        tile = self.tile_name(operand)
        self.line(f"{function}({self.pointer(operand)}, {at}, {tile}, {place})")

    def declare_tiles(self, operands: Iterable[int], count: int) -> None:
        for operand in operands:
            dtype = self.stored_name(self.nest.operands[operand].dtype)
            self.registers(self.tile_name(operand), dtype, count)

    def moves_along(self, body: Iterable[Statement], axis: int) -> bool:
        """Whether the index along ``axis`` itself appears in ``body``."""
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

    # Elementwise kernels.

    def elementwise_threads(self, schedule: Elementwise) -> None:
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

    # Transposition through shared memory.

    def transpose(self, schedule: Transpose) -> None:
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

    # Rows, each of a team of threads.

    def team_rows(self, schedule: Rows) -> None:
        nest, kept = self.nest, self.kept_axes
        rows = math.prod(nest.axes[k].extent for k in kept)
        per_block = schedule.threads // schedule.team
        self.items = -(-rows // per_block)
        thread = self.use_device("thread_index")
        self.live = ""
        item = f"{self.use_device('block_index')}()" if kept else ""
        if per_block > 1:
            team = schedule.team
            turn = f"{thread}()"
            if team > 1:
                rest = f"{self.use_device('remainder')}({thread}(), {team})"
                self.line(f"thread = {rest}")
                turn = f"{self.use_device('quotient')}({thread}(), {team})"
            item = f"{item} * {per_block} + {turn}" if kept else turn
        else:
            self.line(f"thread = {thread}()")
        if rows % per_block:
            self.live = "live"
            count = self.extent_of(kept, "rows") if kept else "1"
            self.line(f"item = {item}")
            self.line(f"live = item < {count}")
            item = f"{self.use('min_i64')}(item, {count} - 1)"
        variables = self.decompose(item, kept)
        self.hoist_offsets(variables)
        self.stages(schedule, variables, "thread")

    def stages(
        self, schedule: Rows | Columns, variables: dict[int, str], member: str
    ) -> None:
        """All stages of a row (or column) that is shared by a team.

        ``member`` names the variable that tells the threads of a team apart.
        """
        nest = self.nest
        plan = plan_stages(nest, keep=schedule.whole)
        for stage in range(max(nest.stages, self.last_outer_stage() + 1)):
            self.outer_stage(stage, variables, f"{member} == 0", schedule.team > 1)
            if stage < nest.stages and plan.bodies[stage]:
                self.row_stage(schedule, plan, stage, variables, member)
                if isinstance(schedule, Rows):
                    self.team_tree(schedule, self.reduces(stage))
                else:
                    self.column_tree(schedule, self.reduces(stage))

    def outer_stage(
        self, stage: int, variables: dict[int, str], leader: str, shared: bool
    ) -> None:
        """Statements once a row (or column), which one thread stores."""
        for s in self.outer_statements(stage):
            conditions = [leader] * shared + [self.live] * bool(self.live)
            if isinstance(s, Store) and conditions:
                self.open(f"if {' and '.join(conditions)}:")
                self.emit(s, variables)
                self.close()
            else:
                self.emit(s, variables)

    def identities(self, stage: int) -> None:
        for s in self.reduces(stage):
            self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")

    def row_stage(
        self,
        schedule: Rows | Columns,
        plan: StagePlan,
        stage: int,
        variables: dict[int, str],
        member: str,
    ) -> None:
        body, lanes = plan.bodies[stage], schedule.lanes
        staged = [
            s for s in body if isinstance(s, Load) and self.is_staged_load(s, schedule)
        ]
        loads = [s.operand for s in staged]
        fresh = [
            s.operand
            for s in staged
            if not schedule.whole or plan.first[s.result.name] == stage
        ]
        stores = self.vectors(body, Store, lanes)
        self.declare_tiles(fresh, lanes * schedule.tiles)
        self.declare_tiles((k for k in stores if k not in loads), lanes)
        self.declare_rows(schedule, plan, stage)
        self.identities(stage)
        loop = self.open_loop(schedule)
        if fresh:
            at, depth = self.open_row(schedule, variables, member)
            for operand in fresh:
                self.load_tile(schedule, operand, at)
            self.close_all(depth)
        at, depth = self.open_row(schedule, variables, member)
        place = self.slot(schedule, "lane")
        # A result may be written over an operand: then they share a tile.
        self.staged = {k: f"{self.tile_name(k)}[lane]" for k in stores}
        self.staged |= {k: f"{self.tile_name(k)}[{place}]" for k in loads}
        within = at
        if lanes > 1:
            inner = self.reduced_axes[-1]
            self.open(f"for lane in range({lanes}):")
            if self.moves_along(body, inner):
                self.line(f"i{inner} = {at[inner]} + lane")
            within = {**at, inner: f"i{inner}"}
        for s in body:
            self.row_statement(schedule, s, plan, stage, within, place)
        self.staged = {}
        if lanes > 1:
            self.close()
        if stores and self.live:
            self.open(f"if {self.live}:")
            depth += 1
        for operand in stores:
            tile = self.slot(schedule, "") if operand in loads else "0"
            self.store_vector(operand, lanes, at, tile)
        self.close_all(depth + loop)

    def store_element(self, s: Store, variables: dict[int, str]) -> None:
        """Store to memory, even what was loaded into registers from there."""
        staged = self.staged.pop(s.operand, None)
        if self.live:
            self.open(f"if {self.live}:")
        self.emit(s, variables)
        if self.live:
            self.close()
        if staged is not None:
            self.staged[s.operand] = staged

    def load_tile(
        self, schedule: Rows | Columns, operand: int, at: dict[int, str]
    ) -> None:
        place = self.slot(schedule, "")
        if schedule.lanes > 1:
            self.load_vector(operand, schedule.lanes, at, place)
        else:
            text = self.element_at(operand, at)
            self.line(f"{self.tile_name(operand)}[{place}] = {text}")

    def declare_rows(
        self, schedule: Rows | Columns, plan: StagePlan, stage: int
    ) -> None:
        """Registers for the values that this stage makes and a later one reads."""
        for s in plan.kept_statements(self.nest):
            if plan.first[s.result.name] == stage and not self.is_staged_load(
                s, schedule
            ):
                name = f"{self.name_of(s.result)}_row"
                dtype = short_name(s.result.dtype)
                self.registers(name, dtype, schedule.lanes * schedule.tiles)

    def is_staged_load(self, s: Statement, schedule: Rows | Columns) -> bool:
        """Whether ``s`` is a load whose tile is all the registers its row needs."""
        if not isinstance(s, Load) or s.at:
            return False
        return schedule.lanes == 1 or self.is_whole(s, schedule.lanes)

    def row_statement(
        self,
        schedule: Rows | Columns,
        s: Statement,
        plan: StagePlan,
        stage: int,
        variables: dict[int, str],
        place: str,
    ) -> None:
        if isinstance(s, Reduce):
            self.accumulate(s)
            return
        if isinstance(s, Store):
            if self.is_whole(s, schedule.lanes):
                self.emit(s, variables)
            else:
                self.store_element(s, variables)
            return
        name = s.result.name
        if name in plan.kept and not self.is_staged_load(s, schedule):
            row = f"{self.name_of(s.result)}_row[{place}]"
            if plan.first[name] < stage:
                self.line(f"{self.name_of(s.result)} = {row}")
                return
            self.emit(s, variables)
            self.line(f"{row} = {self.name_of(s.result)}")
            return
        self.emit(s, variables)

    def slot(self, schedule: Rows | Columns, lane: str) -> str:
        """Where in a thread's registers of the row the current element lies."""
        lanes = schedule.lanes
        if schedule.tiles == 1:
            return lane if lane and lanes > 1 else "0"
        if lanes == 1:
            return "vector"
        return f"vector * {lanes} + {lane}" if lane else f"vector * {lanes}"

    def open_loop(self, schedule: Rows | Columns) -> int:
        """Open the loop along a row of which threads cannot have their part at once."""
        if schedule.whole or not self.reduced_axes:
            return 0
        n = self.extent_of(self.reduced_axes, "elements")
        step = schedule.team * schedule.lanes * schedule.tiles
        self.open(f"for start in range(0, {n}, {step}):")
        return 1

    def open_row(
        self, schedule: Rows | Columns, variables: dict[int, str], member: str
    ) -> tuple[dict[int, str], int]:
        """Open the loop over a thread's vectors of the row: indices at their start."""
        reduced, lanes, team = self.reduced_axes, schedule.lanes, schedule.team
        if not reduced:
            return dict(variables), 0
        length = math.prod(self.nest.axes[k].extent for k in reduced)
        n = self.extent_of(reduced, "elements")
        name = "first" if lanes > 1 or len(reduced) > 1 else f"i{reduced[0]}"
        text, depth = member if team > 1 else "0", 0
        if schedule.tiles > 1:
            self.open(f"for vector in range({schedule.tiles}):")
            depth += 1
            text = f"vector * {team} + {member}" if team > 1 else "vector"
            text = f"({text})" if lanes > 1 and team > 1 else text
        text = f"{text} * {lanes}" if lanes > 1 else text
        self.line(f"{name} = {text}" if schedule.whole else f"{name} = start + {text}")
        if length % (team * lanes * schedule.tiles):
            self.open(f"if {name} < {n}:")
            depth += 1
        if len(reduced) == 1:
            return {**variables, reduced[0]: name}, depth
        return {**variables, **self.decompose("first", reduced)}, depth

    def close_all(self, depth: int) -> None:
        for _ in range(depth):
            self.close()

    # Trees.

    def shuffles(self, reduces: Sequence[Reduce], team: int) -> None:
        """Each of ``team`` neighbouring lanes gets the combination of all."""
        if team == 1 or not reduces:
            return
        self.open(f"for step in range({team.bit_length() - 1}):")
        for s in reduces:
            name = self.name_of(s.result)
            shuffle = self.use_device(f"shuffle_xor_{short_name(s.result.dtype)}")
            other = f"{shuffle}({name}, {team // 2} >> step)"
            self.line(f"{name} = {self.use(s.function)}({name}, {other})")
        self.close()

    def team_tree(self, schedule: Rows, reduces: Sequence[Reduce]) -> None:
        """Combine what the threads of a row have: lanes, then warps."""
        self.shuffles(reduces, min(schedule.team, WARP))
        warps = schedule.team // WARP
        if warps <= 1 or not reduces:
            return
        for s in reduces:
            self.shared_array(s, "warps", warps)
        self.open(f"if {self.use_device('remainder')}(thread, {WARP}) == 0:")
        warp = f"{self.use_device('quotient')}(thread, {WARP})"
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name}_warps[{warp}] = {name}")
        self.close()
        self.line(f"{self.use_device('barrier')}()")
        for s in reduces:
            name = self.name_of(s.result)
            place = f"{self.use_device('remainder')}(thread, {warps})"
            self.line(f"{name} = {name}_warps[{place}]")
        self.shuffles(reduces, warps)

    def shared_array(self, s: Reduce, suffix: str, count: int) -> None:
        shared = self.use_device(f"shared_{short_name(s.result.dtype)}")
        self.line(f"{self.name_of(s.result)}_{suffix} = {shared}({count})")

    # Columns, 32 of a block.

    def warp_columns(self, schedule: Columns) -> None:
        nest, inner = self.nest, len(self.nest.axes) - 1
        outer = [k for k in self.kept_axes if k != inner]
        width = nest.axes[inner].extent
        blocks = -(-width // WARP)
        self.items = math.prod(nest.axes[k].extent for k in outer) * blocks
        n = self.extent(inner)
        thread = self.use_device("thread_index")
        block = f"{self.use_device('block_index')}()"
        self.line(f"lane = {self.use_device('remainder')}({thread}(), {WARP})")
        self.line(f"part = {self.use_device('quotient')}({thread}(), {WARP})")
        if outer:
            self.line(f"blocks = ({n} + {WARP - 1}) // {WARP}")
            start = self.remainder(block, "blocks", self.items)
            variables = self.decompose(
                self.quotient(block, "blocks", self.items), outer
            )
        else:
            start, variables = block, {}
        self.live = "live" if width % WARP else ""
        if self.live:
            self.line(f"column = {start} * {WARP} + lane")
            self.line(f"live = column < {n}")
            self.line(f"i{inner} = {self.use('min_i64')}(column, {n} - 1)")
        else:
            self.line(f"i{inner} = {start} * {WARP} + lane")
        variables[inner] = f"i{inner}"
        self.hoist_offsets(variables)
        self.stages(schedule, variables, "part")

    def column_tree(self, schedule: Columns, reduces: Sequence[Reduce]) -> None:
        """Combine what the warps have of each column, in order."""
        if schedule.team == 1 or not reduces:
            return
        for s in reduces:
            self.shared_array(s, "parts", WARP * schedule.team)
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name}_parts[part * {WARP} + lane] = {name}")
        self.line(f"{self.use_device('barrier')}()")
        for s in reduces:
            name = self.name_of(s.result)
            self.line(f"{name} = {name}_parts[lane]")
        self.open(f"for other in range(1, {schedule.team}):")
        for s in reduces:
            name = self.name_of(s.result)
            term = f"{name}_parts[other * {WARP} + lane]"
            self.line(f"{name} = {self.use(s.function)}({name}, {term})")
        self.close()

    # The function around it.

    def finish(self) -> None:
        pointers = [
            Parameter(self.pointer(k), short_name(o.dtype) + "*")
            for k, o in enumerate(self.nest.operands)
        ]
        integers = [Parameter(i.name, "i64") for i in self.integers.values()]
        self.parameters = (*pointers, *integers)
        head = [self.title()] if self.readable else []
        for room, names in (
            ("cuda.vocabulary", self.device),
            ("scalars", self.imports),
        ):
            if names:
                before = f"from arrayfn.lowering.{room} import "
                head += wrapped(before, ", ".join(sorted(names)), "")
        head += ["", ""]
        arguments = ", ".join(p.name for p in self.parameters)
        head += wrapped(f"def {self.name}(", arguments, "):")
        if self.readable:
            head += textwrap.wrap(
                f'"""{self.signature()}"""',
                WIDTH,
                initial_indent="    ",
                subsequent_indent="    ",
            )
        self.source = "\n".join([*head, *self.constant_lines, *self.lines]) + "\n"

    def signature(self) -> str:
        text = super().signature().removesuffix("Items begin to end.")
        return f"{text}{self.schedule.threads} threads a block."
