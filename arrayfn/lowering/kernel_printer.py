"""Prints the parts that the kernels of all targets share.

These are indices, statements, and the function around them. Targets add the loops over
the axes. Lines and names are those of ``kernel_text``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Self

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import Var
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Compute,
    Constant,
    Count,
    IndexTerm,
    Load,
    Reduce,
    Statement,
    Store,
    is_outer,
)
from arrayfn.lowering.kernel_text import (
    Integer,
    KernelText,
    Partial,
    function_text,
    shortened,
    signature,
)
from arrayfn.lowering.memory import ALIGNMENT
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.records import frozen, record

INFIX = {"add": "+", "sub": "-", "mul": "*"}


@frozen
class ScratchRow:
    """An array in the scratch memory of the running thread."""

    name: str
    dtype: DType
    elements: int

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.elements * self.dtype.itemsize


def scratch_offsets(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return the byte offsets of scratch arrays of these sizes, and the total size.

    >>> scratch_offsets([100, 8])
    ([0, 128], 192)
    """
    aligned = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    return [sum(aligned[:k]) for k in range(len(aligned))], sum(aligned)


@frozen
class ScheduledKernel:
    """A printed kernel, and what one call of it needs.

    ``items`` and ``grain`` are as in ``KernelCall``. The kernel's parameters are
    pointers to ``arrays``, to ``partials`` and to ``scratch``, then the ``integers``.
    On a GPU a pointer to ``flag_buffer``, which is zero before the first launch, may
    follow the arrays.
    """

    kernel: Kernel
    arrays: tuple[ArrayOperand, ...]
    partials: tuple[Partial, ...]
    scratch: tuple[ScratchRow, ...]
    integers: tuple[Integer, ...]
    items: int
    grain: int
    flag_buffer: Var | None = None


@record
class KernelPrinter(KernelText, ABC):
    """The base of the printers of nests. Subclasses print the loops, in ``body``.

    The rows of ``exp(x) * 2`` are printed as follows: the CPU's printer adds the lines
    with ``for``, this class the others::

        def rows_0(x_in, a_out, n0, n1, begin, end):
            for i0 in range(begin, end):
                row = i0 * n1
                for i1 in range(n1):
                    x = x_in[row + i1]
                    b = exp_f32(x)
                    a = b * f32(2.0)
                    a_out[row + i1] = a

    Attributes:
        scratch: the scratch arrays that the kernel uses.
        offsets: the variable with each operand's offset along ``offset_axes``.
        offset_axes: the axes whose part of the index is hoisted into ``offsets``.
        staged: the text of an operand's element that is in shared memory or registers.
        items: the number of work items of the call.
        grain: the smallest number of items worth giving to a thread.
        source, parameters: the finished text and its parameters.
    """

    scratch: list[ScratchRow] = field(default_factory=list)
    offsets: dict[int, str] = field(default_factory=dict)
    offset_axes: frozenset[int] = frozenset()
    staged: dict[int, str] = field(default_factory=dict)
    items: int = 1
    grain: int = 1
    source: str = ""
    parameters: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        self.kept_axes = self.nest.kept_axes
        self.reduced_axes = self.nest.reduced_axes
        self.producers: dict[str, Statement] = {
            s.result.name: s for s in self.nest.statements if not isinstance(s, Store)
        }

    def print(self) -> Self:
        """Print the kernel: fills in ``source``, ``parameters`` and ``items``."""
        self.body()
        self.finish()
        return self

    @abstractmethod
    def body(self) -> None:
        """Print the lines inside the function."""

    # Indices.

    def stride(self, operand: int, axis: int) -> str:
        """Return the expression of the stride of ``operand`` along ``axis``.

        0, 1 and -1 are printed as numbers, so that compilers know contiguous and
        reversed axes. Another stride is a product of the extents of inner axes, such as
        ``n1 * n2``, if it equals that, as in a contiguous array. Else it is a
        parameter, as ``x_in_s0``.
        """
        value = self.nest.operands[operand].strides[axis]
        if value in (-1, 0, 1):
            return str(value)
        product, factors = 1, []
        for inner in range(len(self.nest.axes) - 1, axis, -1):
            product *= self.nest.axes[inner].extent
            factors.insert(0, inner)
            if product == value and self.nest.axes[inner].extent > 1:
                return " * ".join(self.extent(k) for k in factors)
        return self.integer(f"{self.pointer(operand)}_s{axis}", value)

    def index(self, operand: int, variables: dict[int, str]) -> str:
        """Return the expression of an operand's affine index: ``row + i1 * x_in_s1``.

        ``variables`` has the text of the index along each axis. The part along
        ``offset_axes`` is the hoisted offset, ``row``.
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

    def decompose(self, text: str, axes: Sequence[int]) -> dict[int, str]:
        """Print lines that split a flat index into an index along each of ``axes``.

        ``text`` is the flat index. Returns the variable of each axis. For ``item`` and
        three axes it prints ::

            rest = item
            i2 = rest % n2
            rest = rest // n2
            i1 = rest % n1
            rest = rest // n1
            i0 = rest
        """
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
        """Print a variable for the part of each operand's index along some axes.

        ``variables`` has these axes, and the text of the index along each. Operands
        with equal parts share a variable: ``row = i0 * n1``, ``row1 = i0 * x_in_s0``.
        """
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

    # Statements.

    def element_at(self, operand: int, variables: dict[int, str]) -> str:
        """Return the expression of an operand's element, as ``x_in[i0 + row]``.

        ``variables`` has the text of the index along each axis.
        """
        if operand in self.staged:
            return self.staged[operand]
        return f"{self.pointer(operand)}[{self.index(operand, variables)}]"

    def element_of(self, s: Load | Store, variables: dict[int, str]) -> str:
        """Return the expression of the element that ``s`` loads or stores.

        ``variables`` has the text of the index along each axis; computed terms are
        added.
        """
        if not s.indices or s.operand in self.staged:
            return self.element_at(s.operand, variables)
        return f"{self.pointer(s.operand)}[{self.full_index(s, variables)}]"

    def full_index(self, s: Load | Store, variables: dict[int, str]) -> str:
        """Return the index that ``s`` accesses: affine part plus computed terms."""
        terms = " + ".join(
            self.index_term(s.operand, k, term) for k, term in enumerate(s.indices)
        )
        affine = self.index(s.operand, variables)
        return (
            " + ".join(text for text in (affine, terms) if text != "0" and text) or "0"
        )

    def index_term(self, operand: int, number: int, term: IndexTerm) -> str:
        """Return the expression of index term ``number`` of ``operand``."""
        if term.stride == 1:
            return self.name_of(term.index)
        stride = self.integer(f"{self.pointer(operand)}_step{number}", term.stride)
        return f"{self.name_of(term.index)} * {stride}"

    def load(self, s: Load, variables: dict[int, str]) -> None:
        """Print ``x = x_in[row + i1]``, or ``x = convert_f16_f32(x_in[row + i1])``."""
        text = self.element_of(s, variables)
        self.line(f"{self.name_of(s.result)} = {self.widen_loaded(s.operand, text)}")

    def widen_loaded(self, operand: int, text: str) -> str:
        """Widen ``text``, an element of ``operand``, to its compute dtype."""
        return self.widen(self.nest.operands[operand].dtype, text)

    def widen(self, dtype: DType, text: str) -> str:
        """Convert ``text``, an element as it is stored, to its compute dtype."""
        if dtype == dtypes.bool_:
            return f"{self.use('convert_u8_bool')}({text})"
        if dtype in dtypes.HALF_PRECISION:
            return f"{self.use(f'convert_{short_name(dtype)}_f32')}({text})"
        return text

    def narrow(self, dtype: DType, text: str) -> str:
        """Convert ``text``, of the compute dtype, to the dtype that is stored."""
        if dtype == dtypes.bool_:
            return f"{self.use('convert_bool_u8')}({text})"
        if dtype in dtypes.HALF_PRECISION:
            return f"{self.use(f'convert_f32_{short_name(dtype)}')}({text})"
        return text

    def compute(self, s: Compute) -> None:
        """Print ``a = exp_f32(x)``, with the user's line behind it."""
        arguments = [self.scalar(a) for a in s.arguments[:1]]
        for a in s.arguments[1:]:
            if s.function.startswith("shift_") and isinstance(a, Constant):
                # No shape gives a shift's count, and one that is known has no guard.
                arguments.append(f"{self.use(short_name(a.dtype))}({a.value!r})")
            else:
                arguments.append(self.scalar(a))
        self.line(
            f"{self.name_of(s.result)} = {self.expression(s.function, arguments)}",
            s.source,
        )

    def expression(self, function: str, arguments: Sequence[str]) -> str:
        """Return the expression of a scalar function on the texts ``arguments``.

        ``function`` has its dtype suffix. Additions and products of floats are printed
        as operators: ``x * y`` for ``mul_f32``, but ``mul_i32(x, y)``.
        """
        name, _, suffix = function.rpartition("_")
        if name == "identity":
            return arguments[0]
        if name in INFIX and suffix in ("f32", "f64"):
            return f"{arguments[0]} {INFIX[name]} {arguments[1]}"
        if name == "square" and suffix in ("f32", "f64"):
            return f"{arguments[0]} * {arguments[0]}"
        if name.startswith("round_"):
            # To half precision and back: the value stays float32 in the kernel.
            source = name.removeprefix("round_")
            down = self.use(f"convert_{source}_{suffix}")
            up = self.use(f"convert_{suffix}_f32")
            return f"{up}({down}({arguments[0]}))"
        if name in ("threefry2x32_0", "threefry2x32_1"):
            function = name
        return f"{self.use(function)}({', '.join(arguments)})"

    def stored(self, operand: int, text: str) -> str:
        """Return ``text`` narrowed to the dtype of ``operand``."""
        return self.narrow(self.nest.operands[operand].dtype, text)

    def store(self, s: Store, variables: dict[int, str]) -> None:
        """Print ``a_out[row + i1] = a``, under ``if mask:`` where the store has one."""
        value = self.stored(s.operand, self.scalar(s.value))
        with self.open_if("" if s.where is None else self.name_of(s.where)):
            self.line(f"{self.element_of(s, variables)} = {value}")

    def count(self, s: Count, variables: dict[int, str]) -> None:
        """Print ``a = i64(i1)``: the index along the axis of ``s``."""
        text = "0" if s.axis is None else variables[s.axis]
        self.line(f"{self.name_of(s.result)} = {self.use('i64')}({text})", s.source)

    def emit(self, s: Statement, variables: dict[int, str]) -> None:
        """Print statement ``s``; a reduction prints nothing (see ``accumulate``).

        ``variables`` has the text of the index along each axis.
        """
        if isinstance(s, Load):
            self.load(s, variables)
        elif isinstance(s, Compute):
            self.compute(s)
        elif isinstance(s, Count):
            self.count(s, variables)
        elif isinstance(s, Store):
            self.store(s, variables)

    def accumulate(self, s: Reduce) -> None:
        """Print ``s = max_f32(s, x)``: one more term of a reduction."""
        name = self.name_of(s.result)
        function = self.use(s.function)
        self.line(f"{name} = {function}({name}, {self.scalar(s.argument)})", s.source)

    def row_reductions(self, stage: int) -> list[Reduce]:
        """Return the stage's reductions along the row.

        Those ``across`` rows are left out: they accumulate over the kept axes, for each
        index of the row.
        """
        return [s for s in self.nest.reductions if s.stage == stage and not s.across]

    def outer_statements(self, stage: int) -> list[Statement]:
        """Return the statements of ``stage`` that run once for each kept index."""
        return [s for s in self.nest.statements if is_outer(s) and s.stage == stage]

    def last_outer_stage(self) -> int:
        """Return the last stage with outer statements, 0 without any."""
        return max(
            (s.stage for s in self.nest.statements if is_outer(s)),
            default=0,
        )

    # The function around it.

    def partial_name(self, k: int) -> str:
        """Return the parameter that points to partial results number ``k``."""
        if not self.readable:
            return f"q{k}"
        return f"{self.partials[k].reduce.result.name}_part"

    def finish(self) -> None:
        """Fill in ``source`` and ``parameters`` from the printed lines."""
        pointers = [
            Parameter(self.pointer(k), short_name(o.dtype) + "*")
            for k, o in enumerate(self.nest.operands)
        ]
        pointers += [
            Parameter(self.partial_name(k), short_name(p.array.type.dtype) + "*")
            for k, p in enumerate(self.partials)
        ]
        pointers += [
            Parameter(array.name, short_name(array.dtype) + "*")
            for array in self.scratch
        ]
        integers = [Parameter(i.name, "i64") for i in self.integers.values()]
        self.parameters = (*pointers, *integers)
        # Neutral kernels of several dtypes can have one text but for the comment.
        types = "# " + " ".join(p.kind for p in self.parameters)
        self.source = function_text(
            self.name,
            [*(p.name for p in self.parameters), "begin", "end"],
            [*self.constant_lines, *self.lines],
            comment=self.title() if self.readable else types,
            imports=[("scalars", self.imports)],
            doc=self.signature() if self.readable else "",
        )

    def title(self) -> str:
        """Return the comment above the kernel: ``# rows_0: exp  at model.py:31``."""
        names = list(dict.fromkeys(self.nest.primitives))
        text = f"# {self.name}: {', '.join(names)}"
        sources = [
            s.source
            for s in self.nest.statements
            if isinstance(s, (Compute, Reduce)) and s.source is not None
        ]
        if sources:
            text += f"        at {sources[-1]}"
        return shortened(text)

    def signature(self) -> str:
        """Return the kernel's docstring: ``x: f32*. n0: i64. Items begin to end.``."""
        return f"{signature(self.parameters)} Items begin to end."
