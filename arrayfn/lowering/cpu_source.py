"""The CPU's codegen target: nests as Python source that Numba compiles.

One kernel is one function ``name(pointers, integers, begin, end)``. It is printed
twice: to be read, with the Program's names and its source lines; and neutral, as the
key by which equal kernels are compiled once.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, compute_dtype, short_name
from arrayfn.errors import SourceLocation
from arrayfn.ir import Var
from arrayfn.lowering.cpu_schedule import CPU, crossing_axis, grain_of, shape_of
from arrayfn.lowering.kernel_ir import (
    Argument,
    ArrayOperand,
    Compute,
    Constant,
    Count,
    Load,
    Nest,
    Reduce,
    Scalar,
    Statement,
    Step,
    Store,
    Value,
    uses,
)
from arrayfn.lowering.plan import Kernel, Parameter

WIDTH = 88
PLAIN = frozenset({0, 1, -1, 2, -2, 0.5, -0.5})
INFIX = {"add": "+", "sub": "-", "mul": "*"}
_ALIGNMENT = 64


@dataclass(frozen=True)
class Integer:
    """An integer argument: its name in the kernel, and its value in this plan."""

    name: str
    value: int


@dataclass(frozen=True)
class ScratchRow:
    """Scratch memory of the running thread: a value kept from one stage to the next."""

    name: str
    dtype: DType
    elements: int


@dataclass(frozen=True)
class Partial:
    """The array of partial results that one reduction of a split nest writes."""

    reduce: Reduce
    array: Var


@dataclass(frozen=True)
class ScheduledKernel:
    """A printed kernel with what one call of it needs.

    ``arrays`` are the operands behind the pointers, in order; ``partials`` follow
    them, then ``scratch``, then the ``integers``.
    """

    kernel: Kernel
    arrays: tuple[ArrayOperand, ...]
    partials: tuple[Partial, ...]
    scratch: tuple[ScratchRow, ...]
    integers: tuple[Integer, ...]
    items: int
    grain: int

    def scratch_offsets(self) -> list[int]:
        """Byte offsets of the scratch rows in a thread's scratch memory."""
        offsets, end = [], 0
        for row in self.scratch:
            offsets.append(end)
            size = row.elements * row.dtype.itemsize
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return [*offsets, end]


def print_kernel(
    nest: Nest, name: str, partials: Sequence[Partial] = ()
) -> ScheduledKernel:
    """The kernel of ``nest``; with ``partials``, half of a split reduction."""
    neutral = _Printer(nest, "kernel", partials, readable=False).print()
    printed = _Printer(nest, name, partials, readable=True).print()
    kernel = Kernel(
        name=name,
        source=printed.source,
        key=neutral.source,
        parameters=printed.parameters,
        reason=nest.reason,
    )
    return ScheduledKernel(
        kernel,
        nest.operands,
        tuple(partials),
        tuple(printed.scratch),
        tuple(printed.integers.values()),
        printed.items,
        printed.grain,
    )


@dataclass
class _Printer:
    nest: Nest
    name: str
    partials: Sequence[Partial]
    readable: bool
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    imports: set[str] = field(default_factory=set)
    integers: dict[str, Integer] = field(default_factory=dict)
    scratch: list[ScratchRow] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    offsets: dict[int, str] = field(default_factory=dict)
    offset_axes: frozenset[int] = frozenset()
    staged: dict[int, str] = field(default_factory=dict)
    constants: dict[int, str] = field(default_factory=dict)
    constant_lines: list[str] = field(default_factory=list)
    items: int = 1
    grain: int = 1
    source: str = ""
    parameters: tuple[Parameter, ...] = ()

    def print(self) -> _Printer:
        self.kept_axes = [k for k, a in enumerate(self.nest.axes) if not a.reduced]
        self.reduced_axes = [k for k, a in enumerate(self.nest.axes) if a.reduced]
        self.find_producers()
        shape = shape_of(self.nest)
        if self.partials:
            if shape == "columns":
                self.partial_columns()
            else:
                self.partial_rows()
        elif shape == "elementwise":
            self.elementwise()
        elif shape == "rows":
            self.rows()
        else:
            self.columns()
        self.finish()
        return self

    # Names and text.

    def line(self, text: str, source: SourceLocation | None = None) -> None:
        text = "    " * self.depth + text
        if self.readable and source is not None:
            text = f"{text:<60}  # {source}"
        self.lines.append(text)

    def open(self, text: str) -> None:
        self.line(text)
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1

    def use(self, name: str) -> str:
        self.imports.add(name)
        return name

    def integer(self, name: str, value: int) -> str:
        self.integers.setdefault(name, Integer(name, value))
        return name

    def extent(self, axis: int) -> str:
        return self.integer(f"n{axis}", self.nest.axes[axis].extent)

    def name_of(self, value: Value) -> str:
        if self.readable:
            return value.name
        return self.values.setdefault(value.name, f"v{len(self.values)}")

    def pointer(self, operand: int) -> str:
        array = self.nest.operands[operand]
        if not self.readable:
            return f"p{operand}"
        return self.pointer_names()[operand] + ("_out" if array.written else "_in")

    def pointer_names(self) -> list[str]:
        """The Program's name of each operand's array, told apart where it recurs."""
        names: list[str] = []
        for operand, statement in self.operand_statements():
            name = statement.result.name if isinstance(statement, Load) else ""
            if isinstance(statement, Store) and isinstance(statement.value, Value):
                name = statement.value.name
            names.append(name or f"p{operand}")
        return names

    def operand_statements(self) -> list[tuple[int, Statement]]:
        found: dict[int, Statement] = {}
        for statement in self.nest.statements:
            if isinstance(statement, (Load, Store)):
                found[statement.operand] = statement
        return [(k, found[k]) for k in range(len(self.nest.operands))]

    def scalar(self, scalar: Scalar) -> str:
        if isinstance(scalar, Value):
            return self.name_of(scalar)
        if isinstance(scalar, Argument):
            return self.integer(scalar.name, scalar.value)
        return self.constant(scalar)

    def constant(self, constant: Constant) -> str:
        value = constant.value
        if constant.dtype == dtypes.bool_:
            return repr(bool(value))
        if not _is_plain(constant):
            return self.passed(constant)
        name = short_name(constant.dtype)
        if constant.dtype in dtypes.COMPLEX:
            value = complex(value)
            part = short_name(dtypes.real_of(constant.dtype))
            parts = ", ".join(self.real(part, p) for p in (value.real, value.imag))
            return f"{self.use(f'complex_{part}')}({parts})"
        assert not isinstance(value, complex)
        return self.real(name, value)

    def passed(self, constant: Constant) -> str:
        """The name of a constant that is an argument, as it may come from an extent."""
        known = self.constants.get(id(constant))
        if known is None:
            known = f"c{len(self.constants)}"
            self.constants[id(constant)] = known
            bits, text = self.unpacked(constant, self.integer_name(known))
            self.integer(self.integer_name(known), bits)
            comment = f"  # {constant.value!r}" if self.readable else ""
            self.constant_lines.append(f"    {known} = {text}{comment}")
        return known

    def integer_name(self, constant: str) -> str:
        return f"{constant}_bits"

    def unpacked(self, constant: Constant, name: str) -> tuple[int, str]:
        """A constant's bits as an integer argument, and how the kernel reads them."""
        dtype = constant.dtype
        array = np.array(constant.value).astype(dtype)
        if dtype in dtypes.FLOATS:
            integer = np.dtype(f"i{dtype.itemsize}")
            bits = int(array.view(integer))
            narrow = name
            if integer != dtypes.int64:
                narrow = f"{self.use(f'convert_i64_{short_name(integer)}')}({name})"
            cast = self.use(f"bitcast_{short_name(integer)}_{short_name(dtype)}")
            return bits, f"{cast}({narrow})"
        bits = int(array.astype(dtypes.int64))
        if dtype == dtypes.int64:
            return bits, name
        return bits, f"{self.use(f'convert_i64_{short_name(dtype)}')}({name})"

    def real(self, name: str, value: float) -> str:
        """A typed real constant."""
        if isinstance(value, float) and not math.isfinite(value):
            kind = "NAN" if math.isnan(value) else "INF" if value > 0 else "NEG_INF"
            return self.use(f"{name.upper()}_{kind}")
        return f"{self.use(name)}({value!r})"

    # Indices.

    def stride(self, operand: int, axis: int) -> str:
        """The text of one stride: a product of extents where it is one."""
        value = self.nest.operands[operand].strides[axis]
        if value in (0, 1):
            return str(value)
        product, factors = 1, []
        for inner in range(len(self.nest.axes) - 1, axis, -1):
            product *= self.nest.axes[inner].extent
            factors.insert(0, inner)
            if product == value and self.nest.axes[inner].extent > 1:
                return " * ".join(self.extent(k) for k in factors)
        return self.integer(f"{self.pointer(operand)}_s{axis}", value)

    def index(self, operand: int, variables: dict[int, str]) -> str:
        """The element of ``operand`` at the loop variables.

        The part along the outer axes has a name already, if offsets were hoisted.
        """
        terms: list[str] = []
        if self.offsets.get(operand, "0") != "0":
            terms.append(self.offsets[operand])
        for axis in range(len(self.nest.axes)):
            if axis in self.offset_axes:
                continue
            stride = self.stride(operand, axis)
            variable = variables.get(axis)
            if stride == "0" or variable is None:
                continue
            if stride == "1":
                terms.append(variable)
            else:
                terms.append(f"{variable} * {stride}")
        return " + ".join(terms) or "0"

    # Statements.

    def find_producers(self) -> None:
        self.producers: dict[str, Statement] = {}
        for s in self.nest.statements:
            if isinstance(s, (Load, Compute, Count, Reduce)):
                self.producers[s.result.name] = s

    def element_at(self, operand: int, variables: dict[int, str]) -> str:
        if operand in self.staged:
            return self.staged[operand]
        return f"{self.pointer(operand)}[{self.index(operand, variables)}]"

    def place(self, s: Load | Store, variables: dict[int, str]) -> str:
        """The element that ``s`` loads or stores."""
        if not s.at:
            return self.element_at(s.operand, variables)
        steps = " + ".join(self.step(s.operand, k, step) for k, step in enumerate(s.at))
        affine = self.index(s.operand, variables)
        index = steps if affine == "0" else f"{affine} + {steps}"
        return f"{self.pointer(s.operand)}[{index}]"

    def step(self, operand: int, number: int, step: Step) -> str:
        if step.stride == 1:
            return self.name_of(step.index)
        stride = self.integer(f"{self.pointer(operand)}_step{number}", step.stride)
        return f"{self.name_of(step.index)} * {stride}"

    def load(self, s: Load, variables: dict[int, str]) -> None:
        text = self.place(s, variables)
        dtype = self.nest.operands[s.operand].dtype
        self.line(f"{self.name_of(s.result)} = {self.widen(dtype, text)}", None)

    def widen(self, dtype: DType, text: str) -> str:
        if dtype == dtypes.bool_:
            return f"{self.use('convert_u8_bool')}({text})"
        if dtype in dtypes.HALVES:
            return f"{self.use(f'convert_{short_name(dtype)}_f32')}({text})"
        return text

    def narrow(self, dtype: DType, text: str) -> str:
        if dtype == dtypes.bool_:
            return f"{self.use('convert_bool_u8')}({text})"
        if dtype in dtypes.HALVES:
            return f"{self.use(f'convert_f32_{short_name(dtype)}')}({text})"
        return text

    def compute(self, s: Compute) -> None:
        arguments = [self.scalar(a) for a in s.arguments]
        self.line(
            f"{self.name_of(s.result)} = {self.expression(s.function, arguments)}",
            s.source,
        )

    def expression(self, function: str, arguments: Sequence[str]) -> str:
        kind, _, suffix = function.rpartition("_")
        if kind == "identity":
            return arguments[0]
        if kind in INFIX and suffix in ("f32", "f64"):
            return f"{arguments[0]} {INFIX[kind]} {arguments[1]}"
        if kind == "square" and suffix in ("f32", "f64"):
            return f"{arguments[0]} * {arguments[0]}"
        if kind.startswith("round_"):
            # To a half and back: the value stays float32 in the kernel.
            source = kind.removeprefix("round_")
            down = self.use(f"convert_{source}_{suffix}")
            up = self.use(f"convert_{suffix}_f32")
            return f"{up}({down}({arguments[0]}))"
        if kind in ("threefry2x32_0", "threefry2x32_1"):
            function = kind
        return f"{self.use(function)}({', '.join(arguments)})"

    def store(self, s: Store, variables: dict[int, str]) -> None:
        dtype = self.nest.operands[s.operand].dtype
        value = self.narrow(dtype, self.scalar(s.value))
        if s.where is not None:
            self.open(f"if {self.name_of(s.where)}:")
        self.line(f"{self.place(s, variables)} = {value}")
        if s.where is not None:
            self.close()

    def count(self, s: Count, variables: dict[int, str]) -> None:
        text = "0" if s.axis is None else variables[s.axis]
        self.line(f"{self.name_of(s.result)} = {self.use('i64')}({text})", s.source)

    def emit(self, s: Statement, variables: dict[int, str]) -> None:
        if isinstance(s, Load):
            self.load(s, variables)
        elif isinstance(s, Compute):
            self.compute(s)
        elif isinstance(s, Count):
            self.count(s, variables)
        elif isinstance(s, Store):
            self.store(s, variables)

    # What a stage computes, and what it takes from earlier stages.

    def plan_stages(self, keep: bool = True) -> None:
        """Decide which element values are kept between stages, which computed again."""
        self.kept: dict[str, str] = {}
        self.home: dict[str, int] = {}  # the first stage that computes a value
        self.stage_bodies: list[list[Statement]] = []
        nest = self.nest
        for stage in range(nest.stages):
            needed: set[str] = set()
            pending = [
                value.name
                for s in nest.statements
                if s.stage == stage and (isinstance(s, Reduce) or _is_element_store(s))
                for value in uses(s)
            ]
            while pending:
                name = pending.pop()
                s = self.producers[name]
                if name in needed or not _is_element(s):
                    continue
                needed.add(name)
                home = self.home.setdefault(name, stage)
                if isinstance(s, Compute):
                    dear = self.recompute_cost(name) > CPU.keep_cost
                    if keep and home < stage and dear:
                        self.kept.setdefault(name, "")
                        continue
                pending += [value.name for value in uses(s)]
            body = [
                s
                for s in nest.statements
                if (isinstance(s, (Load, Compute, Count)) and s.result.name in needed)
                or (isinstance(s, Reduce) and s.stage == stage)
                or (_is_element_store(s) and s.stage == stage)
            ]
            self.stage_bodies.append(body)

    def recompute_cost(self, name: str) -> int:
        seen: set[str] = set()
        pending, total = [name], 0
        while pending:
            current = pending.pop()
            s = self.producers[current]
            if current in seen or not isinstance(s, Compute) or s.level != "element":
                continue
            seen.add(current)
            if current != name and current in self.kept:
                continue
            total += s.cost
            pending += [a.name for a in s.arguments if isinstance(a, Value)]
        return total

    def keep_rows(self, elements: int) -> None:
        """Give each kept value a row of scratch, unless it can be read back."""
        for name in self.kept:
            s = self.producers[name]
            assert isinstance(s, Compute)
            stored = next(
                (
                    t.operand
                    for t in self.nest.statements
                    if isinstance(t, Store)
                    and isinstance(t.value, Value)
                    and t.value.name == name
                    and self.nest.operands[t.operand].dtype
                    == compute_dtype(s.result.dtype)
                    and s.result.dtype != dtypes.bool_
                ),
                None,
            )
            if stored is not None:
                self.kept[name] = f"@{stored}"
            else:
                row = f"{self.name_of(s.result)}_row"
                self.kept[name] = row
                self.scratch.append(ScratchRow(row, s.result.dtype, elements))

    def stage_loop_body(
        self, stage: int, variables: dict[int, str], row_index: str
    ) -> None:
        """The statements of ``stage`` inside its innermost loop."""
        for s in self.stage_bodies[stage]:
            if isinstance(s, Reduce):
                self.accumulate(s)
                continue
            if isinstance(s, Compute) and s.result.name in self.kept:
                place = self.kept[s.result.name]
                is_row = not place.startswith("@")
                text = (
                    f"{place}[{row_index}]"
                    if is_row
                    else self.element_at(int(place[1:]), variables)
                )
                narrow = s.result.dtype == dtypes.bool_
                if self.home[s.result.name] < stage:
                    name = self.name_of(s.result)
                    value = self.widen(s.result.dtype, text) if narrow else text
                    self.line(f"{name} = {value}")
                    continue
                self.compute(s)
                if is_row:
                    name = self.name_of(s.result)
                    value = self.narrow(s.result.dtype, name) if narrow else name
                    self.line(f"{text} = {value}")
                continue
            self.emit(s, variables)

    def accumulate(self, s: Reduce) -> None:
        name = self.name_of(s.result)
        function = self.use(s.function)
        self.line(f"{name} = {function}({name}, {self.scalar(s.argument)})", s.source)

    def reduces(self, stage: int) -> list[Reduce]:
        return [
            s
            for s in self.nest.statements
            if isinstance(s, Reduce) and s.stage == stage
        ]

    def outer_statements(self, stage: int) -> list[Statement]:
        return [
            s
            for s in self.nest.statements
            if not isinstance(s, Reduce) and s.level == "outer" and s.stage == stage
        ]

    def last_outer_stage(self) -> int:
        return max(
            (
                s.stage
                for s in self.nest.statements
                if not isinstance(s, Reduce) and s.level == "outer"
            ),
            default=0,
        )

    # Elementwise kernels.

    def elementwise(self) -> None:
        axes = self.nest.axes
        body = self.nest.statements
        if len(axes) <= 1:
            self.items = axes[0].extent if axes else 1
            self.grain = grain_of(self.nest, 1)
            self.open("for i0 in range(begin, end):")
            for s in body:
                self.emit(s, {0: "i0"} if axes else {})
            self.close()
            return
        inner = len(axes) - 1
        crossing = crossing_axis(self.nest)
        if crossing is not None:
            self.tiles(crossing, inner)
            return
        variables = self.open_blocks(list(range(inner)), inner, CPU.block)
        self.hoist_offsets(variables)
        self.open(f"for i{inner} in range(start, stop):")
        variables[inner] = f"i{inner}"
        for s in body:
            self.emit(s, variables)
        self.close()
        self.close()

    def tiles(self, crossing: int, inner: int) -> None:
        """Items are square tiles of two axes for each index of the others.

        An operand that is contiguous along the crossing axis is first brought, line by
        line, into a tile of scratch memory that lies as the loops run.
        """
        outer = [k for k in range(inner) if k != crossing]
        variables = self.open_blocks([*outer, crossing], inner, CPU.tile, CPU.tile)
        self.hoist_offsets({k: variables[k] for k in outer})
        across = {crossing: f"i{crossing}", inner: f"i{inner}"}
        place = f"(i{crossing} - first) * block + i{inner} - start"
        bounds = {crossing: "first, last", inner: "start, stop"}
        for operand in self.turned(crossing, inner):
            tile = f"{self.pointer(operand)}_tile"
            dtype = self.nest.operands[operand].dtype
            self.scratch.append(ScratchRow(tile, dtype, CPU.tile * CPU.tile))
            source = self.element_at(operand, {**variables, **across})
            for axis in (inner, crossing):
                self.open(f"for i{axis} in range({bounds[axis]}):")
            self.line(f"{tile}[{place}] = {source}")
            self.close()
            self.close()
            self.staged[operand] = f"{tile}[{place}]"
        for axis in (crossing, inner):
            self.open(f"for i{axis} in range({bounds[axis]}):")
        for s in self.nest.statements:
            self.emit(s, {**variables, **across})
        for _ in range(3):
            self.close()

    def turned(self, crossing: int, inner: int) -> list[int]:
        """The operands read that are contiguous along ``crossing``."""
        return [
            k
            for k, operand in enumerate(self.nest.operands)
            if not operand.written
            and abs(operand.strides[crossing]) == 1
            and abs(operand.strides[inner]) > 1
        ]

    def open_blocks(
        self, outer: Sequence[int], inner: int, size: int, rows: int = 1
    ) -> dict[int, str]:
        """Items are blocks of axis ``inner`` for each index of the ``outer`` axes.

        With ``rows`` the last outer axis is cut too: an item has that many indices of
        it, from ``first`` to ``last``.
        """
        extents = [self.nest.axes[k].extent for k in outer]
        if rows > 1:
            extents[-1] = -(-extents[-1] // rows)
        extent = self.nest.axes[inner].extent
        self.items = math.prod(extents) * -(-extent // size)
        self.grain = grain_of(self.nest, min(size, max(1, extent)) * rows)
        self.open("for item in range(begin, end):")
        n = self.extent(inner)
        name = self.integer("block", size)
        self.line(f"blocks = (n{inner} + {name} - 1) // {name}")
        self.line(f"start = item % blocks * {name}")
        self.line(f"stop = {self.use('min_i64')}(start + {name}, {n})")
        if rows == 1:
            return self.decompose("item // blocks", outer)
        last = self.extent(outer[-1])
        self.line("tile = item // blocks")
        self.line(f"tiles = ({last} + {name} - 1) // {name}")
        self.line(f"first = tile % tiles * {name}")
        self.line(f"last = {self.use('min_i64')}(first + {name}, {last})")
        return self.decompose("tile // tiles", outer[:-1])

    def decompose(self, text: str, axes: Sequence[int]) -> dict[int, str]:
        """Loop variables of ``axes`` from a flat index over them."""
        variables: dict[int, str] = {}
        if not axes:
            return variables
        if len(axes) == 1:
            self.line(f"i{axes[0]} = {text}")
            return {axes[0]: f"i{axes[0]}"}
        self.line(f"rest = {text}")
        for axis in reversed(axes[1:]):
            n = self.extent(axis)
            self.line(f"i{axis} = rest % {n}")
            self.line(f"rest = rest // {n}")
            variables[axis] = f"i{axis}"
        self.line(f"i{axes[0]} = rest")
        variables[axes[0]] = f"i{axes[0]}"
        return variables

    def hoist_offsets(self, variables: dict[int, str]) -> None:
        """One line for the offset of each operand along the axes of ``variables``."""
        seen: dict[str, str] = {}
        offsets: dict[int, str] = {}
        for operand in range(len(self.nest.operands)):
            text = self.index(operand, variables)
            if text == "0" or text.isidentifier():
                offsets[operand] = text
                continue
            if text not in seen:
                seen[text] = f"row{len(seen)}" if seen else "row"
                self.line(f"{seen[text]} = {text}")
            offsets[operand] = seen[text]
        self.offsets = offsets
        self.offset_axes = frozenset(variables)

    # Rows.

    def rows(self) -> None:
        kept, reduced = self.kept_axes, self.reduced_axes
        length = math.prod(self.nest.axes[k].extent for k in reduced)
        self.plan_stages()
        self.keep_rows(length)
        self.items = math.prod(self.nest.axes[k].extent for k in kept)
        self.grain = grain_of(self.nest, length)
        if len(kept) == 1:
            self.open(f"for i{kept[0]} in range(begin, end):")
            variables = {kept[0]: f"i{kept[0]}"}
        else:
            self.open("for item in range(begin, end):")
            variables = self.decompose("item", kept)
        self.hoist_offsets(variables)
        for stage in range(max(self.nest.stages, self.last_outer_stage() + 1)):
            for s in self.outer_statements(stage):
                self.emit(s, variables)
            if stage >= self.nest.stages or not self.stage_bodies[stage]:
                continue
            for s in self.reduces(stage):
                self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")
            inner = dict(variables)
            for axis in reduced:
                self.open(f"for i{axis} in range({self.extent(axis)}):")
                inner[axis] = f"i{axis}"
            self.stage_loop_body(stage, inner, self.row_index(reduced))
            for _ in reduced:
                self.close()
        self.close()

    def row_index(self, axes: Sequence[int]) -> str:
        text = ""
        for axis in axes:
            text = (
                f"i{axis}" if not text else f"({text}) * {self.extent(axis)} + i{axis}"
            )
        return text or "0"

    # Split reductions: partial results of chunks.

    def partial_rows(self) -> None:
        """Every axis is reduced: an item is a chunk of the first."""
        reduced = self.reduced_axes
        first, inner_axes = reduced[0], reduced[1:]
        inner = math.prod(self.nest.axes[k].extent for k in inner_axes)
        size = chunk_size(self.nest.axes[first].extent, inner)
        self.plan_stages()
        self.items = -(-self.nest.axes[first].extent // size)
        self.grain = grain_of(self.nest, size * inner)
        name = self.integer("chunk", size)
        self.open("for item in range(begin, end):")
        self.line(f"start = item * {name}")
        self.line(f"stop = {self.use('min_i64')}(start + {name}, {self.extent(first)})")
        for s in self.outer_statements(0):
            self.emit(s, {})
        for s in self.reduces(0):
            self.line(f"{self.name_of(s.result)} = {self.constant(s.identity)}")
        variables = {}
        self.open(f"for i{first} in range(start, stop):")
        variables[first] = f"i{first}"
        for axis in inner_axes:
            self.open(f"for i{axis} in range({self.extent(axis)}):")
            variables[axis] = f"i{axis}"
        self.stage_loop_body(0, variables, "0")
        for _ in reduced:
            self.close()
        for k, partial in enumerate(self.partials):
            value = self.name_of(partial.reduce.result)
            if partial.reduce.result.dtype == dtypes.bool_:
                value = self.narrow(dtypes.bool_, value)
            self.line(f"{self.partial_name(k)}[item] = {value}")
        self.close()

    def partial_name(self, k: int) -> str:
        if not self.readable:
            return f"q{k}"
        return f"{self.partials[k].reduce.result.name}_part"

    def column_axes(self) -> tuple[list[int], list[int], int]:
        """The kept axes outside, the reduced axes, and the innermost axis."""
        inner = len(self.nest.axes) - 1
        return [k for k in self.kept_axes if k != inner], self.reduced_axes, inner

    def partial_columns(self) -> None:
        """An item is a chunk of rows of a block of columns."""
        outer, reduced, inner = self.column_axes()
        first, more = reduced[0], reduced[1:]
        rows = self.nest.axes[first].extent
        width = self.nest.axes[inner].extent
        per_row = math.prod(self.nest.axes[k].extent for k in more)
        block = min(CPU.column_block, max(1, width))
        size = chunk_size(rows, per_row * block)
        self.plan_stages()
        chunks, blocks = -(-rows // size), -(-width // CPU.column_block)
        self.items = (
            math.prod(self.nest.axes[k].extent for k in outer) * chunks * blocks
        )
        self.grain = grain_of(self.nest, size * per_row * block)
        n, chunk = self.extent(inner), self.integer("chunk", size)
        name = self.integer("block", CPU.column_block)
        least = self.use("min_i64")
        self.open("for item in range(begin, end):")
        self.line(f"blocks = ({n} + {name} - 1) // {name}")
        self.line(f"chunks = ({self.extent(first)} + {chunk} - 1) // {chunk}")
        self.line(f"start = item % blocks * {name}")
        self.line(f"stop = {least}(start + {name}, {n})")
        self.line("part = item // blocks")
        self.line(f"first = part % chunks * {chunk}")
        self.line(f"last = {least}(first + {chunk}, {self.extent(first)})")
        variables = self.decompose("part // chunks", outer)
        column = f"i{inner}"
        self.open(f"for {column} in range(start, stop):")
        for k, partial in enumerate(self.partials):
            identity = self.constant(partial.reduce.identity)
            place = f"{self.partial_name(k)}[part * {n} + {column}]"
            self.line(f"{place} = {self.narrow_partial(partial, identity)}")
        self.close()
        self.open(f"for i{first} in range(first, last):")
        variables[first] = f"i{first}"
        for axis in more:
            self.open(f"for i{axis} in range({self.extent(axis)}):")
            variables[axis] = f"i{axis}"
        self.open(f"for {column} in range(start, stop):")
        variables[inner] = column
        for s in self.outer_statements(0):
            if isinstance(s, (Load, Compute, Count)):
                self.emit(s, variables)
        for s in self.stage_bodies[0]:
            if isinstance(s, Reduce):
                k = [p.reduce for p in self.partials].index(s)
                place = f"{self.partial_name(k)}[part * {n} + {column}]"
                have = self.widen_partial(self.partials[k], place)
                total = f"{self.use(s.function)}({have}, {self.scalar(s.argument)})"
                self.line(
                    f"{place} = {self.narrow_partial(self.partials[k], total)}",
                    s.source,
                )
            else:
                self.emit(s, variables)
        for _ in reduced:
            self.close()
        self.close()
        self.close()

    def narrow_partial(self, partial: Partial, text: str) -> str:
        is_bool = partial.reduce.result.dtype == dtypes.bool_
        return self.narrow(dtypes.bool_, text) if is_bool else text

    def widen_partial(self, partial: Partial, text: str) -> str:
        is_bool = partial.reduce.result.dtype == dtypes.bool_
        return self.widen(dtypes.bool_, text) if is_bool else text

    # Columns, in one or several stages.

    def columns(self) -> None:
        outer, reduced, inner = self.column_axes()
        width = self.nest.axes[inner].extent
        height = math.prod(self.nest.axes[k].extent for k in reduced)
        # Values kept of a column block would be as large as the block: compute again.
        self.plan_stages(keep=False)
        variables = self.open_blocks(outer, inner, CPU.column_block)
        self.grain = grain_of(self.nest, min(width, CPU.column_block) * height)
        column = f"i{inner}"
        for stage in range(max(self.nest.stages, self.last_outer_stage() + 1)):
            if self.outer_statements(stage):
                self.open(f"for {column} in range(start, stop):")
                self.column_outer(stage, {**variables, inner: column}, column)
                self.close()
            if stage >= self.nest.stages or not self.stage_bodies[stage]:
                continue
            self.column_stage(stage, variables, reduced, inner)
        self.close()

    def column_row(self, value: Value) -> str:
        """The scratch row that holds an outer value for each column of the block."""
        name = f"{self.name_of(value)}_columns"
        if all(row.name != name for row in self.scratch):
            self.scratch.append(ScratchRow(name, value.dtype, CPU.column_block))
        return name

    def column_value(self, value: Value, column: str) -> str:
        text = f"{self.column_row(value)}[{column} - start]"
        return self.widen(dtypes.bool_, text) if value.dtype == dtypes.bool_ else text

    def column_set(self, value: Value, column: str, text: str) -> None:
        if value.dtype == dtypes.bool_:
            text = self.narrow(dtypes.bool_, text)
        self.line(f"{self.column_row(value)}[{column} - start] = {text}")

    def column_outer(self, stage: int, variables: dict[int, str], column: str) -> None:
        local: set[str] = set()
        for s in self.outer_statements(stage):
            for value in uses(s):
                self.fetch(value, local, variables, column)
            self.emit(s, variables)
            if isinstance(s, (Load, Compute, Count)):
                local.add(s.result.name)
                if isinstance(s, Compute):
                    self.column_set(s.result, column, self.name_of(s.result))

    def fetch(
        self, value: Value, local: set[str], variables: dict[int, str], column: str
    ) -> None:
        """Bring an outer value of an earlier stage into a local name."""
        if value.name in local:
            return
        s = self.producers[value.name]
        if isinstance(s, Reduce) or (isinstance(s, Compute) and s.level == "outer"):
            self.line(f"{self.name_of(value)} = {self.column_value(value, column)}")
        elif isinstance(s, (Load, Count)) and s.level == "outer":
            self.emit(s, variables)
        else:
            return
        local.add(value.name)

    def column_stage(
        self, stage: int, variables: dict[int, str], reduced: list[int], inner: int
    ) -> None:
        column = f"i{inner}"
        reduces = self.reduces(stage)
        if reduces:
            self.open(f"for {column} in range(start, stop):")
            for s in reduces:
                self.column_set(s.result, column, self.constant(s.identity))
            self.close()
        within = dict(variables)
        for axis in reduced:
            self.open(f"for i{axis} in range({self.extent(axis)}):")
            within[axis] = f"i{axis}"
        self.open(f"for {column} in range(start, stop):")
        within[inner] = column
        local: set[str] = set()
        for s in self.stage_bodies[stage]:
            for value in uses(s):
                self.fetch(value, local, within, column)
            if isinstance(s, Reduce):
                have = self.column_value(s.result, column)
                total = f"{self.use(s.function)}({have}, {self.scalar(s.argument)})"
                self.column_set(s.result, column, total)
            else:
                self.emit(s, within)
        for _ in range(len(reduced) + 1):
            self.close()

    # The function around it.

    def finish(self) -> None:
        pointers = [
            Parameter(self.pointer(k), short_name(o.dtype) + "*")
            for k, o in enumerate(self.nest.operands)
        ]
        pointers += [
            Parameter(self.partial_name(k), short_name(p.array.type.dtype) + "*")
            for k, p in enumerate(self.partials)
        ]
        pointers += [
            Parameter(row.name, short_name(row.dtype) + "*") for row in self.scratch
        ]
        integers = [Parameter(i.name, "i64") for i in self.integers.values()]
        self.parameters = (*pointers, *integers)
        arguments = ", ".join([p.name for p in self.parameters] + ["begin", "end"])
        head: list[str] = []
        if self.readable:
            head.append(self.title())
        if self.imports:
            names = ", ".join(sorted(self.imports))
            head += _wrapped("from arrayfn.lowering.scalars import ", names, "")
            head += ["", ""]
        head += _wrapped(f"def {self.name}(", arguments, "):")
        if self.readable:
            head += textwrap.wrap(
                f'"""{self.signature()}"""',
                WIDTH,
                initial_indent="    ",
                subsequent_indent="    ",
            )
        self.source = "\n".join([*head, *self.constant_lines, *self.lines]) + "\n"

    def title(self) -> str:
        names = list(dict.fromkeys(self.nest.primitives))
        text = f"# {self.name}: {', '.join(names)}"
        sources = [
            s.source
            for s in self.nest.statements
            if isinstance(s, (Compute, Reduce)) and s.source is not None
        ]
        if sources:
            text += f"        at {sources[-1]}"
        return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."

    def signature(self) -> str:
        kinds: dict[str, list[str]] = {}
        for p in self.parameters:
            kinds.setdefault(p.kind, []).append(p.name)
        parts = [f"{', '.join(names)}: {kind}." for kind, names in kinds.items()]
        return " ".join([*parts, "Items begin to end."])


def _is_plain(constant: Constant) -> bool:
    """Whether ``constant`` is printed: it is one of those that shapes do not give."""
    if constant.dtype in dtypes.COMPLEX:
        return True
    value = constant.value
    assert not isinstance(value, complex)
    return value in PLAIN or not math.isfinite(value)


def _is_element(s: Statement) -> bool:
    return not isinstance(s, Reduce) and s.level == "element"


def _is_element_store(s: Statement) -> bool:
    return isinstance(s, Store) and s.level == "element"


def _wrapped(before: str, items: str, after: str) -> list[str]:
    """``before items after`` in lines of at most WIDTH, the items in parentheses."""
    if len(before) + len(items) + len(after) <= WIDTH:
        return [before + items + after]
    opening, closing = (before, after) if before.endswith("(") else (before + "(", ")")
    filled = textwrap.wrap(
        items + ",", WIDTH, initial_indent="    ", subsequent_indent="    "
    )
    return [opening, *filled, closing]


def chunk_size(extent: int, per_index: int) -> int:
    """How many indices of the first reduced axis make a chunk."""
    return max(1, min(max(1, extent), CPU.chunk // max(1, per_index)))
