"""Algebraic simplification: neutral operands, views of views, literals, small powers.

Results keep their bits, with two exceptions. Small powers become products, which may
differ from pow in the last place. In a sum of parts that do not overlap, -0 stays -0.
Each rule takes an equation with its operands renamed, and returns the atom that
replaces its output, or None. Rules see the equations that define their operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import current_builder, rewritten
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

Definitions = dict[Var, Equation]
Rule = Callable[[Atoms, Equation, Definitions], Atom | None]


def simplify(program: Program) -> Program:
    """``program`` with every rule applied once, in the order of the equations."""
    definitions: Definitions = {}

    def simpler(equation: Equation, operands: list[Atom]) -> Atoms:
        """The outputs of ``equation`` or of what replaces it.

        ``definitions`` learns the equations that are emitted.
        """
        builder = current_builder()
        operands = _scalars_unspread(equation, operands, definitions)
        start = len(builder.equations)
        replacement = _elementwise(operands, equation, definitions)
        if replacement is None:
            replacement = _empty_reduction(operands, equation)
        rule = _rule_of(equation)
        if replacement is None and rule is not None:
            replacement = rule(operands, equation, definitions)
        outputs: Atoms = [replacement] if replacement is not None else ()
        if replacement is None:
            outputs = builder.emit(equation.primitive, operands, equation.params)
        for emitted in builder.equations[start:]:
            definitions.update(dict.fromkeys(emitted.outputs, emitted))
        return outputs

    return rewritten(program, simpler)


def _rule_of(equation: Equation) -> Rule | None:
    """The rule for an equation; all reductions share one rule."""
    primitive = primitive_of(equation)
    return (
        _reduce
        if isinstance(primitive.kernel, Reduction)
        else RULES.get(primitive.name)
    )


def _scalars_unspread(
    equation: Equation, operands: list[Atom], definitions: Definitions
) -> list[Atom]:
    """The operands of ``equation`` with scalars in place of their broadcasts.

    An elementwise operation takes scalars beside arrays, so the broadcast is not
    needed.
    """
    primitive = primitive_of(equation)
    if not isinstance(primitive.kernel, Scalar) or primitive.family != "elementwise":
        return operands
    scalars = [_spread_scalar(a, definitions) for a in operands]
    if all(
        scalar is not None or not a.type.shape
        for scalar, a in zip(scalars, operands, strict=True)
    ):
        return operands
    return [
        a if scalar is None else scalar
        for scalar, a in zip(scalars, operands, strict=True)
    ]


def _spread_scalar(atom: Atom, definitions: Definitions) -> Atom | None:
    """The scalar that is broadcast to ``atom``; None if it is no such broadcast."""
    definition = definitions.get(atom) if isinstance(atom, Var) else None
    if definition is None or definition.primitive is not views.broadcast_in_dim:
        return None
    source = definition.inputs[0]
    return source if source.type.shape == () else None


def _elementwise(
    operands: Sequence[Atom], equation: Equation, definitions: Definitions
) -> Atom | None:
    """Folds an equation of literals; computes a value before it is broadcast."""
    primitive = primitive_of(equation)
    if not isinstance(primitive.kernel, (Scalar, Convert)) or not operands:
        return None
    output = equation.outputs[0].type
    if all(isinstance(a, Literal) for a in operands):
        if output.dtype in dtypes.HALF_PRECISION or output.shape:
            return None
        literals = [a for a in operands if isinstance(a, Literal)]
        values = [np.asarray(a.value).astype(a.type.dtype) for a in literals]
        value = np.asarray(primitive.reference(*values, **equation.params)).item()
        return Literal(value, output.dtype, output.weak)
    arrays = [a for a in operands if isinstance(a, Var) and a.type.shape]
    spreads = [definitions.get(a) for a in arrays]
    if not spreads or any(
        spread is None or spread.primitive is not views.broadcast_in_dim
        for spread in spreads
    ):
        return None
    keys = {(m.inputs[0].type.shape, m.params["axes"]) for m in spreads if m}
    if len(keys) != 1 or output.weak:
        return None
    ((_, axes),) = keys
    sources = [
        definitions[a].inputs[0] if isinstance(a, Var) and a.type.shape else a
        for a in operands
    ]
    value = primitive(*sources, **equation.params)
    return views.broadcast_in_dim(value, shape=output.shape, axes=axes)


def _empty_reduction(operands: Sequence[Atom], equation: Equation) -> Atom | None:
    """The identity for a reduction over no elements, which no kernel then computes."""
    primitive = primitive_of(equation)
    if not isinstance(primitive.kernel, Reduction):
        return None
    output = equation.outputs[0].type
    if operands[0].type.size or not output.size:
        return None
    return views.broadcast_literal(primitive.kernel.identity(output.dtype), output)  # type: ignore[arg-type]


def _number(atom: Atom, definitions: Definitions) -> Atom:
    """The number that is broadcast to ``atom``, else ``atom``."""
    return _spread_scalar(atom, definitions) or atom


def _same(x: Atom, equation: Equation) -> Atom | None:
    """``x``, if it has the type of the output and can replace it, else None."""
    output = equation.outputs[0].type
    is_same_type = (x.type.shape, x.type.dtype, x.type.weak) == (
        output.shape,
        output.dtype,
        output.weak,
    )
    return x if is_same_type else None


def _negated(atom: Atom, definitions: Definitions) -> Atom | None:
    """The operand of a negation ``atom``; None if it is no negation."""
    definition = definitions.get(atom) if isinstance(atom, Var) else None
    return (
        definition.inputs[0]
        if definition and definition.primitive is elementwise.neg
        else None
    )


def _add(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """x + (-y) becomes x - y; parts of one array are joined; integers drop a 0.

    x + 0 stays for floats: it is 0 for x = -0.
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
        return _same(x, eq)
    return _same(y, eq) if is_literal(x, 0) else None


def _sub(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """x - (-y) becomes x + y, and x - 0 becomes x."""
    if (opposite := _negated(xs[1], definitions)) is not None:
        return elementwise.add(xs[0], opposite)
    return _same(xs[0], eq) if is_literal(xs[1], 0) else None


def _mul(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """x * 1 becomes x, unless it is complex, and x * x a square."""
    x, y = xs
    is_real = x.type.dtype not in dtypes.COMPLEX  # (inf + 0j) * 1 is inf + nan j
    if is_literal(_number(y, definitions), 1) and is_real:
        return _same(x, eq)
    if is_literal(_number(x, definitions), 1) and is_real:
        return _same(y, eq)
    if x is y and isinstance(x, Var):
        return elementwise.square(x)
    return None


def _div(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """x / 1 becomes x, unless it is complex, and 1 / y a reciprocal."""
    x, y = xs
    if is_literal(y, 1) and x.type.dtype not in dtypes.COMPLEX:
        return _same(x, eq)
    if is_literal(x, 1) and x.type.shape == y.type.shape:
        return elementwise.reciprocal(y)
    return None


def _pow(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """Powers of -1, 0, 1, 2, 3 and 4 become products or a reciprocal."""
    x, y = xs
    if not isinstance(y, Literal) or eq.outputs[0].type.weak:
        return None
    if is_literal(y, 1):
        return _same(x, eq)
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
    definition = definitions.get(x) if isinstance(x, Var) else None
    if definition is not None and definition.primitive is elementwise.neg:
        return definition.inputs[0]
    return None


def _convert(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """Drops a conversion that changes nothing, alone or after a wider one.

    A select between literals selects in the new dtype.
    """
    (x,) = xs
    if isinstance(x, Literal):
        return conversion.convert(x, eq.params["dtype"])
    definition = definitions.get(x)
    if definition is not None and definition.primitive is elementwise.select:
        # Select between literals in the dtype that is wanted.
        condition, first, second = definition.inputs
        if isinstance(first, Literal) and isinstance(second, Literal):
            dtype = eq.params["dtype"]
            numbers = (conversion.convert(n, dtype) for n in (first, second))
            return elementwise.select(condition, *numbers)
    if (
        definition is not None
        and definition.primitive is conversion.convert_element_type
    ):
        (source,) = definition.inputs
        if _holds(x.type.dtype, source.type.dtype):
            unconverted = _same(source, eq)
            return _same(x, eq) if unconverted is None else unconverted
    return _same(x, eq)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether ``wide`` represents every number of ``narrow``."""
    if narrow in dtypes.HALF_PRECISION:
        return wide in (dtypes.float32, dtypes.float64)
    return wide.kind == narrow.kind and np.can_cast(narrow, wide)


def _transpose(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """Drops a transpose that changes nothing, and joins two.

    A transposed product becomes the product of its operands exchanged.
    """
    (x,) = xs
    permutation = eq.params["permutation"]
    if permutation == tuple(range(len(permutation))):
        return _same(x, eq)
    definition = definitions.get(x) if isinstance(x, Var) else None
    if definition is None:
        return None
    if definition.primitive is views.transpose:
        inner = definition.params["permutation"]
        combined = tuple(inner[axis] for axis in permutation)
        if combined == tuple(range(len(combined))):
            return _same(definition.inputs[0], eq)
        return views.transpose(definition.inputs[0], permutation=combined)
    if definition.primitive is contraction.dot_general:
        return _transposed_product(definition, permutation)
    return None


def _transposed_product(product: Equation, permutation: Sequence[int]) -> Atom | None:
    """A product with its operands exchanged, if that transposes it.

    ``permutation`` is that of its result's axes; None if it is another one.
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
    """Joins a broadcast of a broadcast; drops one that changes nothing."""
    (x,) = xs
    definition = definitions.get(x) if isinstance(x, Var) else None
    if definition is not None and definition.primitive is views.broadcast_in_dim:
        axes = tuple(eq.params["axes"][axis] for axis in definition.params["axes"])
        source = definition.inputs[0]
        if all(
            n in (1, eq.params["shape"][axis])
            for n, axis in zip(source.type.shape, axes, strict=True)
        ):
            return views.broadcast_in_dim(source, shape=eq.params["shape"], axes=axes)
    return _same(x, eq)


def _reshape(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """Joins a reshape of a reshape, or of a broadcast; drops one without effect."""
    (x,) = xs
    definition = definitions.get(x) if isinstance(x, Var) else None
    if definition is not None and definition.primitive is views.reshape:
        source = definition.inputs[0]
        if source.type.shape == eq.params["shape"]:
            return _same(source, eq)
        return views.reshape(source, shape=eq.params["shape"])
    if definition is not None and definition.primitive is views.broadcast_in_dim:
        source = definition.inputs[0]
        if (
            source.type.shape == eq.params["shape"]
        ):  # axes of extent 1, added and removed
            return _same(source, eq)
        if not source.type.shape:
            return views.broadcast_in_dim(source, shape=eq.params["shape"], axes=())
    return _same(x, eq)


def _select(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """A select by a literal, or between equal values, becomes the value."""
    condition, x, y = xs
    if isinstance(condition, Literal):
        return _same(x if condition.value else y, eq)
    return _same(x, eq) if x is y else None


def _reduce(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """Drop axes of extent 1, along which nothing is reduced, by a reshape."""
    (x,) = xs
    axes = eq.params["axes"]
    units = [axis for axis in axes if x.type.shape[axis] == 1]
    primitive = primitive_of(eq)
    if not isinstance(x, Var):
        return None
    if not units:
        return _sum_of_one(primitive, x) if not axes else None
    shape = tuple(n for axis, n in enumerate(x.type.shape) if axis not in units)
    flat = views.reshape(x, shape=shape)
    remaining_axes = tuple(
        axis - sum(u < axis for u in units) for axis in axes if axis not in units
    )
    return (
        primitive(flat, axes=remaining_axes)
        if remaining_axes
        else _sum_of_one(primitive, flat)
    )


def _sum_of_one(primitive: Primitive, x: Atom) -> Atom:
    """``x`` reduced over no axes: a sum adds to 0, which turns -0 into 0."""
    if primitive.name == "reduce_sum" and x.type.dtype in dtypes.INEXACT:
        return elementwise.add(x, 0)
    return x


def _gather(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """A gather from an empty array is the fill value: all positions are outside."""
    type = eq.outputs[0].type
    if xs[0].type.size and type.size:
        return None
    return views.broadcast_literal(eq.params["fill_value"] or 0, type)


def _scatter(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """A scatter of no updates, or into an empty array, is the operand."""
    x, _indices, updates = xs
    return None if x.type.size and updates.type.size else _same(x, eq)


def _barrier(xs: Atoms, eq: Equation, definitions: Definitions) -> Atom | None:
    """Drops a barrier around a value that needs no memory, which nothing would keep."""
    x = xs[0]
    if isinstance(x, Literal):
        return _same(x, eq)
    definition = definitions.get(x)
    is_free = definition is not None and all(
        isinstance(a, Literal) for a in definition.inputs
    )
    return x if is_free else None


def _stop_gradient(xs: Atoms, eq: Equation, _: Definitions) -> Atom | None:
    """Drops it: derivatives have been taken by now."""
    return _same(xs[0], eq)


RULES: dict[str, Rule] = {
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
