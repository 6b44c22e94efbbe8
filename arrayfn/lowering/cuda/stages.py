"""Prints kernels in stages: passes over rows or columns that threads share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from enum import Enum
from functools import cached_property

from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.merges import Merge
from arrayfn.lowering.cuda.partial_results import PartialResultsPrinter
from arrayfn.lowering.cuda.printer import AxisIndices
from arrayfn.lowering.cuda.row_loops import T
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
from arrayfn.records import frozen, record


class Memory(Enum):
    """Where a thread finds the elements of an operand when a stage begins."""

    GLOBAL = "global"
    SHARED = "shared"
    REGISTERS = "registers"


@frozen
class StageVectors:
    """The statements of a stage's loop along the row, and its vector operands.

    A thread loads the vectors of an operand in one of three ways: all before it
    computes anything (``preloaded``), or one by one as it goes along its row, from
    shared memory or from global memory. They may also be in registers already.

    Args:
        stage: The number of the stage.
        body: Its statements for each element.
        loads: Numbers of all operands that are loaded as vectors.
        preloaded: Numbers of the operands of which all vectors are loaded at first.
        from_shared: Numbers of the operands that are loaded from shared memory, one
            vector at a time.
        streamed: Numbers of the operands that are loaded from global memory, one vector
            at a time.
        prefetched: The operands of ``streamed`` that ``cp.async`` has copied to shared
            memory.
        stores: Numbers of all operands that are stored as vectors.
    """

    stage: int
    body: Sequence[Statement]
    loads: Sequence[int]
    preloaded: Sequence[int]
    from_shared: Sequence[int]
    streamed: Sequence[int]
    prefetched: Sequence[int]
    stores: Sequence[int]

    @property
    def single(self) -> Sequence[int]:
        """Operands of which registers hold only the current vector."""
        return (*self.from_shared, *self.streamed)


@record
class StagedPrinter(PartialResultsPrinter[T]):
    """Prints the stages of one row (or column), which a group of threads shares."""

    merges: tuple[Merge, ...] = ()
    """The pairs of stages that share an exchange between parts of a row."""
    factors: dict[str, str] = field(default_factory=dict[str, str])
    """The variable that rescales a kept value to the row's shift, by the value's name.
    """

    @abstractmethod
    def combine_threads(self, reduces: Sequence[Reduce]) -> None:
        """Combine the partial results of the group's threads.

        Before, the variable of each reduction's result holds the thread's result;
        afterwards it holds the row's, in all threads.
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
        """The statements of each stage, and the values kept between stages."""
        return plan_stages(
            self.nest, keep=self.schedule.register_resident, merges=self.merges
        )

    def stage(self, stage: int) -> None:
        """Print stage number ``stage``.

        First come the statements that run once a row, then the loop along the row, then
        the combination of the threads' partial results.
        """
        self.outer_stage(stage)
        if stage < self.nest.stages and self.plan.bodies[stage]:
            self.row_stage(stage)
            self.combine_threads(self.row_reductions(stage))

    def outer_stage(self, stage: int) -> None:
        """Print the statements of ``stage`` that run once a row.

        All threads of the row compute, but only its first thread stores. Prints, for
        the mean of a row:

            b = div_f32(a, f32(1024))
            if thread == 0:
                b_out[i0] = b
        """
        is_leader = f"{self.member} == 0" if self.schedule.threads_per_row > 1 else ""
        condition = " and ".join(filter(None, (is_leader, self.live)))
        for s in self.outer_statements(stage):
            with self.open_if(condition if isinstance(s, Store) else ""):
                self.emit(s, self.variables)

    def row_stage(self, stage: int) -> None:
        """Print the loops of ``stage`` along the row, which give each thread's results.

        Prints, for the first stage of a softmax of rows of 1024 by a warp:

            x_tile = registers_f32(32)
            a = F32_NEG_INF
            for vector in range(8):
                first = (vector * 32 + thread) * 4
                load_f32x4(x_in, row + first, x_tile, vector * 4)
            for vector in range(8):
                first = (vector * 32 + thread) * 4
                for lane in range(4):
                    x = x_tile[vector * 4 + lane]
                    a = accumulate_max_f32(a, x)

        Divisions by row scalars become products with their inverses, which are computed
        before the loop. The loop is then printed again with divisions, for rows in
        which the products would not be exact (see ``repeat_with_divisions``).
        """
        vectors = self.stage_vectors(stage)
        self.declare_stage(vectors)
        divisors = self.row_divisors(vectors.body, vectors.stores, vectors.loads)
        for name, inverse in divisors.items():
            self.line(f"{inverse} = inverse_f32({name})")
        self.define_reciprocals(vectors.body)
        with self.open_row_loop():
            self.preload(vectors)
            if divisors:
                self.line("smallest = F32_INF")
                self.line("largest = f32(0)")
            self.inverses = divisors
            self.vector_loops(vectors)
            self.inverses = {}
            if divisors:
                self.repeat_with_divisions(vectors, list(divisors))
        self.combine_lanes(stage)

    def stage_vectors(self, stage: int) -> StageVectors:
        """Classify the operands that ``stage`` loads and stores as vectors.

        With one lane there are no vectors to stream: elements are loaded where they are
        used.
        """
        body, lanes = self.plan.bodies[stage], self.schedule.lanes
        staged = [s for s in body if isinstance(s, Load) and self.is_staged_load(s)]
        loads = [s.operand for s in staged]
        preloaded, streamed = self.preloaded_and_streamed(stage)
        if lanes == 1:
            loads, streamed = [k for k in loads if k not in streamed], []
        return StageVectors(
            stage,
            body,
            loads,
            preloaded,
            from_shared=[k for k in loads if self.memory_of(k) is Memory.SHARED],
            streamed=streamed,
            prefetched=[k for k in streamed if k in self.prefetched],
            stores=self.vectors(body, Store, lanes),
        )

    def declare_stage(self, vectors: StageVectors) -> None:
        """Declare a stage's registers: of vectors, kept values and partial results.

        Prints, for the second stage of a softmax, which keeps the exponentials ``d``
        for the third stage and sums them into ``e``:

            d_row = registers_f32(32)
            e = f32(0)
        """
        lanes = self.schedule.lanes
        self.declare_tiles(vectors.single, lanes)
        self.declare_tiles(vectors.preloaded, lanes * self.register_tiles)
        results = (k for k in vectors.stores if k not in vectors.loads)
        self.declare_result_tiles(results, lanes)
        self.declare_rows(vectors.stage)
        self.identities(vectors.stage)

    def preload(self, vectors: StageVectors) -> None:
        """Print the loads that a stage begins before it computes anything.

        These are loads of all vectors of the preloaded operands. In the first stage,
        copies to shared memory for later stages begin here, too. If the stage reads
        operands from shared memory, the last line waits until they have arrived.
        """
        if vectors.preloaded:
            with self.open_vectors() as at:
                for operand in vectors.preloaded:
                    self.load_tile(operand, at)
        if vectors.preloaded and self.schedule.shared_tiles:
            # These copies come after the loads into registers, whose values are
            # needed first.
            self.copy_shared_tiles(vectors.preloaded)
        if vectors.stage == 0:
            self.after_first_loads()
            self.begin_prefetch()
        if vectors.from_shared:
            self.wait_for_shared_operands()

    def repeat_with_divisions(
        self, vectors: StageVectors, divisors: Sequence[str]
    ) -> None:
        """Print the loops of a stage again, for rows that need true divisions.

        These are rows with elements so small or large that a product with the inverse
        of a divisor is not exact. Prints, for the last stage of a softmax:

            if not (divides_f32(smallest, largest, e)):
                opaque_member = opaque_i64(thread)
                for vector in range(8):
                    first = (vector * 32 + opaque_member) * 4
                    for lane in range(4):
                        d = d_row[vector * 4 + lane]
                        g = div_f32(d, e)
                        g_tile[lane] = g
                    store_f32x4(g_out, row + first, g_tile, 0)

        Args:
            vectors: The vectors of the stage, as the first loops used them.
            divisors: The variables of the numbers that the stage divides by.
        """
        tests = [f"divides_f32(smallest, largest, {name})" for name in divisors]
        with self.open(f"if not ({' and '.join(tests)}):"):
            if self.schedule.threads_per_row > 1:
                # The compiler must load again, not keep values for this case.
                self.line(f"opaque_member = opaque_i64({self.member})")
                self.recompute_thread = "opaque_member"
            self.vector_loops(replace(vectors, preloaded=(), prefetched=()))
            self.recompute_thread = ""

    @override
    def preloaded_and_streamed(self, stage: int) -> tuple[list[int], list[int]]:
        """Return the operands that ``stage`` loads from global memory, in two lists.

        The second has the operands that all rows share and only this stage reads
        (weights), if the row is in registers. A row in registers is loaded only by its
        first stage.
        """
        keeps_row = self.schedule.register_resident
        loaded = [
            s.operand
            for s in self.plan.bodies[stage]
            if isinstance(s, Load)
            and self.is_staged_load(s)
            and self.memory_of(s.operand) is Memory.GLOBAL
            and (not keeps_row or self.plan.first_stage[s.result.name] == stage)
        ]
        can_stream = keeps_row and len(self.reduced_axes) == 1
        weights = late_broadcast_loads(self.nest, self.plan, stage)
        operands = {s.operand for s in weights if can_stream}
        streamed = [k for k in loaded if k in operands]
        return [k for k in loaded if k not in streamed], streamed

    def vector_loops(self, vectors: StageVectors) -> None:
        """Print the loop over a thread's register tiles, and one over its shared tiles.

        If the stage has preloaded operands, it waits for the copies to shared tiles
        before the second loop.
        """
        self.vector_loop(vectors)
        if not self.schedule.shared_tiles:
            return
        if vectors.preloaded:
            self.wait_for_shared_tiles()
        self.on_shared_tiles = True
        self.vector_loop(vectors)
        self.on_shared_tiles = False

    def new_and_kept_values(self, stage: int) -> tuple[list[Value], list[Value]]:
        """Return kept values: those that ``stage`` computes, and those that it reads.

        A kept value is computed by one stage and read by later ones. Loads that are
        read from their operand's registers are in neither list.
        """
        kept = [
            s.result
            for s in self.plan.bodies[stage]
            if not isinstance(s, (Store, Reduce))
            and s.result.name in self.plan.kept
            and not self.is_staged_load(s)
        ]
        new = [value for value in kept if self.plan.first_stage[value.name] == stage]
        return new, [value for value in kept if value not in new]

    def vector_loop(self, vectors: StageVectors) -> None:
        """Print one loop over a thread's vectors: load, compute, store.

        Prints, for the last stage of a softmax in float32 (see ``row_arithmetic`` for
        the division):

            for vector in range(8):
                first = (vector * 32 + thread) * 4
                for lane in range(4):
                    d = d_row[vector * 4 + lane]
                    smallest = accumulate_min_f32(smallest, abs_f32(d))
                    largest = accumulate_max_f32(largest, abs_f32(d))
                    g = divide_f32(d, e, e_inverse)
                    g_tile[lane] = g
                store_f32x4(g_out, row + first, g_tile, 0)
        """
        schedule, stores = self.schedule, vectors.stores
        # With ``recompute_thread`` the loop is printed again, with true divisions.
        first_pass = not self.recompute_thread
        # A barrier keeps the compiler from putting all stores behind the loop, which
        # would leave the memory idle until then.
        meets = stores and vectors.from_shared and schedule.tiles > 1 and first_pass
        with self.open_vectors("warp_barrier()" if meets else "") as at:
            self.vector_body(vectors, at)
            with self.open_if(self.live if stores else ""):
                for operand in stores:
                    register = self.slot("") if operand in vectors.loads else "0"
                    self.store_vector(operand, schedule.lanes, at, register)

    def vector_body(self, vectors: StageVectors, at: AxisIndices) -> None:
        """Print the loads and the arithmetic of one vector.

        ``at`` has the index of the vector's first element along each axis. After the
        arithmetic, values in shared tiles are stored there, and the next copies of
        prefetched operands begin.
        """
        loads, stores, lanes = vectors.loads, vectors.stores, self.schedule.lanes
        # ``staged`` maps an operand to the text of its current element. A result that
        # is written over an operand shares the operand's tile.
        self.staged = {k: f"{self.tile_name(k)}[lane]" for k in stores}
        for k in loads:
            register = "lane" if k in vectors.single else self.slot("lane")
            self.staged[k] = f"{self.tile_name(k)}[{register}]"
        new: list[Value] = []
        if self.on_shared_tiles:
            new, kept = self.new_and_kept_values(vectors.stage)
            self.load_shared_tile(loads, new, kept)
        for operand in vectors.from_shared:
            self.load_shared_vector(operand)
        self.load_prefetched(vectors.prefetched)
        for operand in vectors.streamed:
            if operand not in vectors.prefetched:
                self.load_vector(operand, lanes, at, "0")
        # If the body only takes extremes of half-precision elements, two at a time are
        # printed. Otherwise the body is printed for each element.
        if not self.print_half_extremes(vectors.body):
            self.widen_vectors([k for k in loads if k not in stores])
            self.elements(vectors, at)
        self.staged, self.widened = {}, set()
        self.store_shared_tile(new)
        self.prefetch_next(vectors.prefetched, at)

    def elements(self, vectors: StageVectors, at: AxisIndices) -> None:
        """Print the stage's body for each element of a vector.

        Prints, for the second stage of a softmax:

            for lane in range(4):
                x = x_tile[vector * 4 + lane]
                c = x - a
                d = exp_f32(c)
                d_row[vector * 4 + lane] = d
                e = accumulate_add_f32(e, d)

        ``at`` has the index of the vector's first element along each axis.
        """
        within, lanes, register = at, self.schedule.lanes, self.slot("lane")
        with self.open(f"for lane in range({lanes}):") if lanes > 1 else nullcontext():
            if lanes > 1:
                inner = self.reduced_axes[-1]
                # The index of the vector's first element is needed after the loop.
                is_taken = at[inner] == f"i{inner}"
                index = f"i{inner}_lane" if is_taken else f"i{inner}"
                # The variable is only needed by statements that read the index itself.
                if self.uses_index(vectors.body, inner):
                    self.line(f"{index} = {at[inner]} + lane")
                within = {**at, inner: index}
            for s in vectors.body:
                self.row_statement(s, vectors.stage, within, register)

    # Hooks that pipelines override.

    def after_first_loads(self) -> None:
        """Print what can be done while the first stage's loads are in flight.

        Nothing here; subclasses override it.
        """

    def memory_of(self, operand: int) -> Memory:
        """Return the memory that has the elements of ``operand`` before a stage."""
        return Memory.GLOBAL

    def wait_for_shared_operands(self) -> None:
        """Print the wait for operands in ``Memory.SHARED`` to arrive there.

        Nothing here, as there are no such operands; pipelines override it.
        """

    def load_shared_vector(self, operand: int) -> None:
        """Print the load of the current vector of an operand in ``Memory.SHARED``.

        Nothing here, as there are no such operands; pipelines override it.
        """

    # Elements.

    def store_element(self, s: Store, variables: AxisIndices) -> None:
        """Print the store ``s`` of one element to memory, not to registers.

        ``variables`` has the element's index along each axis. The operand's entry in
        ``staged`` is removed meanwhile: with it, ``emit`` would print an assignment to
        registers. Threads without a row of their own do not store.
        """
        tile_element = self.staged.pop(s.operand, None)
        with self.open_if(self.live):
            self.emit(s, variables)
        if tile_element is not None:
            self.staged[s.operand] = tile_element

    def load_tile(self, operand: int, at: AxisIndices) -> None:
        """Load one vector of ``operand`` into the thread's registers of the row.

        Prints ``load_f32x4(x_in, row + first, x_tile, vector * 4)`` or, for vectors of
        one element, ``x_tile[vector] = x_in[row + i1]``. ``at`` has the index of the
        vector's first element along each axis.
        """
        register = self.slot("")
        if self.schedule.lanes > 1:
            self.load_vector(operand, self.schedule.lanes, at, register)
        else:
            element = self.element_at(operand, at)
            self.line(f"{self.tile_name(operand)}[{register}] = {element}")

    def declare_rows(self, stage: int) -> None:
        """Declare registers for the values that ``stage`` computes for later stages.

        Prints, for exponentials ``d``: ``d_row = registers_f32(32)``.
        """
        count = self.schedule.lanes * self.register_tiles
        for s in self.plan.kept_statements(self.nest):
            if self.plan.first_stage[
                s.result.name
            ] == stage and not self.is_staged_load(s):
                dtype = short_name(s.result.dtype)
                self.registers(self.row_name(s.result), dtype, count)

    def is_staged_load(self, s: Statement) -> bool:
        """Whether ``s`` is a load whose value is read from its operand's tile."""
        if not isinstance(s, Load) or s.indices:
            return False
        lanes = self.schedule.lanes
        return lanes == 1 or self.is_vectorized(s, lanes)

    def row_statement(
        self, s: Statement, stage: int, at: AxisIndices, register: str
    ) -> None:
        """Print the statement ``s`` for one element of the row.

        The first stage that has a kept value ``d`` computes it and stores it in
        registers:

            d = exp_f32(c)
            d_row[vector * 4 + lane] = d

        Later stages read it from there, and multiply it by its factor in ``factors`` if
        it has one:

            d = d_row[vector * 4 + lane]

        Args:
            s: A statement of the stage's body.
            stage: The number of the stage.
            at: The element's index along each axis.
            register: The element's index in the thread's registers of the row.
        """
        if isinstance(s, Reduce):
            self.accumulate_in(s, register)
        elif isinstance(s, Store) and not self.is_vectorized(s, self.schedule.lanes):
            self.store_element(s, at)
        elif (
            isinstance(s, Store)
            or s.result.name not in self.plan.kept
            or self.is_staged_load(s)
        ):
            self.emit(s, at)
        else:
            name, variable = s.result.name, self.name_of(s.result)
            row = f"{self.row_name(s.result)}[{register}]"
            if self.plan.first_stage[name] < stage:
                factor = f" * {self.factors[name]}" if name in self.factors else ""
                self.line(f"{variable} = {row}{factor}")
            else:
                self.emit(s, at)
                if self.plan.first_stage[name] == stage:
                    self.line(f"{row} = {variable}")
