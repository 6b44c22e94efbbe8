"""Comparisons over sizes and dtypes: a table of errors and times, and their plot."""

from __future__ import annotations

import importlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn import dtypes, tree
from arrayfn.display.units import in_seconds
from arrayfn.errors import ArgumentError, user_location
from arrayfn.records import frozen
from arrayfn.tools.measured import Comparison, Measured

_COLUMNS: Final = (
    *("implementation", "backend", "dtype", "size"),
    *("max rel", "ULP", "median", "GB/s", "GFLOP/s"),
)


@frozen
class Point:
    """The comparison for one size and one dtype of floating-point operands.

    ``dtype`` is empty if the operands keep their dtypes.
    """

    size: Any
    dtype: str
    comparison: Comparison


@frozen(repr=False)
class Sweep(Sequence[Point]):
    """The result of ``compare`` for several sizes or dtypes; it prints as a table."""

    points: tuple[Point, ...]

    @override
    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.points)

    @override
    def __getitem__(self, index: Any) -> Any:
        """Return a point, or a tuple of points for a slice."""
        return self.points[index]

    def rows(self) -> Iterator[tuple[Point, Measured]]:
        """Yield each row with its point, grouped by implementation."""
        pairs = [(point, row) for point in self for row in point.comparison]
        # Implementations are numbered in the order in which they first occur.
        order = {key: k for k, key in enumerate(dict.fromkeys(map(_key, pairs)))}
        return iter(sorted(pairs, key=lambda pair: order[_key(pair)]))

    def _cells(self) -> list[tuple[str, ...]]:
        """Return the rows of the table as text, by ``_COLUMNS``.

        A refused row has the reason, and empty cells.
        """
        cells: list[tuple[str, ...]] = []
        for point, row in self.rows():
            size = "" if point.size is None else str(point.size)
            head = row.name, row.backend, point.dtype, size
            if row.refused:
                cells.append((*head, row.refused, "", "", "", ""))
                continue
            rates = (f"{x / row.median / 1e9:.3g}" for x in (row.bytes, row.flops))
            numbers = f"{row.max_rel:.1e}", f"{row.ulp:.3g}", in_seconds(row.median)
            cells.append((*head, *numbers, *rates))
        return cells

    @override
    def __repr__(self) -> str:
        """Return the table as text; reasons of refused rows do not widen columns."""
        rows = [_COLUMNS, *self._cells()]
        # Refused rows have the reason in column 4, and empty cells from column 5 on.
        short = [row for row in rows if row[5]]
        widths = [max(map(len, column)) for column in zip(*short, strict=True)]
        # The first three columns are words.
        return "\n".join(
            "  ".join(
                cell.ljust(width) if k < 3 or not row[5] else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )

    def _repr_html_(self) -> str:
        """Return the plot, if Matplotlib is installed, and the table as HTML."""
        from arrayfn.display import markup

        rows = [tuple(map(markup.escape, row)) for row in self._cells()]
        body = markup.table(_COLUMNS, rows, texts=3)
        try:
            picture = self._svg()
        except ImportError:
            picture = ""
        return markup.shown("Comparison with the function in float64", picture, body)

    def _svg(self) -> str:
        """Return the plot as an SVG element, without the XML declaration."""
        figure_of = importlib.import_module("matplotlib.figure").Figure
        figure = figure_of(figsize=(7, 4), layout="constrained")
        self.plot(figure.subplots())
        text = io.StringIO()
        figure.savefig(text, format="svg")
        _, tag, rest = text.getvalue().partition("<svg")
        return tag + rest

    def plot(self, axes: Any = None) -> Any:
        """Draw the median times over the sizes, and return Matplotlib's axes.

        Without ``axes``, it makes a figure. If sizes are numbers, both scales are
        logarithmic. Raises ArgumentError if Matplotlib is not installed.
        """
        if axes is None:
            try:
                pyplot = importlib.import_module("matplotlib.pyplot")
            except ImportError as error:
                raise ArgumentError(
                    "a sweep is drawn by Matplotlib, which is not installed; pip "
                    "install arrayfn[demo]",
                    user_location(),
                ) from error
            _, axes = pyplot.subplots(layout="constrained")
        lines: dict[tuple[str, ...], list[tuple[Any, float]]] = {}
        for point, row in self.rows():
            if not row.refused:
                line = lines.setdefault((row.name, row.backend, point.dtype), [])
                line.append((point.size, row.median))
        are_numbers = all(isinstance(p.size, (int, float, np.integer)) for p in self)
        for (name, backend, dtype), line in lines.items():
            sizes, times = zip(*line, strict=True)
            places = sizes if are_numbers else [str(size) for size in sizes]
            label = f"{name}, {backend}" + (f", {dtype}" if dtype else "")
            axes.plot(places, times, marker="o", label=label)
        if are_numbers:
            axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("size")
        axes.set_ylabel("seconds (median)")
        axes.legend(fontsize="small")
        return axes


def _key(pair: tuple[Point, Measured]) -> tuple[str, ...]:
    """Return what identifies an implementation: name, backend and dtype."""
    point, row = pair
    return row.name, row.backend, point.dtype


def sweep(
    compared: Callable[[tuple[Any, ...]], Comparison],
    args: tuple[Any, ...],
    sizes: Sequence[Any] | None,
    wanted: Sequence[Any] | None,
) -> Sweep:
    """Call ``compared`` on ``args`` for each size and each dtype of ``wanted``.

    An argument that depends on the size is a function of the size. Floating-point
    arrays are converted to the dtype. None for ``sizes`` or ``wanted`` leaves that out.
    Raises ArgumentError if ``sizes`` is empty, or if no argument depends on the size.
    """
    if sizes is not None and not any(map(callable, args)):
        raise ArgumentError(
            "compare: with sizes, an operand that depends on the size is given as a "
            "function, such as lambda n: numpy.ones((8, n)); all of these are arrays",
            user_location(),
        )
    # An array of sizes has no truth value, but a list of its elements has.
    if not (list(sizes) if sizes is not None else [None]):
        raise ArgumentError(
            "compare: sizes is empty; give one or more", user_location()
        )
    points: list[Point] = []
    dtypes_wanted = [None] if wanted is None else [dtypes.canonical(x) for x in wanted]
    for size, dtype in itertools.product(
        [None] if sizes is None else sizes, dtypes_wanted
    ):
        operands = tuple(arg(size) if callable(arg) else arg for arg in args)
        name = ""
        if dtype is not None:
            operands = tree.map(lambda x, to=dtype: _converted(x, to), operands)
            name = dtype.name
        points.append(Point(size, name, compared(operands)))
    return Sweep(tuple(points))


def _converted(x: Any, dtype: Any) -> Any:
    """Convert ``x`` to ``dtype`` if it is an array of floats."""
    is_floating = getattr(x, "dtype", None) in dtypes.FLOATS
    return x.astype(dtype) if is_floating else x


__all__ = ["Point", "Sweep", "sweep"]
