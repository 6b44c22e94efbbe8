"""The text of a kernel: its lines, and the names of values, arrays and constants.

A kernel is one function, printed twice: to be read, with the Program's names and its
source lines; and neutral, as the key by which equal kernels are compiled once. What the
lines say is in ``kernel_printer``.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import KW_ONLY, field
from functools import cached_property
from typing import ClassVar, Final, Self

import numpy as np
from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.errors import SourceLocation
from arrayfn.ir import Var
from arrayfn.lowering import scalars
from arrayfn.lowering.kernel_ir import (
    Argument,
    Constant,
    Load,
    Nest,
    Reduce,
    Scalar,
    Statement,
    Store,
    Value,
)
from arrayfn.lowering.plan import Parameter
from arrayfn.records import frozen, record

WIDTH = 88  # columns of a line, as in the code base
COMMENT_COLUMN = 60  # where comments with source lines begin
PLAIN = frozenset({0, 1, -1, 2, -2, 0.5, -0.5})
"""Numbers that are printed as they are; others may follow from a shape: arguments."""
OWN_NAMES: Final = re.compile(
    r"[ijnc]\d+|(row|part|tile)\d*|item|start|stop|first|last|rest|block|blocks|chunk"
    r"|chunks|tiles|near|far|begin|end|range|bool_|[iuf]\d+|bf16|c64|c128"
)
"""Names that a kernel gives its own variables, and those of dtypes."""
_NUMBERED: Final = re.compile(
    r"_.*|.*_|[cpqv]\d+(_.*)?|copied|values?|iterations?|chosen"
)
_WORDS: Final = frozenset({*dir(scalars), *keyword.kwlist, *dir(builtins)})


def with_kernel_names(
    names: dict[Var, str], arguments: Sequence[Var], reserved: AbstractSet[str]
) -> dict[Var, str]:
    """Append ``_`` to each name that cannot be an argument of a kernel.

    Such a name is a word that kernels use, or another variable's name followed by
    ``_...``, as pointers' names are. Names stay distinct: one that already ends in
    ``_`` gets one more.

    Args:
        names: the name of each Var in the Program's text.
        arguments: the Vars that may become arguments.
        reserved: words of the target's kernels.
    """
    all_names = set(names.values())
    return names | {
        var: f"{names[var]}_"
        for var in arguments
        if _clashes(names[var], all_names, reserved)
    }


def _clashes(
    name: str, all_names: AbstractSet[str], reserved: AbstractSet[str]
) -> bool:
    """Whether ``name`` is reserved, or could be that of a kernel's own variable.

    ``all_names`` are the names of the other Vars, ``reserved`` words of the target's
    kernels.
    """
    parts = name.split("_")
    return (
        name in _WORDS
        or name in reserved
        or OWN_NAMES.fullmatch(name) is not None
        or _NUMBERED.fullmatch(name) is not None
        or any("_".join(parts[:k]) in all_names for k in range(1, len(parts)))
    )


def unique_name(base: str, taken: set[str], number: int = 2) -> str:
    """Return ``base``, with a number from ``number`` on if it is in ``taken``.

    The name is added to ``taken``.
    """
    name = base
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name


@frozen
class Integer:
    """An integer argument: its name in the kernel, and its value in this plan."""

    name: str
    value: int


@frozen
class Partial:
    """A reduction of a split nest, and the array of its partial results."""

    reduce: Reduce
    array: Var


@record
class Body:
    """The lines of a function's body so far, and the indentation of the next line.

    ``with body.open("if x > 0:"):`` adds the lines inside it as a block.
    """

    _: KW_ONLY
    lines: list[str] = field(default_factory=list[str])
    depth: int = 1

    def line(self, text: str) -> None:
        """Append a line at the current depth."""
        self.lines.append("    " * self.depth + text)

    def print_lines(self, text: str) -> None:
        """Append the lines of ``text`` at the current depth.

        Their common indentation is dropped, so that a printer can show its part of a
        kernel as the kernel will have it, in a triple-quoted string.
        """
        for line in textwrap.dedent(text).strip().splitlines():
            self.line(line)

    def open(self, text: str) -> Self:
        """Add a line that opens a block, which ends at ``close``."""
        self.line(text)
        self.depth += 1
        return self

    def open_if(self, condition: str) -> Self | nullcontext[None]:
        """Open ``if condition:``; nothing if the condition is empty."""
        return self.open(f"if {condition}:") if condition else nullcontext()

    def close(self) -> None:
        """End the block."""
        self.depth -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@record
class KernelText(Body):
    """The lines of a kernel of ``nest``, and the names in them.

    Attributes:
        own_names: names that the target's kernels give their own variables, besides
            ``OWN_NAMES``.
        partials: the partial results that the kernel writes.
        readable: whether it is the text for people, or the neutral key.
        imports: the functions of the scalar vocabulary that the text uses.
        integers: the integer arguments so far, by name.
        values: the neutral names of values so far.
        constants: the names of constants that are arguments, by their ``id``.
        constant_lines: the lines that unpack those from integer arguments.
    """

    own_names: ClassVar[AbstractSet[str]] = frozenset()

    nest: Nest
    name: str
    partials: Sequence[Partial] = ()
    readable: bool = True
    imports: set[str] = field(default_factory=set)
    integers: dict[str, Integer] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    constants: dict[int, str] = field(default_factory=dict)
    constant_lines: list[str] = field(default_factory=list)

    # Names and text.

    @override
    def line(self, text: str, source: SourceLocation | None = None) -> None:
        """Append a line; the readable text gets ``source`` as a comment."""
        indent = "    " * self.depth
        text = indent + text
        if self.readable and source is not None:
            marked = f"{text:<{COMMENT_COLUMN}}  # {source}"
            if len(marked) > WIDTH and len(text) > COMMENT_COLUMN:
                self.lines.append(f"{indent}# {source}")
            else:
                text = marked
        self.lines.append(text)

    def use(self, name: str) -> str:
        """Record ``name`` as a function that the kernel imports, and return it."""
        self.imports.add(name)
        return name

    def integer(self, name: str, value: int) -> str:
        """Record ``name`` as an integer parameter with this argument, and return it."""
        parameter = self.integers.setdefault(name, Integer(name, value))
        assert parameter.value == value, f"{name} is {parameter.value}, and {value}"
        return name

    def argument(self, argument: Argument) -> str:
        """Record the parameter of ``argument``, and return its name.

        ``_`` is appended if the name clashes with another, or with a parameter of the
        same name and another value.
        """
        name, value = argument.name, argument.value
        if _clashes(name, self._names, self.own_names):
            name += "_"
        while name in self._names or self.integers.get(name, argument).value != value:
            name += "_"
        return self.integer(name, value)

    def is_own(self, name: str) -> bool:
        """Whether kernels use ``name`` for variables of their own."""
        return OWN_NAMES.fullmatch(name) is not None or name in self.own_names

    @cached_property
    def _names(self) -> set[str]:
        """The names of values and pointers in the readable text.

        There are none in the neutral text, the kernel's key, which numbers its values.
        """
        if not self.readable:
            return set()
        results = [s.result for s in self.nest.statements if not isinstance(s, Store)]
        names = {
            name for value in results for name in (value.name, self.name_of(value))
        }
        return names | {self.pointer(k) for k in range(len(self.nest.operands))}

    def extent(self, axis: int) -> str:
        """Return the name of the parameter that is the extent of ``axis``."""
        return self.integer(f"n{axis}", self.nest.axes[axis].extent)

    def name_of(self, value: Value) -> str:
        """Return the variable of ``value``: the Program's name, ``_`` if it clashes.

        The neutral text has ``v0``, ``v1`` and so on instead.
        """
        if not self.readable:
            return self.values.setdefault(value.name, f"v{len(self.values)}")
        return f"{value.name}_" if self.is_own(value.name) else value.name

    def pointer(self, operand: int) -> str:
        """Return the parameter that points to ``operand``: ``x_in``, ``y_out``."""
        array = self.nest.operands[operand]
        if not self.readable:
            return f"p{operand}"
        return self.pointer_names()[operand] + ("_out" if array.written else "_in")

    def pointer_names(self) -> list[str]:
        """Return the Program's name of each operand's array."""
        names: list[str] = []
        for operand, statement in self.operand_statements():
            name = statement.result.name if isinstance(statement, Load) else ""
            if isinstance(statement, Store) and isinstance(statement.value, Value):
                name = statement.value.name
            names.append(name or f"p{operand}")
        return names

    def operand_statements(self) -> list[tuple[int, Statement]]:
        """Return each operand's number, with the last statement that accesses it."""
        last: dict[int, Statement] = {}
        for statement in self.nest.statements:
            if isinstance(statement, (Load, Store)):
                last[statement.operand] = statement
        return [(k, last[k]) for k in range(len(self.nest.operands))]

    def scalar(self, scalar: Scalar) -> str:
        """Return the expression of ``scalar``: a variable, parameter or constant."""
        if isinstance(scalar, Value):
            return self.name_of(scalar)
        if isinstance(scalar, Argument):
            return self.argument(scalar)
        return self.constant(scalar)

    # Constants.

    def constant(self, constant: Constant) -> str:
        """Return the expression of ``constant``: ``f32(0.5)``, or the variable ``c0``.

        Simple numbers (``PLAIN``) are printed, others are passed as arguments.
        """
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
        """Return the variable of a constant that is passed to the kernel.

        Constants that shapes may change are passed, so that the kernel stays the same.
        A Constant object that is used several times is passed once. The line ``c0 =
        bitcast_i32_f32(convert_i64_i32(c0_bits))  # 0.1`` is added to
        ``constant_lines``.
        """
        name = self.constants.get(id(constant))
        if name is None:
            name = f"c{len(self.constants)}"
            self.constants[id(constant)] = name
            bits, text = self.unpacked(constant, self.integer_name(name))
            self.integer(self.integer_name(name), bits)
            comment = f"  # {constant.value!r}" if self.readable else ""
            self.constant_lines.append(f"    {name} = {text}{comment}")
        return name

    def integer_name(self, constant: str) -> str:
        """Return the parameter with the bits of ``constant``."""
        return f"{constant}_bits"

    def unpacked(self, constant: Constant, name: str) -> tuple[int, str]:
        """Return the bits of ``constant`` as an integer, and the text to unpack them.

        ``name`` is the int64 parameter that holds them.
        """
        dtype = constant.dtype
        array = np.array(constant.value).astype(dtype)
        if dtype in dtypes.FLOATS:
            integer = np.dtype(f"i{dtype.itemsize}")
            bits = int(array.view(integer))
            bits_text = name
            if integer != dtypes.int64:
                bits_text = f"{self.use(f'convert_i64_{short_name(integer)}')}({name})"
            cast = self.use(f"bitcast_{short_name(integer)}_{short_name(dtype)}")
            return bits, f"{cast}({bits_text})"
        bits = int(array.astype(dtypes.int64))
        if dtype == dtypes.int64:
            return bits, name
        return bits, f"{self.use(f'convert_i64_{short_name(dtype)}')}({name})"

    def real(self, name: str, value: float) -> str:
        """Return the expression of a real constant of dtype ``name``: ``f32(0.5)``."""
        if isinstance(value, float) and not math.isfinite(value):
            kind = "NAN" if math.isnan(value) else "INF" if value > 0 else "NEG_INF"
            return self.use(f"{name.upper()}_{kind}")
        return f"{self.use(name)}({value!r})"


def _is_plain(constant: Constant) -> bool:
    """Whether ``constant`` is printed as a number.

    Numbers that could come from an extent are passed as arguments instead.
    """
    if constant.dtype in dtypes.COMPLEX:
        return True
    value = constant.value
    assert not isinstance(value, complex)
    return value in PLAIN or not math.isfinite(value)


def signature(parameters: Iterable[Parameter]) -> str:
    """Return the types of parameters, as a kernel's docstring lists them.

    >>> signature([Parameter("x", "f32*"), Parameter("n0", "i64")])
    'x: f32*. n0: i64.'
    """
    kinds: dict[str, list[str]] = {}
    for p in parameters:
        kinds.setdefault(p.kind, []).append(p.name)
    return " ".join(f"{', '.join(names)}: {kind}." for kind, names in kinds.items())


def shortened(title: str) -> str:
    """Cut ``title`` to the width of a line."""
    return title if len(title) <= WIDTH else title[: WIDTH - 3] + "..."


def function_text(
    name: str,
    arguments: Iterable[str],
    lines: Iterable[str],
    *,
    comment: str,
    imports: Iterable[tuple[str, Collection[str]]],
    doc: str,
) -> str:
    """Return the source of a kernel: a comment, imports, and one function.

    Args:
        name: the function's name.
        arguments: the names of its parameters.
        lines: the lines of its body, indented.
        comment: the line above all.
        imports: pairs of a module below ``arrayfn.lowering`` and the names imported
            from it.
        doc: the function's docstring; "" for none.
    """
    head = [comment]
    for room, names in imports:
        if names:
            text = ", ".join(sorted(names))
            head += wrapped(f"from arrayfn.lowering.{room} import ", text, "")
    if len(head) > 1:
        head += ["", ""]
    head += wrapped(f"def {name}(", ", ".join(arguments), "):")
    if doc:
        head += filled(f'"""{doc}"""')
    return "\n".join([*head, *lines]) + "\n"


def wrapped(before: str, items: str, after: str) -> list[str]:
    """Join ``before``, ``items`` and ``after``; break long lines, in parentheses.

    >>> wrapped("def f(", "x, y", "):")
    ['def f(x, y):']
    """
    if len(before) + len(items) + len(after) <= WIDTH:
        return [before + items + after]
    opening, closing = (before, after) if before.endswith("(") else (before + "(", ")")
    return [opening, *filled(items + ","), closing]


def filled(text: str, indent: str = "    ") -> list[str]:
    """Break ``text`` into lines that begin with ``indent``."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
