"""``closure_convert``, which turns captured values into arguments.

Also ``custom_gradient``, whose rule captures values of the forward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, user_location
from arrayfn.tracing import Tracer, apply_program
from arrayfn.tracing.frames import may_vary
from arrayfn.transforms import (
    FlatTrace,
    check_leaf,
    leaf_type,
    shown_name,
    trace_function,
)
from arrayfn.transforms.arguments import value_of
from arrayfn.transforms.custom.closures import held
from arrayfn.transforms.custom.functions import Function, pair_of, struct
from arrayfn.transforms.custom.reverse import custom_vjp


def closure_convert(
    fun: Function, *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """Turn the captured values of ``fun`` into arguments.

    The results are the new function and these values. The values are the captured
    traced values that are floating-point numbers and with respect to which a derivative
    may be taken; other values stay constants. Call the result as ``converted(*args,
    *values)``, with arguments of the structure and types of ``example_args``. This way,
    a function with custom rules can take functions as arguments.

    >>> from arrayfn.transforms import grad
    >>> def f(w):
    ...     converted, values = closure_convert(lambda x: w * x, 1.0)
    ...     return converted(2.0, *values)
    >>> grad(f)(3.0)
    array(2.)
    """
    traced = trace_function(fun, example_args, {}, with_values=False)
    captured = [_constant_or_traced(value) for value in traced.trace.captured]
    hoisted = [_is_hoisted(value) for value in captured]
    structure = tree.structure(example_args)

    def converted(*args_and_captures: Any) -> Any:
        """Call the function with other values in place of those it captured."""
        arity = len(example_args)
        args, hoisted_values = args_and_captures[:arity], args_and_captures[arity:]
        if len(hoisted_values) != sum(hoisted):
            raise ArgumentError(
                f"the converted {shown_name(fun)} takes the {sum(hoisted)} values that "
                f"it captured after its arguments, not {len(hoisted_values)}; give "
                "them as *values",
                user_location(),
            )
        for value in hoisted_values:
            check_leaf(value, f"the converted {shown_name(fun)}: a captured value")
        values = iter(hoisted_values)
        leaves, args_structure = tree.flatten(args)
        if args_structure != structure:
            raise ArgumentError(
                f"the converted {shown_name(fun)} takes arguments of structure "
                f"{tree.text_of(structure)}, but was given "
                f"{tree.text_of(args_structure)}",
                user_location(),
            )
        closure = [
            next(values) if moved else value
            for value, moved in zip(captured, hoisted, strict=True)
        ]
        results = apply_program(traced.program, [*leaves, *closure])
        return tree.unflatten(traced.out_tree, results)

    return converted, [x for x, moved in zip(captured, hoisted, strict=True) if moved]


def _constant_or_traced(value: Any) -> Any:
    """Return the array of ``value`` if no derivative by it can be taken.

    Return ``value`` itself if its array is not known, or if a derivative may be taken.
    """
    known = value_of(value)
    return value if known is None or may_vary(value) else known


def _is_hoisted(value: Any) -> bool:
    """Whether ``closure_convert`` makes the captured ``value`` an argument."""
    return isinstance(value, Tracer) and value.dtype in dtypes.DIFFERENTIABLE


@tree.register_static
class _Rule:
    """A traced rule as a static part of residuals' tree structure."""

    def __init__(self, traced: FlatTrace) -> None:
        self.traced = traced


def custom_gradient(fun: Function) -> Callable[..., Any]:
    """Turn a function that returns (value, rule) into a function with that gradient.

    ``fun(*args)`` returns the value, and a function from the cotangent of the value to
    the cotangents of the arguments (a tuple, or a single one). The rule may capture
    values of ``fun``. See ``custom_vjp``.

    >>> from arrayfn.transforms import grad
    >>> @custom_gradient
    ... def f(x):
    ...     return x * x, lambda ct: 10.0 * ct * x
    >>> f(3.0), grad(f)(3.0)
    (9.0, array(30.))
    """

    @functools.wraps(fun)
    def value_of(*args: Any) -> Any:
        """Return the value that ``fun`` returns, without its rule."""
        value, _ = _pair(*args)
        return value

    def _pair(*args: Any) -> tuple[Any, Any]:
        """Return what ``fun`` returns, checked to be a pair."""
        return pair_of(shown_name(fun), "(value, rule)", fun(*args))

    def forward(*args: Any) -> Any:
        """Return the value, and the rule's Program and captured values as residuals."""
        value, rule = _pair(*args)
        count = len(args)

        def cotangents(ct: Any) -> Any:
            """Call the rule; make the cotangent of a single argument a tuple."""
            result = rule(ct)
            return (result,) if count == 1 and not isinstance(result, tuple) else result

        # Trace the rule now: as a Program, it can be part of the residuals.
        example = tree.map(lambda y: struct(leaf_type(y)), value)
        traced = trace_function(cotangents, (example,), {}, with_values=False)
        saved = [held(x) for x in traced.trace.captured]
        return value, (_Rule(traced), saved)

    def backward(residuals: Any, ct: Any) -> Any:
        """Return the cotangents of the arguments, by the rule's Program."""
        rule, saved = residuals
        results = apply_program(rule.traced.program, [*tree.leaves(ct), *saved])
        return tree.unflatten(rule.traced.out_tree, results)

    function = custom_vjp(value_of)
    function.defvjp(forward, backward)
    return function
