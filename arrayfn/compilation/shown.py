"""What a notebook shows of a lowered function: Program, kernels and plan, linked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from arrayfn.compilation.building import Built
from arrayfn.display import markup
from arrayfn.display.markup import Line
from arrayfn.display.units import in_bytes, in_seconds, in_si
from arrayfn.ir import Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import (
    Kernel,
    KernelCall,
    LibraryKernel,
    kernel_calls,
    linked_lines,
    memory_chart,
    numbered,
)

_OPEN: Final = 3  # kernels that are not folded
_ASSIGNED: Final = re.compile(r"\s+([A-Za-z_]\w*)(?:\[.*\])? = ")
_PLACE: Final = re.compile(r"  # (\S+:\d+)$")


def lowered_html(traced: Program, compiled: CompiledProgram) -> str:
    """The Program after the passes, the kernels and the plan; hovering links them."""
    steps: dict[int, list[str]] = {}  # of each line of the Program
    calling: dict[str, list[str]] = {}
    for number, step in numbered(compiled.plan.steps):
        for origin in step.origins:
            steps.setdefault(origin.line, []).append(f"s{number}")
        if isinstance(step, KernelCall):
            calling.setdefault(step.kernel, []).append(f"s{number}")
    text = compiled.text.splitlines()
    program = [
        Line(line, tuple(steps.get(k, ())), f"l{k}" if k in steps else "")
        for k, line in enumerate(text, 1)
    ]
    named = {(*_defined(text[k - 1]), link): k for k in steps for link in steps[k]}
    kernels = [
        _kernel(kernel, calling.get(kernel.name, []), named, is_open=n < _OPEN)
        for n, kernel in enumerate(compiled.kernels)
    ]
    groups = [f"s{number}" for number, _ in numbered(compiled.plan.steps)]
    before = markup.listing(str(traced).splitlines())
    return markup.shown(
        f"{markup.escape(compiled.name)} for {compiled.target} "
        f"<small>{_summary(compiled)}</small>",
        markup.columns(
            markup.heading("Program, after the passes") + markup.listing(program),
            markup.heading("Kernels") + "".join(kernels),
        ),
        markup.heading("Plan") + markup.listing(linked_lines(compiled.plan)),
        memory_chart(compiled.plan),
        markup.folded("The Program as it was traced", before),
        groups=groups,
        lines=len(text),
    )


def _summary(compiled: CompiledProgram) -> str:
    calls = list(kernel_calls(compiled.plan.steps))
    done = sum(call.operations for call in calls)
    return (
        f"{len(compiled.kernels)} kernels, {len(calls)} calls, "
        f"{in_si(done)}FLOP, {in_bytes(compiled.plan.arena)} of temporaries"
    )


def _kernel(
    kernel: Kernel | LibraryKernel,
    steps: Sequence[str],
    named: dict[tuple[str, str, str], int],
    *,
    is_open: bool,
) -> str:
    """A kernel; its lines are linked to those of the Program that they compute."""
    lines: list[Line] = []
    for line in kernel.source.splitlines():
        name, place = _defined(line)
        found = {named.get((name, place, step)) for step in steps} - {None}
        part = f"l{min(filter(None, found))}" if name and found else ""
        lines.append(Line(line, (), part))
    summary = (
        f"<b>{kernel.name}</b> <span class='afn-dim'>"
        f"{markup.escape(kernel.reason)}</span>"
    )
    link = markup.attributes(Line("", tuple(steps)))
    return markup.folded(summary, markup.listing(lines), is_open=is_open, link=link)


def _defined(line: str) -> tuple[str, str]:
    """The value that a line of a Program or of a kernel defines, and its place."""
    place = _PLACE.search(line)
    name = _ASSIGNED.match(line) or re.match(r"\s+(\w+): ", line)
    return (name[1] if name else "", place[1] if place else "")


def signatures_html(title: str, signatures: Sequence[tuple[str, Built]]) -> str:
    """What a function was compiled for, and why."""
    rows = [
        (
            f"<code>{markup.escape(types)}</code>",
            markup.escape(built.reason),
            str(built.kernels),
            str(built.from_disk),
            in_seconds(built.seconds),
        )
        for types, built in signatures
    ]
    head = ("arguments", "compiled again because", "kernels", "from disk", "time")
    body = markup.table(head, rows, texts=2) if rows else ""
    return markup.shown(markup.escape(title), body)
