"""Adds readings of the clock to a plan, one after each kernel call.

A reading is a call of the library kernel ``clock_i64``, which the runtime that times
plans has. It adds the time since the previous reading to the step's sum, in an array
that is a constant of the plan. Steps in loops and branches are read each time they run.
The time of the readings themselves is summed separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import (
    Branch,
    BufferAllocation,
    BufferArgument,
    KernelCall,
    LibraryKernel,
    Loop,
    Parameter,
    Step,
    numbered,
)

PROVIDER: Final = "clock_i64"
LAST, READING, FIRST = 0, 1, 2
"""Indices: the time of the last reading, that of all readings, and step 0's sum."""
_BEGIN: Final = -1  # the step of the first reading, whose time does not count


def with_clocks(compiled: CompiledProgram) -> tuple[CompiledProgram, Any]:
    """Insert a reading of the clock after each step; also return the array of times.

    The array is i64[2 + 2 * steps], which the runtime fills. Index ``FIRST + 2 * k``
    has the nanoseconds that step ``k`` took, the next index how often it ran.
    """
    plan = compiled.plan
    steps = len(list(numbered(plan.steps)))
    state = np.zeros(FIRST + 2 * steps, np.int64)
    type = ArrayType(state.shape, state.dtype)
    index = len(compiled.constants)
    buffer = BufferAllocation("constant", index, type, state.nbytes)
    clocks = _Clocks(len(plan.buffers))
    timed = (clocks.reading(_BEGIN), *clocks.read(plan.steps))
    parameters = (Parameter("state", "i64*"), Parameter("step", "i64"))
    kernel = LibraryKernel(PROVIDER, PROVIDER, parameters, "reads the clock")
    timed_program = replace(
        compiled,
        plan=replace(plan, buffers=(*plan.buffers, buffer), steps=timed),
        kernels=(*compiled.kernels, kernel),
        constants=(*compiled.constants, state),
    )
    return timed_program, state


def times_of_steps(state: Any) -> Mapping[int, tuple[int, float]]:
    """Return ``(runs, total seconds)`` of each step that ran, by its number.

    ``state`` is the array of ``with_clocks``, after some calls.
    """
    sums, counts = state[FIRST::2], state[FIRST + 1 :: 2]
    pairs = enumerate(zip(counts, sums, strict=True))
    return {k: (int(runs), int(total) * 1e-9) for k, (runs, total) in pairs if runs}


class _Clocks:
    """Inserts clock readings into plans.

    ``buffer`` is the number of the array of times. ``number`` counts steps as
    ``plan.numbered`` does.
    """

    def __init__(self, buffer: int) -> None:
        self.buffer = buffer
        self.number = 0

    def reading(self, step: int) -> KernelCall:
        """Return the call that adds the time since the last reading to ``step``'s."""
        state = BufferArgument(self.buffer)
        return KernelCall(PROVIDER, (state, step), 1, writes=(self.buffer,))

    def read(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Return ``steps`` with a reading after each call."""
        return tuple(self._each(steps))

    def _each(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Yield ``steps``, with a clock reading after each kernel call."""
        for step in steps:
            number = self.number
            self.number += 1
            if isinstance(step, Loop):
                yield replace(step, body=self.read(step.body))
            elif isinstance(step, Branch):
                yield replace(step, branches=tuple(map(self.read, step.branches)))
            else:
                yield step
                yield self.reading(number)
