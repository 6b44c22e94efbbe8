"""Products of windows (convolutions) whose windows are never in memory as a whole.

What ``sliding_windows`` copies side by side is larger than its operand by the size of a
window. Where its only reader is a product, a work item is some rows of the output: it
copies the windows that these need to scratch memory, which is near, and multiplies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Program, Var
from arrayfn.lowering.cpu.schedule import CPU
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
from arrayfn.lowering.libraries.calls import LibraryCall, Place, Reads, grain_of
from arrayfn.lowering.steps import NestStep, PlanStep
from arrayfn.passes.reads import affine_view

SCRATCH: Final = 384 * 1024  # bytes of windows in one item: most of a core's own cache
LEAST: Final = 256  # rows of an item for which the kernel is worth packing
MULTIPLE: Final = 16  # rows of an item come in whole micro-kernels of BLAS
SMALL: Final = 1 << 16  # elements of windows that are as well copied at once
DIMENSIONS: Final = 4  # of the rows, and of the columns


def array_uses(program: Program, reads: Reads) -> Counter[Var]:
    """How many equations, and outputs, of ``program`` read each array."""
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
    place, given = call.reads["a"], call.integers
    rows, columns = given["m"], given["k"]
    if given["transpose_a"]:
        rows, columns = columns, rows
    is_plain = given["batch"] == 1 and given["lda"] == columns and not place.offset
    if not is_plain or rows * columns < SMALL or uses.get(place.array, 0) != 1:
        return [call]
    position = next(
        (
            number
            for number, step in enumerate(steps)
            if isinstance(step, NestStep)
            and step.nest.primitives == ("sliding_windows",)
            and step.writes == [place.array]
        ),
        None,
    )
    if position is None:
        return [call]
    step = steps[position]
    assert isinstance(step, NestStep)
    dimensions = _dimensions(step.nest, rows, columns)
    if dimensions is None:
        return [call]
    del steps[position]
    source = next(o for o in step.nest.operands if not o.written)
    x = Place(source.array, source.offset)
    if given["transpose_a"]:
        return _summed(call, x, dimensions)
    return [_product(call, x, dimensions)]


def _product(call: LibraryCall, x: Place, dimensions: Mapping[str, int]) -> LibraryCall:
    """Windows are the rows of the result: an item is some of them."""
    given, size = call.integers, x.array.type.dtype.itemsize
    m, n, k = (given[name] for name in "mnk")
    tile = _tile(m, max(LEAST, SCRATCH // (k * size)))
    return replace(
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


def _summed(
    call: LibraryCall, x: Place, dimensions: Mapping[str, int]
) -> list[LibraryCall | Nest]:
    """Windows are summed over: an item has the sum of a part of them.

    The parts are fixed, and added up in order.
    """
    given, output = call.integers, call.writes["c"].array
    dtype = output.type.dtype
    m, n, k = (given[name] for name in "mnk")
    parts = max(1, min(2 * CPU.cores, k // LEAST))
    part = -(-k // parts)
    tile = min(part, max(LEAST, SCRATCH // (m * dtype.itemsize)))
    sums = output if parts == 1 else Var(ArrayType((parts, m, n), dtype))
    made: list[LibraryCall | Nest] = [
        replace(
            call,
            provider=call.provider.replace("gemm_", "window_sums_"),
            reads={"x": x, "b": call.reads["b"]},
            writes={"c": Place(sums)},
            scratch={"windows": tile * m * dtype.itemsize},
            integers={
                "m": m,
                "n": n,
                "k": k,
                "ldb": given["ldb"],
                "transpose_b": given["transpose_b"],
                "tile": tile,
                "part": part,
                **dimensions,
            },
            items=-(-k // part),
            grain=1,
            library="BLAS, of windows",
        )
    ]
    if parts > 1:
        made.append(_added(sums, output, -(-k // part)))
    return made


def _added(sums: Var, output: Var, parts: int) -> Nest:
    """The parts added up, first to last."""
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
    """Rows of an item: as many for each, and for each core as many items."""
    items = -(-rows // most)
    items = -(-items // CPU.cores) * CPU.cores
    return -(-rows // (items * MULTIPLE)) * MULTIPLE


Dimension = tuple[int, int]  # extent, and stride in the operand


def _dimensions(nest: Nest, rows: int, columns: int) -> dict[str, int] | None:
    """The dimensions of rows and columns, outermost first, as arguments.

    None if they are too many.
    """
    source, target = sorted(nest.operands, key=lambda operand: operand.written)
    found: dict[str, list[tuple[int, Dimension]]] = {"row": [], "column": []}
    for axis, step, place in zip(
        nest.axes, source.strides, target.strides, strict=True
    ):
        if place >= columns and place % columns == 0:
            found["row"].append((place, (axis.extent, step)))
        elif axis.extent * place <= columns:
            found["column"].append((place, (axis.extent, step)))
        else:
            return None
    named: dict[str, int] = {}
    for (name, placed), extent in zip(found.items(), (rows, columns), strict=True):
        ordered = [d for _, d in sorted(placed, key=lambda entry: -entry[0])]
        if len(ordered) > DIMENSIONS or math.prod(n for n, _ in ordered) != extent:
            return None
        missing = DIMENSIONS - len(ordered)
        for number, (n, step) in enumerate([(1, 0)] * missing + ordered):
            named |= {f"{name}s_{number}": n, f"{name}_step_{number}": step}
    return named
