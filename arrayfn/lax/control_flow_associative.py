"""``associative_scan``: all prefix combinations, in logarithmically many steps.

Blelloch, Prefix Sums and Their Applications, 1990.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from arrayfn import tree
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.lax.control_flow_tracing import check_arrays, check_function
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import concatenate, flip, stack
from arrayfn.transforms import leaf_type
from arrayfn.transforms.arguments import described

Function = Callable[..., Any]
Leaves = list[Any]


def associative_scan(
    fn: Function, elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """Combine all prefixes by ``fn`` along ``axis``: e0, e0 e1, e0 e1 e2, ...

    ``fn(a, b)`` must be associative. It takes pytrees like ``elems`` with any number of
    elements along ``axis``, and combines them elementwise. With ``reverse`` the scan
    runs from the end.

    Raises ShapeError or ArgumentError if the leaves differ in their number of
    elements, or ``fn`` changes the structure.

    >>> import numpy as np
    >>> associative_scan(np.add, np.array([1, 2, 3, 4]))
    array([ 1,  3,  6, 10])
    """
    check_function("associative_scan", "fn", fn, ("left", "right"))
    check_arrays("associative_scan", "elems", elems)
    leaves, structure = tree.flatten(elems)
    if not leaves:
        return elems
    ndims = [leaf_type(x).ndim for x in leaves]
    places = [ops.normalize_axis("associative_scan", axis, n) for n in ndims]
    counts = {leaf_type(x).shape[k] for x, k in zip(leaves, places, strict=True)}
    if len(counts) != 1:
        raise ShapeError(
            "associative_scan: the arrays have one number of elements along axis "
            f"{axis}, but they are {', '.join(str(leaf_type(x)) for x in leaves)}",
            user_location(),
        )
    if reverse:
        leaves = [flip(x, k) for x, k in zip(leaves, places, strict=True)]

    def combine(first: Leaves, second: Leaves) -> Leaves:
        """Call ``fn`` with flat leaves, and return the leaves of its result.

        Raises ArgumentError if the result has another structure than ``elems``.
        """
        result = fn(tree.unflatten(structure, first), tree.unflatten(structure, second))
        results, returned = tree.flatten(result)
        if returned != structure:
            raise ArgumentError(
                f"associative_scan: {described(fn)} gives the structure "
                f"{tree.text_of(returned)}, but takes {tree.text_of(structure)}",
                user_location(),
            )
        return results

    results = _scanned(combine, leaves, places)
    if reverse:
        results = [flip(x, k) for x, k in zip(results, places, strict=True)]
    return tree.unflatten(structure, results)


def _scanned(
    combine: Callable[[Leaves, Leaves], Leaves], leaves: Leaves, axes: Sequence[int]
) -> Leaves:
    """Return all prefix combinations of ``leaves``, each along its axis of ``axes``.

    With p[k] the combination of x[0] to x[k]: neighbours are combined to pairs x[0]
    x[1], x[2] x[3], ..., whose scan (a recursive call) is p[1], p[3], ... Then p[2] is
    p[1] x[2], p[4] is p[3] x[4], and so on. The recursion has about log2(n) levels.
    """
    count = leaf_type(leaves[0]).shape[axes[0]]
    if count < 2:
        return leaves
    last = count - 1
    # ``_every`` takes every second element, from the first number to the second.
    pairs = combine(_every(leaves, axes, 0, last), _every(leaves, axes, 1, count))
    odd = _scanned(combine, pairs, axes)  # p[1], p[3], ...
    # If the count is even, no element follows the last odd one.
    before = odd if count % 2 else _every(odd, axes, 0, count // 2 - 1, step=1)
    rest = _every(leaves, axes, 2, count)  # x[2], x[4], ...
    firsts = _every(leaves, axes, 0, 1)
    even = firsts  # p[0], p[2], p[4], ...
    if leaf_type(rest[0]).shape[axes[0]]:
        even = [
            concatenate([x, y], axis=k)
            for x, y, k in zip(firsts, combine(before, rest), axes, strict=True)
        ]
    return [_interleaved(x, y, k) for x, y, k in zip(even, odd, axes, strict=True)]


def _every(
    leaves: Leaves, axes: Sequence[int], start: int, stop: int, step: int = 2
) -> Leaves:
    """Slice each leaf with ``start:stop:step`` along its axis of ``axes``."""
    return [
        x[(*(slice(None),) * k, slice(start, stop, step))]  # x[:, ..., start:stop:step]
        for x, k in zip(leaves, axes, strict=True)
    ]


def _interleaved(even: Any, odd: Any, axis: int) -> Any:
    """Return even[0], odd[0], even[1], odd[1], ... along ``axis``.

    ``even`` has as many elements as ``odd`` or one more, which then comes last.
    """
    count = leaf_type(odd).shape[axis]
    longer = leaf_type(even).shape[axis] > count
    (first,) = _every([even], [axis], 0, count, step=1)
    pairs = stack([first, odd], axis=axis + 1)
    shape = leaf_type(pairs).shape
    woven = pairs.reshape((*shape[:axis], 2 * count, *shape[axis + 2 :]))
    if not longer:
        return woven
    return concatenate([woven, *_every([even], [axis], count, count + 1)], axis=axis)


__all__ = ["associative_scan"]
