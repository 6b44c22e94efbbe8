"""A primitive is one row: a name, and a rule for everything that can be asked of it.

Every slot is filled; absence is a value (``LINEAR``, ``ZERO_TANGENT``,
``not_differentiable("why")``). The rules see Vars and Literals and call primitives on
them, which emits equations into the current builder. Conventions:

* ``types(*types, **params)`` gives the output type (or a tuple of them).
* ``jvp(primals, outputs, tangents, **params)`` gives each output's tangent; a tangent
  is None where it is zero.
* ``transpose(cotangents, inputs, **params)`` gives a cotangent for each input that is
  ``Linear`` (and None for the others), for a primitive linear in those inputs.
* ``batch(size, inputs, dims, **params)`` gives (outputs, dims): ``dims`` says which
  axis of each input is mapped, or None; mapped outputs are mapped along axis 0.
* ``split(equation, unknown)`` gives (equations of what is known, equations of what is
  linear in the ``unknown`` inputs); together they define the equation's outputs.

Rules of primitives that hold Programs are ``OverPrograms``: they are given, as a first
argument, the transformation itself as a function of Programs (``jvp_varying``,
``batch_varying``, ``transpose_varying``, ``split`` of ``transforms``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import (
    ArrayfnError,
    DifferentiationError,
    SourceLocation,
    located,
    user_location,
)
from arrayfn.ir import ArrayType, Atom, Equation, Literal, Params, Var
from arrayfn.ir.builder import current_builder

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Marker:
    """A rule that is a fact rather than a function."""

    name: str
    reason: str = ""


LINEAR = Marker("linear", "the tangent is the primitive applied to the tangents")
ZERO_TANGENT = Marker("zero_tangent", "the output does not vary with the inputs")
NOT_LINEAR = Marker("not_linear", "the primitive is linear in none of its inputs")
THROUGH_BODY = Marker("through_body", "the transformation is applied to the body")
WHOLE = Marker("whole", "known if all inputs are, else linear in those that are not")


def not_differentiable(reason: str) -> Marker:
    """A derivative that is refused, and why."""
    return Marker("not_differentiable", reason)


@dataclass(frozen=True, slots=True)
class Linear:
    """Stands for an input that a transposition is with respect to."""

    type: ArrayType


@dataclass(frozen=True, slots=True)
class JvpWithOutputs:
    """A jvp rule that computes the outputs too.

    ``rule(primals, tangents, **params)`` gives (outputs, their tangents).
    """

    rule: Callable[..., tuple[Sequence[Atom], Sequence[Atom | None]]]


@dataclass(frozen=True, slots=True)
class OverPrograms:
    """A rule of a primitive that holds Programs, which it has to transform.

    ``rule`` is given the transformation of Programs before what other rules are given.
    """

    rule: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class MappedAxis:
    """An axis that is being mapped: its extent, and its name, if it has one."""

    size: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ByAxis:
    """A batching rule whose first argument is the MappedAxis, not its extent alone."""

    rule: Callable[..., Any]


Operand = Atom | Linear
Dim = int | None
JvpRule = Callable[..., Sequence[Atom | None]]
TransposeRule = Callable[..., Sequence[Atom | None]]
BatchRule = Callable[..., tuple[Sequence[Atom], Sequence[Dim]]]


# What a primitive is to the compiler.


@dataclass(frozen=True, slots=True)
class Scalar:
    """An elementwise operation: a function of the kernels' scalar vocabulary.

    Its dtype suffix is that of input number ``typed_by``. ``cost`` is its time relative
    to an addition: what costs more than a few is computed once and kept.
    """

    function: str
    typed_by: int = 0
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Convert:
    """An elementwise change of dtype."""


@dataclass(frozen=True, slots=True)
class AxisMap:
    """Where a view reads along one input axis: ``offset + scale * out[axis]``."""

    axis: int | None
    scale: int = 1
    offset: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """An affine view: ``axes(input type, **params)`` says where each input axis reads.

    None means that it is no affine view for these operands.
    """

    axes: Callable[..., tuple[AxisMap, ...] | None]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction over ``params["axes"]`` with an accumulating scalar function."""

    function: str
    identity: Callable[[DType], PythonScalar]


@dataclass(frozen=True, slots=True)
class Template:
    """A primitive with kernels of its own in ``lowering.templates``, by this name.

    With ``in_place`` they write into the memory of the first operand, which becomes the
    output's: the layout pass copies an operand that is needed otherwise.
    """

    name: str
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Library:
    """A primitive that a library computes: steps of ``lowering.libraries``, by name.

    Its operands lie row-major. With ``in_place`` the first one's memory becomes the
    first output's, which has the same type: what is needed otherwise is copied by the
    layout pass, and the library writes over the copy.
    """

    name: str
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Composition:
    """A primitive that is computed as others: ``expand(*operands, **params)``.

    A primitive of several outputs gives them in a list.
    """

    expand: Callable[..., Atom | list[Atom]]


@dataclass(frozen=True, slots=True)
class Contraction:
    """A dot_general: a library's GEMM, or a reduction of products."""


@dataclass(frozen=True, slots=True)
class Body:
    """A primitive that means what the Program ``params["body"]`` computes."""


@dataclass(frozen=True, slots=True)
class Control:
    """A branch or a loop over the Programs among the params: a node of the plan."""


KernelForm = (
    Scalar
    | Convert
    | View
    | Reduction
    | Template
    | Library
    | Composition
    | Contraction
    | Body
    | Control
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs for the table-driven tests: arrays and params.

    ``differentiate`` lists the inputs to differentiate by (those of inexact dtype if
    None).
    """

    inputs: tuple[Array, ...]
    params: Mapping[str, Any]
    differentiate: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a kernel may be from the reference, relative to it, by compute dtype."""

    float32: float = 2e-6
    float64: float = 4e-15


def has_effect(equation: Equation) -> bool:
    """Whether ``equation``, or one in a Program that it holds, has an effect."""
    row = equation.primitive
    if isinstance(row, Primitive) and row.effect:
        return True
    return any(
        has_effect(inner)
        for program in equation.subprograms()
        for inner in program.equations
    )


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """One row of the table. See the module for what each rule takes and gives."""

    name: str
    family: str
    types: Callable[..., ArrayType | tuple[ArrayType, ...]]
    reference: Callable[..., Any]
    kernel: KernelForm
    jvp: JvpRule | JvpWithOutputs | OverPrograms | Marker
    transpose: TransposeRule | OverPrograms | Marker
    batch: BatchRule | ByAxis | OverPrograms | Marker
    samples: Callable[[], Iterable[Sample]]
    tolerance: Tolerance = Tolerance()
    doc: str = ""
    split: OverPrograms | Marker = WHOLE
    effect: bool = False  # it does something: it is run once, and in its place

    def result_types(
        self,
        inputs: Sequence[Atom],
        params: Params,
        source: SourceLocation | None = None,
    ) -> tuple[ArrayType, ...]:
        """The types of the outputs, as a tuple; errors name the line ``source``."""
        try:
            result = self.types(*[a.type for a in inputs], **params)
        except ArrayfnError as error:
            raise located(error, source or user_location()) from None
        return result if isinstance(result, tuple) else (result,)

    def __call__(self, *operands: Atom | PythonScalar, **params: Any) -> Any:
        """Emit an equation into the current builder: its output, or tuple of outputs.

        Python scalars become Literals of the first typed operand's dtype.
        """
        atoms = [a for a in operands if isinstance(a, (Var, Literal))]
        if len(atoms) != len(operands):
            atoms = self._literals(operands)
        outputs = current_builder().emit(self, atoms, params)
        return outputs[0] if len(outputs) == 1 else outputs

    def _literals(self, operands: Sequence[Any]) -> list[Atom]:
        """``operands`` with Python scalars as Literals."""
        if any(isinstance(a, Linear) for a in operands):
            # A transposition rule that needs the value of what it is linear in.
            raise DifferentiationError(
                f"the transpose of a function that is not linear was asked for: its "
                f"{self.name} takes values that depend on its arguments, where one "
                "may; only linear functions have a transpose (jvp and vjp are for all)",
                current_builder().source,
            )
        typed = [a.type.dtype for a in operands if isinstance(a, (Var, Literal))]
        return [
            a if isinstance(a, (Var, Literal)) else Literal(a, typed[0])
            for a in operands
        ]

    def __repr__(self) -> str:
        return f"<Primitive {self.name}>"
