"""Plans on a CPU that measure their steps, by readings of the clock between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arrayfn.backends.base import Executable
from arrayfn.lowering.clocks import times_of_steps


@dataclass(frozen=True)
class ClockedExecutable:
    """An executable whose plan writes the times of its steps into ``state``."""

    run: Executable
    state: Any
    backend: str = "cpu"

    def __call__(self, inputs: tuple[Any, ...], /) -> Sequence[Any]:
        """Run the plan."""
        return self.run(inputs)

    def times_of_steps(self) -> Mapping[int, tuple[int, float]]:
        """By step number: how many times the step ran so far, and its total seconds."""
        return times_of_steps(self.state)
