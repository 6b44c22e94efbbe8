"""The texts of pooling kernels: reductions of windows, and their transposes.

Functions return the lines of a kernel, whose threads and names are those of
``stencils``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from arrayfn.lowering.cuda.windows.stencils import (
    COLUMNS,
    OUTPUT_INDEX,
    Lanes,
    WindowAxis,
    filled_registers,
    indented_lines,
    store,
    stores,
    thread_items,
    windows,
)

CELLS: Final = 2
"""Cells that a thread of ``put_body`` has. A cell has one element for each stride."""
MAX_CELLS: Final = 4
"""The most elements of a cell, which are in registers."""


def sum_body(lanes: Lanes, axes: tuple[WindowAxis, WindowAxis]) -> list[str]:
    """The kernel's lines for ``sums``, the sum of each window of ``x``.

    ``axes`` are the windows along lines and along columns. Sums are rounded once.
    """
    sums = [f"sums{k}" for k in range(COLUMNS)]
    each = [
        f"sums{k}[lane] = sums{k}[lane] + x{at}"
        for at, readers in axes[1].offsets().items()
        for k, _ in readers
    ]
    return thread_items(
        lanes,
        [
            *lanes.sums(sums),
            *windows(lanes, axes, "x", lanes.fill, (), each),
            *stores(lanes, "sums", sums),
        ],
    )


def extremum_body(
    lanes: Lanes,
    axes: tuple[WindowAxis, WindowAxis],
    gives: Sequence[str],
    *,
    minimum: bool,
) -> list[str]:
    """The kernel's lines for the maximum, or minimum, of each window of ``x``.

    NaN wins over numbers, and the first of equal elements wins.

    Args:
        lanes: The vector of a thread.
        axes: The windows along lines and along columns.
        gives: The results: ``best``, the element, and ``position``, its row-major index
            in the window.
        minimum: Take the minimum.
    """
    wide, n = lanes.compute, lanes.count
    limit = f"{wide.upper()}_{'INF' if minimum else 'NEG_INF'}"
    if lanes.is_half_precision:
        limit = f"convert_f32_{lanes.short}({limit})"
    best = [f"best{k}" for k in range(COLUMNS)]
    position = [f"position{k}" for k in range(COLUMNS)]
    has_position = "position" in gives
    each: list[str] = []
    for at, readers in axes[1].offsets().items():
        for k, j in readers:
            own, x = f"best{k}[lane]", f"x{at}"
            if not has_position:
                operation = "min" if minimum else "max"
                each.append(f"{own} = accumulate_{operation}_{wide}({own}, {x})")
                continue
            is_better = f"{'lt' if minimum else 'gt'}_{wide}({x}, {own})"
            is_first_nan = f"and_bool(isnan_{wide}({x}), not_bool(isnan_{wide}({own})))"
            index = f"position{k}[lane]"
            each += [
                f"wins = or_bool({is_better}, {is_first_nan})",
                f"{own} = select_{wide}(wins, {x}, {own})",
                f"{index} = select_i32(wins, tap + i32({j}), {index})",
            ]
    before = [f"tap = convert_i64_i32(i * {axes[1].size})"] if has_position else []
    lines = [
        f"limit = {limit}",
        *filled_registers(best, wide, n, lanes.value("limit")),
        *(filled_registers(position, "i32", n, "i32(0)") if has_position else ()),
        *windows(lanes, axes, "x", "limit", before, each),
    ]
    if "best" in gives:
        lines += stores(lanes, "best", best)
    if has_position:
        lines.append(OUTPUT_INDEX)
        for k, tile in enumerate(position):
            lines += [
                f"if column + {k} < columns:",
                f"    store_i32x{n}(position, at + {k} * channels, {tile}, 0)",
            ]
    return thread_items(lanes, lines)


def put_body(lanes: Lanes, axes: tuple[WindowAxis, WindowAxis]) -> list[str]:
    """The kernel's lines for ``sums``: of ``values`` of each element's windows.

    ``axes`` are the windows along lines and along columns. A window counts if its entry
    of ``positions`` is the element. The elements of a cell are in the same windows:
    those that begin in it, and up to ``reach`` cells before.
    """
    down, right = axes
    n, wide = lanes.count, lanes.compute
    reach = [(along.size - 1) // along.stride for along in axes]
    skipped = [along.padding // along.stride for along in axes]
    window_count = CELLS + reach[1]  # windows of a line that a thread's cells are in
    sums = [
        f"sums{r}_{q}" for r in range(down.stride) for q in range(CELLS * right.stride)
    ]
    lines = [
        *lanes.sums(sums),
        f"first = column{_plus(skipped[1] - reach[1])}",
    ]
    for k in range(window_count):
        lines += [
            f"inside{k} = (first + {k} >= 0) and (first + {k} < width)",
            lanes.tile(f"value{k}_tile"),
            f"place{k} = registers_i32({n})",
        ]
    for back in range(reach[0] + 1):
        body = ["at = ((image * height + line) * width + first) * channels + channel"]
        for k in range(window_count):
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
            for k in range(window_count)
        ]
        body += indented_lines(_terms(axes, back, reach[1], wide))
        lines += [
            f"line = row{_plus(skipped[0] - back)}",
            "if (line >= 0) and (line < height):",
            *indented_lines(body),
        ]
    top_padding, left_padding = (
        _plus(cells * along.stride - along.padding)
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
        lines += [f"if {where}:", *indented_lines(columns)]
    return thread_items(lanes, lines, CELLS)


def _terms(
    axes: tuple[WindowAxis, WindowAxis], back: int, reach: int, wide: str
) -> list[str]:
    """Lines that add the values of one line of windows to a thread's cells.

    The windows, of ``axes``, begin ``back`` cells above, and 0 to ``reach`` cells to
    the left. ``wide`` is the name of the compute dtype.
    """
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
                is_element = f"place{k}[lane] == i32({i * right.size + j})"
                term = f"select_{wide}({is_element}, value{k}, {wide}(0))"
                lines.append(f"{own} = {own} + {term}")
    return lines


def _plus(number: int) -> str:
    """The end of an expression that adds ``number``; empty for 0."""
    if not number:
        return ""
    return f" {'-' if number < 0 else '+'} {abs(number)}"
