"""Generated programs agree with the oracle, and the generator finds what is broken.

How many programs run is fixed, and sized to a minute on two cores. Others are run by
``python -m tests.fuzz --device cpu --seconds 600 --seed 7``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from arrayfn.backends.registry import BACKENDS
from arrayfn.ir import Equation, Var
from arrayfn.lowering import in_place
from arrayfn.lowering.templates import indexing as templates
from arrayfn.passes import masks
from arrayfn.primitives.table import TABLE
from tests.fuzz.arrays import Operand
from tests.fuzz.campaign import Campaign
from tests.fuzz.case import Case
from tests.fuzz.devices import install
from tests.fuzz.drawing import changed, draw
from tests.fuzz.generator import Draw, Known
from tests.fuzz.run import CRASHED, PASSED, RAW, REFUSED, WRONG, Outcome, run_case
from tests.fuzz.shrink import shrink
from tests.fuzz.transformations import Transformation
from tests.fuzz.worker import limit_of

# A worker that aborts at program 1.
ABORTS = """
import json, os, sys
given = json.loads(sys.argv[1])
for index in range(given["first"], given["end"], given["step"]):
    print(json.dumps({"begin": index}), flush=True)
    if index == 1:
        print("lost", file=sys.stderr, flush=True)
        os.abort()
    done = {"done": index, "status": "passed", "message": "", "signature": ""}
    print(json.dumps(done), flush=True)
print(json.dumps({"end": True}), flush=True)
"""
COUNTS = {"cpu": 150, "emulator": 150, "unjitted": 250}


@pytest.fixture
def devices() -> Iterator[None]:
    """The devices of the generator, for one test."""
    before = dict(BACKENDS)
    install()
    yield
    BACKENDS.clear()
    BACKENDS.update(before)


@pytest.mark.slow
@pytest.mark.parametrize("device", COUNTS)
def test_generated_programs_agree_with_the_oracle(device: str) -> None:
    if device == "emulator":
        pytest.importorskip("numba_cuda")
    said: list[str] = []
    campaign = Campaign(device, 0, count=COUNTS[device], jobs=1, tell=said.append)
    report = campaign.run()
    assert not said, "\n".join([*said, report.summary()])
    assert report.programs == COUNTS[device]
    assert report.statuses[REFUSED] < 0.1 * report.programs, report.summary()


def first_failure(
    only: list[str], most: int, device: str = "unjitted"
) -> tuple[Case, Outcome]:
    """The first program that fails, and how."""
    for index in range(most):
        case = draw(0, index, limit_of(device), only)
        outcome = run_case(case, device)
        if outcome.failed:
            return case, outcome
    raise AssertionError(f"none of {most} programs failed")


@contextmanager
def other_kernel(name: str, other: str) -> Iterator[None]:
    """Let the kernels of one row compute another."""
    row = TABLE[name]
    right = row.kernel
    object.__setattr__(row, "kernel", TABLE[other].kernel)
    yield
    object.__setattr__(row, "kernel", right)


def test_a_row_whose_kernel_computes_something_else_is_found(devices: None) -> None:
    with other_kernel("cos", "sin"):
        case, outcome = first_failure(["elementwise"], 200)
    assert outcome.status == WRONG
    assert run_case(case, "unjitted").status == PASSED


def test_an_index_that_is_not_clamped_is_found(
    devices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "_clamped", lambda b, begin, axis, last: begin)
    case, outcome = first_failure(["take", "slices"], 200)
    assert outcome.status in (RAW, WRONG)
    monkeypatch.undo()
    assert run_case(case, "unjitted").status == PASSED


def test_a_result_that_is_put_where_less_room_is_is_found(
    devices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place._Placement, "has_equal_size", lambda *_: True)
    case, outcome = first_failure(["shapes", "index"], 400)
    assert outcome.status in (RAW, WRONG)
    monkeypatch.undo()
    assert run_case(case, "unjitted").status == PASSED


def test_a_mask_of_another_array_is_found(
    devices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ``where(y <= 0, 0, x)`` is taken for a rectifier, its gradient is wrong."""

    def mask_of(equation: Equation, makers: dict[Var, Equation]) -> Var | None:
        if equation.primitive.name != "select":
            return None
        made = makers.get(equation.inputs[0])
        is_mask = made is not None and made.primitive.name == "le"
        return equation.inputs[0] if is_mask else None

    monkeypatch.setattr(masks, "_mask_of", mask_of)
    case, outcome = first_failure(["choose"], 100, "emulator")
    assert outcome.status in (RAW, WRONG)
    monkeypatch.undo()
    assert run_case(case, "emulator").status == PASSED


def test_what_fails_is_shrunk_to_a_line(devices: None) -> None:
    with other_kernel("cos", "sin"):  # which differ at every value, also of variants
        case, outcome = first_failure(["elementwise"], 300)
        small, found = shrink(case, "unjitted", outcome, seconds=20)
    assert found.status == WRONG
    assert len(small.lines) <= min(2, len(case.lines))
    assert small.transformation.kind == "plain"
    assert small.change is None
    assert "compiled = af.jit(run, device='unjitted')" in small.source("unjitted")


def test_crashes_and_hangs_are_counted_and_the_next_program_goes_on() -> None:
    said: list[str] = []
    command = (sys.executable, "-c", ABORTS)
    campaign = Campaign("none", 0, count=3, jobs=1, tell=said.append, command=command)
    report = campaign.run()
    assert report.statuses == {PASSED: 2, CRASHED: 1}
    assert said == ["0:1 crash: the process ended: SIGABRT: lost"]


def test_second_calls_make_no_large_hessian() -> None:
    """7 for 1 in five axes makes 16,807 numbers of one: their Hessian 2 GB."""
    for seed in range(40):
        d = Draw(np.random.default_rng(seed), 20_000)
        d.operands.append(Operand("x0", (1,) * 5, "float32"))
        d.known["x0"] = Known((1,) * 5, "float32")
        assert d.try_line("x0 * 2")
        hessian = Transformation("hessian", ("x0",), (("v0", "anp.sum({})"),))
        case = Case(tuple(d.operands), tuple(d.lines), ("v0",), hessian)
        change = changed(d, case)
        if change is not None:
            size = math.prod(change.operands[0].shape)
            assert size**2 <= 4 * d.limit


def test_a_program_is_the_same_whenever_it_is_drawn() -> None:
    first, again = (draw(5, 17, 120).source("cpu") for _ in range(2))
    assert first == again
    assert draw(5, 18, 120).source("cpu") != first
    exec(
        compile(first.replace("device='cpu'", "device='reference'"), "<p>", "exec"), {}
    )
