"""Pointers of un-jitted kernels: an array of NumPy's, and an offset into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Pointer:
    """A pointer into an array: ``pointer[k]`` is ``k`` elements after it.

    ``k`` may be negative. Indices outside the memory raise IndexError.
    """

    def __init__(self, memory: Array, begin: int) -> None:
        self.memory = memory
        self.begin = begin

    def _checked(self, index: int) -> int:
        """Return the position of element ``index`` in ``memory``.

        Raises IndexError if the position is outside of ``memory``.
        """
        position = self.begin + int(index)
        if not 0 <= position < self.memory.size:
            raise IndexError(
                f"element {index} of a pointer to element {self.begin} of "
                f"{self.memory.size}"
            )
        return position

    def __getitem__(self, index: int) -> Any:
        return self.memory[self._checked(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self.memory[self._checked(index)] = value

    def array(
        self, shape: Sequence[int], strides: Sequence[int] | None = None
    ) -> Array:
        """Return a writable view of the memory from this address on, of ``shape``.

        ``strides`` are in elements; without them the array is row-major. Raises
        IndexError if an element of the array would lie outside of ``memory``.
        """
        if strides is None:
            strides = [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
        if 0 not in shape:
            # Check the lowest and the highest element; strides may be negative.
            ends = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
            self._checked(sum(min(end, 0) for end in ends))
            self._checked(sum(max(end, 0) for end in ends))
        size = self.memory.itemsize
        return np.lib.stride_tricks.as_strided(
            self.memory[self.begin :], shape, [step * size for step in strides]
        )
