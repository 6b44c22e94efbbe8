"""What a plan costs before it runs: operations, bytes moved, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arrayfn.display.units import in_bytes
from arrayfn.lowering.plan import (
    ExecutionPlan,
    KernelCall,
    Loop,
    Step,
    blocks_of,
    numbered,
)


@dataclass(frozen=True)
class StepCost:
    """A step: how often it runs in a call, and what all of that does.

    ``runs`` is None where nobody knows it (a ``while_loop``): then ``operations`` and
    ``bytes`` are those of one run. ``lines`` are the user's.
    """

    step: int
    kernel: str
    runs: int | None
    operations: int
    bytes: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Cost:
    """The cost of each step of a plan. Of branches, each counts."""

    steps: tuple[StepCost, ...]

    @property
    def operations(self) -> int:
        """The arithmetic operations of a call."""
        return sum(step.operations for step in self.steps)

    @property
    def bytes(self) -> int:
        """The bytes that the steps of a call read and write."""
        return sum(step.bytes for step in self.steps)

    def __str__(self) -> str:
        lines = [f"step {'kernel':20}{'runs':>8}{'operations':>12}{'bytes':>12}  lines"]
        for s in self.steps:
            runs = "?" if s.runs is None else str(s.runs)
            shown = ", ".join(s.lines[:3]) + (" ..." if len(s.lines) > 3 else "")
            lines.append(
                f"{s.step:4} {s.kernel:20}{runs:>8}{s.operations:12}{s.bytes:12}  "
                f"{shown}"
            )
        lines.append(f"     {'total':28}{self.operations:12}{self.bytes:12}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Memory:
    """Bytes of a plan's buffers.

    ``temporaries`` is the size of the arena, ``unshared`` what they would take if none
    had the place of another. ``scratch`` is what each thread needs besides.
    """

    inputs: int
    outputs: int
    constants: int
    temporaries: int
    unshared: int
    scratch: int

    @property
    def total(self) -> int:
        """What a call needs at once, arguments and results included."""
        return self.inputs + self.outputs + self.constants + self.temporaries

    def __str__(self) -> str:
        text = ", ".join(
            f"{name} {in_bytes(getattr(self, name))}"
            for name in ("inputs", "outputs", "constants", "temporaries")
        )
        saved = self.unshared - self.temporaries
        return text + (f" ({in_bytes(saved)} saved by sharing)" if saved > 0 else "")


def cost_of(plan: ExecutionPlan) -> Cost:
    """The cost of each step of ``plan``."""
    numbers = {id(step): number for number, step in numbered(plan.steps)}
    found: list[StepCost] = []

    def visit(steps: Sequence[Step], runs: int | None) -> None:
        for step in steps:
            if isinstance(step, KernelCall):
                times = 1 if runs is None else runs
                lines = (str(o.source) for o in step.origins if o.source)
                made = StepCost(
                    numbers[id(step)],
                    step.kernel,
                    runs,
                    times * step.operations,
                    times * plan.bytes_of(step),
                    tuple(dict.fromkeys(lines)),
                )
                found.append(made)
                continue
            inside = runs
            if isinstance(step, Loop):
                known = runs is not None and step.count is not None
                inside = runs * step.count if known else None  # type: ignore[operator]
            for block in blocks_of(step):
                visit(block, inside)

    visit(plan.steps, 1)
    return Cost(tuple(found))


def memory_of(plan: ExecutionPlan) -> Memory:
    """The memory of ``plan``."""

    def total(kind: str) -> int:
        return sum(b.nbytes for b in plan.buffers if b.kind == kind)

    given = total("input"), total("output"), total("constant")
    return Memory(*given, plan.arena, total("temporary"), plan.scratch)
