"""Plans for a CPU that are not proved are run, as Python, with checked memory."""

from __future__ import annotations

import importlib
from typing import Final

from arrayfn.lowering.compiled import CompiledProgram

_MOST_ITEMS: Final = 4096


def try_plan(compiled: CompiledProgram) -> bool:
    """Run ``compiled`` if it is small; whether it was run."""
    trial = importlib.import_module("arrayfn.lowering.verify.trial")
    unjitted = importlib.import_module("arrayfn.backends.cpu.unjitted")
    if not trial.is_small(compiled, _MOST_ITEMS):
        return False
    done: bool = trial.run_trial(compiled, unjitted.run_unjitted, IndexError)
    return done
