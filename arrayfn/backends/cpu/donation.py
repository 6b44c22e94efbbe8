"""Donated arguments: results that are the arguments' own arrays, written over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arrayfn.backends.cpu.executable import Executable
from arrayfn.errors import ArgumentError, user_location
from arrayfn.records import frozen


@frozen(slots=True)
class DonatingExecutable:
    """A callable that runs ``executable`` and writes some outputs over donated inputs.

    ``donors`` maps the number of such an output to the number of the input that it
    overwrites.
    """

    executable: Executable
    donors: Mapping[int, int]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on ``inputs``; return the outputs, some of them donated input arrays.

        A donated input that is a number, a view, or an array that overlaps another
        input is not overwritten: the plan gets a copy as the output to write. If an
        input does not fit because its elements are not aligned, the run is repeated
        with aligned copies; any other mismatch raises ArgumentError.
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
            return self(self.executable.readable(inputs, mismatch - 1))
        return outputs


def _can_be_written(inputs: Sequence[Any], donor: int) -> bool:
    """Return whether a result may overwrite the array of input number ``donor``.

    False for a number, a view, and an array that overlaps another input. Raises
    ArgumentError for a read-only array.
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
