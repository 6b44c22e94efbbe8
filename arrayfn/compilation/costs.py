"""The cost of a plan before it runs: operations, bytes moved, and memory."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from arrayfn.display.units import in_bytes
from arrayfn.lowering.plan import (
    ExecutionPlan,
    KernelCall,
    Loop,
    Step,
    blocks_of,
    numbered,
)
from arrayfn.records import frozen


@frozen
class StepCost:
    """The cost of a step in one call: its runs, operations and bytes.

    ``runs`` is None if it is unknown (in a ``while_loop``); ``operations`` and
    ``bytes`` are then those of one run. ``lines`` are the user's.
    """

    step: int
    kernel: str
    runs: int | None
    operations: int
    bytes: int
    lines: tuple[str, ...]


@frozen
class Cost:
    """The cost of each step of a plan; all branches are counted."""

    steps: tuple[StepCost, ...]

    @property
    def operations(self) -> int:
        """The arithmetic operations of a call."""
        return sum(step.operations for step in self.steps)

    @property
    def bytes(self) -> int:
        """The bytes that the steps of a call read and write."""
        return sum(step.bytes for step in self.steps)

    @override
    def __str__(self) -> str:
        lines = [f"step {'kernel':20}{'runs':>8}{'operations':>12}{'bytes':>12}  lines"]
        for s in self.steps:
            runs = "?" if s.runs is None else str(s.runs)
            lines_text = ", ".join(s.lines[:3]) + (" ..." if len(s.lines) > 3 else "")
            lines.append(
                f"{s.step:4} {s.kernel:20}{runs:>8}{s.operations:12}{s.bytes:12}  "
                f"{lines_text}"
            )
        lines.append(f"     {'total':28}{self.operations:12}{self.bytes:12}")
        return "\n".join(lines)


@frozen
class Memory:
    """The bytes of a plan's buffers.

    ``temporaries`` is the size of the arena, ``unshared`` the size it would have if no
    temporaries shared memory. ``scratch`` is needed by each thread besides.
    """

    inputs: int
    outputs: int
    constants: int
    temporaries: int
    unshared: int
    scratch: int

    @property
    def total(self) -> int:
        """The bytes that a call needs at once, arguments and results included."""
        return self.inputs + self.outputs + self.constants + self.temporaries

    @override
    def __str__(self) -> str:
        text = ", ".join(
            f"{name} {in_bytes(getattr(self, name))}"
            for name in ("inputs", "outputs", "constants", "temporaries")
        )
        saved = self.unshared - self.temporaries
        return text + (f" ({in_bytes(saved)} saved by sharing)" if saved > 0 else "")


def cost_of(plan: ExecutionPlan) -> Cost:
    """Return the cost of each step of ``plan``."""
    numbers = {id(step): number for number, step in numbered(plan.steps)}
    costs: list[StepCost] = []

    def visit(steps: Sequence[Step], runs: int | None) -> None:
        """Append the costs of ``steps`` to ``costs``; each step runs ``runs`` times.

        ``numbers`` has the number of each step in the plan's text, by the step's id.
        ``runs`` is None in a loop whose number of iterations is not known.
        """
        for step in steps:
            if isinstance(step, KernelCall):
                known_runs = 1 if runs is None else runs
                lines = (str(o.source) for o in step.origins if o.source)
                cost = StepCost(
                    numbers[id(step)],
                    step.kernel,
                    runs,
                    known_runs * step.operations,
                    known_runs * plan.bytes_of(step),
                    tuple(dict.fromkeys(lines)),
                )
                costs.append(cost)
                continue
            inner_runs = runs
            if isinstance(step, Loop):
                is_known = runs is not None and step.count is not None
                inner_runs = runs * step.count if is_known else None  # type: ignore[operator]
            for block in blocks_of(step):
                visit(block, inner_runs)

    visit(plan.steps, 1)
    return Cost(tuple(costs))


def memory_of(plan: ExecutionPlan) -> Memory:
    """Return the bytes of the buffers of ``plan``, by kind."""

    def total(kind: str) -> int:
        """Return the bytes of all buffers of this kind."""
        return sum(b.nbytes for b in plan.buffers if b.kind == kind)

    arrays = total("input"), total("output"), total("constant")
    return Memory(
        *arrays,
        temporaries=plan.arena,
        unshared=total("temporary"),
        scratch=plan.scratch,
    )
