"""A profile as a trace of events, which Perfetto and Chrome show.

The format is that of "Trace Event Format" (Google): complete events, in microseconds. A
call has its steps below it. Their order and durations are measured; a step that runs
several times in a call is one event, as long as all of its runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arrayfn.tools.profile import Profile


def write_trace(profile: Profile, file: Path) -> None:
    """Write the trace of ``profile`` to ``file``, as JSON."""
    file.write_text(json.dumps({"traceEvents": events(profile)}), "utf-8")


def events(profile: Profile) -> list[dict[str, Any]]:
    """Return the events of a trace: calls on track 0, their steps on track 1.

    The steps of a call follow each other without gaps, from its beginning.
    """
    rows = {(row.function, row.step): row for row in profile.steps}
    trace = [_named("calls", 0), _named("steps", 1)]
    for call in profile.calls:
        trace.append(_event(call.function, "call", 0, call.begin, call.seconds, {}))
        begin = call.begin
        for step, kernel, seconds in call.steps:
            row = rows[call.function, step]
            shown = {
                "step": step,
                "lines": ", ".join(row.lines),
                "bytes": row.bytes // row.runs,
                "operations": row.operations // row.runs,
            }
            trace.append(_event(kernel, "step", 1, begin, seconds, shown))
            begin += seconds
    return trace


def _named(name: str, track: int) -> dict[str, Any]:
    """Return the event of Chrome's trace format that gives a track its name."""
    return {
        "name": "thread_name",
        "ph": "M",
        "pid": 0,
        "tid": track,
        "args": {"name": name},
    }


def _event(
    name: str, kind: str, track: int, begin: float, seconds: float, shown: Any
) -> dict[str, Any]:
    """Return an event that began at ``begin`` (in seconds) and lasted ``seconds``.

    ``shown`` has further data, which viewers show by name.
    """
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": 0,
        "tid": track,
        "ts": 1e6 * begin,
        "dur": 1e6 * seconds,
        "args": shown,
    }
