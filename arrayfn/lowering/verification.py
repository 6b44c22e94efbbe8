"""Proves each plan that is made if ``ARRAYFN_VERIFY=1``."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

from arrayfn.lowering.compiled import CompiledProgram

_VARIABLE: Final = "ARRAYFN_VERIFY"


def verified(compiled: CompiledProgram, donated: Collection[int]) -> CompiledProgram:
    """Return ``compiled``; if ``ARRAYFN_VERIFY=1``, prove it first.

    The plan may write over inputs ``donated``. Raises VerificationError if a step reads
    what no step has written, or accesses elements outside of its buffers.
    """
    if os.environ.get(_VARIABLE, "0") not in ("", "0"):
        from arrayfn.lowering.verify import check

        check(compiled, donated)
    return compiled
