"""Functions with derivative rules of their own: ``custom_jvp``, ``custom_vjp``.

Called outside a trace they are the functions they wrap. Inside one they become an
equation that holds the function's Program and those of its rules, which the
transformations use instead of differentiating through the function.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.builder import ProgramBuilder
from arrayfn.errors import (
    ArgumentError,
    DifferentiationError,
    ShapeError,
    user_location,
)
from arrayfn.functions import (
    FlatTrace,
    check_leaf,
    leaf_type,
    name_of,
    trace_function,
)
from arrayfn.ir import ArrayType, Atom, Program, Var
from arrayfn.primitives import calls, conversion, views
from arrayfn.tracing import Tracer, apply, current_frame, is_staged

Function = Callable[..., Any]


# A rule may call the function it belongs to, which then has its rule in there too, and
# so on; an equation holds its rules, so this ends somewhere: at third derivatives the
# innermost call is differentiated as it stands.
_DEPTH = 2


class _Depth(threading.local):
    """How many traces of a function's rules are under way in this thread."""

    value = 0

    def __enter__(self) -> None:
        self.value += 1

    def __exit__(self, *exc: object) -> None:
        self.value -= 1


class _Custom:
    """What functions with rules share: static arguments, and tracing the function."""

    def __init__(
        self, function: Function, nondiff_argnums: int | Sequence[int] = ()
    ) -> None:
        functools.update_wrapper(cast(Any, self), function)
        self.function = function
        single = isinstance(nondiff_argnums, int)
        self.static = (nondiff_argnums,) if single else tuple(nondiff_argnums)
        self._signature = inspect.signature(function)
        self._within_rules = _Depth()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        bound = cast(Callable[..., Any], self)
        return self if instance is None else functools.partial(bound, instance)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
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

    def _static(self, arguments: list[Any]) -> list[Any]:
        return [arguments[k] for k in self.static]

    def _with_static(self, function: Function, arguments: list[Any]) -> Function:
        """``function`` of the other arguments alone."""
        if not self.static:
            return function
        static = dict(zip(self.static, self._static(arguments), strict=True))

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

    def _dynamic(self, arguments: list[Any]) -> tuple[Any, ...]:
        static = {k % len(arguments) for k in self.static}
        return tuple(x for k, x in enumerate(arguments) if k not in static)


class custom_jvp(_Custom):  # noqa: N801 - a decorator, named as JAX's
    """A function differentiated by the rule that ``defjvp`` gives it.

    It is an error to differentiate by values that the function closes over.

    The rule takes ``(*static arguments, primals, tangents)``, tuples with an entry for
    each other argument, and gives the pair (value, tangent of the value). Arguments in
    ``nondiff_argnums`` are static: any Python values.

    >>> import numpy as np
    >>> from arrayfn.functions import grad
    >>> @custom_jvp
    ... def f(x):
    ...     return x * x
    >>> @f.defjvp
    ... def f_jvp(primals, tangents):
    ...     return f(*primals), 10.0 * tangents[0]
    >>> grad(f)(3.0)
    array(10.)
    """

    def __init__(
        self, function: Function, nondiff_argnums: int | Sequence[int] = ()
    ) -> None:
        super().__init__(function, nondiff_argnums)
        self._rule: Function | None = None

    def defjvp(self, rule: Function) -> Function:
        """Set the rule; usable as a decorator."""
        self._rule = rule
        return rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function; one equation inside a trace."""
        arguments = self._arguments(args, kwargs)
        dynamic = self._dynamic(arguments)
        function = self._with_static(self.function, arguments)
        leaves = tree.leaves(dynamic)
        if not is_staged(leaves) or self._within_rules.value >= _DEPTH:
            return function(*dynamic)
        name = name_of(self.function)
        if self._rule is None:
            raise DifferentiationError(
                f"{name} is a custom_jvp function without a rule; give it one with "
                f"@{name}.defjvp",
                user_location(),
            )
        body = trace_function(function, dynamic, {})
        types = body.program.output_types
        static = self._static(arguments)

        def derivative(primals: Any, tangents: Any) -> list[Any]:
            pair = self._rule(*static, primals, tangents)  # type: ignore[misc]
            value, tangent = _pair(f"{name}'s jvp rule", "(value, tangent)", pair)
            return [
                *_fitted(f"the value of {name}'s jvp rule", value, body, types),
                *_fitted(f"the tangent of {name}'s jvp rule", tangent, body, types),
            ]

        tangents = tree.map(lambda x: _unknown(leaf_type(x)), dynamic)
        with self._within_rules:
            rule = trace_function(derivative, (dynamic, tangents), {})
        own = len(leaves)
        extra, (in_body, in_rule) = closed_over([(body, own), (rule, 2 * own)])
        inputs = rule.program.inputs
        directions = tuple(Var(v.type) for v in in_rule)
        results = apply(
            calls.custom_jvp,
            *leaves,
            *[_guarded(value) for value in extra],
            name=name,
            body=with_inputs(body, (*body.program.inputs[:own], *in_body)),
            jvp_body=with_inputs(
                rule, (*inputs[:own], *in_rule, *inputs[own : 2 * own], *directions)
            ),
        )
        return _unflattened(body, results)


class custom_vjp(_Custom):  # noqa: N801 - a decorator, named as JAX's
    """A function differentiated in reverse by the rules that ``defvjp`` gives it.

    ``forward(*arguments)`` gives the pair (value, residuals); ``backward(*static
    arguments, residuals, cotangent)`` gives a tuple with the cotangent of each other
    argument, or None for zero. Forward mode is refused.

    >>> import numpy as np
    >>> from arrayfn.functions import grad
    >>> @custom_vjp
    ... def f(x):
    ...     return x * x
    >>> f.defvjp(lambda x: (f(x), x), lambda x, ct: (10.0 * ct * x,))
    >>> grad(f)(3.0)
    array(30.)
    """

    def __init__(
        self, function: Function, nondiff_argnums: int | Sequence[int] = ()
    ) -> None:
        super().__init__(function, nondiff_argnums)
        self._rules: tuple[Function, Function] | None = None

    def defvjp(self, forward: Function, backward: Function) -> None:
        """Set the rules."""
        self._rules = forward, backward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function; one equation inside a trace."""
        arguments = self._arguments(args, kwargs)
        dynamic = self._dynamic(arguments)
        function = self._with_static(self.function, arguments)
        leaves = tree.leaves(dynamic)
        if not is_staged(leaves) or self._within_rules.value >= _DEPTH:
            return function(*dynamic)
        name = name_of(self.function)
        if self._rules is None:
            raise DifferentiationError(
                f"{name} is a custom_vjp function without rules; give it some with "
                f"{name}.defvjp(forward, backward)",
                user_location(),
            )
        forward_rule, backward_rule = self._rules
        body = trace_function(function, dynamic, {})
        types = body.program.output_types
        residual_tree: list[tree.TreeDef] = []

        def forward(*primals: Any) -> list[Any]:
            pair = self._with_static(forward_rule, arguments)(*primals)
            value, residuals = _pair(
                f"{name}'s forward rule", "(value, residuals)", pair
            )
            saved, structure = tree.flatten(residuals)
            residual_tree.append(structure)
            what = f"the value of {name}'s forward rule"
            return [*_fitted(what, value, body, types), *saved]

        with self._within_rules:
            ahead = trace_function(forward, dynamic, {})
        residuals = tree.unflatten(
            residual_tree[0],
            [_unknown(t) for t in ahead.program.output_types[len(types) :]],
        )

        def backward(residuals: Any, cotangents: Any) -> list[Any]:
            given = backward_rule(*self._static(arguments), residuals, cotangents)
            return _cotangents(name, given, dynamic)

        cotangents = tree.unflatten(body.out_tree, [_unknown(t) for t in types])
        with self._within_rules:
            back = trace_function(backward, (residuals, cotangents), {})
        own, saved = len(leaves), len(ahead.program.outputs) - len(types)
        extra, (in_body, in_ahead, in_back) = closed_over(
            [(body, own), (ahead, own), (back, saved + len(types))]
        )
        inputs = back.program.inputs
        results = apply(
            calls.custom_vjp,
            *leaves,
            *[_guarded(value) for value in extra],
            name=name,
            body=with_inputs(body, (*body.program.inputs[:own], *in_body)),
            forward=with_inputs(
                ahead, (*ahead.program.inputs[:own], *in_ahead), in_ahead
            ),
            backward=_with_zeros(
                with_inputs(
                    back,
                    (*inputs[:saved], *in_back, *inputs[saved : saved + len(types)]),
                ),
                [v.type for v in in_back],
            ),
        )
        return _unflattened(body, results)


# Checks of what the rules give.


def _pair(what: str, form: str, value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise ArgumentError(
            f"{what} gives a pair {form}, but gave {type(value).__name__}",
            user_location(),
        )
    return value


def _fitted(
    what: str, value: Any, body: FlatTrace, types: Sequence[ArrayType]
) -> list[Any]:
    """The leaves of ``value``, in dtypes ``types``; an error if the form differs."""
    leaves, structure = tree.flatten(value)
    if structure != body.out_tree:
        raise ArgumentError(
            f"{what} has the structure {structure}, but the function gives "
            f"{body.out_tree}",
            user_location(),
        )
    return [_as_type(what, x, t) for x, t in zip(leaves, types, strict=True)]


def _as_type(what: str, x: Any, wanted: ArrayType) -> Any:
    check_leaf(x, what)
    if dtypes.is_python_scalar(x):
        x = np.asarray(x, wanted.dtype)
    have = leaf_type(x)
    if have.shape != wanted.shape:
        raise ShapeError(f"{what} is {have}, not {wanted}", user_location())
    if have.dtype == wanted.dtype:
        return x
    return apply(conversion.convert_element_type, x, dtype=wanted.dtype)


def _cotangents(name: str, given: Any, arguments: tuple[Any, ...]) -> list[Any]:
    what = f"{name}'s backward rule"
    if not isinstance(given, (tuple, list)) or len(given) != len(arguments):
        raise ArgumentError(
            f"{what} gives a tuple of {len(arguments)} cotangents, one for each "
            f"argument, but gave {type(given).__name__}",
            user_location(),
        )
    cotangents: list[Any] = []
    for position, (value, argument) in enumerate(zip(given, arguments, strict=True)):
        wanted, structure = tree.flatten(argument)
        types = [leaf_type(x) for x in wanted]
        if value is None:
            cotangents += [_zeros(t) for t in types]
            continue
        leaves, have = tree.flatten(value)
        if have != structure:
            raise ArgumentError(
                f"{what}: cotangent {position} has the structure {have}, the argument "
                f"{structure}",
                user_location(),
            )
        cotangents += [
            _as_type(f"{what}: cotangent {position}", x, t)
            for x, t in zip(leaves, types, strict=True)
        ]
    return cotangents


# Programs of one equation take the same inputs.


def _unknown(type: ArrayType) -> Tracer:
    """Stands for a value of ``type`` that is not known yet."""
    frame = current_frame()
    assert frame is not None
    return Tracer(frame, Var(type), None, None)


def closed_over(
    traces: Sequence[tuple[FlatTrace, int]],
) -> tuple[list[Any], list[tuple[Var, ...]]]:
    """What any of the traced functions closes over, and each one's inputs for it.

    With each trace comes the number of its inputs that are arguments.
    """
    values: dict[int, Any] = {}
    for traced, _ in traces:
        values.update((id(value), value) for value in traced.trace.captured)
    inputs: list[tuple[Var, ...]] = []
    for traced, own in traces:
        captured = traced.trace.captured
        have = {
            id(value): var
            for value, var in zip(captured, traced.program.inputs[own:], strict=True)
        }
        inputs.append(
            tuple(
                have[key] if key in have else Var(leaf_type(value))
                for key, value in values.items()
            )
        )
    return list(values.values()), inputs


def with_inputs(
    traced: FlatTrace, inputs: Sequence[Var], outputs: Sequence[Atom] = ()
) -> Program:
    """The traced Program with these inputs in place of its own, and more outputs."""
    program = traced.program
    return Program(
        program.name,
        tuple(inputs),
        program.equations,
        (*program.outputs, *outputs),
    )


def _with_zeros(program: Program, types: Sequence[ArrayType]) -> Program:
    """``program`` with more outputs: zeros of ``types``."""
    if not types:
        return program
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = builder.inputs_of(program)
        outputs = builder.inline(program, inputs)
        return builder.build(
            [*outputs, *(views.broadcast_literal(0, type) for type in types)]
        )


def _guarded(value: Any) -> Any:
    """A value closed over, with an error for derivatives by it: no rule gives them."""
    if isinstance(value, Tracer) and value.dtype in dtypes.INEXACT:
        return apply(calls.closed_over, value)
    return value


def _zeros(type: ArrayType) -> Any:
    zero = conversion.literal(0, type.dtype)
    return apply(views.broadcast_in_dim, zero, shape=type.shape, axes=())


def _unflattened(body: FlatTrace, results: Any) -> Any:
    flat = results if isinstance(results, tuple) else (results,)
    return tree.unflatten(body.out_tree, flat)


def stop_gradient(x: Any) -> Any:
    """x, of a pytree each leaf, as if it were constant: its derivatives are zero.

    >>> import numpy as np
    >>> from arrayfn.functions import grad
    >>> grad(lambda x: x * stop_gradient(x))(3.0)
    array(3.)
    """
    return tree.map(_constant, x)


def _constant(x: Any) -> Any:
    if isinstance(x, Tracer) and x.dtype in dtypes.INEXACT:
        return apply(views.stop_gradient, x)
    return x
