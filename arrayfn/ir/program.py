"""Programs: typed, immutable lists of Equations over Vars and Literals.

Construction checks: an Equation's outputs have the types that its primitive's rule
gives; a Program uses no Var before it is defined and defines none twice. Rank-0
operands combine with arrays of any shape in elementwise equations; all other
broadcasting is an equation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

import numpy as np
from typing_extensions import override

from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import ProgramError, SourceLocation
from arrayfn.ir.format import format_program
from arrayfn.ir.layout import Shape
from arrayfn.ir.types import ArrayType

Params = Mapping[str, Any]
NO_PARAMS: Params = MappingProxyType({})


class _Frozen:
    """Base of immutable classes whose objects are compared by identity.

    Constructors set attributes by the setters of their slots. A dataclass with
    ``frozen=True`` takes four times as long to construct.
    """

    __slots__ = ()

    @override
    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to {name!r}: {self!r} is immutable")

    @override
    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete {name!r}: {self!r} is immutable")


class Var(_Frozen):
    """A typed value of a Program, equal only to itself.

    ``hint`` is the name of the value in the user's code. The printer makes a name from
    it.
    """

    __slots__ = ("hint", "type")

    type: ArrayType
    hint: str

    def __init__(self, type: ArrayType, hint: str = "") -> None:
        _set_type(self, type)
        _set_hint(self, hint)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return Var, (self.type, self.hint)

    @override
    def __repr__(self) -> str:
        return f"<Var {self.type}>"


_set_type: Callable[[Var, ArrayType], None] = vars(Var)["type"].__set__
_set_hint: Callable[[Var, str], None] = vars(Var)["hint"].__set__


class Literal(_Frozen):
    """A scalar constant of a Program: a Python number with a dtype."""

    __slots__ = ("type", "value")

    type: ArrayType
    value: PythonScalar

    def __init__(self, value: PythonScalar, dtype: DType, weak: bool = False) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "type", ArrayType((), dtype, weak=weak))

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return Literal, (self.value, self.type.dtype, self.type.weak)

    def key(self) -> tuple[str, DType]:
        """A key that is equal for literals with the same bits."""
        return repr(self.value), self.type.dtype

    @override
    def __repr__(self) -> str:
        return f"<Literal {self.value!r}: {self.type}>"


Atom = Var | Literal


class PrimitiveRow(Protocol):
    """What the IR needs to know of a primitive: its name and its type rule."""

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
        """The types of the outputs.

        Raises ShapeError or DTypeError, at ``source``.
        """
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
        """Make an equation with fresh outputs, whose types the type rule gives."""
        types = primitive.result_types(inputs, params, source)
        outputs = tuple([Var(t) for t in types])
        kept = MappingProxyType(dict(params)) if params else NO_PARAMS
        return cls(primitive, inputs, kept, outputs, source)

    def renamed(self, inputs: tuple[Atom, ...]) -> Equation:
        """A copy of the equation with other ``inputs`` and fresh outputs."""
        for have, given in zip(self.inputs, inputs, strict=True):
            if given.type is not have.type:
                return Equation.infer(self.primitive, inputs, self.params, self.source)
        outputs = tuple([Var(v.type) for v in self.outputs])
        return Equation(self.primitive, inputs, self.params, outputs, self.source)

    def with_inputs(self, inputs: tuple[Atom, ...]) -> Equation:
        """A copy of the equation with other ``inputs``.

        If the types of the inputs stay the same, the equation keeps its outputs.
        """
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

        Rules give row-major types. The compiler chooses the layout of a value.
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
        return programs_in(self.params)


def programs_in(params: Params) -> tuple[Program, ...]:
    """The Programs among an Equation's ``params``, alone or in tuples."""
    found: list[Program] = []
    for value in params.values():
        if isinstance(value, Program):
            found.append(value)
        elif isinstance(value, tuple):
            found += [p for p in value if isinstance(p, Program)]
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Program:
    """A Program has inputs, captured constants, equations in order, and outputs.

    ``constants`` are Vars whose arrays are in ``constant_values``. A Program inside an
    equation has no constants, because its captured values are inputs.

    >>> import arrayfn as af
    >>> program = af.make_program(lambda x: x + 1.0)(2.0)
    >>> isinstance(program, af.Program), len(program.equations)
    (True, 1)
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
        """Check the types of every equation, also in nested Programs."""
        for equation in self.equations:
            equation.check()
            for inner in equation.subprograms():
                inner.check()

    def definitions(self) -> dict[Var, Equation]:
        """The Equation that makes each Var; inputs and constants have none."""
        return {var: eq for eq in self.equations for var in eq.outputs}

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """The types of the inputs, without the constants."""
        return tuple(v.type for v in self.inputs)

    @property
    def output_types(self) -> tuple[ArrayType, ...]:
        """The types of the outputs."""
        return tuple(a.type for a in self.outputs)

    @override
    def __str__(self) -> str:
        return format_program(self).rstrip("\n")

    @override
    def __repr__(self) -> str:
        inputs = ", ".join(f"{v.hint or '_'}: {v.type}" for v in self.inputs)
        results = ", ".join(map(str, self.output_types))
        count = len(self.equations)
        return f"<Program {self.name}({inputs}) -> ({results}): {count} equations>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the Program's text."""
        from arrayfn.display import markup

        title = f"Program {markup.escape(self.name)}"
        count = f" <small>{len(self.equations)} equations</small>"
        return markup.shown(title + count, markup.listing(str(self).splitlines()))


def _logical(type: ArrayType) -> tuple[Shape, DType, bool]:
    return type.shape, type.dtype, type.weak


def _define(defined: set[Var], var: Var, name: str) -> None:
    """Add ``var`` to ``defined``; raises ProgramError if it is there already."""
    if var in defined:
        raise ProgramError(f"{name}: a value is defined twice ({var.type})")
    defined.add(var)
