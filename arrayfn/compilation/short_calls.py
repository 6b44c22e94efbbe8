"""Shortcuts for calling an executable again, without leaf checks, key and lookup.

An executable checks itself whether its inputs fit. If they do not, it returns an
``int`` and has run nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_, itemgetter
from typing import Any, Final

from arrayfn import tree
from arrayfn.tracing import ArrayOnDevice

Call = Callable[..., Any]
MISMATCH: Final = 1
"""The result of a call whose arguments do not fit: an ``int``."""


def is_flat(args: Sequence[Any], leaves: Sequence[Any]) -> bool:
    """Whether the arguments are no containers, but arrays and numbers."""
    return len(args) == len(leaves) and all(map(is_, args, leaves))


def gives_tuple(out_tree: tree.TreeDef) -> bool:
    """Whether the result is a plain tuple of arrays."""
    return out_tree == tree.structure((0,) * out_tree.num_leaves)


def structure_shortcut(
    call: Call,
    in_order: tree.TreeDef,
    positions: Sequence[int],
    out_tree: tree.TreeDef | None,
) -> Call:
    """Return a shortcut for calls with arguments of one structure.

    It returns ``MISMATCH`` for arguments of another structure, also if the keys of a
    dict have another order.

    ``call`` takes the leaves of ``tree.flatten``, which are at ``positions`` among
    those of ``tree.flatten_in_order``; ``in_order`` is the structure that the latter
    gives. The results of ``call`` are the leaves of ``out_tree``; without one they are
    returned as they are.

    >>> _, in_order = tree.flatten_in_order(((0,), {"k": 0}))
    >>> by_name = structure_shortcut(lambda a, b: (a, b), in_order, [0, 1], None)
    >>> by_name((5,), {"k": 6}), by_name((5, 6), {})
    ((5, 6), 1)
    """
    pick = None if positions == list(range(len(positions))) else itemgetter(*positions)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Check the structure, call on the leaves, and rebuild the results."""
        leaves, structure = tree.flatten_in_order((args, kwargs))
        if structure != in_order:
            return MISMATCH
        result = call(*(leaves if pick is None else pick(leaves)))
        # An int is no result, but says that nothing was run, as MISMATCH does.
        if out_tree is None or type(result) is int:
            return result
        return tree.unflatten(out_tree, result)

    return run


def device_shortcut(call: Call) -> Call:
    """Return a shortcut that calls ``call`` only if an argument is on a device.

    It returns ``MISMATCH`` for NumPy arrays only, which another backend computes.
    """

    def run(*args: Any) -> Any:
        """Call if an argument is on a device."""
        on_device = any(isinstance(x, ArrayOnDevice) for x in args)
        return call(*args) if on_device else MISMATCH

    return run
