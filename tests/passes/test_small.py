"""Which Programs count as small, by the work that they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.passes.small import is_small


def product(x: Any, y: Any) -> Any:
    return x @ y


def elementwise(x: Any, y: Any) -> Any:
    return anp.exp(x) + 1.0


@pytest.mark.parametrize(
    ("function", "work"),
    [
        (product, 2 * 16 * 8 * 32),  # a multiplication and an addition a term
        (elementwise, 2 * 8 * 16),
    ],
)
def test_work_is_counted_exactly(function: Any, work: int) -> None:
    program = af.make_program(function)(np.ones((8, 16)), np.ones((16, 32)))
    assert is_small(program, work)
    assert not is_small(program, work - 1)


def test_sums_of_many_terms_are_left_to_a_library() -> None:
    for depth, small in ((32, True), (33, False)):
        program = af.make_program(product)(np.ones((2, depth)), np.ones((depth, 2)))
        assert is_small(program) == small
