"""Special functions, elementwise, under SciPy's names, with derivatives.

Floating-point arrays keep their dtype; integers become floating-point. Functions by
series or continued fractions (``gammainc``, ``betainc``, ``expi`` and others) are
computed in float64 for every dtype, by loops that run until all elements converge.
"""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.nn import logsumexp
from arrayfn.scipy.special.elementary import (
    boxcox,
    boxcox1p,
    entr,
    expit,
    i0,
    i0e,
    i1,
    i1e,
    kl_div,
    log_expit,
    logit,
    rel_entr,
    xlog1py,
    xlogy,
)
from arrayfn.scipy.special.error_functions import (
    erf,
    erfc,
    erfcx,
    erfinv,
    log_ndtr,
    ndtr,
    ndtri,
    wofz,
)
from arrayfn.scipy.special.gamma_functions import (
    bernoulli,
    beta,
    betainc,
    betaln,
    comb,
    digamma,
    factorial,
    gamma,
    gammainc,
    gammaincc,
    gammaln,
    gammasgn,
    loggamma,
    multigammaln,
    poch,
    polygamma,
    psi,
    zeta,
)
from arrayfn.scipy.special.gaussian_integrals import dawsn, fresnel, owens_t
from arrayfn.scipy.special.hypergeometric import hyp1f1, hyp2f1
from arrayfn.scipy.special.integrals import (
    exp1,
    expi,
    expn,
    sici,
    spence,
)
from arrayfn.scipy.special.orders import bessel_jn, sph_harm_y
from arrayfn.scipy.special.softmaxes import log_softmax, softmax
from arrayfn.tracing import Namespace

__all__ = [
    "bernoulli",
    "bessel_jn",
    "beta",
    "betainc",
    "betaln",
    "boxcox",
    "boxcox1p",
    "comb",
    "dawsn",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp1",
    "expi",
    "expit",
    "expn",
    "factorial",
    "fresnel",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammaln",
    "gammasgn",
    "hyp1f1",
    "hyp2f1",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "kl_div",
    "log_expit",
    "log_ndtr",
    "log_softmax",
    "loggamma",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "owens_t",
    "poch",
    "polygamma",
    "psi",
    "rel_entr",
    "sici",
    "softmax",
    "spence",
    "sph_harm_y",
    "wofz",
    "xlog1py",
    "xlogy",
    "zeta",
]

Namespace.special.update({name: globals()[name] for name in __all__})

_documentation.attach(__name__)
