"""Counts the plans that were proved in this process, and those that were run."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Final

from typing_extensions import override

from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan_runners import RUNNERS
from arrayfn.lowering.verify.plans import Report
from arrayfn.records import record


@record
class ProofCounts:
    """How many plans were ``proved``, ``run`` with checked memory, or ``unproved``.

    ``reasons`` counts what was not proved in plans that were not run.
    """

    proved: int = 0
    run: int = 0
    unproved: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])

    def add(self, compiled: CompiledProgram, report: Report) -> None:
        """Count a plan as proved; if ``report`` has unproved claims, run it first.

        The target's runner runs it with checked memory, unless it is too large.
        """
        if not report.unproved:
            self.proved += 1
            return
        runner = RUNNERS.get(compiled.target)
        if runner is not None and runner(compiled):
            self.run += 1
            return
        self.unproved += 1
        self.reasons.update(report.unproved)

    @override
    def __str__(self) -> str:
        """Return the counts as text."""
        return f"{self.proved} proved, {self.run} run, {self.unproved} unproved"


COUNTS: Final = ProofCounts()
