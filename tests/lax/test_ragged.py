"""Products of rows in groups of unequal sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn import lax
from arrayfn.errors import ArgumentError, ShapeError

RNG = np.random.default_rng(11)
ROWS = RNG.standard_normal((7, 3))
MATRICES = RNG.standard_normal((4, 3, 2))


def by_hand(x: Any, y: Any, sizes: Any) -> Any:
    out = np.zeros((len(x), y.shape[2]), x.dtype)
    begin = 0
    for matrix, size in zip(y, sizes, strict=True):
        out[begin : begin + size] = x[begin : begin + size] @ matrix
        begin += size
    return out


@pytest.mark.parametrize("sizes", [(2, 0, 4, 1), (1, 1, 1, 1), (0, 0, 0, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_group_meets_its_matrix(sizes: tuple[int, ...], dtype: Any) -> None:
    x, y, n = ROWS.astype(dtype), MATRICES.astype(dtype), np.array(sizes, np.int32)
    for run in (lax.ragged_dot, af.jit(lax.ragged_dot)):
        have = run(x, y, n)
        assert have.dtype == dtype
        np.testing.assert_allclose(have, by_hand(x, y, sizes), rtol=1e-5)
    both = af.vmap(lax.ragged_dot, in_axes=(0, None, 0))
    have = both(np.stack([x, 2 * x]), y, np.stack([n, n[::-1]]))
    np.testing.assert_allclose(have[1], by_hand(2 * x, y, sizes[::-1]), rtol=1e-5)


def test_derivatives_of_products_in_groups_are_those_of_the_products() -> None:
    sizes = np.array([2, 0, 3, 1])
    weights = RNG.standard_normal((7, 2))

    def in_groups(x: Any, y: Any) -> Any:
        return (af.numpy.sin(lax.ragged_dot(x, y, sizes)) * weights).sum()

    def one_by_one(x: Any, y: Any) -> Any:
        parts = [x[:2] @ y[0], x[2:5] @ y[2], x[5:6] @ y[3], 0 * x[6:] @ y[0]]
        return (af.numpy.sin(af.numpy.concatenate(parts)) * weights).sum()

    def curvature(f: Any) -> Any:
        slopes = af.grad(f, (0, 1))
        return lambda x, y: sum((g**2).sum() for g in slopes(x, y))

    for have, want in (
        (in_groups, one_by_one),
        map(curvature, (in_groups, one_by_one)),
    ):
        slopes = [af.jit(af.grad(f, (0, 1)))(ROWS, MATRICES) for f in (have, want)]
        for mine, theirs in zip(*slopes, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)


def test_what_is_infinite_in_one_group_stays_there() -> None:
    y = MATRICES.copy()
    y[3] = np.inf
    sizes = np.array([2, 2, 2, 1])
    out = af.jit(lax.ragged_dot)(ROWS, y, sizes)
    assert np.isfinite(out[:6]).all()
    slope = af.jit(af.grad(lambda x: lax.ragged_dot(x, y, sizes)[:6].sum()))(ROWS)
    assert np.isfinite(slope[:6]).all()


def test_groups_that_do_not_fit_are_named() -> None:
    with pytest.raises(ShapeError, match=r"lhs \(m, k\)"):
        lax.ragged_dot(ROWS, MATRICES, np.array([7]))
    with pytest.raises(ArgumentError, match="must be integers"):
        lax.ragged_dot(ROWS, MATRICES, np.ones(4))
    with pytest.raises(ArgumentError, match="group_offset"):
        lax.ragged_dot(ROWS, MATRICES, np.ones(4, int), group_offset=np.array([0]))


def in_general(x: Any, y: Any, sizes: Any, *numbers: Any) -> Any:
    return lax.ragged_dot_general(x, y, sizes, lax.RaggedDotDimensionNumbers(*numbers))


def test_a_ragged_axis_that_is_kept_with_batches_of_their_own_sizes() -> None:
    # lhs [m, b, k], rhs [k, g, b, n]
    x, y = RNG.standard_normal((6, 2, 3)), RNG.standard_normal((3, 4, 2, 5))
    dims = (((2,), (0,)), ((1,), (2,))), (0,), (1,)
    sizes = np.array([[2, 0, 3, 1], [1, 2, 0, 1]])
    have = af.jit(lambda *a: in_general(*a, *dims))(x, y, sizes)
    want = [by_hand(x[:, b], np.moveaxis(y[:, :, b], 1, 0), sizes[b]) for b in (0, 1)]
    np.testing.assert_allclose(have, want, rtol=1e-12)
    have = in_general(x, y, sizes[0], *dims)
    want[1] = by_hand(x[:, 1], np.moveaxis(y[:, :, 1], 1, 0), sizes[0])
    np.testing.assert_allclose(have, want, rtol=1e-12)


def test_a_ragged_axis_that_is_contracted_gives_a_sum_for_each_group() -> None:
    x, y = RNG.standard_normal((2, 6, 3)), RNG.standard_normal((6, 2, 4))
    dims = (((1,), (0,)), ((0,), (1,))), (1,), ()
    sizes = np.array([2, 0, 3])
    have = in_general(x, y, sizes, *dims)
    parts = [(0, 2), (2, 2), (2, 5)]
    want = [np.einsum("bkm,kbn->bmn", x[:, i:j], y[i:j]) for i, j in parts]
    np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-14)
    # The gradient of the other is this one.
    slope = af.grad(lambda m: lax.ragged_dot(ROWS, m, np.array([2, 0, 4, 1])).sum())
    dims = (((0,), (0,)), ((), ())), (0,), ()
    have = in_general(ROWS, np.ones((7, 2)), np.array([2, 0, 4, 1]), *dims)
    np.testing.assert_allclose(have, slope(MATRICES), rtol=1e-12, atol=1e-14)


def test_a_ragged_batch_axis_changes_nothing_and_other_roles_are_refused() -> None:
    x = RNG.standard_normal((4, 2, 3))
    dims = (((2,), (2,)), ((0,), (0,))), (0,), ()
    have = in_general(x, x, np.array([1, 3]), *dims)
    np.testing.assert_allclose(have, x @ x.swapaxes(1, 2), rtol=1e-12)
    with pytest.raises(ArgumentError, match="one axis of lhs"):
        in_general(x, x, np.array([1, 3]), dims[0], (0, 1), ())
    with pytest.raises(ArgumentError, match="counts groups"):
        in_general(x, x, np.array([1, 3]), dims[0], (1,), ())
    dims = (((2,), (2,)), ((0,), (0,))), (1,), (1,)
    with pytest.raises(ShapeError, match=r"\(4, 2\), not \(3, 2\)"):
        in_general(x, x, np.ones((3, 2), int), *dims)
