"""Convolutions as products of windows that are never all in memory.

What ``sliding_windows`` copies is larger than its operand by the size of a window.
Where its only reader is a product, a work item is some rows of the output: it copies
the windows that these need to scratch memory, in the cache, and multiplies. Items
follow from the shape only, and so do bits: BLAS rounds differently where an item ends.
There are enough of them for 16 cores where that costs little packing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Program, Var
from arrayfn.ir.layout import Shape
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Axis,
    Compute,
    Load,
    Nest,
    Statement,
    Store,
    Value,
)
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer, grain_of
from arrayfn.lowering.libraries.packed_products import is_packed, packed_bytes
from arrayfn.lowering.steps import NestStep, PlanStep
from arrayfn.passes.reads import Reads, affine_view

SCRATCH: Final = 384 * 1024  # bytes of windows in one item: most of an L2 cache
PACKED_ROWS: Final = 256  # rows of an item for which the kernel is worth packing
MIN_ROWS: Final = 96  # rows of an item for which packing does not yet cost 5 %
ITEMS: Final = 16  # the number of items is a multiple of this, if they are long enough
MULTIPLE: Final = 16  # rows of an item come in whole micro-kernels of BLAS
SMALL: Final = 1 << 16  # elements of windows below which one copy is as fast
DIMENSIONS: Final = 4  # the dimensions of the rows, and of the columns, at most


def array_uses(program: Program, reads: Reads) -> Counter[Var]:
    """Count for each array how many equations and outputs of ``program`` read it."""
    atoms = [
        atom
        for equation in program.equations
        if affine_view(equation) is None
        for atom in equation.inputs
    ]
    atoms += program.outputs
    return Counter(
        reads[atom].base if atom in reads else atom
        for atom in atoms
        if isinstance(atom, Var)
    )


def without_copy(
    call: LibraryCall, steps: list[PlanStep], uses: Mapping[Var, int]
) -> list[LibraryCall | Nest]:
    """Remove the copy of windows before the GEMM ``call``, if there is one.

    The steps ``w = sliding_windows(x); y = w @ k`` of a convolution become one call
    that reads ``x``. ``steps`` are those so far; the copy is removed from them.
    ``uses`` counts the readers of arrays: the product must be the only one of the copy.
    Returns what replaces ``call``.
    """
    integers = call.integers
    m, n, k, batch = (integers[name] for name in ("m", "n", "k", "batch"))
    size = (k, m) if integers["transpose_a"] else (m, k)
    if batch == 1 and integers["lda"] == size[1]:
        copied = _remove_copy(call.reads["a"], (1, *size), steps, uses)
        if copied is not None:
            product = _sum_over_windows if integers["transpose_a"] else _left_product
            return product(call, *copied)
    is_plain = integers["ldb"] == n and integers["batch_stride_b"] in (0, k * n)
    if is_plain and not integers["transpose_b"]:
        copied = _remove_copy(call.reads["b"], (batch, k, n), steps, uses)
        if copied is not None:
            return _right_product(call, *copied)
    return [call]


def _remove_copy(
    windows: Pointer, shape: Shape, steps: list[PlanStep], uses: Mapping[Var, int]
) -> tuple[Pointer, dict[str, int]] | None:
    """Remove the copy that makes ``windows``; return its operand and its dimensions.

    None unless some step copies windows there as a batch of matrices of ``shape``, and
    only this product reads them.
    """
    if math.prod(shape) < SMALL or uses.get(windows.array, 0) != 1 or windows.offset:
        return None
    for position, step in enumerate(steps):
        if (
            isinstance(step, NestStep)
            and step.nest.primitives == ("sliding_windows",)
            and step.writes == [windows.array]
        ):
            dimensions = _dimensions(step.nest, shape)
            if dimensions is None:
                return None
            del steps[position]
            source = next(o for o in step.nest.operands if not o.written)
            return Pointer(source.array, source.offset), dimensions
    return None


def _left_product(
    call: LibraryCall, x: Pointer, dimensions: Mapping[str, int]
) -> list[LibraryCall | Nest]:
    """Return the call of a product whose rows are windows: an item is some rows.

    It copies the windows of these rows to scratch memory and multiplies them.

    ``call`` is the GEMM, ``x`` the operand of the windows, and ``dimensions`` says
    where their elements lie in it (see ``_dimensions``).
    """
    integers, size = call.integers, x.array.type.dtype.itemsize
    m, n, k = (integers[name] for name in "mnk")
    # As many rows as have windows that fit into scratch memory.
    tile = _tile(m, max(PACKED_ROWS, SCRATCH // (k * size)))
    suffix, room, library = _multiplied(call, tile, n, k)
    product = replace(
        call,
        provider=call.provider.replace("gemm", f"windows{suffix}"),
        reads={"x": x, "b": call.reads["b"]},
        scratch={"windows": room + tile * k * size},
        integers={
            "m": m,
            "n": n,
            "k": k,
            "ldb": integers["ldb"],
            "ldc": integers["ldc"],
            "transpose_b": integers["transpose_b"],
            "tile": tile,
            **dimensions,
        },
        items=-(-m // tile),
        grain=grain_of(tile * n * k),
        library=library,
    )
    return [product]


def _right_product(
    call: LibraryCall, x: Pointer, dimensions: Mapping[str, int]
) -> list[LibraryCall | Nest]:
    """Return the call of a product whose columns are windows.

    An item computes some indices of the outermost axis that the columns run over. The
    arguments are those of ``_left_product``.
    """
    integers, size = call.integers, x.array.type.dtype.itemsize
    m, n, k, batch = (integers[name] for name in ("m", "n", "k", "batch"))
    cut, extent, inner = _cut(dimensions, n)
    # An item has ``tile`` indices of the axis, whose windows fit into scratch memory.
    # There are a multiple of ITEMS items, if tiles do not become too small for that.
    smallest = -(-PACKED_ROWS // (2 * inner))
    max_tile = max(smallest, SCRATCH // (k * size * inner))
    tiles = -(-extent // min(max_tile, extent))
    tiles = -(-tiles * batch // ITEMS) * ITEMS // batch or 1
    tile = max(-(-extent // tiles), min(smallest, -(-extent // 2)))
    suffix, room, library = _multiplied(call, m, tile * inner, k)
    product = replace(
        call,
        provider=call.provider.replace("gemm", f"windows_right{suffix}"),
        reads={"a": call.reads["a"], "x": x},
        scratch={"windows": room + tile * inner * k * size},
        integers={
            "m": m,
            "n": n,
            "k": k,
            "lda": integers["lda"],
            "transpose_a": integers["transpose_a"],
            "batch_stride_a": integers["batch_stride_a"],
            "tile": tile,
            "tiles": -(-extent // tile),
            "cut": cut,
            "inner": inner,
            **dimensions,
        },
        items=batch * -(-extent // tile),
        grain=grain_of(m * tile * inner * k),
        library=library,
    )
    return [product]


def _sum_over_windows(
    call: LibraryCall, x: Pointer, dimensions: Mapping[str, int]
) -> list[LibraryCall | Nest]:
    """Return the calls of a product that sums over windows: an item adds up some.

    The gradient of a convolution's kernel is such a product. The partial sums are then
    added up in order. Where parts are few, an item is also a piece of the outermost
    axis that the windows' columns run over. The arguments are those of
    ``_left_product``.

    The sizes:

    * ``parts``: parts of the sum over ``k``, each of ``part`` of its indices. There are
      at most ``ITEMS``, since each has partial sums of the size of the output;
    * ``extent``: indices of the outermost axis, number ``cut``; each has ``inner`` of
      the windows' columns;
    * ``pieces``: pieces of that axis, each of ``piece`` of its indices;
    * ``width``: bytes of a window's columns in a piece;
    * ``tile``: windows that are in scratch memory at once.
    """
    gemm_integers, output = call.integers, call.writes["c"].array
    dtype = output.type.dtype
    m, n, k = (gemm_integers[name] for name in "mnk")
    # In this order: parts of the sum, pieces of the columns, windows at a time.
    parts = max(1, min(ITEMS, k // PACKED_ROWS))
    part = -(-k // parts)
    cut, extent, inner = _cut(dimensions, m)
    piece = -(-extent // min(extent, -(-ITEMS // parts)))
    pieces = -(-extent // piece)
    width = piece * inner * dtype.itemsize
    tile = min(part, max(PACKED_ROWS, SCRATCH // width))
    suffix, room, library = _multiplied(call, piece * inner, n, tile)
    sums = output if parts == 1 else Var(ArrayType((parts, m, n), dtype))
    calls: list[LibraryCall | Nest] = [
        replace(
            call,
            provider=call.provider.replace("gemm", f"window_sums{suffix}"),
            reads={"x": x, "b": call.reads["b"]},
            writes={"c": Pointer(sums)},
            scratch={"windows": room + tile * width},
            integers={
                "m": m,
                "n": n,
                "k": k,
                "ldb": gemm_integers["ldb"],
                "transpose_b": gemm_integers["transpose_b"],
                "tile": tile,
                "part": part,
                "piece": piece,
                "pieces": pieces,
                "cut": cut,
                "inner": inner,
                **dimensions,
            },
            items=-(-k // part) * pieces,
            grain=1,
            library=library,
        )
    ]
    if parts > 1:
        calls.append(_added(sums, output, -(-k // part)))
    return calls


def _multiplied(
    call: LibraryCall, rows: int, columns: int, terms: int
) -> tuple[str, int, str]:
    """Decide what multiplies the windows of an item: BLAS or micro-kernels.

    ``call`` is the GEMM. The item's result has ``rows`` and ``columns``, and its sums
    have ``terms``. Returns the suffix of the provider's name, the bytes of scratch
    memory before the windows, and the library's name.
    """
    if not is_packed(call.provider, rows, columns, terms):
        return "", 0, "BLAS, of windows"
    size = call.writes["c"].array.type.dtype.itemsize
    return "_packed", packed_bytes(size, columns), "micro-kernels, of windows"


def _added(sums: Var, output: Var, parts: int) -> Nest:
    """Return the nest that adds up partial sums, first to last, into ``output``.

    ``sums`` has ``parts`` arrays of its shape, one after the other.
    """
    dtype, size = output.type.dtype, output.type.size
    operands: list[ArrayOperand] = []
    statements: list[Statement] = []
    total: Value | None = None
    # total = part_0 + part_1 + ..., each loaded at a distance of ``size`` elements.
    for number in range(parts):
        operands.append(
            ArrayOperand(sums, dtype, (1,), offset=number * size, written=False)
        )
        value = Value(f"part_{number}", dtype)
        statements.append(Load(value, number, "element", stage=0))
        if total is not None:
            result = Value(f"sum_{number}", dtype)
            function = f"add_{dtypes.short_name(dtype)}"
            terms = (total, value)
            statements.append(
                Compute(result, function, terms, "element", stage=0, cost=1)
            )
            value = result
        total = value
    assert total is not None
    operands.append(ArrayOperand(output, dtype, (1,), offset=0, written=True))
    statements.append(Store(parts, total, "element", stage=0))
    return Nest(
        (Axis(size, reduced=False),),
        tuple(operands),
        tuple(statements),
        ("dot_general",),
        "adds up the parts of a product of windows",
    )


def _tile(rows: int, max_rows: int) -> int:
    """Return the number of rows of an item, for ``rows`` rows in all.

    It is about ``max_rows`` at most, and whole micro-kernels of BLAS: a multiple of 16.
    The number of items is a multiple of ``ITEMS`` if items are long enough.
    """
    items = -(-rows // max_rows)
    items = -(-items // ITEMS) * ITEMS
    tile = max(-(-rows // items), min(MIN_ROWS, -(-rows // 2)))
    return -(-tile // MULTIPLE) * MULTIPLE


def _cut(dimensions: Mapping[str, int], columns: int) -> tuple[int, int, int]:
    """Return ``(number, extent, columns per index)`` of the columns' outermost axis.

    That is the first of the columns' dimensions that is longer than 1. ``columns`` is
    the number of all columns.
    """
    extents = [dimensions[f"columns_{d}"] for d in range(DIMENSIONS)]
    cut = next((d for d, n in enumerate(extents) if n > 1), DIMENSIONS - 1)
    return cut, extents[cut], columns // extents[cut]


Dimension = tuple[int, int]  # extent, and stride in the operand


def _dimensions(nest: Nest, shape: Shape) -> dict[str, int] | None:
    """Say where the elements of windows lie in the operand, as kernel arguments.

    The copy ``nest`` makes matrices of ``shape`` (batch, rows, columns). Each of the
    three has dimensions in the operand, outermost first: ``rows_0`` is an extent and
    ``row_step_0`` its stride. The batch has one dimension. None if there are more than
    the kernel takes.
    """
    source, target = sorted(nest.operands, key=lambda operand: operand.written)
    _, rows, columns = shape
    dimensions: dict[str, list[tuple[int, Dimension]]]
    dimensions = {"problem": [], "row": [], "column": []}
    strides = zip(nest.axes, source.strides, target.strides, strict=True)
    pieces = [(axis.extent, step, position) for axis, step, position in strides]
    # Cut axes where they cross from columns to rows, and from rows to the batch.
    for border in (columns, rows * columns):
        pieces = [part for piece in pieces for part in _split_at(*piece, border)]
    for extent, step, position in pieces:
        name = "column"
        if position >= columns:
            name = "row" if position < rows * columns else "problem"
        dimensions[name].append((position, (extent, step)))
    arguments: dict[str, int] = {}
    for (name, positioned), extent in zip(dimensions.items(), shape, strict=True):
        ordered = [d for _, d in sorted(positioned, key=lambda entry: -entry[0])]
        limit = 1 if name == "problem" else DIMENSIONS
        if len(ordered) > limit or math.prod(n for n, _ in ordered) != extent:
            return None
        missing = limit - len(ordered)
        for number, (n, step) in enumerate([(1, 0)] * missing + ordered):
            arguments |= {f"{name}s_{number}": n, f"{name}_step_{number}": step}
    return arguments


def _split_at(
    extent: int, step: int, position: int, border: int
) -> list[tuple[int, int, int]]:
    """Cut an axis at ``border``, if it crosses that: the parts, outer one first.

    The axis has ``extent`` indices; each moves by ``step`` elements in the operand and
    by ``position`` elements in the copy. A border is an offset in the copy, at which
    another dimension of the matrix begins. An axis of 12 contiguous elements, where
    rows have 4, is one of 3 rows and one of 4 columns:

    >>> _split_at(12, 1, 1, 4)
    [(3, 4, 4), (4, 1, 1)]
    """
    inside = border // position
    if (
        position < border < extent * position
        and border % position == extent % inside == 0
    ):
        outer = (extent // inside, step * inside, border)
        return [outer, (inside, step, position)]
    return [(extent, step, position)]
