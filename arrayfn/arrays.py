"""What is an array here: ``Array`` for annotations and isinstance, and ``typeof``."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from arrayfn.ir import ArrayType
from arrayfn.tracing import ImmutableArray
from arrayfn.transforms.arguments import check_leaf, leaf_type

if TYPE_CHECKING:
    Array: TypeAlias = np.ndarray[Any, Any]
else:

    class Array(ABC):  # noqa: B024 - its instances are others'
        """The class of all arrays: NumPy's, those on a device, and traced arrays.

        Use the class for ``isinstance`` and annotations. You cannot call it to make an
        array. Type checkers see NumPy's class.

        >>> isinstance(np.ones(2), Array), isinstance(1.0, Array)
        (True, False)
        >>> from arrayfn.compilation.jit import jit
        >>> jit(lambda x: x + isinstance(x, Array))(np.ones(2))
        array([2., 2.])
        """

        def __init__(self) -> None:
            """Raise TypeError: nobody calls this class."""
            raise TypeError(
                "Array cannot be called to make an array; write "
                "arrayfn.numpy.asarray(...)"
            )

    Array.register(np.ndarray)
    Array.register(ImmutableArray)


def typeof(x: Any) -> ArrayType:
    """Return the type of ``x``: its shape, dtype and layout.

    x is an array or number, which may be traced. Raises ArgumentError for other values.

    >>> str(typeof(np.ones((2, 3), np.float32)))
    'f32[2,3]'
    """
    check_leaf(x, "typeof: x")
    return leaf_type(x)
