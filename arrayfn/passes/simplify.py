"""Algebraic simplification: neutral operands, views of views, literals, small powers.

Results keep their bits, with two exceptions. Small powers become products, which may
differ from pow in the last place. In a sum of parts that do not overlap, -0 stays -0.
A rule takes the operands of an equation in the new Program, the equation, and the
definitions of the new Program. It returns the atom that replaces the equation's output,
or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import current_builder, rewritten
from arrayfn.passes.definitions import Definitions
from arrayfn.passes.joined_parts import is_literal, joined_parts
from arrayfn.primitives import contraction, conversion, elementwise, views
from arrayfn.primitives.base import (
    Atoms,
    Convert,
    Primitive,
    Reduction,
    Scalar,
    primitive_of,
)

Rule = Callable[[Atoms, Equation, Definitions], Atom | None]


def simplify(program: Program) -> Program:
    """Simplify the equations of ``program`` in order, each by at most one rule."""
    definitions = Definitions()

    def simpler(equation: Equation, operands: list[Atom]) -> Atoms:
        """Emit ``equation``, or what the first rule that applies gives instead."""
        operands = _scalars_before_broadcasts(equation, operands, definitions)
        for rule in _rules_of(equation):
            replacement = rule(operands, equation, definitions)
            if replacement is not None:
                return [replacement]
        return current_builder().emit(equation.primitive, operands, equation.params)

    return rewritten(program, simpler)


def _rules_of(equation: Equation) -> Sequence[Rule]:
    """Return the rules for an equation: first by kernel form, then by primitive."""
    primitive = primitive_of(equation)
    if isinstance(primitive.kernel, Reduction):
        return _REDUCTION_RULES
    own = [RULES[primitive.name]] if primitive.name in RULES else []
    if isinstance(primitive.kernel, (Scalar, Convert)):
        return *_ELEMENTWISE_RULES, *own
    return own


def _scalars_before_broadcasts(
    equation: Equation, operands: list[Atom], definitions: Definitions
) -> list[Atom]:
    """Replace broadcasts of scalars among the operands by the scalars.

    ``b = broadcast_in_dim(2.0, ...); z = x * b`` becomes ``z = x * 2.0``: elementwise
    operations take scalars beside arrays. One operand stays an array, which gives the
    result its shape.
    """
    primitive = primitive_of(equation)
    if not isinstance(primitive.kernel, Scalar) or primitive.family != "elementwise":
        return operands
    scalars = [_number(a, definitions) for a in operands]
    return operands if all(not a.type.shape for a in scalars) else scalars


def _number(atom: Atom, definitions: Definitions) -> Atom:
    """Return the scalar x if ``atom`` is a broadcast of x, else ``atom`` itself."""
    definition = _made_by(views.broadcast_in_dim, atom, definitions)
    if definition is None or definition.inputs[0].type.shape:
        return atom
    return definition.inputs[0]


def _made_by(
    primitive: Primitive, atom: Atom, definitions: Definitions
) -> Equation | None:
    """Return the equation that defines ``atom`` if it is of ``primitive``."""
    definition = definitions.of(atom)
    is_wanted = definition is not None and definition.primitive is primitive
    return definition if is_wanted else None


def _if_same_type(x: Atom, equation: Equation) -> Atom | None:
    """Return ``x`` if it has the type of the output of ``equation``, else None.

    Layouts may differ.
    """
    own, out = x.type, equation.outputs[0].type
    is_same = (own.shape, own.dtype, own.weak) == (out.shape, out.dtype, out.weak)
    return x if is_same else None


# Elementwise equations.


def _fold(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """An operation on literals becomes a literal: 2 * 3 becomes 6.

    Outputs that have axes or half precision are left as they are.
    """
    output = eq.outputs[0].type
    literals = [a for a in xs if isinstance(a, Literal)]
    if not xs or len(literals) < len(xs):
        return None
    if output.dtype in dtypes.HALF_PRECISION or output.shape:
        return None
    values = [np.asarray(a.value).astype(a.type.dtype) for a in literals]
    value = np.asarray(primitive_of(eq).reference(*values, **eq.params)).item()
    return Literal(value, output.dtype, output.weak)


def _before_broadcast(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """exp(broadcast_in_dim(x)) becomes broadcast_in_dim(exp(x)).

    All arrays among the operands must be broadcast in the same way.
    """
    output = eq.outputs[0].type
    sources: list[Atom] = []
    ways: set[Any] = set()
    for x in xs:
        if isinstance(x, Literal) or not x.type.shape:
            sources.append(x)
            continue
        broadcast = _made_by(views.broadcast_in_dim, x, definitions)
        if broadcast is None:
            return None
        sources.append(broadcast.inputs[0])
        ways.add((broadcast.inputs[0].type.shape, broadcast.params["axes"]))
    if len(ways) != 1 or output.weak:
        return None
    ((_, axes),) = ways
    value = primitive_of(eq)(*sources, **eq.params)
    return views.broadcast_in_dim(value, shape=output.shape, axes=axes)


def _negated(atom: Atom, definitions: Definitions) -> Atom | None:
    """Return the operand of a negation ``atom``; None if it is no negation."""
    definition = _made_by(elementwise.neg, atom, definitions)
    return None if definition is None else definition.inputs[0]


def _add(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """x + (-y) becomes x - y; parts of one array are joined; integers drop a 0.

    For floats, x + 0 stays, because -0 + 0 is 0.
    """
    x, y = xs
    if (opposite := _negated(y, definitions)) is not None:
        return elementwise.sub(x, opposite)
    if (opposite := _negated(x, definitions)) is not None:
        return elementwise.sub(y, opposite)
    joined = joined_parts(xs, definitions)
    if joined is not None or x.type.dtype in dtypes.INEXACT:
        return joined
    if is_literal(y, 0):
        return _if_same_type(x, eq)
    return _if_same_type(y, eq) if is_literal(x, 0) else None


def _sub(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """x - (-y) becomes x + y, and x - 0 becomes x."""
    if (opposite := _negated(xs[1], definitions)) is not None:
        return elementwise.add(xs[0], opposite)
    return _if_same_type(xs[0], eq) if is_literal(xs[1], 0) else None


def _mul(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """x * 1 becomes x, unless it is complex, and x * x a square."""
    x, y = xs
    is_real = x.type.dtype not in dtypes.COMPLEX  # (inf + 0j) * 1 is inf + nan j
    if is_literal(_number(y, definitions), 1) and is_real:
        return _if_same_type(x, eq)
    if is_literal(_number(x, definitions), 1) and is_real:
        return _if_same_type(y, eq)
    if x is y and isinstance(x, Var):
        return elementwise.square(x)
    return None


def _div(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """x / 1 becomes x, unless it is complex, and 1 / y a reciprocal."""
    x, y = xs
    if is_literal(y, 1) and x.type.dtype not in dtypes.COMPLEX:
        return _if_same_type(x, eq)
    if is_literal(x, 1) and x.type.shape == y.type.shape:
        return elementwise.reciprocal(y)
    return None


def _pow(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """Powers of -1 to 4 are simplified: x**3 becomes square(x) * x, x**-1 1 / x.

    x**0 becomes 1 only if x is a scalar.
    """
    x, y = xs
    if not isinstance(y, Literal) or eq.outputs[0].type.weak:
        return None
    if is_literal(y, 1):
        return _if_same_type(x, eq)
    if is_literal(y, 2):
        return elementwise.square(x)
    if is_literal(y, -1) and x.type.dtype in dtypes.INEXACT:
        return elementwise.reciprocal(x)
    if is_literal(y, 3):
        return elementwise.mul(elementwise.square(x), x)
    if is_literal(y, 4):
        return elementwise.square(elementwise.square(x))
    if is_literal(y, 0) and x.type.shape == ():
        return conversion.literal(1, x.type.dtype)
    return None


def _neg(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """-(-x) becomes x, and a negated literal a literal."""
    (x,) = xs
    if isinstance(x, Literal) and not isinstance(x.value, bool):
        if x.type.dtype in dtypes.INEXACT:
            return Literal(-x.value, x.type.dtype, x.type.weak)
        return None
    return _negated(x, definitions)


def _convert(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """Drop a conversion that changes nothing, and one to a wider dtype and back.

    A literal is converted at once, and so are the literals of a select:
    ``convert(select(c, 1, 0), f32)`` becomes ``select(c, 1.0, 0.0)``.
    """
    (x,) = xs
    if isinstance(x, Literal):
        return conversion.convert(x, eq.params["dtype"])
    if (select := _made_by(elementwise.select, x, definitions)) is not None:
        condition, first, second = select.inputs
        if isinstance(first, Literal) and isinstance(second, Literal):
            dtype = eq.params["dtype"]
            numbers = (conversion.convert(n, dtype) for n in (first, second))
            return elementwise.select(condition, *numbers)
    inner = _made_by(conversion.convert_element_type, x, definitions)
    if inner is not None and _holds(x.type.dtype, inner.inputs[0].type.dtype):
        unconverted = _if_same_type(inner.inputs[0], eq)
        if unconverted is not None:
            return unconverted
    return _if_same_type(x, eq)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether ``wide`` represents every number of ``narrow``."""
    if narrow in dtypes.HALF_PRECISION:
        return wide in (dtypes.float32, dtypes.float64)
    return wide.kind == narrow.kind and np.can_cast(narrow, wide)


# Views.


def _transpose(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """y = transpose(transpose(x)) becomes y = x, or one transpose.

    A transpose that changes nothing is dropped. A transposed product becomes the
    product of its operands exchanged: (x @ y).T becomes y.T @ x.T.
    """
    (x,) = xs
    permutation = eq.params["permutation"]
    if permutation == tuple(range(len(permutation))):
        return _if_same_type(x, eq)
    if (inner := _made_by(views.transpose, x, definitions)) is not None:
        combined = tuple(inner.params["permutation"][axis] for axis in permutation)
        if combined == tuple(range(len(combined))):
            return _if_same_type(inner.inputs[0], eq)
        return views.transpose(inner.inputs[0], permutation=combined)
    if (product := _made_by(contraction.dot_general, x, definitions)) is not None:
        return _transposed_product(product, permutation)
    return None


def _transposed_product(product: Equation, permutation: Sequence[int]) -> Atom | None:
    """Emit a transposed ``product`` as a product of the exchanged operands.

    None if ``permutation`` does anything else than exchange the axes that come from the
    first operand with those from the second.
    """
    x, y = product.inputs
    contract, batch = product.params["contract"], product.params["batch"]
    batches = len(batch[0])
    left = x.type.ndim - batches - len(contract[0])
    right = y.type.ndim - batches - len(contract[1])
    swapped = (
        *range(batches),
        *range(batches + left, batches + left + right),
        *range(batches, batches + left),
    )
    if tuple(permutation) != swapped or not left or not right:
        return None
    pairs = {"contract": (contract[1], contract[0]), "batch": (batch[1], batch[0])}
    return contraction.dot_general(y, x, **{**product.params, **pairs})


def _broadcast(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """Join a broadcast of a broadcast, and drop one that changes nothing."""
    (x,) = xs
    inner = _made_by(views.broadcast_in_dim, x, definitions)
    if inner is not None:
        axes = tuple(eq.params["axes"][axis] for axis in inner.params["axes"])
        source = inner.inputs[0]
        if all(
            n in (1, eq.params["shape"][axis])
            for n, axis in zip(source.type.shape, axes, strict=True)
        ):
            return views.broadcast_in_dim(source, shape=eq.params["shape"], axes=axes)
    return _if_same_type(x, eq)


def _reshape(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """Join a reshape with the reshape or broadcast before, or drop one without effect.

    ``reshape(reshape(x))`` becomes ``reshape(x)``. A broadcast that adds axes of extent
    1, which the reshape removes, is dropped. A reshaped broadcast of a scalar becomes a
    broadcast.
    """
    (x,) = xs
    shape = eq.params["shape"]
    if (inner := _made_by(views.reshape, x, definitions)) is not None:
        source = inner.inputs[0]
        if source.type.shape == shape:
            return _if_same_type(source, eq)
        return views.reshape(source, shape=shape)
    if (inner := _made_by(views.broadcast_in_dim, x, definitions)) is not None:
        source = inner.inputs[0]
        if source.type.shape == shape:  # axes of extent 1 were added and removed
            return _if_same_type(source, eq)
        if not source.type.shape:
            return views.broadcast_in_dim(source, shape=shape, axes=())
    return _if_same_type(x, eq)


def _select(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """A select by a literal, or between equal values, becomes the value."""
    condition, x, y = xs
    if isinstance(condition, Literal):
        return _if_same_type(x if condition.value else y, eq)
    return _if_same_type(x, eq) if x is y else None


# Reductions.


def _empty_reduction(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """A reduction over no elements becomes its identity, which needs no kernel."""
    kernel, output = primitive_of(eq).kernel, eq.outputs[0].type
    assert isinstance(kernel, Reduction)
    if xs[0].type.size or not output.size:
        return None
    return views.broadcast_literal(kernel.identity(output.dtype), output)  # type: ignore[arg-type]


def _reduce(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """Axes of extent 1, along which nothing is reduced, are dropped by a reshape.

    A reduction over no axes becomes its operand (see ``_reduced_over_no_axes``).

    sum(x, (0, 1)) of f32[1, 5] becomes sum(reshape(x, (5,)), (0,)).
    """
    (x,) = xs
    axes = eq.params["axes"]
    units = [axis for axis in axes if x.type.shape[axis] == 1]
    primitive = primitive_of(eq)
    if not isinstance(x, Var):
        return None
    if not axes:
        return _reduced_over_no_axes(primitive, x)
    if not units:
        return None
    shape = tuple(n for axis, n in enumerate(x.type.shape) if axis not in units)
    flat = views.reshape(x, shape=shape)
    # Each axis moves down by the number of dropped axes before it.
    remaining_axes = tuple(
        axis - sum(u < axis for u in units) for axis in axes if axis not in units
    )
    if not remaining_axes:
        return _reduced_over_no_axes(primitive, flat)
    return primitive(flat, axes=remaining_axes)


def _reduced_over_no_axes(primitive: Primitive, x: Atom) -> Atom:
    """Return ``x``, which is its reduction over no axes.

    A sum of floats adds 0, as the sum of one element does: it turns -0 into 0.
    """
    if primitive.name == "reduce_sum" and x.type.dtype in dtypes.INEXACT:
        return elementwise.add(x, 0)
    return x


# Other primitives.


def _gather(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """A gather from an empty array is the fill value: all positions are outside."""
    type = eq.outputs[0].type
    if xs[0].type.size and type.size:
        return None
    return views.broadcast_literal(eq.params["fill_value"] or 0, type)


def _scatter(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """A scatter of no updates, or into an empty array, is the operand."""
    x, _indices, updates = xs
    return None if x.type.size and updates.type.size else _if_same_type(x, eq)


def _barrier(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """Drop a barrier around a literal, or around a value computed from literals only.

    Kernels compute such a value where they use it, so a barrier would keep nothing.
    """
    x = xs[0]
    if isinstance(x, Literal):
        return _if_same_type(x, eq)
    definition = definitions.of(x)
    is_free = definition is not None and all(
        isinstance(a, Literal) for a in definition.inputs
    )
    return x if is_free else None


def _stop_gradient(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """stop_gradient(x) becomes x: derivatives are taken before this pass."""
    return _if_same_type(xs[0], eq)


_ELEMENTWISE_RULES: Final = (_fold, _before_broadcast)
_REDUCTION_RULES: Final = (_empty_reduction, _reduce)
RULES: Final[dict[str, Rule]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "neg": _neg,
    "convert": _convert,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "select": _select,
    "stop_gradient": _stop_gradient,
    "gather": _gather,
    **dict.fromkeys(
        ("scatter", *(f"scatter_{name}" for name in ("add", "mul", "min", "max"))),
        _scatter,
    ),
    "optimization_barrier": _barrier,
}
"""The rule of a primitive, by its name."""
