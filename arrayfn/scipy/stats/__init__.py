"""Distributions, each in a module, and statistics of samples.

    from arrayfn.scipy import stats
    stats.norm.logpdf(x, loc=mean, scale=deviation)

Names and arguments are SciPy's. Densities, and most distribution functions, can be
differentiated with respect to all arguments.
"""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.scipy.stats import (
    bernoulli,
    beta,
    betabinom,
    binom,
    cauchy,
    chi2,
    dirichlet,
    expon,
    gamma,
    gennorm,
    geom,
    gumbel_l,
    gumbel_r,
    laplace,
    logistic,
    multinomial,
    multivariate_normal,
    nbinom,
    norm,
    pareto,
    poisson,
    t,
    truncnorm,
    uniform,
    vonmises,
    wrapcauchy,
)
from arrayfn.scipy.stats.kde import gaussian_kde
from arrayfn.scipy.stats.ranks import ModeResult, mode, rankdata, sem

__all__ = [
    "ModeResult",
    "bernoulli",
    "beta",
    "betabinom",
    "binom",
    "cauchy",
    "chi2",
    "dirichlet",
    "expon",
    "gamma",
    "gaussian_kde",
    "gennorm",
    "geom",
    "gumbel_l",
    "gumbel_r",
    "laplace",
    "logistic",
    "mode",
    "multinomial",
    "multivariate_normal",
    "nbinom",
    "norm",
    "pareto",
    "poisson",
    "rankdata",
    "sem",
    "t",
    "truncnorm",
    "uniform",
    "vonmises",
    "wrapcauchy",
]

_documentation.attach(__name__)
