"""A primitive is one row: a name and its rules for all transformations and backends.

Every slot is filled; a missing rule is a value (``LINEAR``, ``ZERO_TANGENT``,
``not_differentiable("why")``). Rules receive Vars and Literals and call primitives on
them, which emits equations into the current builder. Conventions:

* ``types(*types, **params)`` returns the output type, or a tuple of output types.
* ``jvp(primals, outputs, tangents, **params)`` returns the tangent of each output. A
  zero tangent is None.
* ``transpose(cotangents, inputs, **params)`` returns a cotangent for each input that is
  ``Linear``, and None for the others. The primitive is linear in those inputs.
* ``batch(axis_size, inputs, dims, **params)`` returns (outputs, dims). ``dims`` has the
  mapped axis of each input, or None. Mapped outputs are mapped along axis 0.
* ``split(equation, unknown)`` returns (known equations, equations linear in the
  ``unknown`` inputs). Together they define the equation's outputs.

A rule of a primitive that holds Programs is wrapped in ``OverPrograms``. Its first
argument is the transformation, as a function of Programs (``jvp_varying``,
``batch_varying``, ``transpose_varying``, ``split`` of ``transforms``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import (
    ArrayfnError,
    DifferentiationError,
    ShapeError,
    SourceLocation,
    located,
    user_location,
)
from arrayfn.ir import (
    ArrayType,
    Atom,
    Equation,
    Literal,
    Params,
    Var,
    joined_variance,
)
from arrayfn.ir.builder import current_builder
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]
MAX_BYTES: Final = 1 << 63
"""The bytes of the smallest array that is refused: offsets have 64 bits and a sign."""


@frozen(slots=True)
class Marker:
    """A rule that states a fact instead of computing something.

    Transformations compare rules with the Markers below. ``reason`` explains the fact,
    in error messages and tables.
    """

    name: str
    reason: str = ""


LINEAR = Marker("linear", "the tangent is the primitive applied to the tangents")
ZERO_TANGENT = Marker("zero_tangent", "the output does not vary with the inputs")
NOT_LINEAR = Marker("not_linear", "the primitive is linear in none of its inputs")
THROUGH_BODY = Marker("through_body", "the transformation is applied to the body")
WHOLE = Marker("whole", "known if all inputs are known, else linear in the others")
BY_FORM = Marker("by form", "elementwise primitives cut all axes; others need theirs")
JOINED = Marker("joined", "the outputs vary along the mesh axes of any input")
OWN_VARIANCE = Marker("own", "the type rule says along which mesh axes outputs vary")


def not_differentiable(reason: str) -> Marker:
    """Return the jvp rule of a primitive without a derivative.

    Differentiating the primitive raises an error that gives ``reason``.
    """
    return Marker("not_differentiable", reason)


@frozen(slots=True)
class Linear:
    """Stands, in a transpose rule, for an operand that the primitive is linear in.

    The rule returns the cotangent of such an operand. It has a type, but no value.
    """

    type: ArrayType


@frozen(slots=True)
class JvpWithOutputs:
    """A jvp rule that also computes the outputs.

    ``rule(primals, tangents, **params)`` returns (outputs, tangents of the outputs).
    """

    rule: Callable[..., tuple[Atoms, Tangents]]


@frozen(slots=True)
class OverPrograms:
    """A rule of a primitive that holds Programs.

    ``rule`` takes the transformation of Programs, such as ``jvp``, then the arguments
    of other rules.
    """

    rule: Callable[..., Any]


@frozen(slots=True)
class MappedAxis:
    """The axis that ``vmap`` maps over: its extent, and its name if it has one.

    Sharding constraints on mapped values cut this axis along ``mesh_axes``; it stays
    whole if there are none.
    """

    size: int
    name: str | None = None
    mesh_axes: tuple[str, ...] = ()


@frozen(slots=True)
class ByAxis:
    """A batching rule whose first argument is the MappedAxis, not just its extent."""

    rule: Callable[..., Any]


# The arguments and results of rules.
Operand = Atom | Linear
Dim = int | None
Atoms = Sequence[Atom]
Operands = Sequence[Operand]
Dims = Sequence[Dim]
Tangents = Sequence[Atom | None]  # also cotangents; None is zero
Batched = tuple[Atoms, Dims]  # outputs, and the mapped axis of each
WithTangents = tuple[Atoms, Tangents]  # outputs, and the tangent of each

JvpRule = Callable[..., Tangents]
TransposeRule = Callable[..., Tangents]
BatchRule = Callable[..., Batched]


def value_of(operand: Operand, name: str) -> Atom:
    """Return ``operand``, or raise DifferentiationError if it is Linear.

    Transpose rules of primitive ``name`` call it on an operand whose value they need.
    """
    if isinstance(operand, Linear):
        raise DifferentiationError(
            "the transpose of a function that is not linear was asked for: "
            f"{name} would need the value of an argument; only linear functions have "
            "a transpose (use jvp or vjp for others)",
            current_builder().source,
        )
    return operand


# Kernel forms: what a primitive is to the compiler.


@frozen(slots=True)
class Scalar:
    """The kernel form of elementwise operations: a scalar function, by name.

    ``lowering.scalars.table`` has the function's formula, and ``lowering.build`` emits
    a call by name. The dtype of input number ``typed_by`` gives the name's suffix
    (``exp_f32``). ``cost`` is the function's time relative to an addition; costly
    values are stored rather than recomputed.
    """

    function: str
    typed_by: int = 0
    cost: int = 1


@frozen(slots=True)
class Convert:
    """An elementwise change of dtype."""


@frozen(slots=True)
class AxisMap:
    """The index that a view reads on one input axis: ``offset + scale * out[axis]``.

    ``out`` is the index of an output element. With ``axis`` None, the view reads index
    ``offset`` for all output elements.
    """

    axis: int | None
    scale: int = 1
    offset: int = 0


@frozen(slots=True)
class View:
    """The kernel form of views.

    ``axes(input type, **params)`` returns an AxisMap for each input axis, or None if
    the view is not affine for these operands.
    """

    axes: Callable[..., tuple[AxisMap, ...] | None]


@frozen(slots=True)
class Reduction:
    """The kernel form of reductions over ``params["axes"]`` by a scalar function.

    ``function`` is the name of a function of two scalars, such as "add".
    ``identity(dtype)`` is its neutral element, with which a reduction begins.
    """

    function: str
    identity: Callable[[DType], PythonScalar]


@frozen(slots=True)
class Template:
    """The kernel form of primitives with a hand-written nest, by the nest's name.

    The nest is in ``lowering.templates``. With ``in_place`` the nest overwrites the
    first operand, whose memory becomes the output's. The layout pass copies an operand
    that is needed later.
    """

    name: str
    in_place: bool = False


@frozen(slots=True)
class Library:
    """The kernel form of primitives that a library computes, by name.

    The calls are in ``lowering.libraries``. Operands are row-major. With ``in_place``
    the library overwrites the first operand, whose memory becomes the first output's,
    of the same type. The layout pass copies an operand that is needed later.
    """

    name: str
    in_place: bool = False


@frozen(slots=True)
class Composition:
    """The kernel form of primitives composed of others.

    ``expand(*operands, **params)`` emits the other primitives, and returns the output,
    or a list of several outputs.
    """

    expand: Callable[..., Atom | list[Atom]]


@frozen(slots=True)
class Contraction:
    """A dot_general: a GEMM of a library, or a reduction of products."""


@frozen(slots=True)
class Body:
    """A primitive that computes the Program ``params["body"]``."""


@frozen(slots=True)
class Control:
    """A branch or a loop over Programs among the params: a step of the plan."""


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


@frozen(slots=True)
class Sample:
    """A sample for the table-driven tests: input arrays and params.

    ``differentiate`` lists the inputs to differentiate by; None means all of inexact
    dtype.
    """

    inputs: tuple[Array, ...]
    params: Mapping[str, Any]
    differentiate: tuple[int, ...] | None = None


@frozen(slots=True)
class Tolerance:
    """The relative error allowed in tests, by compute dtype."""

    float32: float = 2e-6
    float64: float = 4e-15


@frozen(slots=True)
class Factors:
    """Which axes of an equation a mesh axis can cut; see ``primitives.factors``.

    Attributes:
        inputs, outputs: the factor of each axis of each array, or None.
        reduced: the operation that combines the devices' results, for each factor that
            is reduced.
        localize: ``localize(params, shapes of parts, shape of the result's part)``
            returns the params of the equation that each device computes.
        added: the number of the input that is added to the result, or None. If the
            devices' results are summed, each device computes with zeros in its place,
            and the input is added to the sum.

    For a matrix product with factors 0 (rows), 1 (columns) and 2 (summed), ``inputs``
    is ((0, 2), (2, 1)), ``outputs`` is ((0, 1),) and ``reduced`` is {2: "sum"}.
    """

    inputs: tuple[tuple[int | None, ...], ...]
    outputs: tuple[tuple[int | None, ...], ...]
    reduced: Mapping[int, str] = field(default_factory=dict[int, str])
    localize: Callable[..., Mapping[str, Any]] | None = None
    added: int | None = None


def has_effect(equation: Equation) -> bool:
    """Whether ``equation``, or one in the Programs among its params, has an effect."""
    primitive = equation.primitive
    if isinstance(primitive, Primitive) and primitive.effect:
        return True
    return any(
        has_effect(inner)
        for program in equation.subprograms()
        for inner in program.equations
    )


def needed(
    equations: Sequence[Equation], outputs: Iterable[Atom], *, effects: bool = True
) -> list[Equation]:
    """Return the ``equations``, in order, that ``outputs`` depend on.

    With ``effects``, also return the equations with side effects, and the equations
    that they depend on.
    """
    live: set[Atom] = set(outputs)
    needed_equations: list[Equation] = []
    for equation in reversed(equations):
        if any(v in live for v in equation.outputs) or (
            effects and has_effect(equation)
        ):
            needed_equations.append(equation)
            live.update(equation.inputs)
    return needed_equations[::-1]


@frozen(slots=True, eq=False)
class Primitive:
    """An operation of the IR, with its rules as the module's docstring describes.

    ``kernel`` is how the compiler treats the primitive. ``samples()`` gives the
    operands of the table-driven tests, and ``reference`` the NumPy results.
    ``variance`` says how outputs vary along mesh axes inside ``shard_map``, and
    ``factors`` which axes a mesh axis can cut.
    """

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
    effect: bool = False  # a side effect: it runs exactly once, in order
    variance: Marker = JOINED
    factors: Callable[..., Factors] | Marker = BY_FORM

    @property
    def is_collective(self) -> bool:
        """Whether the members of a named axis compute it together."""
        return self.family == "collective"

    def output_types(
        self, types: Sequence[ArrayType], params: Params
    ) -> tuple[ArrayType, ...]:
        """Return the output types for operands of ``types``, always as a tuple.

        Outputs vary along the mesh axes along which any operand varies. With
        ``OWN_VARIANCE``, the type rule has already set the axes of the outputs.
        """
        result = self.types(*types, **params)
        outputs = result if isinstance(result, tuple) else (result,)
        # Outside of shard_map no type varies, and the outputs are returned as they are.
        for type in types:
            if type.varying and self.variance is JOINED:
                axes = joined_variance(types)
                return tuple([output.with_varying(axes) for output in outputs])
        return outputs

    def result_types(
        self,
        inputs: Sequence[Atom],
        params: Params,
        source: SourceLocation | None = None,
    ) -> tuple[ArrayType, ...]:
        """Return the output types for the operands ``inputs``, as a tuple.

        An error of the type rule is raised again with the user's line: ``source``, or
        the line of the current call if ``source`` is None. Raises ShapeError for an
        array of 2**63 bytes or more, which NumPy does not have either.
        """
        try:
            types = self.output_types([a.type for a in inputs], params)
        except ArrayfnError as error:
            raise located(error, source or user_location()) from None
        for type in types:
            if type.nbytes >= MAX_BYTES:
                raise ShapeError(
                    f"{self.name} would give {type}, which has {type.nbytes:,} bytes; "
                    "an array has fewer than 2**63",
                    source or user_location(),
                )
        return types

    def __call__(self, *operands: Atom | PythonScalar, **params: Any) -> Any:
        """Emit an equation into the current builder; return its output or outputs.

        Python scalars become Literals of the first typed operand's dtype.
        """
        atoms = [a for a in operands if isinstance(a, (Var, Literal))]
        if len(atoms) != len(operands):
            atoms = self._literals(operands)
        outputs = current_builder().emit(self, atoms, params)
        return outputs[0] if len(outputs) == 1 else outputs

    def _literals(self, operands: Sequence[Any]) -> list[Atom]:
        """Return ``operands`` as Atoms: Python scalars get the first array's dtype.

        Raises DifferentiationError if an operand is Linear.
        """
        for a in operands:
            if isinstance(a, Linear):
                value_of(a, self.name)  # raises
        typed = [a.type.dtype for a in operands if isinstance(a, (Var, Literal))]
        return [
            a if isinstance(a, (Var, Literal)) else Literal(a, typed[0])
            for a in operands
        ]

    @override
    def __repr__(self) -> str:
        """Return ``<Primitive name>``."""
        return f"<Primitive {self.name}>"


def primitive_of(equation: Equation) -> Primitive:
    """Return ``equation.primitive``, typed as a Primitive.

    The field has a wider type in ``ir``, which does not import this package.
    """
    primitive = equation.primitive
    assert isinstance(primitive, Primitive)
    return primitive
