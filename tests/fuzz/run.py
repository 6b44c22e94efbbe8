"""One program, run on a device and judged."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import arrayfn as af
from arrayfn import tree
from arrayfn.errors import ArrayfnError
from arrayfn.ir import Program
from arrayfn.primitives.calls import evaluate
from tests.fuzz.arrays import Operand
from tests.fuzz.case import Case, evaluated
from tests.fuzz.consistency import inconsistency
from tests.fuzz.devices import EMULATOR
from tests.fuzz.oracle import Expected

PASSED, REFUSED, WRONG, RAW, CRASHED, SLOW = (
    *("passed", "refused", "wrong", "raw error"),
    *("crash", "timeout"),
)
FAILURES: Final = (WRONG, RAW, CRASHED, SLOW)
PLAIN_ERRORS: Final = (TypeError, ValueError, IndexError, OverflowError)


@dataclass(frozen=True)
class Outcome:
    """What came of a program: a status, in words, and what it has in common."""

    status: str
    message: str = ""
    signature: str = ""

    @property
    def failed(self) -> bool:
        return self.status in FAILURES


def run_case(case: Case, device: str, compiles: bool = False) -> Outcome:
    """Run ``case`` on ``device`` and compare with the oracle."""
    EMULATOR.compiles = compiles
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return _run(case, device)


def _run(case: Case, device: str) -> Outcome:
    try:
        scope = case.functions()
        arguments = given(case.arguments)
        program = traced(scope["run"], arguments)
    except Exception as error:  # noqa: BLE001 -- judged by its class
        return refusal(error, "reference")
    try:
        expected = expectation(program, arguments)
        fault = inconsistency(case, scope, arguments, expected)
    except Exception as error:  # noqa: BLE001 -- judged by its class
        return refusal(error, "reference", strict=True)
    if fault is not None:
        return Outcome(WRONG, fault, "reference: inconsistent")
    jitted = af.jit(scope["run"], device=device)
    found = _compare(jitted, arguments, expected, device, "")
    if found is not None:
        return found
    if case.change is None:
        return Outcome(PASSED)
    try:
        arguments = given(case.change.operands)
        program = traced(case.run(), arguments)
    except Exception as error:  # noqa: BLE001 -- judged by its class
        outcome = refusal(error, "reference")
        return Outcome(PASSED) if outcome.status == REFUSED else outcome
    again = f"with {case.change.what}, "
    try:
        expected = expectation(program, arguments)
    except Exception as error:  # noqa: BLE001 -- judged by its class
        return refusal(error, f"{again}reference", strict=True)
    return _compare(jitted, arguments, expected, device, again) or Outcome(PASSED)


def given(operands: Sequence[Operand]) -> list[Any]:
    """The arguments' values."""
    return [evaluated(x.source()) for x in operands]


def traced(function: Callable[..., Any], arguments: Sequence[Any]) -> Program:
    """The Program of ``function``, as ``jit`` traces it."""
    return af.jit(function, device="reference").lower(*arguments).program


def expectation(program: Program, arguments: Sequence[Any]) -> Expected:
    """What the reference gives."""
    leaves = [
        np.asarray(x, t.dtype)
        for x, t in zip(tree.leaves(list(arguments)), program.input_types, strict=True)
    ]
    return Expected(program, leaves, evaluate(program, leaves))


def _compare(
    jitted: Any, arguments: list[Any], expected: Expected, device: str, which: str
) -> Outcome | None:
    copies = [np.array(x) for x in arguments]
    try:
        results = [np.asarray(y) for y in tree.leaves(jitted(*arguments))]
    except Exception as error:  # noqa: BLE001 -- judged by its class
        outcome = refusal(error, device)
        if outcome.status == REFUSED:
            outcome = replace(outcome, status=RAW)
        return replace(outcome, message=which + outcome.message)
    fault = expected.faults(results)
    if fault is not None:
        return Outcome(WRONG, which + fault, f"{device}: wrong")
    for x, copy in zip(arguments, copies, strict=True):
        if np.array(x).tobytes() != copy.tobytes():
            return Outcome(WRONG, which + "an argument was changed", "argument changed")
    if device == "cpu":
        for y in tree.leaves(jitted(*arguments)):
            have = results.pop(0)
            if np.asarray(y).tobytes() != have.tobytes():
                message = which + "a second call gives other bits"
                return Outcome(WRONG, message, "other bits")
    return None


def refusal(error: Exception, where: str, *, strict: bool = False) -> Outcome:
    """An error of arrayfn's, or a raw one; Python's own are, if ``strict``, always."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if "/arrayfn/" in f.filename), frames[-1])
    place = f"{last.filename.rpartition('arrayfn/')[2]}:{last.name}"
    words = str(error).splitlines()[0] if str(error) else ""
    message = f"{where}: {type(error).__name__}: {words[:300]} [{place}:{last.lineno}]"
    known = isinstance(error, ArrayfnError) or (
        where == "reference" and not strict and isinstance(error, PLAIN_ERRORS)
    )
    signature = f"{type(error).__name__} {place}"
    return Outcome(REFUSED if known else RAW, message, signature)
