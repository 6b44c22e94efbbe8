"""Layouts: which values are views, and where a copy must be made. Copies are equations.

After it there is a ``relayout`` wherever a copy is made, and none is needed elsewhere:

* the operand of a reshape that is no affine view lies row-major;
* each operand of a dot_general is a matrix to BLAS as it lies;
* the operands of a library's primitive lie row-major;
* the operand that a kernel writes in place is an array of its own, used nowhere else;
* each output is a row-major array of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from arrayfn.builder import ProgramBuilder, rename
from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.layout import RowMajor, from_strides
from arrayfn.passes.matrices import as_matrix
from arrayfn.passes.reads import Read, identity_read, record_reads
from arrayfn.primitives import contraction, views
from arrayfn.primitives.base import (
    Contraction,
    Library,
    Primitive,
    Template,
    View,
)


def assign_layouts(program: Program) -> Program:
    """``program`` with every copy that a layout needs as a ``relayout`` equation."""
    return _Assignment(program).run()


class _Assignment:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.builder = ProgramBuilder(program.name)
        self.environment: dict[Var, Atom] = {}
        self.reads: dict[Var, Read] = {}
        self.known = 0
        self.owned: set[Atom] = set()
        self.uses = Counter(
            atom
            for atoms in (*(eq.inputs for eq in program.equations), program.outputs)
            for atom in atoms
            if isinstance(atom, Var)
        )

    def run(self) -> Program:
        program = self.program
        with self.builder as builder:
            inputs = builder.inputs_of(program)
            self.environment = builder.bind_inputs(program, inputs)
            constants = (self.environment[c] for c in program.constants)
            borrowed = [v for v in (*inputs, *constants) if isinstance(v, Var)]
            self.reads.update((v, identity_read(v)) for v in borrowed)
            for equation in program.equations:
                builder.source = equation.source
                self.equation(equation)
            outputs: list[Atom] = []
            for atom in program.outputs:
                value = rename(atom, self.environment)
                if value not in self.owned:
                    value = views.relayout(value, layout="C")
                self.owned.discard(value)
                outputs.append(value)
            return builder.build(outputs)

    def equation(self, equation: Equation) -> None:
        row = equation.primitive
        assert isinstance(row, Primitive)
        operands = [rename(a, self.environment) for a in equation.inputs]
        params = equation.params
        owns = not isinstance(row.kernel, View) or row is views.relayout
        if row is views.reshape and not _is_affine(equation):
            owns = self.own_row_major(operands, equation)
        elif isinstance(row.kernel, Contraction):
            operands, params = self.matrices(operands, equation)
        elif isinstance(row.kernel, Library):
            first = int(row.kernel.in_place)
            operands[first:] = [self.row_major(x) for x in operands[first:]]
        if isinstance(row.kernel, (Library, Template)) and row.kernel.in_place:
            target = equation.inputs[0]
            shared = isinstance(target, Var) and self.uses[target] > 1
            if shared or operands[0] not in self.owned:
                operands[0] = views.relayout(operands[0], layout="C")
        outputs = self.builder.emit(row, operands, params)
        self.environment.update(zip(equation.outputs, outputs, strict=True))
        if owns:
            self.owned.update(outputs)
        self.record()

    def record(self) -> None:
        """Bring ``reads`` up to the last equation."""
        for equation in self.builder.equations[self.known :]:
            record_reads(equation, self.reads)
        self.known = len(self.builder.equations)

    def own_row_major(self, operands: list[Atom], equation: Equation) -> bool:
        """Have a reshape's operand in rows; whether the result may have its memory.

        It may if nothing else needs the operand.
        """
        source = equation.inputs[0]
        given = operands[0]
        operands[0] = self.row_major(given)
        if operands[0] is not given:
            return True
        if given not in self.owned or (
            isinstance(source, Var) and self.uses[source] > 1
        ):
            return False
        self.owned.discard(given)
        return True

    def row_major(self, x: Atom) -> Atom:
        """``x``, or a copy of it if it does not lie so from its base's begin on."""
        if isinstance(x, Var):
            read = self.reads[x]
            base = read.base.type
            strides = base.layout.strides(base.shape)
            layout = from_strides(x.type.shape, read.strides(strides, x.type.ndim))
            if layout == RowMajor() and read.offset(strides) == 0:
                return x
        return views.relayout(x, layout="C")

    def matrices(
        self, operands: Sequence[Atom], equation: Equation
    ) -> tuple[list[Atom], dict[str, object]]:
        """Operands of a dot_general that BLAS can read, and its axes for them."""
        results: list[Atom] = []
        pairs = [
            (equation.params["contract"][k], equation.params["batch"][k])
            for k in (0, 1)
        ]
        for side, operand in enumerate(operands):
            assert isinstance(operand, Var)
            contract, batch = pairs[side]
            free = contraction.free_axes(operand.type.ndim, contract, batch)
            groups = (free, contract) if side == 0 else (contract, free)
            if as_matrix(operand.type, self.reads[operand], batch, *groups) is None:
                order = (*batch, *groups[0], *groups[1])
                turned = views.transpose(operand, permutation=order)
                operand = views.relayout(turned, layout="C")
                place = [order.index(axis) for axis in range(len(order))]
                pairs[side] = (
                    tuple(place[axis] for axis in contract),
                    tuple(place[axis] for axis in batch),
                )
                self.record()
            results.append(operand)
        (left, left_batch), (right, right_batch) = pairs
        pairs_now = {"contract": (left, right), "batch": (left_batch, right_batch)}
        return results, {**equation.params, **pairs_now}


def _is_affine(equation: Equation) -> bool:
    row = equation.primitive
    assert isinstance(row, Primitive)
    assert isinstance(row.kernel, View)
    return row.kernel.axes(equation.inputs[0].type, **equation.params) is not None
