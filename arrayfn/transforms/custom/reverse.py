"""``custom_vjp``: a function with a custom reverse-mode rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from arrayfn import tree
from arrayfn.errors import ArgumentError, DifferentiationError, user_location
from arrayfn.ir import ArrayType, Program, Var
from arrayfn.primitives import custom_rules
from arrayfn.primitives.named_functions import FUNCTIONS
from arrayfn.tracing import apply, is_staged
from arrayfn.transforms import FlatTrace, leaf_type, name_of, trace_function
from arrayfn.transforms.custom.closures import (
    closed,
    closed_over,
    guarded,
    with_inputs,
    with_zeros,
)
from arrayfn.transforms.custom.functions import (
    Custom,
    Function,
    SymbolicZero,
    as_type,
    fitted,
    pair_of,
    struct,
    unflattened,
    zeros,
)


class CustomVJPPrimal(NamedTuple):
    """An argument of a forward rule that asked for ``symbolic_zeros``.

    ``perturbed`` says whether a derivative by it is wanted.
    """

    value: Any
    perturbed: bool


class custom_vjp(Custom):  # noqa: N801 - a decorator, named as JAX's
    """A function differentiated in reverse by the rules that ``defvjp`` gives it.

    ``forward(*arguments)`` gives the pair (value, residuals); ``backward(*static
    arguments, residuals, cotangent)`` gives a tuple with the cotangent of each other
    argument, or None for zero. Arguments in ``nondiff_argnums`` (and
    ``nondiff_argnames``) are static: any Python values. Forward mode is refused.

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
        fun: Function,
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames)
        self._rules: tuple[Function, Function] | None = None
        self._symbolic_zeros = False

    def defvjp(
        self, forward: Function, backward: Function, symbolic_zeros: bool = False
    ) -> None:
        """Set the rules.

        With ``symbolic_zeros`` each leaf of the forward rule's arguments is a
        ``CustomVJPPrimal``, and cotangents that are zero are ``SymbolicZero``.
        """
        self._rules = forward, backward
        self._symbolic_zeros = symbolic_zeros

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function; one equation inside a trace."""
        arguments = self.arguments(args, kwargs)
        dynamic = self.dynamic(arguments)
        function = self.with_static(self.function, arguments)
        leaves = tree.leaves(dynamic)
        if not is_staged(leaves):
            return function(*dynamic)
        name = name_of(self.function)
        if self._rules is None:
            raise DifferentiationError(
                f"{name} is a custom_vjp function without rules; give it some with "
                f"{name}.defvjp(forward, backward)",
                user_location(),
            )
        body = trace_function(function, dynamic, {})
        own, count = len(leaves), len(body.program.outputs)
        call = _Call(name, self, self._rules, arguments, body)
        if self._symbolic_zeros or self._within_rules.value:
            extra, (in_body,) = closed_over([(body, own)])
            unused = [leaf_type(value) for value in extra]
            named = FUNCTIONS.name(lambda varies: call.later(varies, unused), name)
            forward: custom_rules.Rule = named
            backward: custom_rules.Rule = named
        else:
            with self._within_rules:
                ahead, residuals = call.trace_forward(dynamic, [True] * own)
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
        results = apply(
            custom_rules.custom_vjp,
            *leaves,
            *[guarded(value) for value in extra],
            name=name,
            body=with_inputs(body, (*body.program.inputs[:own], *in_body)),
            forward=forward,
            backward=backward,
        )
        return unflattened(body, results)


class _Call:
    """A call of a function whose rules are traced now, or when they are needed."""

    def __init__(
        self,
        name: str,
        custom: custom_vjp,
        rules: tuple[Function, Function],
        arguments: list[Any],
        body: FlatTrace,
    ) -> None:
        self.name = name
        self.forward = custom.with_static(rules[0], arguments)
        self.backward = rules[1]
        self.depth = custom._within_rules
        self.symbolic_zeros = custom._symbolic_zeros
        self.static = custom.static_arguments(arguments)
        dynamic = custom.dynamic(arguments)
        self.structures = [tree.structure(x) for x in dynamic]
        self.leaf_types = [leaf_type(x) for x in tree.leaves(dynamic)]
        self.structure = tree.structure(dynamic)
        self.out_tree = body.out_tree
        self.types = body.program.output_types

    def trace_forward(
        self, primals: Any, varies: Sequence[bool]
    ) -> tuple[FlatTrace, Any]:
        """The forward rule's Program, and placeholders for its residuals."""
        residual_tree: list[tree.TreeDef] = []

        def forward(*primals: Any) -> list[Any]:
            if self.symbolic_zeros:
                leaves = tree.leaves(primals)
                pairs = zip(leaves, varies, strict=True)
                primals = tree.unflatten(
                    self.structure, [CustomVJPPrimal(x, v) for x, v in pairs]
                )
            what = f"{self.name}'s forward rule"
            made = self.forward(*primals)
            value, residuals = pair_of(what, "(value, residuals)", made)
            saved, structure = tree.flatten(residuals)
            residual_tree.append(structure)
            what = f"the value of {what}"
            return [*fitted(what, value, self.out_tree, self.types), *saved]

        traced = trace_function(forward, primals, {})
        types = traced.program.output_types[len(self.types) :]
        return traced, tree.unflatten(residual_tree[0], [struct(t) for t in types])

    def trace_backward(self, residuals: Any, given: Sequence[bool]) -> FlatTrace:
        """The backward rule as a Program of residuals and nonzero cotangents."""
        present = [struct(t) for t, g in zip(self.types, given, strict=True) if g]

        def backward(residuals: Any, present: list[Any]) -> list[Any]:
            rest = iter(present)
            pairs = zip(self.types, given, strict=True)
            cotangents = tree.unflatten(
                self.out_tree, [next(rest) if g else self.zero(t) for t, g in pairs]
            )
            return self.cotangents(self.backward(*self.static, residuals, cotangents))

        return trace_function(backward, (residuals, present), {}, with_values=False)

    def zero(self, type: ArrayType) -> Any:
        """The zero cotangent in the form the rule asked for."""
        if self.symbolic_zeros:
            return SymbolicZero(type.shape, type.dtype)
        return zeros(type)

    def cotangents(self, given: Any) -> list[Any]:
        """The leaves of the backward rule's result, one for each argument leaf."""
        what = f"{self.name}'s backward rule"
        count = len(self.structures)
        if not isinstance(given, (tuple, list)) or len(given) != count:
            raise ArgumentError(
                f"{what} gives a tuple of {count} cotangents, one for each "
                f"argument, but gave {type(given).__name__}",
                user_location(),
            )
        types = iter(self.leaf_types)
        cotangents: list[Any] = []
        for position, (value, structure) in enumerate(
            zip(given, self.structures, strict=True)
        ):
            wanted = [next(types) for _ in range(structure.num_leaves)]
            if value is None:
                cotangents += [zeros(t) for t in wanted]
                continue
            leaves, have = tree.flatten(value)
            if have != structure:
                raise ArgumentError(
                    f"{what}: cotangent {position} has the structure {have}, the "
                    f"argument {structure}",
                    user_location(),
                )
            cotangents += [
                as_type(f"{what}: cotangent {position}", x, t)
                for x, t in zip(leaves, wanted, strict=True)
            ]
        return cotangents

    def later(
        self, varies: tuple[bool, ...], unused: Sequence[ArrayType]
    ) -> tuple[Program, custom_rules.Rule]:
        """The rules' Programs, with ``unused`` inputs for what the body captures.

        They do not vary; ``guarded`` makes sure of that.
        """
        own = len(self.leaf_types)
        primals = tree.unflatten(self.structure, [struct(t) for t in self.leaf_types])
        with self.depth:
            ahead, residuals = self.trace_forward(primals, varies[:own])
        program = closed(f"the forward rule of {self.name}", ahead, own)
        forward = Program(
            program.name,
            (*program.inputs, *map(Var, unused)),
            program.equations,
            program.outputs,
            program.constants,
            program.constant_values,
        )

        def backward(given: tuple[bool, ...]) -> Program:
            with self.depth:
                back = self.trace_backward(residuals, given)
            inputs = len(tree.leaves(residuals)) + sum(given)
            alone = closed(f"the backward rule of {self.name}", back, inputs)
            return with_zeros(alone, unused)

        return forward, FUNCTIONS.name(backward, f"{self.name}_backward")
