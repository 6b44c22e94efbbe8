"""The IR: a Program is a typed, frozen list of Equations over Vars and Literals.

Every transformation maps a Program to a Program. Construction checks: an Equation's
outputs have the types that its primitive's rule gives; a Program uses no Var before it
is defined and defines none twice. Rank-0 operands combine with arrays of any shape in
elementwise equations; all other broadcasting is an equation of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from arrayfn import layout as layouts
from arrayfn.dtypes import (
    SHORT_NAMES,
    DType,
    PythonScalar,
    canonical,
    is_python_scalar,
    short_name,
    weak_dtype,
)
from arrayfn.errors import (
    ArgumentError,
    ProgramError,
    SourceLocation,
    user_location,
)
from arrayfn.ir_format import format_program
from arrayfn.layout import Layout, Shape

Params = Mapping[str, Any]
NO_PARAMS: Params = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ArrayType:
    """Shape, data type and layout of an array.

    ``weak`` marks what came from a Python scalar: its dtype gives way in promotion.
    """

    shape: Shape
    dtype: DType
    layout: Layout = layouts.C
    weak: bool = False

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self.size * self.dtype.itemsize

    def span(self) -> tuple[int, int]:
        """The lowest element in memory, from its first one, and how many it spans."""
        if self.size == 0:
            return 0, 0
        steps = self.layout.strides(self.shape)
        ends = [(n - 1) * step for n, step in zip(self.shape, steps, strict=True)]
        low = sum(min(0, end) for end in ends)
        return low, sum(max(0, end) for end in ends) - low + 1

    def with_shape(self, shape: Iterable[int]) -> ArrayType:
        """Row-major, strong, of another shape."""
        return ArrayType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: DType) -> ArrayType:
        """Row-major, strong, of another dtype."""
        return ArrayType(self.shape, dtype)

    def __str__(self) -> str:
        weak = "~" if self.weak else ""
        text = f"{weak}{short_name(self.dtype)}[{','.join(map(str, self.shape))}]"
        return text if self.layout == layouts.C else f"{text} {self.layout}"


class Var:
    """A typed value of a Program: itself and no other.

    ``hint`` is what the user calls it; the printer makes a name of it.
    """

    __slots__ = ("hint", "type")

    def __init__(self, type: ArrayType, hint: str = "") -> None:
        self.type = type
        self.hint = hint

    def __repr__(self) -> str:
        return f"<Var {self.type}>"


class Literal:
    """A scalar constant of a Program: a Python number with a dtype."""

    __slots__ = ("type", "value")

    def __init__(self, value: PythonScalar, dtype: DType, weak: bool = False) -> None:
        self.value = value
        self.type = ArrayType((), dtype, weak=weak)

    def key(self) -> tuple[str, DType]:
        """Equal for literals with the same bits."""
        return repr(self.value), self.type.dtype

    def __repr__(self) -> str:
        return f"<Literal {self.value!r}: {self.type}>"


Atom = Var | Literal


class PrimitiveRow(Protocol):
    """What the IR knows of a primitive: its name and its type rule."""

    @property
    def name(self) -> str:
        """The name in the text form."""
        ...

    def result_types(
        self,
        inputs: Sequence[Atom],
        params: Params,
        source: SourceLocation | None = None,
    ) -> tuple[ArrayType, ...]:
        """The types of the outputs; raises ShapeError or DTypeError, at ``source``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """``outputs = primitive(*inputs, **params)``, at a line of the user's source."""

    primitive: PrimitiveRow
    inputs: tuple[Atom, ...]
    params: Params
    outputs: tuple[Var, ...]
    source: SourceLocation | None = None

    @classmethod
    def infer(
        cls,
        primitive: PrimitiveRow,
        inputs: tuple[Atom, ...],
        params: Params,
        source: SourceLocation | None = None,
    ) -> Equation:
        """The equation with fresh outputs of the types that the rule gives."""
        types = primitive.result_types(inputs, params, source)
        outputs = tuple([Var(t) for t in types])
        kept = MappingProxyType(dict(params)) if params else NO_PARAMS
        return cls(primitive, inputs, kept, outputs, source)

    def renamed(self, inputs: tuple[Atom, ...]) -> Equation:
        """The same of other ``inputs``, with fresh outputs."""
        for have, given in zip(self.inputs, inputs, strict=True):
            if given.type is not have.type:
                return Equation.infer(self.primitive, inputs, self.params, self.source)
        outputs = tuple([Var(v.type) for v in self.outputs])
        return Equation(self.primitive, inputs, self.params, outputs, self.source)

    def given(self, inputs: tuple[Atom, ...]) -> Equation:
        """The same of other ``inputs``, with its own outputs if their types stay."""
        same = True
        for have, atom in zip(self.inputs, inputs, strict=True):
            if atom is not have:
                same = False
                if atom.type is not have.type:
                    return self.renamed(inputs)
        if same:
            return self
        return Equation(self.primitive, inputs, self.params, self.outputs, self.source)

    def check(self) -> None:
        """Raise ProgramError unless the outputs have the rule's types.

        Rules give row-major types; which layout a value has is the compiler's choice.
        """
        types = self.primitive.result_types(self.inputs, self.params)
        have = tuple(v.type for v in self.outputs)
        if [_logical(t) for t in have] != [_logical(t) for t in types]:
            raise ProgramError(
                f"{self.primitive.name} gives {', '.join(map(str, types))}, "
                f"but its outputs are typed {', '.join(map(str, have))}",
                self.source,
            )

    def subprograms(self) -> tuple[Program, ...]:
        """The Programs among the params, alone or in tuples."""
        found: list[Program] = []
        for value in self.params.values():
            if isinstance(value, Program):
                found.append(value)
            elif isinstance(value, tuple):
                found += [p for p in value if isinstance(p, Program)]
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Inputs, captured constants, equations in order, outputs.

    ``constants`` are inputs of their own kind: Vars whose arrays are in
    ``constant_values``. A Program inside an equation has none; its closed-over values
    are inputs.
    """

    name: str
    inputs: tuple[Var, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    constants: tuple[Var, ...] = ()
    constant_values: tuple[np.ndarray[Any, Any], ...] = field(default=())

    def __post_init__(self) -> None:
        defined: set[Var] = set()
        for var in (*self.inputs, *self.constants):
            _define(defined, var, self.name)
        for equation in self.equations:
            for atom in equation.inputs:
                if isinstance(atom, Var) and atom not in defined:
                    raise ProgramError(
                        f"{self.name}: {equation.primitive.name} uses a value before "
                        f"it is defined ({atom.type})",
                        equation.source,
                    )
            for var in equation.outputs:
                _define(defined, var, self.name)
        for atom in self.outputs:
            if isinstance(atom, Var) and atom not in defined:
                raise ProgramError(f"{self.name}: an output is not defined")

    def check(self) -> None:
        """Check every equation's types, in nested Programs too."""
        for equation in self.equations:
            equation.check()
            for inner in equation.subprograms():
                inner.check()

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """The types of the inputs, without the constants."""
        return tuple(v.type for v in self.inputs)

    @property
    def output_types(self) -> tuple[ArrayType, ...]:
        """The types of the outputs."""
        return tuple(a.type for a in self.outputs)

    def __str__(self) -> str:
        return format_program(self).rstrip("\n")


def _logical(type: ArrayType) -> tuple[Shape, DType, bool]:
    return type.shape, type.dtype, type.weak


def _define(defined: set[Var], var: Var, name: str) -> None:
    if var in defined:
        raise ProgramError(f"{name}: a value is defined twice ({var.type})")
    defined.add(var)


def unlike_arrays(value: object) -> str:
    """Why ``value``, of a class derived from NumPy's arrays, is not taken as one.

    Empty if it is.
    """
    if isinstance(value, np.matrix):
        return (
            "a numpy.matrix, whose * is a product of matrices and whose axes are "
            "always two, as no array's are; convert it with numpy.asarray(x), and "
            "write @ for products"
        )
    if isinstance(value, np.ma.MaskedArray):
        return "a masked array, whose mask would be lost; call .filled() first"
    return ""


def type_of(value: object) -> ArrayType:
    """The type of a NumPy array, NumPy scalar or Python scalar, or a device's array.

    Arrays of devices say it themselves, as ``__arrayfn_type__``. One that cannot be
    read in place has the type of its copy (``in_place``).
    """
    if type(value) is np.ndarray:
        return _type_of_array(value)
    if is_python_scalar(value):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ArgumentError(
                f"the Python int {value} does not fit int64; pass a float, or an array "
                "of uint64",
                user_location(),
            )
        return ArrayType((), weak_dtype(value), weak=True)  # type: ignore[arg-type]
    if not isinstance(value, (np.ndarray, np.generic)):
        known = getattr(value, "__arrayfn_type__", None)
        if isinstance(known, ArrayType):
            return known
    if why := unlike_arrays(value):
        raise ArgumentError(f"an operand is {why}", user_location())
    return _type_of_array(np.asarray(value))


def _type_of_array(array: np.ndarray[Any, Any]) -> ArrayType:
    dtype = array.dtype
    if dtype not in SHORT_NAMES:
        dtype = canonical(dtype)
    if array.flags.c_contiguous and array.flags.aligned:
        return ArrayType(array.shape, dtype)
    if not _lies_on_elements(array):
        return ArrayType(array.shape, dtype)
    steps = tuple(stride // array.itemsize for stride in array.strides)
    return ArrayType(array.shape, dtype, layouts.from_strides(array.shape, steps))


def in_place(x: Any) -> Any:
    """``x``; a row-major copy of a NumPy array whose elements do not lie on words.

    Such are fields of records, and arrays in bytes from an odd place on. ``type_of``
    gives the type of the copy.
    """
    if not isinstance(x, np.ndarray) or _lies_on_elements(x):
        return x
    return np.array(x, order="C")


def _lies_on_elements(array: np.ndarray[Any, Any]) -> bool:
    """Whether each element is at a whole number of elements from the first, aligned."""
    size = array.itemsize
    return array.flags.aligned and not any(step % size for step in array.strides)
