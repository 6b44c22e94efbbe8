"""``custom_vmap``: a function with a custom batching rule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast

from typing_extensions import override

from arrayfn import tree
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import Program
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.pickling import Wrapper, pickled
from arrayfn.primitives.custom_batching import custom_vmap as primitive
from arrayfn.primitives.custom_batching import mapped_type
from arrayfn.primitives.named_functions import FUNCTIONS
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import apply, is_staged
from arrayfn.transforms import FlatTrace, leaf_type, name_of, trace_function
from arrayfn.transforms.custom.closures import closed, closed_over, with_inputs
from arrayfn.transforms.custom.functions import fitted, pair_of, rule_setter, struct

P = ParamSpec("P")
R = TypeVar("R")
Rule = Callable[..., tuple[Any, Any]]


class custom_vmap(Generic[P, R]):  # noqa: N801 - a decorator, named as JAX's
    """A function that ``vmap`` maps by a rule, which ``def_vmap`` sets.

    The rule takes ``(axis_size, in_batched, *arguments)`` and returns the pair (result,
    out_batched). ``in_batched`` has a bool for each argument, or a tree of bools like
    the argument. A bool says whether the first axis is the mapped axis. ``out_batched``
    says the same for the result, and may be a prefix of the result's tree. The function
    must not capture mapped values.

    In forward mode, ``vmap`` uses the derivative of the rule to map the derivative of
    the function. If only tangents are mapped, as in ``jacfwd``, the rule is called with
    arguments that are not mapped. Reverse mode differentiates the function itself. To
    use the rule there, map first: take ``grad`` of a function that calls ``vmap``.

    >>> import numpy as np
    >>> from arrayfn.transforms import vmap
    >>> @custom_vmap
    ... def f(x, y):
    ...     return x + y
    >>> @f.def_vmap
    ... def f_vmap(axis_size, in_batched, x, y):
    ...     return 10 * (x + y), in_batched[0] or in_batched[1]
    >>> f(1.0, 2.0), vmap(f, in_axes=(0, None))(np.ones(2), 2.0)
    (3.0, array([30., 30.]))
    """

    def __init__(self, fun: Callable[P, R]) -> None:
        functools.update_wrapper(self, fun)
        self.function = fun
        self._rule: Rule | None = None  # until ``def_vmap`` sets it
        self._signature = inspect.signature(fun)

    def def_vmap(self, vmap_rule: Rule) -> Rule:
        """Set the rule; this method can be a decorator."""
        self._rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; inside a trace, emit one equation with its rule.

        The equation's operands are the leaves of the arguments, then the values that
        the function captures.
        """
        name = name_of(self.function)
        bound = self._signature.bind(*args, **kwargs)
        if bound.kwargs:
            raise ArgumentError(
                f"{name} has a batching rule, so its arguments are positional; "
                f"{sorted(bound.kwargs)} can only be given by keyword",
                user_location(),
            )
        if self._rule is None:
            raise ArgumentError(
                f"{name} is a custom_vmap function without a rule; give it one with "
                f"@{name}.def_vmap",
                user_location(),
            )
        bound.apply_defaults()
        leaves, structure = tree.flatten(bound.args)
        if not is_staged(leaves):
            return self.function(*args, **kwargs)
        body = trace_function(self.function, bound.args, {})
        own = len(leaves)
        # The captured values, and the body's inputs for them.
        captured, (inputs,) = closed_over([(body, own)])
        call = _Call(name, self._rule, structure, body, own)
        results = apply(
            primitive,
            *leaves,
            *captured,
            name=name,
            body=with_inputs(body, (*body.program.inputs[:own], *inputs)),
            # Params have no functions: the rule is registered, and found by this name.
            rule=FUNCTIONS.name(call.mapped, name),
        )
        return tree.unflatten(body.out_tree, as_list(results))

    def __getattr__(self, name: str) -> Any:
        return rule_setter(self, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @override
    def __reduce__(self) -> str | tuple[Any, ...]:
        state = {k: v for k, v in vars(self).items() if k != "_signature"}
        return pickled(cast(Wrapper, self), state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._signature = inspect.signature(self.function)


class _Call:
    """A call of a ``custom_vmap`` function, whose rule is traced when it is mapped.

    ``structure`` is that of the arguments, ``body`` the traced function, and ``own``
    the number of its inputs that are arguments. The other inputs are captured values.
    """

    def __init__(
        self, name: str, rule: Rule, structure: tree.TreeDef, body: FlatTrace, own: int
    ) -> None:
        self.name = name
        self.rule = rule
        self.structure = structure
        self.out_tree = body.out_tree
        self.types = body.program.output_types
        self.leaf_types = body.program.input_types[:own]
        self.captured_types = [leaf_type(x) for x in body.trace.captured]

    def mapped(
        self, size: int, mapped: Sequence[bool], _: Any
    ) -> tuple[Program, Sequence[bool]]:
        """Trace the custom rule; return its Program, and which outputs are mapped.

        ``size`` is the extent of the mapped axis, which is axis 0, and ``mapped`` says
        which inputs have it. The Program also has inputs for captured values, which it
        does not use. Raises ArgumentError if the function closes over a mapped value.
        """
        own = len(self.leaf_types)
        if any(mapped[own:]):
            raise ArgumentError(
                f"{self.name} has a batching rule, but closes over a value that is "
                "mapped; pass it as an argument",
                user_location(),
            )
        what = f"the batching rule of {self.name}"
        # The rule gets flags in the arguments' structure, and placeholders.
        in_batched = list(tree.unflatten(self.structure, list(mapped[:own])))
        types = [
            mapped_type(type, size) if is_mapped else type
            for type, is_mapped in zip(self.leaf_types, mapped, strict=False)
        ]
        out_batched: list[bool] = []

        def rule(*args: Any) -> list[Any]:
            """Call the rule; return its result's leaves, checked and converted."""
            pair = self.rule(size, in_batched, *args)
            result, batched = pair_of(what, "(result, out_batched)", pair)
            out_batched[:] = self._flags(what, batched)
            types = [
                mapped_type(type, size) if is_mapped else type
                for type, is_mapped in zip(self.types, out_batched, strict=True)
            ]
            return fitted(what, result, self.out_tree, types)

        traced = trace_function(
            rule,
            tree.unflatten(self.structure, list(map(struct, types))),
            {},
            types=types,
            abstract=True,
            with_values=False,
        )
        alone = closed(what, traced, own)
        # Add an unused input for each captured value.
        builder = ProgramBuilder(alone.name)
        with builder:
            inputs = builder.inputs_of(alone)
            for type in self.captured_types:
                builder.input(type)
            program = builder.build(builder.inline(alone, inputs))
        return program, out_batched

    def _flags(self, what: str, batched: Any) -> list[Any]:
        """Return for each leaf of the result whether it is mapped.

        ``batched`` is what the rule returned: a bool, or a prefix of the result's tree
        with bools. Raises ArgumentError, about ``what``, if it is anything else.
        """
        leaves = [0] * self.out_tree.num_leaves
        try:
            flags = tree.broadcast_prefix(
                batched, tree.unflatten(self.out_tree, leaves)
            )
        except ValueError:
            flags = [None]  # not a bool, so that the error below is raised
        if any(not isinstance(flag, bool) for flag in flags):
            raise ArgumentError(
                f"{what} says for each result whether it is mapped: out_batched must "
                f"be a bool, or a tree of them like the result, not {batched!r}",
                user_location(),
            )
        return flags
