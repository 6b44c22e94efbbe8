"""Program -> CompiledProgram for a CPU: passes, fusion, nests, kernels, plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from arrayfn.dtypes import DType
from arrayfn.errors import BackendError
from arrayfn.ir import Equation, Program, Var
from arrayfn.ir_format import format_program, name_vars
from arrayfn.lowering import libraries, templates
from arrayfn.lowering.build import build_nest
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.contraction import Gemm
from arrayfn.lowering.cpu.schedule import CPU, is_split, shape_of
from arrayfn.lowering.cpu.source import print_kernel
from arrayfn.lowering.fusion import FusedGroup, fuse
from arrayfn.lowering.gemm_tiles import GemmTiles, gemm_tiles
from arrayfn.lowering.in_place import Storage, write_in_place
from arrayfn.lowering.kernel_ir import Nest
from arrayfn.lowering.kernel_printer import Partial, ScheduledKernel
from arrayfn.lowering.libraries.calls import LibraryCall
from arrayfn.lowering.libraries.products import product
from arrayfn.lowering.memory import ALIGNMENT, Lifetime, lay_out
from arrayfn.lowering.plan import (
    Argument,
    BufferAllocation,
    BufferArgument,
    BufferKind,
    ExecutionPlan,
    Kernel,
    KernelCall,
    LibraryKernel,
    ScratchArgument,
)
from arrayfn.lowering.split import split
from arrayfn.passes.pipeline import run_passes
from arrayfn.passes.reads import resolve_reads
from arrayfn.primitives.base import Contraction, Library, Primitive, Template, View


@dataclass
class _Call:
    """A step before buffers have numbers: pointers are (Var, byte offset)."""

    kernel: str
    pointers: list[tuple[Var, int]]
    scratch: list[int]
    integers: list[int]
    items: int
    grain: int
    scratch_bytes: int
    reads: list[Var]
    writes: list[Var]

    def arrays(self) -> list[Var]:
        return [*self.reads, *self.writes]


def lower(
    program: Program, donated: frozenset[int] = frozenset(), check: bool = False
) -> CompiledProgram:
    """``program`` as kernels and an execution plan for CPUs.

    Inputs ``donated`` may be overwritten. ``check`` verifies types between passes.
    """
    return Lowering(run_passes(program, check), donated).run()


@dataclass
class NestStep:
    """A step before it is printed; ``partials`` if it is half of a split reduction."""

    nest: Nest
    partials: list[Partial]

    def arrays(self) -> list[Var]:
        arrays = [o.array for o in self.nest.operands]
        return arrays + [p.array for p in self.partials]

    @property
    def writes(self) -> list[Var]:
        return [o.array for o in self.nest.operands if o.written]


class Lowering:
    """Lowers one Program, as passes left it. Other targets derive from it."""

    def __init__(self, program: Program, donated: frozenset[int]) -> None:
        self.program = program
        self.donated = {program.inputs[k] for k in donated}
        self.reads = resolve_reads(program)
        self.names = name_vars(program)
        self.kernels: dict[str, Kernel | LibraryKernel] = {}
        self.by_key: dict[str, str] = {}
        self.steps: list[NestStep | _Call] = []
        self.calls: list[_Call] = []
        self.storage = Storage()
        self.counts: dict[str, int] = {}

    def run(self) -> CompiledProgram:
        for unit in fuse(self.program):
            if isinstance(unit, FusedGroup):
                self.nest(build_nest(unit, self.reads, self.names))
            else:
                self.single(unit.equation)
        self.write_in_place()
        for step in self.steps:
            if isinstance(step, NestStep):
                self.print(step)
            else:
                self.calls.append(step)
        plan = self.plan()
        return CompiledProgram(
            name=self.program.name,
            target="cpu",
            text=format_program(self.program),
            input_types=self.program.input_types,
            output_types=self.program.output_types,
            kernels=tuple(self.kernels.values()),
            plan=plan,
            constants=self.program.constant_values,
        )

    # Nests.

    def nest(self, nest: Nest) -> None:
        if is_split(nest):
            first, second, partials = split(nest)
            self.steps.append(NestStep(first, partials))
            self.steps.append(NestStep(second, []))
        else:
            self.steps.append(NestStep(nest, []))

    def write_in_place(self) -> None:
        """Let results take the memory of operands that nothing needs any more."""
        of = self.storage.of
        last: dict[Var, int] = {}
        for number, step in enumerate(self.steps):
            last.update((of(var), number) for var in step.arrays())
        outputs = {of(a) for a in self.program.outputs if isinstance(a, Var)}
        fixed = {*self.program.inputs, *self.program.constants} - self.donated
        touched: set[Var] = set()
        for number, step in enumerate(self.steps):
            taken = [of(var) for var in step.writes if of(var) in touched]
            touched.update(of(var) for var in step.arrays())
            if not isinstance(step, NestStep) or taken:
                # What an earlier step wrote a part of must stay where it is.
                continue
            dying = {
                root
                for var in step.arrays()
                if last[root := of(var)] == number and root not in fixed | outputs
            }
            before = [(var, last[of(var)]) for var in step.arrays()]
            step.nest = write_in_place(
                step.nest, self.storage, dying, outputs, self.donated
            )
            for var, end in before:
                last[of(var)] = max(end, last.get(of(var), end))
            touched.update(of(var) for var in step.arrays())

    def donor(self, output: Var) -> int | None:
        """The input that ``output`` is written over, if one was donated for it."""
        return next(
            (
                k
                for k, var in enumerate(self.program.inputs)
                if var in self.donated and self.storage.of(var) is output
            ),
            None,
        )

    def print(self, step: NestStep) -> None:
        stem = "partial" if step.partials else shape_of(step.nest)
        self.scheduled(print_kernel(step.nest, self.fresh(stem), step.partials))

    def fresh(self, stem: str) -> str:
        number = self.counts.get(stem, 0)
        self.counts[stem] = number + 1
        return f"{stem}_{number}"

    def scheduled(self, made: ScheduledKernel) -> None:
        name = self.add_kernel(made.kernel)
        offsets = made.scratch_offsets()
        pointers = [(o.array, o.offset * o.dtype.itemsize) for o in made.arrays]
        pointers += [(p.array, 0) for p in made.partials]
        self.calls.append(
            _Call(
                kernel=name,
                pointers=pointers,
                scratch=offsets[:-1],
                integers=[i.value for i in made.integers],
                items=made.items,
                grain=made.grain,
                scratch_bytes=offsets[-1],
                reads=[o.array for o in made.arrays if not o.written],
                writes=[o.array for o in made.arrays if o.written]
                + [p.array for p in made.partials],
            )
        )

    def add_kernel(self, kernel: Kernel) -> str:
        """The name under which ``kernel`` is known: an equal one's, if there is one."""
        known = self.by_key.get(kernel.key)
        if known is None:
            self.by_key[kernel.key] = kernel.name
            self.kernels[kernel.name] = kernel
            return kernel.name
        stem, _, number = kernel.name.rpartition("_")
        self.counts[stem] = int(number)
        return known

    # Units of one equation.

    def single(self, equation: Equation) -> None:
        row = equation.primitive
        assert isinstance(row, Primitive)
        if isinstance(row.kernel, View):
            (operand,) = equation.inputs
            assert isinstance(operand, Var)
            output, base = equation.outputs[0], self.reads[operand].base
            if output in self.program.outputs:
                # The layout pass has seen to it that nothing else needs the base.
                self.storage.put(base, into=output)
            else:
                self.storage.put(output, into=base)
        elif isinstance(row.kernel, Contraction):
            self.library(product(equation, self.reads, self.tiles))
        elif isinstance(row.kernel, Template):
            self.template(row.kernel, equation)
        elif isinstance(row.kernel, Library):
            self.library_row(row.kernel, equation)
        else:
            raise BackendError(
                f"{row.name} has no kernel yet; use device='reference'",
                equation.source,
            )

    def template(self, form: Template, equation: Equation) -> None:
        if form.in_place:
            self.take_over(equation)
        for nest in templates.nests(form.name, equation, self.reads, self.names):
            self.nest(nest)

    def take_over(self, equation: Equation) -> None:
        """Store the first operand where the first output is, which is written over."""
        target = equation.inputs[0]
        assert isinstance(target, Var)
        self.storage.put(target, into=equation.outputs[0])

    def library_row(self, form: Library, equation: Equation) -> None:
        """A primitive that a library computes. Targets without it refuse it here."""
        if form.in_place:
            self.take_over(equation)
        for call in libraries.calls(form.name, equation, self.reads):
            self.library(call)

    def library(self, call: LibraryCall) -> None:
        kernel = call.kernel()
        self.kernels.setdefault(kernel.name, kernel)
        places = (*call.reads.values(), *call.writes.values())
        sizes = [
            -(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in call.scratch.values()
        ]
        self.steps.append(
            _Call(
                kernel=kernel.name,
                pointers=[
                    (p.array, p.offset * p.array.type.dtype.itemsize) for p in places
                ],
                scratch=[sum(sizes[:k]) for k in range(len(sizes))],
                integers=list(call.integers.values()),
                items=call.items,
                grain=call.grain,
                scratch_bytes=sum(sizes),
                reads=[place.array for place in call.reads.values()],
                writes=[place.array for place in call.writes.values()],
            )
        )

    def tiles(self, gemm: Gemm, dtype: DType) -> GemmTiles:
        """The work items of a product."""
        return gemm_tiles(gemm.m, gemm.n, gemm.k, gemm.batch, dtype, CPU.cores)

    # The plan.

    def plan(self) -> ExecutionPlan:
        buffers: list[BufferAllocation] = []
        numbers: dict[Var, int] = {}

        def add(var: Var, kind: BufferKind, index: int) -> None:
            numbers[var] = len(buffers)
            size = var.type.nbytes
            buffers.append(BufferAllocation(kind, index, var.type, size))

        for index, var in enumerate(self.program.inputs):
            add(var, "input", index)
        for index, atom in enumerate(self.program.outputs):
            assert isinstance(atom, Var)
            add(atom, "output", index)
            buffers[-1] = replace(buffers[-1], donor=self.donor(atom))
        for index, var in enumerate(self.program.constants):
            add(var, "constant", index)
        temporaries: dict[Var, Lifetime] = {}
        for step, call in enumerate(self.calls):
            for var in (*call.reads, *call.writes):
                var = self.storage.of(var)
                if var in numbers:
                    continue
                have = temporaries.get(var, Lifetime(var.type.nbytes, step, step))
                temporaries[var] = replace(have, last=step)
        offsets, arena = lay_out(list(temporaries.values()))
        for index, (var, life) in enumerate(temporaries.items()):
            numbers[var] = len(buffers)
            buffers.append(
                BufferAllocation(
                    "temporary",
                    index,
                    var.type,
                    life.nbytes,
                    offsets[index],
                    life.first,
                    life.last,
                )
            )
        steps = tuple(self.step(call, numbers) for call in self.calls)
        scratch = max((c.scratch_bytes for c in self.calls), default=0)
        return ExecutionPlan(tuple(buffers), steps, arena, scratch, self.estimate())

    def estimate(self) -> int:
        """Nanoseconds the whole plan may take, roughly: whether to release the GIL."""
        return int(sum(c.items / max(1, c.grain) for c in self.calls) * CPU.chunk_ns)

    def step(self, call: _Call, numbers: dict[Var, int]) -> KernelCall:
        def number(var: Var) -> int:
            return numbers[self.storage.of(var)]

        arguments: list[Argument] = [
            BufferArgument(number(var), offset) for var, offset in call.pointers
        ]
        arguments += [ScratchArgument(offset) for offset in call.scratch]
        arguments += call.integers
        return KernelCall(
            kernel=call.kernel,
            arguments=tuple(arguments),
            items=call.items,
            grain=call.grain,
            scratch=call.scratch_bytes,
            reads=tuple(dict.fromkeys(number(v) for v in call.reads)),
            writes=tuple(dict.fromkeys(number(v) for v in call.writes)),
        )
