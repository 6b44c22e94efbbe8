"""Layouts: which values are views, and where a copy must be made. Copies are equations.

After it there is a ``relayout`` wherever a copy is made, and none is needed elsewhere:

* the operand of a reshape that is no affine view, or of a barrier, lies row-major;
* each operand of a dot_general is a matrix to BLAS as it lies, along the axes that are
  contracted if the target asks for that;
* the operands of a library's primitive, and of one that the target computes as it
  stands, lie row-major, and so do those of an operator's kernel that does not take
  them as they lie;
* the operands of loops and branches lie row-major;
* the operand that an equation writes over is an array of its own, not used later;
* each output is a row-major array of its own.

The Programs of loops and branches are given layouts too. A body may write over the
values that it carries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from arrayfn.ir import ArrayType, Atom, Equation, Params, Program, Var
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.ir.layout import Layout, RowMajor, from_strides
from arrayfn.passes.aliasing import (
    branched_in_place,
    carried_in_place,
    origins,
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
    Primitive,
    Template,
    View,
)
from arrayfn.primitives.control_flow import plain

TakesView = Callable[[Equation, ArrayType, int], bool]
"""Whether the kernel of a call reads an operand of this type and layout as it lies,
so many elements into its memory."""


def takes_no_view(equation: Equation, type: ArrayType, offset: int) -> bool:
    """No call does: operands are row-major."""
    return False


Along = Callable[[Equation], bool]
"""Whether the operands of a product are to lie along the axes that it contracts."""


def along_any(equation: Equation) -> bool:
    """No product's are: a library multiplies any matrices as fast."""
    return False


# Their result has the memory of the operand, where it is no affine view of that.
_SAME_MEMORY = (views.reshape, rematerialization.optimization_barrier)


def assign_layouts(
    program: Program,
    writable: Collection[int] = frozenset(),
    returned: Collection[int] = frozenset(),
    *,
    takes_view: TakesView = takes_no_view,
    along: Along = along_any,
    aligned: int = 1,
) -> Program:
    """``program`` with every copy that a layout needs as a ``relayout`` equation.

    Inputs with numbers in ``writable`` may be written over, and outputs with numbers in
    ``returned`` may be such inputs themselves. ``takes_view`` says which calls need no
    copy of an operand, ``along`` for which products one is worth making. Kernels
    of calls and libraries read memory that begins at multiples of ``aligned`` bytes.
    """
    return _Assignment(program, writable, returned, takes_view, along, aligned).run()


def with_donated(program: Program, donated: Collection[int]) -> Program:
    """``program`` with layouts; inputs ``donated`` may be written over.

    That is done where an output comes of such an input by equations that write over
    their operand, as updates do, in loops too: it is the input's array then.
    """
    writable = {k for k in donated if program.inputs[k].type.layout == RowMajor()}
    while True:
        sources = origins(program)
        writable &= {
            k for k, v in enumerate(program.inputs) if any(v is s for s in sources)
        }
        made = assign_layouts(program, writable)
        kept = {k for k in writable if any(made.inputs[k] is s for s in origins(made))}
        if kept == writable:
            return made
        writable = kept


class _Assignment:
    def __init__(
        self,
        program: Program,
        writable: Collection[int],
        returned: Collection[int],
        takes_view: TakesView,
        along: Along,
        aligned: int,
        *,
        inside: bool = False,
    ) -> None:
        self.program = program
        self.inside = inside
        self.takes_view = takes_view
        self.along = along
        self.aligned = aligned
        # Copies that nothing writes over: row-major, and with axes in another order.
        self.copies: dict[Var, Var] = {}
        self.turns: dict[tuple[Var, tuple[int, ...]], Var] = {}
        self.returned = returned
        self.writable: set[Atom] = set()
        self.writable_numbers = writable
        self.last_uses = _last_uses(program)
        self.builder = ProgramBuilder(program.name)
        self.environment: dict[Var, Atom] = {}
        self.given: frozenset[Atom] = frozenset()
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
            inputs = [
                builder.input(plain(v.type) if self.inside else v.type, v.hint)
                for v in program.inputs
            ]
            self.given = frozenset(inputs)
            self.environment = builder.bind_inputs(program, inputs)
            constants = (self.environment[c] for c in program.constants)
            borrowed = [v for v in (*inputs, *constants) if isinstance(v, Var)]
            self.reads.update((v, identity_read(v)) for v in borrowed)
            self.writable = {inputs[number] for number in self.writable_numbers}
            for equation in program.equations:
                builder.source = equation.source
                self.equation(equation)
            outputs: list[Atom] = []
            for number, atom in enumerate(program.outputs):
                value = rename(atom, self.environment)
                stays = number in self.returned and value in self.writable
                if value not in self.owned and not stays:
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
        if row in _SAME_MEMORY and not _is_affine(equation):
            owns = self.own_row_major(operands, equation)
        elif isinstance(row.kernel, Contraction):
            operands, params = self.matrices(operands, equation)
        elif isinstance(row.kernel, Library):
            first = int(row.kernel.in_place)
            operands[first:] = [self.row_major_to_read(x) for x in operands[first:]]
        elif isinstance(row.kernel, Control):
            operands, params = self.control(operands, equation)
        elif isinstance(row.kernel, (Body, Composition)):
            operands = [
                x if self.as_it_lies(x, equation) else self.row_major_to_read(x)
                for x in operands
            ]
        if isinstance(row.kernel, (Library, Template)):
            for number in overwritten(equation):
                operands[number] = self.own(operands[number], equation, number)
        outputs = self.builder.emit(row, operands, params)
        self.environment.update(zip(equation.outputs, outputs, strict=True))
        if owns:
            self.owned.update(outputs)
        self.record()

    def own(self, given: Atom, equation: Equation, number: int) -> Atom:
        """``given``, operand ``number``, or a copy of it, to be written over."""
        if given in self.owned or given in self.writable:
            roots, last = self.last_uses
            target = roots.get(equation.inputs[number])
            same = [x for x in equation.inputs if roots.get(x) is target]
            if len(same) == 1 and last.get(target) is equation:
                return given
        return views.relayout(given, layout="C")

    def control(
        self, operands: Sequence[Atom], equation: Equation
    ) -> tuple[list[Atom], Params]:
        """Operands of a loop or branch, and its Programs with layouts of their own."""
        params = dict(equation.params)
        in_place = carried_in_place(equation)
        if equation.primitive.name == "scan":
            inner = {params["consts"] + k for k in in_place}
            params["program"] = self.inner(params["program"], inner)
        elif equation.primitive.name == "while_loop":
            inner = {params["body_consts"] + k for k in in_place}
            params["body_program"] = self.inner(params["body_program"], inner)
        else:
            params["branches"] = self.branches(equation)
        results = [self.row_major(x) for x in operands]
        # What a body copies first, it does not write over.
        placed = Equation(equation.primitive, equation.inputs, params, equation.outputs)
        for number in overwritten(placed):
            if results[number] is operands[number]:
                results[number] = self.own(results[number], equation, number)
        return results, params

    def inner(
        self,
        program: Program,
        writable: Collection[int],
        returned: Collection[int] = frozenset(),
    ) -> Program:
        """The Program of a loop or branch with layouts.

        It is given row-major operands, also where what it closes over is not.
        """
        return _Assignment(
            program,
            writable,
            returned,
            self.takes_view,
            self.along,
            self.aligned,
            inside=True,
        ).run()

    def branches(self, equation: Equation) -> tuple[Program, ...]:
        """The branches of a ``cond`` with layouts.

        They agree on which results lie where an operand lay.
        """
        programs: tuple[Program, ...] = equation.params["branches"]
        pairs = branched_in_place(equation)
        while True:
            made = tuple(
                self.inner(program, {*pairs.values()}, {*pairs}) for program in programs
            )
            params = {**equation.params, "branches": made}
            row, outputs = equation.primitive, equation.outputs
            found = branched_in_place(Equation(row, equation.inputs, params, outputs))
            if found.items() >= pairs.items():
                return made
            pairs = {k: place for k, place in pairs.items() if found.get(k) == place}

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

    def place(self, x: Var) -> tuple[Layout, int]:
        """How ``x`` lies in its base's memory, and at which element it begins."""
        read = self.reads[x]
        base = read.base.type
        strides = base.layout.strides(base.shape)
        layout = from_strides(x.type.shape, read.strides(strides, x.type.ndim))
        return layout, read.offset(strides)

    def row_major(self, x: Atom) -> Atom:
        """``x``, or a copy of it if it does not lie so from its base's begin on."""
        if (
            isinstance(x, Var)
            and self.place(x) == (RowMajor(), 0)
            and not self.moves(x)
        ):
            return x
        return views.relayout(x, layout="C")

    def row_major_to_read(self, x: Atom) -> Atom:
        """``row_major``, of which all who only read ``x`` have the same copy."""
        if not isinstance(x, Var):
            return self.row_major(x)
        if x not in self.copies:
            copy = self.row_major(x)
            assert isinstance(copy, Var)
            self.copies[x] = copy
        return self.copies[x]

    def moves(self, x: Var) -> bool:
        """Whether ``x`` is a part of what begins anywhere in a loop's iterations.

        A slice begins at multiples of its size. Kernels and libraries read vectors,
        which divide the size of an array that they take whole.
        """
        base = self.reads[x].base
        if not self.inside or base not in self.given:
            return False
        return base.type.size != x.type.size and base.type.nbytes % self.aligned > 0

    def as_it_lies(self, x: Atom, equation: Equation) -> bool:
        """Whether the kernel of a call takes ``x`` where it is."""
        if not isinstance(x, Var) or self.moves(x):
            return False
        layout, offset = self.place(x)
        placed = ArrayType(x.type.shape, x.type.dtype, layout)
        return self.takes_view(equation, placed, offset)

    def turned(self, x: Var, order: tuple[int, ...]) -> Var:
        """A copy of ``x`` with its axes in ``order``, the same one for all who ask."""
        if (x, order) not in self.turns:
            copy = views.relayout(views.transpose(x, permutation=order), layout="C")
            assert isinstance(copy, Var)
            self.turns[x, order] = copy
        return self.turns[x, order]

    def matrices(
        self, operands: Sequence[Atom], equation: Equation
    ) -> tuple[list[Atom], dict[str, object]]:
        """Operands of a dot_general as BLAS reads them, and its axes for them."""
        results: list[Atom] = []
        pairs = [
            (equation.params["contract"][k], equation.params["batch"][k])
            for k in (0, 1)
        ]
        along = self.along(equation)
        for side, operand in enumerate(operands):
            assert isinstance(operand, Var)
            contract, batch = pairs[side]
            free = contraction.free_axes(operand.type.ndim, contract, batch)
            groups = (free, contract) if side == 0 else (contract, free)
            lies = as_matrix(operand.type, self.reads[operand], batch, *groups)
            if lies is None or (along and lies.transposed == (side == 0)):
                groups = (free, contract) if along else groups
                order = (*batch, *groups[0], *groups[1])
                operand = self.turned(operand, order)
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


def _last_uses(
    program: Program,
) -> tuple[dict[Atom, Var], dict[Var | None, Equation | None]]:
    """The array that each value may be a view of; the last equation that uses each.

    There is none for what is returned.
    """
    roots: dict[Atom, Var] = {}
    last: dict[Var | None, Equation | None] = {}
    for equation in program.equations:
        row = equation.primitive
        for atom in equation.inputs:
            if isinstance(atom, Var):
                last[roots.setdefault(atom, atom)] = equation
        is_view = isinstance(row, Primitive) and isinstance(row.kernel, View)
        source = equation.inputs[0] if is_view else None
        for var in equation.outputs:
            roots[var] = roots[source] if isinstance(source, Var) else var
    for atom in program.outputs:
        if isinstance(atom, Var):
            last[roots.setdefault(atom, atom)] = None
    return roots, last


def _is_affine(equation: Equation) -> bool:
    row = equation.primitive
    assert isinstance(row, Primitive)
    assert isinstance(row.kernel, View)
    return row.kernel.axes(equation.inputs[0].type, **equation.params) is not None
