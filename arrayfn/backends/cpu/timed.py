"""Plans on a CPU that measure their steps, by readings of the clock between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arrayfn.backends.base import Executable
from arrayfn.lowering.clocks import times_of_steps
from arrayfn.records import frozen


@frozen
class ClockedExecutable:
    """An executable of a plan that adds up the times of its steps.

    ``run`` runs the plan, which reads the clock after each step and adds the times to
    ``state``. ``backend`` is the backend's name.
    """

    run: Executable
    state: Any
    backend: str = "cpu"

    def __call__(self, inputs: tuple[Any, ...], /) -> Sequence[Any]:
        """Run the plan on ``inputs``; return its outputs."""
        return self.run(inputs)

    def times_of_steps(self) -> Mapping[int, tuple[int, float]]:
        """Map each step's number to (how often it ran so far, its total seconds)."""
        return times_of_steps(self.state)
