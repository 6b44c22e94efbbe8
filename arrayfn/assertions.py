"""``check``: assertions about values, also of compiled code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from string import Formatter
from typing import Any

import numpy as np
from typing_extensions import override

from arrayfn import dtypes, tree
from arrayfn.errors import (
    ArgumentError,
    CheckError,
    DTypeError,
    user_location,
)
from arrayfn.primitives import assertions
from arrayfn.primitives.assertions import ValueFormatter
from arrayfn.tracing import ImmutableArray, apply, is_staged
from arrayfn.transforms.arguments import check_leaf, leaf_type, value_of


def check(condition: Any, message: str, *args: Any, **values: Any) -> None:
    """Raise CheckError unless ``condition``, a bool or an array of bools, is true.

    The error has the line of the call and ``message``. The message is formatted with
    ``args`` and ``values``: arrays, numbers and pytrees of them. A compiled function
    raises the error at the end of the call. On a GPU, this copies one number to the
    host. If several checks fail, the error is that of the first one. Under ``vmap`` the
    message is about the first member whose condition is false. A check in a branch
    counts only if the branch is taken.

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
        for path, leaf in zip(tree.paths(value), tree.leaves(value), strict=True):
            check_leaf(leaf, f"check: value {name or number}{path}")
    if tree.structure(given) != tree.structure([0] * len(given)):
        message, given = _of_leaves(message, args, values)
        names = ("",) * len(given)
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


class _Field:
    """A leaf of a pytree in a message: its attributes and items are fields, too.

    Its ``repr`` is its name, such as ``0.shape``, between two control characters.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> _Field:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Field(f"{self.name}.{name}")

    def __getitem__(self, key: Any) -> _Field:
        return _Field(f"{self.name}[{key}]")

    @override
    def __repr__(self) -> str:
        """The field between characters that are not escaped as its braces would be."""
        return f"\0{self.name}\1"


def _of_leaves(
    message: str, args: tuple[Any, ...], values: dict[str, Any]
) -> tuple[str, list[Any]]:
    """Rewrite ``message`` with fields for the leaves of its values; return these, too.

    A pytree is written with a field in the place of each leaf: ``"{} {x}"`` of 1 and of
    ``x=(2, 3)`` becomes ``"{0} ({1}, {2})"`` of 1, 2 and 3.
    """
    leaves, structure = tree.flatten((args, values))
    fields = [_Field(str(k)) for k in range(len(leaves))]
    args, values = tree.unflatten(structure, fields)
    return _expanded(message, args, values, itertools.count()), leaves


def _expanded(
    message: str,
    args: Sequence[Any],
    values: Mapping[str, Any],
    positions: Iterator[int],
) -> str:
    """Replace each field of ``message`` by the text of its pytree of ``_Field``s.

    ``args`` and ``values`` have these pytrees, and ``positions`` numbers the fields
    ``{}``. A format in a field may have fields of its own.
    """
    text = ""
    formatter = ValueFormatter()
    for literal, name, spec, conversion in formatter.parse(message):
        text += _escaped(literal)
        if name is None:
            continue
        if not name or name[0] in ".[":
            name = f"{next(positions)}{name}"
        try:
            value, _ = formatter.get_field(name, args, values)
        except (LookupError, AttributeError, TypeError):
            raise ArgumentError(
                f"check: the message has the field {{{name}}}, but the value has no "
                "such part",
                user_location(),
            ) from None
        spec = _expanded(spec or "", args, values, positions)
        if isinstance(value, _Field):
            shown = f"!{conversion}" if conversion else ""
            text += f"{{{value.name}{shown}{spec and ':' + spec}}}"
        else:
            shown = formatter.convert_field(value, conversion)
            plain = _escaped(formatter.format_field(shown, spec))
            text += plain.replace("\0", "{").replace("\1", "}")
    return text


def _escaped(text: str) -> str:
    """Escape the braces of ``text``, so that formatting gives ``text`` again."""
    return text.replace("{", "{{").replace("}", "}}")
