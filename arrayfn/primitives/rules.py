"""Constructors of rules, from the part in which they differ.

A transformation applies a rule only where it is needed: a jvp rule if an operand has a
tangent, a transpose rule if an operand is Linear and an output has a cotangent, a
batching rule if an operand is mapped. Primitives with one operand to differentiate by,
or to map, state an expression; the constructors here add the lists around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from arrayfn.ir import Atom
from arrayfn.primitives import emitters
from arrayfn.primitives.base import (
    Atoms,
    Batched,
    BatchRule,
    Dim,
    Dims,
    JvpRule,
    Linear,
    Operands,
    Tangents,
    TransposeRule,
    value_of,
)

Axes = tuple[int, ...]


def as_list(values: Any) -> list[Any]:
    """Return one value, or a tuple or list of several, as a list."""
    return list(values) if isinstance(values, (tuple, list)) else [values]


def not_linear(operands: Operands) -> list[Atom]:
    """Return the operands whose values a transpose rule has: those not Linear."""
    return [x for x in operands if not isinstance(x, Linear)]


def not_none(tangents: Tangents) -> list[Atom]:
    """Return the tangents, or cotangents, that are not None, which stands for zero."""
    return [t for t in tangents if t is not None]


def with_nones(values: Iterable[Atom | None], flags: Iterable[bool]) -> Tangents:
    """Insert None into ``values`` where ``flags`` are false: undo ``not_none``.

    >>> with_nones(["a", "b"], [True, False, True])
    ['a', None, 'b']
    """
    remaining = iter(values)
    return [next(remaining) if flag else None for flag in flags]


def shifted(axes: Iterable[int]) -> Axes:
    """Add 1 to each of ``axes``: their numbers after the array got a new axis 0."""
    return tuple(axis + 1 for axis in axes)


def repeated(size: int, x: Atom, dim: Dim) -> Atom:
    """Move the mapped axis ``dim`` of ``x`` to the front.

    If ``dim`` is None, ``x`` is repeated along a new axis 0 of extent ``size``.
    """
    if dim is not None:
        return emitters.move_axis(x, dim, 0)
    shape = (size, *x.type.shape)
    return emitters.broadcast_in_dim(x, shape=shape, axes=tuple(range(1, len(shape))))


def all_mapped(axis_size: int, inputs: Atoms, dims: Dims) -> list[Atom]:
    """Move the mapped axis of each input to the front; repeat inputs without one.

    ``axis_size`` is the extent of the mapped axis, and ``dims`` its place in each
    input, or None.
    """
    return [
        x if dim == 0 else repeated(axis_size, x, dim)
        for x, dim in zip(inputs, dims, strict=True)
    ]


def mapped_axes_first(inputs: Atoms, dims: Dims) -> list[Atom]:
    """Move the mapped axis of each input to the front; leave inputs without one.

    ``dims`` has the mapped axis of each input, or None.
    """
    return [
        x if dim is None else emitters.move_axis(x, dim, 0)
        for x, dim in zip(inputs, dims, strict=True)
    ]


# Forward mode.


def jvp_alone(rule: Callable[..., Atom | list[Atom | None]]) -> JvpRule:
    """Make the jvp rule of one operand from ``rule(x, *outputs, t, **params)``.

    ``t`` is the tangent of the operand ``x``. ``rule`` returns the tangent of the
    output, or a list for several outputs.
    """

    def jvp(
        primals: Atoms, outputs: Atoms, tangents: Tangents, **params: object
    ) -> Tangents:
        """Call ``rule`` with the primal, the outputs and the tangent as operands."""
        tangent = rule(*primals, *outputs, *tangents, **params)
        return tangent if isinstance(tangent, list) else [tangent]

    return jvp


def jvp_of_first(primitive: Callable[..., Atom]) -> JvpRule:
    """Make the jvp rule of ``primitive(x, *others, **params)``, linear in ``x`` only.

    ``dy = primitive(dx, *others)``, where the others are indices or the token of an
    ``optimization_barrier``.
    """

    def jvp(
        primals: Atoms, outputs: Atoms, tangents: Tangents, **params: object
    ) -> Tangents:
        """Apply the primitive to the first operand's tangent, if it has one.

        The tangents of the others do not count: indices have none, and the value of an
        ``optimization_barrier`` does not depend on its token.
        """
        if tangents[0] is None:
            return [None]
        return [primitive(tangents[0], *primals[1:], **params)]

    return jvp


def jvp_of_product(product: Callable[..., Atom]) -> JvpRule:
    """Make the jvp rule of a ``product(x, y, **params)``, linear in each operand.

    ``d product(x, y) = product(dx, y) + product(x, dy)``.
    """

    def jvp(
        primals: Atoms, outputs: Atoms, tangents: Tangents, **params: object
    ) -> Tangents:
        """Apply the product rule to the operands that have tangents."""
        (x, y), (dx, dy) = primals, tangents
        terms = [] if dx is None else [product(dx, y, **params)]
        if dy is not None:
            terms.append(product(x, dy, **params))
        return [terms[0] if len(terms) == 1 else emitters.add(*terms)]

    return jvp


# Transposes.


def transposed_first(rule: Callable[..., Atom], of: str = "") -> TransposeRule:
    """Make the transpose rule of a function that is linear only in its first operand.

    ``rule(cotangent, type of the first operand, *other operands, **params)`` returns
    the cotangent of the first operand. ``of`` is the primitive's name: transposing it
    by another operand raises an error. Without ``of``, the other operands are indices.
    """

    def transpose(cotangents: Tangents, inputs: Operands, **params: object) -> Tangents:
        """Return the first operand's cotangent by ``rule``, and None for the others."""
        (cotangent,), (x, *others) = cotangents, inputs
        values = [value_of(y, of) for y in others] if of else not_linear(others)
        if not isinstance(x, Linear):
            return [None] * len(inputs)
        cotangent_of_x = rule(cotangent, x.type, *values, **params)
        return [cotangent_of_x, *[None] * len(others)]

    return transpose


# Batching.


def batched_along(rule: Callable[..., Atom | tuple[Atom, ...]]) -> BatchRule:
    """Make the batching rule of a function whose operands are all mapped along axis 0.

    ``rule(*operands, **params)`` emits the function on operands that have the mapped
    axis in front; its outputs must have the mapped axis in front too.
    """

    def batch(axis_size: int, inputs: Atoms, dims: Dims, **params: object) -> Batched:
        """Map all operands along axis 0, and emit the function on them."""
        outputs = rule(*all_mapped(axis_size, inputs, dims), **params)
        return (
            (outputs, [0] * len(outputs))
            if isinstance(outputs, tuple)
            else ([outputs], [0])
        )

    return batch
