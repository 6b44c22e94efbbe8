"""What a notebook shows of a lowered function: Program, kernels and plan, linked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from arrayfn.compilation.building import Built
from arrayfn.display import markup
from arrayfn.display.markup import Line
from arrayfn.display.units import in_bytes, in_seconds, in_si
from arrayfn.errors import plural
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
_LOCATION: Final = re.compile(r"  # (\S+:\d+)$")


def lowered_html(traced: Program, compiled: CompiledProgram) -> str:
    """Return HTML of the Program after the passes, the kernels and the plan.

    Lines that belong together are linked: hovering over one marks the others.
    """
    steps: dict[int, list[str]] = {}  # of each line of the Program
    steps_of_kernel: dict[str, list[str]] = {}
    for number, step in numbered(compiled.plan.steps):
        for origin in step.origins:
            steps.setdefault(origin.line, []).append(f"s{number}")
        if isinstance(step, KernelCall):
            steps_of_kernel.setdefault(step.kernel, []).append(f"s{number}")
    text = compiled.text.splitlines()
    program = [
        Line(line, tuple(steps.get(k, ())), f"l{k}" if k in steps else "")
        for k, line in enumerate(text, 1)
    ]
    # Keys are (name, source line, step), as ``_kernel`` looks for them.
    line_of_value = {
        (*_defined(text[k - 1]), link): k for k in steps for link in steps[k]
    }
    kernels = [
        _kernel(
            kernel,
            steps_of_kernel.get(kernel.name, []),
            line_of_value,
            is_open=n < _OPEN,
        )
        for n, kernel in enumerate(compiled.kernels)
    ]
    groups = [f"s{number}" for number, _ in numbered(compiled.plan.steps)]
    traced_listing = markup.listing(str(traced).splitlines())
    return markup.shown(
        f"{markup.escape(compiled.name)} for {compiled.target} "
        f"<small>{_summary(compiled)}</small>",
        markup.columns(
            markup.heading("Program, after the passes") + markup.listing(program),
            markup.heading("Kernels") + "".join(kernels),
        ),
        markup.heading("Plan") + markup.listing(linked_lines(compiled.plan)),
        memory_chart(compiled.plan),
        markup.folded("The Program as it was traced", traced_listing),
        groups=groups,
        lines=len(text),
    )


def _summary(compiled: CompiledProgram) -> str:
    """Return a line with the numbers of kernels, calls, operations and bytes."""
    calls = list(kernel_calls(compiled.plan.steps))
    operations = sum(call.operations for call in calls)
    return (
        f"{plural(len(compiled.kernels), 'kernel')}, {plural(len(calls), 'call')}, "
        f"{in_si(operations)}FLOP, {in_bytes(compiled.plan.arena)} of temporaries"
    )


def _kernel(
    kernel: Kernel | LibraryKernel,
    steps: Sequence[str],
    line_of_value: dict[tuple[str, str, str], int],
    *,
    is_open: bool,
) -> str:
    """Return a kernel as HTML, with its lines linked to those of the Program.

    ``steps`` are the names of the plan's steps that call it, and ``line_of_value`` the
    Program's line by a value's name, its source line and the step. With ``is_open`` it
    is shown unfolded.
    """
    lines: list[Line] = []
    for line in kernel.source.splitlines():
        name, location = _defined(line)
        line_numbers = {line_of_value.get((name, location, step)) for step in steps} - {
            None
        }
        anchor = f"l{min(filter(None, line_numbers))}" if name and line_numbers else ""
        lines.append(Line(line, (), anchor))
    summary = (
        f"<b>{kernel.name}</b> <span class='afn-dim'>"
        f"{markup.escape(kernel.reason)}</span>"
    )
    link = markup.attributes(Line("", tuple(steps)))
    return markup.folded(summary, markup.listing(lines), is_open=is_open, link=link)


def _defined(line: str) -> tuple[str, str]:
    """Return the name of the value that a line of code defines, and its source line.

    ``line`` is of a Program or kernel. Either is empty if there is none.
    """
    location = _LOCATION.search(line)
    name = _ASSIGNED.match(line) or re.match(r"\s+(\w+): ", line)
    return (name[1] if name else "", location[1] if location else "")


def signatures_html(title: str, signatures: Sequence[tuple[str, Built]]) -> str:
    """Return a table of a function's signatures, with each compilation's reason.

    ``title`` is the heading, and ``signatures`` what ``Jitted.signatures`` gives.
    """
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
