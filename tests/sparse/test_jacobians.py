"""Sparse Jacobians beside dense ones, and how many derivatives they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn.numpy as anp
from arrayfn.compilation.jit import jit
from arrayfn.errors import AbstractValueError, ArgumentError, ShapeError
from arrayfn.sparse import CSC, colour_columns, diags_array, jacobian
from arrayfn.transforms import grad, hessian, jacfwd, vmap

N = 20
X = np.random.default_rng(6).normal(size=N)
BANDED = diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(N, N))


def chain(x: Any, k: Any = 1.0) -> Any:
    """Each element depends on its neighbours."""
    padded = anp.pad(x, 1)
    return k * anp.sin(x) * padded[2:] - padded[:-2] ** 2


@pytest.mark.parametrize("mode", [None, "forward", "reverse"])
@pytest.mark.parametrize("pattern", [BANDED, CSC(BANDED), BANDED.toscipy()])
def test_a_jacobian_is_the_dense_one(mode: Any, pattern: Any) -> None:
    have = jit(jacobian(chain, pattern, mode=mode))(X, 2.0)
    assert have.nnz == 3 * N - 2
    np.testing.assert_allclose(have.toarray(), jacfwd(chain)(X, 2.0), rtol=1e-12)


def test_a_few_directions_are_enough() -> None:
    program = jit(jacobian(chain, BANDED)).lower(X).program
    assert colour_columns(BANDED).total == 3
    assert "f64[3,20]" in str(program)
    assert "f64[20,20]" not in str(program)


def test_a_full_row_is_differentiated_in_reverse() -> None:
    arrow = np.eye(N)
    arrow[0] = 1.0

    def f(x: Any) -> Any:
        return anp.concatenate([(x**2).sum()[None], x[1:] ** 3])

    assert colour_columns(arrow).total == N
    assert colour_columns(arrow.T).total == 2
    program = str(jit(jacobian(f, arrow)).lower(X).program)
    assert "f64[2,20]" in program
    np.testing.assert_allclose(jacobian(f, arrow)(X).toarray(), jacfwd(f)(X))


def test_hessians_derivatives_of_jacobians_and_mapping() -> None:
    def energy(x: Any) -> Any:
        return (chain(x) ** 2).sum()

    pentadiagonal = (abs(BANDED) @ abs(BANDED)).map(lambda x: x)
    have = jit(jacobian(grad(energy), pentadiagonal))(X)
    np.testing.assert_allclose(have.toarray(), hessian(energy)(X), atol=1e-12)
    entries = jacobian(chain, BANDED)
    np.testing.assert_allclose(
        grad(lambda x: (entries(x).data ** 2).sum())(X),
        grad(lambda x: (jacfwd(chain)(x) ** 2).sum())(X),
    )
    each = vmap(lambda x: entries(x).toarray())(np.stack([X, 2 * X]))
    np.testing.assert_allclose(each[1], jacfwd(chain)(2 * X))


def test_columns_of_one_colour_share_no_row() -> None:
    rng = np.random.default_rng(0)
    for density in (0.02, 0.1, 0.5):
        pattern = rng.random((40, 30)) < density
        colours, total = colour_columns(pattern)
        for colour in range(total):
            assert pattern[:, colours == colour].sum(axis=1).max(initial=0) <= 1


def test_patterns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"is for vectors \(20,\)"):
        jacobian(chain, BANDED)(np.ones(3))
    with pytest.raises(ShapeError, match="the function gave"):
        jacobian(lambda x: x[:3], BANDED)(X)
    with pytest.raises(ArgumentError, match="mode must be one of"):
        jacobian(chain, BANDED, mode="backward")
    with pytest.raises(AbstractValueError, match="a sparsity pattern"):
        jit(lambda p: jacobian(chain, p)(X))(BANDED)
