"""Calls of Programs as operators, and the interpreter by NumPy references."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArrayfnError, ShapeError, located
from arrayfn.ir import ArrayType, Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import families
from arrayfn.primitives.base import (
    OWN_VARIANCE,
    THROUGH_BODY,
    Array,
    Body,
    Composition,
    Primitive,
    Sample,
    primitive_of,
)
from arrayfn.primitives.rules import as_list


def evaluate(program: Program, operands: Sequence[Any]) -> list[Any]:
    """Interpret ``program`` with the primitives' NumPy references.

    ``operands`` are arrays for its inputs. Returns a list of arrays.
    """
    environment: dict[Var, Any] = dict(zip(program.inputs, operands, strict=True))
    environment.update(program.constant_pairs())
    for equation in program.equations:
        arguments = [array_of_atom(a, environment) for a in equation.inputs]
        primitive = primitive_of(equation)
        try:
            result = primitive.reference(*arguments, **equation.params)
        except ArrayfnError as error:
            raise located(error, equation.source) from None
        environment.update(zip(equation.outputs, as_list(result), strict=True))
    return [array_of_atom(a, environment) for a in program.outputs]


def expansion(equation: Equation, operands: Iterable[ArrayType | Literal]) -> Program:
    """Return the Program that ``equation``, a Composition, expands to.

    It has an input for each type among ``operands``. Literals are passed on.
    """
    primitive = primitive_of(equation)
    assert isinstance(primitive.kernel, Composition)
    builder = ProgramBuilder(primitive.name)
    builder.source = equation.source
    with builder:
        inputs = [x if isinstance(x, Literal) else builder.input(x) for x in operands]
        expanded = primitive.kernel.expand(*inputs, **equation.params)
        return builder.build(as_list(expanded))


def array_of_atom(atom: Atom, values: Mapping[Var, Any]) -> Any:
    """Return the array of ``atom``: a Var's in ``values``, or a Literal's."""
    if isinstance(atom, Var):
        return values[atom]
    return np.asarray(atom.value).astype(atom.type.dtype)


def body_types(
    *operands: ArrayType, body: Program, **params: Any
) -> ArrayType | tuple[ArrayType, ...]:
    """Type rule of a call: the output types of the called Program ``body``.

    Raises ShapeError if the operands differ from the inputs of ``body`` in shape or
    dtype. ``params`` are other params of the call, which do not change its types.
    """
    expected = body.input_types
    actual = [(t.shape, t.dtype) for t in operands]
    if actual != [(t.shape, t.dtype) for t in expected]:
        raise ShapeError(
            f"{body.name} takes {', '.join(map(str, expected))}, but was given "
            + ", ".join(map(str, operands))
        )
    return tuple(t.plain() for t in body.output_types)


def body_reference(*operands: Array, body: Program, **params: Any) -> tuple[Any, ...]:
    """The reference of a call: interprets the called Program ``body``.

    ``params`` are other params of the call, which do not change its results.
    """
    return tuple(evaluate(body, operands))


call_primitive: Final = partial(
    Primitive,
    family="call",
    types=body_types,
    variance=OWN_VARIANCE,
    reference=body_reference,
    kernel=Body(),
    transpose=THROUGH_BODY,
)
"""Makes a primitive that computes its param ``body``; arguments replace defaults."""


def sample_body() -> Program:
    """Return the Program ``x * y + x * y`` of two (3, 4) arrays, for samples."""
    builder = ProgramBuilder("double_product")
    with builder:
        x = builder.input(ArrayType((3, 4), dtypes.float32))
        y = builder.input(ArrayType((3, 4), dtypes.float32))
        product = e.mul(x, y)
        return builder.build([e.add(product, product)])


def _samples() -> Iterable[Sample]:
    """Yield a call of ``sample_body`` on two float32 arrays, for the table tests."""
    x = families.random_array(dtypes.float32, (3, 4), 61, -3.0, 3.0)
    y = families.random_array(dtypes.float32, (3, 4), 62, -3.0, 3.0)
    yield Sample((x, y), {"name": "double_product", "body": sample_body()})


operator_call = call_primitive(
    name="operator_call",
    jvp=THROUGH_BODY,
    batch=THROUGH_BODY,
    samples=_samples,
    doc="A named function whose body a registered kernel may replace.",
)
