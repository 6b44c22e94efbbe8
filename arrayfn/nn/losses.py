"""Losses of classification."""

from __future__ import annotations

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.compilation.operators import operator
from arrayfn.errors import ShapeError, user_location
from arrayfn.nn.softmax_family import logsumexp
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike


@operator(name="nn.cross_entropy", static_argnames=("axis",), inline=True)
def cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    axis: int = -1,
    where: ArrayLike | None = None,
) -> Array:
    """Return the cross-entropy of softmax(logits) over ``axis``, for each example.

    It is logsumexp(logits) minus the logit of the class, or its mean over classes by
    their probabilities.

    Args:
        logits: [..., C, ...], with the C classes along ``axis``.
        labels: the classes or their probabilities. Classes are integers, in an array
            with the shape of logits without ``axis``. Probabilities are floating-point
            numbers, in an array with the shape of logits. A class outside 0 to C - 1 is
            handled as in ``take_along_axis``.
        axis: the axis of classes.
        where: bool, broadcasts with the result; examples where it is false give 0.

    Returns:
        An array of logits' dtype, without ``axis``.

    Raises:
        ShapeError: the shapes do not fit.

    >>> import numpy as np
    >>> cross_entropy(np.zeros((2, 4)), np.array([0, 3])).round(4)
    array([1.3863, 1.3863])
    """
    logits = ops.as_array(ops.as_floating("cross_entropy", logits))
    type = ops.type_of_operand("cross_entropy", labels)
    position = ops.normalize_axis("cross_entropy", axis, logits.ndim)
    shape = logits.shape
    are_classes = type.dtype in dtypes.INTEGERS
    wanted = (*shape[:position], *shape[position + 1 :]) if are_classes else shape
    if type.shape != wanted:
        kind = "classes" if are_classes else "probabilities"
        raise ShapeError(
            f"cross_entropy takes {kind} of shape {wanted} for logits {list(shape)} "
            f"with classes along axis {axis}, not labels {type}",
            user_location(),
        )
    total = logsumexp(logits, position)
    if are_classes:
        index = anp.expand_dims(labels, position)
        class_logit = anp.squeeze(
            anp.take_along_axis(logits, index, position), position
        )
        loss = anp.subtract(total, class_logit)
    else:
        weights = ops.convert(labels, logits.dtype)
        losses = anp.subtract(anp.expand_dims(total, position), logits)
        loss = anp.sum(anp.multiply(weights, losses), position)
    return loss if where is None else anp.where(where, loss, 0)


__all__ = ["cross_entropy"]
