"""Lowers Programs to CompiledPrograms for a GPU: as for a CPU, with CUDA's kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from sys import maxsize
from typing import Final

import numpy as np
from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import ArrayType, Equation, Program, Var
from arrayfn.lowering.compiled import CompiledProgram, with_types_of
from arrayfn.lowering.contraction import Gemm
from arrayfn.lowering.cpu.lanes import lanes_of, side_by_side
from arrayfn.lowering.cpu.serial import kernel_of
from arrayfn.lowering.cuda import persistent
from arrayfn.lowering.cuda.choose import choose
from arrayfn.lowering.cuda.composed import CannotComposeError, compose
from arrayfn.lowering.cuda.config import GPU, GpuConfig
from arrayfn.lowering.cuda.destinations import (
    CopyElision,
    OperatorCall,
    Product,
    RedirectableCall,
    copied_last,
)
from arrayfn.lowering.cuda.handwritten import HandwrittenCall, Lowered
from arrayfn.lowering.cuda.host_loops import with_host_loops
from arrayfn.lowering.cuda.indexing.index_fusion import fuse_index_computation
from arrayfn.lowering.cuda.indexing.scatters import FUNCTIONS as SCATTERS
from arrayfn.lowering.cuda.indexing.scatters import (
    choose_parts,
    combines_in_parallel,
    scatter,
    scatter_by_parts,
)
from arrayfn.lowering.cuda.libraries import LIBRARIES
from arrayfn.lowering.cuda.loops import (
    ElementLoopPrinter,
    OneThreadLoopPrinter,
    threads_for,
)
from arrayfn.lowering.cuda.passes import passes_for
from arrayfn.lowering.cuda.per_element_while import (
    loop_of,
    per_element_while,
    without_unread,
)
from arrayfn.lowering.cuda.printer import RESERVED
from arrayfn.lowering.cuda.products.chains import sums_with_products
from arrayfn.lowering.cuda.products.epilogues import EpilogueFolding
from arrayfn.lowering.cuda.products.names import provider_of
from arrayfn.lowering.cuda.products.skinny_products import skinny_product
from arrayfn.lowering.cuda.solvers.matrix_nests import MatrixEquation
from arrayfn.lowering.cuda.sorting.sorts import can_sort, sort
from arrayfn.lowering.cuda.source import print_kernel
from arrayfn.lowering.cuda.splits import split_nest
from arrayfn.lowering.cuda.windows.convolutions import (
    convolution,
    is_library_convolution,
)
from arrayfn.lowering.cuda.windows.pools import is_pool, pairs_of, pool
from arrayfn.lowering.fusion import Unit, fuse
from arrayfn.lowering.gemm_tiles import GemmTiles
from arrayfn.lowering.host_steps import reference_call
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.libraries.calls import LibraryCall
from arrayfn.lowering.libraries.products import product
from arrayfn.lowering.lower import Lowering, in_two_parts
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.plan import Kernel, Parameter, kernel_calls
from arrayfn.lowering.steps import BranchStep, CallStep, LoopStep, NestStep, PlanStep
from arrayfn.lowering.templates.scans import SCANS, scan
from arrayfn.passes.pipeline import run_passes
from arrayfn.passes.small import is_small
from arrayfn.primitives.base import (
    Contraction,
    Library,
    Template,
    primitive_of,
)

MAX_SERIAL_WORK: Final = 1 << 8
"""The most operations of an iteration of a loop that one thread runs as one kernel."""
CLONE_COST: Final = 16
"""The cost, in additions, up to which fusion recomputes a value in each of its readers.

A GPU does some fifty operations in the time in which it writes and reads a float32.
"""
ROW_OF_A_BLOCK: Final = 1 << 12
"""The most elements of a row that one block of a persistent kernel reduces.

The block also computes what reads the result. For longer rows, a step of several blocks
and another that combines their results are faster.
"""


def lower(
    program: Program,
    donated: frozenset[int] = frozenset(),
    check: bool = False,
    gpu: GpuConfig = GPU,
    options: Options = DEFAULT,
) -> CompiledProgram:
    """Lower ``program`` to kernels and an execution plan for a GPU.

    A work item of the plan is a block.

    Args:
        program: The Program.
        donated: Numbers of the inputs that may be overwritten.
        check: Verify types between passes.
        gpu: The GPU's numbers, which schedules depend on.
        options: What the user asked for: fusion, determinism, persistent kernels.
    """
    # The last pass, layout assignment, is run on each part by itself.
    *passes, layouts = passes_for(gpu, options)

    def lowered(part: Program, donated: frozenset[int]) -> CompiledProgram:
        """Lower ``part``, one of two parts of the Program or all of it.

        ``check``, ``gpu``, ``options`` and the pass ``layouts`` are those of ``lower``.
        """
        laid_out = run_passes(part, check, (layouts,))
        compiled = _CudaLowering(laid_out, donated, gpu, options).run()
        # A product that had an epilogue folded in is not called by its first name.
        called = {call.kernel for call in kernel_calls(compiled.plan.steps)}
        kernels = tuple(kernel for kernel in compiled.kernels if kernel.name in called)
        plan = with_host_loops(
            compiled.plan, {kernel.name: kernel for kernel in kernels}
        )
        return replace(compiled, kernels=kernels, plan=plan)

    simplified = run_passes(program, check, tuple(passes))
    # What depends only on constants is one part: it is computed once.
    return with_types_of(program, in_two_parts(simplified, donated, lowered))


class _CudaLowering(Lowering):
    """Lowers a Program to steps, then prints their kernels and makes the plan."""

    target = "cuda"
    loop_printer = OneThreadLoopPrinter
    reserved = RESERVED

    def __init__(
        self,
        program: Program,
        donated: frozenset[int],
        gpu: GpuConfig,
        options: Options,
    ) -> None:
        """Begin without kernels and steps, as ``Lowering`` does.

        ``gpu`` has the GPU's numbers, which schedules depend on.
        """
        super().__init__(program, donated, options)
        self.gpu = gpu
        self.redirectable: dict[int, RedirectableCall] = {}
        """Calls that can write elsewhere, or do more, by the ``id`` of their step."""
        self.pairs: dict[Equation, Equation] = {}
        """For each of two pooling equations that one kernel computes: the other."""
        self.computed_pools: set[Equation] = set()
        """Pooling equations whose results the kernel of their pair already computes."""
        self.control_depth = 0
        """How many loops and branches contain the step that is being made."""
        self.has_unread_steps = False
        """Whether fusion has left steps whose results are not read any more."""
        self.slice_strides: dict[Var, int] = {}
        """For each array that is a slice in a loop: elements from slice to slice."""
        self.depth = 0
        """How many nested loops and branches contain the step that is being printed."""

    @override
    def block(self, program: Program) -> list[PlanStep]:
        """Make the steps of ``program``, a Program or the body of a loop or branch.

        Once all steps are known, epilogues are folded into products, and copies are
        elided. Both rewrites find the calls that they may change in ``redirectable``,
        by the identity of the call's step. ``redirectable`` and ``pairs`` belong to one
        block: those of the enclosing block are restored at the end.
        """
        outside, self.redirectable = self.redirectable, {}
        pairs, self.pairs = self.pairs, pairs_of(program)
        steps = super().block(program)
        self.pairs = pairs
        outputs = [self.storage.of(a) for a in program.outputs if isinstance(a, Var)]
        if self.has_unread_steps:
            steps = without_unread(steps, outputs, self.storage)
        for rewrite in (EpilogueFolding, CopyElision):
            redirectable = {
                position: self.redirectable[id(step)]
                for position, step in enumerate(steps)
                if id(step) in self.redirectable
            }
            rewritten = rewrite(steps, redirectable, outputs, self.storage.of)
            steps, changed = rewritten.run()
            for position, producer in changed.items():
                steps[position] = self.call_of(producer)
                self.redirectable[id(steps[position])] = producer
        self.redirectable = outside
        return steps

    @override
    def units(self, program: Program) -> tuple[Unit, ...]:
        """Group the equations that become one nest each; leave others single.

        In persistent mode, a reduction of more than ``ROW_OF_A_BLOCK`` elements is not
        fused with the equations that read its result.
        """
        if not self.options.fused:
            return super().units(program)
        chains = sums_with_products(program, self.reads)
        is_persistent = self.options.mode == "persistent"
        return fuse(
            program,
            chains,
            clone_cost=CLONE_COST,
            short=ROW_OF_A_BLOCK if is_persistent else maxsize,
        )

    @override
    def single(self, equation: Equation, outputs: AbstractSet[Var]) -> None:
        """Append the steps of an equation that is in no fused group.

        The first of these that applies computes it: a kernel that is registered for the
        equation; the lowering of pooling, of convolutions, and of products (as a skinny
        product, outside of loops and branches, or as a library call); or the same
        lowering as on a CPU. ``outputs`` are the Program's.
        """
        primitive = primitive_of(equation)
        fixed = self.options.deterministic
        kernel = KERNELS.for_call(equation, "cuda", fixed)
        if kernel is not None and kernel.lowered:
            # Its function makes calls of kernels of generated text.
            self.add_all(kernel.function(equation, self.reads))
            return
        if kernel is not None:
            self.add_redirectable(OperatorCall(equation, kernel, self.reads))
            return
        if is_pool(equation):
            self.pool(equation)
            return
        if is_library_convolution(equation):
            self.add_all(convolution(equation, self.reads, fixed))
            return
        if not isinstance(primitive.kernel, Contraction):
            super().single(equation, outputs)
            return
        call = product(equation, self.reads, self.tiles, provider_of(equation))
        skinny = None if self.control_depth else skinny_product(call, self.gpu)
        if skinny is None:
            self.add_redirectable(Product(call))
        else:
            self.handwritten(skinny)

    def pool(self, equation: Equation) -> None:
        """Append the kernel that computes the pooling ``equation``, and its pair.

        If the kernel of the pair has been appended already, it computes this equation,
        too, and nothing is appended.
        """
        if equation in self.computed_pools:
            return
        other = self.pairs.get(equation)
        if other is not None:
            self.computed_pools.add(other)
        self.handwritten(pool(equation, other, self.reads))

    def add_redirectable(self, producer: RedirectableCall) -> None:
        """Append the step of ``producer``, a call that can write its result elsewhere.

        ``redirectable`` records the producer by the identity of its step.
        """
        self.steps.append(self.call_of(producer))
        self.redirectable[id(self.steps[-1])] = producer

    def call_of(self, producer: RedirectableCall) -> CallStep:
        """Make the step of the library call ``producer``, without appending it.

        ``library`` appends its step to ``self.steps``: a temporary list catches the
        step.
        """
        outside, self.steps = self.steps, []
        self.library(producer.call())
        (step,) = self.steps
        assert isinstance(step, CallStep)
        step.over = list(producer.over())
        self.steps = outside
        return step

    @override
    def nest(self, nest: Nest) -> None:
        """Append the steps of ``nest``, with computed indices fused into it.

        A long reduction is split into several nests, each a step.
        """
        fused = fuse_index_computation(nest, self.steps, self.uses, self.storage.of)
        self.has_unread_steps |= fused is not nest
        self.steps += [
            NestStep(piece, partials=[]) for piece in split_nest(fused, self.gpu)
        ]

    def with_slice_strides(self, nest: Nest) -> Nest:
        """Set the field ``moves`` of operands of ``nest`` that are slices in a loop.

        It is the number of elements from one iteration's slice to the next. Whether
        vectors are aligned depends on it.
        """
        operands = tuple(
            replace(o, moves=self.slice_strides.get(self.storage.of(o.array), 0))
            for o in nest.operands
        )
        return nest if operands == nest.operands else replace(nest, operands=operands)

    @override
    def printed(self, steps: Sequence[PlanStep]) -> list[PlanStep]:
        """Print the nests among ``steps`` of a block; return calls in their place.

        Before, record the strides of loops' slices, which schedules depend on. In
        persistent mode, the outermost block's calls become persistent kernels.
        """
        for step in steps:
            for s in step.slices if isinstance(step, LoopStep) else ():
                self.slice_strides[self.storage.of(s.inner)] = s.inner.type.size
            for c in step.carries if isinstance(step, LoopStep) else ():
                # The current value is the initial one in the first iteration: if that
                # is a slice of an outer loop, both begin at the same address.
                size = self.slice_strides.get(self.storage.of(c.initial), 0)
                if size:
                    self.slice_strides[self.storage.of(c.current)] = size
        self.depth += 1
        done = super().printed(steps)
        self.depth -= 1
        if self.options.mode == "persistent" and not self.depth:
            done = self.composed(done)
        return done

    def composed(self, steps: Sequence[PlanStep]) -> list[PlanStep]:
        """Replace each run of ``steps`` that can be one persistent kernel by its call.

        A run is a sequence of neighbours. It ends before a step that cannot join, or
        that would exceed the limits of one kernel. Bodies and branches of steps that
        cannot join are composed by themselves.
        """
        done: list[PlanStep] = []
        run: list[PlanStep] = []
        for step in steps:
            can_join = persistent.can_join(step, self.kernels)
            if run and not (
                can_join and persistent.fits_limits([*run, step], self.kernels)
            ):
                done += self.joined(run)
                run = []
            if can_join:
                run.append(step)
                continue
            if isinstance(step, LoopStep):
                step.body = self.composed(step.body)
            elif isinstance(step, BranchStep):
                step.branches = [self.composed(branch) for branch in step.branches]
            done.append(step)
        return done + self.joined(run)

    def joined(self, steps: list[PlanStep]) -> list[PlanStep]:
        """Return the call of one persistent kernel for ``steps``, as a list.

        Returns ``steps`` as they are if they have fewer than two launches, or cannot be
        one kernel. The kernel's barrier state becomes a constant of the plan: one zero.
        """
        if persistent.estimate_launches(steps) < 2:
            return steps
        try:
            kernel, call, barrier_state = compose(
                steps,
                self.fresh("persistent"),
                self.kernels,
                self.gpu.multiprocessors,
                self.storage.of,
                self.names,
            )
        except CannotComposeError:
            return steps
        call.kernel = self.add_kernel(kernel)
        call.origins = self.origins.of_steps(steps, self.names)
        self.constants.append((barrier_state, np.zeros(1, np.uint32)))
        return [call]

    @override
    def print(self, step: NestStep) -> CallStep:
        """Print the kernel of the nest of ``step``; return the kernel's call.

        In persistent mode its blocks have the size of a persistent kernel's, if
        possible.
        """
        step.nest = self.with_slice_strides(step.nest)
        schedule = choose(step.nest, self.gpu)
        if self.options.mode == "persistent":
            schedule = persistent.with_block_size(schedule, step.nest) or schedule
        name = self.fresh(schedule.stem)
        return self.scheduled(print_kernel(step.nest, name, schedule))

    @override
    def print_loop(self, loop: LoopStep) -> CallStep:
        """Print ``loop`` as one kernel; return the kernel's call.

        A loop with independent elements (``lanes``) gets a thread for each element. Any
        other loop is the CPU's kernel, run by one thread: its range of items ``begin,
        end`` becomes two arguments, and its scratch memory an array.
        """
        if loop.lanes:
            name = self.fresh("loop")
            threads = threads_for(loop.lanes, self.gpu)
            if self.options.mode == "persistent":
                threads = persistent.THREADS
            # A work item of the call is a block.
            printer = partial(ElementLoopPrinter, threads=threads)
            printed, call = kernel_of(printer, loop, name, self.storage, self.names)
            call.kernel = self.add_kernel(printed)
            return call
        call = super().print_loop(loop)
        kernel = self.kernels[call.kernel]
        assert isinstance(kernel, Kernel)
        # Kernels of a CPU have no threads. This one may be of an equal loop, which has
        # been converted already.
        if not kernel.threads:
            items = tuple(Parameter(name, "i64") for name in ("begin", "end"))
            parameters = (*kernel.parameters, *items)
            printed = replace(kernel, threads=1, parameters=parameters)
            self.kernels[call.kernel] = printed
        call.integers = [*call.integers, 0, call.items]
        call.items = min(1, call.items)
        if call.scratch:
            # A GPU's threads have no scratch memory. An array does, as there is only
            # one thread.
            memory = Var(ArrayType((call.scratch_bytes,), dtypes.uint8))
            call.pointers += [(memory, offset) for offset in call.scratch]
            call.writes.append(memory)
            call.scratch, call.scratch_bytes = [], 0
        return call

    @override
    def template(self, form: Template, equation: Equation) -> None:
        """Append the steps of ``equation``, whose primitive has the template ``form``.

        Scans are cut into parts by their schedules. Scatters whose updates may have
        equal targets combine these updates in parallel. All other templates are lowered
        as on a CPU.
        """
        if form.name in SCANS and self.options.mode != "persistent":
            # ``choose`` cuts long rows into parts for blocks, so the nest stays whole.
            self.add_all(scan(equation, self.reads, self.names, cut=self.serial))
            return
        if (
            self.serial
            or form.name not in SCATTERS
            or not combines_in_parallel(equation)
        ):
            super().template(form, equation)
            return
        fixed = self.options.deterministic
        vectors = not self.control_depth  # in loops, slices may begin unaligned
        operand = equation.inputs[0]
        source = copied_last(self.steps, operand, self.uses)
        parts = choose_parts(
            equation,
            self.reads,
            deterministic=fixed,
            vectors=vectors,
            copied=source is not None,
        )
        arguments = (equation, self.reads, self.names, self.gpu)
        if parts is not None:
            if source is not None:
                # The parts write all targets. They read the source of the copy, so the
                # copy is dropped.
                del self.steps[-1]
                operand = source
            assert isinstance(operand, Var)
            self.add_all(scatter_by_parts(parts, *arguments, operand))
            return
        self.take_over(equation)
        self.add_all(scatter(*arguments, deterministic=fixed, vectors=vectors))

    @override
    def control(self, equation: Equation) -> None:
        """Append the steps of a loop or a branch.

        A batched ``while`` loop whose elements are independent becomes one kernel.
        ``control_depth`` counts the loops and branches around an equation. Inside them,
        arrays may be slices of others, so kernels assume less about alignment.
        """
        self.control_depth += 1
        if not self.add_per_element_while(equation):
            super().control(equation)
        self.control_depth -= 1

    def add_per_element_while(self, equation: Equation) -> bool:
        """Append a batched ``while_loop`` as a loop whose elements end one by one.

        Returns False, and appends nothing, if ``equation`` is not of that form, or if
        something reads its last output: whether any element goes on.
        """
        element_loop = None if self.serial else per_element_while(equation)
        if element_loop is None or self.uses[equation.outputs[-1]]:
            return False
        step = loop_of(equation, element_loop, self.reads, self.storage, self.block)
        lanes = lanes_of(step)
        if lanes:
            side_by_side(step, lanes)
            self.steps.append(step)
            self.has_unread_steps = True
        return lanes > 0

    @override
    def library_equation(self, form: Library, equation: Equation) -> None:
        """Append the steps of ``equation``, whose primitive has the library ``form``.

        Sorts are handwritten kernels. Other equations call NVIDIA's library where there
        is one, else NumPy on the host.
        """
        if can_sort(equation):
            self.add_all(sort(equation, self.reads, self.gpu))
            return
        make = LIBRARIES.get(form.name)
        if make is None or not equation.inputs[0].type.size:
            self.library(reference_call(equation, self.reads))
            return
        if form.in_place:  # the library overwrites the operand
            self.take_over(equation)
        self.add_all(make(MatrixEquation(equation, self.reads, self.names)))

    def add_all(self, steps: Iterable[Lowered]) -> None:
        """Append ``steps``: nests, library calls and calls of handwritten kernels."""
        for step in steps:
            if isinstance(step, Nest):
                self.nest(step)
            elif isinstance(step, LibraryCall):
                self.library(step)
            else:
                self.handwritten(step)

    def handwritten(self, call: HandwrittenCall) -> None:
        """Append the step that launches the handwritten kernel of ``call``.

        Its flag buffer, if it has one, becomes memory that is zeroed before the first
        launch.
        """
        kernel = call.kernel(self.fresh(call.text.stem))
        if call.flag_buffer is not None:
            self.flag_buffer(call.flag_buffer)
        self.steps.append(call.step(self.add_kernel(kernel)))

    @override
    def lanes(self, loop: LoopStep) -> int:
        """Return how many threads run ``loop``, one for each element.

        0 if elements of the loop are not independent.
        """
        return lanes_of(loop)

    @override
    def is_serial(self, equation: Equation) -> bool:
        """Return whether one thread runs the loop ``equation`` as one kernel.

        It does so if the loop is tiny. One thread of a GPU is slow, but launching
        kernels in each iteration of a tiny loop takes longer.
        """
        programs = equation.subprograms()
        return super().is_serial(equation) and all(
            is_small(p, MAX_SERIAL_WORK) for p in programs
        )

    @override
    def tiles(self, gemm: Gemm, dtype: DType) -> GemmTiles:
        """Return one tile for the whole product: the library spreads it over the GPU.

        A product without elements has no tile.
        """
        items = min(1, gemm.batch * gemm.m * gemm.n)
        return GemmTiles(items, max(1, gemm.m), max(1, gemm.n), grain=1)
