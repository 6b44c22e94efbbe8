"""Functions mapped over devices by axes of arrays: ``smap`` and ``pmap``."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from arrayfn import tree
from arrayfn.errors import ArgumentError, ShapeError, plural, user_location
from arrayfn.ir import Mesh, PartitionSpec
from arrayfn.transforms.arguments import (
    Function,
    check_function,
    is_one,
    leaf_type,
    shown_name,
)
from arrayfn.transforms.shard_map import shard_map


def smap(
    f: Function | None = None,
    /,
    *,
    in_axes: Any,
    out_axes: Any,
    axis_name: str,
) -> Any:
    """Run ``f`` on the devices along one axis of the mesh of ``set_mesh``.

    ``smap`` is ``shard_map`` with axes instead of specs. ``in_axes`` is the axis that
    is cut along ``axis_name``, or None if all devices get the whole argument. It is one
    value for all positional arguments, or a tuple with one for each. ``out_axes`` is
    the axis of the result. Both may be pytree prefixes.

    >>> from arrayfn import lax, set_mesh, set_num_devices
    >>> set_num_devices(8)
    >>> total = smap(
    ...     lambda x: lax.psum(x, "x"), in_axes=0, out_axes=None, axis_name="x"
    ... )
    >>> with set_mesh(Mesh((2, 2), ("x", "y"))):
    ...     np.asarray(total(np.array([1.0, 2.0])))
    array([3.])
    """
    if f is None:
        return functools.partial(
            smap, in_axes=in_axes, out_axes=out_axes, axis_name=axis_name
        )
    if not isinstance(axis_name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(
            f"smap: axis_name is the name of one axis, not {axis_name!r}; shard_map "
            "takes several",
            user_location(),
        )

    def spec(axis: Any) -> PartitionSpec:
        """Return the PartitionSpec that cuts ``axis`` along the mesh axis."""
        if axis is None:
            return PartitionSpec()
        if isinstance(axis, bool) or not is_one(axis) or axis < 0:
            raise ArgumentError(
                f"smap: an axis is None or an integer from 0 on, not {axis!r}",
                user_location(),
            )
        return _along(axis, axis_name)

    def is_none(axis: Any) -> bool:
        """Whether ``axis`` is None, which pytrees would take for an empty tree."""
        return axis is None

    return shard_map(
        f,
        in_specs=tree.map(spec, in_axes, is_leaf=is_none),
        out_specs=tree.map(spec, out_axes, is_leaf=is_none),
        axis_names=(axis_name,),
    )


def pmap(
    fun: Function,
    axis_name: str | None = None,
    *,
    in_axes: Any = 0,
    out_axes: int = 0,
) -> Function:
    """Map ``fun`` along an axis of its arguments, with one device for each member.

    ``pmap`` is ``vmap`` over devices. The mapped extent is the number of devices that
    are used. ``in_axes`` has, for each positional argument, the mapped axis, or None if
    all devices get the same value. Keyword arguments are mapped along axis 0.
    ``out_axes`` is the mapped axis of the results. Collectives work along ``axis_name``
    (by default ``"devices"``). Derivatives are not summed over the devices.

    >>> from arrayfn import lax
    >>> np.asarray(pmap(lambda x: x - lax.pmean(x, "devices"))(np.array([1.0])))
    array([0.])
    """
    check_function("pmap", fun)
    if isinstance(in_axes, bool):
        raise ArgumentError(
            "pmap: in_axes must be an integer, None, or a tuple of them, not "
            f"{in_axes}",
            user_location(),
        )
    name = "devices" if axis_name is None else axis_name

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Run the function on the devices, by ``shard_map`` over a mesh of one axis.

        Keyword arguments become positional ones, with the mapped axis 0.
        """
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        if len(axes) != len(args):
            raise ArgumentError(
                f"pmap: in_axes has {plural(len(axes), 'entry')}, but "
                f"{shown_name(fun)} was called with {plural(len(args), 'argument')}",
                user_location(),
            )
        # Keyword arguments are passed by position from here on.
        count, names = len(args), list(kwargs)
        args, axes = (*args, *kwargs.values()), (*axes, *[0] * len(names))
        sizes = {
            leaf_type(leaf).shape[axis]
            for argument, axis in zip(args, axes, strict=True)
            for leaf in tree.leaves(argument)
            if axis is not None
        }
        if len(sizes) != 1:
            raise ShapeError(
                f"pmap of {shown_name(fun)}: the mapped extents are "
                f"{sorted(sizes) or 'missing'}, but all are the number of devices",
                user_location(),
            )

        def spec(axis: int | None) -> PartitionSpec:
            """Return the PartitionSpec that cuts ``axis`` over the devices."""
            return PartitionSpec() if axis is None else _along(axis, name)

        def member(*parts: Any) -> Any:
            """Call ``fun`` on one member's parts, whose mapped axes have extent 1.

            These axes are removed from arguments, and ``out_axes`` is added to results.
            """
            own = [
                part
                if axis is None
                else tree.map(lambda x, axis=axis: x.squeeze(axis), part)
                for part, axis in zip(parts, axes, strict=True)
            ]
            by_name = dict(zip(names, own[count:], strict=True))
            result = fun(*own[:count], **by_name)
            return tree.map(lambda y: _expanded(y, out_axes), result)

        return shard_map(
            functools.wraps(fun)(member),
            mesh=Mesh((sizes.pop(),), (name,)),
            in_specs=tuple(spec(axis) for axis in axes),
            out_specs=_along(out_axes, name),
            check_vma=False,
        )(*args)

    return wrapper


def _along(axis: int, name: str) -> PartitionSpec:
    """Return the PartitionSpec that cuts axis ``axis`` along the mesh axis ``name``."""
    return PartitionSpec(*[None] * axis, name)


def _expanded(y: Any, axis: int) -> Any:
    """Insert an axis of extent 1 into ``y``, an array or a number, at ``axis``."""
    shape = leaf_type(y).shape
    wider = (*shape[:axis], 1, *shape[axis:])
    return y.reshape(wider) if hasattr(y, "reshape") else np.full(wider, y)
