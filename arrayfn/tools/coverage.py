"""``python -m arrayfn coverage``: counts primitives and public names.

The first table lists for each primitive whether it has types, a NumPy reference,
kernels on a CPU and on a GPU, and rules for derivative, transposition and batching. It
is read from the rows; kernels are lowered from the rows' samples. The second table
counts public names against the array API standard's and JAX's. A missing name or rule
has a reason, or is listed as missing.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from pkgutil import resolve_name
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
from arrayfn.tools.left_out import LEFT_OUT

COLUMNS: Final = ("types", "reference", "CPU", "CUDA", "jvp", "transpose", "batch")
_NAMES = Path(__file__).parent / "names"


@dataclass(frozen=True, slots=True)
class Cell:
    """A primitive's rule; without one, ``reason`` says why."""

    text: str
    reason: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is no rule."""
        return self.text == ""


@dataclass(frozen=True, slots=True)
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
    """Every primitive with its cells, in the order of the table."""
    for row in ROWS:
        cells = (
            Cell("rule"),
            Cell("NumPy"),
            _kernel_cell(row, lower_cpu.lower),
            _kernel_cell(row, lower_cuda.lower),
            _rule_cell(row.jvp),
            _rule_cell(row.transpose),
            _rule_cell(row.batch),
        )
        yield Row(row.name, row.family, cells)


def _rule_cell(rule: object) -> Cell:
    if not isinstance(rule, Marker):
        return Cell("rule")
    return Cell(_WORDS.get(rule.name, ""), rule.reason)


def _form(kernel: KernelForm) -> str:
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
    """How the row is lowered on its samples; the error if it is not."""
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
    form = _form(row.kernel)
    if not on_host:
        return Cell(form)
    # Other parts of a composition may have kernels.
    whole = on_host >= len(list(row.samples())) or form == "composed"
    return Cell("host" if whole else f"{form}/host")


def _program_of_samples(row: Primitive) -> Program:
    builder = ProgramBuilder(row.name)
    outputs: list[Atom] = []
    with builder:
        for sample in row.samples():
            operands = [builder.input(type_of(np.asarray(x))) for x in sample.inputs]
            outputs += builder.emit(row, operands, sample.params)
    return builder.build(outputs)


# Names.


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a namespace, and which of them arrayfn has.

    ``left_out`` has the names that are left out on purpose, with reasons.
    """

    theirs: str
    ours: str
    here: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    missing: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The number of names."""
        return len(self.here) + len(self.left_out) + len(self.missing)


# Each namespace, and arrayfn's counterpart.
NAMESPACES: Final[tuple[tuple[str, str], ...]] = (
    ("array_api", "arrayfn.numpy"),
    ("array_api.array", "arrayfn.tracing:Tracer"),
    ("jax.numpy", "arrayfn.numpy"),
    ("jax.numpy.linalg", "arrayfn.numpy.linalg"),
    ("jax.numpy.fft", "arrayfn.numpy.fft"),
    ("jax.lax", "arrayfn.lax"),
    ("jax.lax.linalg", "arrayfn.lax.linalg"),
    ("jax.random", "arrayfn.random"),
    ("jax.nn", "arrayfn.nn"),
    ("jax.nn.initializers", "arrayfn.nn.initializers"),
    ("jax.scipy.special", "arrayfn.scipy.special"),
    ("jax.scipy.stats", "arrayfn.scipy.stats"),
    ("jax.scipy.linalg", "arrayfn.scipy.linalg"),
    ("jax.scipy.sparse.linalg", "arrayfn.scipy.sparse.linalg"),
    ("jax.flatten_util", "arrayfn.flatten_util"),
    ("jax.ops", "arrayfn.ops"),
    ("jax.scipy.optimize", "arrayfn.scipy.optimize"),
    ("jax.scipy.integrate", "arrayfn.scipy.integrate"),
    ("jax.scipy.ndimage", "arrayfn.scipy.ndimage"),
    ("jax.scipy.signal", "arrayfn.scipy.signal"),
    ("jax.scipy.interpolate", "arrayfn.scipy.interpolate"),
    ("jax.scipy.fft", "arrayfn.scipy.fft"),
    ("jax.scipy.cluster.vq", "arrayfn.scipy.cluster.vq"),
    ("jax.scipy.spatial.transform", "arrayfn.scipy.spatial.transform"),
)


def public_names(module: types.ModuleType) -> list[str]:
    """The public names of a module: functions, classes and constants.

    Names of an inner module are prefixed by it (``norm.pdf`` for scipy.stats).
    """
    found: list[str] = []
    for name in dir(module):
        value = getattr(module, name)
        if name.startswith("_") or name == "annotations":
            continue
        if not isinstance(value, types.ModuleType):
            found.append(name)
        elif module.__name__ == "jax.scipy.stats":
            found += [f"{name}.{inner}" for inner in public_names(value)]
    return sorted(found)


def names_of(namespace: str) -> list[str]:
    """The public names of ``namespace``, as installed, or as stored here."""
    try:
        return public_names(importlib.import_module(namespace))
    except ModuleNotFoundError:
        stored = (_NAMES / f"{namespace}.txt").read_text(encoding="utf-8")
        return stored.split()


def compare_names() -> Iterator[Names]:
    """Compare each of ``NAMESPACES`` with arrayfn's."""
    for theirs, ours in NAMESPACES:
        reasons = _reasons(theirs)
        here: list[str] = []
        left_out: dict[str, str] = {}
        missing: list[str] = []
        for name in names_of(theirs):
            if _has(ours, name):
                here.append(name)
            elif (reason := _reason(reasons, name)) is not None:
                left_out[name] = reason
            else:
                missing.append(name)
        yield Names(theirs, ours, tuple(here), left_out, tuple(missing))


def _reason(reasons: dict[str, str], name: str) -> str | None:
    matching = (why for pattern, why in reasons.items() if fnmatch(name, pattern))
    return next(matching, None)


def _reasons(namespace: str) -> dict[str, str]:
    """The patterns of names of ``namespace`` that are left out, and why."""
    return {
        pattern: reason
        for reason, patterns in LEFT_OUT.get(namespace, {}).items()
        for pattern in patterns.split()
    }


def _has(ours: str, name: str) -> bool:
    """Whether ``ours``, a module (or ``module:Class``), has the public ``name``.

    The name may have dots. A module does not count as a public name.
    """
    try:
        value = resolve_name(f"{ours}.{name}" if ":" in ours else f"{ours}:{name}")
    except (ImportError, AttributeError):
        return False
    return not inspect.ismodule(value)


# The text.


def report() -> Iterator[str]:
    """The lines of both tables, and the reasons."""
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
    compared = list(compare_names())
    yield ""
    yield from _aligned(
        [
            ["names of", "in", "names", "here", "left out", "missing"],
            *(
                [
                    n.theirs,
                    n.ours,
                    *map(str, (n.total, len(n.here), len(n.left_out), len(n.missing))),
                ]
                for n in compared
            ),
        ]
    )
    for names in compared:
        yield from _absent(names)


def _shown(cell: Cell, notes: dict[str, int]) -> str:
    if not cell.is_empty:
        return cell.text
    return f"-{notes.setdefault(cell.reason, len(notes) + 1)}"


def _absent(names: Names) -> Iterator[str]:
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
    yield f"  {title}:"
    line = "   "
    for name in names:
        if len(line) + len(name) + 1 > width:
            yield line
            line = "   "
        line += f" {name}"
    yield line


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
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
