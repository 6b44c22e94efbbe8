"""Derivatives as linear maps: ``jvp``, ``vjp``, ``linearize``, ``linear_transpose``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, overload

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import ArrayType, Program
from arrayfn.tracing import apply_program
from arrayfn.transforms.arguments import Function, leaf_type, like, name_of
from arrayfn.transforms.dce import dce
from arrayfn.transforms.flat_trace import trace_function
from arrayfn.transforms.forward_mode import jvp as jvp_program
from arrayfn.transforms.gradients import pair_with_aux
from arrayfn.transforms.linearization import linearize as linearize_program
from arrayfn.transforms.transposition import transpose

R = TypeVar("R")
A = TypeVar("A")


@overload
def jvp(
    fun: Callable[..., R],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    has_aux: Literal[False] = False,
) -> tuple[R, R]: ...


@overload
def jvp(
    fun: Callable[..., tuple[R, A]],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    has_aux: Literal[True],
) -> tuple[R, R, A]: ...


def jvp(
    fun: Function,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    has_aux: bool = False,
) -> Any:
    """``fun(*primals)`` and its directional derivative along ``tangents``.

    ``tangents`` has the structure, shapes and dtypes of ``primals``. With ``has_aux``
    the function returns a pair (value, aux), and the result has ``aux`` as its third.

    >>> import numpy as np
    >>> jvp(np.sin, (np.array(0.0),), (np.array(2.0),))
    (array(0.), array(2.))
    """
    for what, values in (("primals", primals), ("tangents", tangents)):
        if not isinstance(values, (tuple, list)):
            raise ArgumentError(
                f"jvp: {what} are a tuple, with one for each argument of the "
                f"function, not a {type(values).__name__}: write jvp(f, (x,), "
                "(tangent,))",
                user_location(),
            )
    args = tuple(primals)
    leaves, structure = tree.flatten(args)
    types = [leaf_type(x) for x in leaves]
    given = _flat_like("jvp: tangent", tangents, structure, types)
    traced = trace_function(fun, args, {})
    wrt = [t.dtype in dtypes.DIFFERENTIABLE for t in types]
    captured = traced.trace.captured
    program = jvp_program(traced.program, wrt + [False] * len(captured))
    directions = [t for t, wanted in zip(given, wrt, strict=True) if wanted]
    results = apply_program(program, [*leaves, *captured, *directions], once=True)
    outputs = len(traced.program.outputs)
    values, derivatives = results[:outputs], results[outputs:]
    if not has_aux:
        return (
            tree.unflatten(traced.out_tree, values),
            tree.unflatten(traced.out_tree, derivatives),
        )
    value_tree, aux_tree = pair_with_aux(fun, traced.out_tree)
    own = value_tree.num_leaves
    return (
        tree.unflatten(value_tree, values[:own]),
        tree.unflatten(value_tree, derivatives[:own]),
        tree.unflatten(aux_tree, values[own:]),
    )


@overload
def vjp(
    fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False
) -> tuple[R, Callable[[R], Any]]: ...


@overload
def vjp(
    fun: Callable[..., tuple[R, A]], *primals: Any, has_aux: Literal[True]
) -> tuple[R, Callable[[R], Any], A]: ...


def vjp(fun: Function, *primals: Any, has_aux: bool = False) -> Any:
    """``fun(*primals)``, and the function from output to input cotangents.

    With ``has_aux`` the function returns a pair (value, aux), and the result has
    ``aux`` as its third. The cotangents of arguments that are not inexact are zeros;
    positions of ``tree.Indexed`` nodes stay. The function is a tree (``tree.Partial``)
    of what it keeps of ``fun``, so that compiled code can return and take it.

    >>> import numpy as np
    >>> y, pull_back = vjp(lambda x: x * x, np.array(3.0))
    >>> pull_back(np.array(1.0))
    (array(6.),)
    """
    at = _Linearized(fun, primals, has_aux)
    leaves, positions = tree.leaves(primals), tree.positions_in(primals)
    others = [
        x if is_position else np.zeros(t.shape)
        for x, t, is_position in zip(leaves, at.types, positions, strict=True)
    ]

    fixed = list(itertools.compress(others, [not wanted for wanted in at.wrt]))
    return at.with_value(tree.Partial(_PullBack(at), at.residuals, fixed))


def linearize(fun: Function, *primals: Any, has_aux: bool = False) -> Any:
    """``fun(*primals)``, and its jvp as a linear function of the tangents.

    What does not depend on the tangents is computed once, so many calls of the linear
    function are cheap. With ``has_aux`` the function returns a pair (value, aux), and
    the result has ``aux`` as its third.

    >>> import numpy as np
    >>> y, forward = linearize(np.sin, np.array(0.0))
    >>> forward(np.array(2.0)), forward(np.array(3.0))
    (array(2.), array(3.))
    """
    at = _Linearized(fun, primals, has_aux)

    def push_forward(*tangents: Any) -> Any:
        """The tangent of the result for these tangents of the arguments."""
        given = _flat_like("linearize: tangent", tangents, at.structure, at.types)
        directions = itertools.compress(given, at.wrt)
        values = apply_program(at.linear, [*at.residuals, *directions])
        return tree.unflatten(at.value_tree, values)

    return at.with_value(push_forward)


class _Linearized:
    """A function linearized at ``primals``: its value, and a linear Program."""

    def __init__(
        self, function: Function, primals: tuple[Any, ...], has_aux: bool
    ) -> None:
        leaves, self.structure = tree.flatten(primals)
        traced = trace_function(function, primals, {})
        captured = traced.trace.captured
        self.value_tree, self.aux_tree = traced.out_tree, None
        if has_aux:
            self.value_tree, self.aux_tree = pair_with_aux(function, traced.out_tree)
        self.types = [leaf_type(x) for x in leaves]
        self.wrt = [t.dtype in dtypes.DIFFERENTIABLE for t in self.types]
        self.split = linearize_program(
            traced.program, self.wrt + [False] * len(captured)
        )
        results = apply_program(self.split.known, [*leaves, *captured], once=True)
        outputs = len(traced.program.outputs)
        self.outputs, self.residuals = results[:outputs], results[outputs:]
        self.linear = _first_outputs(self.split.linear, self.value_tree.num_leaves)

    def with_value(self, linear_map: Function) -> tuple[Any, ...]:
        """The value, ``linear_map``, and aux if the function returns that."""
        own = self.value_tree.num_leaves
        value = tree.unflatten(self.value_tree, self.outputs[:own])
        if self.aux_tree is None:
            return value, linear_map
        return value, linear_map, tree.unflatten(self.aux_tree, self.outputs[own:])


class _PullBack:
    """The transpose of a linearized function, of its residuals and cotangents."""

    def __init__(self, at: _Linearized) -> None:
        self.backward = transpose(at.linear, at.split.residuals)
        self.cotangents = at.value_tree, at.linear.output_types
        self.structure, self.wrt = at.structure, at.wrt

    def __call__(
        self, residuals: Sequence[Any], fixed: Sequence[Any], cotangents: Any
    ) -> Any:
        """The cotangents of the arguments.

        ``residuals`` are what the forward pass kept; ``fixed`` are the cotangents of
        integers.
        """
        given = _flat_like("vjp: cotangent", cotangents, *self.cotangents)
        gradients = iter(apply_program(self.backward, [*residuals, *given]))
        others = iter(fixed)
        dense = [next(gradients if wanted else others) for wanted in self.wrt]
        return tree.unflatten(self.structure, dense)


def linear_transpose(fun: Function, *primals: Any) -> Function:
    """The transpose of ``fun``, which is linear: from its result to its arguments.

    Only the structures, shapes and dtypes of ``primals`` matter (they may be
    ``ShapeDtypeStruct``). The transpose takes a value of the result's form and gives a
    tuple with one entry for each argument. Raises DifferentiationError where the
    function is not linear.

    >>> import numpy as np
    >>> transposed = linear_transpose(lambda x: 3.0 * x[:2], np.zeros(3))
    >>> transposed(np.array([1.0, 10.0]))
    (array([ 3., 30.,  0.]),)
    """
    structure = tree.structure(primals)
    traced = trace_function(fun, primals, {}, with_values=False)
    program, own = traced.program, structure.num_leaves
    captured = (*program.constant_values, *traced.trace.captured)
    ordered = Program(
        program.name,
        (*program.constants, *program.inputs[own:], *program.inputs[:own]),
        program.equations,
        program.outputs,
    )
    backward = transpose(ordered, len(captured))

    def transposed(cotangents: Any) -> Any:
        """The cotangents of the arguments for those of the result."""
        given = _flat_like(
            f"the result of {name_of(fun)}: cotangent",
            cotangents,
            traced.out_tree,
            program.output_types,
        )
        return tree.unflatten(structure, apply_program(backward, [*captured, *given]))

    return transposed


def _first_outputs(program: Program, count: int) -> Program:
    """``program`` with only its first ``count`` outputs, and what they need."""
    if count == len(program.outputs):
        return program
    return dce(replace(program, outputs=program.outputs[:count]))


def _flat_like(
    word: str, given: Any, structure: tree.TreeDef, types: Sequence[ArrayType]
) -> list[Any]:
    """The leaves of ``given``, of these types; an error if they have another form.

    ``word`` says what they are, for the message, as "vjp: cotangent".
    """
    if isinstance(given, list) and structure.type is tuple:
        given = tuple(given)
    leaves, have = tree.flatten(given)
    if have != structure:
        raise ArgumentError(
            f"{word}s have the structure {tree.text_of(have)}, not "
            f"{tree.text_of(structure)}, which is that of what they belong to",
            user_location(),
        )
    return [
        like(word, position, t, x)
        for position, (t, x) in enumerate(zip(types, leaves, strict=True))
    ]
