"""The roles of a convolution's axes, and the axes of the arrays that a library takes.

A role says what an axis is to the convolution: an axis of groups, an outer one (the
operand's batch), an inner one (its channels), or a spatial one. Roles are tuples of an
array's axes, by role: see ``primitives.convolution_forms``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import views
from arrayfn.primitives.convolution_forms import (
    GROUP,
    INNER,
    OUTER,
    SPATIAL,
    Axes,
    Roles,
    extents_of,
)
from arrayfn.primitives.padded_convolution import ARRAYS, ROLES

DEPTHWISE_ROLES: Final[dict[str, Roles]] = {
    "operand": ((3,), (0,), (), (1, 2)),
    "kernel": ((2,), (), (), (0, 1)),
    "output": ((3,), (0,), (), (1, 2)),
}
"""The roles of the axes of a depthwise convolution's arrays, with channels last."""


def roles_of(axes: int, last: bool, grouped: bool) -> dict[str, Roles]:
    """Return the roles of the axes of a library call's arrays, by the arrays' names.

    There are ``axes`` spatial axes; channels are ``last``, or first; there is an axis
    of groups if ``grouped``. An array's roles are its axes of groups, outer axes, inner
    axes and spatial axes.
    """
    inner = (SPATIAL, GROUP, INNER) if last else (GROUP, INNER, SPATIAL)
    kernel = (SPATIAL, INNER) if last else (INNER, SPATIAL)
    orders = {
        "operand": (OUTER, *inner),
        "kernel": (GROUP, OUTER, *kernel),
        "output": (OUTER, *inner),
    }
    counts = {OUTER: 1, INNER: 1, SPATIAL: axes, GROUP: int(grouped)}
    roles_by_name: dict[str, Roles] = {}
    for name, order in orders.items():
        roles: dict[int, Axes] = {}
        at = 0
        for role in order:
            roles[role] = tuple(range(at, at + counts[role]))
            at += counts[role]
        roles_by_name[name] = roles[GROUP], roles[OUTER], roles[INNER], roles[SPATIAL]
    return roles_by_name


def in_memory_order(params: Mapping[str, Any]) -> tuple[dict[str, Roles], list[int]]:
    """Return the roles of a convolution's axes, with spatial axes in memory order.

    The first result has the roles by array. The second is the order of the spatial axes
    in memory, by their numbers in ``params``, the equation's parameters. It is that of
    the operand or, if the operand is what is computed, of the output.
    """
    roles: dict[str, Roles] = {name: params[key] for name, key in ROLES.items()}
    first = "operand" if "operand" in ARRAYS[params["gives"]] else "output"
    space = roles[first][SPATIAL]
    order = sorted(range(len(space)), key=lambda k: space[k])
    # Spatial axes are the last of the roles.
    ordered = {
        name: (*array_roles[:SPATIAL], tuple(array_roles[SPATIAL][k] for k in order))
        for name, array_roles in roles.items()
    }
    return ordered, order


def without_groups(roles: Roles) -> Roles:
    """Count the axes of groups in ``roles``, which have extent 1, as inner axes."""
    groups, outer, inner, space = roles
    return (), outer, (*groups, *inner), space


def by_channel(name: str, roles: Roles) -> Roles:
    """Return the roles for the array ``name`` of a depthwise convolution.

    Channels and groups are the same axis there, which counts as one of groups.
    """
    groups, outer, inner, space = roles
    if name == "kernel":
        return (*groups, *outer, *inner), (), (), space
    return (*groups, *inner), outer, (), space


def count_contiguous(roles: Mapping[str, Roles], *, last: bool) -> int:
    """Return how many of operand and output are contiguous with these channels.

    Channels are ``last``, or first. ``roles`` are the roles of the arrays' axes, by
    name.
    """
    order = (OUTER, SPATIAL, GROUP, INNER) if last else (OUTER, GROUP, INNER, SPATIAL)
    count = 0
    for name in ("operand", "output"):
        axes = [axis for role in order for axis in roles[name][role]]
        # The array is contiguous in this order if its axes ascend.
        count += axes == sorted(axes)
    return count


def _library_order(array_roles: Roles, target: Roles) -> tuple[list[int], list[Axes]]:
    """Return the order of an array's axes in a library's array.

    It comes flat, and as one tuple for each axis of the library's array, because
    several axes of one role become one axis there. ``array_roles`` are the roles of the
    array's axes, ``target`` the roles of the library's axes.
    """
    groups: dict[int, Axes] = {
        target[role][0]: array_roles[role]
        for role in (GROUP, OUTER, INNER)
        if target[role]
    }
    groups |= {
        target_axis: (axis,)
        for target_axis, axis in zip(target[SPATIAL], array_roles[SPATIAL], strict=True)
    }
    merged = [groups[target_axis] for target_axis in sorted(groups)]
    return [axis for axes in merged for axis in axes], merged


def to_library_axes(x: Atom, array_roles: Roles, target: Roles) -> Atom:
    """Transpose and reshape ``x``, with ``array_roles``, to the axes of ``target``."""
    order, merged = _library_order(array_roles, target)
    shape = tuple(math.prod(extents_of(x.type, axes)) for axes in merged)
    if not _keeps_order(order, x.type):
        x = views.transpose(x, permutation=tuple(order))
    return x if x.type.shape == shape else views.reshape(x, shape=shape)


def _keeps_order(order: Sequence[int], type: ArrayType) -> bool:
    """Whether a transposition by ``order`` leaves all elements where they are."""
    longer = [axis for axis in order if type.shape[axis] != 1]
    return longer == sorted(longer)


def from_library_axes(
    x: Atom, type: ArrayType, array_roles: Roles, target: Roles
) -> Atom:
    """Reshape and transpose ``x``, with axes of ``target``, to ``type``.

    ``array_roles`` are the roles of the axes of ``type``.
    """
    order, _ = _library_order(array_roles, target)
    if _keeps_order(order, type):
        shape = type.shape
        return x if x.type.shape == shape else views.reshape(x, shape=shape)
    shape = tuple(type.shape[axis] for axis in order)
    if x.type.shape != shape:
        x = views.reshape(x, shape=shape)
    inverse = tuple(order.index(axis) for axis in range(len(order)))
    return views.transpose(x, permutation=inverse)
