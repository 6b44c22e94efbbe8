"""Kernels of stages: passes over rows (or columns), shared by a group of threads."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.merges import Merge
from arrayfn.lowering.cuda.partial_results import PartialResultsPrinter
from arrayfn.lowering.cuda.printer import AxisIndices
from arrayfn.lowering.cuda.schedule import Columns, Pipeline, Rows
from arrayfn.lowering.cuda.stage_plan import (
    StagePlan,
    late_broadcast_loads,
    plan_stages,
)
from arrayfn.lowering.kernel_ir import (
    Load,
    Reduce,
    Statement,
    Store,
    Value,
)

T = TypeVar("T", Rows, Pipeline, Columns)


class Memory(Enum):
    """Where a thread finds the elements of an operand when a stage begins."""

    GLOBAL = "global"
    SHARED = "shared"
    REGISTERS = "registers"


@dataclass(frozen=True)
class _Vectors:
    """Numbers of the operands that a stage loads and stores as vectors.

    Args:
        loads: All that are loaded. Those in none of the next two are in registers when
            the loop over vectors begins.
        from_shared: Loaded from shared memory, one vector at a time.
        streamed: Loaded from global memory, one vector at a time.
        prefetched: Those of ``streamed`` that ``cp.async`` has copied to shared memory.
        stores: All that are stored.
    """

    loads: Sequence[int]
    from_shared: Sequence[int]
    streamed: Sequence[int]
    prefetched: Sequence[int]
    stores: Sequence[int]


@dataclass
class StagedPrinter(PartialResultsPrinter[T]):
    """Prints the stages of one row (or column), which a group of threads shares."""

    variables: AxisIndices = field(default_factory=dict[int, str])
    """The kernel's variables for the indices along kept axes."""
    recompute_thread: str = ""
    """Stands for ``member`` while vectors are loaded and computed a second time."""
    merges: tuple[Merge, ...] = ()
    factors: dict[str, str] = field(default_factory=dict[str, str])
    """Variables that rescale kept values from a part's shift to the row's, by name."""

    @abstractmethod
    def combine_threads(self, reduces: Sequence[Reduce]) -> None:
        """Combine the partial results of the group's threads.

        Reads the variable of each reduction's result, and leaves the row's there for
        all threads.
        """

    def stages(self, variables: AxisIndices, member: str) -> None:
        """Print all stages of the kernel.

        Args:
            variables: The kernel's index variable along each kept axis.
            member: The kernel's variable for a thread's number in its group.
        """
        self.variables, self.member = variables, member
        for stage in range(max(self.nest.stages, self.last_outer_stage() + 1)):
            self.stage(stage)

    @cached_property
    def plan(self) -> StagePlan:
        """Which statements each stage has, and which values are kept between stages."""
        return plan_stages(
            self.nest, keep=self.schedule.register_resident, merges=self.merges
        )

    def stage(self, stage: int) -> None:
        """Print stage number ``stage``.

        First the statements that run once a row, then the loop along the row, then the
        combination of the threads' partial results.
        """
        self.outer_stage(stage)
        if self.has_elements(stage):
            self.row_stage(stage)
            self.combine_threads(self.reduces(stage))

    def has_elements(self, stage: int) -> bool:
        """Whether stage number ``stage`` has a loop along the row."""
        return stage < self.nest.stages and bool(self.plan.bodies[stage])

    def outer_stage(self, stage: int) -> None:
        """Print the statements of ``stage`` that run once a row; one thread stores."""
        leader = [f"{self.member} == 0"] if self.schedule.threads_per_row > 1 else []
        for s in self.outer_statements(stage):
            conditions = leader + [self.live] * bool(self.live)
            if isinstance(s, Store) and conditions:
                with self.open(f"if {' and '.join(conditions)}:"):
                    self.emit(s, self.variables)
            else:
                self.emit(s, self.variables)

    def row_stage(self, stage: int) -> None:
        """Print the loops of ``stage`` along the row, up to partial results.

        Divisions by a number of the row are printed as products with its inverse, and
        the loop again with divisions, for rows in which that would not be exact.
        """
        schedule, body = self.schedule, self.plan.bodies[stage]
        vectors, preloaded = self.stage_vectors(stage)
        self.declare_stage(stage, vectors, preloaded)
        divisors = self.row_divisors(body, vectors.stores, vectors.loads)
        for name in divisors:
            self.line(f"{divisors[name]} = inverse_f32({name})")
        self.invert_halves(body)
        with self.open_row_loop():
            if preloaded:
                with self.open_vectors() as at:
                    for operand in preloaded:
                        self.load_tile(operand, at)
            if preloaded and schedule.shared_tiles:
                # After what is in registers, which is needed first.
                self.copy_shared_tiles(preloaded)
            if stage == 0:
                self.after_first_loads()
                self.begin_prefetch()
            if vectors.from_shared:
                self.wait_for_shared_operands()
            if divisors:
                self.line("smallest = F32_INF")
                self.line("largest = f32(0)")
            self.inverses = divisors
            self.vector_loops(stage, vectors, is_loading=bool(preloaded))
            self.inverses = {}
            if divisors:
                self.repeat_with_divisions(stage, vectors, list(divisors))
        self.combine_lanes(stage)

    def stage_vectors(self, stage: int) -> tuple[_Vectors, list[int]]:
        """The operands that ``stage`` loads and stores as vectors.

        Also those of them that are loaded before the loop over vectors, all at once.
        """
        body, lanes = self.plan.bodies[stage], self.schedule.lanes
        staged = [s for s in body if isinstance(s, Load) and self.is_staged_load(s)]
        loads = [s.operand for s in staged]
        preloaded, streamed = self.preloaded_and_streamed(stage)
        if lanes == 1:
            loads, streamed = [k for k in loads if k not in streamed], []
        prefetched = [k for k in streamed if k in self.prefetched]
        shared = [k for k in loads if self.memory_of(k) is Memory.SHARED]
        stores = self.vectors(body, Store, lanes)
        return _Vectors(loads, shared, streamed, prefetched, stores), preloaded

    def declare_stage(
        self, stage: int, vectors: _Vectors, preloaded: Sequence[int]
    ) -> None:
        """Declare the registers of ``stage``: of vectors, kept values and results.

        ``vectors`` and ``preloaded`` are as ``stage_vectors`` gives them.
        """
        lanes = self.schedule.lanes
        self.declare_tiles(vectors.from_shared, lanes)
        self.declare_tiles(vectors.streamed, lanes)
        self.declare_tiles(preloaded, lanes * self.register_tiles)
        results = (k for k in vectors.stores if k not in vectors.loads)
        self.declare_result_tiles(results, lanes)
        self.declare_rows(stage)
        self.identities(stage)

    def repeat_with_divisions(
        self, stage: int, vectors: _Vectors, divisors: Sequence[str]
    ) -> None:
        """Print the loops of ``stage`` again, for rows that need true divisions.

        These are rows with elements so small or large that a product with the inverse
        of one of ``divisors``, variables of the kernel, is not exact. ``vectors`` are
        those of the first time.
        """
        tests = [f"divides_f32(smallest, largest, {name})" for name in divisors]
        with self.open(f"if not ({' and '.join(tests)}):"):
            if self.schedule.threads_per_row > 1:
                # The compiler must load again, not keep values for this case.
                self.line(f"opaque_member = opaque_i64({self.member})")
                self.recompute_thread = "opaque_member"
            self.vector_loops(stage, replace(vectors, prefetched=()))
            self.recompute_thread = ""

    @override
    def preloaded_and_streamed(self, stage: int) -> tuple[list[int], list[int]]:
        """The operands that ``stage`` loads from global memory as vectors.

        Those of the first list are loaded before the loop over vectors, all at once.
        Those of the second (weights that only this stage reads) are loaded in the loop.
        """
        keeps_row = self.schedule.register_resident
        loaded = [
            s.operand
            for s in self.plan.bodies[stage]
            if isinstance(s, Load)
            and self.is_staged_load(s)
            and self.memory_of(s.operand) is Memory.GLOBAL
            and (not keeps_row or self.plan.first[s.result.name] == stage)
        ]
        can_stream = keeps_row and len(self.reduced_axes) == 1
        weights = late_broadcast_loads(self.nest, self.plan, stage)
        operands = {s.operand for s in weights if can_stream}
        streamed = [k for k in loaded if k in operands]
        return [k for k in loaded if k not in streamed], streamed

    def vector_loops(
        self, stage: int, vectors: _Vectors, *, is_loading: bool = False
    ) -> None:
        """Print the loop over a thread's register tiles, then that over shared tiles.

        Args:
            stage: The number of the stage.
            vectors: The operands that its loops load and store.
            is_loading: Whether copies of the shared tiles may still be under way.
        """
        self.vector_loop(stage, vectors)
        if not self.schedule.shared_tiles:
            return
        if is_loading:
            self.wait_for_shared_tiles()
        self.on_shared_tiles = True
        self.vector_loop(stage, vectors)
        self.on_shared_tiles = False

    def new_and_kept_values(self, stage: int) -> tuple[list[Value], list[Value]]:
        """Values that ``stage`` computes for later ones, and those of earlier stages.

        Loads that are read from their operand's registers are in neither list.
        """
        kept = [
            s.result
            for s in self.plan.bodies[stage]
            if not isinstance(s, (Store, Reduce))
            and s.result.name in self.plan.kept
            and not self.is_staged_load(s)
        ]
        new = [value for value in kept if self.plan.first[value.name] == stage]
        return new, [value for value in kept if value not in new]

    def vector_loop(self, stage: int, vectors: _Vectors) -> None:
        """Print one loop of ``stage`` over a thread's vectors: load, compute, store."""
        schedule, stores = self.schedule, vectors.stores
        first_pass = not self.recompute_thread
        # A barrier keeps the compiler from putting all stores behind the loop, which
        # would leave the memory idle until then.
        meets = stores and vectors.from_shared and schedule.tiles > 1 and first_pass
        with self.open_vectors("warp_barrier()" if meets else "") as at:
            self.vector_body(stage, vectors, at)
            with self.open_if(self.live if stores else ""):
                for operand in stores:
                    tile = self.slot("") if operand in vectors.loads else "0"
                    self.store_vector(operand, schedule.lanes, at, tile)

    def vector_body(self, stage: int, vectors: _Vectors, at: AxisIndices) -> None:
        """Print the loads and the arithmetic of one vector.

        ``vectors`` are the operands of the stage; ``at`` has the index expression of
        the vector's first element along each axis.
        """
        loads, stores, lanes = vectors.loads, vectors.stores, self.schedule.lanes
        # A result may be written over an operand: then they share a tile.
        self.staged = {k: f"{self.tile_name(k)}[lane]" for k in stores}
        for k in loads:
            is_current_only = k in (*vectors.from_shared, *vectors.streamed)
            register = "lane" if is_current_only else self.slot("lane")
            self.staged[k] = f"{self.tile_name(k)}[{register}]"
        new: list[Value] = []
        if self.on_shared_tiles:
            new, kept = self.new_and_kept_values(stage)
            self.load_shared_tile(loads, new, kept)
        for operand in vectors.from_shared:
            self.load_shared_vector(operand)
        self.load_prefetched(vectors.prefetched)
        for operand in vectors.streamed:
            if operand not in vectors.prefetched:
                self.load_vector(operand, lanes, at, "0")
        body = self.plan.bodies[stage]
        if not self.print_half_extremes(body):
            self.widen_vectors([k for k in loads if k not in stores])
            self.elements(body, stage, at)
        self.staged, self.widened = {}, set()
        self.store_shared_tile(new)
        self.prefetch_next(vectors.prefetched, at)

    def elements(self, body: Sequence[Statement], stage: int, at: AxisIndices) -> None:
        """Print ``body`` for each element of a vector.

        ``at`` has the index expression of the vector's first element along each axis.
        """
        within, lanes, register = at, self.schedule.lanes, self.slot("lane")
        with self.open(f"for lane in range({lanes}):") if lanes > 1 else nullcontext():
            if lanes > 1:
                inner = self.reduced_axes[-1]
                # The index of the vector's first element is needed after the loop.
                is_taken = at[inner] == f"i{inner}"
                index = f"i{inner}_lane" if is_taken else f"i{inner}"
                if self.uses_index(body, inner):
                    self.line(f"{index} = {at[inner]} + lane")
                within = {**at, inner: index}
            for s in body:
                self.row_statement(s, stage, within, register)

    # What a pipeline does in other ways.

    def after_first_loads(self) -> None:
        """Print what can be done while the first stage's loads are under way."""

    def memory_of(self, operand: int) -> Memory:
        """Where the elements of operand number ``operand`` are before a stage."""
        return Memory.GLOBAL

    def wait_for_shared_operands(self) -> None:
        """Print the wait for operands in ``Memory.SHARED`` to arrive there."""

    def load_shared_vector(self, operand: int) -> None:
        """Print the load of the current vector of an operand in ``Memory.SHARED``."""

    def store_element(self, s: Store, variables: AxisIndices) -> None:
        """Print the store ``s`` of one element to memory, not to registers.

        ``variables`` has the element's index expression along each axis.
        """
        staged = self.staged.pop(s.operand, None)
        with self.open_if(self.live):
            self.emit(s, variables)
        if staged is not None:
            self.staged[s.operand] = staged

    def load_tile(self, operand: int, at: AxisIndices) -> None:
        """Load one vector of ``operand`` into the thread's registers of the row.

        ``at`` has the index expression of its first element along each axis.
        """
        schedule = self.schedule
        register = self.slot("")
        if schedule.lanes > 1:
            self.load_vector(operand, schedule.lanes, at, register)
        else:
            text = self.element_at(operand, at)
            self.line(f"{self.tile_name(operand)}[{register}] = {text}")

    def declare_rows(self, stage: int) -> None:
        """Declare registers for values that ``stage`` computes for later ones."""
        lanes = self.schedule.lanes
        for s in self.plan.kept_statements(self.nest):
            if self.plan.first[s.result.name] == stage and not self.is_staged_load(s):
                dtype, count = short_name(s.result.dtype), lanes * self.register_tiles
                self.registers(self.row_name(s.result), dtype, count)

    def is_staged_load(self, s: Statement) -> bool:
        """Whether ``s`` is a load whose value is read from its operand's registers."""
        if not isinstance(s, Load) or s.indices:
            return False
        lanes = self.schedule.lanes
        return lanes == 1 or self.is_vectorized(s, lanes)

    def row_statement(
        self, s: Statement, stage: int, at: AxisIndices, register: str
    ) -> None:
        """Print the statement ``s`` for one element of the row.

        Args:
            s: A statement of the stage's body.
            stage: The number of the stage.
            at: The element's index expression along each axis.
            register: The element's index in the thread's registers of the row. A kept
                value is read from there after its first stage.
        """
        if isinstance(s, Reduce):
            self.accumulate_in(s, register)
            return
        if isinstance(s, Store):
            if self.is_vectorized(s, self.schedule.lanes):
                self.emit(s, at)
            else:
                self.store_element(s, at)
            return
        name = s.result.name
        if name in self.plan.kept and not self.is_staged_load(s):
            row = f"{self.row_name(s.result)}[{register}]"
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
        """The index expression of the current element in a thread's registers of a row.

        ``lane`` is the expression of its number in its vector, or empty for the first.
        """
        lanes = self.schedule.lanes
        if self.register_tiles == 1 or self.on_shared_tiles:
            return lane if lane and lanes > 1 else "0"
        if lanes == 1:
            return "vector"
        return f"vector * {lanes} + {lane}" if lane else f"vector * {lanes}"

    def row_elements(self) -> int:
        """How many elements of a row (or column) are reduced to one."""
        return math.prod(self.nest.axes[k].extent for k in self.reduced_axes)

    def open_row_loop(self) -> AbstractContextManager[Any]:
        """Open the loop along a row, unless registers hold all of it at once."""
        schedule = self.schedule
        if schedule.register_resident or not self.reduced_axes:
            return nullcontext()
        n = self.extent_of(self.reduced_axes, "elements")
        step = schedule.threads_per_row * schedule.lanes * schedule.tiles
        return self.open(f"for start in range(0, {n}, {step}):")

    @contextmanager
    def open_vectors(self, after: str = "") -> Generator[AxisIndices]:
        """Open the loop over a thread's vectors of the row.

        Yields the index expression of a vector's first element along each axis.
        ``after`` is a line that ends each iteration, also of threads without a vector.
        """
        schedule, reduced = self.schedule, self.reduced_axes
        if not reduced:
            yield dict(self.variables)
            return
        lanes, threads_per_row = schedule.lanes, schedule.threads_per_row
        text = (self.recompute_thread or self.member) if threads_per_row > 1 else "0"
        name = "first" if lanes > 1 or len(reduced) > 1 else f"i{reduced[0]}"
        n = self.extent_of(reduced, "elements")
        is_full = self.row_elements() % (threads_per_row * lanes * schedule.tiles) == 0
        begin, end = self.vector_range
        several = end > 1 or schedule.prefetch_distance > 0
        span = f"{begin}, {end}" if begin else str(end)
        with self.open(f"for vector in range({span}):") if several else nullcontext():
            if several and threads_per_row > 1:
                text = f"vector * {threads_per_row} + {text}"
                text = f"({text})" if lanes > 1 else text
            elif several:
                text = "vector"
            text = f"{text} * {lanes}" if lanes > 1 else text
            text = text if schedule.register_resident else f"start + {text}"
            self.line(f"{name} = {text}")
            with self.open_if("" if is_full else f"{name} < {n}"):
                if self.on_shared_tiles:
                    self.line(f"shared_at = {name} - {begin * threads_per_row * lanes}")
                if len(reduced) == 1:
                    yield {**self.variables, reduced[0]: name}
                else:
                    yield {**self.variables, **self.decompose("first", reduced)}
            if after:
                self.line(after)
