"""Programs: typed, immutable lists of Equations over Vars and Literals.

Construction checks: an Equation's outputs have the types that its primitive's rule
gives; a Program uses no Var before it is defined and defines none twice. Rank-0
operands combine with arrays of any shape in elementwise equations; all other
broadcasting is an equation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, field, replace
from types import MappingProxyType
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
from typing_extensions import override

from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import ProgramError, SourceLocation
from arrayfn.ir.format import format_equation, format_program
from arrayfn.ir.layout import Shape
from arrayfn.ir.sharding import UNVARYING
from arrayfn.ir.types import ArrayType
from arrayfn.records import frozen

Params = Mapping[str, Any]
NO_PARAMS: Params = MappingProxyType({})


class _Frozen:
    """Base of immutable classes whose objects are compared by identity.

    Setting an attribute raises FrozenInstanceError. Constructors set attributes by
    ``object.__setattr__`` or by the setters of their slots, which is faster. A
    dataclass with ``frozen=True`` takes four times as long to construct.
    """

    __slots__ = ()

    @override
    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Raise FrozenInstanceError."""
        raise FrozenInstanceError(f"cannot assign to {name!r}: {self!r} is immutable")

    @override
    def __delattr__(self, name: str) -> NoReturn:
        """Raise FrozenInstanceError."""
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
        """Set the attributes, by the slots' setters."""
        _set_type(self, type)
        _set_hint(self, hint)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the Var as a call of its class."""
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
        """Set the attributes; the type is a scalar of ``dtype``."""
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "type", ArrayType((), dtype, weak=weak))

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the Literal as a call of its class."""
        return Literal, (self.value, self.type.dtype, self.type.weak)

    def key(self) -> tuple[str, DType]:
        """Return a key that is equal for literals with the same bits and dtype.

        By repr, 0.0 and -0.0 differ, and NaN equals NaN.
        """
        return repr(self.value), self.type.dtype

    @override
    def __repr__(self) -> str:
        return f"<Literal {self.value!r}: {self.type}>"


Atom = Var | Literal
T = TypeVar("T")


def entry_of(atom: object, entries: Mapping[Var, T]) -> T | None:
    """Return the entry of ``atom``; None for Literals and for Vars without one."""
    return entries.get(atom) if isinstance(atom, Var) else None


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
        """Return the types of the outputs, by the type rule.

        Raises ShapeError or DTypeError, at the user's line ``source``, for operands
        that do not fit.
        """
        ...


@frozen(slots=True, eq=False)
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
        frozen_params = MappingProxyType(dict(params)) if params else NO_PARAMS
        return cls(primitive, inputs, frozen_params, outputs, source)

    def renamed(self, inputs: tuple[Atom, ...]) -> Equation:
        """Return a copy of the equation with other ``inputs`` and fresh outputs.

        The types of the outputs are inferred again only if a type of the inputs is
        another object. If inputs vary along more axes of a mesh than before, so do the
        inputs of the nested Programs.
        """
        for old, new in zip(self.inputs, inputs, strict=True):
            if new.type is not old.type:
                params = self._params_for(inputs)
                return Equation.infer(self.primitive, inputs, params, self.source)
        outputs = tuple([Var(v.type) for v in self.outputs])
        return Equation(self.primitive, inputs, self.params, outputs, self.source)

    def _params_for(self, inputs: tuple[Atom, ...]) -> Params:
        """Return the params for other ``inputs``: nested Programs vary as these do.

        Any input of a nested Program may get the axes. A value may vary along fewer
        axes than its type says, but not along more.
        """
        pairs = zip(self.inputs, inputs, strict=True)
        axes = UNVARYING.union(*(b.type.varying - a.type.varying for a, b in pairs))
        if not axes:
            return self.params
        return with_programs(self.params, lambda inner: inner.varying_along(axes))

    def with_inputs(self, inputs: tuple[Atom, ...]) -> Equation:
        """Return the equation with other ``inputs``.

        Returns this object if all inputs are the same, a copy with the same outputs if
        their types are, and else a copy with fresh outputs.
        """
        are_same = True
        for old, new in zip(self.inputs, inputs, strict=True):
            if new is not old:
                are_same = False
                if new.type is not old.type:
                    return self.renamed(inputs)
        if are_same:
            return self
        return Equation(self.primitive, inputs, self.params, self.outputs, self.source)

    @override
    def __str__(self) -> str:
        """Return the text form, with fresh names: ``c: f32[2] = add(a, b)``."""
        return format_equation(self)

    @override
    def __repr__(self) -> str:
        """Return the first line of the text form."""
        return f"<Equation {str(self).splitlines()[0]}>"

    def check(self) -> None:
        """Raise ProgramError unless the outputs have the types of the type rule.

        Layouts are not compared: type rules give row-major types, and the compiler
        chooses the layout of a value.
        """
        types = self.primitive.result_types(self.inputs, self.params)
        actual = tuple(v.type for v in self.outputs)
        if [_logical(t) for t in actual] != [_logical(t) for t in types]:
            raise ProgramError(
                f"{self.primitive.name} gives {', '.join(map(str, types))}, "
                f"but its outputs are typed {', '.join(map(str, actual))}",
                self.source,
            )

    def subprograms(self) -> tuple[Program, ...]:
        """Return the Programs among the params, also those in tuples."""
        return programs_in(self.params)


def programs_in(params: Params) -> tuple[Program, ...]:
    """Return the Programs among an Equation's ``params``, also those in tuples."""
    programs: list[Program] = []
    for value in params.values():
        if isinstance(value, Program):
            programs.append(value)
        elif isinstance(value, tuple):
            programs += [p for p in value if isinstance(p, Program)]
    return tuple(programs)


def with_programs(params: Params, change: Callable[[Program], Program]) -> Params:
    """Return ``params`` with ``change`` applied to each Program in them."""

    def changed(value: Any) -> Any:
        """Return ``value`` with its Programs, also those in tuples, changed."""
        if isinstance(value, Program):
            return change(value)
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    return {name: changed(value) for name, value in params.items()}


def walk(equations: Iterable[Equation]) -> Iterator[Equation]:
    """Yield all equations, nested ones too: each before those of the Programs in it."""
    for equation in equations:
        yield equation
        for program in equation.subprograms():
            yield from walk(program.equations)


@frozen(slots=True, eq=False, repr=False)
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
        """Raise ProgramError if a Var is used before its definition, or defined twice.

        Inputs and constants count as definitions.
        """
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
        """Raise ProgramError unless every equation has the types of its type rule.

        Equations of nested Programs are checked too.
        """
        for equation in self.equations:
            equation.check()
            for inner in equation.subprograms():
                inner.check()

    def varying_along(self, axes: frozenset[str]) -> Program:
        """Return the Program with inputs that vary along ``axes`` of a mesh, too."""
        if all(axes <= v.type.varying for v in self.inputs):
            return self
        inputs = tuple(
            [
                Var(v.type.with_varying(v.type.varying | axes), v.hint)
                for v in self.inputs
            ]
        )
        copies: dict[Var, Var] = dict(zip(self.inputs, inputs, strict=True))

        def copy(atom: Atom) -> Atom:
            """Return the atom that stands for ``atom`` in the new Program."""
            return copies.get(atom, atom) if isinstance(atom, Var) else atom

        equations: list[Equation] = []
        for equation in self.equations:
            equations.append(equation.renamed(tuple(map(copy, equation.inputs))))
            copies.update(zip(equation.outputs, equations[-1].outputs, strict=True))
        return replace(
            self,
            inputs=inputs,
            equations=tuple(equations),
            outputs=tuple(map(copy, self.outputs)),
        )

    def constant_pairs(self) -> Iterator[tuple[Var, Any]]:
        """Return pairs of each constant and its value."""
        return zip(self.constants, self.constant_values, strict=True)

    def definitions(self) -> dict[Var, Equation]:
        """Map each Var but inputs and constants to the Equation that defines it."""
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
        """Return the text form."""
        return format_program(self).rstrip("\n")

    @override
    def __repr__(self) -> str:
        """Return a line with the name, the types and the number of equations."""
        inputs = ", ".join(f"{v.hint or '_'}: {v.type}" for v in self.inputs)
        results = ", ".join(map(str, self.output_types))
        count = len(self.equations)
        return f"<Program {self.name}({inputs}) -> ({results}): {count} equations>"

    def _repr_html_(self) -> str:
        """Return the Program's text as HTML, which notebooks show."""
        from arrayfn.display import markup

        title = f"Program {markup.escape(self.name)}"
        count = f" <small>{len(self.equations)} equations</small>"
        return markup.shown(title + count, markup.listing(str(self).splitlines()))


def _logical(type: ArrayType) -> tuple[Shape, DType, bool]:
    """Return shape, dtype and weakness: the type without layout and distribution."""
    return type.shape, type.dtype, type.weak


def _define(defined: set[Var], var: Var, name: str) -> None:
    """Add ``var`` to ``defined``; raise ProgramError if it is there already."""
    if var in defined:
        raise ProgramError(f"{name}: a value is defined twice ({var.type})")
    defined.add(var)
