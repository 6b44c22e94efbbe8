"""``checkpoint``: less memory for derivatives, by recomputing values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, TypeAlias, TypeVar, overload

from arrayfn import checkpoint_policies, tree
from arrayfn.ir import Equation, Program, Var
from arrayfn.primitives import calls, rematerialization
from arrayfn.primitives.base import primitive_of
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import apply, is_staged
from arrayfn.transforms import Function, name_of, trace_function
from arrayfn.transforms.arguments import as_numbers, positions_of
from arrayfn.transforms.custom import closed_over, with_inputs
from arrayfn.transforms.shapes import without_static

Policy: TypeAlias = checkpoint_policies.Policy
P = ParamSpec("P")
R = TypeVar("R")


# With a function, ``checkpoint`` returns a function; without, a decorator.
@overload
def checkpoint(
    fun: Callable[P, R],
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[P, R]: ...


@overload
def checkpoint(
    fun: None = None,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def checkpoint(
    fun: Function | None = None,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Any:
    """Return ``fun`` with values that derivatives recompute instead of keeping them.

    Normally, a gradient keeps the values of the forward pass until the backward pass
    reads them. For a checkpointed function, it keeps only the arguments and the values
    that ``policy`` (one of ``checkpoint_policies``) selects. The other values are
    computed again when the backward pass needs them. The results and the derivatives
    stay the same. Arguments in ``static_argnums`` (and ``static_argnames``) are any
    Python values. With ``prevent_cse=False`` the compiler may merge both computations,
    and so keep the values after all.

    >>> import numpy as np
    >>> from arrayfn.transforms import grad
    >>> block = checkpoint(lambda x: np.sin(np.sin(x)))
    >>> round(float(grad(lambda x: block(block(x)))(1.0)), 6)
    0.205935
    """
    if fun is None:
        return functools.partial(
            checkpoint,
            prevent_cse=prevent_cse,
            policy=policy,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    if static_argnames:
        return _by_position(fun, prevent_cse, policy, static_argnums, static_argnames)
    static = as_numbers(static_argnums)

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Apply the function as one equation, whose body derivatives recompute.

        Outside of a trace, call the function.
        """
        leaves = tree.leaves((without_static(fun, args, static)[1], kwargs))
        if not is_staged(leaves):
            return fun(*args, **kwargs)
        bound, dynamic = without_static(fun, args, static)
        traced = trace_function(bound, dynamic, kwargs)
        num_arguments = len(leaves)
        # Captured arrays become further inputs of the body.
        captured_values, (captured_inputs,) = closed_over([(traced, num_arguments)])
        body = with_inputs(
            traced, (*traced.program.inputs[:num_arguments], *captured_inputs)
        )
        if policy is not None:
            body = _marked(body, policy)
        results = apply(
            rematerialization.checkpoint,
            *leaves,
            *captured_values,
            name=name_of(fun),
            body=body,
            prevent_cse=prevent_cse,
        )
        return tree.unflatten(traced.out_tree, as_list(results))

    return wrapper


remat = checkpoint


def _by_position(
    fun: Function,
    prevent_cse: bool,
    policy: Policy | None,
    static_argnums: int | Sequence[int],
    static_argnames: str | Sequence[str],
) -> Function:
    """Return ``checkpoint`` of a function, for arguments that are static by name.

    The wrapper passes all arguments by position, so that names become positions. The
    parameters are those of ``checkpoint``.
    """
    named = positions_of("static_argnames", fun, static_argnames)
    positions = (*as_numbers(static_argnums), *named)
    inner = checkpoint(
        fun, prevent_cse=prevent_cse, policy=policy, static_argnums=positions
    )
    signature = inspect.signature(fun)

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Call the checkpointed function with all arguments by position."""
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return inner(*bound.args, **bound.kwargs)

    return wrapper


def checkpoint_name(x: Any, name: str) -> Any:
    """Name x, or each leaf of a pytree, for policies of ``checkpoint``.

    >>> checkpoint_name(3.0, "activation")
    3.0
    """

    def named(leaf: Any) -> Any:
        """Name the leaf, if it is traced."""
        if not is_staged([leaf]):
            return leaf
        return apply(rematerialization.checkpoint_name, leaf, name=name)

    return tree.map(named, x)


def _marked(program: Program, policy: Policy) -> Program:
    """Insert a ``saveable`` equation after each result that ``policy`` keeps.

    Later equations read the result of ``saveable``. Bodies of operators are marked too,
    in place of their calls.
    """
    equations: list[Equation] = []
    saveable_of: dict[Any, Var] = {}
    for equation in program.equations:
        primitive = primitive_of(equation)
        inputs = tuple(saveable_of.get(a, a) for a in equation.inputs)
        params = dict(equation.params)
        if primitive is calls.operator_call:
            params["body"] = _marked(params["body"], policy)
        equations.append(
            Equation(
                primitive,
                inputs,
                MappingProxyType(params),
                equation.outputs,
                equation.source,
            )
        )
        types = [a.type for a in inputs]
        if primitive is calls.operator_call or not policy(primitive, *types, **params):
            continue
        for var in equation.outputs:
            saveable_of[var] = Var(var.type)
            equations.append(
                Equation(
                    rematerialization.saveable,
                    (var,),
                    MappingProxyType({}),
                    (saveable_of[var],),
                    equation.source,
                )
            )
    outputs = tuple(saveable_of.get(a, a) for a in program.outputs)
    return Program(program.name, program.inputs, tuple(equations), outputs)
