"""``explain(f, *args)``: what was compiled, and why it came out as it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

from typing_extensions import override

from arrayfn.backends.object_cache import COUNTS
from arrayfn.compilation.building import Built
from arrayfn.compilation.compiled import signature
from arrayfn.compilation.jit import jit
from arrayfn.compilation.jitted import Jitted
from arrayfn.compilation.shown import lowered_html
from arrayfn.compilation.stages import Lowered
from arrayfn.display import markup
from arrayfn.display.units import in_bytes, in_seconds, in_si
from arrayfn.errors import SourceLocation, plural
from arrayfn.ir import Equation, Program, Var
from arrayfn.ir.format import equation_lines
from arrayfn.ir.text import parse_program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.fusion.reasons import refusals, why_single
from arrayfn.lowering.plan import Kernel, KernelCall, kernel_calls, numbered
from arrayfn.primitives import views
from arrayfn.primitives.table import TABLE
from arrayfn.records import frozen


@frozen
class Boundary:
    """A pair of steps that were not fused.

    Attributes:
        before: the number of the step that writes an array.
        after: the number of the step that reads it.
        value: the type of the array.
        nbytes: the size of the array.
        location: the user's line that uses the array.
        reason: why both steps are not one kernel.
    """

    before: int
    after: int
    value: str
    nbytes: int
    location: SourceLocation | None
    reason: str


@frozen
class Copy:
    """A relayout, which copies an array.

    Attributes:
        steps: the numbers of the steps that copy it.
        value: the type of the copy.
        nbytes: the size of the copy.
        location: the user's line that needs it.
        reason: what reads the copy.
    """

    steps: tuple[int, ...]
    value: str
    nbytes: int
    location: SourceLocation | None
    reason: str


@frozen
class Explanation:
    """The result of ``explain``: ``str`` makes a text, a notebook shows a page.

    ``boundaries`` say why two steps are separate. ``copies`` say which equations copy
    an array. ``signatures`` are the types that this process compiled the function for,
    each with the argument that caused it. ``from_disk`` counts the kernels that came
    from the disk cache. ``compiled`` counts those that were compiled, in ``seconds``.
    The process already had the other kernels.
    """

    lowered: Lowered
    boundaries: tuple[Boundary, ...]
    copies: tuple[Copy, ...]
    signatures: tuple[tuple[str, Built], ...]
    from_disk: int
    compiled: int
    seconds: float

    @override
    def __str__(self) -> str:
        """Return the explanation as text."""
        return "\n".join(_text(self))

    @override
    def __repr__(self) -> str:
        """Return the explanation as text, which interpreters show."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return the explanation as HTML, which notebooks show."""
        return _html(self)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Explain how ``function`` is compiled for these arguments, and why.

    The result shows each step, with its operations and bytes and the user's lines that
    it computes. It says why two steps are not one. It shows each copy that a layout
    needs, with the line that caused it, and the memory. It says whether kernels were
    compiled or came from a cache, and for which arguments a jitted function was
    compiled again. ``function`` need not be jitted. ``explain`` compiles the function,
    but does not call it. Backends without plans (``"reference"``) have no steps.

    >>> import numpy as np
    >>> import arrayfn.numpy as anp
    >>> def loss(w, x):
    ...     return anp.sum(anp.tanh(x @ w))
    >>> print(explain(loss, np.ones((32, 16)), np.ones((64, 32))))
    loss(f64[32,16], f64[64,32]) -> (f64[]) for cpu
    ...
    not fused:
      step 1 reads f64[64,16] (8 KiB) of step 0: a library computes dot_general  ...
    """
    jitted = function if isinstance(function, Jitted) else jit(function)
    lowered = jitted.lower(*args, **kwargs)
    # Kernels found in the disk cache so far, and kernels compiled.
    hits, misses = COUNTS["hits"], COUNTS["misses"]
    begin = time.perf_counter()
    if not lowered.backend.info().missing:
        lowered.load()
    seconds = time.perf_counter() - begin
    compiled = lowered.compiled_program
    program = parse_program(compiled.text, TABLE, compiled.constants)
    return Explanation(
        lowered,
        tuple(_boundaries(lowered, program)),
        tuple(_copies(lowered, program)),
        tuple(jitted.signatures()),
        COUNTS["hits"] - hits,
        COUNTS["misses"] - misses,
        seconds,
    )


def _steps_of_lines(lowered: Lowered) -> dict[int, dict[int, SourceLocation | None]]:
    """Map each line of the Program's text to the steps that compute it.

    Each step's number is mapped to the user's line.
    """
    steps: dict[int, dict[int, SourceLocation | None]] = {}
    for number, step in numbered(lowered.plan.steps):
        if isinstance(step, KernelCall):
            for origin in step.origins:
                steps.setdefault(origin.line, {})[number] = origin.source
    return steps


def _boundaries(lowered: Lowered, program: Program) -> Iterator[Boundary]:
    """Yield a Boundary for each pair of steps of which one reads what the other wrote.

    ``program`` is the Program of the plan's text. Steps count in the order of the plan,
    and a buffer as written by the last step that wrote it.
    """
    plan = lowered.plan
    steps = [(n, s) for n, s in numbered(plan.steps) if isinstance(s, KernelCall)]
    lines = {equation: line for line, equation in equation_lines(program)}
    by_line = {line: equation for equation, line in lines.items()}
    why = refusals(program)
    wrote: dict[int, int] = {}
    for number, step in steps:
        for buffer in dict.fromkeys((*step.reads, *step.updates)):
            before = wrote.get(buffer)
            if before is None:
                continue
            first = dict(steps)[before]
            makers = [by_line[o.line] for o in first.origins]
            users = [by_line[o.line] for o in step.origins]
            reason, user = _reason(makers, users, why)
            line = lines.get(user) if user is not None else None
            places = [o.source for o in step.origins if o.line == line]
            allocation = plan.buffers[buffer]
            yield Boundary(
                before,
                number,
                str(allocation.type),
                allocation.nbytes,
                places[0] if places else None,
                reason,
            )
        wrote.update(dict.fromkeys(step.writes, number))


def _reason(
    makers: list[Equation],
    users: list[Equation],
    why: dict[tuple[Equation, Equation], str],
) -> tuple[str, Equation | None]:
    """Return why no kernel computes both ``makers`` and ``users``, and the user.

    ``makers`` and ``users`` are the equations of two steps, of which the second reads
    what the first wrote. ``why`` has the reasons that fusion recorded for pairs
    ``(maker, user)``. The second result is the equation of ``users`` that reads; None
    if it is not known. Reasons are tried from the surest to the vaguest.
    """
    # A reason that fusion recorded.
    for maker in makers:
        for user in users:
            if (maker, user) in why:
                return why[maker, user], user
    # One equation reads another's result, and one of both is always a kernel of its
    # own.
    definitions = {v: eq for eq in makers for v in eq.outputs}
    for user in users:
        for atom in user.inputs:
            if isinstance(atom, Var) and atom in definitions and user not in makers:
                text = why_single(definitions[atom]) or why_single(user)
                if text:
                    return text, user
    # One equation belongs to both steps.
    if set(makers) & set(users):
        return "a long sum has two steps: totals of chunks, then the total of these", (
            next(eq for eq in users if eq in makers)
        )
    # Some equation of either step is always a kernel of its own.
    reasons = [text for eq in (*makers, *users) if (text := why_single(eq))]
    if reasons:
        return reasons[0], None
    return "they are over other axes, or other elements of what lies between", None


def _copies(lowered: Lowered, program: Program) -> Iterator[Copy]:
    """Yield a Copy for each relayout of a Var among the equations of the Program."""
    steps = _steps_of_lines(lowered)
    users: dict[Var, list[Equation]] = {}
    for _, equation in equation_lines(program):
        for atom in equation.inputs:
            if isinstance(atom, Var):
                users.setdefault(atom, []).append(equation)
    for line, equation in equation_lines(program):
        if equation.primitive.name != "relayout":
            continue
        (result,) = equation.outputs
        using = [eq.primitive.name for eq in users.get(result, ())]
        if not isinstance(equation.inputs[0], Var):
            continue  # a constant that is written
        reason = (
            f"{' and '.join(dict.fromkeys(using))} reads it from memory, laid out "
            f"{result.type.layout}"
            if using
            else "a result is a row-major array of its own"
        )
        steps_of_copy = steps.get(line, {})
        yield Copy(
            tuple(steps_of_copy),
            str(result.type),
            result.type.nbytes,
            next(iter(steps_of_copy.values()), None),
            reason,
        )


def _text(found: Explanation) -> Iterator[str]:
    """Yield the lines of the explanation ``found`` as text."""
    lowered = found.lowered
    yield f"{signature(lowered.compiled_program)} for {lowered.backend.name}"
    cost = lowered.cost()
    yield (
        f"{in_si(cost.operations)}FLOP, {in_bytes(cost.bytes)} moved; memory: "
        f"{lowered.memory()}"
    )
    yield ""
    yield str(cost)
    reasons = {k.name: k.reason for k in lowered.kernels}
    yield ""
    yield "kernels:"
    for name, reason in reasons.items():
        yield f"  {name}: {reason}"
    if found.boundaries:
        yield ""
        yield "not fused:"
    for b in found.boundaries:
        yield (
            f"  step {b.after} reads {b.value} ({in_bytes(b.nbytes)}) of step "
            f"{b.before}: {b.reason}{_at(b.location)}"
        )
    yield ""
    yield "copies:" if found.copies else "copies: none"
    for c in found.copies:
        where = f"in step {', '.join(map(str, c.steps))}" if c.steps else "no step"
        value = f"{c.value} ({in_bytes(c.nbytes)}), {where}"
        yield f"  {value}: {c.reason}{_at(c.location)}"
    once = lowered.compiled_program.once
    if once is not None:
        values = zip(once.program.output_types, _once_lines(once.program), strict=True)
        yield ""
        yield "computed once, from captured arrays:"
        yield from (
            f"  {type} ({in_bytes(type.nbytes)}): {line}" for type, line in values
        )
    yield ""
    yield _cache_text(found)
    if found.signatures:
        yield ""
        yield "compiled in this process for:"
    for types, built in found.signatures:
        because = f", because {built.reason}" if built.reason else ""
        yield f"  ({types}) in {in_seconds(built.seconds)}{because}"


def _once_lines(once: CompiledProgram) -> list[str]:
    """Return a text for each output of ``once``, the Program that runs only once.

    It runs when the plan is loaded. The text names the primitive that computes the
    output, before copies by relayout, and the user's line.
    """
    program = parse_program(once.text, TABLE, once.constants)
    definitions = program.definitions()
    lines: list[str] = []
    for atom in program.outputs:
        while isinstance(atom, Var) and definitions[atom].primitive is views.relayout:
            (atom,) = definitions[atom].inputs
        equation = definitions[atom] if isinstance(atom, Var) else None
        name = "" if equation is None else equation.primitive.name
        lines.append(name + ("" if equation is None else _at(equation.source)))
    return lines


def _at(location: SourceLocation | None) -> str:
    """Return a location in brackets, for the end of a line; "" for None."""
    return f"  ({location})" if location else ""


def _cache_text(found: Explanation) -> str:
    """Say how many kernels were compiled, or loaded from the disk cache."""
    generated = sum(isinstance(k, Kernel) for k in found.lowered.kernels)
    return (
        f"code: {plural(generated, 'generated kernel')}; "
        f"{plural(found.compiled, 'function')} compiled and {found.from_disk} loaded "
        f"from the disk cache in {in_seconds(found.seconds)}; the others were in memory"
    )


def _html(found: Explanation) -> str:
    """Return the explanation ``found`` as HTML, for a notebook."""
    lowered = found.lowered
    boundaries = [
        (
            f"{b.before} and {b.after}",
            escape(b.value),
            escape(b.reason),
            escape(str(b.location or "")),
            in_bytes(b.nbytes),
        )
        for b in found.boundaries
    ]
    copies = [
        (
            ", ".join(map(str, c.steps)),
            escape(c.value),
            escape(c.reason),
            escape(str(c.location or "")),
            in_bytes(c.nbytes),
        )
        for c in found.copies
    ]
    signatures = [
        (escape(types), escape(built.reason), in_seconds(built.seconds))
        for types, built in found.signatures
    ]
    head = ("steps", "value", "because", "line", "bytes")
    parts = [
        f"<div>{escape(_cache_text(found))}</div>",
        f"<div>{escape(str(lowered.memory()))}</div>",
        markup.heading("Not fused"),
        markup.table(head, boundaries, texts=4),
        markup.heading("Copies"),
        markup.table(head, copies, texts=4) if copies else "<div>none</div>",
    ]
    if signatures:
        parts += [
            markup.heading("Compiled in this process for"),
            markup.table(("arguments", "because", "time"), signatures, texts=2),
        ]
    calls = len(list(kernel_calls(lowered.plan.steps)))
    title = f"{escape(lowered.compiled_program.name)} <small>{calls} calls</small>"
    page = lowered_html(lowered.program, lowered.compiled_program)
    return markup.shown(title, *parts) + page
