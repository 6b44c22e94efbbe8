"""Gradients of depthwise convolutions with respect to their kernels.

An element of the gradient is the sum, over all outputs, of the output's cotangent times
the element that the tap reads. A first kernel computes partial sums: a thread computes
one row of the window's taps over some lines of the output. A second kernel adds them up
in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from arrayfn.dtypes import DType, compute_dtype
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.handwritten import Handwritten, HandwrittenCall, indented
from arrayfn.lowering.cuda.windows.stencils import (
    COLUMNS,
    THREADS,
    Lanes,
    WindowAxis,
)
from arrayfn.lowering.libraries.calls import Pointer

_MAX_THREADS: Final = 1 << 16
"""Threads of the first kernel. For larger images each thread has more lines."""
_MAX_SUMS: Final = 72  # 32-bit registers for a thread's sums
_LARGEST: Final = 2**31  # indices are below it
_SUM_WARPS: Final = 32
"""Warps of a block of the second kernel, and lanes of a warp."""


def has_kernel_sums(p: Mapping[str, int], dtype: DType) -> bool:
    """Return whether the kernels compute the kernel's cotangent of this convolution.

    They do if a thread has enough registers for the sums of a row of the window, and if
    indices are small enough. ``p`` are the integers that a call of cuDNN would have,
    ``dtype`` is the arrays' dtype.
    """
    lanes = Lanes(dtype)
    words = compute_dtype(dtype).itemsize // 4
    arrays = ("count", "extent")
    pixels = [p["batch"] * p[f"{name}0"] * p[f"{name}1"] for name in arrays]
    return (
        p["size1"] * lanes.count * words <= _MAX_SUMS
        and max(pixels) * p["groups"] < _LARGEST
        and min(pixels) > 1  # one pixel may be a slice that begins unaligned
    )


def kernel_sums(
    source: Pointer, cotangent: Pointer, result: Var, p: Mapping[str, int]
) -> Iterable[HandwrittenCall]:
    """Yield the two calls that compute the kernel's cotangent ``result``.

    ``source`` is the convolution's operand, ``cotangent`` that of its output. The
    result is [size, size, channel]; ``p`` are the integers that a call of cuDNN would
    have.
    """
    dtype = result.type.dtype
    lanes = Lanes(dtype)
    # A thread has a vector of channels, a row of the window, and ``lines_each`` lines
    # of the output. The sums of all its lines have one slot.
    vectors, lines = p["groups"] // lanes.count, p["batch"] * p["count0"]
    lines_each = max(1, lines * p["size0"] * vectors // _MAX_THREADS)
    slots = -(-lines // lines_each)
    partial = Var(ArrayType((slots, result.type.size), compute_dtype(dtype)))
    integers = {
        "items": slots * p["size0"] * vectors,
        "vectors": vectors,
        "each": lines_each,
        "lines": lines,
        "rows": p["count0"],
        "columns": p["count1"],
        "height": p["extent0"],
        "width": p["extent1"],
    }
    down, right = (
        WindowAxis(p[f"size{k}"], p[f"stride{k}"], p[f"dilation{k}"], p[f"low{k}"])
        for k in range(2)
    )
    yield HandwrittenCall(
        Handwritten(
            "depthwise",
            _sums(lanes, down, right),
            THREADS,
            "Sums for a row of each channel's window, over some lines.",
            "channels by themselves, whose windows are read where they lie",
        ),
        reads={"x": source, "cotangent": cotangent},
        writes={"sums": Pointer(partial)},
        integers=integers,
        blocks=-(-integers["items"] // THREADS),
    )
    yield HandwrittenCall(
        Handwritten(
            "depthwise",
            _totals(lanes),
            _SUM_WARPS * _SUM_WARPS,
            "The sums of all lines.",
            "partial sums of threads added up in a fixed order",
        ),
        reads={"sums": Pointer(partial)},
        writes={"totals": Pointer(result)},
        integers={"slots": slots, "count": result.type.size},
        blocks=-(-result.type.size // _SUM_WARPS),
    )


def _sums(lanes: Lanes, down: WindowAxis, right: WindowAxis) -> str:
    """Return the lines of the first kernel: partial ``sums`` over some lines.

    They are sums of products of ``x`` and ``cotangent``. ``down`` and ``right`` are the
    windows along lines and columns. A thread has the row ``i`` of taps, a vector of
    channels, and ``each`` lines of the output. The sums of these go to the thread's
    ``slot``: ``sums0``, ``sums1`` and so on, one for each tap. ``lines``, ``rows``,
    ``columns`` and ``height`` are integers of the call in ``kernel_sums``.
    """
    n, wide = lanes.count, lanes.compute
    sums = [f"sums{j}" for j in range(right.size)]
    stores = [
        f"store_{wide}x{n}(sums, at + {j} * channels, {name}, 0)"
        for j, name in enumerate(sums)
    ]
    return f"""
item = block_index() * {THREADS} + thread_index()
if item < items:
    channel = remainder(item, vectors) * {n}
    channels = vectors * {n}
    rest = quotient(item, vectors)
    i = remainder(rest, {down.size})
    slot = quotient(rest, {down.size})
{indented(lanes.sums(sums), 1)}
    for iteration in range(each):
        number = slot * each + iteration
        if number < lines:
            row = remainder(number, rows)
            image = quotient(number, rows)
            line = {down.at("row", "i")}
            if (line >= 0) and (line < height):
                for part in range(quotient(columns + {COLUMNS - 1}, {COLUMNS})):
{indented(_products(lanes, right), 5)}
    at = (slot * {down.size} + i) * {right.size} * channels + channel
{indented(stores, 1)}
"""


def _products(lanes: Lanes, right: WindowAxis) -> str:
    """Return lines that add the products of ``COLUMNS`` outputs of a line to the sums.

    ``own0`` to ``own3`` are the outputs' cotangents, ``x0``, ``x1`` and so on the
    elements that they read. ``right`` are the windows along columns. The lines stand in
    loops of ``_sums``, which defines ``image``, ``line`` (of ``x``), ``number`` (of the
    line of outputs) and ``part`` (of that line).
    """
    loads: list[str] = []
    values: list[str] = []

    def load(name: str, array: str, index: str, condition: str) -> None:
        """Append lines to ``loads`` and ``values``, which define the vector ``name``.

        If ``condition`` holds, it is loaded from ``index`` of ``array`` on; else it is
        zeros.
        """
        tile = f"{name}_tile"
        loads.append(lanes.tile(tile))
        loads.extend(lanes.load_if(condition, array, index, tile, lanes.fill))
        values.append(f"{name} = {lanes.value(f'{tile}[lane]')}")

    for k in range(COLUMNS):
        index = f"own_at + {k} * channels"
        load(f"own{k}", "cotangent", index, f"column + {k} < columns")
    for element in right.offsets():
        condition = f"(first + {element} >= 0) and (first + {element} < width)"
        load(f"x{element}", "x", f"at + {element} * channels", condition)
    products = [
        f"sums{j}[lane] = fma_{lanes.compute}(x{element}, own{k}, sums{j}[lane])"
        for element, readers in right.offsets().items()
        for k, j in readers
    ]
    return f"""
column = part * {COLUMNS}
first = {right.at("column")}
at = ((image * height + line) * width + first) * channels + channel
own_at = (number * columns + column) * channels + channel
{indented(loads, 0)}
for lane in range({lanes.count}):
{indented(values, 1)}
{indented(products, 1)}
"""


def _totals(lanes: Lanes) -> str:
    """Return the lines of the second kernel, which add all slots of ``sums``.

    The sums go to ``totals``. Each lane sums one element; the warps of a block share
    the slots. A block has ``_SUM_WARPS`` warps, as many as a warp has lanes.
    """
    wide = lanes.compute
    return f"""
member = remainder(thread_index(), {_SUM_WARPS})
warp = quotient(thread_index(), {_SUM_WARPS})
at = block_index() * {_SUM_WARPS} + member
own = shared_{wide}({_SUM_WARPS * _SUM_WARPS})
total = {wide}(0)
if at < count:
    for iteration in range(quotient(slots + {_SUM_WARPS - 1} - warp, {_SUM_WARPS})):
        total = total + sums[(iteration * {_SUM_WARPS} + warp) * count + at]
own[warp * {_SUM_WARPS} + member] = total
barrier()
if (warp == 0) and (at < count):
    for other in range(1, {_SUM_WARPS}):
        total = total + own[other * {_SUM_WARPS} + member]
    totals[at] = {lanes.element("total")}
"""
