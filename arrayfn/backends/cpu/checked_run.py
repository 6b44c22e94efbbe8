"""Runs CPU plans that are not proved, as Python with checked memory."""

from __future__ import annotations

from typing import Final

from arrayfn.lowering.compiled import CompiledProgram

_MOST_ITEMS: Final = 4096  # work items of a plan that is run as Python


def try_plan(compiled: CompiledProgram) -> bool:
    """Run ``compiled`` as Python on random inputs, if it is small enough.

    Returns whether it ran to its end. An access outside of an array (the IndexError of
    a checked pointer) becomes a VerificationError.
    """
    from arrayfn.backends.cpu.unjitted import run_unjitted
    from arrayfn.lowering.verify import checked_run

    if not checked_run.is_small(compiled, _MOST_ITEMS):
        return False
    return checked_run.run_checked(compiled, run_unjitted, IndexError)
