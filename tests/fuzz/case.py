"""A program as it is drawn: operands, lines, outputs, a transformation of it.

``source`` prints it as Python; ``functions`` executes that text. Nothing else is run,
so what is printed is what failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.fuzz.arrays import Operand
from tests.fuzz.transformations import Transformation

HEADER: Final = """\
import numpy as np
from numpy import inf, nan
import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import fft, lax, linalg, nn, random
from arrayfn.scipy import special
"""
NAME: Final = re.compile(r"\b[vxc]\d+\b")


@dataclass(frozen=True)
class Line:
    """``pattern = expression``; ``targets`` are the names in the pattern."""

    targets: tuple[str, ...]
    expression: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.pattern} = {self.expression}"

    @property
    def used(self) -> frozenset[str]:
        """The names in the expression."""
        return frozenset(NAME.findall(self.expression))


@dataclass(frozen=True)
class Change:
    """What the second call of the compiled function has otherwise: other operands."""

    what: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Case:
    """A program, its operands and how it is transformed."""

    operands: tuple[Operand, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    transformation: Transformation
    change: Change | None = None
    families: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[Operand, ...]:
        """The operands that are passed."""
        return tuple(x for x in self.operands if not x.constant)

    def parameters(self) -> list[str]:
        return [x.name for x in self.arguments]

    def body(self) -> str:
        """``f``, which is transformed, and ``run``, which is compiled."""
        names = ", ".join(self.parameters())
        lines = [f"{x.name} = {x.source()}" for x in self.operands if x.constant]
        lines.append(f"def f({names}):")
        lines += [f"    {line}" for line in self.lines]
        lines.append(f"    return {', '.join(self.outputs)}")
        lines += self.transformation.source(self)
        return "\n".join(lines) + "\n"

    def argument_source(self, operands: tuple[Operand, ...] | None = None) -> str:
        """The arguments, a line each."""
        given = self.arguments if operands is None else operands
        return "".join(f"{x.name} = {x.source()}\n" for x in given)

    def source(self, device: str) -> str:
        """A script that prints what the device and the reference give."""
        call = f"({', '.join(self.parameters())})"
        text = HEADER + self.body() + self.argument_source()
        text += f"compiled = af.jit(run, device={device!r})\n"
        text += f"print(compiled{call})\n"
        if self.change is not None:
            text += f"# again, with {self.change.what}\n"
            text += self.argument_source(self.change.operands)
            text += f"print(compiled{call})\n"
        return text + f"print(af.jit(run, device='reference'){call})\n"

    def functions(self) -> dict[str, Any]:
        """The scope in which ``f`` and ``run`` are defined."""
        scope: dict[str, Any] = dict(_header())
        exec(compile(self.body(), "<program>", "exec"), scope)
        return scope

    def run(self) -> Callable[..., Any]:
        """The transformed function."""
        return self.functions()["run"]

    def without_dead_code(self) -> Case:
        """Without lines and operands that no output depends on."""
        needed = set(self.outputs)
        kept: list[Line] = []
        for line in reversed(self.lines):
            if needed & set(line.targets):
                kept.append(line)
                needed |= line.used
        wanted = needed | set(self.transformation.needs)
        operands = tuple(x for x in self.operands if x.name in wanted)
        change = self.change
        if change is not None:
            rest = tuple(x for x in change.operands if x.name in wanted)
            change = replace(change, operands=rest)
        return replace(
            self, operands=operands, lines=tuple(reversed(kept)), change=change
        )


_HEADER: dict[str, Any] = {}


def _header() -> dict[str, Any]:
    if not _HEADER:
        exec(HEADER, _HEADER)
    return _HEADER


def evaluated(text: str) -> Any:
    """The value of an expression of the header's names."""
    return eval(text, dict(_header()))
