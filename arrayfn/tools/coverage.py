"""``python -m arrayfn coverage``: counts primitives, public names and parameters.

The first table lists for each primitive whether it has types, a NumPy reference,
kernels on a CPU and on a GPU, and rules for derivative, transposition and batching. It
is read from the rows; kernels are lowered from the rows' samples. The second table
counts public names against the array API standard's and JAX's, the third the parameters
of functions against NumPy's, SciPy's and JAX's. A missing name, parameter or rule has a
reason, or is listed as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from arrayfn.errors import ArrayfnError
from arrayfn.ir import Atom, Program, type_of
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.lowering import lower as lower_cpu
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cuda import lower as lower_cuda
from arrayfn.lowering.plan import LibraryKernel
from arrayfn.primitives.base import (
    Body,
    Composition,
    Contraction,
    Control,
    Convert,
    KernelForm,
    Library,
    Marker,
    Primitive,
    Reduction,
    Scalar,
    Template,
    View,
)
from arrayfn.primitives.table import ROWS
from arrayfn.records import frozen
from arrayfn.tools.surface import Counted, compare_names, compare_parameters

COLUMNS: Final = ("types", "reference", "CPU", "CUDA", "jvp", "transpose", "batch")


@frozen(slots=True)
class Cell:
    """A cell of the table: a word for a primitive's rule, or why there is none.

    ``text`` is empty if there is no rule; ``reason`` then says why.
    """

    text: str
    reason: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is no rule."""
        return self.text == ""


@frozen(slots=True)
class Row:
    """The cells of a primitive, one for each of ``COLUMNS``."""

    name: str
    family: str
    cells: tuple[Cell, ...]


# Primitives.

_WORDS: Final[dict[str, str]] = {
    "linear": "linear",
    "through_body": "body",
    "zero_tangent": "zero",
}


def primitive_rows() -> Iterator[Row]:
    """Yield the row of each primitive, in the order of the table."""
    for row in ROWS:
        cells = (
            Cell("rule"),  # of types
            Cell("NumPy"),  # the reference
            _kernel_cell(row, lower_cpu.lower),
            _kernel_cell(row, lower_cuda.lower),
            _rule_cell(row.jvp),
            _rule_cell(row.transpose),
            _rule_cell(row.batch),
        )
        yield Row(row.name, row.family, cells)


def _rule_cell(rule: object) -> Cell:
    """Return the cell of a jvp, transpose or batching rule.

    A Marker that states a fact has a word of its own; others mean that there is no
    rule, and have the reason.
    """
    if not isinstance(rule, Marker):
        return Cell("rule")
    return Cell(_WORDS.get(rule.name, ""), rule.reason)


def _form_name(kernel: KernelForm) -> str:
    """Return the name of a kernel form in the table."""
    match kernel:
        case Scalar():
            return "scalar"
        case Convert():
            return "convert"
        case View():
            return "view"
        case Reduction():
            return "reduction"
        case Template():
            return "template"
        case Library():
            return "library"
        case Composition():
            return "composed"
        case Contraction():
            return "product"
        case Body():
            return "body"
        case Control():
            return "control"


def _kernel_cell(row: Primitive, lower: Callable[[Program], CompiledProgram]) -> Cell:
    """Return the cell of a backend: how ``row`` is lowered on its samples.

    The cell has the kernel form, or "host" if NumPy computes it there; if lowering
    fails, it is empty, with the error.
    """
    program = _program_of_samples(row)
    if not program.equations:
        return Cell(
            "",
            "it stands for a derivative until that is transposed: it is never lowered",
        )
    try:
        compiled = lower(program)
    except ArrayfnError as error:
        return Cell("", str(error))
    on_host = sum(
        isinstance(kernel, LibraryKernel) and kernel.provider.startswith("reference_")
        for kernel in compiled.kernels
    )
    form = _form_name(row.kernel)
    if not on_host:
        return Cell(form)
    # Samples of some dtypes may have kernels ("form/host"). For a composition the
    # number of kernels does not tell.
    whole = on_host >= len(list(row.samples())) or form == "composed"
    return Cell("host" if whole else f"{form}/host")


def _program_of_samples(row: Primitive) -> Program:
    """Return a Program that applies a primitive to all of its samples."""
    builder = ProgramBuilder(row.name)
    outputs: list[Atom] = []
    with builder:
        for sample in row.samples():
            operands = [builder.input(type_of(np.asarray(x))) for x in sample.inputs]
            outputs += builder.emit(row, operands, sample.params)
    return builder.build(outputs)


# The text.


def report() -> Iterator[str]:
    """Yield the lines of all tables, and the reasons for empty cells."""
    rows = list(primitive_rows())
    notes: dict[str, int] = {}
    table = [
        [row.name, row.family, *(_shown(cell, notes) for cell in row.cells)]
        for row in rows
    ]
    yield from _aligned([["primitive", "family", *COLUMNS], *table])
    filled = sum(not cell.is_empty for row in rows for cell in row.cells)
    yield ""
    yield (
        f"{len(rows)} primitives: {filled} of {len(rows) * len(COLUMNS)} cells filled; "
        "the others are numbered, and the reasons are:"
    )
    yield from (f"  -{number}  {reason}" for reason, number in notes.items())
    yield "  host: no library there has it, of some dtypes or any: NumPy computes it"
    yield "  zero: the derivative is zero; body: the rule is that of what it is made of"
    yield from _section("names of", "names", list(compare_names()))
    yield from _section("parameters of", "parameters", list(compare_parameters()))


def _section(of: str, what: str, compared: Sequence[Counted]) -> Iterator[str]:
    """Yield the lines of one comparison: its table, then absent names with reasons.

    ``of`` heads the first column, and ``what`` ("names" or "parameters") the column of
    totals.
    """
    table = [
        [
            each.theirs,
            each.version,
            each.ours,
            *map(str, (each.total, len(each.here), len(each.left_out))),
            str(len(each.missing)),
        ]
        for each in compared
    ]
    header = [of, "of version", "in", what, "here", "left out", "missing"]
    yield ""
    yield from _aligned([header, *table])
    for each in compared:
        yield from _absent(each)


def _shown(cell: Cell, notes: dict[str, int]) -> str:
    """Return the text of a cell; for an empty cell, "-" and the number of its reason.

    ``notes`` has the numbers of reasons so far; a new reason is added.
    """
    if not cell.is_empty:
        return cell.text
    return f"-{notes.setdefault(cell.reason, len(notes) + 1)}"


def _absent(names: Counted) -> Iterator[str]:
    """Yield lines with the names that arrayfn lacks, by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in names.left_out.items():
        by_reason.setdefault(reason, []).append(name)
    if names.missing or by_reason:
        yield ""
        yield f"{names.theirs}:"
    if names.missing:
        yield from _wrapped("missing", names.missing)
    for reason, left in by_reason.items():
        yield from _wrapped(f"left out, for {reason}", left)


def _wrapped(title: str, names: Iterable[str], width: int = 88) -> Iterator[str]:
    """Yield ``title``, then ``names`` in lines of at most ``width`` characters."""
    yield f"  {title}:"
    line = "   "
    for name in names:
        if len(line) + len(name) + 1 > width:
            yield line
            line = "   "
        line += f" {name}"
    yield line


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table with aligned columns; the first row is the head."""
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    for position, row in enumerate(table):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
        if position == 0:
            yield "  ".join("-" * width for width in widths)


def run() -> int:
    """Print the report; return the exit status."""
    for line in report():
        print(line)
    return 0
