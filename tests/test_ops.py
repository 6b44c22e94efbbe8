"""Reductions over segments, and what waits for arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn.errors import AbstractValueError, ArgumentError, ShapeError

DATA = np.array([[1.0, 5.0], [2.0, -3.0], [4.0, 0.5], [7.0, 7.0]])
IDS = np.array([2, 0, 2, -1])
REDUCTIONS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
OF_NONE = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows_are_combined_by_their_numbers(name: str) -> None:
    function = getattr(af.ops, f"segment_{name}")
    rows = [DATA[[1]], None, DATA[[0, 2]], None]
    want = np.array(
        [
            np.full(2, OF_NONE[name]) if r is None else REDUCTIONS[name](r, axis=0)
            for r in rows
        ]
    )
    for wrap in (lambda f: f, af.jit):
        have = wrap(lambda d, i: function(d, i, 4))(DATA, IDS)
        np.testing.assert_array_equal(have, want)
    np.testing.assert_array_equal(function(DATA, IDS), want[:3])
    whole = function(DATA.astype(np.int32), IDS, 4)
    assert whole.dtype == np.int32
    limits = {"max": np.iinfo(np.int32).min, "min": np.iinfo(np.int32).max}
    assert whole[1, 0] == limits.get(name, OF_NONE[name])


def test_segments_are_differentiated_and_mapped() -> None:
    def f(data: Any) -> Any:
        return (af.ops.segment_sum(data, IDS, 3) ** 2).sum()

    totals = np.array([DATA[1], [0, 0], DATA[0] + DATA[2]])
    want = 2 * totals[[2, 0, 2, 0]] * np.array([[1], [1], [1], [0]])
    np.testing.assert_allclose(af.grad(f)(DATA), want)
    many = np.stack([DATA, 2 * DATA])
    have = af.vmap(lambda d: af.ops.segment_max(d, IDS, 3))(many)
    np.testing.assert_array_equal(have[1], af.ops.segment_max(2 * DATA, IDS, 3))


def test_what_are_no_segments_is_refused() -> None:
    with pytest.raises(ShapeError, match="segment_sum: data is"):
        af.ops.segment_sum(DATA, IDS[:2], 3)
    with pytest.raises(ArgumentError, match="integers"):
        af.ops.segment_sum(DATA, IDS / 2, 3)
    with pytest.raises(AbstractValueError):
        af.jit(af.ops.segment_sum)(DATA, IDS)


def test_a_compiled_function_is_a_method_of_its_class() -> None:
    @af.tree.register_dataclass
    @dataclass
    class Scaled:
        factor: Any

        @af.jit
        def times(self, x: Any) -> Any:
            return self.factor * x

    np.testing.assert_array_equal(Scaled(2.0).times(DATA), 2 * DATA)

    class Plain:
        @af.jit
        def times(self, x: Any) -> Any:
            return x

    with pytest.raises(ArgumentError, match=r"argument 0 is Plain.*static_argnums"):
        Plain().times(DATA)


def test_remedies_name_what_takes_values_that_are_not_known() -> None:
    with pytest.raises(AbstractValueError, match="dynamic_slice_in_dim"):
        af.jit(lambda x, i: x[i : i + 2])(DATA, 1)
    with pytest.raises(AbstractValueError, match="static_argnums"):
        af.jit(af.numpy.arange)(3)


def test_arrays_of_numpy_are_ready() -> None:
    tree = {"a": DATA}
    assert af.block_until_ready(tree) is tree
