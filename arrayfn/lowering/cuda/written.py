"""Handwritten kernels: a text, its parameters, and a call of it.

A text is a function named ``kernel`` in the two vocabularies. Its imports follow from
the functions that it calls.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS
from arrayfn.lowering.kernel_text import wrapped
from arrayfn.lowering.libraries.calls import Pointer
from arrayfn.lowering.plan import Kernel, Parameter
from arrayfn.lowering.scalars import SCALARS
from arrayfn.lowering.steps import CallStep

_CONSTRUCTORS: Final = frozenset(
    ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "c64", "c128")
)
_LIMITS: Final = frozenset(
    f"{kind}_{limit}" for kind in ("F32", "F64") for limit in ("INF", "NEG_INF", "NAN")
)
_ROOMS: Final = (
    ("cuda.vocabulary", frozenset(FUNCTIONS)),
    ("scalars", frozenset(SCALARS) | _CONSTRUCTORS | _LIMITS),
)


@dataclass(frozen=True)
class Written:
    """A kernel's text and what a launch of it needs.

    ``body`` are the statements of its function, without indentation, over the arrays
    ``arrays`` and integers ``integers``, which are its parameters in this order.
    ``doc`` is the docstring; ``shared`` the bytes of a block's shared memory,
    ``together`` how many blocks a multiprocessor is to have at a time, if it matters,
    and ``cluster`` how many run at the same time.
    """

    stem: str
    body: str
    arrays: tuple[str, ...]
    integers: tuple[str, ...]
    threads: int
    doc: str
    reason: str
    shared: int = 0
    together: int = 0
    cluster: int = 1

    def kernel(self, name: str, types: Sequence[str]) -> Kernel:
        """The kernel over arrays of these dtypes."""
        kinds = [f"{t}*" for t in types] + ["i64"] * len(self.integers)
        names = (*self.arrays, *self.integers)
        signature = ", ".join(f"{n}: {k}" for n, k in zip(names, kinds, strict=True))
        lines = textwrap.wrap(f"{signature}. {self.threads} threads a block.", 80)
        doc = "\n".join([f'"""{self.doc}', "", *lines, '"""', ""])
        return Kernel(
            name=name,
            source=self._text(name, doc),
            key=f"{self._text('kernel', '')}# {', '.join(kinds)}\n",
            parameters=tuple(
                Parameter(n, k) for n, k in zip(names, kinds, strict=True)
            ),
            reason=self.reason,
            threads=self.threads,
            shared=self.shared,
            together=self.together,
            cluster=self.cluster,
        )

    def _text(self, name: str, doc: str) -> str:
        parameters = ", ".join((*self.arrays, *self.integers))
        head = "\n".join(wrapped(f"def {name}(", parameters, "):"))
        body = indented(f"{doc}{self.body.strip()}", 1)
        return f"{imports(self.body)}\n\n{head}\n{body}\n"


@dataclass(frozen=True)
class WrittenCall:
    """A launch of ``blocks`` blocks: the arrays that are read are before the others.

    A ``flag_buffer``, for look-back or a work queue, is the last of the arrays.
    """

    text: Written
    reads: Sequence[Pointer]
    writes: Sequence[Pointer]
    integers: Sequence[int]
    blocks: int
    over: Sequence[tuple[Var, Var]] = ()  # results that may lie where operands do
    flag_buffer: Var | None = None

    @property
    def _written(self) -> Sequence[Pointer]:
        flag_buffer = () if self.flag_buffer is None else (Pointer(self.flag_buffer),)
        return (*self.writes, *flag_buffer)

    def kernel(self, name: str) -> Kernel:
        """The kernel."""
        places = (*self.reads, *self._written)
        return self.text.kernel(name, [short_name(p.array.type.dtype) for p in places])

    def step(self, kernel: str) -> CallStep:
        """The step that calls ``kernel``."""
        return CallStep(
            kernel=kernel,
            pointers=[
                (p.array, p.offset * p.array.type.dtype.itemsize)
                for p in (*self.reads, *self._written)
            ],
            scratch=[],
            integers=list(self.integers),
            items=self.blocks,
            grain=1,
            scratch_bytes=0,
            reads=[p.array for p in self.reads],
            writes=[p.array for p in self._written],
            over=list(self.over),
        )


def flag_buffer_of(values: int, dtype: DType) -> Var:
    """A flag buffer with slots for so many values of ``dtype``."""
    words = 1 + values * max(1, dtype.itemsize // 4)
    return Var(ArrayType((words,), dtypes.uint64))


def indented(text: str, levels: int) -> str:
    """``text`` with each line that is not empty further to the right."""
    margin = "    " * levels
    return "\n".join(margin + line if line else "" for line in text.splitlines())


def imports(text: str) -> str:
    """The imports of the vocabularies' words in ``text``."""
    words = set(re.findall(r"\w+", text))
    lines: list[str] = []
    for room, known in _ROOMS:
        if words & known:
            before = f"from arrayfn.lowering.{room} import "
            lines += wrapped(before, ", ".join(sorted(words & known)), "")
    return "\n".join([*lines, ""])
