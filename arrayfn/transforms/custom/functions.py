"""Arguments of functions with rules, and checks of the rules' results."""

from __future__ import annotations

import functools
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np
from typing_extensions import override

from arrayfn import dtypes, tree
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import ArrayType, Var
from arrayfn.ir.layout import Shape
from arrayfn.pickling import Wrapper, pickled
from arrayfn.primitives import conversion, views
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import apply, is_staged
from arrayfn.tracing.references import check_given_once, check_not_returned
from arrayfn.transforms import (
    FlatTrace,
    ShapeDtypeStruct,
    check_leaf,
    leaf_type,
    name_of,
    shown_name,
    trace_function,
)
from arrayfn.transforms.arguments import as_numbers, positions_of
from arrayfn.transforms.custom.closures import with_inputs

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")


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

    @override
    def __repr__(self) -> str:
        return f"SymbolicZero({ArrayType(self.shape, self.dtype)})"


class Depth(threading.local):
    """How many traces of a function's rules are active, in each thread."""

    value = 0

    def __enter__(self) -> None:
        self.value += 1

    def __exit__(self, *exc: object) -> None:
        self.value -= 1

    @override
    def __reduce__(self) -> tuple[type[Depth], tuple[()]]:
        return Depth, ()


_SETTERS = ("defjvp", "defjvps", "defvjp", "def_vmap")


def rule_setter(outer: Any, name: str) -> Any:
    """Return the method ``name`` (a setter of rules) of the function inside ``outer``.

    ``outer`` is itself a function with rules. So ``f = custom_jvp(custom_vmap(g))`` has
    ``f.def_vmap``. Raises AttributeError if there is no such method.
    """
    inner = vars(outer).get("function")
    setter = getattr(inner, name, None) if name in _SETTERS else None
    if setter is not None:
        return setter
    raise AttributeError(f"{type(outer).__name__} has no attribute {name!r}")


class Custom(ABC, Generic[P, R]):
    """The base of functions with custom derivative rules.

    ``static`` has the positions of the arguments in ``nondiff_argnums`` and
    ``nondiff_argnames``. Rules get these as Python values.
    """

    def __init__(
        self,
        function: Callable[P, R],
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
        self.within_rules = Depth()

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown_name(self.function)}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; inside a trace, emit one equation with its rules.

        The equation's operands are the leaves of the dynamic arguments, then the values
        that the function and its rules capture.
        """
        arguments = self.arguments(args, kwargs)
        dynamic = self.dynamic(arguments)
        function = self.with_static(self.function, arguments)
        leaves = tree.leaves(dynamic)
        self.check_rules()
        if not is_staged(leaves):
            check_given_once(name_of(self.function), leaves)
            result = function(*dynamic)
            for leaf in tree.leaves(result):
                check_not_returned(name_of(self.function), leaf)
            return result
        body = trace_function(function, dynamic, {})
        row, rules, captured, inputs = self.traced_rules(arguments, body)
        results = apply(
            row,
            *leaves,
            *captured,
            name=name_of(self.function),
            body=with_inputs(body, (*body.program.inputs[: len(leaves)], *inputs)),
            **rules,
            **({"captured": len(captured)} if captured else {}),
        )
        return tree.unflatten(body.out_tree, as_list(results))

    @abstractmethod
    def check_rules(self) -> None:
        """Raise DifferentiationError if no rules have been given."""

    @abstractmethod
    def traced_rules(
        self, arguments: list[Any], body: FlatTrace
    ) -> tuple[Primitive, dict[str, Any], list[Any], tuple[Var, ...]]:
        """Trace the rules; return what the equation of a call needs.

        That is the primitive; its params with the rules; all values that the body and
        the rules capture; and the body's inputs for these values. ``body`` is the
        traced function, and ``arguments`` has all arguments of the call, by position.
        """

    def __getattr__(self, name: str) -> Any:
        return rule_setter(self, name)

    @override
    def __reduce__(self) -> str | tuple[Any, ...]:
        # ``__setstate__`` makes these again.
        own = ("_signature", "within_rules")
        state = {k: v for k, v in vars(self).items() if k not in own}
        return pickled(cast(Wrapper, self), state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._signature = inspect.signature(self.function)
        self.within_rules = Depth()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        bound = cast(Callable[..., Any], self)
        return self if instance is None else functools.partial(bound, instance)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return all arguments of a call with ``args`` and ``kwargs``, by position.

        Defaults are filled in. Raises ArgumentError for an argument that can only be
        given by keyword.
        """
        bound = self._signature.bind(*args, **kwargs)
        if bound.kwargs:
            raise ArgumentError(
                f"{name_of(self.function)} has a derivative rule, so its arguments are "
                f"positional; {sorted(bound.kwargs)} can only be given by keyword",
                user_location(),
            )
        bound.apply_defaults()
        return list(bound.args)

    def static_arguments(self, arguments: list[Any]) -> list[Any]:
        """Return the static arguments, in the order of their declaration."""
        return [arguments[k] for k in self.static]

    def with_static(self, function: Function, arguments: list[Any]) -> Function:
        """Bind the static ones of ``arguments``: return a function of the others."""
        if not self.static:
            return function
        # Positions may be negative.
        static = {k % len(arguments): arguments[k] for k in self.static}

        @functools.wraps(function)
        def partial(*others: Any) -> Any:
            """Return the function of the arguments that are not static."""
            rest = iter(others)
            return function(
                *[
                    static[k] if k in static else next(rest)
                    for k in range(len(arguments))
                ]
            )

        return partial

    def dynamic(self, arguments: list[Any]) -> tuple[Any, ...]:
        """Return the arguments that are not static."""
        static = {k % len(arguments) for k in self.static}
        return tuple(x for k, x in enumerate(arguments) if k not in static)


def struct(type: ArrayType) -> ShapeDtypeStruct:
    """Return a placeholder for a value of ``type`` that is not known yet."""
    return ShapeDtypeStruct(type.shape, type.dtype, weak_type=type.weak)


class Call:
    """A call of a function with custom rules, which are traced now or when needed.

    ``custom`` is the function with its rules, ``body`` the traced function. With
    ``symbolic_zeros`` rules get ``SymbolicZero`` in place of arrays of zeros. The
    instance keeps the static arguments, the structure and types of the dynamic ones,
    and those of the result (``out_tree``, ``types``).
    """

    def __init__(
        self,
        custom: Custom[..., Any],
        arguments: list[Any],
        body: FlatTrace,
        *,
        symbolic_zeros: bool,
    ) -> None:
        self.name = name_of(custom.function)
        self.shown = shown_name(custom.function)
        self.within_rules = custom.within_rules
        self.symbolic_zeros = symbolic_zeros
        self.static = custom.static_arguments(arguments)
        self.dynamic = custom.dynamic(arguments)
        self.structure = tree.structure(self.dynamic)
        self.leaf_types = [leaf_type(x) for x in tree.leaves(self.dynamic)]
        self.out_tree = body.out_tree
        self.types = body.program.output_types

    def zero(self, type: ArrayType) -> Any:
        """Return a zero tangent or cotangent, in the form the rule asked for."""
        if self.symbolic_zeros:
            return SymbolicZero(type.shape, type.dtype)
        return zeros(type)

    def with_zeros(
        self,
        types: Sequence[ArrayType],
        nonzero: Sequence[Any],
        is_nonzero: Sequence[bool],
    ) -> list[Any]:
        """Return a value for each of ``types``: the next of ``nonzero``, or a zero.

        ``is_nonzero`` says which.
        """
        next_nonzero = iter(nonzero)
        pairs = zip(types, is_nonzero, strict=True)
        return [next(next_nonzero) if present else self.zero(t) for t, present in pairs]

    def placeholders(self) -> Any:
        """Return the dynamic arguments with a ``ShapeDtypeStruct`` for each leaf."""
        return tree.unflatten(self.structure, [struct(t) for t in self.leaf_types])


# Checks of what the rules give.


def pair_of(what: str, form: str, value: Any) -> tuple[Any, Any]:
    """Split ``value`` into its two parts; ArgumentError if it is not a pair.

    ``what`` returned it, and ``form`` says what the pair is of, for the message.
    """
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ArgumentError(
            f"{what} must give a pair {form}, but gave {what_is(value)}",
            user_location(),
        )
    return value[0], value[1]


def what_is(value: Any) -> str:
    """Describe what a rule returned in place of a tuple: its type, and its length."""
    count = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"a {type(value).__name__}{count}"


def fitted(
    what: str, value: Any, out_tree: tree.TreeDef, types: Sequence[ArrayType]
) -> list[Any]:
    """Flatten ``value``, and convert the leaves to the dtypes of ``types``.

    Raises an error if its structure is not ``out_tree``. ``what`` returned it, for the
    message.
    """
    leaves, structure = tree.flatten(value)
    if structure != out_tree:
        raise ArgumentError(
            f"{what} has the structure {tree.text_of(structure)}, but the function "
            f"gives {tree.text_of(out_tree)}",
            user_location(),
        )
    return [as_type(what, x, t) for x, t in zip(leaves, types, strict=True)]


def as_type(what: str, x: Any, wanted: ArrayType) -> Any:
    """Convert ``x`` to the dtype of ``wanted``; ShapeError for another shape.

    A SymbolicZero becomes an array of zeros. ``what`` is the name of ``x`` in messages.
    """
    if isinstance(x, SymbolicZero):
        return zeros(wanted)
    check_leaf(x, what)
    if dtypes.is_python_scalar(x):
        x = np.asarray(x, wanted.dtype)
    type = leaf_type(x)
    if type.shape != wanted.shape:
        raise ShapeError(f"{what} is {type}, not {wanted}", user_location())
    if type.dtype == wanted.dtype:
        return x
    return apply(conversion.convert_element_type, x, dtype=wanted.dtype)


def zeros(type: ArrayType) -> Any:
    """Return an array of zeros of this type, traced inside a trace."""
    zero = conversion.literal(0, type.dtype)
    return apply(views.broadcast_in_dim, zero, shape=type.shape, axes=())
