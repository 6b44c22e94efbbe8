"""Convolutions of each channel by itself, channels last: a kernel that reads them once.

A thread has a vector of channels of ``_COLUMNS`` neighbouring outputs. The operand's
windows overlap in the cache, and its border is not in memory: what lies outside is not
read. cuDNN takes several times as long for these, where a copy's time is enough.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from arrayfn.dtypes import short_name
from arrayfn.ir import Var
from arrayfn.lowering.libraries.calls import Place
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.steps import CallStep

AXES: Final = 2
_THREADS: Final = 256
_COLUMNS: Final = 4
_MOST_TAPS: Final = 64
_WORDS: Final = {"f16": "u16", "bf16": "u16", "f32": "f32", "f64": "f64"}


def is_depthwise(gives: str, p: Mapping[str, int], itemsize: int) -> bool:
    """Whether the kernel computes the convolution of these integers.

    The operand's cotangent is a convolution by the reversed kernel if windows begin at
    each element.
    """
    strides = [p[f"stride{k}"] for k in range(p["axes"])]
    return (
        p["axes"] == AXES
        and p["last"] == 1
        and (p["inner"], p["outer"]) == (1, 1)
        and p["groups"] % lanes_of(itemsize) == 0
        and p["size0"] * p["size1"] <= _MOST_TAPS
        and p["batch"] * p["extent0"] * p["extent1"] * p["groups"] < 2**31
        and (gives == "output" or (gives == "operand" and max(strides) == 1))
    )


def lanes_of(itemsize: int) -> int:
    """The channels of a thread: 128 bits."""
    return 16 // itemsize


@dataclass(frozen=True)
class Depthwise:
    """``result`` from the array ``given`` and ``taps`` [size, size, channel].

    The integers are those of a call of cuDNN.
    """

    given: Place
    taps: Place
    result: Var
    gives: str
    integers: Mapping[str, int]

    stem = "depthwise"

    def made(self, name: str) -> tuple[Kernel, CallStep]:
        """The kernel, of this name, and its call."""
        p = self.integers
        dtype = self.result.type.dtype
        own, other = ("count", "extent")[:: 1 if self.gives == "output" else -1]
        rows, columns = p[f"{own}0"], p[f"{own}1"]
        parts = -(-columns // _COLUMNS)
        vectors = p["groups"] // lanes_of(dtype.itemsize)
        items = p["batch"] * rows * parts * vectors
        kind = f"{short_name(dtype)}*"
        words = ("x_in", "taps_in", "sums_out")
        integers = {
            "items": items,
            "vectors": vectors,
            "parts": parts,
            "rows": rows,
            "columns": columns,
            "height": p[f"{other}0"],
            "width": p[f"{other}1"],
        }
        kernel = Kernel(
            name=name,
            source=self._source(name, words, integers),
            key=self._source("kernel", ("p0", "p1", "p2"), integers) + f"# {kind}\n",
            parameters=(
                *(Parameter(word, kind) for word in words),
                *(Parameter(word, "i64") for word in integers),
            ),
            reason="channels by themselves, whose windows are read where they lie",
            threads=_THREADS,
        )
        size = dtype.itemsize
        arrays = [self.given.array, self.taps.array]
        call = CallStep(
            kernel=name,
            pointers=[
                (self.given.array, self.given.offset * size),
                (self.taps.array, self.taps.offset * size),
                (self.result, 0),
            ],
            scratch=[],
            integers=list(integers.values()),
            items=-(-items // _THREADS),
            grain=1,
            scratch_bytes=0,
            reads=arrays,
            writes=[self.result],
        )
        return kernel, call

    def _source(
        self, name: str, words: tuple[str, str, str], integers: Mapping[str, int]
    ) -> str:
        x, taps, out = words
        p, short = self.integers, short_name(self.result.type.dtype)
        lanes = lanes_of(self.result.type.dtype.itemsize)
        word, wide = _WORDS[short], "f64" if short == "f64" else "f32"
        narrow = word != wide
        forward = self.gives == "output"

        def number(stem: str, k: int) -> int:
            return p[f"{stem}{k}"]

        def before(k: int) -> int:
            """How far before an output's own place its window begins."""
            reach = (number("size", k) - 1) * number("dilation", k)
            return number("low", k) if forward else reach - number("low", k)

        def at(place: str, k: int, ahead: int) -> str:
            """Where the output ``ahead`` of ``place`` finds the tap of the loop."""
            stride, step = number("stride", k), number("dilation", k)
            shift = ahead * stride - before(k)
            sign = "-" if shift < 0 else "+"
            loop = "ij"[k] if step == 1 else f"{'ij'[k]} * {step}"
            own = place if stride == 1 else f"{place} * {stride}"
            return f"{own} + {loop}" + (f" {sign} {abs(shift)}" if shift else "")

        def value(tile: str) -> str:
            name = f"{tile}[lane]"
            return f"convert_{short}_{wide}({name})" if narrow else name

        lines = [
            f"item = block_index() * {_THREADS} + thread_index()",
            "if item < items:",
            f"    channel = remainder(item, vectors) * {lanes}",
            "    rest = quotient(item, vectors)",
            f"    column = remainder(rest, parts) * {_COLUMNS}",
            "    rest = quotient(rest, parts)",
            "    row = remainder(rest, rows)",
            "    image = quotient(rest, rows)",
            f"    channels = vectors * {lanes}",
            f"    tap_tile = registers_{word}({lanes})",
            f"    x_tile = registers_{word}({lanes})",
            *(f"    sums{k} = registers_{wide}({lanes})" for k in range(_COLUMNS)),
            f"    for lane in range({lanes}):",
            *(f"        sums{k}[lane] = {wide}(0)" for k in range(_COLUMNS)),
        ]
        last = [number("size", k) - 1 for k in range(AXES)]
        i, j = ("i", "j") if forward else (f"({last[0]} - i)", f"{last[1]} - j")
        lines += [
            f"    for i in range({number('size', 0)}):",
            f"        line = {at('row', 0, 0)}",
            "        if (line >= 0) and (line < height):",
            "            begin = (image * height + line) * width",
            f"            for j in range({number('size', 1)}):",
            f"                place = {i} * {number('size', 1)} + {j}",
            f"                load_{word}x{lanes}(",
            f"                    {taps}, place * channels + channel, tap_tile, 0",
            "                )",
        ]
        for k in range(_COLUMNS):
            lines += [
                f"                at = {at('column', 1, k)}",
                "                if (at >= 0) and (at < width):",
                f"                    load_{word}x{lanes}(",
                f"                        {x}, (begin + at) * channels + channel,",
                "                        x_tile, 0,",
                "                    )",
                f"                    for lane in range({lanes}):",
                f"                        x = {value('x_tile')}",
                f"                        tap = {value('tap_tile')}",
                f"                        sums{k}[lane] = sums{k}[lane] + x * tap",
            ]
        lines.append("    begin = (image * rows + row) * columns + column")
        for k in range(_COLUMNS):
            tile, indent = f"sums{k}", "        "
            lines.append(f"    if column + {k} < columns:")
            if narrow:
                tile = "x_tile"
                lines += [
                    f"{indent}for lane in range({lanes}):",
                    f"{indent}    x_tile[lane] = convert_{wide}_{short}(sums{k}[lane])",
                ]
            lines.append(
                f"{indent}store_{word}x{lanes}({out}, (begin + {k}) * channels + "
                f"channel, {tile}, 0)"
            )
        doc = f'    """Windows of channels: {_THREADS} threads a block."""\n'
        names = sorted(
            {
                *("block_index", "quotient", "remainder", "thread_index"),
                *(f"load_{word}x{lanes}", f"store_{word}x{lanes}"),
                *(f"registers_{word}", f"registers_{wide}"),
            }
        )
        scalars = [wide]
        if narrow:
            scalars += [f"convert_{short}_{wide}", f"convert_{wide}_{short}"]
        arguments = textwrap.fill(", ".join([*words, *integers]), 80)
        return (
            "from arrayfn.lowering.cuda.vocabulary import (\n    "
            + textwrap.fill(", ".join(names), 80).replace("\n", "\n    ")
            + ",\n)\nfrom arrayfn.lowering.scalars import "
            + ", ".join(sorted(scalars))
            + f"\n\n\ndef {name}(\n"
            + textwrap.indent(f"{arguments},", "    ")
            + "\n):\n"
            + (doc if name != "kernel" else "")
            + "".join(f"    {line}\n" for line in lines)
        )
