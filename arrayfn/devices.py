"""Moves arrays to a device's memory and back to the host's."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn import tree
from arrayfn.backends.cuda import DeviceArray
from arrayfn.backends.registry import choose


def device_put(x: Any, device: str = "cuda") -> Any:
    """``x`` in the memory of ``device``: an array or number, or a pytree of them.

    On "cuda" arrays keep their layout. Arrays of other libraries that are on the GPU
    already are not copied. On "cpu" the results are NumPy arrays.

    Raises BackendError if there is no such device here.

    >>> device_put([1.0, np.arange(2)], "cpu")
    [array(1.), array([0, 1])]
    """
    return tree.map(choose(device).put, x)


def device_get(x: Any) -> Any:
    """``x``, an array or a pytree of them, as NumPy arrays on the host.

    >>> device_get((np.arange(2),))
    (array([0, 1]),)
    """
    return tree.map(np.asarray, x)


def block_until_ready(x: Any) -> Any:
    """``x``, an array or a pytree of them, once it is computed.

    A call may return before a device has finished; NumPy arrays are always complete.

    >>> block_until_ready({"a": np.arange(2)})
    {'a': array([0, 1])}
    """
    for leaf in tree.leaves(x):
        if isinstance(leaf, DeviceArray):
            leaf.block_until_ready()
    return x
