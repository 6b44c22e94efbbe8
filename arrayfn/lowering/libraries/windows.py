"""Products of windows (convolutions) whose windows are never in memory as a whole.

What ``sliding_windows`` copies side by side is larger than its operand by the size of a
window. Where its only reader is a product, a work item is some rows of the output: it
copies the windows that these need to scratch memory, which is near, and multiplies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from arrayfn.ir import Program, Var
from arrayfn.lowering.cpu.schedule import CPU
from arrayfn.lowering.kernel_ir import Nest
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
) -> LibraryCall:
    """``call``, a GEMM; or the product of windows that it is, whose copy is dropped.

    ``uses`` counts the readers of arrays; the copy is the one among ``steps``.
    """
    place, given = call.reads["a"], call.integers
    m, n, k = (given[name] for name in "mnk")
    is_plain = given["batch"] == 1 and not given["transpose_a"] and given["lda"] == k
    if not is_plain or m * k < SMALL or uses.get(place.array, 0) != 1 or place.offset:
        return call
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
        return call
    step = steps[position]
    assert isinstance(step, NestStep)
    axes = _axes(step.nest, m, k)
    if axes is None:
        return call
    rows, columns = axes
    source = next(o for o in step.nest.operands if not o.written)
    size = place.array.type.dtype.itemsize
    tile = _tile(m, max(LEAST, SCRATCH // (k * size)))
    del steps[position]
    return replace(
        call,
        provider=call.provider.replace("gemm_", "windows_"),
        reads={"x": Place(source.array, source.offset), "b": call.reads["b"]},
        scratch={"windows": tile * k * size},
        integers={
            "m": m,
            "n": n,
            "k": k,
            "ldb": given["ldb"],
            "ldc": given["ldc"],
            "transpose_b": given["transpose_b"],
            "tile": tile,
            **_named("row", rows),
            **_named("column", columns),
        },
        items=-(-m // tile),
        grain=grain_of(tile * n * k),
        library="BLAS, of windows",
    )


def _tile(rows: int, most: int) -> int:
    """Rows of an item: as many for each, and for each core as many items."""
    items = -(-rows // most)
    items = -(-items // CPU.cores) * CPU.cores
    return -(-rows // (items * MULTIPLE)) * MULTIPLE


Dimension = tuple[int, int]  # extent, and stride in the operand


def _axes(nest: Nest, m: int, k: int) -> tuple[list[Dimension], list[Dimension]] | None:
    """The rows' and columns' dimensions, outermost first; None if they are too many."""
    source, target = sorted(nest.operands, key=lambda operand: operand.written)
    rows: list[tuple[int, Dimension]] = []
    columns: list[tuple[int, Dimension]] = []
    for axis, step, place in zip(
        nest.axes, source.strides, target.strides, strict=True
    ):
        if place >= k and place % k == 0:
            rows.append((place, (axis.extent, step)))
        elif axis.extent * place <= k:
            columns.append((place, (axis.extent, step)))
        else:
            return None
    made = []
    for dimensions, extent in ((rows, m), (columns, k)):
        ordered = [d for _, d in sorted(dimensions, key=lambda d: -d[0])]
        if len(ordered) > DIMENSIONS or math.prod(n for n, _ in ordered) != extent:
            return None
        made.append(ordered)
    return made[0], made[1]


def _named(name: str, dimensions: Sequence[Dimension]) -> dict[str, int]:
    """As arguments, filled up with dimensions of one element in front."""
    missing = DIMENSIONS - len(dimensions)
    whole = [(1, 0)] * missing + list(dimensions)
    named: dict[str, int] = {}
    for number, (extent, step) in enumerate(whole):
        named |= {f"{name}s_{number}": extent, f"{name}_step_{number}": step}
    return named
