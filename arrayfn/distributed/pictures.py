"""Draws shardings as text and HTML: which devices have which part of an array."""

from __future__ import annotations

import colorsys
import html
from collections.abc import Sequence

from arrayfn.ir import NamedSharding


def _devices_by_part(
    sharding: NamedSharding, shape: Sequence[int]
) -> dict[str, list[str]]:
    """Return the names of the devices that hold each part of an array of ``shape``.

    Keys are the parts' index ranges, as ``{"[0:2, 0:6]": ["cpu:0", "cpu:1"]}``.
    """
    parts: dict[str, list[str]] = {}
    for member, number in enumerate(sharding.mesh.device_ids):
        index = sharding.index(tuple(shape), member)
        slices = ", ".join(f"{part.start}:{part.stop}" for part in index)
        name = f"{sharding.mesh.platform}:{number}"
        parts.setdefault(f"[{slices}]", []).append(name)
    return parts


def text_picture(sharding: NamedSharding, shape: Sequence[int]) -> str:
    """Return a text that shows which devices have which part of an array of ``shape``.

    >>> from arrayfn.ir import Mesh, PartitionSpec
    >>> sharding = NamedSharding(Mesh((2, 2), ("x", "y")), PartitionSpec("x"))
    >>> print(text_picture(sharding, (4, 6)))
    P('x')
    [0:2, 0:6] cpu:0 cpu:1
    [2:4, 0:6] cpu:2 cpu:3
    """
    parts = _devices_by_part(sharding, shape)
    width = max(map(len, parts))
    lines = [f"{slices:<{width}} {' '.join(names)}" for slices, names in parts.items()]
    return "\n".join([repr(sharding.spec), *lines])


def html_picture(sharding: NamedSharding, shape: Sequence[int]) -> str:
    """Return an HTML table of the devices that have each part of an array of ``shape``.

    There is a cell for each part, in a colour of its own. Parts that differ along the
    last axis only share a row.
    """
    parts = _devices_by_part(sharding, shape)
    rows: dict[str, list[tuple[str, list[str]]]] = {}
    for slices, names in parts.items():
        *front, _ = slices.strip("[]").split(", ")
        rows.setdefault(", ".join(front), []).append((slices, names))
    lines: list[str] = []
    number = 0
    for cells in rows.values():
        line = ""
        for slices, names in cells:
            red, green, blue = (
                round(255 * c)
                for c in colorsys.hls_to_rgb(number / len(parts), 0.86, 0.6)
            )
            text = "<br>".join([f"<b>{html.escape(slices)}</b>", *names])
            line += (
                f'<td style="background:rgb({red},{green},{blue});color:#222;'
                f'padding:6px 12px;text-align:center;white-space:nowrap">{text}</td>'
            )
            number += 1
        lines.append(f"<tr>{line}</tr>")
    caption = (
        f"{html.escape(repr(sharding.spec))} on ({html.escape(str(sharding.mesh))})"
    )
    table = "".join(lines)
    return f"<table><caption>{caption}</caption>{table}</table>"
