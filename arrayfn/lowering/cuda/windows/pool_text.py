"""The texts of pooling kernels: reductions of windows, and their transposes.

Functions return the lines of a kernel, with the threads and names of ``stencils``.
``lanes`` is the vector of a thread, ``axes`` are the windows along lines and along
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from arrayfn.lowering.cuda.handwritten import indented
from arrayfn.lowering.cuda.windows.stencils import (
    COLUMNS,
    OUTPUT_INDEX,
    Lanes,
    WindowAxis,
    filled_registers,
    store,
    stores,
    thread_items,
    windows,
)

CELLS: Final = 2
"""Cells for each thread of ``put_body``. A cell has one element for each stride."""
MAX_CELLS: Final = 4
"""Elements of the largest cell, which are in registers."""


def sum_body(lanes: Lanes, axes: tuple[WindowAxis, WindowAxis]) -> str:
    """Return the lines of a kernel for ``sums``, the sum of each window of ``x``.

    Sums are rounded once.
    """
    _, right = axes
    sums = [f"sums{k}" for k in range(COLUMNS)]
    # An element ``x0``, ``x1`` and so on is added to each output whose window has it.
    each = [
        f"sums{k}[lane] = sums{k}[lane] + x{element}"
        for element, readers in right.offsets().items()
        for k, _ in readers
    ]
    body = f"""
{lanes.sums(sums)}
{windows(lanes, axes, lanes.fill, (), each)}
{stores(lanes, "sums", sums)}
"""
    return thread_items(lanes, body)


def extremum_body(
    lanes: Lanes,
    axes: tuple[WindowAxis, WindowAxis],
    gives: Sequence[str],
    *,
    minimum: bool,
) -> str:
    """Return the lines of a kernel for the extremum of each window of ``x``.

    NaN takes precedence over numbers, and the first of equal elements over others.
    ``gives`` are the results: ``best``, the element, and ``position``, its row-major
    index in the window. The extremum is the ``minimum``, or else the maximum.
    """
    _, right = axes
    # ``limit`` is the identity of the extremum: the element beyond the border.
    wide, n = lanes.compute, lanes.count
    limit = f"{wide.upper()}_{'INF' if minimum else 'NEG_INF'}"
    if lanes.is_half_precision:
        limit = f"convert_f32_{lanes.short}({limit})"
    best = [f"best{k}" for k in range(COLUMNS)]
    positions = [f"position{k}" for k in range(COLUMNS)]
    set_position = first_tap = store_position = ""
    if "position" in gives:
        set_position = filled_registers(positions, "i32", n, "i32(0)")
        first_tap = f"tap = convert_i64_i32(i * {right.size})"
        store_position = "\n".join(
            f"if column + {k} < columns:\n"
            f"    store_i32x{n}(position, at + {k} * channels, {tile}, 0)"
            for k, tile in enumerate(positions)
        )
        store_position = f"{OUTPUT_INDEX}\n{store_position}"
    comparisons = [
        line
        for element, readers in right.offsets().items()
        for k, tap in readers
        for line in _compare(wide, f"x{element}", k, tap, gives, minimum)
    ]
    body = f"""
limit = {limit}
{filled_registers(best, wide, n, lanes.value("limit"))}
{set_position}
{windows(lanes, axes, "limit", (first_tap,), comparisons)}
{stores(lanes, "best", best) if "best" in gives else ""}
{store_position}
"""
    return thread_items(lanes, body)


def _compare(
    wide: str, x: str, output: int, tap: int, gives: Sequence[str], minimum: bool
) -> list[str]:
    """Return lines that make ``x`` the extremum of an output if it is better.

    Gives, for a maximum and its position in float32, output 0 and tap 2:

        wins = or_bool(gt_f32(x1, best0[lane]),
            and_bool(isnan_f32(x1), not_bool(isnan_f32(best0[lane]))))
        best0[lane] = select_f32(wins, x1, best0[lane])
        position0[lane] = select_i32(wins, tap + i32(2), position0[lane])

    The kernel's ``tap`` is the number of the first tap of the window's current line;
    the argument ``tap`` counts from there. ``x`` is the variable of the element.
    ``wide`` is the name of the compute dtype; ``gives`` and ``minimum`` are as in
    ``extremum_body``.
    """
    best, position = f"best{output}[lane]", f"position{output}[lane]"
    if "position" not in gives:
        operation = "min" if minimum else "max"
        return [f"{best} = accumulate_{operation}_{wide}({best}, {x})"]
    is_better = f"{'lt' if minimum else 'gt'}_{wide}({x}, {best})"
    is_first_nan = f"and_bool(isnan_{wide}({x}), not_bool(isnan_{wide}({best})))"
    return [
        f"wins = or_bool({is_better}, {is_first_nan})",
        f"{best} = select_{wide}(wins, {x}, {best})",
        f"{position} = select_i32(wins, tap + i32({tap}), {position})",
    ]


def put_body(lanes: Lanes, axes: tuple[WindowAxis, WindowAxis]) -> str:
    """Return the lines of a kernel that sums ``values`` of an element's windows.

    A window counts if its entry of ``positions`` is the element. The elements of a
    cell, ``stride`` along each axis, are in the same windows: those that begin in the
    cell, and in up to ``reach`` cells before it. The sums of the thread's elements are
    ``sums0_0``, ``sums0_1`` and so on, by row and column; the windows of a line of
    cells are ``value0``, ``value1`` and so on, with the positions ``place0`` and so on.
    """
    down, right = axes
    reach = [(along.size - 1) // along.stride for along in axes]
    # Cells that are all padding: no thread has them, but windows begin there.
    skipped = [along.padding // along.stride for along in axes]
    window_count = CELLS + reach[1]  # windows of a line that a thread's cells are in
    sums = [
        f"sums{r}_{q}" for r in range(down.stride) for q in range(CELLS * right.stride)
    ]
    declared: list[str] = []
    for k in range(window_count):
        declared += [
            f"inside{k} = (first + {k} >= 0) and (first + {k} < width)",
            lanes.tile(f"value{k}_tile"),
            f"place{k} = registers_i32({lanes.count})",
        ]
    lines = [
        _add_line_of_windows(lanes, axes, skipped[0] - back, back, reach[1])
        for back in range(reach[0] + 1)
    ]
    body = f"""
{lanes.sums(sums)}
first = column{_plus(skipped[1] - reach[1])}
{indented(declared, 0)}
{"".join(lines)}
{_store_cells(lanes, axes, skipped)}
"""
    return thread_items(lanes, body, CELLS)


def _add_line_of_windows(
    lanes: Lanes,
    axes: tuple[WindowAxis, WindowAxis],
    distance: int,
    back: int,
    reach: int,
) -> str:
    """Return lines that add a line of windows' values to a thread's cells.

    ``put_body`` declares the registers ``value0_tile`` and so on, ``place0`` and so on
    (the windows' positions), ``first`` (the column of the first window) and ``inside0``
    and so on (whether a window exists). Windows that do not exist get position -1,
    which is that of no element.

    Args:
        lanes: The vector of a thread.
        axes: The windows.
        distance: The number of the line of windows less that of the cells' row.
        back: How many cells above the thread's cells the windows begin.
        reach: How many cells to the left of the thread's cells they begin at most.
    """
    loads: list[str] = []
    values: list[str] = []
    for k in range(CELLS + reach):
        tile, index = f"value{k}_tile", f"at + {k} * channels"
        loads += [
            f"for lane in range({lanes.count}):",
            f"    {tile}[lane] = {lanes.fill}",
            f"    place{k}[lane] = i32(-1)",
            f"if inside{k}:",
            "    " + lanes.load("values", index, tile),
            f"    load_i32x{lanes.count}(positions, {index}, place{k}, 0)",
        ]
        values.append(f"value{k} = {lanes.value(f'{tile}[lane]')}")
    return f"""
line = row{_plus(distance)}
if (line >= 0) and (line < height):
    at = ((image * height + line) * width + first) * channels + channel
{indented(loads, 1)}
    for lane in range({lanes.count}):
{indented(values, 2)}
{indented(_terms(axes, back, reach, lanes.compute), 2)}
"""


def _terms(
    axes: tuple[WindowAxis, WindowAxis], back: int, reach: int, wide: str
) -> list[str]:
    """Return lines that add the values of one line of windows to a thread's cells.

    Gives, for each element and each window that it is in, here the last element of a
    window of 2 by 2 with strides of 1:

        sums0_1[lane] = sums0_1[lane] + select_f32(
            place0[lane] == i32(3), value0, f32(0))

    The windows, of ``axes``, begin ``back`` cells above, and 0 to ``reach`` cells to
    the left. ``wide`` is the name of the compute dtype.
    """
    down, right = axes
    lines: list[str] = []
    for r in range(down.stride):
        # The element's row in these windows.
        i = r + back * down.stride
        if i >= down.size:
            continue
        for q in range(CELLS * right.stride):
            cell, phase = divmod(q, right.stride)
            for before in range(reach + 1):
                # The element's column in the window that begins ``before`` cells to the
                # left.
                j = phase + before * right.stride
                if j >= right.size:
                    continue
                k, own = cell + reach - before, f"sums{r}_{q}[lane]"
                is_element = f"place{k}[lane] == i32({i * right.size + j})"
                term = f"select_{wide}({is_element}, value{k}, {wide}(0))"
                lines.append(f"{own} = {own} + {term}")
    return lines


def _store_cells(
    lanes: Lanes, axes: tuple[WindowAxis, WindowAxis], skipped: Sequence[int]
) -> str:
    """Return lines that store the sums of a thread's elements, if they exist.

    ``skipped`` are the cells of padding before the first cell of a thread.
    ``whole_rows`` and ``whole_columns`` are the extents of the image, integers of the
    call.
    """
    down, right = axes
    top_padding, left_padding = (
        _plus(cells * along.stride - along.padding)
        for cells, along in zip(skipped, axes, strict=True)
    )
    lines = [
        f"top = row * {down.stride}{top_padding}",
        f"left = column * {right.stride}{left_padding}",
        "at = ((image * whole_rows + top) * whole_columns + left) * channels + channel",
    ]
    for r in range(down.stride):
        columns: list[str] = []
        for q in range(CELLS * right.stride):
            at = f"at + ({r} * whole_columns + {q}) * channels"
            # The last part of a line may have fewer cells than a thread.
            exists = f"(left + {q} >= 0) and (left + {q} < whole_columns)"
            columns += store(lanes, "sums", at, f"sums{r}_{q}", exists)
        lines.append(f"if (top + {r} >= 0) and (top + {r} < whole_rows):")
        lines.append(indented(columns, 1))
    return "\n".join(lines)


def _plus(number: int) -> str:
    """Return the end of an expression that adds ``number``; empty for 0.

    For example `` + 2``, or `` - 1`` for a negative number.
    """
    if not number:
        return ""
    return f" {'-' if number < 0 else '+'} {abs(number)}"
