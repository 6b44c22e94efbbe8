"""Einstein summation: the path comes from opt_einsum, pairs become dot_general."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike, DTypeLike
from arrayfn.numpy.arithmetic import multiply
from arrayfn.numpy.linear_algebra import diagonal, dot_general
from arrayfn.numpy.manipulation import expand_dims, squeeze, transpose
from arrayfn.primitives import reductions as r
from arrayfn.tracing import apply


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = True,
    precision: str | None = None,
    preferred_element_type: DTypeLike = None,
) -> Array:
    """Sum the products that ``subscripts`` describe, as in NumPy.

    ``einsum("ij,jk->ik", x, y)`` is a matrix product. The result has the dtype to which
    the operands promote. Several operands are contracted pair by pair, in the order
    that opt_einsum finds. ``optimize`` is opt_einsum's option. ``precision`` and
    ``preferred_element_type`` are as for ``matmul``. Raises ShapeError if labels and
    shapes do not fit, and ArgumentError if ``out`` is given.
    """
    ops.refuse_out("einsum", out)
    inputs, output, values = _parsed(subscripts, operands)
    preferred = preferred_element_type
    wanted = None if preferred is None else dtypes.canonical(preferred)
    values, _, dtype = ops.promoted("einsum", values, wanted)
    result_dtype = dtype
    if dtype == dtypes.bool_:  # count in int32 whether any product is true
        dtype = dtypes.int32
        values = [ops.convert(x, dtype) for x in values]
    terms = [  # pairs of labels and an array
        _without_repeats(labels, ops.as_array(x))
        for labels, x in zip(inputs, values, strict=True)
    ]
    terms = _without_broadcast(terms)
    for positions in _path(terms, output, optimize):
        chosen = [terms[k] for k in positions]
        terms = [t for k, t in enumerate(terms) if k not in positions]
        # The labels that the result or a remaining term needs. Sum over the others.
        needed = set(output).union(*(labels for labels, _ in terms))
        result = _reduced(chosen[0], needed.union(*(t[0] for t in chosen[1:])))
        for term in chosen[1:]:
            other = _reduced(term, needed | set(result[0]))
            result = _product(result, other, needed, precision)
        terms.append(result)
    labels, value = _reduced(terms[0], set(output))
    value = transpose(value, [labels.index(label) for label in output])
    return ops.convert(value, result_dtype) if result_dtype != dtype else value


def einsum_path(
    subscripts: Any, /, *operands: Any, optimize: Any = "greedy"
) -> tuple[list[Any], str]:
    """Return the order in which NumPy's einsum contracts the operands.

    The first result lists the positions of the operands of each step, the second is a
    table of this order as text. Only the operands' shapes matter. ``einsum`` itself
    uses opt_einsum's order.
    """
    arguments = [subscripts, *operands]
    stand_ins = [_stand_in(part) for part in arguments]
    return np.einsum_path(*stand_ins, optimize=optimize)


def _stand_in(part: Any) -> Any:
    """Return a broadcast zero with the shape of ``part``, if that is an array."""
    if ops.is_array(part):
        return np.broadcast_to(np.zeros((), np.float64), part.shape)
    return part


# The labels of an array's axes, one letter each, and the array.
Term = tuple[str, Any]


def _parsed(
    subscripts: Any, operands: tuple[Any, ...]
) -> tuple[list[str], str, list[ArrayLike]]:
    """Return the labels of each operand and of the result, and the operands.

    Takes both of NumPy's forms, ("ij,jk->ik", x, y) and (x, [0, 1], y, [1, 2], [0, 2]).
    Raises ShapeError if the labels do not fit the operands' shapes.
    """
    if isinstance(subscripts, str):
        values = list(operands)
        form: list[Any] = [subscripts, *_shapes(values)]
    else:
        # einsum(x, [0, 1], y, [1, 2], [0, 2]): replace the operands by their shapes. An
        # odd number of arguments ends with the labels of the result.
        arguments = [subscripts, *operands]
        values = arguments[: len(arguments) - len(arguments) % 2 : 2]
        shapes = iter(_shapes(values))
        pairs = len(values) * 2
        form = [
            next(shapes) if k % 2 == 0 and k < pairs else part
            for k, part in enumerate(arguments)
        ]
    from opt_einsum import parser

    try:
        inputs, output, _ = parser.parse_einsum_input(form, shapes=True)
    except ValueError as error:
        raise ShapeError(f"einsum: {error}", user_location()) from None
    return inputs.split(","), output, values


def _shapes(values: list[ArrayLike]) -> list[tuple[int, ...]]:
    """Return the shapes of the operands ``values``."""
    return [ops.type_of_operand("einsum", x).shape for x in values]


def _path(terms: list[Term], output: str, optimize: Any) -> list[tuple[int, ...]]:
    """Return, for each step, the positions of the terms to contract.

    A step removes these terms, and puts its result at the end of the list. ``optimize``
    is opt_einsum's option.
    """
    if len(terms) == 1:
        return []
    if len(terms) == 2:
        return [(0, 1)]
    subscripts = ",".join(labels for labels, _ in terms) + "->" + output
    shapes = [x.shape for _, x in terms]
    if isinstance(optimize, (list, tuple)) and tuple(optimize)[:1] == ("einsum_path",):
        optimize = list(optimize)[1:]  # the format of np.einsum_path
    from opt_einsum import contract_path

    path, _ = contract_path(subscripts, *shapes, shapes=True, optimize=optimize)
    return [tuple(step) for step in path]


def _without_repeats(labels: str, x: Array) -> Term:
    """Return ``x`` and its labels, with each repeated label replaced by a diagonal.

    For example, labels "ii" become "i", and x its diagonal. Raises ShapeError if the
    labels do not fit.
    """
    if len(labels) != x.ndim:
        raise ShapeError(
            f"einsum: {labels!r} does not name the axes of shape {x.shape}",
            user_location(),
        )
    for label in set(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError(
                    f"einsum: the axes {label!r} of shape {x.shape} differ",
                    user_location(),
                )
            x = diagonal(x, axis1=first, axis2=second)
            rest = [l for k, l in enumerate(labels) if k not in (first, second)]
            labels = "".join(rest) + label
    return labels, x


def _without_broadcast(terms: list[Term]) -> list[Term]:
    """Drop axes of extent 1 whose label has a larger extent in another term.

    Raises ShapeError if a label has two extents other than 1.
    """
    extents: dict[str, int] = {}  # the largest extent of each label
    for labels, x in terms:
        for label, extent in zip(labels, x.shape, strict=True):
            if extents.setdefault(label, extent) == 1:
                extents[label] = extent
            elif extent not in (1, extents[label]):
                raise ShapeError(
                    f"einsum: axis {label!r} has extent {extents[label]} in one "
                    f"operand and {extent} in another",
                    user_location(),
                )
    results: list[Term] = []
    for labels, x in terms:
        # Axes that have extent 1 here, and a larger one in another term.
        short = [
            k for k, label in enumerate(labels) if x.shape[k] == 1 != extents[label]
        ]
        rest = "".join(l for k, l in enumerate(labels) if k not in short)
        results.append((rest, squeeze(x, tuple(short)) if short else x))
    return results


def _reduced(term: Term, needed: set[str]) -> Term:
    """Sum ``term`` over the labels that are not ``needed``."""
    labels, x = term
    axes = tuple(k for k, label in enumerate(labels) if label not in needed)
    if not axes:
        return term
    rest = "".join(label for label in labels if label in needed)
    return rest, apply(r.reduce_sum, x, axes=axes)


def _product(
    first: Term, second: Term, needed: set[str], precision: str | None
) -> Term:
    """Multiply two terms, and sum over the shared labels that are not ``needed``.

    The result's labels are the other shared ones, then those of ``first`` and
    ``second``. Without such a sum, the terms are multiplied elementwise, else by
    ``dot_general``.
    """
    (left, x), (right, y) = first, second
    shared = [label for label in left if label in right]
    batch = [label for label in shared if label in needed]
    contract = [label for label in shared if label not in needed]
    free = [label for label in left if label not in right]
    others = [label for label in right if label not in left]
    labels = "".join(batch + free + others)
    if not contract:
        return labels, multiply(_aligned(left, x, labels), _aligned(right, y, labels))
    value = dot_general(
        "einsum",
        x,
        y,
        (_places(left, contract), _places(right, contract)),
        (_places(left, batch), _places(right, batch)),
        precision,
    )
    return labels, value


def _places(labels: str, wanted: list[str]) -> tuple[int, ...]:
    """Return the positions of the labels ``wanted`` in ``labels``."""
    return tuple(labels.index(label) for label in wanted)


def _aligned(labels: str, x: Array, wanted: str) -> Array:
    """Return ``x``, whose axes are ``labels``, with its axes in the order ``wanted``.

    Labels that ``x`` lacks become axes of extent 1.
    """
    present = [label for label in wanted if label in labels]
    x = transpose(x, _places(labels, present))
    missing = tuple(k for k, label in enumerate(wanted) if label not in labels)
    return expand_dims(x, missing) if missing else x
