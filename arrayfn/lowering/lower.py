"""Program -> CompiledProgram for a CPU: passes, fusion, nests, kernels, plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from arrayfn.dtypes import DType, compute_dtype
from arrayfn.errors import BackendError
from arrayfn.ir import ArrayType, Equation, Program, Var
from arrayfn.ir_format import format_program, name_vars
from arrayfn.lowering import templates
from arrayfn.lowering.build import build_nest
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.contraction import as_gemm
from arrayfn.lowering.cpu_schedule import CPU, is_split, shape_of
from arrayfn.lowering.cpu_source import (
    Partial,
    ScheduledKernel,
    chunk_size,
    print_kernel,
)
from arrayfn.lowering.fusion import FusedGroup, fuse
from arrayfn.lowering.gemm_tiles import PROVIDERS, gemm_parameters, gemm_tiles
from arrayfn.lowering.kernel_ir import ArrayOperand, Axis, Load, Nest, Reduce, Value
from arrayfn.lowering.memory import Lifetime, lay_out
from arrayfn.lowering.plan import (
    Argument,
    BufferAllocation,
    BufferArgument,
    ExecutionPlan,
    Kernel,
    KernelCall,
    LibraryKernel,
    ScratchArgument,
)
from arrayfn.passes.pipeline import run_passes
from arrayfn.passes.reads import resolve_reads
from arrayfn.primitives.base import Contraction, Primitive, Template, View


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


def lower(program: Program, check: bool = False) -> CompiledProgram:
    """``program`` as kernels and an execution plan for CPUs."""
    return _Lowering(run_passes(program, check)).run()


class _Lowering:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.reads = resolve_reads(program)
        self.names = name_vars(program)
        self.kernels: dict[str, Kernel | LibraryKernel] = {}
        self.by_key: dict[str, str] = {}
        self.calls: list[_Call] = []
        self.aliases: dict[Var, Var] = {}
        self.counts: dict[str, int] = {}

    def run(self) -> CompiledProgram:
        for unit in fuse(self.program):
            if isinstance(unit, FusedGroup):
                nest = build_nest(unit, self.reads, self.names)
                self.nest(nest)
            else:
                self.single(unit.equation)
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
            self.scheduled(print_kernel(first, self.fresh("partial"), partials))
            self.nest_whole(second)
        else:
            self.nest_whole(nest)

    def nest_whole(self, nest: Nest) -> None:
        self.scheduled(print_kernel(nest, self.fresh(shape_of(nest))))

    def fresh(self, stem: str) -> str:
        number = self.counts.get(stem, 0)
        self.counts[stem] = number + 1
        return f"{stem}_{number}"

    def scheduled(self, made: ScheduledKernel) -> None:
        name = self.add_kernel(made.kernel)
        offsets = made.scratch_offsets()
        pointers = [
            (o.array, o.offset * o.dtype.itemsize) for o in made.arrays
        ]
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
            self.aliases[equation.outputs[0]] = self.reads[operand].base
        elif isinstance(row.kernel, Contraction):
            self.contraction(equation)
        elif isinstance(row.kernel, Template):
            self.template(row.kernel, equation)
        else:
            raise BackendError(
                f"{row.name} has no kernel on the CPU yet; use device='reference'",
                equation.source,
            )

    def template(self, form: Template, equation: Equation) -> None:
        if form.in_place:
            target = equation.inputs[0]
            assert isinstance(target, Var)
            self.aliases[target] = equation.outputs[0]
        for nest in templates.nests(form.name, equation, self.reads, self.names):
            self.nest(nest)

    def contraction(self, equation: Equation) -> None:
        x, y = equation.inputs
        assert isinstance(x, Var) and isinstance(y, Var)
        gemm = as_gemm(equation, self.reads[x], self.reads[y])
        output = equation.outputs[0]
        if gemm is None:
            raise BackendError(
                f"dot_general of {x.type} and {y.type} is no GEMM", equation.source
            )
        dtype = output.type.dtype
        name = PROVIDERS[dtype]
        tiles = gemm_tiles(gemm.m, gemm.n, gemm.k, gemm.batch, dtype, CPU.cores)
        self.kernels.setdefault(
            name, LibraryKernel(name, name, gemm_parameters(dtype), "BLAS")
        )
        a, b = gemm.a, gemm.b
        size = dtype.itemsize
        self.calls.append(
            _Call(
                kernel=name,
                pointers=[
                    (a.base, a.offset * size),
                    (b.base, b.offset * size),
                    (output, 0),
                ],
                scratch=[],
                integers=[
                    gemm.m,
                    gemm.n,
                    gemm.k,
                    a.leading,
                    b.leading,
                    max(gemm.n, 1),
                    int(a.transposed),
                    int(b.transposed),
                    gemm.batch,
                    a.batch_stride,
                    b.batch_stride,
                    gemm.m * gemm.n,
                    tiles.tile_m,
                    tiles.tile_n,
                ],
                items=tiles.items,
                grain=tiles.grain,
                scratch_bytes=0,
                reads=[a.base, b.base],
                writes=[output],
            )
        )

    # The plan.

    def storage(self, var: Var) -> Var:
        while var in self.aliases:
            var = self.aliases[var]
        return var

    def plan(self) -> ExecutionPlan:
        buffers: list[BufferAllocation] = []
        numbers: dict[Var, int] = {}

        def add(var: Var, kind: str, index: int) -> None:
            numbers[var] = len(buffers)
            buffers.append(
                BufferAllocation(kind, index, var.type, var.type.nbytes)  # type: ignore[arg-type]
            )

        for index, var in enumerate(self.program.inputs):
            add(var, "input", index)
        for index, atom in enumerate(self.program.outputs):
            assert isinstance(atom, Var)
            add(atom, "output", index)
        for index, var in enumerate(self.program.constants):
            add(var, "constant", index)
        temporaries: dict[Var, Lifetime] = {}
        for step, call in enumerate(self.calls):
            for var in (*call.reads, *call.writes):
                var = self.storage(var)
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
        return ExecutionPlan(
            tuple(buffers), steps, arena, scratch, self.estimate()
        )

    def estimate(self) -> int:
        """Nanoseconds the whole plan may take, roughly: whether to release the GIL."""
        return int(sum(c.items / max(1, c.grain) for c in self.calls) * CPU.chunk_ns)

    def step(self, call: _Call, numbers: dict[Var, int]) -> KernelCall:
        def number(var: Var) -> int:
            return numbers[self.storage(var)]

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


def split(nest: Nest) -> tuple[Nest, Nest, list[Partial]]:
    """A split reduction: the nest of partial results, what combines them, and where.

    The first nest keeps the element-level statements and the reductions; the second
    reduces the partial results and has the statements after them.
    """
    reduces = [s for s in nest.statements if isinstance(s, Reduce)]
    kept = [k for k, axis in enumerate(nest.axes) if not axis.reduced]
    reduced = [k for k, axis in enumerate(nest.axes) if axis.reduced]
    first, more = reduced[0], reduced[1:]
    inner = [k for k in kept if k > first]
    per_index = math.prod(nest.axes[k].extent for k in more)
    if inner:
        per_index *= min(CPU.column_block, max(1, nest.axes[inner[-1]].extent))
    rows = nest.axes[first].extent
    chunks = -(-rows // chunk_size(rows, per_index))
    outer = [k for k in kept if k not in inner[-1:]]
    shape = [nest.axes[k].extent for k in outer] + [chunks]
    shape += [nest.axes[k].extent for k in inner[-1:]]
    partials = [
        Partial(s, Var(ArrayType(tuple(shape), _stored(s.result.dtype)))) for s in reduces
    ]
    after = _needed_after(nest)
    early = tuple(
        s
        for s in nest.statements
        if isinstance(s, Reduce)
        or s.level == "element"
        or (s.stage == 0 and not _is_store(s))
    )
    operands, early = _only_used(nest.operands, early)
    partial_nest = replace(nest, operands=operands, statements=early)
    combine = _combination(nest, partials, shape, outer, inner[-1:], after)
    return partial_nest, combine, partials


def _stored(dtype: DType) -> DType:
    return compute_dtype(dtype)


def _is_store(statement: object) -> bool:
    return type(statement).__name__ == "Store"


def _needed_after(nest: Nest) -> list[object]:
    """The outer statements: all run again where the partial results are combined."""
    return [
        s for s in nest.statements if not isinstance(s, Reduce) and s.level == "outer"
    ]


def _combination(
    nest: Nest,
    partials: Sequence[Partial],
    shape: Sequence[int],
    outer: Sequence[int],
    inner: Sequence[int],
    after: Sequence[object],
) -> Nest:
    axes = [Axis(nest.axes[k].extent, False) for k in outer]
    axes.append(Axis(shape[len(outer)], True))
    axes += [Axis(nest.axes[k].extent, False) for k in inner]
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    operands: list[ArrayOperand] = []
    statements: list[object] = []
    for partial in partials:
        operands.append(
            ArrayOperand(partial.array, partial.array.type.dtype, tuple(strides), 0, False)
        )
        value = Value(f"{partial.reduce.result.name}_part", partial.reduce.result.dtype)
        statements.append(Load(value, len(operands) - 1, "element", 0))
        statements.append(replace(partial.reduce, argument=value, stage=0))
    for s in after:
        if hasattr(s, "operand"):
            own = nest.operands[s.operand]  # type: ignore[attr-defined]
            places = [own.strides[k] for k in outer]
            places.append(0)
            places += [own.strides[k] for k in inner]
            operands.append(replace(own, strides=tuple(places)))
            s = replace(s, operand=len(operands) - 1)  # type: ignore[type-var]
        if getattr(s, "axis", None) is not None:
            order = [*outer, -1, *inner]
            s = replace(s, axis=order.index(s.axis))  # type: ignore[attr-defined,type-var]
        statements.append(s)
    return Nest(
        tuple(axes),
        tuple(operands),
        tuple(statements),  # type: ignore[arg-type]
        nest.primitives,
        f"combines the partial results of chunks; {nest.reason}",
    )


def _only_used(
    operands: Sequence[ArrayOperand], statements: Sequence[object]
) -> tuple[tuple[ArrayOperand, ...], tuple[object, ...]]:
    """Only the operands that ``statements`` touch, renumbered."""
    used = sorted({s.operand for s in statements if hasattr(s, "operand")})  # type: ignore[attr-defined]
    place = {k: n for n, k in enumerate(used)}
    return tuple(operands[k] for k in used), tuple(
        replace(s, operand=place[s.operand]) if hasattr(s, "operand") else s  # type: ignore[attr-defined,type-var]
        for s in statements
    )
