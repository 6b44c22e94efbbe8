"""Functions and estimators of scikit-learn on traced arrays: values and gradients.

python -m tests.conformance.scikit_learn

Each case is called with NumPy arrays, and under ``af.grad``; values must be equal, and
the gradient along a direction must be the finite difference. Estimators are those of
scikit-learn's list for array libraries.
"""

from __future__ import annotations

import importlib
import os
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp

Function = Callable[[Any, Any], Any]
RNG = np.random.default_rng(0)
X, Y = RNG.random((2, 12, 3)) + 0.1
DIRECTION = RNG.standard_normal(X.shape)
LABELS = (Y[:, 0] > Y[:, 1]).astype(np.int64)

_PAIRWISE = """
    euclidean_distances cosine_similarity cosine_distances manhattan_distances
    rbf_kernel laplacian_kernel polynomial_kernel linear_kernel sigmoid_kernel
    chi2_kernel additive_chi2_kernel paired_euclidean_distances
    paired_manhattan_distances paired_cosine_distances
"""
_REGRESSION = """
    r2_score explained_variance_score mean_squared_error mean_absolute_error
    mean_absolute_percentage_error root_mean_squared_error mean_squared_log_error
    root_mean_squared_log_error median_absolute_error mean_pinball_loss
"""


def _functions() -> Iterator[tuple[str, Function]]:
    """Distances, kernels and metrics of each output."""
    pairwise = importlib.import_module("sklearn.metrics.pairwise")
    metrics = importlib.import_module("sklearn.metrics")
    extmath = importlib.import_module("sklearn.utils.extmath")
    for name in _PAIRWISE.split():
        yield name, getattr(pairwise, name)
    for name in _REGRESSION.split():
        yield name, partial(getattr(metrics, name), multioutput="raw_values")
    yield "softmax", lambda x, y: extmath.softmax(x * y)
    yield "row_norms", lambda x, _: extmath.row_norms(x)
    yield (
        "randomized_svd",
        lambda x, _: extmath.randomized_svd(x, 2, random_state=0)[1],
    )


def _estimators() -> Iterator[tuple[str, Function]]:
    """What estimators make of the data that they are fitted to."""
    linear = importlib.import_module("sklearn.linear_model")
    decomposition = importlib.import_module("sklearn.decomposition")
    discriminant = importlib.import_module("sklearn.discriminant_analysis")
    scalers = importlib.import_module("sklearn.preprocessing")
    bayes = importlib.import_module("sklearn.naive_bayes")
    mixture = importlib.import_module("sklearn.mixture")
    ridge = importlib.import_module("sklearn.kernel_ridge")
    for solver in ("full", "covariance_eigh", "randomized"):
        pca = partial(decomposition.PCA, 2, svd_solver=solver, random_state=0)
        yield f"PCA {solver}", lambda x, _, pca=pca: pca().fit(x).explained_variance_
    full = partial(decomposition.PCA, 2, svd_solver="full")
    yield "PCA transform", lambda x, y: full().fit(x).transform(y)
    yield "PCA whiten", lambda x, _: full(whiten=True).fit_transform(x)
    yield "PCA inverse", lambda x, y: _restored(full().fit(x), y)
    yield "PCA score", lambda x, y: full().fit(x).score_samples(y)
    for name in ("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "Normalizer"):
        scaler = getattr(scalers, name)
        yield name, lambda x, _, scaler=scaler: scaler().fit_transform(x)
    yield "KernelCenterer", lambda x, _: _centred(scalers.KernelCenterer(), x)
    yield (
        "PolynomialFeatures",
        lambda x, _: scalers.PolynomialFeatures(2).fit_transform(x),
    )
    yield "Ridge", lambda x, y: linear.Ridge(solver="svd").fit(x, y).coef_
    lda = discriminant.LinearDiscriminantAnalysis
    yield (
        "LinearDiscriminantAnalysis",
        lambda x, _: lda(solver="svd").fit(x, anp.asarray(LABELS)).transform(x),
    )
    yield "KernelRidge", lambda x, y: ridge.KernelRidge().fit(x, y).predict(x)
    yield (
        "GaussianNB",
        lambda x, _: (
            bayes.GaussianNB().fit(x, anp.asarray(LABELS)).predict_joint_log_proba(x)
        ),
    )
    yield (
        "GaussianMixture",
        lambda x, _: (
            mixture.GaussianMixture(
                2, init_params="random_from_data", random_state=0, max_iter=3
            )
            .fit(x)
            .means_
        ),
    )


def _restored(pca: Any, y: Any) -> Any:
    return pca.inverse_transform(pca.transform(y))


def _centred(centerer: Any, x: Any) -> Any:
    return centerer.fit_transform(x @ x.T)


def _weighted(result: Any) -> Any:
    """A number that depends on each element of ``result``."""
    weights = np.cos(np.arange(result.size)).reshape(result.shape)
    return (anp.sin(result) * weights).sum()


def verdict(function: Function) -> str:
    """Whether values and the gradient are right, or why there are none."""

    def loss(x: Any) -> Any:
        return _weighted(function(x, anp.asarray(Y)))

    expected = _weighted(function(X.copy(), Y.copy()))
    try:
        value, gradient = af.value_and_grad(loss)(X)
        ahead, behind = (
            float(af.value_and_grad(loss)(X + step * DIRECTION)[0])
            for step in (1e-6, -1e-6)
        )
    except Exception as error:  # noqa: BLE001 - the verdict says which
        text = re.sub(r"\S*site-packages/", "", str(error))
        return f"{type(error).__name__}: {text[:110]}"
    slope, along = (ahead - behind) / 2e-6, float((gradient * DIRECTION).sum())
    if not np.allclose(value, expected, rtol=1e-8):
        return f"values differ: {value} {expected}"
    if not np.allclose(along, slope, rtol=1e-4, atol=1e-6):
        return f"gradients differ: {along} {slope}"
    return "equal"


def main() -> None:
    """Print the verdict on each case, and count."""
    os.environ["SCIPY_ARRAY_API"] = "1"
    importlib.import_module("sklearn").set_config(array_api_dispatch=True)
    warnings.simplefilter("ignore")
    for kind, cases in (("functions", _functions()), ("estimators", _estimators())):
        verdicts = {name: verdict(function) for name, function in cases}
        for name, text in verdicts.items():
            print(f"{name:32s} {text}")
        equal = list(verdicts.values()).count("equal")
        print(f"{kind}: {equal} of {len(verdicts)} have their values and gradients")


if __name__ == "__main__":
    main()
