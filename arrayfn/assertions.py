"""``check``: assertions about values, also of compiled code."""

from __future__ import annotations

from string import Formatter
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import (
    ArgumentError,
    CheckError,
    DTypeError,
    user_location,
)
from arrayfn.primitives import assertions
from arrayfn.tracing import ImmutableArray, apply, is_staged
from arrayfn.transforms.arguments import check_leaf, leaf_type, value_of


def check(condition: Any, message: str, *args: Any, **values: Any) -> None:
    """Raise CheckError unless ``condition``, a bool or an array of bools, is true.

    The error has the line of the call and ``message``. The message is formatted with
    ``args`` and ``values``, which are arrays and numbers. A compiled function raises
    the error at the end of the call. On a GPU, this copies one number to the host. If
    several checks fail, the error is that of the first one. Under ``vmap`` the message
    is about the first member whose condition is false. A check in a branch counts only
    if the branch is taken.

    Derivatives keep the checks of the function. These checks are always on, unlike
    those of ``jit(checks=...)``. If a check fails in a loop, the loop ends, or its
    further iterations have no effect.

    Raises ArgumentError if a field of the message is not given, and DTypeError if the
    condition is not a bool.

    >>> import numpy as np
    >>> from arrayfn.compilation.jit import jit
    >>> @jit
    ... def root(x):
    ...     check(x >= 0, "root of {x:.1f}", x=x)
    ...     return x**0.5
    >>> root(4.0)
    array(2.)
    >>> root(-1.0)
    Traceback (most recent call last):
    ...
    arrayfn.errors.CheckError: ... root of -1.0
    """
    names = (*[""] * len(args), *values)
    _check_fields(message, len(args), values)
    given = [*args, *values.values()]
    for number, (name, value) in enumerate(zip(names, given, strict=True)):
        check_leaf(value, f"check: value {name or number}")
    check_leaf(condition, "check: the condition")
    type = leaf_type(condition)
    if type.dtype != dtypes.bool_:
        raise DTypeError(
            f"check: the condition must be a bool or an array of bools, not {type}; "
            f"compare it with something",
            user_location(),
        )
    operands = [condition, *given]
    known = value_of(condition)
    if isinstance(known, np.ndarray) and known.all():
        return
    if any(value_of(x) is None for x in operands) or is_staged(()):
        arrays = [x if isinstance(x, ImmutableArray) else np.asarray(x) for x in given]
        apply(
            assertions.check,
            condition,
            *arrays,
            message=message,
            names=names,
            loops=(),
        )
        return
    condition, *given = [np.asarray(value_of(x)) for x in operands]
    bad = np.flatnonzero(~condition)
    if bad.size:
        shape, first = condition.shape, int(bad[0])
        text = assertions.failure(message, names, (), shape, first, given)
        raise CheckError(text, user_location())


def _check_fields(message: str, count: int, values: dict[str, Any]) -> None:
    """Raise ArgumentError if ``message`` has a field for which nothing is given.

    There are ``count`` values by position, and ``values`` by name.
    """
    try:
        fields = [field for _, field, _, _ in Formatter().parse(message)]
    except ValueError as error:
        raise ArgumentError(
            f"check: the message {message!r} is not a valid format: {error}; write "
            f"{{{{ for a brace",
            user_location(),
        ) from None
    for number, field in enumerate(f for f in fields if f is not None):
        name = field.partition(".")[0].partition("[")[0] or str(number)
        there = int(name) < count if name.isdigit() else name in values
        if not there:
            raise ArgumentError(
                f"check: the message has the field {{{field}}}, but no value for it; "
                f"give {name if not name.isdigit() else 'one'}"
                f"{'=...' if not name.isdigit() else ' by position'}",
                user_location(),
            )
