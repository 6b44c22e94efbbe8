"""Random numbers from explicit keys, under JAX's names.

A key is a value. The same key gives the same numbers, so make new ones with ``split``:

    key = random.key(0)
    key, step_key = random.split(key)
    noise = random.normal(step_key, (3,))

Threefry-2x32 (Salmon et al., 2011) makes the bits, which are JAX's by default. ``key``,
``split``, ``fold_in``, ``bits``, ``uniform``, ``randint`` and ``permutation`` give
JAX's values. ``normal`` gives them up to the rounding of erfinv. The default dtypes are
float64 and int64, as in JAX with ``jax_enable_x64``.
"""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.random.bits import (
    bits,
    randint,
    uniform,
)
from arrayfn.random.continuous import (
    cauchy,
    double_sided_maxwell,
    exponential,
    gumbel,
    laplace,
    logistic,
    lognormal,
    maxwell,
    normal,
    pareto,
    rayleigh,
    triangular,
    truncated_normal,
    wald,
    weibull_min,
)
from arrayfn.random.counts import (
    binomial,
    multinomial,
    poisson,
)
from arrayfn.random.discrete import (
    bernoulli,
    categorical,
    choice,
    geometric,
    permutation,
    rademacher,
)
from arrayfn.random.gamma_family import (
    ball,
    beta,
    chisquare,
    dirichlet,
    f,
    gamma,
    generalized_normal,
    loggamma,
    t,
)
from arrayfn.random.keys import (
    Key,
    PRNGKey,
    clone,
    fold_in,
    key,
    key_data,
    key_dtype,
    key_impl,
    split,
    wrap_key_data,
)
from arrayfn.random.matrices import (
    multivariate_normal,
    orthogonal,
)

__all__ = [
    "Key",
    "PRNGKey",
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "clone",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "key_data",
    "key_dtype",
    "key_impl",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
    "wrap_key_data",
]

_documentation.attach(__name__)
