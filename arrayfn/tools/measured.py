"""What ``compare`` measures, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn.records import frozen


@frozen
class Roof:
    """A backend's peak on this machine: bytes and operations per second."""

    bytes: float
    flops: float


@frozen
class Measured:
    """One implementation on one backend.

    Errors are relative to the float64 reference: the largest absolute and relative
    errors, the relative error in the 2-norm, and the largest error in units of the last
    place of the result's dtype. Times are in seconds. ``bytes`` counts arguments and
    results. ``flops`` counts the operations of the Program. ``refused`` says why the
    implementation did not run.
    """

    name: str
    backend: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    l2: float = 0.0
    ulp: float = 0.0
    times: tuple[float, ...] = ()
    bytes: int = 0
    flops: int = 0
    refused: str = ""

    @property
    def median(self) -> float:
        """The median time of a call, in seconds."""
        return float(np.median(self.times))


@frozen(repr=False)
class Comparison(Sequence[Measured]):
    """The rows of ``compare``, which print as a table with the backends' roofs."""

    rows: tuple[Measured, ...]
    roofs: dict[str, Roof]

    @override
    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @override
    def __getitem__(self, index: Any) -> Any:
        """Return a row, or a tuple of rows for a slice."""
        return self.rows[index]

    @override
    def __repr__(self) -> str:
        """Return the table as text."""
        return table(self, self.roofs).rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the table and the machine's limits as HTML, which notebooks show."""
        from arrayfn.display import markup

        escape = markup.escape
        names = [name for name, _ in COLUMNS]
        rows = [
            (escape(row.name), row.backend, *cells_of(row))
            if not row.refused
            else (escape(row.name), row.backend, f"<i>{escape(row.refused)}</i>")
            for row in self
        ]
        body = markup.table(["implementation", "backend", *names], rows, texts=2)
        tops = "<br>".join(escape(roof_text(n, r)) for n, r in self.roofs.items())
        return markup.shown(
            "Comparison with the function in float64",
            f"{body}<div class='afn-dim'>{tops}</div>",
        )


COLUMNS: Final = (
    *(("max abs", 9), ("max rel", 9), ("L2", 9), ("ULP", 9), ("min us", 10)),
    *(("median", 10), ("max", 10), ("GB/s", 8), ("GFLOP/s", 9)),
)
"""The columns of numbers, and their widths."""


def cells_of(row: Measured) -> list[str]:
    """Return the numbers of a row as text, in the order of ``COLUMNS``."""
    errors = (f"{x:.1e}" for x in (row.max_abs, row.max_rel, row.l2))
    times = (f"{1e6 * t:.1f}" for t in (min(row.times), row.median, max(row.times)))
    rates = (f"{x / row.median / 1e9:.3g}" for x in (row.bytes, row.flops))
    return [*errors, f"{row.ulp:.3g}", *times, *rates]


def roof_text(name: str, top: Roof) -> str:
    """Return the roof of backend ``name`` as a sentence."""
    return (
        f"roof of {name}: {top.bytes / 1e9:.3g} GB/s copying, "
        f"{top.flops / 1e9:.4g} GFLOP/s multiplying float32 matrices"
    )


def table(rows: Sequence[Measured], roofs: dict[str, Roof]) -> str:
    """Return the rows as a table of text, followed by the backends' roofs."""
    head = "".join(f"{name:>{width}}" for name, width in COLUMNS)
    lines = [f"{'implementation':24}{'backend':10}{head}"]
    for row in rows:
        cells = [row.refused]
        if not row.refused:
            pairs = zip(cells_of(row), COLUMNS, strict=True)
            cells = [f"{cell:>{width}}" for cell, (_, width) in pairs]
        lines.append(f"{row.name[:23]:24}{row.backend:10}{''.join(cells)}")
    lines += [roof_text(name, top) for name, top in roofs.items()]
    return "\n".join(lines) + "\n"
