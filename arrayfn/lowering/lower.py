"""Program -> CompiledProgram for a CPU: passes, fusion, nests, kernels, plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import BackendError
from arrayfn.ir import ArrayType, Equation, Program, Var
from arrayfn.ir.format import format_program, name_vars
from arrayfn.lowering.build import build_nest
from arrayfn.lowering.compiled import CompiledProgram, Once, with_types_of
from arrayfn.lowering.contraction import Gemm
from arrayfn.lowering.control_flow import control_step
from arrayfn.lowering.cpu.lanes import lanes_of, side_by_side
from arrayfn.lowering.cpu.schedule import is_split, shape_of
from arrayfn.lowering.cpu.serial import BLOCK, LoopPrinter, kernel_of
from arrayfn.lowering.cpu.source import print_kernel
from arrayfn.lowering.fusion import FusedGroup, Unit, fuse, unfused_units
from arrayfn.lowering.gemm_tiles import GemmTiles, gemm_tiles
from arrayfn.lowering.host_steps import operator_call_of
from arrayfn.lowering.in_place import Scope, Storage, place_results
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.kernel_printer import ScheduledKernel, scratch_offsets
from arrayfn.lowering.kernel_text import Partial, with_kernel_names
from arrayfn.lowering.libraries import LIBRARIES
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer
from arrayfn.lowering.libraries.packed_products import packed_product
from arrayfn.lowering.libraries.products import product
from arrayfn.lowering.libraries.windows import array_uses, without_copy
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.origins import Origins
from arrayfn.lowering.plan import Kernel, LibraryKernel
from arrayfn.lowering.planning import make_plan
from arrayfn.lowering.row_totals import drop_unread, with_totals
from arrayfn.lowering.split import split
from arrayfn.lowering.steps import BranchStep, CallStep, LoopStep, NestStep, PlanStep
from arrayfn.lowering.templates import TEMPLATES
from arrayfn.lowering.verification import verified
from arrayfn.passes.known_constants import split_known
from arrayfn.passes.layout_assignment import with_donated
from arrayfn.passes.pipeline import pipeline, run_passes
from arrayfn.passes.reads import Read, resolve_reads
from arrayfn.passes.small import has_fixed_loop, has_products, is_small
from arrayfn.primitives.base import (
    Contraction,
    Control,
    Library,
    Template,
    View,
    primitive_of,
)

_PASSES: Final = pipeline(keep=KERNELS.has_for("cpu"))


_PASSES_WITHOUT_LIBRARY: Final = pipeline(products=frozenset())


def lower(
    program: Program,
    donated: frozenset[int] = frozenset(),
    check: bool = False,
    options: Options = DEFAULT,
) -> CompiledProgram:
    """Lower ``program`` to kernels and an execution plan for CPUs.

    Args:
        program: a Program, before the passes.
        donated: the indices of the inputs that may be overwritten.
        check: whether types are verified between passes.
        options: what the caller chose about lowering.
    """
    chosen = _PASSES if options.library_products else _PASSES_WITHOUT_LIBRARY
    *passes, _ = chosen  # the last one assigns layouts, without donated inputs

    def lowered(part: Program, donated: frozenset[int]) -> CompiledProgram:
        """Lower a part of the Program; inputs ``donated`` may be overwritten."""
        layouts = partial(with_donated, donated=donated)
        laid_out = run_passes(part, check, (layouts,))
        return Lowering(laid_out, donated, options).run()

    simplified = run_passes(program, check, tuple(passes))
    return with_types_of(program, in_two_parts(simplified, donated, lowered))


def in_two_parts(
    program: Program,
    donated: frozenset[int],
    lowered: Callable[[Program, frozenset[int]], CompiledProgram],
) -> CompiledProgram:
    """Lower what depends on constants alone, and the rest, as two Programs.

    The first is computed once, before the first call. Both are verified, the second
    with the results of the first.

    Args:
        program: a Program after all passes but layout assignment.
        donated: the numbers of the inputs that may be overwritten.
        lowered: lowers a part, given the inputs that may be overwritten.
    """
    first, rest = split_known(program)
    compiled = lowered(rest, donated)
    if first is not None:
        count = len(rest.constants) - len(first.outputs)
        known = verified(lowered(first, frozenset()), ())
        compiled = replace(compiled, once=Once(known, count))
    return verified(compiled, donated)


class Lowering:
    """Lowers one Program, as the passes left it. Other targets derive from this class.

    Attributes:
        donated: the inputs that may be overwritten.
        reads: the array and index map behind each Var.
        names: the name that kernels give each Var.
        kernels: the kernels so far, by name.
        by_key: the name of each kernel by its ``key``, so that equal kernels are one.
        steps: the steps of the block that is being lowered.
        uses: how often each array of that block is used.
        storage: the array in whose memory each Var lies.
        counts: by the stem of kernels' names, the number that the next kernel with this
            stem gets.
        serial: whether the block is the body of a loop that becomes one kernel.
        constants: arrays that kernels need besides the Program's, with their values.
    """

    target = "cpu"
    loop_printer: type[LoopPrinter] = LoopPrinter
    """Prints the kernels of small loops."""
    reserved: AbstractSet[str] = frozenset()
    """Words of the target's kernels, besides those that all targets have."""

    def __init__(
        self, program: Program, donated: frozenset[int], options: Options
    ) -> None:
        """Begin without kernels and steps; ``donated`` has the numbers of inputs."""
        self.program = program
        self.options = options
        self.donated = {program.inputs[k] for k in donated}
        self.reads: dict[Var, Read] = {}
        self.names: dict[Var, str] = {}
        self.kernels: dict[str, Kernel | LibraryKernel] = {}
        self.by_key: dict[str, str] = {}
        self.steps: list[PlanStep] = []
        self.uses: Counter[Var] = Counter()
        self.storage = Storage()
        self.counts: dict[str, int] = {}
        self.serial = False
        self.constants: list[tuple[Var, np.ndarray[Any, Any]]] = []
        self.origins = Origins(program)

    def run(self) -> CompiledProgram:
        """Lower the whole Program to kernels and a plan.

        Blocks are lowered to steps, results are placed in memory, kernels are printed,
        and the plan is made, in this order.
        """
        steps = self.block(self.program)
        outputs = {a for a in self.program.outputs if isinstance(a, Var)}
        donated: dict[Var, Var | None] = dict.fromkeys(self.donated)
        place_results(steps, self.storage, Scope(outputs, donated))
        printed = self.printed(steps)
        self.origins.complete(printed)
        program = self.program
        if self.constants:  # arrays that kernels need, such as flags
            names, values = zip(*self.constants, strict=True)
            program = replace(
                program,
                constants=(*program.constants, *names),
                constant_values=(*program.constant_values, *values),
            )
        return CompiledProgram(
            name=self.program.name,
            target=self.target,
            text=format_program(self.program),
            input_types=self.program.input_types,
            output_types=self.program.output_types,
            kernels=tuple(self.kernels.values()),
            plan=make_plan(program, self.donated, printed, self.storage),
            constants=program.constant_values,
        )

    def block(self, program: Program) -> list[PlanStep]:
        """Lower ``program``, the whole Program or a body, to steps.

        The state of an enclosing block (``steps``, ``uses``) is restored at the end.
        """
        self.reads |= resolve_reads(program)
        names = name_vars(program)
        arguments = (*program.inputs, *program.constants)
        self.names |= with_kernel_names(names, arguments, self.reserved)
        outside, self.steps = self.steps, []
        uses, self.uses = self.uses, array_uses(program, self.reads)
        outputs = {a for a in program.outputs if isinstance(a, Var)}
        for unit in self.units(program):
            if isinstance(unit, FusedGroup):
                self.nest(build_nest(unit, self.reads, self.names))
            else:
                before = len(self.steps)
                self.single(unit.equation, outputs)
                self.origins.share(self.steps[before:], unit.equation)
        steps, self.steps = self.steps, outside
        self.uses = uses
        drop_unread(steps, outputs, self.storage)
        return steps

    def units(self, program: Program) -> tuple[Unit, ...]:
        """Return the units of ``program``: the equations of each kernel or step."""
        return fuse(program) if self.options.fused else unfused_units(program)

    def printed(self, steps: Sequence[PlanStep]) -> list[PlanStep]:
        """Print the kernels of nests and serial loops.

        Returns ``steps`` with calls in place of these. The same is done inside other
        loops and branches.
        """
        calls: list[PlanStep] = []
        for step in steps:
            if isinstance(step, NestStep):
                call = self.print(step)
                call.updates = step.updates
                origins = self.origins.of_nest(step.nest, self.names)
                call.origins = origins or step.origins
                calls.append(call)
                continue
            if isinstance(step, LoopStep) and step.serial:
                call = self.print_loop(step)
                of = self.storage.of
                call.updates = [
                    c.result for c in step.carries if of(c.initial) is of(c.result)
                ]
                call.origins = self.origins.of_steps([step], self.names)
                calls.append(call)
                continue
            if isinstance(step, LoopStep):
                step.body = self.printed(step.body)
            elif isinstance(step, BranchStep):
                step.branches = [self.printed(branch) for branch in step.branches]
            calls.append(step)
        return calls

    # Nests.

    def nest(self, nest: Nest) -> None:
        """Add the step of ``nest``, or the two steps of a split reduction."""
        if is_split(nest) and not self.serial:
            first, second, partials = split(nest)
            self.partial(first, partials)
            self.steps.append(NestStep(second, []))
        else:
            self.steps.append(NestStep(nest, []))

    def partial(self, nest: Nest, partials: list[Partial]) -> None:
        """Add the first half of a split reduction, which stores ``partials``.

        If the previous step computes rows of the same arrays, both become one nest.
        """
        previous = self.steps[-1] if self.steps else None
        fused = self.options.fused
        if fused and isinstance(previous, NestStep) and not previous.partials:
            merged = with_totals(previous.nest, nest)
            if merged is not None:
                self.steps[-1] = NestStep(merged, partials)
                return
        self.steps.append(NestStep(nest, partials))

    def print(self, step: NestStep) -> CallStep:
        """Print the kernel of a nest; return its call."""
        is_partial = step.partials and not step.nest.has_totals
        stem = "partial" if is_partial else shape_of(step.nest)
        return self.scheduled(print_kernel(step.nest, self.fresh(stem), step.partials))

    def print_loop(self, loop: LoopStep) -> CallStep:
        """Print the kernel of a serial loop; return its call."""
        name = self.fresh("loop")
        kernel, call = kernel_of(
            self.loop_printer, loop, name, self.storage, self.names
        )
        call.kernel = self.add_kernel(kernel)
        return call

    def fresh(self, stem: str) -> str:
        """Return a kernel name that is not used yet: ``stem`` and a number."""
        number = self.counts.get(stem, 0)
        self.counts[stem] = number + 1
        return f"{stem}_{number}"

    def scheduled(self, scheduled: ScheduledKernel) -> CallStep:
        """Add a printed kernel to the program; return its call."""
        name = self.add_kernel(scheduled.kernel)
        scratch, scratch_bytes = scratch_offsets(
            scratch_row.nbytes for scratch_row in scheduled.scratch
        )
        pointers = [(o.array, o.offset * o.dtype.itemsize) for o in scheduled.arrays]
        # Arrays that the Program does not have: no equation computes them.
        own = [p.array for p in scheduled.partials]
        if scheduled.flag_buffer is not None:
            own.append(scheduled.flag_buffer)
            self.flag_buffer(scheduled.flag_buffer)
        pointers += [(array, 0) for array in own]
        return CallStep(
            kernel=name,
            pointers=pointers,
            scratch=scratch,
            integers=[i.value for i in scheduled.integers],
            items=scheduled.items,
            grain=scheduled.grain,
            scratch_bytes=scratch_bytes,
            reads=[o.array for o in scheduled.arrays if not o.written],
            writes=[o.array for o in scheduled.arrays if o.written] + own,
        )

    def flag_buffer(self, flag_buffer: Var) -> None:
        """Allocate ``flag_buffer`` as a constant that holds zeros."""
        zeros = np.zeros(flag_buffer.type.shape, flag_buffer.type.dtype)
        self.constants.append((flag_buffer, zeros))

    def add_kernel(self, kernel: Kernel) -> str:
        """Add ``kernel`` unless one has the same key; return the name of either."""
        existing = self.by_key.get(kernel.key)
        if existing is None:
            self.by_key[kernel.key] = kernel.name
            self.kernels[kernel.name] = kernel
            return kernel.name
        # The name is not used: the next kernel of this stem gets its number.
        stem, _, number = kernel.name.rpartition("_")
        self.counts[stem] = int(number)
        return existing

    # Units of one equation.

    def single(self, equation: Equation, outputs: AbstractSet[Var]) -> None:
        """Add the steps of an equation that is lowered by itself.

        If an operator has a registered kernel, that is called; otherwise the kernel
        form of the primitive decides. ``outputs`` are the Program's.
        """
        primitive = primitive_of(equation)
        kernel = KERNELS.for_call(equation, self.target)
        if kernel is not None:
            if kernel.lowered:
                for call in kernel.function(equation, self.reads):
                    self.library(call)
            else:
                self.library(
                    operator_call_of(equation, kernel, self.reads, destinations={})
                )
        elif isinstance(primitive.kernel, View):
            operand = equation.inputs[0]
            assert isinstance(operand, Var)
            output, base = equation.outputs[0], self.reads[operand].base
            if output in outputs:
                # The layout pass has seen to it that nothing else needs the base.
                self.storage.put(base, into=output)
            else:
                self.storage.put(output, into=base)
        elif isinstance(primitive.kernel, Contraction):
            call = product(equation, self.reads, self.tiles)
            for step in without_copy(call, self.steps, self.uses):
                if isinstance(step, Nest):
                    self.nest(step)
                else:
                    self.library(packed_product(step))
        elif isinstance(primitive.kernel, Template):
            self.template(primitive.kernel, equation)
        elif isinstance(primitive.kernel, Library):
            self.library_equation(primitive.kernel, equation)
        elif isinstance(primitive.kernel, Control):
            self.control(equation)
        else:
            raise BackendError(
                f"{primitive.name} has no kernel yet; use device='reference'",
                equation.source,
            )

    def template(self, form: Template, equation: Equation) -> None:
        """Add the nests of the template ``form`` for ``equation``."""
        if form.in_place:
            self.take_over(equation)
        for nest in TEMPLATES[form.name](equation, self.reads, self.names):
            self.nest(nest)

    def take_over(self, equation: Equation) -> None:
        """Store the first output in the memory of the first operand."""
        target = equation.inputs[0]
        assert isinstance(target, Var)
        self.storage.put(target, into=equation.outputs[0])

    def library_equation(self, form: Library, equation: Equation) -> None:
        """Add the library calls that compute ``equation``."""
        if form.in_place:
            self.take_over(equation)
        for call in LIBRARIES[form.name](equation, self.reads):
            self.library(call)

    def control(self, equation: Equation) -> None:
        """Add the step of a loop or branch, with its body lowered."""
        outside = self.serial
        is_fixed = has_fixed_loop(equation)
        self.serial = outside or (not is_fixed and self.is_serial(equation))
        step = control_step(equation, self.reads, self.storage, self.block)
        if isinstance(step, LoopStep):
            step.serial = self.serial
            lanes = 0 if outside or is_fixed else self.lanes(step)
            if lanes:
                side_by_side(step, lanes)
        self.serial = outside
        self.steps.append(step)

    def lanes(self, loop: LoopStep) -> int:
        """Return the number of elements that ``loop`` iterates independently, or 0.

        Such a loop is one kernel, in which each work item is a block of elements.
        """
        lanes = lanes_of(loop)
        return lanes if lanes >= BLOCK or not loop.serial else 0

    def is_serial(self, equation: Equation) -> bool:
        """Whether a loop becomes one kernel, because its body is small.

        A branch never does.
        """
        programs = equation.subprograms()
        is_loop = equation.primitive.name != "cond"
        return is_loop and all(is_small(p) and not has_products(p) for p in programs)

    def library(self, call: LibraryCall) -> None:
        """Add the step of a library call, and its kernel.

        A call that only one thread runs uses temporaries in place of scratch memory,
        which is allocated for every thread.
        """
        kernel = call.kernel()
        self.kernels.setdefault(kernel.name, kernel)
        pointers = [*call.reads.values(), *call.writes.values()]
        writes = [pointer.array for pointer in call.writes.values()]
        nbytes = list(call.scratch.values())
        if call.items <= call.grain:
            # One thread runs it: others need no scratch memory of that size.
            temporaries = [Var(ArrayType((size,), dtypes.uint8)) for size in nbytes]
            pointers += [Pointer(array) for array in temporaries]
            writes += temporaries
            nbytes = []
        scratch, scratch_bytes = scratch_offsets(nbytes)
        self.steps.append(
            CallStep(
                kernel=kernel.name,
                pointers=[
                    (p.array, p.offset * p.array.type.dtype.itemsize) for p in pointers
                ],
                scratch=scratch,
                integers=list(call.integers.values()),
                items=call.items,
                grain=call.grain,
                scratch_bytes=scratch_bytes,
                reads=[pointer.array for pointer in call.reads.values()],
                writes=writes,
                over=list(call.over),
            )
        )

    def tiles(self, gemm: Gemm, dtype: DType) -> GemmTiles:
        """Return the tiles of a product: the work items of its library call."""
        return gemm_tiles(gemm.m, gemm.n, gemm.k, gemm.batch, dtype)
