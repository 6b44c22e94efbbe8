"""Arguments of functions with rules, and checks of the rules' results."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType
from arrayfn.ir.layout import Shape
from arrayfn.pickling import Wrapper, pickled
from arrayfn.primitives import conversion, views
from arrayfn.tracing import apply
from arrayfn.transforms import (
    FlatTrace,
    ShapeDtypeStruct,
    check_leaf,
    leaf_type,
    name_of,
)
from arrayfn.transforms.arguments import as_numbers, positions_of

Function = Callable[..., Any]


class SymbolicZero:
    """A tangent or cotangent that is zero, for rules that ask for ``symbolic_zeros``.

    A rule may also give it for a result.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Sequence[int], dtype: DType) -> None:
        self.shape: Shape = tuple(shape)
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return ArrayType(self.shape, self.dtype).size

    def __repr__(self) -> str:
        return f"SymbolicZero({ArrayType(self.shape, self.dtype)})"


class Depth(threading.local):
    """How many traces of a function's rules are active in this thread."""

    value = 0

    def __enter__(self) -> None:
        self.value += 1

    def __exit__(self, *exc: object) -> None:
        self.value -= 1

    def __reduce__(self) -> tuple[type[Depth], tuple[()]]:
        return Depth, ()


class Custom:
    """A function with rules: static arguments, and how the others are traced."""

    def __init__(
        self,
        function: Function,
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        functools.update_wrapper(cast(Any, self), function)
        self.function = function
        named = positions_of("nondiff_argnames", function, nondiff_argnames)
        self.static = tuple(sorted({*as_numbers(nondiff_argnums), *named}))
        self._signature = inspect.signature(function)
        # A rule may call the function it belongs to, and that call has the rule, too.
        # To end the recursion, rules inside a rule are only named. They are traced
        # when a derivative of that order is taken.
        self._within_rules = Depth()

    def __reduce__(self) -> str | tuple[Any, ...]:
        own = ("_signature", "_within_rules")
        state = {k: v for k, v in vars(self).items() if k not in own}
        return pickled(cast(Wrapper, self), state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._signature = inspect.signature(self.function)
        self._within_rules = Depth()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        bound = cast(Callable[..., Any], self)
        return self if instance is None else functools.partial(bound, instance)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """All arguments by position, with defaults filled in."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise ArgumentError(
                f"{name_of(self.function)} has a derivative rule, so its arguments are "
                f"positional; {sorted(bound.kwargs)} can only be given by keyword",
                user_location(),
            )
        return list(bound.args)

    def static_arguments(self, arguments: list[Any]) -> list[Any]:
        """The static arguments, in the order of their declaration."""
        return [arguments[k] for k in self.static]

    def with_static(self, function: Function, arguments: list[Any]) -> Function:
        """``function`` of the other arguments alone."""
        if not self.static:
            return function
        static = {k % len(arguments): arguments[k] for k in self.static}

        @functools.wraps(function)
        def partial(*others: Any) -> Any:
            rest = iter(others)
            return function(
                *[
                    static[k] if k in static else next(rest)
                    for k in range(len(arguments))
                ]
            )

        return partial

    def dynamic(self, arguments: list[Any]) -> tuple[Any, ...]:
        """The arguments that are not static."""
        static = {k % len(arguments) for k in self.static}
        return tuple(x for k, x in enumerate(arguments) if k not in static)


def struct(type: ArrayType) -> ShapeDtypeStruct:
    """A placeholder for a value of ``type`` that is not known yet."""
    return ShapeDtypeStruct(type.shape, type.dtype, weak_type=type.weak)


def unflattened(body: FlatTrace, results: Any) -> Any:
    """The results of the body's equation, in the structure its function returns."""
    flat = results if isinstance(results, tuple) else (results,)
    return tree.unflatten(body.out_tree, flat)


# Checks of what the rules give.


def pair_of(what: str, form: str, value: Any) -> tuple[Any, Any]:
    """``value``, if it is a pair."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ArgumentError(
            f"{what} gives a pair {form}, but gave {type(value).__name__}",
            user_location(),
        )
    return value[0], value[1]


def fitted(
    what: str, value: Any, out_tree: tree.TreeDef, types: Sequence[ArrayType]
) -> list[Any]:
    """The leaves of ``value``, in dtypes ``types``; an error if the form differs."""
    leaves, structure = tree.flatten(value)
    if structure != out_tree:
        raise ArgumentError(
            f"{what} has the structure {structure}, but the function gives {out_tree}",
            user_location(),
        )
    return [as_type(what, x, t) for x, t in zip(leaves, types, strict=True)]


def as_type(what: str, x: Any, wanted: ArrayType) -> Any:
    """``x`` in the dtype of ``wanted``; ShapeError if it has another shape."""
    if isinstance(x, SymbolicZero):
        return zeros(wanted)
    check_leaf(x, what)
    if dtypes.is_python_scalar(x):
        x = np.asarray(x, wanted.dtype)
    have = leaf_type(x)
    if have.shape != wanted.shape:
        raise ShapeError(f"{what} is {have}, not {wanted}", user_location())
    if have.dtype == wanted.dtype:
        return x
    return apply(conversion.convert_element_type, x, dtype=wanted.dtype)


def zeros(type: ArrayType) -> Any:
    """An array of zeros."""
    zero = conversion.literal(0, type.dtype)
    return apply(views.broadcast_in_dim, zero, shape=type.shape, axes=())
