"""Kernels of stages: passes over rows (or columns), shared by a group of threads."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.merges import Merge
from arrayfn.lowering.cuda.partial_results import PartialResultsPrinter
from arrayfn.lowering.cuda.schedule import Columns, Pipeline, Rows
from arrayfn.lowering.cuda.stage_plan import StagePlan, late_loads, plan_stages
from arrayfn.lowering.kernel_ir import (
    Load,
    Reduce,
    Statement,
    Store,
    Value,
)

T = TypeVar("T", Rows, Pipeline, Columns)


@dataclass(frozen=True)
class _Vectors:
    """Operands of a stage, of which a thread has a vector at a time.

    Those ``beside`` come from shared memory, ``late`` ones from the GPU's unless they
    have been ``copied``; the others that it ``loads`` are in registers.
    """

    loads: Sequence[int]
    beside: Sequence[int]
    late: Sequence[int]
    copied: Sequence[int]
    stores: Sequence[int]


@dataclass
class StagedPrinter(PartialResultsPrinter[T]):
    """Prints the stages; ``tree`` combines what the threads of a group have."""

    variables: dict[int, str] = field(default_factory=dict[int, str])
    again: str = ""  # what stands for the thread where vectors are computed once more
    merges: tuple[Merge, ...] = ()
    factors: dict[str, str] = field(default_factory=dict[str, str])
    """What moves kept values to a number of the row from one of a part."""

    @abstractmethod
    def tree(self, reduces: Sequence[Reduce]) -> None:
        """Combine what the threads of a group have of each reduction."""

    def stages(self, variables: dict[int, str], member: str) -> None:
        """All stages of a row (or column) that is shared by a group.

        ``variables`` are the indices along kept axes; ``member`` names the variable
        that is a thread's number in its group.
        """
        self.variables, self.member = variables, member
        for stage in range(max(self.nest.stages, self.last_outer_stage() + 1)):
            self.stage(stage)

    @cached_property
    def plan(self) -> StagePlan:
        """What each stage computes, and what is kept in between."""
        return plan_stages(self.nest, keep=self.schedule.whole, merges=self.merges)

    def stage(self, stage: int) -> None:
        """One stage of a row: what is done once, the elements, the tree."""
        self.outer_stage(stage)
        if self.has_elements(stage):
            self.row_stage(stage)
            self.tree(self.reduces(stage))

    def has_elements(self, stage: int) -> bool:
        """Whether a stage goes along the row."""
        return stage < self.nest.stages and bool(self.plan.bodies[stage])

    def outer_stage(self, stage: int) -> None:
        """Statements once a row (or column), which one thread stores."""
        leader = [f"{self.member} == 0"] if self.schedule.threads_per_row > 1 else []
        for s in self.outer_statements(stage):
            conditions = leader + [self.live] * bool(self.live)
            if isinstance(s, Store) and conditions:
                with self.open(f"if {' and '.join(conditions)}:"):
                    self.emit(s, self.variables)
            else:
                self.emit(s, self.variables)

    def row_stage(self, stage: int) -> None:
        schedule = self.schedule
        body, lanes = self.plan.bodies[stage], schedule.lanes
        staged = [s for s in body if isinstance(s, Load) and self.is_staged_load(s)]
        loads = [s.operand for s in staged]
        fresh, late = self.fresh_and_late(stage)
        if lanes == 1:
            loads, late = [k for k in loads if k not in late], []
        copied = [k for k in late if k in self.copied]
        beside = [k for k in loads if self.is_at_hand(k)]
        self.declare_tiles(beside, lanes)
        self.declare_tiles(late, lanes)
        stores = self.vectors(body, Store, lanes)
        self.declare_tiles(fresh, lanes * self.own_tiles)
        self.declare_wide((k for k in stores if k not in loads), lanes)
        self.declare_rows(stage)
        self.identities(stage)
        divided = self.divided(body, stores, loads)
        for name in divided:
            self.line(f"{divided[name]} = inverse_f32({name})")
        self.invert_halves(body)
        with self.open_loop():
            if fresh:
                with self.open_row() as at:
                    for operand in fresh:
                        self.load_tile(operand, at)
            if fresh and schedule.aside:
                # After what is in registers, which is needed first.
                self.set_aside(fresh)
            if stage == 0:
                self.loads_are_begun()
                self.copy_early()
            if beside:
                self.await_beside()
            vectors = _Vectors(loads, beside, late, copied, stores)
            if divided:
                self.line("smallest = F32_INF")
                self.line("largest = f32(0)")
            self.inverses = divided
            self.all_vectors(stage, vectors, fresh=bool(fresh))
            self.inverses = {}
            if divided:
                tests = [f"divides_f32(smallest, largest, {name})" for name in divided]
                with self.open(f"if not ({' and '.join(tests)}):"):
                    if schedule.threads_per_row > 1:
                        # What is loaded again is not kept in registers until then.
                        self.line(f"again = opaque_i64({self.member})")
                        self.again = "again"
                    vectors = replace(vectors, copied=())
                    self.all_vectors(stage, vectors)
                    self.again = ""
        self.combine_lanes(stage)

    def fresh_and_late(self, stage: int) -> tuple[list[int], list[int]]:
        schedule = self.schedule
        fresh = [
            s.operand
            for s in self.plan.bodies[stage]
            if isinstance(s, Load)
            and self.is_staged_load(s)
            and self.is_at_hand(s.operand) is None
            and (not schedule.whole or self.plan.first[s.result.name] == stage)
        ]
        ahead = schedule.whole and len(self.reduced_axes) == 1
        shared = {s.operand for s in late_loads(self.nest, self.plan, stage) if ahead}
        late = [k for k in fresh if k in shared]
        return [k for k in fresh if k not in late], late

    def all_vectors(
        self, stage: int, vectors: _Vectors, *, fresh: bool = False
    ) -> None:
        """The loops over a thread's vectors: those in registers, then those aside.

        Of a ``fresh`` row the latter are still on their way.
        """
        self.row_vectors(stage, vectors)
        if not self.schedule.aside:
            return
        if fresh:
            self.await_aside()
        self.is_aside = True
        self.row_vectors(stage, vectors)
        self.is_aside = False

    def kept_values(self, stage: int) -> tuple[list[Value], list[Value]]:
        """What a stage computes for later ones, and what it has from earlier ones."""
        kept = [
            s.result
            for s in self.plan.bodies[stage]
            if not isinstance(s, (Store, Reduce))
            and s.result.name in self.plan.kept
            and not self.is_staged_load(s)
        ]
        made = [value for value in kept if self.plan.first[value.name] == stage]
        return made, [value for value in kept if value not in made]

    def row_vectors(self, stage: int, vectors: _Vectors) -> None:
        """The loop over a thread's vectors of the row: loaded, computed, stored."""
        schedule, stores = self.schedule, vectors.stores
        # Or all vectors would be stored at the end, and the memory wait for them.
        meets = stores and vectors.beside and schedule.tiles > 1 and not self.again
        with self.open_row("warp_barrier()" if meets else "") as at:
            self.row_vector(stage, vectors, at)
            with self.open_if(self.live if stores else ""):
                for operand in stores:
                    tile = self.slot("") if operand in vectors.loads else "0"
                    self.store_vector(operand, schedule.lanes, at, tile)

    def row_vector(self, stage: int, vectors: _Vectors, at: dict[int, str]) -> None:
        """What is loaded and computed of the vector ``at`` these indices."""
        loads, stores, lanes = vectors.loads, vectors.stores, self.schedule.lanes
        # A result may be written over an operand: then they share a tile.
        self.staged = {k: f"{self.tile_name(k)}[lane]" for k in stores}
        for k in loads:
            passing = k in (*vectors.beside, *vectors.late)
            place = "lane" if passing else self.slot("lane")
            self.staged[k] = f"{self.tile_name(k)}[{place}]"
        made, had = self.kept_values(stage) if self.is_aside else ([], [])
        if self.is_aside:
            self.load_aside(loads, made, had)
        for operand in vectors.beside:
            self.load_beside(operand)
        self.load_copied(vectors.copied)
        for operand in vectors.late:
            if operand not in vectors.copied:
                self.load_vector(operand, lanes, at, "0")
        body = self.plan.bodies[stage]
        if not self.extremes_of_halves(body):
            self.widen_halves([k for k in loads if k not in stores])
            self.elements(body, stage, at)
        self.staged, self.widened = {}, set()
        self.store_aside(made)
        self.copy_following(vectors.copied, at)

    def elements(
        self, body: Sequence[Statement], stage: int, at: dict[int, str]
    ) -> None:
        """The statements of a stage for each element of a vector, which is ``at``."""
        within, lanes, place = at, self.schedule.lanes, self.slot("lane")
        with self.open(f"for lane in range({lanes}):") if lanes > 1 else nullcontext():
            if lanes > 1:
                inner = self.reduced_axes[-1]
                # The vector's own index is needed after the loop.
                own = at[inner] == f"i{inner}"
                index = f"i{inner}_lane" if own else f"i{inner}"
                if self.moves_along(body, inner):
                    self.line(f"{index} = {at[inner]} + lane")
                within = {**at, inner: index}
            for s in body:
                self.row_statement(s, stage, within, place)

    def loads_are_begun(self) -> None:
        """What can be done while the first stage waits for its loads."""

    def is_at_hand(self, operand: int) -> bool | None:
        """Whether ``operand`` is close: in registers (False), in shared memory (True).

        None if it is in the GPU's memory.
        """
        return None

    def await_beside(self) -> None:
        """Wait until what is in shared memory has come there."""

    def load_beside(self, operand: int) -> None:
        """Load the current vector of an operand that is in shared memory."""

    def store_element(self, s: Store, variables: dict[int, str]) -> None:
        """Store to memory, even what was loaded into registers from there."""
        staged = self.staged.pop(s.operand, None)
        with self.open_if(self.live):
            self.emit(s, variables)
        if staged is not None:
            self.staged[s.operand] = staged

    def load_tile(self, operand: int, at: dict[int, str]) -> None:
        schedule = self.schedule
        place = self.slot("")
        if schedule.lanes > 1:
            self.load_vector(operand, schedule.lanes, at, place)
        else:
            text = self.element_at(operand, at)
            self.line(f"{self.tile_name(operand)}[{place}] = {text}")

    def declare_rows(self, stage: int) -> None:
        """Registers for the values that this stage makes and a later one reads."""
        lanes = self.schedule.lanes
        for s in self.plan.kept_statements(self.nest):
            if self.plan.first[s.result.name] == stage and not self.is_staged_load(s):
                dtype, count = short_name(s.result.dtype), lanes * self.own_tiles
                self.registers(self.row_name(s.result), dtype, count)

    def is_staged_load(self, s: Statement) -> bool:
        """Whether ``s`` is a load whose tile is all the registers its row needs."""
        if not isinstance(s, Load) or s.indices:
            return False
        lanes = self.schedule.lanes
        return lanes == 1 or self.is_whole(s, lanes)

    def row_statement(
        self, s: Statement, stage: int, at: dict[int, str], place: str
    ) -> None:
        if isinstance(s, Reduce):
            self.accumulate_in(s, place)
            return
        if isinstance(s, Store):
            if self.is_whole(s, self.schedule.lanes):
                self.emit(s, at)
            else:
                self.store_element(s, at)
            return
        name = s.result.name
        if name in self.plan.kept and not self.is_staged_load(s):
            row = f"{self.row_name(s.result)}[{place}]"
            if self.plan.first[name] < stage:
                factor = f" * {self.factors[name]}" if name in self.factors else ""
                self.line(f"{self.name_of(s.result)} = {row}{factor}")
                return
            self.emit(s, at)
            if self.plan.first[name] == stage:
                self.line(f"{row} = {self.name_of(s.result)}")
            return
        self.emit(s, at)

    def slot(self, lane: str) -> str:
        """Where in a thread's registers of the row the current element lies."""
        lanes = self.schedule.lanes
        if self.own_tiles == 1 or self.is_aside:
            return lane if lane and lanes > 1 else "0"
        if lanes == 1:
            return "vector"
        return f"vector * {lanes} + {lane}" if lane else f"vector * {lanes}"

    def row_elements(self) -> int:
        """How many elements are reduced to one."""
        return math.prod(self.nest.axes[k].extent for k in self.reduced_axes)

    def open_loop(self) -> AbstractContextManager[Any]:
        """Open the loop along a row of which threads cannot have their part at once."""
        schedule = self.schedule
        if schedule.whole or not self.reduced_axes:
            return nullcontext()
        n = self.extent_of(self.reduced_axes, "elements")
        step = schedule.threads_per_row * schedule.lanes * schedule.tiles
        return self.open(f"for start in range(0, {n}, {step}):")

    @contextmanager
    def open_row(self, after: str = "") -> Generator[dict[int, str]]:
        schedule, reduced = self.schedule, self.reduced_axes
        if not reduced:
            yield dict(self.variables)
            return
        lanes, threads_per_row = schedule.lanes, schedule.threads_per_row
        text = (self.again or self.member) if threads_per_row > 1 else "0"
        name = "first" if lanes > 1 or len(reduced) > 1 else f"i{reduced[0]}"
        n = self.extent_of(reduced, "elements")
        whole = self.row_elements() % (threads_per_row * lanes * schedule.tiles) == 0
        begin, end = self.vectors_at_hand
        several = end > 1 or schedule.early > 0
        span = f"{begin}, {end}" if begin else str(end)
        with self.open(f"for vector in range({span}):") if several else nullcontext():
            if several and threads_per_row > 1:
                text = f"vector * {threads_per_row} + {text}"
                text = f"({text})" if lanes > 1 else text
            elif several:
                text = "vector"
            text = f"{text} * {lanes}" if lanes > 1 else text
            text = text if schedule.whole else f"start + {text}"
            self.line(f"{name} = {text}")
            with self.open_if("" if whole else f"{name} < {n}"):
                if self.is_aside:
                    self.line(f"aside = {name} - {begin * threads_per_row * lanes}")
                if len(reduced) == 1:
                    yield {**self.variables, reduced[0]: name}
                else:
                    yield {**self.variables, **self.decompose("first", reduced)}
            if after:
                self.line(after)
