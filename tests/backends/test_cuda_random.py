"""Random numbers on a GPU: the bits of the CPU's, for every distribution.

But for those with sums, and with ``exp`` in single precision, which is CUDA's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import arrayfn as af
from arrayfn import random
from arrayfn.backends.cuda import missing_here

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(missing_here()), reason=missing_here()),
]

SHAPE: Final = (1000, 3)
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
P: Final = np.array([0.1, 0.6, 0.3])
COVARIANCE: Final = np.array([[2.0, 0.5], [0.5, 1.0]])
LOGITS: Final = np.linspace(-1.0, 1.0, 12).reshape(3, 4)

# name: what is drawn with a key, in a dtype
DRAWS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "ball": lambda k, d: random.ball(k, 3, 2.0, (500,), d),
    "bernoulli": lambda k, d: random.bernoulli(k, P.astype(d), SHAPE),
    "beta": lambda k, d: random.beta(k, 2.0, 0.5, SHAPE, d),
    "binomial": lambda k, d: random.binomial(k, 40.0, P, SHAPE, d),
    "bits": lambda k, d: random.bits(k, SHAPE, np.dtype(f"u{d.itemsize}")),
    "categorical": lambda k, d: random.categorical(k, LOGITS.astype(d), shape=(500, 3)),
    "cauchy": lambda k, d: random.cauchy(k, SHAPE, d),
    "chisquare": lambda k, d: random.chisquare(k, 3.0, SHAPE, d),
    "choice": lambda k, d: random.choice(k, 3, SHAPE, p=P.astype(d)),
    "dirichlet": lambda k, d: random.dirichlet(k, P.astype(d) * 5, (500,), d),
    "double_sided_maxwell": lambda k, d: random.double_sided_maxwell(
        k, np.zeros(3, d), d.type(2), (500,), d
    ),
    "exponential": lambda k, d: random.exponential(k, SHAPE, d),
    "f": lambda k, d: random.f(k, 3.0, 5.0, SHAPE, d),
    "fold_in": lambda k, d: random.key_data(random.fold_in(k, d.itemsize)),
    "gamma": lambda k, d: random.gamma(k, 1.5, SHAPE, d),
    "generalized_normal": lambda k, d: random.generalized_normal(k, 3.0, SHAPE, d),
    "geometric": lambda k, d: random.geometric(k, P.astype(d), SHAPE),
    "gumbel": lambda k, d: random.gumbel(k, SHAPE, d),
    "laplace": lambda k, d: random.laplace(k, SHAPE, d),
    "loggamma": lambda k, d: random.loggamma(k, 0.5, SHAPE, d),
    "logistic": lambda k, d: random.logistic(k, SHAPE, d),
    "lognormal": lambda k, d: random.lognormal(k, 0.5, SHAPE, d),
    "maxwell": lambda k, d: random.maxwell(k, SHAPE, d),
    "multinomial": lambda k, d: random.multinomial(
        k, np.array(30, d), P.astype(d), shape=(500, 3), dtype=d
    ),
    "multivariate_normal": lambda k, d: random.multivariate_normal(
        k, np.zeros(2, d), COVARIANCE.astype(d), (500,), d
    ),
    "normal": lambda k, d: random.normal(k, SHAPE, d),
    "orthogonal": lambda k, d: random.orthogonal(k, 4, (5,), d),
    "pareto": lambda k, d: random.pareto(k, 2.5, SHAPE, d),
    "permutation": lambda k, d: random.permutation(k, np.arange(1000).astype(d)),
    "poisson": lambda k, d: random.poisson(k, P.astype(d) * 20, SHAPE),
    "rademacher": lambda k, d: random.rademacher(k, SHAPE, d),
    "randint": lambda k, d: random.randint(k, SHAPE, 0, 1000, f"i{d.itemsize}"),
    "rayleigh": lambda k, d: random.rayleigh(k, 2.0, SHAPE, d),
    "split": lambda k, d: random.key_data(random.split(k, d.itemsize)),
    "t": lambda k, d: random.t(k, 3.0, SHAPE, d),
    "triangular": lambda k, d: random.triangular(k, -1.0, 0.5, 3.0, SHAPE, d),
    "truncated_normal": lambda k, d: random.truncated_normal(k, -1.0, 2.0, SHAPE, d),
    "uniform": lambda k, d: random.uniform(k, SHAPE, d),
    "wald": lambda k, d: random.wald(k, 2.0, SHAPE, d),
    "weibull_min": lambda k, d: random.weibull_min(k, 2.0, 1.5, SHAPE, d),
}

# What is no draw.
OTHERS: Final = {
    "Key",
    "PRNGKey",
    "clone",
    "key",
    "key_data",
    "key_dtype",
    "key_impl",
    "wrap_key_data",
}
# With CUDA's exp in single precision, upon which a rejection may turn.
WITH_EXP: Final = {
    "beta",
    "chisquare",
    "f",
    "gamma",
    "generalized_normal",
    "loggamma",
    "lognormal",
    "pareto",
    "t",
}
# With sums, which a GPU adds up in another order, or by a library.
WITH_SUMS: Final = {
    "ball",
    "dirichlet",
    "maxwell",
    "multivariate_normal",
    "orthogonal",
}


def test_every_distribution_is_drawn() -> None:
    assert {*DRAWS, *OTHERS} == set(random.__all__)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_draws_have_the_bits_of_the_cpu(name: str, dtype: Any) -> None:
    draw = DRAWS[name]
    key = random.key(7)
    want = af.jit(lambda k: draw(k, dtype), device="cpu")(key)
    have = np.asarray(af.jit(lambda k: draw(k, dtype), device="cuda")(key))
    assert have.dtype == want.dtype
    if name in WITH_SUMS or (name in WITH_EXP and dtype == SINGLE):
        bound = 1e-5 if dtype == SINGLE else 1e-13
        assert np.mean(~np.isclose(have, want, bound, bound)) <= 0.01
    else:
        np.testing.assert_array_equal(have, want)


def test_draws_outside_jit_are_those_inside() -> None:
    key = af.device_put(random.key(7))
    for name in ("bits", "uniform", "normal", "randint", "permutation"):
        inside = af.jit(lambda k, n=name: DRAWS[n](k, SINGLE))(key)
        outside = DRAWS[name](key, SINGLE)
        assert outside.device == "cuda"
        np.testing.assert_array_equal(np.asarray(outside), np.asarray(inside))
