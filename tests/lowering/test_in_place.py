"""Results over operands: only where the operand's memory is as large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.plan import kernel_calls
from tests.lowered_on_gpu import lowered

PARTS: dict[str, Callable[[Any], Any]] = {
    "first rows": lambda t: anp.ravel((t * 2)[:2]),
    "no rows": lambda t: anp.ravel((t * 2)[2:2]),
    "no columns": lambda t: anp.reshape(anp.sin(t)[:, :0], (0, 5)),
    "first rows of a sum": lambda t: anp.reshape((t + t)[:1], (2, 1)) + 1,
    "diagonal of nothing": lambda t: anp.diagonal((t + t)[:0]),
}


@pytest.mark.parametrize("part", PARTS)
def test_the_first_part_of_a_computed_value_is_copied(part: str) -> None:
    # The result is smaller than what is computed before it, which lies elsewhere.
    x = np.arange(8.0).reshape(4, 2)
    function = PARTS[part]
    wanted = function(x)
    compiled = af.jit(function).lower(x).compiled_program
    (unjitted,) = run_unjitted(compiled, [x])
    (emulated,) = run_plan(lowered(function, x), [x])
    for result in (unjitted, emulated, af.jit(function)(x)):
        np.testing.assert_array_equal(result, wanted)


def test_a_product_of_which_a_part_is_scaled_lies_by_itself() -> None:
    x = np.arange(256, dtype=np.float32).reshape(16, 16)
    plan = lowered(lambda t: anp.ravel((t @ t.T)[:3]) * 2, x).plan
    (written,) = next(kernel_calls(plan.steps)).writes
    assert plan.buffers[written].nbytes == x.nbytes


def twice(a: Any) -> Any:
    return a.at[2].set(1.5).at[1].set(2.5)


@pytest.mark.parametrize("other", [lambda a: a.at[2].set(3.0), twice, lambda a: a])
def test_a_branch_that_changes_an_operand_twice_writes_the_result(other: Any) -> None:
    # What is changed in between lies where the result does, and so does the operand.
    def function(x: Any) -> Any:
        return lax.cond(anp.sum(x) > 0, other, twice, x), anp.exp(x[0])

    compiled = af.jit(function).lower(np.ones((4, 3))).compiled_program
    for x in (np.ones((4, 3)), -np.ones((4, 3))):
        branch = other if x[0, 0] > 0 else twice
        wanted = af.jit(branch, device="reference")(x)
        emulated = run_plan(lowered(function, x), [x])
        for result in (run_unjitted(compiled, [x]), emulated, af.jit(function)(x)):
            np.testing.assert_array_equal(np.asarray(result[0]), wanted)


def a_gather(v: Any) -> Any:
    return anp.take(v, anp.arange(17, -1, -2))  # by computed indices


def twice_each(v: Any) -> Any:
    return anp.flip(anp.reshape(v, (2, 3, 3))[0] * 2, 0)


@pytest.mark.parametrize("read", [a_gather, twice_each])
@pytest.mark.parametrize("before", [True, False])
def test_views_of_an_updated_array_are_read_before_the_update(
    read: Any, before: bool
) -> None:
    # A reshape lies in the memory of the array that the update changes.
    def function(x: Any, y: Any) -> Any:
        v = anp.triu(x, 1)
        part = read(v) if before else None
        updated = lax.dynamic_update_index_in_dim(v, y, 0, 0)
        part = part if before else read(v)
        return anp.flatnonzero(updated, size=12), part

    x, y = np.arange(1.0, 19).reshape(3, 6), np.full((1, 6), 50.0)
    compiled = af.jit(function).lower(x, y).compiled_program
    emulated = run_plan(lowered(function, x, y), [x, y])
    wanted = af.jit(function, device="reference")(x, y)
    for have in (run_unjitted(compiled, [x, y]), emulated, af.jit(function)(x, y)):
        for result, right in zip(have, wanted, strict=True):
            np.testing.assert_array_equal(result, right)
