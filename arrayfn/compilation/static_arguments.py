"""Static arguments: the values that a function is compiled for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from arrayfn.errors import ArgumentError, plural, user_location
from arrayfn.records import frozen
from arrayfn.transforms.arguments import Function, as_numbers, own_name, shown_name


@frozen
class StaticParameters:
    """The parameters of a function that are static, or that are donated.

    A parameter that can be given both ways is in both, ``positions`` and ``names``.
    """

    positions: tuple[int, ...]
    names: tuple[str, ...]

    @staticmethod
    def of(
        function: Function,
        numbers: int | Sequence[int] | None,
        names: str | Sequence[str] | None,
        prefix: str = "static",
    ) -> StaticParameters:
        """Return the parameters that ``numbers`` (positions) and ``names`` name.

        A parameter that can be given both ways gets both its position and its name.
        Raises ArgumentError, about ``{prefix}_argnums`` or ``{prefix}_argnames``, for a
        number or name that ``function`` does not take.
        """
        positions = list(as_numbers(numbers))
        named = [names] if isinstance(names, str) else list(names or ())
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            if prefix == "donate" and named:
                raise ArgumentError(
                    f"{shown_name(function)} has no signature that tells which "
                    "arguments donate_argnames are; give donate_argnums",
                    user_location(),
                ) from None
            return StaticParameters(tuple(positions), tuple(named))
        count = len(parameters)
        _check_known(prefix, function, parameters, positions, named)
        positions = [k + count if k < 0 else k for k in positions]
        by_position = inspect.Parameter.POSITIONAL_OR_KEYWORD
        for k, parameter in enumerate(parameters):
            if parameter.kind != by_position:
                continue
            if k in positions and parameter.name not in named:
                named.append(parameter.name)
            elif parameter.name in named and k not in positions:
                positions.append(k)
        return StaticParameters(tuple(sorted(positions)), tuple(named))

    def __bool__(self) -> bool:
        return bool(self.positions or self.names)

    def check_apart(self, donated: StaticParameters) -> None:
        """Raise ArgumentError if a parameter is both static and donated."""
        positions = {*self.positions} & {*donated.positions}
        both = [*sorted(positions), *sorted({*self.names} & {*donated.names})]
        if both:
            raise ArgumentError(
                f"jit: the argument {both[-1]!r} is static and donated; a static "
                "argument has no memory to give, so name it once",
                user_location(),
            )

    def split(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], StaticArguments]:
        """Split the arguments of a call of ``function`` into dynamic and static ones.

        Returns the dynamic ones by position, those by name, and the static ones. Raises
        ArgumentError for a static argument that is not hashable.
        """
        if not self:
            return args, kwargs, NO_STATIC_ARGUMENTS
        positions = {k for k in self.positions if k < len(args)}
        positional = tuple((k, _Value(args[k])) for k in sorted(positions))
        named = tuple((k, _Value(kwargs[k])) for k in sorted(kwargs) if k in self.names)
        for parameter, static_value in (*positional, *named):
            value = static_value.value
            try:
                hash(value)
            except TypeError:
                raise ArgumentError(
                    f"{shown_name(function)}: static argument {parameter!r} is a "
                    f"{type(value).__name__}, which is not hashable; pass a tuple "
                    "for a list, or make the argument an array and not static",
                    user_location(),
                ) from None
        dynamic = tuple(x for k, x in enumerate(args) if k not in positions)
        dynamic_by_name = {k: v for k, v in kwargs.items() if k not in self.names}
        return dynamic, dynamic_by_name, StaticArguments(positional, named)


def _check_known(
    prefix: str,
    function: Function,
    parameters: Sequence[inspect.Parameter],
    positions: Sequence[int],
    names: Sequence[str],
) -> None:
    """Raise ArgumentError for a position or name that is no parameter of ``function``.

    The message is about ``{prefix}_argnums`` or ``{prefix}_argnames``.
    """
    _check_positions(f"{prefix}_argnums", function, parameters, positions)
    by_name = {p.name: p.kind in _NAMED for p in parameters}
    takes_any = any(p.kind == inspect.Parameter.VAR_KEYWORD for p in parameters)
    for name in names:
        if not by_name.get(name, takes_any):
            why = "takes it by position" if name in by_name else _UNKNOWN
            raise ArgumentError(
                f"{prefix}_argnames names {name!r}, but "
                f"{_signature(function, parameters)} {why}",
                user_location(),
            )


def _check_positions(
    name: str,
    function: Function,
    parameters: Sequence[inspect.Parameter],
    positions: Sequence[int],
) -> None:
    """Raise ArgumentError for a position that ``function`` does not take.

    Negative ones count from the end. ``name`` is the parameter that has the positions,
    such as ``static_argnums``, for the message.
    """
    if any(p.kind == inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return
    count = sum(p.kind in _POSITIONAL for p in parameters)
    for k in positions:
        if not -count <= k < count:
            raise ArgumentError(
                f"{name} names argument {k}, but {_signature(function, parameters)} "
                f"takes {plural(count, 'positional argument')}",
                user_location(),
            )


def _signature(function: Function, parameters: Sequence[inspect.Parameter]) -> str:
    """Return the text of a function's signature."""
    return f"{own_name(function)}({', '.join(map(str, parameters))})"


_UNKNOWN = "has no parameter of that name"
_NAMED = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


@frozen
class StaticArguments:
    """The static arguments of a call, hashed and compared by value.

    ``positional`` are pairs of a position among all arguments and the value there, in
    order; ``named`` are pairs of a name and its value.
    """

    positional: tuple[tuple[int, _Value], ...] = ()
    named: tuple[tuple[str, _Value], ...] = ()

    def filled(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Insert empty tuples into the dynamic ``args`` in place of static ones.

        Arguments then have their positions, and the tuples add no leaves.
        """
        arguments = list(args)
        for position, _ in self.positional:
            arguments.insert(position, ())
        return tuple(arguments)

    def bound(self, function: Function) -> Function:
        """Return ``function`` with the static arguments bound."""
        if not self.positional and not self.named:
            return function

        @functools.wraps(function)
        def bound(*args: Any, **kwargs: Any) -> Any:
            """Call the function with the static arguments inserted."""
            arguments = list(args)
            for position, static_value in self.positional:
                arguments.insert(position, static_value.value)
            by_name = {key: static_value.value for key, static_value in self.named}
            return function(*arguments, **kwargs, **by_name)

        return bound


@frozen
class _Value:
    """A static argument that equals only values of the same type (1 is not True)."""

    value: Any

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and _typed(self.value) == _typed(other.value)

    @override
    def __hash__(self) -> int:
        return hash(self.value)


def _typed(value: Any) -> Any:
    """Return ``value`` with the types of all its parts, for comparison."""
    if isinstance(value, tuple):
        return type(value), tuple(_typed(x) for x in value)
    if isinstance(value, frozenset):
        return type(value), frozenset(_typed(x) for x in value)
    if isinstance(value, (float, complex, np.inexact)):
        return type(value), repr(value)  # distinguishes -0.0 from 0.0
    if _is_dataclass(value):
        # Equal objects are told apart by the types of the numbers in their fields.
        parts = (getattr(value, field.name) for field in fields(value) if field.compare)
        return type(value), value, tuple(_typed(x) for x in parts if _has_types(x))
    return type(value), value


def _is_dataclass(value: Any) -> bool:
    """Whether ``value`` is an object of a dataclass."""
    return is_dataclass(value) and not isinstance(value, type)


def _has_types(value: Any) -> bool:
    """Whether ``_typed`` may tell ``value`` from an equal one."""
    kinds = (bool, int, float, complex, np.generic, tuple, frozenset)
    return isinstance(value, kinds) or _is_dataclass(value)


NO_STATIC_ARGUMENTS = StaticArguments()
