"""Arrays and functions that tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp

T = TypeVar("T")


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray[Any, Any]:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same_on_threads(run: Callable[[], T], counts: Sequence[int] = (1, 2)) -> T:
    """The result of ``run``, whose bits must be the same on any number of threads."""
    before = af.get_num_threads()
    results = []
    try:
        for count in counts:
            af.set_num_threads(count)
            results.append(run())
    finally:
        af.set_num_threads(before)
    first, *others = ([x.tobytes() for x in af.tree.leaves(r)] for r in results)
    assert all(other == first for other in others)
    return results[0]


def softmax(x: Any) -> Any:
    """Softmax along rows."""
    e = anp.exp(x - anp.max(x, axis=-1, keepdims=True))
    return e / anp.sum(e, axis=-1, keepdims=True)


def layernorm(x: Any, scale: Any, bias: Any = 0) -> Any:
    """Layer normalisation of rows."""
    centred = x - anp.mean(x, axis=-1, keepdims=True)
    variance = anp.mean(centred**2, axis=-1, keepdims=True)
    return centred / anp.sqrt(variance + 1e-5) * scale + bias


def cross_entropy(z: Any, labels: Any) -> Any:
    """The mean over rows of the negative log-probability of each row's label."""
    z = z - anp.max(z, axis=-1, keepdims=True)
    logs = z - anp.log(anp.sum(anp.exp(z), axis=-1, keepdims=True))
    return -anp.mean(anp.take_along_axis(logs, labels[:, None], axis=-1))


def two_layers(p: Any, x: Any, labels: Any) -> Any:
    """The loss of a network with one hidden layer, of ``p["w1"]`` to ``p["b2"]``."""
    h = anp.tanh(x @ p["w1"] + p["b1"])
    return cross_entropy(h @ p["w2"] + p["b2"], labels)
