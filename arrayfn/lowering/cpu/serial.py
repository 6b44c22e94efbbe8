"""A loop as one kernel: for bodies so small that calling kernels would be their cost.

The nests of the body are printed one after the other inside the loop, with the loops
and branches in it, as plain code of one thread. Scalars are local variables, carried
from one iteration to the next; small arrays stay in memory; slices of what is scanned
are indices. Extents are printed as numbers, so that short loops are unrolled: unlike
other kernels these are compiled anew for other shapes (not for other lengths).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import Var
from arrayfn.lowering.cpu.stages import StagedPrinter
from arrayfn.lowering.in_place import Storage
from arrayfn.lowering.kernel_ir import Argument as IntegerArgument
from arrayfn.lowering.kernel_ir import Load, Scalar, Step, Store, Value
from arrayfn.lowering.kernel_printer import (
    OWN_NAMES,
    WIDTH,
    Integer,
    ScratchRow,
    wrapped,
)
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.steps import (
    BranchStep,
    CallStep,
    CarriedValue,
    LoopStep,
    NestStep,
    PlanStep,
)

_ALIGNMENT = 64


def print_loop(
    loop: LoopStep, name: str, storage: Storage, names: Mapping[Var, str]
) -> tuple[Kernel, CallStep]:
    """The kernel of ``loop``, and its call."""
    neutral = _LoopPrinter(loop, "kernel", storage, names, readable=False)
    neutral.print()
    printed = _LoopPrinter(loop, name, storage, names, readable=True)
    printed.print()
    kernel = Kernel(
        name=name,
        source=printed.source,
        key=neutral.source,
        parameters=printed.parameters,
        reason="a loop whose body is small, as one kernel",
    )
    offsets = [0]
    for row in printed.scratch:
        size = row.elements * row.dtype.itemsize
        offsets.append(offsets[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    arrays = list(printed.pointers)
    call = CallStep(
        kernel=name,
        pointers=[(array, 0) for array in arrays],
        scratch=offsets[:-1],
        integers=[integer.value for integer in printed.integers.values()],
        items=1,
        grain=1,
        scratch_bytes=offsets[-1],
        reads=[a for a in arrays if a not in printed.written],
        writes=[a for a in arrays if a in printed.written],
    )
    return kernel, call


@dataclass(frozen=True)
class _Place:
    """Where an array lies: in ``array``, from the element on that ``begin`` says."""

    array: Var
    begin: str = ""


class _LoopPrinter:
    """Prints one loop; arrays are known by the Var that they are stored in."""

    def __init__(
        self,
        loop: LoopStep,
        name: str,
        storage: Storage,
        names: Mapping[Var, str],
        *,
        readable: bool,
    ) -> None:
        self.step = loop
        self.name = name
        self.of = storage.of
        self.names = names
        self.readable = readable
        self.lines: list[str] = []
        self.depth = 1
        self.imports: set[str] = set()
        self.integers: dict[str, Integer] = {}
        self.scratch: list[ScratchRow] = []
        self.constants: dict[int, str] = {}
        self.constant_lines: list[str] = []
        self.pointers: dict[Var, str] = {}
        self.written: set[Var] = set()
        self.places: dict[Var, _Place] = {}
        self.registers: dict[Var, str] = {}
        self.taken: set[str] = set()
        self.known: dict[object, str] = {}
        self.titles: list[str] = []
        self.outside = {self.of(var) for var in loop.arrays()}
        self.raw: set[Var] = set()
        carried: list[set[Var]] = []
        self.find_raw([loop], carried)
        while any(self.raw & roots and not roots <= self.raw for roots in carried):
            self.raw.update(*(roots for roots in carried if self.raw & roots))
        self.source = ""
        self.parameters: tuple[Parameter, ...] = ()

    def find_raw(self, steps: Sequence[PlanStep], carried: list[set[Var]]) -> None:
        """Note the arrays that are used as another dtype, or by slices: in memory.

        ``carried`` are the places of each value of a loop: all in memory, or none.
        """
        for step in steps:
            if isinstance(step, NestStep):
                self.raw.update(
                    self.of(o.array)
                    for o in step.nest.operands
                    if o.dtype != self.of(o.array).type.dtype
                )
            elif isinstance(step, LoopStep):
                self.raw.update(self.of(s.outer) for s in step.slices)
                carried += [
                    {self.of(c.current), self.of(c.next), self.of(c.result)}
                    for c in step.carries
                ]
                self.find_raw(step.body, carried)
            elif isinstance(step, BranchStep):
                for branch in step.branches:
                    self.find_raw(branch, carried)

    # Names.

    def unique(self, base: str) -> str:
        """``base``, or with a number if it is taken."""
        if OWN_NAMES.fullmatch(base):
            base += "_"
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    def name_for(self, owner: object, base: str) -> str:
        """The name of ``owner``: neutral ones are numbered."""
        if owner not in self.known:
            neutral = f"v{len(self.known)}"
            self.known[owner] = self.unique(base if self.readable else neutral)
        return self.known[owner]

    def variable(self, root: Var, suffix: str = "") -> str:
        """The name of an array or a scalar."""
        return self.name_for((root, suffix), self.names.get(root, "value") + suffix)

    def pointer(self, root: Var) -> str:
        """The parameter that points to an array."""
        if root not in self.pointers:
            suffix = "_at" if root in self.outside else "_array"
            self.pointers[root] = self.variable(root, suffix)
        return self.pointers[root]

    # Where values are.

    def place(self, root: Var) -> _Place:
        """Where an array that is no variable lies."""
        return self.places.get(root, _Place(root))

    def register(self, root: Var) -> str | None:
        """The variable that holds a scalar; None if it lies in memory."""
        if root in self.registers:
            return self.registers[root]
        if root in self.places or root in self.outside or not self.fits(root):
            return None
        self.registers[root] = self.variable(root)
        return self.registers[root]

    def fits(self, root: Var) -> bool:
        """Whether a variable can hold the array: one element, used as its dtype."""
        is_one = root.type.size == 1 and root not in self.raw
        return is_one and root.type.dtype not in dtypes.HALVES

    def element(self, root: Var, index: str = "") -> str:
        """The text of an element in memory."""
        place = self.place(root)
        terms = [t for t in (place.begin, index) if t and t != "0"]
        return f"{self.pointer(place.array)}[{' + '.join(terms) or '0'}]"

    def read(self, root: Var) -> str:
        """The value of a scalar."""
        variable = self.register(root)
        if variable is not None:
            return variable
        text = self.element(root)
        if root.type.dtype == dtypes.bool_:
            return f"{self.use('convert_u8_bool')}({text})"
        return text

    def assign(self, root: Var, value: str) -> None:
        """Set a scalar."""
        variable = self.register(root)
        if variable is not None:
            self.line(f"{variable} = {value}")
            return
        if root.type.dtype == dtypes.bool_:
            value = f"{self.use('convert_bool_u8')}({value})"
        self.line(f"{self.stored(root)} = {value}")

    def stored(self, root: Var, index: str = "") -> str:
        """The text of an element to be written."""
        self.written.add(self.place(root).array)
        return self.element(root, index)

    # Text.

    def use(self, name: str) -> str:
        self.imports.add(name)
        return name

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        self.line(text)
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1

    def integer(self, base: str, value: int) -> str:
        """An integer argument of its own."""
        name = self.name_for(object(), base)
        self.integers[name] = Integer(name, value)
        return name

    # Steps.

    def print(self) -> None:
        """Fill in ``source`` and ``parameters``."""
        self.open("for item in range(begin, end):")
        self.loop(self.step)
        self.close()
        self.finish()

    def steps(self, steps: Sequence[PlanStep]) -> None:
        for step in steps:
            if isinstance(step, NestStep):
                self.titles += step.nest.primitives
                _InlinePrinter(step.nest, "", frame=self).print()
            elif isinstance(step, LoopStep):
                self.loop(step)
            else:
                assert isinstance(step, BranchStep)
                self.branch(step)

    def branch(self, step: BranchStep) -> None:
        index = self.read(self.of(step.index))
        last = len(step.branches) - 1
        for number, branch in enumerate(step.branches):
            if number < last:
                limit = f"{self.use('i32')}({number})"
                self.open(f"if {self.use('le_i32')}({index}, {limit}):")
            before = len(self.lines)
            self.steps(branch)
            if len(self.lines) == before:
                self.line("pass")
            if number < last:
                self.close()
                self.open("else:")
        for _ in range(last):
            self.close()

    def loop(self, step: LoopStep) -> None:
        of = self.of
        kept = [c for c in step.carries if self.enter(c)]
        if step.predicate is not None:
            turn = ""
            self.open(f"while {self.read(of(step.predicate))}:")
        else:
            turn = self.name_for(id(step), "turn")
            turns = self.integer("turns", step.count or 0)
            self.open(f"for {turn} in range({turns}):")
            back = ""
            for s in step.slices:
                size = s.inner.type.dtype.itemsize
                count, where = s.stride // size, turn
                if count < 0:
                    if not back:
                        back = self.name_for((id(step), "back"), f"{turn}_back")
                        self.line(f"{back} = {turns} - 1 - {turn}")
                    count, where = -count, back
                begin = where if count == 1 else f"{where} * {count}"
                outer = self.place(of(s.outer))
                if outer.begin:
                    begin = f"{outer.begin} + {begin}"
                self.places[of(s.inner)] = _Place(outer.array, begin)
        self.steps(step.body)
        for c in kept:
            self.advance(c)
        self.close()
        for c in kept:
            self.leave(c)

    def enter(self, c: CarriedValue) -> bool:
        """Bring a value to where the loop has it; whether that is a place of its own.

        It is not if an outer loop carries it too.
        """
        current, following = self.of(c.current), self.of(c.next)
        initial, result = self.of(c.initial), self.of(c.result)
        if current in self.registers:
            value = self.read(initial)
            if value != self.registers[current]:
                self.line(f"{self.registers[current]} = {value}")
            return False
        if self.fits(current) and self.fits(following):
            value = self.read(initial)
            self.registers[current] = self.variable(current)
            self.registers.setdefault(following, self.variable(following, "_next"))
            self.line(f"{self.registers[current]} = {value}")
            return True
        if c.second is None:
            if self.place(initial) != self.place(current):
                self.copy(initial, current)
            return False
        self.places[current] = self.place(result)
        self.places[following] = self.place(self.of(c.second))
        if self.place(initial) != self.place(result):
            self.copy(initial, result)
        return True

    def advance(self, c: CarriedValue) -> None:
        """The value of the next iteration takes the place of this one's."""
        current, following = self.of(c.current), self.of(c.next)
        if current is following:
            return
        if current in self.registers:
            self.line(f"{self.registers[current]} = {self.registers[following]}")
        else:
            self.copy(following, current)

    def leave(self, c: CarriedValue) -> None:
        """The last value goes to the result."""
        current, following = self.of(c.current), self.of(c.next)
        if current in self.registers:
            result = self.of(c.result)
            if result is current and result not in self.outside | self.places.keys():
                return
            value = self.registers.pop(current)
            self.registers.pop(following, None)
            self.assign(result, value)

    def copy(self, source: Var, target: Var) -> None:
        """Copy an array, element by element."""
        self.open(f"for i0 in range({target.type.size}):")
        text = self.element(source, "i0")
        self.line(f"{self.stored(target, 'i0')} = {text}")
        self.close()

    # The function around it.

    def finish(self) -> None:
        pointers = [
            Parameter(name, short_name(root.type.dtype) + "*")
            for root, name in self.pointers.items()
        ]
        pointers += [
            Parameter(row.name, short_name(row.dtype) + "*") for row in self.scratch
        ]
        integers = [Parameter(name, "i64") for name in self.integers]
        self.parameters = (*pointers, *integers)
        head: list[str] = []
        if self.readable:
            names = ", ".join(dict.fromkeys(self.titles))
            title = f"# {self.name}: a loop of {names}"
            head.append(title if len(title) <= WIDTH else title[: WIDTH - 3] + "...")
        else:
            head.append("# " + " ".join(p.kind for p in self.parameters))
        if self.imports:
            names = ", ".join(sorted(self.imports))
            head += wrapped("from arrayfn.lowering.scalars import ", names, "")
            head += ["", ""]
        arguments = ", ".join([*(p.name for p in self.parameters), "begin", "end"])
        head += wrapped(f"def {self.name}(", arguments, "):")
        if self.readable:
            kinds: dict[str, list[str]] = {}
            for p in self.parameters:
                kinds.setdefault(p.kind, []).append(p.name)
            parts = [f"{', '.join(names)}: {kind}." for kind, names in kinds.items()]
            text = " ".join([*parts, "Items begin to end."])
            indent = "    "
            head += textwrap.wrap(
                f'"""{text}"""', WIDTH, initial_indent=indent, subsequent_indent=indent
            )
        self.source = "\n".join([*head, *self.constant_lines, *self.lines]) + "\n"


@dataclass
class _InlinePrinter(StagedPrinter):
    """Prints one nest of a loop's body as loops of one thread."""

    frame: _LoopPrinter = field(kw_only=True)

    def __post_init__(self) -> None:
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

    def print(self) -> _InlinePrinter:
        self.body()
        return self

    def body(self) -> None:
        self.plan_stages()
        length = 1
        for axis in self.reduced_axes:
            length *= self.nest.axes[axis].extent
        self.keep_rows(length)
        variables: dict[int, str] = {}
        for axis in self.kept_axes:
            self.open_axis(axis, variables)
        for stage in range(max(self.nest.stages, self.last_outer_stage() + 1)):
            for s in self.outer_statements(stage):
                self.emit(s, variables)
            if stage >= self.nest.stages or not self.stage_bodies[stage]:
                continue
            for s in self.reduces(stage):
                self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")
            inner = dict(variables)
            for axis in self.reduced_axes:
                self.open_axis(axis, inner)
            self.stage_loop_body(stage, inner, self.row_index())
            for _ in self.reduced_axes:
                self.close()
        for _ in self.kept_axes:
            self.close()

    def open_axis(self, axis: int, variables: dict[int, str]) -> None:
        variables[axis] = f"i{axis}"
        self.open(f"for i{axis} in range({self.nest.axes[axis].extent}):")

    def row_index(self) -> str:
        text = ""
        for axis in self.reduced_axes:
            extent = self.nest.axes[axis].extent
            text = f"i{axis}" if not text else f"({text}) * {extent} + i{axis}"
        return text or "0"

    # Names and places.

    def root(self, operand: int) -> Var:
        return self.frame.of(self.nest.operands[operand].array)

    def name_of(self, value: Value) -> str:
        return self.frame.name_for((id(self.nest), value.name), value.name)

    def scalar(self, scalar: Scalar) -> str:
        if isinstance(scalar, IntegerArgument):
            return str(scalar.value)
        return super().scalar(scalar)

    def index(self, operand: int, variables: dict[int, str]) -> str:
        array = self.nest.operands[operand]
        terms = [str(array.offset)] if array.offset else []
        for axis, stride in enumerate(array.strides):
            if stride and axis in variables:
                i = variables[axis]
                terms.append(i if stride == 1 else f"{i} * {stride}")
        return " + ".join(terms) or "0"

    def element_at(self, operand: int, variables: dict[int, str]) -> str:
        root = self.root(operand)
        if operand in self.written_operands():
            return self.frame.stored(root, self.index(operand, variables))
        return self.frame.element(root, self.index(operand, variables))

    def written_operands(self) -> set[int]:
        return {k for k, o in enumerate(self.nest.operands) if o.written}

    def place(self, s: Load | Store, variables: dict[int, str]) -> str:
        if not s.at:
            return self.element_at(s.operand, variables)
        steps = [self.step(s.operand, k, step) for k, step in enumerate(s.at)]
        affine = self.index(s.operand, variables)
        index = " + ".join(steps if affine == "0" else [affine, *steps])
        write = self.frame.stored if isinstance(s, Store) else self.frame.element
        return write(self.root(s.operand), index)

    def step(self, operand: int, number: int, step: Step) -> str:
        name = self.name_of(step.index)
        return name if step.stride == 1 else f"{name} * {step.stride}"

    def load(self, s: Load, variables: dict[int, str]) -> None:
        variable = self.frame.register(self.root(s.operand))
        if variable is None:
            super().load(s, variables)
        else:
            self.line(f"{self.name_of(s.result)} = {variable}")

    def store(self, s: Store, variables: dict[int, str]) -> None:
        variable = self.frame.register(self.root(s.operand))
        if variable is None:
            super().store(s, variables)
            return
        if s.where is not None:
            self.open(f"if {self.name_of(s.where)}:")
        self.line(f"{variable} = {self.scalar(s.value)}")
        if s.where is not None:
            self.close()
