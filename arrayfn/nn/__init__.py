"""Activations, softmax, losses, normalisation, pooling, attention, initializers.

All are functions of arrays. Floating-point arrays keep their dtype. Integers are
converted to floating-point numbers as in ``arrayfn.numpy``. A function whose formula
has an unstable derivative has a custom derivative rule.
"""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.nn import initializers
from arrayfn.nn.activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    identity,
    leaky_relu,
    log1mexp,
    log_sigmoid,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softplus,
    sparse_plus,
    sparse_sigmoid,
    squareplus,
    swish,
    tanh,
)
from arrayfn.nn.attention import (
    dot_product_attention,
)
from arrayfn.nn.block_masks import (
    BlockMask,
    create_block_mask,
)
from arrayfn.nn.encodings import (
    embedding,
    one_hot,
    rope,
)
from arrayfn.nn.losses import (
    cross_entropy,
)
from arrayfn.nn.normalization import (
    batch_norm,
    group_norm,
    layer_norm,
    rms_norm,
    standardize,
)
from arrayfn.nn.pooling import (
    avg_pool,
    max_pool,
    min_pool,
)
from arrayfn.nn.softmax_family import (
    log_softmax,
    logmeanexp,
    logsumexp,
    softmax,
)

__all__ = [
    "BlockMask",
    "avg_pool",
    "batch_norm",
    "celu",
    "create_block_mask",
    "cross_entropy",
    "dot_product_attention",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "group_norm",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "initializers",
    "layer_norm",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "log_softmax",
    "logmeanexp",
    "logsumexp",
    "max_pool",
    "min_pool",
    "mish",
    "one_hot",
    "relu",
    "relu6",
    "rms_norm",
    "rope",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "standardize",
    "swish",
    "tanh",
]

_documentation.attach(__name__)
