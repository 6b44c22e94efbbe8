"""``custom_jvp``: a function with a custom forward-mode rule."""

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
from arrayfn.transforms import FlatTrace, leaf_type, name_of, shown_name, trace_function
from arrayfn.transforms.custom.closures import closed, closed_over, with_inputs
from arrayfn.transforms.custom.functions import (
    Call,
    Custom,
    Function,
    P,
    R,
    SymbolicZero,
    fitted,
    pair_of,
    struct,
    zeros,
)


class custom_jvp(Custom[P, R]):  # noqa: N801 - a decorator, named as JAX's
    """A function with a custom derivative rule, which ``defjvp`` sets.

    Differentiation with respect to values that the function captures raises an error.

    The rule takes ``(*static arguments, primals, tangents)``. Primals and tangents are
    tuples with an entry for each argument that is not static. The rule returns the pair
    (value, tangent of the value). Arguments in ``nondiff_argnums`` (and
    ``nondiff_argnames``) are static: any Python values.

    >>> import numpy as np
    >>> from arrayfn.transforms import grad
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
        self,
        fun: Callable[P, R],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames)
        self._rule: Function | None = None
        self._symbolic_zeros = False

    def defjvp(self, rule: Function, symbolic_zeros: bool = False) -> Function:
        """Set the rule; this method can be a decorator.

        With ``symbolic_zeros`` the rule gets a ``SymbolicZero``, with a shape and a
        dtype, for each tangent that is zero.
        """
        self._rule = rule
        self._symbolic_zeros = symbolic_zeros
        return rule

    def defjvps(self, *rules: Function | None) -> None:
        """Set a rule for each argument: ``rule(tangent, value, *arguments)``.

        The rule returns the tangent of the value if only that argument changes. None
        means zero.

        >>> from arrayfn.transforms import grad
        >>> @custom_jvp
        ... def area(width, height):
        ...     return width * height
        >>> area.defjvps(lambda t, value, w, h: t * h, None)
        >>> grad(area, argnums=(0, 1))(2.0, 3.0)
        (array(3.), array(0.))
        """
        if self.static:
            raise ArgumentError(
                f"{name_of(self.function)}.defjvps cannot be used with "
                "nondiff_argnums; give one rule with defjvp",
                user_location(),
            )

        def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
            """Return the value, and the sum of the terms that the rules return."""
            call: Any = self
            value = call(*primals)
            if len(rules) != len(primals):
                raise ArgumentError(
                    f"{name_of(self.function)}.defjvps was given {len(rules)} rules "
                    f"for {len(primals)} arguments",
                    user_location(),
                )
            total = tree.map(lambda y: zeros(leaf_type(y)), value)
            for one, tangent in zip(rules, tangents, strict=True):
                if one is not None:
                    term = one(tangent, value, *primals)
                    total = tree.map(lambda a, b: a + b, total, term)
            return value, total

        self.defjvp(rule)

    @override
    def check_rules(self) -> None:
        """Raise DifferentiationError if ``defjvp`` has not been called."""
        if self._rule is None:
            raise DifferentiationError(
                f"{shown_name(self.function)} is a custom_jvp function without a rule; "
                f"give it one with @{name_of(self.function)}.defjvp",
                user_location(),
            )

    @override
    def traced_rules(
        self, arguments: list[Any], body: FlatTrace
    ) -> tuple[Primitive, dict[str, Any], list[Any], tuple[Var, ...]]:
        """Return ``custom_jvp`` with the param ``jvp_body``.

        See ``Custom.traced_rules`` for the other results. With ``symbolic_zeros``, and
        inside a rule, ``jvp_body`` is the name of a function that traces the rule
        later. Else it is a Program of primals, captured values, the tangents of
        primals, and those of captured values, which it does not read.
        """
        assert self._rule is not None
        call = _JvpCall(
            self, arguments, body, symbolic_zeros=self._symbolic_zeros, rule=self._rule
        )
        own = len(call.leaf_types)
        if self._symbolic_zeros or self.within_rules.value:
            extra, (in_body,) = closed_over([(body, own)])
            unused = [leaf_type(value) for value in extra]
            jvp_body: Program | str = FUNCTIONS.name(
                lambda varies: call.later(varies, unused), f"{call.name}_jvp"
            )
        else:
            with self.within_rules:
                rule, _ = call.trace_rule(call.dynamic, [True] * own, dense=True)
            extra, (in_body, in_rule) = closed_over([(body, own), (rule, 2 * own)])
            inputs = rule.program.inputs
            directions = tuple(Var(v.type) for v in in_rule)
            jvp_body = with_inputs(
                rule, (*inputs[:own], *in_rule, *inputs[own : 2 * own], *directions)
            )
        return custom_rules.custom_jvp, {"jvp_body": jvp_body}, extra, in_body


class _JvpCall(Call):
    """A call of the ``custom_jvp`` function ``custom`` with ``arguments``.

    ``body`` is the traced function, ``rule`` its jvp rule. With ``symbolic_zeros`` the
    rule gets a ``SymbolicZero`` for a tangent that is zero, else an array of zeros.
    """

    def __init__(
        self,
        custom: custom_jvp[..., Any],
        arguments: list[Any],
        body: FlatTrace,
        *,
        symbolic_zeros: bool,
        rule: Function,
    ) -> None:
        super().__init__(custom, arguments, body, symbolic_zeros=symbolic_zeros)
        self.rule = rule

    def trace_rule(
        self,
        primals: Any,
        varies: Sequence[bool],
        *,
        dense: bool = False,
        abstract: bool = False,
    ) -> tuple[FlatTrace, tuple[bool, ...]]:
        """Trace the rule: a Program of the primals and the nonzero tangents.

        ``varies`` says which leaves of the arguments have a tangent that is not zero;
        the second result says so of the outputs. The Program returns the tangents of
        those, or of all outputs if ``dense``. If ``abstract``, the rule sees no values.
        """
        nonzero = [struct(t) for t, v in zip(self.leaf_types, varies, strict=True) if v]
        is_zero: list[bool] = []

        def derivative(primals: Any, nonzero: list[Any]) -> list[Any]:
            """Return the leaves of the rule's value and of its tangent, checked.

            Tangents that are symbolic zeros are left out, and marked in ``is_zero``.
            """
            tangents = tree.unflatten(
                self.structure, self.with_zeros(self.leaf_types, nonzero, varies)
            )
            result = self.rule(*self.static, primals, tangents)
            what = f"{self.shown}'s jvp rule"
            value, tangent = pair_of(what, "(value, tangent)", result)
            is_zero[:] = [
                not dense and isinstance(t, SymbolicZero) for t in tree.leaves(tangent)
            ]
            values = fitted(f"the value of {what}", value, self.out_tree, self.types)
            directions = fitted(
                f"the tangent of {what}", tangent, self.out_tree, self.types
            )
            pairs = zip(directions, is_zero, strict=True)
            return [*values, *(t for t, zero in pairs if not zero)]

        traced = trace_function(derivative, (primals, nonzero), {}, abstract=abstract)
        return traced, tuple(not zero for zero in is_zero)

    def later(
        self, varies: tuple[bool, ...], unused: Sequence[ArrayType]
    ) -> custom_rules.NamedJvp:
        """Trace the rule when a derivative is taken; also return which outputs vary.

        ``varies`` says which inputs of the equation vary. The Program takes further
        inputs of the types ``unused``, after the arguments, for the values that the
        body captures. The primitive makes sure that these do not vary.
        """
        own = len(self.leaf_types)
        with self.within_rules:
            # Abstract, so that arrays made inside become equations, not constants.
            traced, out_varies = self.trace_rule(
                self.placeholders(), varies[:own], abstract=True
            )
        program = closed(f"the jvp rule of {self.name}", traced, own + sum(varies))
        inputs = (*program.inputs[:own], *map(Var, unused), *program.inputs[own:])
        return replace(program, inputs=inputs), out_varies
