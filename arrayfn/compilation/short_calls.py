"""Shortcuts for calling an executable again, without leaf checks, key and lookup.

An executable checks itself whether its inputs fit. If they do not, it returns an
``int`` and has run nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
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
    call: Call, structure: tree.TreeDef, out_tree: tree.TreeDef | None
) -> Call:
    """Return a shortcut for calls with arguments of one structure.

    It returns ``MISMATCH`` for arguments of another structure.

    ``call`` takes their leaves. Its results are the leaves of ``out_tree``; without one
    they are returned as they are.

    >>> structure = tree.structure(((0,), {"k": 0}))
    >>> by_name = structure_shortcut(lambda a, b: (a, b), structure, None)
    >>> by_name((5,), {"k": 6}), by_name((5, 6), {})
    ((5, 6), 1)
    """

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Check the structure, call on the leaves, and rebuild the results."""
        leaves, arguments_structure = tree.flatten((args, kwargs))
        if arguments_structure != structure:
            return MISMATCH
        result = call(*leaves)
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
