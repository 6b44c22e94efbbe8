"""Assigns layouts: decides which values are views, and inserts copies as equations.

After it every copy is a ``relayout`` equation:

* the operand of a barrier, or of a reshape that is not an affine view, is row-major;
* each operand of a dot_general is a matrix that BLAS can read, contiguous along the
  contracted axes if the target asks for that;
* the operands of library calls, and of primitives that the target computes itself, are
  row-major; those of an operator's kernel too, unless the kernel accepts their layout;
* the operands of loops and branches are row-major;
* an operand that an equation overwrites is an array of its own, not used later;
* each output is a row-major array of its own.

The Programs of loops and branches get layouts too. A body may overwrite its carries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from arrayfn.ir import ArrayType, Atom, Equation, Params, Program, Var
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.ir.layout import Layout, RowMajor, from_strides
from arrayfn.passes.aliasing import (
    branched_in_place,
    carried_in_place,
    memory_sources,
    overwritten,
)
from arrayfn.passes.matrices import as_matrix
from arrayfn.passes.reads import Read, identity_read, record_reads
from arrayfn.primitives import contraction, rematerialization, views
from arrayfn.primitives.base import (
    Body,
    Composition,
    Contraction,
    Control,
    Library,
    Template,
    View,
    primitive_of,
)
from arrayfn.records import frozen


def _takes_row_major(equation: Equation, type: ArrayType, offset: int) -> bool:
    """Return False: a ``takes_view`` for kernels that take row-major operands only."""
    return False


def _takes_any_matrix(equation: Equation) -> bool:
    """Return False: a ``wants_contiguous`` for libraries that read any matrix."""
    return False


@frozen
class LayoutRules:
    """Which layouts the kernels and libraries of a target accept.

    Attributes:
        takes_view: whether the kernel of a call accepts an operand of this type, layout
            and offset, so that it needs no copy.
        wants_contiguous: whether a product's operands are worth a copy that makes them
            contiguous along the contracted axes.
        alignment: what the address of an operand of a call or library is a multiple of,
            in bytes.
    """

    takes_view: Callable[[Equation, ArrayType, int], bool] = _takes_row_major
    wants_contiguous: Callable[[Equation], bool] = _takes_any_matrix
    alignment: int = 1


DEFAULT_RULES: Final = LayoutRules()

_SAME_MEMORY = (views.reshape, rematerialization.optimization_barrier)
"""Primitives whose result may share the operand's memory without an affine view."""


def assign_layouts(
    program: Program,
    writable: Collection[int] = frozenset(),
    returned: Collection[int] = frozenset(),
    rules: LayoutRules = DEFAULT_RULES,
) -> Program:
    """Insert a ``relayout`` equation into ``program`` for every copy a layout needs.

    ``b = dot_general(a[:, ::2], w)`` becomes ``c = a[:, ::2]; d = relayout(c, "C");
    b = dot_general(d, w)``: BLAS reads no rows whose elements are 2 apart.

    Args:
        program: a Program after the other passes.
        writable: the indices of inputs that may be overwritten.
        returned: the indices of outputs that may be such inputs themselves, uncopied.
        rules: what the target accepts.
    """
    return _Assignment(program, writable, returned, rules).run()


def with_donated(program: Program, donated: Collection[int]) -> Program:
    """Assign layouts to ``program``, whose inputs ``donated`` may be overwritten.

    ``donated`` has indices of inputs; those that are not row-major are ignored. An
    output shares the memory of such an input if it comes from it by equations that
    overwrite their operand, as updates do, also in loops. A donated input that no
    output comes from, before or after layouts, is not overwritten.
    """
    writable = {k for k in donated if program.inputs[k].type.layout == RowMajor()}
    while True:  # each round without the inputs that became no output's memory
        sources = memory_sources(program)
        writable &= {
            k for k, v in enumerate(program.inputs) if any(v is s for s in sources)
        }
        with_layouts = assign_layouts(program, writable)
        still_writable = {
            k
            for k in writable
            if any(with_layouts.inputs[k] is s for s in memory_sources(with_layouts))
        }
        if still_writable == writable:
            return with_layouts
        writable = still_writable


class _Assignment:
    """Emits one Program again, with the copies that layouts need.

    Attributes:
        rules: what the target accepts.
        inside: whether the Program is the body of a loop or branch.
        copies, permuted_copies: row-major copies, and copies with permuted axes, that
            nothing overwrites.
        writable: the new inputs that may be overwritten.
        writable_numbers: the indices of these inputs.
        returned: the indices of outputs that may be such inputs.
        last_uses: see ``_last_uses``.
        environment: the new Atom for each Var of the Program.
        new_inputs: the inputs of the new Program.
        reads: the base and index map of each new Var.
        recorded: how many equations ``reads`` covers.
        owned: values in memory of their own, which nothing else uses yet.
        uses: how often each Var is used.
    """

    def __init__(
        self,
        program: Program,
        writable: Collection[int],
        returned: Collection[int],
        rules: LayoutRules,
        *,
        inside: bool = False,
    ) -> None:
        """Begin a Program of the same name.

        The arguments are attributes; ``writable`` is ``writable_numbers``.
        """
        self.program = program
        self.inside = inside
        self.rules = rules
        self.copies: dict[Var, Var] = {}
        self.permuted_copies: dict[tuple[Var, tuple[int, ...]], Var] = {}
        self.returned = returned
        self.writable: set[Atom] = set()
        self.writable_numbers = writable
        self.last_uses = _last_uses(program)
        self.builder = ProgramBuilder(program.name)
        self.environment: dict[Var, Atom] = {}
        self.new_inputs: frozenset[Atom] = frozenset()
        self.reads: dict[Var, Read] = {}
        self.recorded = 0
        self.owned: set[Atom] = set()
        self.uses = Counter(
            atom
            for atoms in (*(eq.inputs for eq in program.equations), program.outputs)
            for atom in atoms
            if isinstance(atom, Var)
        )

    def run(self) -> Program:
        """Emit the whole Program and return it with layouts."""
        program = self.program
        with self.builder as builder:
            # Callers of inner Programs pass row-major arrays.
            inputs = [
                builder.input(v.type.plain() if self.inside else v.type, v.hint)
                for v in program.inputs
            ]
            self.new_inputs = frozenset(inputs)
            self.environment = builder.bind_inputs(program, inputs)
            constants = (self.environment[c] for c in program.constants)
            borrowed = [v for v in (*inputs, *constants) if isinstance(v, Var)]
            self.reads.update((v, identity_read(v)) for v in borrowed)
            self.writable = {inputs[number] for number in self.writable_numbers}
            for equation in program.equations:
                builder.source = equation.source
                self.emit(equation)
            outputs = [self.output(k, a) for k, a in enumerate(program.outputs)]
            return builder.build(outputs)

    def output(self, number: int, atom: Atom) -> Atom:
        """Return output ``number`` of the new Program: ``atom``'s new value or a copy.

        A value that owns its memory is returned uncopied once, and so is an input that
        ``returned`` allows.
        """
        value = rename(atom, self.environment)
        is_input = number in self.returned and value in self.writable
        if value not in self.owned and not is_input:
            return views.relayout(value, layout="C")
        self.owned.discard(value)
        return value

    def emit(self, equation: Equation) -> None:
        """Emit ``equation``, with copies of operands whose layout it cannot read.

        Operands that it overwrites are copied too if their memory is used later.
        """
        primitive = primitive_of(equation)
        operands = [rename(a, self.environment) for a in equation.inputs]
        params = equation.params
        owns_memory = (
            not isinstance(primitive.kernel, View) or primitive is views.relayout
        )
        if primitive in _SAME_MEMORY and not _is_affine(equation):
            operands[0], owns_memory = self.reshaped_operand(operands[0], equation)
        elif isinstance(primitive.kernel, Contraction):
            operands, params = self.as_matrices(operands, equation)
        elif isinstance(primitive.kernel, Library):
            first = int(primitive.kernel.in_place)  # operand 0 is overwritten, below
            operands[first:] = [self.row_major_to_read(x) for x in operands[first:]]
        elif isinstance(primitive.kernel, Control):
            operands, params = self.control_flow(operands, equation)
        elif isinstance(primitive.kernel, (Body, Composition)):
            operands = [
                x if self.takes_as_is(x, equation) else self.row_major_to_read(x)
                for x in operands
            ]
        if isinstance(primitive.kernel, (Library, Template)):
            for number in overwritten(equation):
                operands[number] = self.overwritable(operands[number], equation, number)
        outputs = self.builder.emit(primitive, operands, params)
        self.environment.update(zip(equation.outputs, outputs, strict=True))
        if owns_memory:
            self.owned.update(outputs)
        self.record()

    def overwritable(self, operand: Atom, equation: Equation, number: int) -> Atom:
        """Return operand ``number`` of ``equation``, or a copy, to be overwritten.

        It is a copy unless ``equation`` is the last to use the operand's memory, reads
        it by one operand only, and the memory may be overwritten.
        """
        if operand in self.owned or operand in self.writable:
            roots, last = self.last_uses
            target = roots.get(equation.inputs[number])
            aliases = [x for x in equation.inputs if roots.get(x) is target]
            if len(aliases) == 1 and last.get(target) is equation:
                return operand
        return views.relayout(operand, layout="C")

    def control_flow(
        self, operands: Sequence[Atom], equation: Equation
    ) -> tuple[list[Atom], Params]:
        """Return a loop's or branch's row-major operands, and params with layouts.

        A body may write over the carries that it updates in place. Operands that are
        overwritten are copied if they are used later.
        """
        params = dict(equation.params)
        in_place = carried_in_place(equation)
        if equation.primitive.name == "scan":
            inner = {params["consts"] + k for k in in_place}
            params["program"] = self.body(params["program"], inner)
        elif equation.primitive.name == "while_loop":
            inner = {params["body_consts"] + k for k in in_place}
            params["body_program"] = self.body(params["body_program"], inner)
        else:
            params["branches"] = self.branches(equation)
        results = [self.row_major(x) for x in operands]
        # A body that copies its carry first does not overwrite the operand.
        updated = replace(equation, params=params)
        for number in overwritten(updated):
            if results[number] is operands[number]:
                results[number] = self.overwritable(results[number], equation, number)
        return results, params

    def body(
        self,
        program: Program,
        writable: Collection[int],
        returned: Collection[int] = frozenset(),
    ) -> Program:
        """Assign layouts to the Program of a loop or branch.

        Its inputs are row-major, even where captured values outside are not.
        ``writable`` and ``returned`` are those of ``assign_layouts``.
        """
        return _Assignment(program, writable, returned, self.rules, inside=True).run()

    def branches(self, equation: Equation) -> tuple[Program, ...]:
        """Assign layouts to the branches of a ``cond``.

        It is repeated until they agree on which results share an operand's memory.
        """
        programs: tuple[Program, ...] = equation.params["branches"]
        operand_of = branched_in_place(equation)  # result number: operand number
        while True:
            with_layouts = tuple(
                self.body(
                    program, writable={*operand_of.values()}, returned={*operand_of}
                )
                for program in programs
            )
            params = {**equation.params, "branches": with_layouts}
            updated = replace(equation, params=params)
            still_in_place = branched_in_place(updated).items()
            if still_in_place >= operand_of.items():
                return with_layouts
            operand_of = dict(operand_of.items() & still_in_place)

    def record(self) -> None:
        """Note in ``reads`` how values emitted since the last call are read.

        ``recorded`` is the number of the builder's equations that are noted.
        """
        for equation in self.builder.equations[self.recorded :]:
            record_reads(equation, self.reads)
        self.recorded = len(self.builder.equations)

    def reshaped_operand(self, operand: Atom, equation: Equation) -> tuple[Atom, bool]:
        """Return a reshape's row-major operand, and whether the result owns its memory.

        The result owns its memory if the operand was copied, or if the operand owns its
        memory and has no other use. Then the operand does not own the memory any more.
        """
        row_major = self.row_major(operand)
        if row_major is not operand:
            return row_major, True
        source = equation.inputs[0]
        is_shared = isinstance(source, Var) and self.uses[source] > 1
        if operand not in self.owned or is_shared:
            return operand, False
        self.owned.discard(operand)
        return operand, True

    def layout_of(self, x: Var) -> tuple[Layout, int]:
        """Return the layout of ``x`` in its base's memory, and the offset there."""
        read = self.reads[x]
        base = read.base.type
        strides = base.layout.strides(base.shape)
        layout = from_strides(x.type.shape, read.strides(strides, x.type.ndim))
        return layout, read.offset(strides)

    def row_major(self, x: Atom) -> Atom:
        """Return ``x`` if it is row-major and begins at its base, else a copy."""
        if (
            isinstance(x, Var)
            and self.layout_of(x) == (RowMajor(), 0)
            and not self.may_be_unaligned(x)
        ):
            return x
        return views.relayout(x, layout="C")

    def row_major_to_read(self, x: Atom) -> Atom:
        """Do what ``row_major`` does; equations that only read ``x`` share one copy."""
        if not isinstance(x, Var):
            return self.row_major(x)
        if x not in self.copies:
            copy = self.row_major(x)
            assert isinstance(copy, Var)
            self.copies[x] = copy
        return self.copies[x]

    def may_be_unaligned(self, x: Var) -> bool:
        """Whether ``x``, part of a loop's slice, may begin at an unaligned address.

        A loop's slice begins at a multiple of its size, which need not be a multiple of
        the alignment that libraries and kernels need. An array that is all of the slice
        is safe: kernels read it in vectors whose size divides that of the array.
        """
        base = self.reads[x].base
        if not self.inside or base not in self.new_inputs:
            return False
        return (
            base.type.size != x.type.size
            and base.type.nbytes % self.rules.alignment > 0
        )

    def takes_as_is(self, x: Atom, equation: Equation) -> bool:
        """Whether the kernel of a call accepts ``x`` without a copy."""
        if not isinstance(x, Var) or self.may_be_unaligned(x):
            return False
        layout, offset = self.layout_of(x)
        updated = ArrayType(x.type.shape, x.type.dtype, layout)
        return self.rules.takes_view(equation, updated, offset)

    def permuted(self, x: Var, order: tuple[int, ...]) -> Var:
        """Copy ``x`` with its axes in ``order``; all equations share the copy."""
        if (x, order) not in self.permuted_copies:
            copy = views.relayout(views.transpose(x, permutation=order), layout="C")
            assert isinstance(copy, Var)
            self.permuted_copies[x, order] = copy
        return self.permuted_copies[x, order]

    def as_matrices(
        self, operands: Sequence[Atom], equation: Equation
    ) -> tuple[list[Atom], dict[str, object]]:
        """Return a dot_general's operands as BLAS can read them, and its new params.

        An operand that BLAS cannot read is copied with its axes in the order (batch,
        rows, columns), so the params name its axes by their new positions.
        """
        results: list[Atom] = []
        contracts = list(equation.params["contract"])
        batches = list(equation.params["batch"])
        contiguous = self.rules.wants_contiguous(equation)
        for side, operand in enumerate(operands):
            assert isinstance(operand, Var)
            contract, batch = contracts[side], batches[side]
            free = contraction.free_axes(operand.type.ndim, contract, batch)
            groups = (free, contract) if side == 0 else (contract, free)
            matrix = as_matrix(operand.type, self.reads[operand], batch, *groups)
            # The contracted axes are the columns of operand 0 and the rows of operand
            # 1, so they are contiguous if operand 1 only is stored transposed.
            if matrix is None or (contiguous and matrix.transposed == (side == 0)):
                groups = (free, contract) if contiguous else groups
                order = (*batch, *groups[0], *groups[1])
                operand = self.permuted(operand, order)
                contracts[side] = tuple(order.index(axis) for axis in contract)
                batches[side] = tuple(order.index(axis) for axis in batch)
                self.record()
            results.append(operand)
        new_axes = {"contract": tuple(contracts), "batch": tuple(batches)}
        return results, {**equation.params, **new_axes}


def _last_uses(
    program: Program,
) -> tuple[dict[Atom, Var], dict[Var | None, Equation | None]]:
    """Return ``(roots, last)``: each value's root, and each root's last user.

    A value's root is the array that it may be a view of, often itself. Returned arrays
    have no last equation. ``y = x.T; z = y + 1; return z`` gives the roots ``{x: x,
    y: x, z: z}`` and the last uses ``{x: z = y + 1, z: None}``.
    """
    roots: dict[Atom, Var] = {}
    last: dict[Var | None, Equation | None] = {}
    for equation in program.equations:
        primitive = primitive_of(equation)
        for atom in equation.inputs:
            if isinstance(atom, Var):
                last[roots.setdefault(atom, atom)] = equation
        is_view = isinstance(primitive.kernel, View)
        source = equation.inputs[0] if is_view else None
        for var in equation.outputs:
            roots[var] = roots[source] if isinstance(source, Var) else var
    for atom in program.outputs:
        if isinstance(atom, Var):
            last[roots.setdefault(atom, atom)] = None
    return roots, last


def _is_affine(equation: Equation) -> bool:
    """Whether a view is an affine map of indices."""
    primitive = primitive_of(equation)
    assert isinstance(primitive.kernel, View)
    return primitive.kernel.axes(equation.inputs[0].type, **equation.params) is not None
