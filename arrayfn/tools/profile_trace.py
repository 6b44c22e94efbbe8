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
    """Write the trace of ``profile``."""
    file.write_text(json.dumps({"traceEvents": events(profile)}), "utf-8")


def events(profile: Profile) -> list[dict[str, Any]]:
    """The events of a trace: calls on one track, their steps on another."""
    rows = {(row.function, row.step): row for row in profile.steps}
    made = [_named("calls", 0), _named("steps", 1)]
    for call in profile.calls:
        made.append(_event(call.function, "call", 0, call.begin, call.seconds, {}))
        begin = call.begin
        for step, kernel, seconds in call.steps:
            row = rows[call.function, step]
            shown = {
                "step": step,
                "lines": ", ".join(row.lines),
                "bytes": row.bytes // row.runs,
                "operations": row.operations // row.runs,
            }
            made.append(_event(kernel, "step", 1, begin, seconds, shown))
            begin += seconds
    return made


def _named(name: str, track: int) -> dict[str, Any]:
    """The event that gives a track its name."""
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
    """An event that began at ``begin`` and lasted ``seconds``."""
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
