"""Tracebacks that end at the user's line, without the frames of arrayfn.

``install`` adds a hook to Python and IPython for printing uncaught errors. The errors
themselves do not change. The hook hides the frames of arrayfn and of its libraries.
Frames are hidden in errors of arrayfn, and in errors of the user's code when arrayfn
called this code. Any other error that begins in arrayfn is a bug, and keeps its whole
traceback. ``ARRAYFN_TRACEBACK=full`` shows everything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

from arrayfn.errors import ArrayfnError, is_users

VARIABLE: Final = "ARRAYFN_TRACEBACK"
_PACKAGE: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NOTE: Final = f"(frames of arrayfn are hidden; {VARIABLE}=full shows them)"


def shortened(
    error: BaseException, trace: TracebackType | None
) -> TracebackType | None:
    """Remove frames of libraries from ``trace``, unless that would hide a cause.

    ``trace`` stays if it has no frame of arrayfn, or if ``error`` is not arrayfn's and
    was raised outside the user's code.
    """
    frames = list(_frames(trace))
    files = [frame.tb_frame.f_code.co_filename for frame in frames]
    if not any(file.startswith(_PACKAGE) for file in files):
        return trace
    if not isinstance(error, ArrayfnError) and not is_users(files[-1]):
        return trace
    users = [f for f, file in zip(frames, files, strict=True) if is_users(file)]
    # A traceback is a linked list from the outermost frame: build it from the inside.
    short: TracebackType | None = None
    for frame in reversed(users):
        short = TracebackType(short, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return short or trace


def shorten_all(error: BaseException) -> None:
    """Shorten the tracebacks of ``error`` and of the errors that caused it.

    ``error`` gets a note if its traceback is shortened.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        short = shortened(current, current.__traceback__)
        if short is not current.__traceback__:
            current.__traceback__ = short
            if current is error and _NOTE not in getattr(current, "__notes__", ()):
                current.add_note(_NOTE)
        waiting += [current.__cause__, current.__context__]


def install() -> None:
    """Shorten the tracebacks of uncaught errors.

    ``ARRAYFN_TRACEBACK=full`` keeps all frames.
    """
    if os.environ.get(VARIABLE, "") == "full":
        return
    before = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Shorten the traceback, and show it as before."""
        shorten_all(error)
        before(kind, error, error.__traceback__)

    sys.excepthook = hook
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        shell.set_custom_exc((ArrayfnError,), _shown_by_ipython)


def _shown_by_ipython(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """Shorten the traceback, and have IPython show it."""
    shorten_all(error)
    shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    """Yield the entries of a traceback, from the outermost one."""
    while trace is not None:
        yield trace
        trace = trace.tb_next
