"""A profile as a table of text, and as HTML with a roofline chart."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from arrayfn.display import charts, markup
from arrayfn.display.units import in_seconds, in_si

if TYPE_CHECKING:
    from arrayfn.tools.profile import LineTime, Profile, StepTime

_MOST_ROWS: Final = 20  # of steps and of lines, in text
_MOST_LINES: Final = 3  # of a step
_STEPS: Final = ("time", "share", "runs", "GB/s", "GFLOP/s", "of roof")


def profile_text(profile: Profile) -> str:
    """Format a profile as text: slowest steps and lines, then the wall clock."""
    steps, lines = profile.steps, profile.lines
    head = "".join(f"{name:>9}" for name in _STEPS)
    text = [f"{'function':16}{'step':>5} {'kernel':18}{head}  lines"]
    for row in steps[:_MOST_ROWS]:
        cells = "".join(f"{cell:>9}" for cell in _cells(row, profile))
        name = f"{row.function[:15]:16}{row.step:5} {row.kernel[:17]:18}"
        text.append(f"{name}{cells}  {_lines_of(row)}")
    if len(steps) > _MOST_ROWS:
        text.append(f"... {len(steps) - _MOST_ROWS} more steps")
    text += ["", f"{'line':24}{'time':>9}{'share':>9}{'GFLOP':>9}"]
    for line in lines[:_MOST_ROWS]:
        cells = "".join(f"{cell:>9}" for cell in _line_cells(line, profile))
        text.append(f"{str(line)[-23:]:24}{cells}  {line.text}")
    text += ["", *(f"{name:36}{t:>9}{s:>9}" for name, t, s in _totals(profile))]
    for name, top in profile.roofs.items():
        text.append(
            f"roof of {name}: {in_si(top.bytes)}B/s, {in_si(top.flops)}FLOP/s (float32)"
        )
    return "\n".join(text)


def profile_html(profile: Profile) -> str:
    """Format a profile as HTML: the same tables, and rooflines by backend."""
    steps = profile.steps
    # A step's row and its point in the chart have the same link: both are highlighted.
    links = [f"s{number}" for number in range(len(steps))]
    rows = [
        (
            _bar(_percent(row, profile)),
            escape(row.function),
            str(row.step),
            escape(row.kernel),
            escape(_lines_of(row)),
            *_cells(row, profile),
        )
        for row in steps
    ]
    head = ("", "function", "step", "kernel", "lines", *_STEPS)
    lines = [
        (
            escape(str(line)),
            f"<code>{markup.highlighted(line.text)}</code>",
            *_line_cells(line, profile),
        )
        for line in profile.lines
    ]
    drawn = [
        charts.roofline(
            [
                _point(row, link)
                for row, link in zip(steps, links, strict=True)
                if row.backend == name
            ],
            top.bytes,
            top.flops,
        )
        for name, top in profile.roofs.items()
    ]
    return markup.shown(
        f"Profile <small>{in_seconds(profile.seconds)}, "
        f"{len(profile.calls)} calls</small>",
        markup.heading("Steps"),
        markup.table(head, rows, [f" data-s='{link}'" for link in links], texts=5),
        markup.heading("Lines"),
        markup.table(("line", "", "time", "share", "GFLOP"), lines, texts=2),
        markup.heading("Wall clock"),
        markup.table(("part", "time", "share"), _totals(profile)),
        markup.heading("Roofline"),
        *drawn,
        groups=links,
    )


def _point(row: StepTime, link: str) -> charts.Point:
    """Return the point of a step in the roofline chart.

    ``link`` is the link of the step's table row.
    """
    return charts.Point(
        f"{row.function}, step {row.step}, {row.kernel}",
        link,
        intensity=row.operations / row.bytes if row.bytes else 0.0,
        rate=row.operations / row.seconds if row.seconds else 0.0,
        seconds=row.seconds,
    )


def _bar(percent: float) -> str:
    """Return a bar as HTML, one pixel long for each percent."""
    return f"<span class='afn-bar' style='width:{percent:.0f}px'></span>"


def _percent(row: StepTime, profile: Profile) -> float:
    """Return the share of a step in the wall clock, in percent."""
    return 100 * row.seconds / (profile.seconds or 1.0)


def _cells(row: StepTime, profile: Profile) -> tuple[str, ...]:
    """Return the numbers of a step as text, in the order of ``_STEPS``."""
    seconds = row.seconds or 1e-9
    roof = "" if row.share_of_roof is None else f"{100 * row.share_of_roof:.0f} %"
    return (
        in_seconds(row.seconds),
        f"{_percent(row, profile):.1f} %",
        str(row.runs),
        f"{row.bytes / seconds / 1e9:.3g}",
        f"{row.operations / seconds / 1e9:.3g}",
        roof,
    )


def _lines_of(row: StepTime) -> str:
    """Return the user's lines that a step computes, as text; at most three of them."""
    lines = row.lines
    more = f" and {len(lines) - _MOST_LINES} more" if len(lines) > _MOST_LINES else ""
    return ", ".join(lines[:_MOST_LINES]) + more


def _line_cells(line: LineTime, profile: Profile) -> tuple[str, str, str]:
    """Return the time, share and GFLOP of a line as text."""
    share = 100 * line.seconds / (profile.seconds or 1.0)
    return in_seconds(line.seconds), f"{share:.1f} %", f"{line.operations / 1e9:.3g}"


def _totals(profile: Profile) -> list[tuple[str, str, str]]:
    """Return rows (part, time, share) that divide the wall clock, and their total."""
    parts = {
        "steps": sum(row.seconds for row in profile.steps),
        "calls, outside their steps": profile.calling,
        "tracing and compiling": profile.compiling,
        "Python, outside compiled functions": profile.outside,
        "wall clock": profile.seconds,
    }
    whole = profile.seconds or 1.0
    return [
        (name, in_seconds(seconds), f"{100 * seconds / whole:.1f} %")
        for name, seconds in parts.items()
    ]
