"""The verifier of plans and kernels: between lowering and running, if asked for.

With the environment variable ``ARRAYFN_VERIFY=1`` each plan is proved when it has been
made (see ``plans`` for what); without it nothing happens here. What could not be proved
is run, on made-up inputs, by what a backend gives in ``RUNNERS``, and counted in
``TALLY``.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.verify.plans import Report, verify
from arrayfn.lowering.verify.tally import RUNNERS, TALLY, Tally

__all__ = ["RUNNERS", "TALLY", "Report", "Tally", "verified", "verify"]

_VARIABLE: Final = "ARRAYFN_VERIFY"


def verified(compiled: CompiledProgram, donated: Collection[int]) -> CompiledProgram:
    """``compiled``, which has been proved if that is asked for.

    It may write over the inputs ``donated``. Raises VerificationError where a step does
    what it must not.
    """
    if os.environ.get(_VARIABLE, "0") not in ("", "0"):
        TALLY.add(compiled, verify(compiled, donated))
    return compiled
