"""Verifies GPU plans that could not be proved, by running them in the emulator."""

from __future__ import annotations

from typing import Final

from arrayfn.lowering.compiled import CompiledProgram

_MAX_THREADS: Final = 512
"""Most threads of all kernel launches of a plan that the emulator runs."""


def try_plan(compiled: CompiledProgram) -> bool:
    """Run ``compiled`` in the emulator if it is small; return whether it was run.

    Raises VerificationError if a kernel accesses memory outside of its arrays.
    """
    from arrayfn.backends.cuda.emulator import memory
    from arrayfn.backends.cuda.emulator.plan import run_plan
    from arrayfn.lowering.verify import checked_run

    if not checked_run.is_small(compiled, _MAX_THREADS):
        return False
    # Random index arrays may hold equal indices where the user promised that they
    # differ. Then an element is written twice, which is no fault of the plan.
    excused = (memory.WrittenTwiceError,)
    fault = memory.EmulationError
    return checked_run.run_checked(compiled, run_plan, fault, excused)
