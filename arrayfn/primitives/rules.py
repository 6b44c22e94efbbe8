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


def as_list(result: Any) -> list[Atom]:
    """The result of a primitive as a list, also if it is one Atom."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


def not_linear(operands: Operands) -> list[Atom]:
    """The known operands: those of which a transposed equation has the value."""
    return [x for x in operands if not isinstance(x, Linear)]


def not_none(tangents: Tangents) -> list[Atom]:
    """The tangents, or cotangents, that are not zero; None stands for a zero."""
    return [t for t in tangents if t is not None]


def with_nones(values: Iterable[Atom | None], flags: Iterable[bool]) -> Tangents:
    """Insert None into ``values`` where ``flags`` are false: undoes ``not_none``."""
    remaining = iter(values)
    return [next(remaining) if flag else None for flag in flags]


def shifted(axes: Iterable[int]) -> Axes:
    """``axes`` of an array after it got a new axis 0: each plus 1."""
    return tuple(axis + 1 for axis in axes)


def repeated(size: int, x: Atom, dim: Dim) -> Atom:
    """Move the mapped axis ``dim`` of ``x`` to the front.

    If it has none, it is repeated along a new axis of extent ``size``.
    """
    if dim is not None:
        return emitters.move_axis(x, dim, 0)
    shape = (size, *x.type.shape)
    return emitters.broadcast_in_dim(x, shape=shape, axes=tuple(range(1, len(shape))))


def all_mapped(axis_size: int, inputs: Atoms, dims: Dims) -> list[Atom]:
    """Move the mapped axes of ``inputs`` to the front; repeat inputs without one.

    ``axis_size`` is the extent; ``dims`` has the axis of each input, or None.
    """
    return [
        x if dim == 0 else repeated(axis_size, x, dim)
        for x, dim in zip(inputs, dims, strict=True)
    ]


def mapped_axes_first(inputs: Atoms, dims: Dims) -> list[Atom]:
    """Move the mapped axis of each of ``inputs``, if it has one, to the front.

    ``dims`` has the mapped axis of each, or None.
    """
    return [
        x if dim is None else emitters.move_axis(x, dim, 0)
        for x, dim in zip(inputs, dims, strict=True)
    ]


# Forward mode.


def jvp_alone(rule: Callable[..., Atom | list[Atom | None]]) -> JvpRule:
    """Make the jvp rule of one operand from ``rule(x, *outputs, t, **params)``.

    ``rule`` returns the tangent of the output, or a list for several outputs.
    """

    def jvp(
        primals: Atoms, outputs: Atoms, tangents: Tangents, **params: object
    ) -> Tangents:
        """The jvp rule: calls ``rule`` with everything as operands."""
        tangent = rule(*primals, *outputs, *tangents, **params)
        return tangent if isinstance(tangent, list) else [tangent]

    return jvp


def jvp_of_first(primitive: Callable[..., Atom]) -> JvpRule:
    """Make the jvp rule of ``primitive(x, *others, **params)``, linear in ``x`` only.

    The others are indices, which have no tangents.
    """

    def jvp(
        primals: Atoms, outputs: Atoms, tangents: Tangents, **params: object
    ) -> Tangents:
        """The jvp rule: the primitive of the first operand's tangent."""
        if tangents[0] is None:
            return [None]
        return [primitive(tangents[0], *primals[1:], **params)]

    return jvp


def jvp_of_product(product: Callable[..., Atom]) -> JvpRule:
    """The jvp rule of a ``product(x, y, **params)`` that is linear in each operand."""

    def jvp(
        primals: Atoms, outputs: Atoms, tangents: Tangents, **params: object
    ) -> Tangents:
        """The product rule, for the operands that have tangents."""
        (x, y), (dx, dy) = primals, tangents
        terms = [] if dx is None else [product(dx, y, **params)]
        if dy is not None:
            terms.append(product(x, dy, **params))
        return [terms[0] if len(terms) == 1 else emitters.add(*terms)]

    return jvp


# Transposes.


def transposed_first(rule: Callable[..., Atom], of: str = "") -> TransposeRule:
    """Make the transpose rule of a function linear only in its first operand.

    It is ``rule(cotangent, type of the operand, *other operands, **params)``. To
    transpose primitive ``of`` by another operand is an error; without ``of``, other
    operands are indices.
    """

    def transpose(cotangents: Tangents, inputs: Operands, **params: object) -> Tangents:
        """The cotangent of the first operand by ``rule``, and None for the others."""
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

    ``rule(*operands, **params)`` emits it; its outputs are mapped along axis 0, too.
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
