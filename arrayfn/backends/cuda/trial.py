"""Plans for a GPU that are not proved are run, by the emulator."""

from __future__ import annotations

import importlib
from typing import Final

from arrayfn.lowering.compiled import CompiledProgram

_MOST_THREADS: Final = 512


def try_plan(compiled: CompiledProgram) -> bool:
    """Run ``compiled`` if it is small; whether it was run."""
    trial = importlib.import_module("arrayfn.lowering.verify.trial")
    memory = importlib.import_module("arrayfn.backends.cuda.emulated_memory")
    plan = importlib.import_module("arrayfn.backends.cuda.emulated_plan")
    if not trial.is_small(compiled, _MOST_THREADS):
        return False
    # Indices that were promised to differ may not.
    excused = (memory.WrittenTwiceError,)
    fault = memory.EmulationError
    done: bool = trial.run_trial(compiled, plan.run_plan, fault, excused)
    return done
