"""Collectives over the members of a named axis of ``vmap``, under JAX's names.

>>> import numpy as np
>>> from arrayfn.transforms import vmap
>>> share = vmap(lambda x: x / psum(x, "i"), axis_name="i")
>>> share(np.array([1.0, 2.0, 5.0]))
array([0.125, 0.25 , 0.625])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes, tree
from arrayfn import numpy as anp
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir.sharding import names_in
from arrayfn.lax.collective_groups import Group, Groups
from arrayfn.primitives import collectives, conversion
from arrayfn.primitives.base import Primitive
from arrayfn.tracing import Tracer, apply
from arrayfn.tracing.frames import NamedAxis, current_frame

AxisName = str | Sequence[str]


def axis_index(axis_name: AxisName) -> Any:
    """Return the index of this member along the named axis, an int32 scalar.

    Along several axes, members are numbered in row-major order. Raises ArgumentError if
    no enclosing ``vmap`` or ``shard_map`` has an axis of that name.
    """
    index: Any = np.int32(0)
    for name in names_in(axis_name):
        axis = _axis("axis_index", name)
        index = index * np.int32(axis.size) + axis.index
    return index


def axis_size(axis_name: AxisName) -> int:
    """Return the number of members along the named axis, or along several axes.

    Raises ArgumentError if no enclosing ``vmap`` or ``shard_map`` has an axis of that
    name.
    """
    size = 1
    for name in names_in(axis_name):
        size *= _axis("axis_size", name).size
    return size


def psum(
    x: Any, axis_name: AxisName, *, axis_index_groups: Groups | None = None
) -> Any:
    """Sum x, or each leaf of a pytree, over all members of the axis or axes.

    Leaves keep their shapes and dtypes, but bools are summed as int64. A Python number
    is multiplied by the number of members. With ``axis_index_groups``, the members of
    each group are combined separately. For example, ``[[0, 1], [2, 3]]`` sums in pairs.
    Other collectives have this option, too. All groups must have the same size, and
    each member must be in exactly one group. Otherwise ArgumentError is raised. Members
    of several axes are numbered in row-major order. Each member receives the values of
    all members and selects those of its group.

    >>> from arrayfn.transforms import vmap
    >>> vmap(lambda x: psum(x, "i"), axis_name="i")(np.arange(3.0))
    array([3., 3., 3.])
    >>> pairs = [[0, 1], [2, 3]]
    >>> in_pairs = lambda x: psum(x, "i", axis_index_groups=pairs)
    >>> vmap(in_pairs, axis_name="i")(np.arange(4.0))
    array([1., 1., 5., 5.])
    """
    group = _group("psum", axis_name, axis_index_groups)
    if group is not None:

        def sum_in_group(leaf: Any) -> Any:
            """Sum a leaf over this member's group."""
            if dtypes.is_python_scalar(leaf):
                return leaf * group.size
            return _sum_of_group(group, leaf, axis_name)

        return tree.map(sum_in_group, x)

    def total(leaf: Any) -> Any:
        """Sum a leaf over one axis after another.

        A Python number is the same for all members, so multiply it by their number.
        """
        for name in names_in(axis_name):
            axis = _axis("psum", name)
            if dtypes.is_python_scalar(leaf):
                leaf = leaf * axis.size
                continue
            if leaf.dtype == dtypes.bool_:
                leaf = leaf.astype(np.int64)
            leaf = _over(collectives.all_reduce, leaf, name, axis, op="sum")
        return leaf

    return tree.map(total, x)


def pmean(
    x: Any, axis_name: AxisName, *, axis_index_groups: Groups | None = None
) -> Any:
    """Average x, or each leaf of a pytree, over all members of the axis or axes.

    Leaves keep their shapes, and the means of integers are floats.
    ``axis_index_groups`` is as in ``psum``.
    """
    group = _group("pmean", axis_name, axis_index_groups)
    size = axis_size(axis_name) if group is None else group.size
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    return tree.map(lambda leaf: leaf / size, total)


def pmax(
    x: Any, axis_name: AxisName, *, axis_index_groups: Groups | None = None
) -> Any:
    """Return the maximum of x, or of each leaf of a pytree, over all members.

    Leaves keep their shapes and dtypes. The members with the maximum share its
    derivative equally. ``axis_index_groups`` is as in ``psum``. Raises DTypeError for
    bools, except in groups.
    """
    return _extremum("max", x, axis_name, axis_index_groups)


def pmin(
    x: Any, axis_name: AxisName, *, axis_index_groups: Groups | None = None
) -> Any:
    """Return the minimum of x, or of each leaf of a pytree, over all members.

    Leaves keep their shapes and dtypes. The members with the minimum share its
    derivative equally. ``axis_index_groups`` is as in ``psum``. Raises DTypeError for
    bools, except in groups.
    """
    return _extremum("min", x, axis_name, axis_index_groups)


def pbroadcast(x: Any, axis_name: str, source: int) -> Any:
    """Return the value that member ``source`` has for x, on all members.

    x is an array or a pytree of arrays. Raises ArgumentError if there is no such
    member.

    >>> from arrayfn.transforms import vmap
    >>> vmap(lambda x: pbroadcast(x, "i", 1), axis_name="i")(np.arange(3.0))
    array([1., 1., 1.])
    """
    axis = _axis("pbroadcast", axis_name)
    if not 0 <= source < axis.size:
        raise ArgumentError(
            f"pbroadcast: the members of axis {axis_name!r} are 0 to {axis.size - 1}, "
            f"but source is {source}",
            user_location(),
        )

    def sent(leaf: Any) -> Any:
        """Send a leaf of member ``source`` to all members.

        The members sum the leaf of ``source`` and zeros. ``psum`` turns bools into
        int64, so the sum is converted back to the dtype of the leaf.
        """
        own = anp.where(axis.index == source, leaf, anp.zeros_like(leaf))
        total = psum(own, axis_name)
        return total if total.dtype == own.dtype else total.astype(own.dtype)

    return tree.map(sent, x)


def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups | None = None,
    axis: int = 0,
    tiled: bool = False,
) -> Any:
    """Stack the values of all members along ``axis``; ``tiled`` concatenates them.

    Without ``tiled``, a leaf of shape s becomes an array with a new axis ``axis``,
    whose extent is the number of members. With ``tiled``, the extent of the existing
    ``axis`` is multiplied by this number. The members of several axes are in row-major
    order. ``axis_index_groups`` is as in ``psum``.

    >>> from arrayfn.transforms import vmap
    >>> vmap(lambda x: all_gather(x, "i"), axis_name="i")(np.arange(2.0))
    array([[0., 1.],
           [0., 1.]])
    """
    group = _group("all_gather", axis_name, axis_index_groups)

    def gathered(leaf: Any) -> Any:
        """Return the leaves of all members, or of this group, along ``axis``."""
        values = _of_all(leaf, names_in(axis_name))
        if group is not None:
            values = group.own(values)
        # A negative axis counts from the end of the result. If the values are stacked,
        # the result has one axis more than the leaf.
        place = axis % (anp.ndim(leaf) + (0 if tiled else 1))
        values = anp.moveaxis(values, 0, place)
        return _merged(values, place) if tiled else values

    return tree.map(gathered, x)


def psum_scatter(
    x: Any,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Groups | None = None,
    tiled: bool = False,
) -> Any:
    """Sum over all members, and give each member one part of the sum.

    The sum is cut along ``scatter_dimension``. This axis of x has as many elements as
    there are members, and the result lacks the axis. With ``tiled``, the axis has a
    multiple of that number of elements, and stays. Other extents raise ShapeError. The
    members of several axes are in row-major order. ``axis_index_groups`` is as in
    ``psum``.
    """
    group = _group("psum_scatter", axis_name, axis_index_groups)
    if group is not None:

        def part_of_group(leaf: Any) -> Any:
            """Sum a leaf over this group, and select this member's part of the sum."""
            own = _sum_of_group(group, leaf, axis_name)
            cut = _parts("psum_scatter", own, scatter_dimension, [group.size], tiled)
            return group.mine(cut, axis=0)

        return tree.map(part_of_group, x)

    def part(leaf: Any) -> Any:
        """Sum a leaf and keep this member's part, one named axis after another."""
        names = names_in(axis_name)
        sizes = [_axis("psum_scatter", name).size for name in names]
        parts = _parts("psum_scatter", leaf, scatter_dimension, sizes, tiled)
        for name in names:
            named = _axis("psum_scatter", name)
            parts = _over(collectives.reduce_scatter, parts, name, named)
        return parts

    return tree.map(part, x)


def ppermute(x: Any, axis_name: AxisName, perm: Sequence[tuple[int, int]]) -> Any:
    """Send x from source to target for each pair (source, target) of ``perm``.

    x is an array or a pytree, and leaves keep their shapes and dtypes. Members that are
    not a target get zeros. Raises ArgumentError if a member is the source or the target
    of two pairs, or does not exist. Members of several axes are numbered in row-major
    order. Then, each member receives the values of all members and selects its own.

    >>> from arrayfn.transforms import vmap
    >>> ring = [(0, 1), (1, 2), (2, 0)]
    >>> vmap(lambda x: ppermute(x, "i", ring), axis_name="i")(np.arange(3.0))
    array([2., 0., 1.])
    """
    names = names_in(axis_name)
    axes = [_axis("ppermute", name) for name in names]
    size = math.prod(axis.size for axis in axes)
    pairs = [(int(a), int(b)) for a, b in perm]
    for ends in zip(*pairs, strict=True):  # all sources, then all targets
        if len(set(ends)) < len(ends) or not all(0 <= k < size for k in ends):
            raise ArgumentError(
                f"ppermute: perm pairs each of the members 0 to {size - 1} of axis "
                f"{axis_name!r} at most once as a source and once as a target, but is "
                f"{pairs}",
                user_location(),
            )

    def moved(leaf: Any) -> Any:
        """Return the leaf that this member receives."""
        if len(names) == 1:
            primitive, ordered = collectives.ppermute, tuple(sorted(pairs))
            return _over(primitive, leaf, names[0], axes[0], permutation=ordered)
        # sources[k] is the member that sends to k. Without one it is size, which is out
        # of bounds in ``values``, so that take fills with zeros.
        sources = np.full(size, size)
        for source, target in pairs:
            sources[target] = source
        source = anp.take(sources, axis_index(names), mode="clip")
        values = all_gather(leaf, names)
        return anp.take(values, source, 0, mode="fill", fill_value=0)

    return tree.map(moved, x)


def pshuffle(x: Any, axis_name: str, perm: Sequence[int]) -> Any:
    """Return the x of member ``perm[k]`` on each member k.

    ``perm`` is a permutation of the members' numbers. Raises ArgumentError for others.
    """
    return ppermute(x, axis_name, [(source, k) for k, source in enumerate(perm)])


def pswapaxes(
    x: Any,
    axis_name: str,
    axis: int,
    *,
    axis_index_groups: Groups | None = None,
) -> Any:
    """Exchange the named axis with axis ``axis`` of x, which has the same extent.

    Along ``axis``, element j of the result on member i is element i of x on member j.
    ``axis_index_groups`` is as in ``psum``. With groups, ``axis`` has the extent of a
    group. Other extents raise ShapeError.
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


def all_to_all(
    x: Any,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Groups | None = None,
    tiled: bool = False,
) -> Any:
    """Split x along ``split_axis``, and send part k to member k.

    Each member stacks the parts that it receives along ``concat_axis``, in the order of
    their senders. Without ``tiled``, the extent of ``split_axis`` is the number of
    members, and this axis is removed. With ``tiled``, the parts are concatenated, and
    the extent of ``split_axis`` is a multiple of the number of members. Other extents
    raise ShapeError. The members of several axes are in row-major order.
    ``axis_index_groups`` is as in ``psum``. With groups, the parts go to the members of
    a group.
    """
    names = names_in(axis_name)
    group = _group("all_to_all", axis_name, axis_index_groups)

    def received(leaf: Any) -> Any:
        """Return the parts that this member receives, stacked along a new axis 0."""
        if group is not None:
            cut = _parts("all_to_all", leaf, split_axis, [group.size], tiled)
            # Axis 0 of the stack counts the senders, and axis 1 the receivers.
            return group.mine(_of_group(group, cut, axis_name), axis=1)
        sizes = [_axis("all_to_all", name).size for name in names]
        cut = _parts("all_to_all", leaf, split_axis, sizes, tiled)
        # Leading axis k of ``cut`` counts the receivers along named axis k. An exchange
        # along that named axis turns it into an axis that counts the senders.
        for place, name in enumerate(names):
            named = _axis("all_to_all", name)
            parts = anp.moveaxis(cut, place, 0)
            parts = _over(collectives.all_to_all, parts, name, named)
            cut = anp.moveaxis(parts, 0, place)
        for _ in names[1:]:
            cut = _merged(cut, 0)
        return cut

    def exchanged(leaf: Any) -> Any:
        """Return the received parts along ``concat_axis``, stacked or concatenated."""
        place = concat_axis % anp.ndim(leaf)
        stacked = anp.moveaxis(received(leaf), 0, place)
        return _merged(stacked, place) if tiled else stacked

    return tree.map(exchanged, x)


def pvary(x: Any, axis_name: AxisName) -> Any:
    """Mark x, or each leaf of a pytree, as varying over the members of a mesh axis.

    The values do not change. The derivative of x is the sum of the members'
    derivatives. Inside ``shard_map``, an operation on an invariant and a varying value
    marks the invariant value implicitly. Values that already vary, and axes of
    ``vmap``, are not changed.
    """

    def marked(leaf: Any) -> Any:
        """Mark one leaf as varying along each of the named axes."""
        for name in names_in(axis_name):
            leaf = _varying(leaf, name, _axis("pvary", name))
        return leaf

    return tree.map(marked, x)


def pcast(x: Any, axis_name: AxisName, *, to: str) -> Any:
    """Mark x as varying over the members of a mesh axis, as ``pvary`` does.

    ``to`` must be "varying". Raises ArgumentError for other values, because only a
    collective, such as ``psum``, makes a value the same for all members.
    """
    if to != "varying":
        raise ArgumentError(
            f"pcast: to must be 'varying', not {to!r}; psum, pmax and other "
            "collectives give a value that is the same for all members",
            user_location(),
        )
    return pvary(x, axis_name)


def _axis(function: str, name: str) -> NamedAxis:
    """Return the named axis ``name`` of an enclosing ``vmap`` or ``shard_map``.

    Raises ArgumentError if there is none. ``function`` is the caller's name, for the
    error.
    """
    frame = current_frame()
    axis = None if frame is None else frame.named_axis(name)
    if axis is None:
        known = [] if frame is None else frame.axis_names()
        there = ", ".join(map(repr, known)) if known else "none"
        raise ArgumentError(
            f"{function}: no function that this is part of is mapped along an axis "
            f"called {name!r} (named axes here: {there}); map it with "
            f"vmap(f, axis_name={name!r}), or over a mesh with shard_map",
            user_location(),
        )
    return axis


def _over(
    primitive: Primitive, x: Any, name: str, axis: NamedAxis, **params: Any
) -> Any:
    """Apply the collective ``primitive`` to x along the axis ``name``.

    x is an array or a Python number, and is first marked as varying along the axis.
    ``params`` are the other parameters of the primitive.
    """
    if dtypes.is_python_scalar(x):
        x = conversion.literal(x, dtypes.weak_dtype(x))
    if primitive is not collectives.all_reduce:
        # The type rules of other collectives need the number of members.
        params["members"] = axis.size
    return apply(primitive, _varying(x, name, axis), axis_name=name, **params)


def _varying(x: Any, name: str, axis: NamedAxis) -> Any:
    """Mark x as varying along the axis ``name``, unless it is already marked.

    Only a mesh axis that is ``typed`` needs the mark. For others, x is returned
    unchanged.
    """
    if not axis.typed or (isinstance(x, Tracer) and name in x.type.varying):
        return x
    return apply(collectives.pvary, x, axis_name=name)


def _group(function: str, axis_name: AxisName, groups: Groups | None) -> Group | None:
    """Return this member's group of ``axis_index_groups``, or None without groups.

    Members of several axes are numbered in row-major order. Errors name ``function``.
    """
    if groups is None:
        return None
    return Group(function, axis_size(axis_name), axis_index(axis_name), groups)


def _sum_of_group(group: Group, leaf: Any, axis_name: AxisName) -> Any:
    """Sum ``leaf`` over the members of ``group``, in its own dtype; bools as int64."""
    dtype = None if leaf.dtype == dtypes.bool_ else leaf.dtype
    return anp.sum(_of_group(group, leaf, axis_name), 0, dtype=dtype)


def _of_all(leaf: Any, names: Sequence[str]) -> Any:
    """Return the values of all members along the named axes, along a new axis 0.

    The members of several axes are in row-major order.
    """
    values = leaf
    # Each all_gather adds a leading axis; the first name comes last, and so in front.
    for name in reversed(names):
        values = _over(collectives.all_gather, values, name, _axis("all_gather", name))
    for _ in names[1:]:
        values = _merged(values, 0)
    return values


def _of_group(group: Group, leaf: Any, axis_name: AxisName) -> Any:
    """Return the leaves of the members of ``group``, stacked along a new axis 0."""
    return group.own(_of_all(leaf, names_in(axis_name)))


def _extremum(
    op: str, x: Any, axis_name: AxisName, groups: Groups | None = None
) -> Any:
    """Return the maximum (``op`` "max") or minimum ("min") of each leaf over members.

    With ``groups``, only this member's group counts (see ``psum``).
    """
    group = _group(f"p{op}", axis_name, groups)
    if group is not None:
        reduce = anp.max if op == "max" else anp.min
        return tree.map(lambda leaf: reduce(_of_group(group, leaf, axis_name), 0), x)

    def combined(leaf: Any) -> Any:
        """Reduce one leaf over one axis after another.

        A leaf that is not traced is the same for all members, and is returned
        unchanged.
        """
        for name in names_in(axis_name):
            axis = _axis(f"p{op}", name)
            if isinstance(leaf, Tracer):
                leaf = _over(collectives.all_reduce, leaf, name, axis, op=op)
        return leaf

    return tree.map(combined, x)


def _parts(function: str, x: Any, axis: int, sizes: Sequence[int], tiled: bool) -> Any:
    """Cut x along ``axis`` into parts, which new leading axes of the result count.

    ``sizes`` are the numbers of parts, one for each named axis. The result has shape
    (*sizes, ...). Without ``tiled`` a part has one element, and ``axis`` is removed.
    With ``tiled``, ``axis`` keeps extent / prod(sizes) elements. Raises ShapeError,
    about ``function``, if the extent does not allow this.
    """
    shape = anp.shape(x)
    axis %= len(shape)
    extent = shape[axis]
    size = math.prod(sizes)
    if extent % size if tiled else extent != size:
        wanted = f"a multiple of {size}" if tiled else str(size)
        raise ShapeError(
            f"{function}: axis {axis} of shape {shape} must have {wanted} elements, "
            "one part for each member",
            user_location(),
        )
    part_extent = [extent // size] if tiled else []
    split = (*shape[:axis], *sizes, *part_extent, *shape[axis + 1 :])
    places = range(len(sizes))
    parts = anp.reshape(x, split) if split != shape else x
    return anp.moveaxis(parts, [axis + k for k in places], list(places))


def _merged(x: Any, axis: int) -> Any:
    """Reshape x so that ``axis`` and the next axis become one."""
    shape = anp.shape(x)
    joined = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    return anp.reshape(x, joined)
