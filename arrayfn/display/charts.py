"""Charts as SVG: the memory of a plan over its steps, and a roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from arrayfn.display.units import in_bytes, in_si
from arrayfn.records import frozen

_WIDTH = 640  # of a picture, in pixels
_HUES = ("#1468d8", "#0a8a70", "#c05000", "#a020c0", "#b8860b", "#c02050")


@frozen(slots=True)
class Bar:
    """A buffer: it lies at ``offset``, and lives from step ``first`` to ``last``."""

    label: str
    offset: int
    nbytes: int
    first: int
    last: int


def timeline(bars: Sequence[Bar], steps: int, total: int) -> str:
    """Draw which buffers take up which part of the arena, step by step, as SVG.

    ``steps`` is the number of steps, ``total`` the arena's size in bytes. Empty without
    bars.
    """
    if not bars or not total:
        return ""
    left, top, height = 66, 6, 150
    across, down = (_WIDTH - left - 8) / max(1, steps), height / total
    parts: list[str] = []
    for number, bar in enumerate(bars):
        # SVG's y grows downwards; byte 0 is at the bottom.
        x, y = (
            left + bar.first * across,
            top + height - (bar.offset + bar.nbytes) * down,
        )
        wide, high = (bar.last - bar.first + 1) * across, max(1.0, bar.nbytes * down)
        links = " ".join(f"s{k}" for k in range(bar.first, bar.last + 1))
        parts.append(
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{wide:.1f}' height='{high:.1f}' "
            f"rx='2' style='{_fill(number)}' "
            f"data-s='{links}'><title>{escape(bar.label)}: {in_bytes(bar.nbytes)} at "
            f"{bar.offset}, steps {bar.first} to {bar.last}</title></rect>"
        )
    every = max(1, math.ceil(steps / 20))
    parts += [
        _text(left + (k + 0.5) * across, top + height + 16, str(k), "middle")
        for k in range(0, steps, every)
    ]
    parts += [
        _text(left - 6, top + 10, in_bytes(total), "end"),
        _text(left - 6, top + height, "0", "end"),
        _text(left - 6, top + height + 16, "step", "end"),
        _axes(left, top, height, _WIDTH - 8),
    ]
    return _picture(parts, top + height + 22, "memory over steps")


@frozen(slots=True)
class Point:
    """A step: its operations per byte (``intensity``), and per second (``rate``).

    ``link`` is the step's link (``"s3"``), and ``seconds`` its time.
    """

    label: str
    link: str
    intensity: float
    rate: float
    seconds: float


def roofline(points: Sequence[Point], bandwidth: float, peak: float) -> str:
    """Draw operations per second over operations per byte, under the machine's roof.

    ``bandwidth`` is in bytes, ``peak`` in operations per second.
    The area of a point is its share of the time (Williams, Waterman and Patterson,
    Roofline, CACM 2009).
    """
    points = [p for p in points if p.intensity > 0 and p.rate > 0]
    if not points or not bandwidth or not peak:
        return ""
    left, top, right, height = 70, 8, 10, 240
    ridge = peak / bandwidth
    low_x = min(0.1, *(p.intensity for p in points)) / 1.5
    high_x = max(ridge * 8, *(p.intensity for p in points)) * 1.5
    high_y = max(peak, *(p.rate for p in points)) * 2
    low_y = min(low_x * bandwidth, *(p.rate for p in points)) / 2

    def x(value: float) -> float:
        """Return the x coordinate of ``value`` operations per byte (logarithmic)."""
        span = math.log(high_x / low_x)
        return left + (_WIDTH - left - right) * math.log(value / low_x) / span

    def y(value: float) -> float:
        """Return the y coordinate of ``value`` operations per second (logarithmic)."""
        return top + height * math.log(high_y / value) / math.log(high_y / low_y)

    total = sum(p.seconds for p in points) or 1.0
    bottom, middle = top + height, top + height / 2
    roof = f"M{x(low_x):.1f} {y(low_x * bandwidth):.1f}L{x(ridge):.1f} {y(peak):.1f}"
    parts = [
        _path(f"{roof}H{_WIDTH - right}", "stroke-width='1.5'"),
        _axes(left, top, height, _WIDTH - right),
        _text((left + _WIDTH) / 2, bottom + 32, "operations per byte", "middle"),
        f"<g transform='translate(12 {middle:.0f}) rotate(-90)'>"
        + _text(0, 0, "operations per second", "middle")
        + "</g>",
    ]
    parts += [
        _text(x(tick), bottom + 15, f"{tick:g}", "middle")
        for tick in _ticks(low_x, high_x)
    ]
    parts += [
        _text(left - 5, y(tick) + 4, in_si(tick), "end")
        for tick in _ticks(low_y, high_y)
    ]
    for number, p in enumerate(points):
        radius = 4 + 10 * math.sqrt(p.seconds / total)
        parts.append(
            f"<circle cx='{x(p.intensity):.1f}' cy='{y(p.rate):.1f}' r='{radius:.1f}' "
            f"style='{_fill(number)}' data-s='{p.link}'>"
            f"<title>{escape(p.label)}: {in_si(p.rate)}FLOP/s at {p.intensity:.3g} "
            "operations per byte</title></circle>"
        )
    parts += [  # above the points, which may lie on the roof
        _text(x(ridge), y(peak) - 6, f"{in_si(peak)}FLOP/s"),
        _text(left + 8, y(2 * low_x * bandwidth) - 18, f"{in_si(bandwidth)}B/s"),
    ]
    return _picture(parts, top + height + 40, "roofline")


def _fill(number: int) -> str:
    """Return the colour of a mark: brighter on a dark page, darker on a light one."""
    hue = _HUES[number % len(_HUES)]
    return f"fill:color-mix(in srgb,currentColor 35%,{hue});fill-opacity:.75"


def _picture(parts: Sequence[str], height: int, label: str) -> str:
    """Put SVG ``parts`` into a picture of fixed size, which scrolls in a small page."""
    return (
        f"<div class='afn-chart'><svg viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' "
        f"role='img' aria-label='{label}'>{''.join(parts)}</svg></div>"
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return ``words`` at (x, y), as SVG."""
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{words}</text>"


def _path(path: str, stroke: str) -> str:
    """Return a line along an SVG path; ``stroke`` has further attributes."""
    return f"<path d='{path}' fill='none' stroke='currentColor' {stroke}/>"


def _axes(left: float, top: float, height: float, right: float) -> str:
    """Return the left and the lower edge of a chart."""
    return _path(f"M{left} {top}V{top + height}H{right}", "stroke-opacity='.4'")


def _ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten from ``low`` to ``high``."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]
