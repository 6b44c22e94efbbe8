"""The verifier of plans and kernels: between lowering and running, if asked for.

With the environment variable ``ARRAYFN_VERIFY=1`` each plan is proved when it has been
made (see ``plans`` for what). What could not be proved is run, on made-up inputs, by
what backends provide (``plan_runners.RUNNERS``), and counted in ``COUNTS``.
"""

from __future__ import annotations

from collections.abc import Collection

from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.verify.plans import Report, verify
from arrayfn.lowering.verify.proof_counts import COUNTS, ProofCounts

__all__ = ["COUNTS", "ProofCounts", "Report", "check", "verify"]


def check(compiled: CompiledProgram, donated: Collection[int]) -> None:
    """Prove ``compiled``, or run it where that cannot be done, and count it.

    Raises VerificationError where a step does what it must not.
    """
    COUNTS.add(compiled, verify(compiled, donated))
