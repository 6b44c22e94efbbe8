"""The verifier of plans and kernels, between lowering and running.

With the environment variable ``ARRAYFN_VERIFY=1`` each plan is proved as soon as it is
made (see ``plans`` for what). A plan that could not be proved is run on random inputs
with checked memory, by the runners of backends (``plan_runners.RUNNERS``). ``COUNTS``
counts both.
"""

from __future__ import annotations

from collections.abc import Collection

from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.verify.plans import Report, verify
from arrayfn.lowering.verify.proof_counts import COUNTS, ProofCounts

__all__ = ["COUNTS", "ProofCounts", "Report", "check", "verify"]


def check(compiled: CompiledProgram, donated: Collection[int]) -> None:
    """Prove ``compiled``, or run it with checked memory, and count the outcome.

    The plan may overwrite the inputs whose numbers are in ``donated``. Raises
    VerificationError if a step reads memory that no step has written, or accesses
    elements outside of its buffers.
    """
    COUNTS.add(compiled, verify(compiled, donated))
