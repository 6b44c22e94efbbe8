"""What a caller may choose about how a Program is lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Options:
    """How to lower a Program.

    Unless ``deterministic`` a target may add in whatever order is fastest, which can
    differ from run to run. Targets that have no use for an option do as ever.
    """

    deterministic: bool = True


DEFAULT: Final = Options()
