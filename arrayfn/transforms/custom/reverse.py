"""``custom_vjp``: a function with a custom reverse-mode rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from arrayfn import tree
from arrayfn.errors import ArgumentError, DifferentiationError, user_location
from arrayfn.ir import ArrayType, Program, Var
from arrayfn.primitives import custom_rules
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.named_functions import FUNCTIONS
from arrayfn.records import frozen
from arrayfn.transforms import FlatTrace, leaf_type, name_of, shown_name, trace_function
from arrayfn.transforms.custom.closures import (
    closed,
    closed_over,
    with_inputs,
    with_zeros,
)
from arrayfn.transforms.custom.functions import (
    Call,
    Custom,
    Function,
    P,
    R,
    as_type,
    fitted,
    pair_of,
    struct,
    what_is,
    zeros,
)


@frozen
class CustomVJPPrimal:
    """A leaf of an argument of a forward rule that asked for ``symbolic_zeros``.

    ``perturbed`` says whether a derivative with respect to the leaf is needed.
    """

    value: Any
    perturbed: bool


class custom_vjp(Custom[P, R]):  # noqa: N801 - a decorator, named as JAX's
    """A function with custom rules for reverse mode, which ``defvjp`` sets.

    ``forward(*arguments)`` returns the pair (value, residuals). ``backward(*static
    arguments, residuals, cotangent)`` returns a tuple with the cotangent of each other
    argument, or None for zero. Arguments in ``nondiff_argnums`` (and
    ``nondiff_argnames``) are static: any Python values. Forward mode raises an error.

    >>> import numpy as np
    >>> from arrayfn.transforms import grad
    >>> @custom_vjp
    ... def f(x):
    ...     return x * x
    >>> f.defvjp(lambda x: (f(x), x), lambda x, ct: (10.0 * ct * x,))
    >>> grad(f)(3.0)
    array(30.)
    """

    def __init__(
        self,
        fun: Callable[P, R],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames)
        self._rules: tuple[Function, Function] | None = None  # forward and backward
        self._symbolic_zeros = False

    def defvjp(
        self,
        fwd: Function,
        bwd: Function,
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the rules, forward and backward.

        With ``symbolic_zeros`` each leaf of the forward rule's arguments is a
        ``CustomVJPPrimal``, and cotangents that are zero are ``SymbolicZero``.
        ``optimize_remat`` is JAX's hint about memory and has no effect: under
        ``checkpoint``, parts of the rules that no result needs are never computed.
        """
        self._rules = fwd, bwd
        self._symbolic_zeros = symbolic_zeros

    @override
    def check_rules(self) -> None:
        """Raise DifferentiationError if ``defvjp`` has not been called."""
        if self._rules is None:
            raise DifferentiationError(
                f"{shown_name(self.function)} is a custom_vjp function without rules; "
                f"give it some with {name_of(self.function)}.defvjp(forward, backward)",
                user_location(),
            )

    @override
    def traced_rules(
        self, arguments: list[Any], body: FlatTrace
    ) -> tuple[Primitive, dict[str, Any], list[Any], tuple[Var, ...]]:
        """Return ``custom_vjp`` with the params ``forward`` and ``backward``.

        See ``Custom.traced_rules`` for the other results. With ``symbolic_zeros``, and
        inside a rule, the params are names of functions that trace the rules later.
        Else they are Programs. Forward: (arguments, captured) -> (results, residuals,
        captured). Backward: (residuals, captured, cotangents) -> cotangents of
        arguments and of captured values, where the latter are zeros.
        """
        assert self._rules is not None
        call = _VjpCall(
            self,
            arguments,
            body,
            symbolic_zeros=self._symbolic_zeros,
            rules=self._rules,
        )
        own, count = len(call.leaf_types), len(body.program.outputs)
        if self._symbolic_zeros or self.within_rules.value:
            # Trace the rules later, when it is known which inputs vary.
            extra, (in_body,) = closed_over([(body, own)])
            unused = [leaf_type(value) for value in extra]
            forward: custom_rules.Rule = FUNCTIONS.name(
                lambda varies: call.later(varies, unused), call.name
            )
            backward = forward
        else:
            with self.within_rules:
                ahead, residuals = call.trace_forward(call.dynamic, [True] * own)
                back = call.trace_backward(residuals, [True] * count)
            saved = len(ahead.program.outputs) - count
            extra, (in_body, in_ahead, in_back) = closed_over(
                [(body, own), (ahead, own), (back, saved + count)]
            )
            inputs = back.program.inputs
            forward = with_inputs(
                ahead, (*ahead.program.inputs[:own], *in_ahead), in_ahead
            )
            backward = with_zeros(
                with_inputs(
                    back, (*inputs[:saved], *in_back, *inputs[saved : saved + count])
                ),
                [v.type for v in in_back],
            )
        rules = {"forward": forward, "backward": backward}
        return custom_rules.custom_vjp, rules, extra, in_body


def _leaves_or_none(value: Any, structure: tree.TreeDef) -> list[Any] | None:
    """Return a leaf of ``value`` for each of ``structure``; None if they do not fit.

    A None in ``value`` stands for a whole subtree, and is repeated for its leaves.
    """
    argument = tree.unflatten(structure, range(structure.num_leaves))
    try:
        spread = tree.broadcast_prefix(value, argument)
    except ValueError:
        return None
    # A leaf of ``value`` that stands for a subtree would be counted several times.
    present = sum(x is not None for x in spread)
    return spread if present == len(tree.leaves(value)) else None


class _VjpCall(Call):
    """A call of the ``custom_vjp`` function ``custom`` with ``arguments``.

    ``body`` is the traced function, ``rules`` its forward and its backward rule. See
    ``defvjp`` for ``symbolic_zeros``.
    """

    def __init__(
        self,
        custom: custom_vjp[..., Any],
        arguments: list[Any],
        body: FlatTrace,
        *,
        symbolic_zeros: bool,
        rules: tuple[Function, Function],
    ) -> None:
        super().__init__(custom, arguments, body, symbolic_zeros=symbolic_zeros)
        forward, self.backward = rules
        # A function of the dynamic arguments. ``backward`` takes the static ones first.
        self.forward = custom.with_static(forward, arguments)
        self.structures = [tree.structure(x) for x in self.dynamic]

    def trace_forward(
        self, primals: Any, varies: Sequence[bool]
    ) -> tuple[FlatTrace, Any]:
        """Trace the forward rule; return the trace and placeholders for the residuals.

        ``primals`` are the dynamic arguments. ``varies`` says for each of their leaves
        whether a derivative with respect to it is needed. The Program returns the
        leaves of the value, then those of the residuals.
        """
        residual_tree: list[tree.TreeDef] = []

        def forward(*primals: Any) -> list[Any]:
            """Return the leaves of the value, checked, and of the residuals."""
            if self.symbolic_zeros:
                leaves = tree.leaves(primals)
                pairs = zip(leaves, varies, strict=True)
                primals = tree.unflatten(
                    self.structure, [CustomVJPPrimal(x, v) for x, v in pairs]
                )
            what = f"{self.shown}'s forward rule"
            result = self.forward(*primals)
            value, residuals = pair_of(what, "(value, residuals)", result)
            saved, structure = tree.flatten(residuals)
            residual_tree.append(structure)
            what = f"the value of {what}"
            return [*fitted(what, value, self.out_tree, self.types), *saved]

        traced = trace_function(forward, primals, {})
        types = traced.program.output_types[len(self.types) :]
        return traced, tree.unflatten(residual_tree[0], [struct(t) for t in types])

    def trace_backward(self, residuals: Any, is_nonzero: Sequence[bool]) -> FlatTrace:
        """Trace the backward rule: a Program of residuals and nonzero cotangents.

        ``is_nonzero`` says for each output whether its cotangent may be nonzero. The
        rule gets zeros for the other outputs.
        """
        nonzero = [struct(t) for t, g in zip(self.types, is_nonzero, strict=True) if g]

        def backward(residuals: Any, nonzero: list[Any]) -> list[Any]:
            """Return the leaves of the arguments' cotangents, checked."""
            cotangents = tree.unflatten(
                self.out_tree, self.with_zeros(self.types, nonzero, is_nonzero)
            )
            return self.cotangents(self.backward(*self.static, residuals, cotangents))

        return trace_function(backward, (residuals, nonzero), {}, with_values=False)

    def cotangents(self, result: Any) -> list[Any]:
        """Return the checked leaves of ``result``, which the backward rule returned.

        None stands for zeros. ``self.structures`` has the pytree of each argument, and
        ``self.leaf_types`` the types of all their leaves. Raises ArgumentError if the
        form differs from the arguments'.
        """
        what = f"{self.shown}'s backward rule"
        count = len(self.structures)
        if not isinstance(result, (tuple, list)) or len(result) != count:
            raise ArgumentError(
                f"{what} must give a tuple of {count} cotangents, one for each "
                f"argument, but gave {what_is(result)}",
                user_location(),
            )
        types = iter(self.leaf_types)
        cotangents: list[Any] = []
        for position, (value, structure) in enumerate(
            zip(result, self.structures, strict=True)
        ):
            wanted = [next(types) for _ in range(structure.num_leaves)]
            leaves = _leaves_or_none(value, structure)
            if leaves is None:
                raise ArgumentError(
                    f"{what}: cotangent {position} has the structure "
                    f"{tree.text_of(tree.structure(value))}, the argument "
                    f"{tree.text_of(structure)}",
                    user_location(),
                )
            cotangents += [
                zeros(t)
                if x is None
                else as_type(f"{what}: cotangent {position}", x, t)
                for x, t in zip(leaves, wanted, strict=True)
            ]
        return cotangents

    def later(
        self, varies: tuple[bool, ...], unused: Sequence[ArrayType]
    ) -> tuple[Program, custom_rules.Rule]:
        """Trace the rules when a derivative is taken: return (forward, backward).

        ``varies`` says which inputs of the equation vary. Forward is a Program, with
        further inputs of the types ``unused`` for the values that the body captures.
        Backward is the name of a function that traces the rule for the results that
        have a cotangent. Its Program returns zeros for the captured values: the
        primitive makes sure that these do not vary.
        """
        own = len(self.leaf_types)
        with self.within_rules:
            ahead, residuals = self.trace_forward(self.placeholders(), varies[:own])
        program = closed(f"the forward rule of {self.name}", ahead, own)
        forward = replace(program, inputs=(*program.inputs, *map(Var, unused)))

        def backward(is_nonzero: tuple[bool, ...]) -> Program:
            """Trace the backward rule for the results that have a cotangent."""
            with self.within_rules:
                back = self.trace_backward(residuals, is_nonzero)
            inputs = len(tree.leaves(residuals)) + sum(is_nonzero)
            alone = closed(f"the backward rule of {self.name}", back, inputs)
            return with_zeros(alone, unused)

        return forward, FUNCTIONS.name(backward, f"{self.name}_backward")
