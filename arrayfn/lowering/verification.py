"""Proves each plan that is made if ``ARRAYFN_VERIFY=1``."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

from arrayfn.lowering.compiled import CompiledProgram

_VARIABLE: Final = "ARRAYFN_VERIFY"


def verified(compiled: CompiledProgram, donated: Collection[int]) -> CompiledProgram:
    """``compiled``, proved first if ``ARRAYFN_VERIFY=1``.

    It may write over the inputs ``donated``. Raises VerificationError where a step does
    what it must not.
    """
    if os.environ.get(_VARIABLE, "0") not in ("", "0"):
        from arrayfn.lowering.verify import check

        check(compiled, donated)
    return compiled
