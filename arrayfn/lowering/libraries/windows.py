"""Products of windows (convolutions) whose windows are never in memory as a whole.

What ``sliding_windows`` copies side by side is larger than its operand by the size of a
window. Where its only reader is a product, a work item is some rows of the output: it
copies the windows that these need to scratch memory, which is near, and multiplies.

Items follow from the shape alone, and so do bits: BLAS rounds differently where an item
ends. There are enough of them for 16 cores where that costs little packing.
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
from arrayfn.lowering.steps import NestStep, PlanStep
from arrayfn.passes.reads import Reads, affine_view

SCRATCH: Final = 384 * 1024  # bytes of windows in one item: most of a core's own cache
PACKED_ROWS: Final = 256  # rows of an item for which the kernel is worth packing
MIN_ROWS: Final = 96  # rows of an item for which packing does not yet cost 5 %
ITEMS: Final = 16  # their number is a multiple of this where they are long enough
MULTIPLE: Final = 16  # rows of an item come in whole micro-kernels of BLAS
SMALL: Final = 1 << 16  # elements of windows that are as well copied at once
DIMENSIONS: Final = 4  # of the rows, and of the columns


def array_uses(program: Program, reads: Reads) -> Counter[Var]:
    """The number of equations and outputs of ``program`` that read each array."""
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
    """``call``, a GEMM; or the product of windows that it is, whose copy is dropped.

    ``uses`` counts the readers of arrays; the copy is the one among ``steps``.
    """
    given = call.integers
    m, n, k, batch = (given[name] for name in ("m", "n", "k", "batch"))
    size = (k, m) if given["transpose_a"] else (m, k)
    if batch == 1 and given["lda"] == size[1]:
        found = _take_copy(call.reads["a"], (1, *size), steps, uses)
        if found is not None:
            make = _summed if given["transpose_a"] else _product
            return make(call, *found)
    is_plain = given["ldb"] == n and given["batch_stride_b"] in (0, k * n)
    if is_plain and not given["transpose_b"]:
        found = _take_copy(call.reads["b"], (batch, k, n), steps, uses)
        if found is not None:
            return _right_product(call, *found)
    return [call]


def _take_copy(
    place: Pointer, shape: Shape, steps: list[PlanStep], uses: Mapping[Var, int]
) -> tuple[Pointer, dict[str, int]] | None:
    """The operand of the copy at ``place``, which goes, and the windows' dimensions.

    None if there is no copy there that only this product reads, of ``shape``: a batch
    of matrices.
    """
    if math.prod(shape) < SMALL or uses.get(place.array, 0) != 1 or place.offset:
        return None
    for position, step in enumerate(steps):
        if (
            isinstance(step, NestStep)
            and step.nest.primitives == ("sliding_windows",)
            and step.writes == [place.array]
        ):
            dimensions = _dimensions(step.nest, shape)
            if dimensions is None:
                return None
            del steps[position]
            source = next(o for o in step.nest.operands if not o.written)
            return Pointer(source.array, source.offset), dimensions
    return None


def _product(
    call: LibraryCall, x: Pointer, dimensions: Mapping[str, int]
) -> list[LibraryCall | Nest]:
    """Windows are the rows of the result: an item is some of them."""
    given, size = call.integers, x.array.type.dtype.itemsize
    m, n, k = (given[name] for name in "mnk")
    tile = _tile(m, max(PACKED_ROWS, SCRATCH // (k * size)))
    made = replace(
        call,
        provider=call.provider.replace("gemm_", "windows_"),
        reads={"x": x, "b": call.reads["b"]},
        scratch={"windows": tile * k * size},
        integers={
            "m": m,
            "n": n,
            "k": k,
            "ldb": given["ldb"],
            "ldc": given["ldc"],
            "transpose_b": given["transpose_b"],
            "tile": tile,
            **dimensions,
        },
        items=-(-m // tile),
        grain=grain_of(tile * n * k),
        library="BLAS, of windows",
    )
    return [made]


def _right_product(
    call: LibraryCall, x: Pointer, dimensions: Mapping[str, int]
) -> list[LibraryCall | Nest]:
    """Windows are the columns of the result: an item is some indices of the first axis.

    That is the outermost of those that the columns run over.
    """
    given, size = call.integers, x.array.type.dtype.itemsize
    m, n, k, batch = (given[name] for name in ("m", "n", "k", "batch"))
    cut, extent, inner = _cut(dimensions, n)
    smallest = -(-PACKED_ROWS // (2 * inner))
    most = max(smallest, SCRATCH // (k * size * inner))
    tiles = -(-extent // min(most, extent))
    tiles = -(-tiles * batch // ITEMS) * ITEMS // batch or 1
    tile = max(-(-extent // tiles), min(smallest, -(-extent // 2)))
    made = replace(
        call,
        provider=call.provider.replace("gemm_", "windows_right_"),
        reads={"a": call.reads["a"], "x": x},
        scratch={"windows": tile * inner * k * size},
        integers={
            "m": m,
            "n": n,
            "k": k,
            "lda": given["lda"],
            "transpose_a": given["transpose_a"],
            "batch_stride_a": given["batch_stride_a"],
            "tile": tile,
            "tiles": -(-extent // tile),
            "cut": cut,
            "inner": inner,
            **dimensions,
        },
        items=batch * -(-extent // tile),
        grain=grain_of(m * tile * inner * k),
        library="BLAS, of windows",
    )
    return [made]


def _summed(
    call: LibraryCall, x: Pointer, dimensions: Mapping[str, int]
) -> list[LibraryCall | Nest]:
    """Windows are summed over: an item has the sum of a part of them.

    The parts are added up in order. Where they are few, an item is also a piece of the
    outermost of the axes that the windows' columns run over.
    """
    given, output = call.integers, call.writes["c"].array
    dtype = output.type.dtype
    m, n, k = (given[name] for name in "mnk")
    parts = max(1, min(ITEMS, k // PACKED_ROWS))
    part = -(-k // parts)
    cut, extent, inner = _cut(dimensions, m)
    piece = -(-extent // min(extent, -(-ITEMS // parts)))
    pieces = -(-extent // piece)
    width = piece * inner * dtype.itemsize
    tile = min(part, max(PACKED_ROWS, SCRATCH // width))
    sums = output if parts == 1 else Var(ArrayType((parts, m, n), dtype))
    made: list[LibraryCall | Nest] = [
        replace(
            call,
            provider=call.provider.replace("gemm_", "window_sums_"),
            reads={"x": x, "b": call.reads["b"]},
            writes={"c": Pointer(sums)},
            scratch={"windows": tile * width},
            integers={
                "m": m,
                "n": n,
                "k": k,
                "ldb": given["ldb"],
                "transpose_b": given["transpose_b"],
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
            library="BLAS, of windows",
        )
    ]
    if parts > 1:
        made.append(_added(sums, output, -(-k // part)))
    return made


def _added(sums: Var, output: Var, parts: int) -> Nest:
    """The step that adds up the parts, first to last."""
    dtype, size = output.type.dtype, output.type.size
    operands: list[ArrayOperand] = []
    statements: list[Statement] = []
    total: Value | None = None
    for number in range(parts):
        operands.append(ArrayOperand(sums, dtype, (1,), number * size, False))
        value = Value(f"part_{number}", dtype)
        statements.append(Load(value, number, "element", 0))
        if total is not None:
            result = Value(f"sum_{number}", dtype)
            function = f"add_{dtypes.short_name(dtype)}"
            terms = (total, value)
            statements.append(Compute(result, function, terms, "element", 0, 1))
            value = result
        total = value
    assert total is not None
    operands.append(ArrayOperand(output, dtype, (1,), 0, True))
    statements.append(Store(parts, total, "element", 0))
    return Nest(
        (Axis(size, False),),
        tuple(operands),
        tuple(statements),
        ("dot_general",),
        "adds up the parts of a product of windows",
    )


def _tile(rows: int, most: int) -> int:
    """The number of rows of an item, equal for all items."""
    items = -(-rows // most)
    items = -(-items // ITEMS) * ITEMS
    tile = max(-(-rows // items), min(MIN_ROWS, -(-rows // 2)))
    return -(-tile // MULTIPLE) * MULTIPLE


def _cut(dimensions: Mapping[str, int], columns: int) -> tuple[int, int, int]:
    """The outermost axis of the columns, its extent, and the columns of an index."""
    cut = next(
        (d for d in range(DIMENSIONS) if dimensions[f"columns_{d}"] > 1),
        DIMENSIONS - 1,
    )
    extent = dimensions[f"columns_{cut}"]
    return cut, extent, columns // extent


Dimension = tuple[int, int]  # extent, and stride in the operand


def _dimensions(nest: Nest, shape: Shape) -> dict[str, int] | None:
    """The dimensions of rows and columns, outermost first, as arguments.

    And the batch's, which is one dimension. None if they are too many.
    """
    source, target = sorted(nest.operands, key=lambda operand: operand.written)
    _, rows, columns = shape
    found: dict[str, list[tuple[int, Dimension]]]
    found = {"problem": [], "row": [], "column": []}
    strides = zip(nest.axes, source.strides, target.strides, strict=True)
    pieces = [(axis.extent, step, position) for axis, step, position in strides]
    for border in (columns, rows * columns):
        pieces = [part for piece in pieces for part in _parted(*piece, border)]
    for extent, step, position in pieces:
        name = "column"
        if position >= columns:
            name = "row" if position < rows * columns else "problem"
        found[name].append((position, (extent, step)))
    named: dict[str, int] = {}
    for (name, placed), extent in zip(found.items(), shape, strict=True):
        ordered = [d for _, d in sorted(placed, key=lambda entry: -entry[0])]
        room = 1 if name == "problem" else DIMENSIONS
        if len(ordered) > room or math.prod(n for n, _ in ordered) != extent:
            return None
        missing = room - len(ordered)
        for number, (n, step) in enumerate([(1, 0)] * missing + ordered):
            named |= {f"{name}s_{number}": n, f"{name}_step_{number}": step}
    return named


def _parted(
    extent: int, step: int, position: int, border: int
) -> list[tuple[int, int, int]]:
    """An axis, or its parts inside and outside of ``border`` where it goes beyond."""
    inside = border // position
    if (
        position < border < extent * position
        and border % position == extent % inside == 0
    ):
        outer = (extent // inside, step * inside, border)
        return [outer, (inside, step, position)]
    return [(extent, step, position)]
