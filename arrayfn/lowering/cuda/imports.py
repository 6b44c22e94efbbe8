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
_BARE: Final = {
    device_function.__name__,
    *(name for name in dir(scalars) if name.endswith(("_INF", "_NAN"))),
}
"""Names that need not be called: of a decorator, and of infinities."""
_COMMENT: Final = re.compile("#.*")
_WORD: Final = re.compile(r"[A-Za-z_]\w*\(?")


def imports(lines: Iterable[str]) -> list[str]:
    """Return the import lines for the names that the kernel's ``lines`` use.

    The names are those of ``cuda.vocabulary`` and ``scalars``. A name counts if it is
    called, or is one of the few that need not be (infinities, the decorator).
    """
    # A word that is called ends with its parenthesis.
    words = set(_WORD.findall(_COMMENT.sub("", "\n".join(lines))))
    names = {word[:-1] for word in words if word[-1] == "("} | (words & _BARE)
    import_lines: list[str] = []
    for room, known in _ROOMS:
        if used := sorted(names & known):
            before = f"from arrayfn.lowering.{room} import "
            import_lines += wrapped(before, ", ".join(used), "")
    return import_lines
