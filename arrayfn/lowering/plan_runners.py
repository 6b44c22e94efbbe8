"""How backends run a plan with checked memory, where the verifier cannot prove it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from arrayfn.lowering.compiled import CompiledProgram

Runner: TypeAlias = "Callable[[CompiledProgram], bool]"
"""Runs a plan with checked memory. False: it cannot, or that would take too long."""

RUNNERS: Final[dict[str, Runner]] = {}
"""The runner for plans of each target. Backends register theirs."""
