"""Donated arguments: results that are the arguments' own arrays, written over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arrayfn.backends.cpu.executable import Executable
from arrayfn.errors import ArgumentError, user_location


@dataclass(frozen=True, slots=True)
class DonatingExecutable:
    """``executable``, some of whose outputs are its inputs' arrays.

    ``donors`` gives such an output's number the number of its input.
    """

    executable: Executable
    donors: Mapping[int, int]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run; a donated input's array is overwritten, and is the result."""
        outputs: list[Any] = []
        for number, type in enumerate(self.executable.output_types):
            donor = self.donors.get(number)
            if donor is None:
                outputs.append(np.empty(type.shape, type.dtype))
                continue
            array = inputs[donor]
            if not isinstance(array, np.ndarray) or not array.flags.writeable:
                raise ArgumentError(
                    f"argument {donor} is donated, but cannot be written over; pass a "
                    "writable array, or do not name it in donate_argnums",
                    user_location(),
                )
            outputs.append(array)
        mismatch = self.executable.call_into(*inputs, *outputs)
        if mismatch:
            raise ArgumentError(self.executable.mismatch(inputs, mismatch - 1))
        return outputs
