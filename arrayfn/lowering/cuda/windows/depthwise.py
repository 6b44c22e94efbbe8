"""Depthwise convolutions with channels last: a kernel that reads the image once.

It takes about as long as a copy of the image; cuDNN takes several times as long.
Threads are assigned as in ``stencils``; products are summed in float32 by fused
multiply-adds. The integers ``p`` are those that a call of cuDNN would have; ``gives``
says which array of the convolution is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from arrayfn.dtypes import DType
from arrayfn.ir import Var
from arrayfn.lowering.cuda.handwritten import Handwritten, HandwrittenCall
from arrayfn.lowering.cuda.windows import stencils
from arrayfn.lowering.cuda.windows.depthwise_kernels import has_kernel_sums, kernel_sums
from arrayfn.lowering.cuda.windows.stencils import (
    COLUMNS,
    THREADS,
    Extents,
    Lanes,
    WindowAxis,
)
from arrayfn.lowering.libraries.calls import Pointer

AXES: Final = 2
_MAX_TAPS: Final = 64  # elements of a window
_MAX_WIDTH: Final = 9  # columns of a window


def is_depthwise(gives: str, p: Mapping[str, int], dtype: DType) -> bool:
    """Return whether these kernels compute a convolution, whose result has ``dtype``.

    The operand's cotangent is computed only if strides are 1: it is then a convolution
    of the output's cotangent by the reversed kernel.
    """
    # Channels must be last, each a group of its own, and fill vectors. Windows must be
    # short.
    if (
        p["axes"] != AXES
        or p["last"] != 1
        or (p["inner"], p["outer"]) != (1, 1)
        or p["groups"] % Lanes(dtype).count
        or not 1 < p["size0"] * p["size1"] <= _MAX_TAPS
        or p["size1"] > _MAX_WIDTH
    ):
        return False
    if gives == "kernel":
        return has_kernel_sums(p, dtype)
    strides = [p[f"stride{k}"] for k in range(AXES)]
    return (gives == "output" or max(strides) == 1) and _extents(gives, p).fits()


def _extents(gives: str, p: Mapping[str, int]) -> Extents:
    """Return the extents of a convolution, or of its operand's cotangent.

    In ``p``, ``count0`` is the output's extent along spatial axis 0, and ``extent0``
    the operand's. For the cotangent, the two change places.
    """
    rows_name, other = ("count", "extent") if gives == "output" else ("extent", "count")
    rows, columns = (p[f"{rows_name}{k}"] for k in range(AXES))
    height, width = (p[f"{other}{k}"] for k in range(AXES))
    return Extents(p["batch"], rows, columns, height, width, p["groups"])


def depthwise(
    first: Pointer, second: Pointer, result: Var, gives: str, p: Mapping[str, int]
) -> Iterable[HandwrittenCall]:
    """Return the calls that compute ``result``, one of the arrays of a convolution.

    ``first`` and ``second`` are the other two. The convolution's kernel is [size, size,
    channel].
    """
    if gives == "kernel":
        return kernel_sums(first, second, result, p)
    return (_convolution(first, second, result, gives, p),)


def _convolution(
    source: Pointer, taps: Pointer, result: Var, gives: str, p: Mapping[str, int]
) -> HandwrittenCall:
    """Return the call that computes ``result``: output, or operand's cotangent.

    ``source`` is the array that windows move over, and ``taps`` the convolution's
    kernel.
    """
    lanes = Lanes(result.type.dtype)
    forward = gives == "output"

    def along(k: int) -> WindowAxis:
        """Return the windows along spatial axis ``k``.

        For the operand's cotangent (not ``forward``), windows reach to the other side:
        their padding is the rest of the window.
        """
        size, step = p[f"size{k}"], p[f"dilation{k}"]
        before = p[f"low{k}"] if forward else (size - 1) * step - p[f"low{k}"]
        return WindowAxis(size, p[f"stride{k}"], step, before)

    axes = along(0), along(1)
    integers = _extents(gives, p).integers(lanes.count)
    text = Handwritten(
        "depthwise",
        _body(lanes, axes, forward),
        THREADS,
        "Windows of channels: each channel's sum with taps of its own.",
        "channels by themselves, whose windows are read where they lie",
    )
    return HandwrittenCall(
        text,
        reads={"x": source, "taps": taps},
        writes={"sums": Pointer(result)},
        integers=integers,
        blocks=stencils.block_count(integers),
    )


def _body(lanes: Lanes, axes: tuple[WindowAxis, WindowAxis], forward: bool) -> str:
    """Return the kernel's lines, which compute ``sums`` from ``x`` and ``taps``.

    ``axes`` are the windows along lines and along columns. Taps are reversed unless
    ``forward``. A line of taps is loaded to ``tap0``, ``tap1`` and so on. For each
    channel, the outputs ``sums0`` to ``sums3`` add the products of taps and the
    elements ``x0``, ``x1`` and so on.
    """
    down, right = axes
    sums = [f"sums{k}" for k in range(COLUMNS)]
    i = "i" if forward else f"({down.size - 1} - i)"
    loads = [f"tap_at = {i} * {right.size} * channels + channel"]
    products: list[str] = []
    for j in range(right.size):
        tile = f"tap{j}_tile"
        loads += [
            lanes.tile(tile),
            lanes.load("taps", f"tap_at + {j} * channels", tile),
        ]
        products.append(f"tap{j} = {lanes.value(f'{tile}[lane]')}")
    for element, readers in right.offsets().items():
        for k, tap in readers:
            j = tap if forward else right.size - 1 - tap
            terms = f"x{element}, tap{j}, {sums[k]}[lane]"
            products.append(f"{sums[k]}[lane] = fma_{lanes.compute}({terms})")
    body = f"""
{lanes.sums(sums)}
{stencils.windows(lanes, axes, lanes.fill, loads, products)}
{stencils.stores(lanes, "sums", sums)}
"""
    return stencils.thread_items(lanes, body)
