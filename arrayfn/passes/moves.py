"""Moving an array over a mesh from one spec to another: the equations that do it.

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
    """``x``, a device's part by spec ``have``, as its part by spec ``want``.

    ``indices`` are the device's along the axes of the mesh, of these ``sizes``.
    """
    now = list(have)
    while now != list(want):
        taken = {axis for entry in now for axis in entry}
        cut = _next_cut(now, want, taken)
        if cut is not None:
            dim, axis = cut
            x = _part(x, dim, indices[axis], sizes[axis])
            now[dim] = (*now[dim], axis)
            continue
        dim = next(d for d, e in enumerate(now) if want[d][: len(e)] != e)
        axis = now[dim][-1]
        now[dim] = now[dim][:-1]
        to = _target(axis, now, want)
        if to is None:
            x = _gathered(x, dim, axis, sizes[axis])
        else:
            x = _exchanged(x, dim, to, axis, sizes[axis])
            now[to] = (*now[to], axis)
    return x


def scattered(x: Atom, dim: int, axis: str, count: int) -> Atom:
    """The device's part along ``dim`` of the sum over ``axis`` of all ``x``."""
    return reduce_scatter(_split(x, dim, count), axis_name=axis, members=count)


def _next_cut(
    now: Sequence[Entry], want: Spec, taken: set[str]
) -> tuple[int, str] | None:
    """An axis of the array that a mesh axis can cut at once, and that mesh axis."""
    for dim, (have, wanted) in enumerate(zip(now, want, strict=True)):
        if wanted[: len(have)] == have and len(wanted) > len(have):
            axis = wanted[len(have)]
            if axis not in taken:
                return dim, axis
    return None


def _target(axis: str, now: Sequence[Entry], want: Spec) -> int | None:
    """The axis of the array that ``axis`` cuts next, if it is ready for that."""
    for dim, (have, wanted) in enumerate(zip(now, want, strict=True)):
        if wanted[: len(have) + 1] == (*have, axis):
            return dim
    return None


def _part(x: Atom, dim: int, index: Atom, count: int) -> Atom:
    shape = x.type.shape
    extent = shape[dim] // count
    zero = conversion.literal(0, dtypes.int32)
    starts: list[Atom] = [zero] * len(shape)
    starts[dim] = e.mul(index, extent)
    sizes = (*shape[:dim], extent, *shape[dim + 1 :])
    return dynamic_slice(x, *starts, sizes=sizes)


def _gathered(x: Atom, dim: int, axis: str, count: int) -> Atom:
    parts = all_gather(x, axis_name=axis, members=count)
    return _merged(move_axis(parts, 0, dim), dim)


def _exchanged(x: Atom, dim: int, to: int, axis: str, count: int) -> Atom:
    """``x`` cut along ``to`` instead of ``dim``."""
    parts = _split(x, to, count)
    received = all_to_all(parts, axis_name=axis, members=count)
    return _merged(move_axis(received, 0, dim), dim)


def _split(x: Atom, dim: int, count: int) -> Atom:
    """``x`` in ``count`` parts along ``dim``, stacked along a new first axis."""
    shape = x.type.shape
    split = (*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :])
    return move_axis(views.reshape(x, shape=split), dim, 0)


def _merged(x: Atom, dim: int) -> Atom:
    """``x`` with ``dim`` and the axis after it merged."""
    shape = x.type.shape
    joined = (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
    return views.reshape(x, shape=joined)
