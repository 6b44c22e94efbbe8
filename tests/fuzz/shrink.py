"""A failing program made as small as it still fails in the same way.

Each attempt runs in a forked process, so that what crashes or hangs can be shrunk too.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import arrayfn as af
from arrayfn import tree
from tests.fuzz.arrays import Operand
from tests.fuzz.case import NAME, Case, Line, evaluated
from tests.fuzz.generator import Known
from tests.fuzz.run import CRASHED, SLOW, Outcome, run_case
from tests.fuzz.transformations import Transformation

ATTEMPT_SECONDS: Final = 20.0


def shrink(
    case: Case, device: str, outcome: Outcome, seconds: float, compiles: bool = False
) -> tuple[Case, Outcome]:
    """The smallest variant found within ``seconds``, and what comes of it."""
    until = time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < until:
        progress = False
        for smaller in variants(case):
            if time.monotonic() > until:
                break
            found = in_a_fork(smaller, device, compiles)
            if found.failed and alike(found, outcome):
                case, outcome, progress = smaller, found, True
                break
    return case, outcome


def alike(a: Outcome, b: Outcome) -> bool:
    """Whether two failures are of one kind."""
    return a.status == b.status and a.signature == b.signature


def in_a_fork(
    case: Case, device: str, compiles: bool = False, seconds: float = ATTEMPT_SECONDS
) -> Outcome:
    """What comes of ``case`` in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with contextlib.suppress(BaseException):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(run_case(case, device, compiles)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], seconds)
        data = pipe.read() if ready else b""
        if not ready:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not ready:
        return Outcome(SLOW, f"no result after {seconds:.0f} s", "timeout")
    if not data:
        killer = signal.Signals(os.WTERMSIG(status)).name if status else "exit"
        return Outcome(CRASHED, f"the process ended: {killer}", "crash")
    return pickle.loads(data)


def variants(case: Case) -> Iterator[Case]:
    """Smaller programs, the smallest first."""
    for found in _variants(case):
        cleaned = found.without_dead_code()
        if cleaned != case and cleaned.arguments and _is_consistent(cleaned):
            yield cleaned


def _is_consistent(case: Case) -> bool:
    names = {x.name for x in case.operands}
    for line in case.lines:
        if not line.used <= names:
            return False
        names.update(line.targets)
    return set(case.outputs) <= names


def _variants(case: Case) -> Iterator[Case]:
    if case.change is not None:
        yield replace(case, change=None)
        given = {x.name: x for x in case.change.operands}
        operands = tuple(given.get(x.name, x) for x in case.operands)
        yield replace(case, operands=operands, change=None)
    moved = case.transformation
    if moved.kind != "plain":
        plain = tuple(replace(x, batch=None) for x in case.operands)
        yield replace(
            case, operands=plain, transformation=Transformation(), change=None
        )
        if moved.kind in ("value_and_grad", "hessian"):
            yield replace(case, transformation=replace(moved, kind="grad"))
        if moved.kind in ("vmap_grad", "grad_vmap"):
            grad = replace(moved, kind="grad")
            yield replace(case, operands=plain, transformation=grad, change=None)
    if moved.around:
        yield replace(case, transformation=replace(moved, around=""))
    if len(moved.wrt) > 1:
        for name in moved.wrt:
            yield replace(case, transformation=replace(moved, wrt=(name,)))
    if moved.losses and any(t != "anp.sum({})" for _, t in moved.losses):
        losses = tuple((y, "anp.sum({})") for y, _ in moved.losses)
        yield replace(case, transformation=replace(moved, losses=losses))
    if len(case.outputs) > 1:
        for y in case.outputs:
            yield replace(case, outputs=(y,))
    if moved.kind == "plain":
        yield from _earlier_outputs(case)
    yield from _without_lines(case)
    yield from _simpler_operands(case)


def _earlier_outputs(case: Case) -> Iterator[Case]:
    for line in case.lines[:-1]:
        for target in line.targets:
            if case.outputs != (target,):
                yield replace(case, outputs=(target,))


def _without_lines(case: Case) -> Iterator[Case]:
    """A line's result is replaced by an argument of its type, or by its operand."""
    types = known_types(case)
    for number, line in enumerate(case.lines):
        if number == len(case.lines) - 1 and len(line.targets) == len(case.outputs):
            continue
        rest = [*case.lines[:number], *case.lines[number + 1 :]]
        for operand in line.used:
            if len(line.targets) == 1 and types.get(operand) == types.get(
                line.targets[0], ()
            ):
                yield _renamed(case, rest, {line.targets[0]: operand})
        if all(target in types for target in line.targets):
            made: list[Operand] = []
            for k, target in enumerate(line.targets):
                known = types[target]
                fresh = f"x{100 + 10 * number + k}"
                made.append(Operand(fresh, known.shape, known.dtype))
            names = {t: x.name for t, x in zip(line.targets, made, strict=True)}
            smaller = _renamed(case, rest, names)
            change = smaller.change
            if change is not None:
                change = replace(change, operands=(*change.operands, *made))
            yield replace(smaller, operands=(*smaller.operands, *made), change=change)


def known_types(case: Case) -> dict[str, Known]:
    """The types of all names, as far as they can be found."""
    types = {x.name: Known(x.shape, x.dtype) for x in case.operands}
    for line in case.lines:
        names = sorted(line.used)
        try:
            function = evaluated(f"lambda {', '.join(names)}: {line.expression}")
            result = af.eval_shape(function, *[types[n].struct() for n in names])
        except Exception:  # noqa: BLE001 -- of unknown type, then
            continue
        leaves = tree.leaves(result)
        for target, y in zip(line.targets, leaves, strict=False):
            types[target] = Known(tuple(y.shape), str(y.dtype))
    return types


def _renamed(case: Case, lines: list[Line], names: dict[str, str]) -> Case:
    def new(text: str) -> str:
        return NAME.sub(lambda m: names.get(m.group(), m.group()), text)

    renamed = tuple(replace(line, expression=new(line.expression)) for line in lines)
    outputs = tuple(names.get(y, y) for y in case.outputs)
    moved = case.transformation
    losses = tuple((names.get(y, y), loss) for y, loss in moved.losses)
    return replace(
        case,
        lines=renamed,
        outputs=outputs,
        transformation=replace(moved, losses=losses),
    )


def _simpler_operands(case: Case) -> Iterator[Case]:
    for k, x in enumerate(case.operands):
        simpler: list[Operand] = []
        if x.layout != "row-major":
            simpler.append(replace(x, layout="row-major"))
        if x.kind != "steps":
            simpler.append(replace(x, kind="steps"))
        if x.constant:
            fresh = x.name.replace("c", "x")
            names = {x.name: fresh}
            yield _renamed(
                replace(
                    case,
                    change=None,
                    operands=(
                        *case.operands[:k],
                        replace(x, constant=False, name=fresh),
                        *case.operands[k + 1 :],
                    ),
                ),
                list(case.lines),
                names,
            )
        if x.python:
            simpler.append(replace(x, python=False))
        if x.dtype not in ("float32", "int32", "bool"):
            simpler.append(replace(x, dtype="float32"))
            simpler.append(replace(x, dtype="int32"))
        if x.batch is not None and x.batch[0]:
            simpler.append(replace(x, batch=(0, x.batch[1])))
        for y in simpler:
            operands = (*case.operands[:k], y, *case.operands[k + 1 :])
            yield replace(case, operands=operands)
    extents = sorted({n for x in case.operands for n in x.full_shape}, reverse=True)
    for old in extents:
        for new in (1, 2, 3, 4):
            if new < old:
                yield replace(
                    case, operands=tuple(_resized(x, old, new) for x in case.operands)
                )


def _resized(x: Operand, old: int, new: int) -> Operand:
    batch = x.batch
    if batch is not None and batch[1] == old:
        batch = (batch[0], new)
    shape = tuple(new if n == old else n for n in x.shape)
    return replace(x, shape=shape, batch=batch)
