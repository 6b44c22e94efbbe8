"""The import lines of a kernel: they follow from what its text calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from arrayfn.lowering import scalars
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS, device_function
from arrayfn.lowering.kernel_text import wrapped

_ROOMS: Final = (
    ("cuda.vocabulary", {*FUNCTIONS, device_function.__name__}),
    ("scalars", set(dir(scalars))),
)
_USED: Final = re.compile(r"(?<=@)\w+|\b[a-z]\w*(?=\()|\bF\d+_(?:INF|NEG_INF|NAN)\b")


def imports(lines: Iterable[str]) -> list[str]:
    """Lines that import what ``lines`` use of the two vocabularies.

    These are functions, where they are called, and infinities.
    """
    names = {name for line in lines for name in _USED.findall(line.partition("#")[0])}
    found: list[str] = []
    for room, known in _ROOMS:
        if used := sorted(names & known):
            before = f"from arrayfn.lowering.{room} import "
            found += wrapped(before, ", ".join(used), "")
    return found
