"""Moves an array over a mesh from one spec to another: the equations that do it.

Cutting an axis costs nothing: each device takes its part of what it has. A mesh axis
that leaves one axis of the array for another is an ``all_to_all``, which moves the
device's part once; a mesh axis that leaves is an ``all_gather``. Axes are cut before
others are gathered, so that less is moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from arrayfn import dtypes
from arrayfn.ir import Atom
from arrayfn.ir.sharding import Entry
from arrayfn.primitives import conversion, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.collectives import all_gather, all_to_all, reduce_scatter
from arrayfn.primitives.dynamic_slices import dynamic_slice
from arrayfn.primitives.emitters import move_axis

Spec = tuple[Entry, ...]


def moved(
    x: Atom,
    have: Spec,
    want: Spec,
    indices: Mapping[str, Atom],
    sizes: Mapping[str, int],
) -> Atom:
    """Change a device's part ``x`` from the spec ``have`` to the spec ``want``.

    Collectives move the data. ``indices`` are the device's indices along the axes of
    the mesh, which have ``sizes``. A spec has, for each axis of the array, the mesh
    axes that cut it. From ``(("i",), ())`` to ``((), ("i",))`` takes one all_to_all,
    and from ``(("i",), ())`` to ``((), ())`` an all_gather.
    """
    spec = list(have)
    while spec != list(want):
        used_axes = {axis for entry in spec for axis in entry}
        cut = _next_cut(spec, want, used_axes)
        if cut is not None:
            dim, axis = cut
            x = _own_part(x, dim, indices[axis], sizes[axis])
            spec[dim] = (*spec[dim], axis)
            continue
        # Take the last cut from an axis that ``want`` cuts in another way.
        dim = next(d for d, e in enumerate(spec) if want[d][: len(e)] != e)
        axis = spec[dim][-1]
        spec[dim] = spec[dim][:-1]
        target = _array_axis_for(axis, spec, want)
        if target is None:
            x = _gathered(x, dim, axis, sizes[axis])
        else:
            x = _exchanged(x, dim, target, axis, sizes[axis])
            spec[target] = (*spec[target], axis)
    return x


def scattered(x: Atom, dim: int, axis: str, count: int) -> Atom:
    """Emit a reduce_scatter of ``x``: the device's part of the sum, along ``dim``.

    The sum is over the ``count`` members along mesh axis ``axis``.
    """
    return reduce_scatter(split(x, dim, count), axis_name=axis, members=count)


def split(x: Atom, dim: int, count: int) -> Atom:
    """Return ``x`` in ``count`` parts along ``dim``, stacked along a new first axis."""
    shape = x.type.shape
    in_parts = (*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :])
    return move_axis(views.reshape(x, shape=in_parts), dim, 0)


def joined(x: Atom, dim: int) -> Atom:
    """Put the parts along axis 0 of ``x`` together along ``dim``: undo ``split``."""
    count, *shape = x.type.shape
    shape[dim] *= count
    return views.reshape(move_axis(x, 0, dim), shape=tuple(shape))


def _next_cut(
    spec: Sequence[Entry], want: Spec, used_axes: set[str]
) -> tuple[int, str] | None:
    """Return the next ``(array axis, mesh axis)`` to cut on the way to ``want``.

    ``spec`` and ``want`` have, for each axis of the array, the mesh axes that cut it.
    ``used_axes`` are the mesh axes that cut the array already: they cannot cut another
    axis. None if no cut is possible.
    """
    for dim, (entry, target) in enumerate(zip(spec, want, strict=True)):
        if target[: len(entry)] == entry and len(target) > len(entry):
            axis = target[len(entry)]
            if axis not in used_axes:
                return dim, axis
    return None


def _array_axis_for(axis: str, spec: Sequence[Entry], want: Spec) -> int | None:
    """Return the array axis whose next cut, on the way to ``want``, is by ``axis``.

    ``spec`` has the present cuts. None if there is no such array axis.
    """
    for dim, (entry, target) in enumerate(zip(spec, want, strict=True)):
        if target[: len(entry) + 1] == (*entry, axis):
            return dim
    return None


def _own_part(x: Atom, dim: int, index: Atom, count: int) -> Atom:
    """Emit the device's part of ``x``: number ``index`` of ``count`` along ``dim``."""
    shape = x.type.shape
    extent = shape[dim] // count
    zero = conversion.literal(0, dtypes.int32)
    starts: list[Atom] = [zero] * len(shape)
    starts[dim] = e.mul(index, extent)
    sizes = (*shape[:dim], extent, *shape[dim + 1 :])
    return dynamic_slice(x, *starts, sizes=sizes)


def _gathered(x: Atom, dim: int, axis: str, count: int) -> Atom:
    """Emit an all_gather: the parts of ``count`` devices joined along ``dim``."""
    parts = all_gather(x, axis_name=axis, members=count)
    return joined(parts, dim)


def _exchanged(x: Atom, dim: int, target: int, axis: str, count: int) -> Atom:
    """Emit an all_to_all, after which ``x`` is cut along ``target`` instead of ``dim``.

    It is over the ``count`` members along mesh axis ``axis``. With 2 members, parts of
    shape (2, 8), cut along axis 0, become parts of shape (4, 4), cut along axis 1.
    """
    parts = split(x, target, count)
    received = all_to_all(parts, axis_name=axis, members=count)
    return joined(received, dim)
