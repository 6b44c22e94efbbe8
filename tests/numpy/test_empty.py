"""Arrays without elements: outside jit, compiled, and on an emulated GPU, the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.backends.cuda.emulator.plan import run_plan
from tests.lowered_on_gpu import lowered

SHAPES = [(0,), (0, 3), (3, 0), (2, 0, 3), (0, 0)]

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "slice of a transpose": lambda x: x.T[..., ::2],
    "copy of a transpose": lambda x: (x + 1).T * 2,
    "repeat": lambda x: anp.repeat(x * 2, 3, axis=0),
    "tile": lambda x: anp.tile(x + 1, (2, 2)),
    "argsort": lambda x: anp.argsort(x + 1, axis=-1),
    "sort": lambda x: anp.sort(x * 2, axis=0),
    "broadcast": lambda x: (x * 2)[..., None] + x[..., None, :],
    "concatenate": lambda x: anp.concatenate([x + 1, np.ones((2, *x.shape[1:]))]),
    "stack": lambda x: anp.stack([x, x + 1], axis=-1),
    "pad": lambda x: anp.pad(x * 2, 1),
    "roll": lambda x: anp.roll(anp.flip(x * 2), 1),
    "sum": lambda x: [anp.sum(x * 2, axis=k) for k in (None, 0, -1)],
    "cumsum": lambda x: [anp.cumsum(x * 2, axis=k) for k in (None, 0, -1)],
    "product of matrices": lambda x: (x * 2) @ anp.swapaxes(x[None], -1, -2),
    "reshape": lambda x: anp.reshape(x * 2, (0, 7)) + 1,
    "take": lambda x: anp.take(x * 2, np.zeros((0, 2), int), axis=0),
    "take_along_axis": lambda x: anp.take_along_axis(
        x, np.zeros(x.shape, int), axis=-1
    ),
    "update": lambda x: anp.asarray(anp.delete(x, np.array([], int), axis=0)),
    "softmax": lambda x: [nn.softmax(x * 2, axis=k) for k in (0, -1)],
    "logsumexp": lambda x: [nn.logsumexp(x, axis=k) for k in (None, 0, -1)],
    "norm": lambda x: [anp.linalg.norm(x.reshape(0), k) for k in (2, 1, np.inf)],
    "scan": lambda x: lax.scan(lambda c, a: (c + anp.sum(a), a * 2), 0.0, x),
    "no turns": lambda x: lax.scan(lambda c, a: (c * 2, c), x + 1, None, length=0),
    "cond": lambda x: lax.cond(anp.sum(x) > 0, lambda v: v * 2, lambda v: v + 1, x),
    "gradient": af.grad(lambda v: anp.sum(v.T[..., ::2] * 2)),
    "gradient of sort": af.grad(lambda v: anp.sum(anp.sort(v) * 2)),
    "nonzero": lambda x: anp.nonzero(x, size=0),
    "some nonzero": lambda x: anp.flatnonzero(x, size=2),
    "argwhere": lambda x: anp.argwhere(x, size=0),
    "where": lambda x: anp.where(x, size=0),
    "unique": lambda x: anp.unique(x, size=2, fill_value=7),
    "setdiff1d": lambda x: anp.setdiff1d(x.reshape(0), np.ones(2), size=1),
    "fill_diagonal": lambda x: (
        anp.fill_diagonal(x * 1.0, 2.0, inplace=False) if x.ndim == 2 else x
    ),
    "permutation": lambda x: af.random.permutation(af.random.key(0), x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_computed_alike_everywhere(name: str) -> None:
    function = FUNCTIONS[name]
    for shape in SHAPES:
        x = np.zeros(shape)
        wanted = af.tree.leaves(function(x))
        emulated = run_plan(lowered(function, x), [x])
        for results in (af.tree.leaves(af.jit(function)(x)), emulated):
            for have, want in zip(results, wanted, strict=True):
                assert np.shape(have) == np.shape(want), shape
                np.testing.assert_array_equal(have, want, str(shape))


def test_functions_of_nothing_give_what_numpy_gives() -> None:
    nothing = np.zeros(0)
    assert anp.linalg.norm(nothing, np.inf) == np.linalg.norm(nothing, np.inf) == 0
    assert anp.median(np.zeros((0, 3)), axis=1).shape == (0,)
    assert nn.logsumexp(nothing) == -np.inf
    assert nn.softmax(nothing).shape == (0,)
    assert [p.shape for p in anp.nonzero(np.ones(3), size=0)] == [(0,)]
    assert anp.unique(np.zeros((4, 0)), axis=1, size=2).shape == (4, 2)
    np.testing.assert_array_equal(
        anp.setdiff1d(nothing, np.ones(3), size=1, fill_value=5.0), [5.0]
    )


@pytest.mark.parametrize("name", ["median", "nanmedian", "nanquantile"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
@pytest.mark.filterwarnings("ignore")  # NumPy warns of what it divides
def test_a_middle_of_no_elements_is_nan(name: str, dtype: Any) -> None:
    more = () if "median" in name else (0.5,)
    for shape, axis, keepdims in [
        ((0,), None, False),
        ((0, 3), 0, True),
        ((3, 0), 1, False),
        ((2, 0, 3), (0, 1), False),
    ]:
        x = np.zeros(shape, dtype)
        options = {"axis": axis, "keepdims": keepdims}
        wanted = np.asarray(getattr(np, name)(x, *more, **options))

        def function(x: Any, options: Any = options) -> Any:
            return getattr(anp, name)(x, *more, **options)

        for found in (function(x), af.jit(function)(x)):
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def test_the_axis_of_fractions_stays_where_there_are_no_elements() -> None:
    found = anp.nanpercentile(np.zeros((0, 3)), [20, 50], axis=0)
    np.testing.assert_array_equal(found, np.full((2, 3), np.nan))
    with pytest.raises(af.errors.ArgumentError, match="percentile of no elements"):
        anp.percentile(np.zeros((0, 3)), 20, axis=0)


def test_the_gradient_of_a_median_of_no_elements_is_empty() -> None:
    found = af.grad(lambda x: anp.sum(anp.median(x, 1)))(np.zeros((3, 0)))
    assert found.shape == (3, 0)


def test_reading_at_a_place_of_an_empty_axis_fills_or_is_refused() -> None:
    def read(mode: str) -> Callable[[Any], Any]:
        return lambda x: x.at[np.array([0, 1])].get(mode=mode, fill_value=3.0)

    x = np.zeros((0, 2))
    np.testing.assert_array_equal(af.jit(read("fill"))(x), np.full((2, 2), 3.0))
    emulated = run_plan(lowered(read("fill"), x), [x])
    np.testing.assert_array_equal(emulated[0], np.full((2, 2), 3.0))
    with pytest.raises(af.errors.ShapeError, match=r"windows of .* do not fit"):
        af.jit(lambda x: anp.take(x, np.zeros(2, int), axis=0, mode="clip"))(x)


def test_an_update_of_nothing_changes_nothing() -> None:
    function = af.jit(lambda x: (x * 2).at[np.array([], int)].add(1.0))
    assert function(np.zeros((0, 3))).shape == (0, 3)
