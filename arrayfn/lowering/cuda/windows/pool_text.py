"""The texts of kernels that reduce windows, and that put values back into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from arrayfn.lowering.cuda.windows.stencils import (
    COLUMNS,
    PLACE,
    Along,
    Lanes,
    inside,
    places,
    store,
    stores,
    windows,
)

CELLS: Final = 2
"""A thread's cells: each is as large as the strides of windows."""
MAX_CELLS: Final = 4
"""The most elements of a cell, for a thread to have room for its cells."""


def sum_body(lanes: Lanes, axes: tuple[Along, Along]) -> list[str]:
    """The sum of each window, in float32 and rounded once for fp16 and bf16."""
    sums = [f"sums{k}" for k in range(COLUMNS)]
    each = [
        f"sums{k}[lane] = sums{k}[lane] + x{at}"
        for at, readers in axes[1].offsets().items()
        for k, _ in readers
    ]
    return places(
        lanes,
        [
            *_tiles(sums, lanes.wide, lanes.count, lanes.zero),
            *windows(lanes, axes, "x", lanes.fill, (), each),
            *stores(lanes, "sums", sums),
        ],
    )


def _tiles(names: Sequence[str], dtype: str, count: int, value: str) -> list[str]:
    return [
        *(f"{name} = registers_{dtype}({count})" for name in names),
        f"for lane in range({count}):",
        *(f"    {name}[lane] = {value}" for name in names),
    ]


def extremum_body(
    lanes: Lanes, axes: tuple[Along, Along], gives: Sequence[str], *, minimum: bool
) -> list[str]:
    """The maximum of each window, or the minimum: its ``best``, its ``position``.

    NaN is beyond everything; of equal elements the first is taken, counted row-major.
    """
    wide, n = lanes.wide, lanes.count
    limit = f"{wide.upper()}_{'INF' if minimum else 'NEG_INF'}"
    if lanes.is_narrow:
        limit = f"convert_f32_{lanes.short}({limit})"
    best = [f"best{k}" for k in range(COLUMNS)]
    position = [f"position{k}" for k in range(COLUMNS)]
    given = "position" in gives
    each: list[str] = []
    for at, readers in axes[1].offsets().items():
        for k, j in readers:
            own, x = f"best{k}[lane]", f"x{at}"
            if not given:
                word = "min" if minimum else "max"
                each.append(f"{own} = accumulate_{word}_{wide}({own}, {x})")
                continue
            further = f"{'lt' if minimum else 'gt'}_{wide}({x}, {own})"
            later = f"and_bool(isnan_{wide}({x}), not_bool(isnan_{wide}({own})))"
            place = f"position{k}[lane]"
            each += [
                f"beyond = or_bool({further}, {later})",
                f"{own} = select_{wide}(beyond, {x}, {own})",
                f"{place} = select_i32(beyond, tap + i32({j}), {place})",
            ]
    before = [f"tap = convert_i64_i32(i * {axes[1].size})"] if given else []
    lines = [
        f"limit = {limit}",
        *_tiles(best, wide, n, lanes.value("limit")),
        *(_tiles(position, "i32", n, "i32(0)") if given else ()),
        *windows(lanes, axes, "x", "limit", before, each),
    ]
    if "best" in gives:
        lines += stores(lanes, "best", best)
    if given:
        lines.append(PLACE)
        for k, tile in enumerate(position):
            lines += [
                f"if column + {k} < columns:",
                f"    store_i32x{n}(position, at + {k} * channels, {tile}, 0)",
            ]
    return places(lanes, lines)


def put_body(lanes: Lanes, axes: tuple[Along, Along]) -> list[str]:
    """Each element's sum of the values of windows whose position it is.

    A cell's elements are in the same few windows: those that begin in it, and before.
    """
    down, right = axes
    n, wide = lanes.count, lanes.wide
    reach = [(along.size - 1) // along.stride for along in axes]
    skipped = [along.before // along.stride for along in axes]
    # A cell's windows begin `back` cells before it, 0 to `reach`.
    taken = CELLS + reach[1]
    sums = [
        f"sums{r}_{q}" for r in range(down.stride) for q in range(CELLS * right.stride)
    ]
    lines = [
        *_tiles(sums, wide, n, lanes.zero),
        f"first = column{_plus(skipped[1] - reach[1])}",
    ]
    for k in range(taken):
        lines += [
            f"inside{k} = (first + {k} >= 0) and (first + {k} < width)",
            lanes.tile(f"value{k}_tile"),
            f"place{k} = registers_i32({n})",
        ]
    for back in range(reach[0] + 1):
        body = ["at = ((image * height + line) * width + first) * channels + channel"]
        for k in range(taken):
            body += [
                f"for lane in range({n}):",
                f"    value{k}_tile[lane] = {lanes.fill}",
                f"    place{k}[lane] = i32(-1)",
                f"if inside{k}:",
                "    " + lanes.load("values", f"at + {k} * channels", f"value{k}_tile"),
                f"    load_i32x{n}(positions, at + {k} * channels, place{k}, 0)",
            ]
        body.append(f"for lane in range({n}):")
        body += [
            f"    value{k} = {lanes.value(f'value{k}_tile[lane]')}"
            for k in range(taken)
        ]
        body += inside(_terms(axes, back, reach[1], wide))
        lines += [
            f"line = row{_plus(skipped[0] - back)}",
            "if (line >= 0) and (line < height):",
            *inside(body),
        ]
    top_padding, left_padding = (
        _plus(cells * along.stride - along.before)
        for cells, along in zip(skipped, axes, strict=True)
    )
    lines += [
        f"top = row * {down.stride}{top_padding}",
        f"left = column * {right.stride}{left_padding}",
        "at = ((image * whole_rows + top) * whole_columns + left) * channels + channel",
    ]
    for r in range(down.stride):
        where = f"(top + {r} >= 0) and (top + {r} < whole_rows)"
        columns: list[str] = []
        for q in range(CELLS * right.stride):
            at = f"at + ({r} * whole_columns + {q}) * channels"
            # The last part of a line may have fewer cells than a thread.
            there = f"(left + {q} >= 0) and (left + {q} < whole_columns)"
            columns += store(lanes, "sums", at, f"sums{r}_{q}", there)
        lines += [f"if {where}:", *inside(columns)]
    return places(lanes, lines, CELLS)


def _terms(axes: tuple[Along, Along], back: int, reach: int, wide: str) -> list[str]:
    """What the windows of one line add to the elements of a thread's cells."""
    down, right = axes
    lines: list[str] = []
    for r in range(down.stride):
        i = r + back * down.stride
        if i >= down.size:
            continue
        for q in range(CELLS * right.stride):
            cell, phase = divmod(q, right.stride)
            for before in range(reach + 1):
                j = phase + before * right.stride
                if j >= right.size:
                    continue
                k, own = cell + reach - before, f"sums{r}_{q}[lane]"
                here = f"place{k}[lane] == i32({i * right.size + j})"
                term = f"select_{wide}({here}, value{k}, {wide}(0))"
                lines.append(f"{own} = {own} + {term}")
    return lines


def _plus(number: int) -> str:
    """Text that adds ``number``."""
    if not number:
        return ""
    return f" {'-' if number < 0 else '+'} {abs(number)}"
