"""Prints one nest of a loop's body, as plain loops of one thread."""

from __future__ import annotations

from dataclasses import field

from typing_extensions import override

from arrayfn.ir import Var
from arrayfn.lowering.cpu.loop_frame import LoopFrame
from arrayfn.lowering.cpu.stages import StagedPrinter
from arrayfn.lowering.kernel_ir import Argument as IntegerArgument
from arrayfn.lowering.kernel_ir import IndexTerm, Load, Scalar, Store, Value, uses
from arrayfn.records import record


@record
class InlinePrinter(StagedPrinter):
    """Prints one nest of a loop's body into the text of ``frame``."""

    frame: LoopFrame = field(kw_only=True)

    def __post_init__(self) -> None:
        """Share the frame's lines, parameters and constants: they become its text."""
        super().__post_init__()
        frame = self.frame
        self.readable = frame.readable
        self.lines = frame.lines
        self.depth = frame.depth
        self.imports = frame.imports
        self.integers = frame.integers
        self.scratch = frame.scratch
        self.constants = frame.constants
        self.constant_lines = frame.constant_lines

    @override
    def print(self) -> InlinePrinter:
        """Print the nest's loops; the frame prints the function around them."""
        self.body()
        return self

    @override
    def body(self) -> None:
        """Print loops over the kept axes, and in them the loops of each stage."""
        self.plan_stages()
        # Choose memory for a row's values that later stages read.
        self.choose_storage(self.nest.row_length)
        variables: dict[int, str] = {}
        kept_loops = [self.open_axis(axis, variables) for axis in self.kept_axes]
        for stage in range(max(self.nest.stages, self.last_outer_stage() + 1)):
            for s in self.outer_statements(stage):
                self.emit(s, variables)
            if stage >= self.nest.stages or not self.stage_bodies[stage]:
                continue
            for s in self.row_reductions(stage):
                self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")
            inner_variables = dict(variables)
            loops = [
                self.open_axis(axis, inner_variables) for axis in self.reduced_axes
            ]
            self.stage_loop_body(stage, inner_variables, self.row_index())
            # An axis without a loop (see ``open_axis``) has none to close.
            for _ in filter(None, loops):
                self.close()
        for _ in filter(None, kept_loops):
            self.close()

    def open_axis(self, axis: int, variables: dict[int, str]) -> bool:
        """Print the start of a loop over ``axis``; return whether there is one.

        Sets the text of the index along ``axis`` in ``variables``.
        """
        variables[axis] = f"i{axis}"
        bounds = self.frame.bounds(self.nest.axes[axis].extent)
        if bounds is not None:
            self.open(f"for i{axis} in range({bounds}):")
        return bounds is not None

    @override
    def extent(self, axis: int) -> str:
        """Return the extent of ``axis`` as a number: LLVM can unroll short loops."""
        return str(self.nest.axes[axis].extent)

    # Names and memory.

    def root(self, operand: int) -> Var:
        """Return the Var in whose memory operand number ``operand`` lies."""
        return self.frame.of(self.nest.operands[operand].array)

    @override
    def name_of(self, value: Value) -> str:
        """Return the variable of ``value``, a name that is unique in the whole loop."""
        return self.frame.name_for((id(self.nest), value.name), value.name)

    @override
    def scalar(self, scalar: Scalar) -> str:
        """Return the text of ``scalar``; integer arguments are printed as numbers."""
        if isinstance(scalar, IntegerArgument):
            return str(scalar.value)
        return super().scalar(scalar)

    @override
    def index(self, operand: int, variables: dict[int, str]) -> str:
        """Return the affine index of ``operand``, with numbers: ``i0 * 4 + i1``.

        ``variables`` has the text of the index along each axis.
        """
        array = self.nest.operands[operand]
        terms = [str(array.offset)] if array.offset else []
        for axis, stride in enumerate(array.strides):
            if stride and axis in variables:
                i = variables[axis]
                terms.append(i if stride == 1 else f"{i} * {stride}")
        return " + ".join(terms) or "0"

    @override
    def element_at(self, operand: int, variables: dict[int, str]) -> str:
        """Return the text of the element of ``operand`` at the index ``variables``.

        If the nest writes the operand, its array is noted as written.
        """
        root = self.root(operand)
        if self.nest.operands[operand].written:
            return self.frame.stored(root, self.index(operand, variables))
        return self.frame.element(root, self.index(operand, variables))

    @override
    def element_of(self, s: Load | Store, variables: dict[int, str]) -> str:
        """Return the text of the element that ``s`` loads or stores.

        Its index is the affine index and the computed terms.
        """
        if not s.indices:
            return self.element_at(s.operand, variables)
        terms = [
            self.index_term(s.operand, k, term) for k, term in enumerate(s.indices)
        ]
        affine = self.index(s.operand, variables)
        index = " + ".join(terms if affine == "0" else [affine, *terms])
        write = self.frame.stored if isinstance(s, Store) else self.frame.element
        return write(self.root(s.operand), index)

    @override
    def index_term(self, operand: int, number: int, term: IndexTerm) -> str:
        """Return the text of an index term, with its stride as a number."""
        name = self.name_of(term.index)
        return name if term.stride == 1 else f"{name} * {term.stride}"

    @override
    def load(self, s: Load, variables: dict[int, str]) -> None:
        """Print a load from memory, or use the local variable that holds the value.

        The variable stands for the loaded value unless the nest stores to the variable
        before the value's last use. In that case the value is copied.
        """
        root = self.root(s.operand)
        variable = self.frame.own_values.get(root) or self.frame.register(root)
        if variable is None:
            super().load(s, variables)
        elif self.keeps_value(root, s.result):
            self.frame.names_of[id(self.nest), s.result.name] = variable
        else:
            self.line(f"{self.name_of(s.result)} = {variable}")

    def keeps_value(self, root: Var, value: Value) -> bool:
        """Return whether the variable of ``root`` still has ``value`` at its last use.

        It does not if the nest stores to the variable before. In a nest that reduces,
        statements of several stages are repeated, so any store may come before.
        """
        statements = self.nest.statements
        stores = [
            k
            for k, s in enumerate(statements)
            if isinstance(s, Store) and self.root(s.operand) is root
        ]
        reads = [k for k, s in enumerate(statements) if value in uses(s)]
        if not stores:
            return True
        return not self.reduced_axes and max(reads, default=0) <= min(stores)

    @override
    def store(self, s: Store, variables: dict[int, str]) -> None:
        """Print a store to memory, or the assignment of a local variable.

        A store is under the frame's ``guard``, if the array has one; a scalar that is
        read later is then also kept in a variable.
        """
        root = self.root(s.operand)
        variable = self.frame.register(root)
        if variable is None:
            guard = self.frame.guard(self.nest.operands[s.operand].array)
            if guard:
                self.frame.own_value(root, self.scalar(s.value))
            with self.open_if(guard):
                super().store(s, variables)
            return
        with self.open_if("" if s.where is None else self.name_of(s.where)):
            self.line(f"{variable} = {self.scalar(s.value)}")
