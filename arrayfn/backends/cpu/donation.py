"""Donated arguments: results that are the arguments' own arrays, written over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arrayfn.backends.cpu.executable import Executable
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import in_place


@dataclass(frozen=True, slots=True)
class DonatingExecutable:
    """Runs ``executable``, and writes some of its outputs into donated inputs.

    ``donors`` maps the number of such an output to that of its input.
    """

    executable: Executable
    donors: Mapping[int, int]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on ``inputs``; the array of a donated input becomes the result.

        A number, a view, or an array that overlaps another argument is copied instead.
        """
        outputs: list[Any] = []
        for number, type in enumerate(self.executable.output_types):
            donor = self.donors.get(number)
            if donor is None:
                outputs.append(np.empty(type.shape, type.dtype))
            elif _can_be_written(inputs, donor):
                outputs.append(inputs[donor])
            else:
                outputs.append(np.array(inputs[donor], type.dtype, order="C"))
        mismatch = self.executable.call_into(*inputs, *outputs)
        if mismatch:
            readable = [in_place(x) for x in inputs]
            if any(x is not y for x, y in zip(inputs, readable, strict=True)):
                return self(readable)
            raise ArgumentError(self.executable.mismatch(inputs, mismatch - 1))
        return outputs


def _can_be_written(inputs: Sequence[Any], donor: int) -> bool:
    """Whether the result may be written to the array of input ``donor``.

    A view is not, nor is an array that overlaps another input. Raises ArgumentError for
    a read-only array.
    """
    array = inputs[donor]
    if not isinstance(array, np.ndarray) or array.base is not None:
        return False
    if not array.flags.writeable:
        raise ArgumentError(
            f"argument {donor} is donated, but is read-only; pass a writable array, or "
            "do not name it in donate_argnums",
            user_location(),
        )
    return not any(
        np.may_share_memory(array, other)
        for number, other in enumerate(inputs)
        if number != donor and isinstance(other, np.ndarray)
    )
