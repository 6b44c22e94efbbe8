"""Activation functions, softmax and its kin, and normalisation.

Plain functions of arrays; floating-point arrays keep their dtype, integers become
floating-point as in ``arrayfn.numpy``. Those with a stable derivative that differs from
what differentiating their formula gives have a rule of their own.
"""

from __future__ import annotations

from arrayfn.nn.activations import (
    celu,
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    hard_tanh,
    leaky_relu,
    log_sigmoid,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softplus,
    swish,
    tanh,
)
from arrayfn.nn.normalization import (
    layer_norm,
    log_softmax,
    logsumexp,
    one_hot,
    rms_norm,
    softmax,
    standardize,
)
from arrayfn.nn.pooling import avg_pool, max_pool, min_pool

__all__ = [
    "avg_pool",
    "celu",
    "elu",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "hard_tanh",
    "layer_norm",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "max_pool",
    "min_pool",
    "one_hot",
    "relu",
    "relu6",
    "rms_norm",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "standardize",
    "swish",
    "tanh",
]
