"""Arrays that code may change: ``new_ref``, ``Ref`` and ``freeze``."""

from __future__ import annotations

from typing import Any

import numpy as np

from arrayfn.tracing import ImmutableArray
from arrayfn.tracing.references import Ref
from arrayfn.tracing.staging import constant
from arrayfn.transforms.arguments import check_leaf, leaf_type

__all__ = ["Ref", "empty_ref", "freeze", "new_ref"]


def new_ref(init_val: Any, *, memory_space: None = None, kind: None = None) -> Ref:
    """Return a Ref: a reference to an array that can be written to.

    The array is at first ``init_val``. ``ref[...]`` reads it, and ``ref[i] = y`` and
    ``ref[...] += y`` write to it. In a traced function a Ref stands for updates of a
    value, so derivatives, ``vmap`` and compilation work through them. Bodies of loops
    and branches may write to Refs that were made outside of them. Jitted functions that
    are called while tracing may also write to them. The values of these Refs are then
    passed in and out. A jitted function takes Refs as arguments, and writes to them.

    A Ref is not a value: a function cannot return it, take it twice, or use it after
    the function that made it has returned. ``memory_space`` and ``kind`` are parameters
    of JAX, and must be None. Raises ArgumentError if ``init_val`` is neither an array
    nor a number.

    >>> import numpy as np
    >>> from arrayfn.compilation.jit import jit
    >>> @jit
    ... def count(x):
    ...     total = new_ref(0.0)
    ...     for k in range(3):
    ...         total[...] += x[k]
    ...     return total[...]
    >>> count(np.arange(3.0))
    array(3.)
    """
    if isinstance(init_val, ImmutableArray):
        return Ref(init_val)
    check_leaf(init_val, "new_ref: init_val")
    return Ref(constant(np.array(init_val, order="C")))


def empty_ref(ty: Any, memory_space: None = None) -> Ref:
    """A Ref of zeros, with the shape and dtype of ``ty``, an array or ShapeDtypeStruct.

    >>> import numpy as np
    >>> empty_ref(np.ones(2))[...]
    array([0., 0.])
    """
    type = leaf_type(ty)
    return new_ref(np.zeros(type.shape, type.dtype))


def freeze(ref: Ref) -> Any:
    """Return the value of ``ref``, which must not be used afterwards.

    >>> freeze(new_ref(2.0))
    array(2.)
    """
    return ref.get()
