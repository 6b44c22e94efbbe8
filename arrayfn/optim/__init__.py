"""Optimizers as pure pairs of functions, after optax.

    rule = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(3e-4))
    state = rule.init(params)

    @af.jit
    def step(params, state, batch):
        gradients = af.grad(loss)(params, batch)
        updates, state = rule.update(gradients, state, params)
        return optim.apply_updates(params, updates), state

Parameters, gradients and states are pytrees of arrays. A learning rate is a number or a
schedule. A schedule is a function of the number of updates so far.
"""

from __future__ import annotations

from arrayfn import documentation as _documentation
from arrayfn.optim.optimizers import (
    adagrad,
    adam,
    adamw,
    lamb,
    lion,
    momentum,
    rmsprop,
    scale_by_adam,
    scale_by_lion,
    scale_by_rms,
    scale_by_rss,
    scale_by_trust_ratio,
    sgd,
    trace,
)
from arrayfn.optim.schedules import (
    constant_schedule,
    cosine_decay_schedule,
    exponential_decay,
    join_schedules,
    linear_schedule,
    piecewise_constant_schedule,
    polynomial_schedule,
    warmup_cosine_decay_schedule,
)
from arrayfn.optim.transformations import (
    Optimizer,
    Schedule,
    add_decayed_weights,
    apply_updates,
    chain,
    clip,
    clip_by_global_norm,
    global_norm,
    scale,
    scale_by_learning_rate,
    stateless,
)

__all__ = [
    "Optimizer",
    "Schedule",
    "adagrad",
    "adam",
    "adamw",
    "add_decayed_weights",
    "apply_updates",
    "chain",
    "clip",
    "clip_by_global_norm",
    "constant_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
    "global_norm",
    "join_schedules",
    "lamb",
    "linear_schedule",
    "lion",
    "momentum",
    "piecewise_constant_schedule",
    "polynomial_schedule",
    "rmsprop",
    "scale",
    "scale_by_adam",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_trust_ratio",
    "sgd",
    "stateless",
    "trace",
    "warmup_cosine_decay_schedule",
]

_documentation.attach(__name__)
