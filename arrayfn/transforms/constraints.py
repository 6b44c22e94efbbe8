"""Constraints on how values lie over a mesh, inside functions that are traced."""

from __future__ import annotations

import functools
from typing import Any

from arrayfn import tree
from arrayfn.errors import ArgumentError, plural, user_location
from arrayfn.ir import NamedSharding
from arrayfn.primitives.reshard import reshard
from arrayfn.tracing import apply
from arrayfn.tracing.meshes import axes_around, over_mesh
from arrayfn.transforms.arguments import Function


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Cut x, an array or a pytree of them, over the devices of a mesh.

    ``shardings`` is a NamedSharding, or a pytree prefix of x with one for each leaf.
    None does not constrain a leaf. A PartitionSpec refers to the mesh of ``set_mesh``.
    The rest of the function is computed on the parts, as far as the primitives allow.
    Values do not change.

    Raises ShapeError if an extent is not a multiple of the number of parts. Raises
    ArgumentError for an axis that an enclosing ``shard_map`` has cut.

    >>> import numpy as np
    >>> from arrayfn import Mesh, PartitionSpec as P, jit, set_num_devices
    >>> set_num_devices(8)
    >>> rows = NamedSharding(Mesh((2,), ("x",)), P("x"))
    >>> f = jit(lambda x: with_sharding_constraint(x, rows) + 1.0)
    >>> f(np.zeros(4)).sharding.spec
    P('x')
    """
    return constrained("with_sharding_constraint", x, shardings)


def constrained(what: str, x: Any, shardings: Any) -> Any:
    """Constrain each leaf of ``x`` that has a sharding.

    ``shardings`` is a pytree of NamedShardings, PartitionSpecs and Nones, a prefix of
    ``x``. ``what`` is the name of the parameter, for messages.
    """
    if shardings is None:
        return x
    leaves, structure = tree.flatten(x)
    try:
        spread = tree.broadcast_prefix(shardings, x)
    except ValueError as error:
        raise ArgumentError(
            f"{what}: {shardings} is not a prefix of {tree.text_of(structure)}",
            user_location(),
        ) from error
    around, _ = axes_around()
    results: list[Any] = []
    for leaf, sharding_or_spec in zip(leaves, spread, strict=True):
        sharding = over_mesh(what, sharding_or_spec)
        if sharding is None:
            results.append(leaf)
            continue
        if not isinstance(sharding, NamedSharding):
            raise ArgumentError(
                f"{what} takes NamedShardings, not {sharding!r}; write "
                "NamedSharding(mesh, P(...))",
                user_location(),
            )
        for name in sharding.spec.axes():
            if name in around:
                raise ArgumentError(
                    f"{what}: {sharding.spec!r} names {name!r}, along which a "
                    "shard_map around has cut; name axes that its axis_names leaves "
                    "out",
                    user_location(),
                )
        results.append(apply(reshard, leaf, mesh=sharding.mesh, spec=sharding.spec))
    return tree.unflatten(structure, results)


def with_shardings(
    function: Function, in_shardings: Any, out_shardings: Any
) -> Function:
    """Wrap ``function`` to constrain its positional arguments and its result.

    ``in_shardings`` is one sharding for all arguments, or a tuple with an entry for
    each; ``out_shardings`` is a prefix of the result's pytree.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Constrain the arguments, call the function, constrain the result."""
        each = in_shardings
        if not isinstance(each, (tuple, list)):
            each = (each,) * len(args)
        if len(each) != len(args):
            raise ArgumentError(
                f"in_shardings has {plural(len(each), 'entry')}, but there are "
                f"{len(args)} positional arguments",
                user_location(),
            )
        arguments = [
            constrained("in_shardings", argument, sharding)
            for argument, sharding in zip(args, each, strict=True)
        ]
        return constrained(
            "out_shardings", function(*arguments, **kwargs), out_shardings
        )

    return wrapper
