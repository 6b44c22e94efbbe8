"""Derivatives as linear maps: ``jvp``, ``vjp``, ``linearize``, ``linear_transpose``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, overload

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, DifferentiationError, user_location
from arrayfn.ir import ArrayType, Program
from arrayfn.tracing import apply_program
from arrayfn.transforms.arguments import Function, leaf_type, like, shown_name
from arrayfn.transforms.dce import dce
from arrayfn.transforms.flat_trace import trace_function
from arrayfn.transforms.forward_mode import jvp as jvp_program
from arrayfn.transforms.gradients import pair_with_aux
from arrayfn.transforms.linearization import linearize as linearize_program
from arrayfn.transforms.shape_struct import stand_ins
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
    """Compute ``fun(*primals)`` and its directional derivative along ``tangents``.

    ``tangents`` has the structure, shapes and dtypes of ``primals``. With ``has_aux``
    the function returns a pair (value, aux), and the result has ``aux`` as its third
    item.

    >>> import numpy as np
    >>> jvp(np.sin, (np.array(0.0),), (np.array(2.0),))
    (array(0.), array(2.))
    """
    for what, values in (("primals", primals), ("tangents", tangents)):
        if not isinstance(values, (tuple, list)):
            raise ArgumentError(
                f"jvp: {what} must be a tuple with an entry for each argument of the "
                f"function, not a {type(values).__name__}: write jvp(f, (x,), "
                "(tangent,))",
                user_location(),
            )
    args = tuple(primals)
    leaves, structure = tree.flatten(args)
    types = [leaf_type(x) for x in leaves]
    tangent_leaves = _flat_like("jvp: tangent", tangents, structure, types)
    traced = trace_function(fun, args, {})
    wrt = [t.dtype in dtypes.DIFFERENTIABLE for t in types]
    captured = traced.trace.captured
    program = jvp_program(traced.program, wrt + [False] * len(captured))
    directions = [t for t, wanted in zip(tangent_leaves, wrt, strict=True) if wanted]
    results = apply_program(program, [*leaves, *captured, *directions], once=True)
    # The results are the outputs, then their tangents, those of aux included.
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
    """Compute ``fun(*primals)``, and a function from output to input cotangents.

    With ``has_aux`` the function returns a pair (value, aux), and the result has
    ``aux`` as its third item. The cotangents of integers and bools are zeros. Positions
    of ``tree.Indexed`` nodes are returned unchanged. The returned function is a tree
    (``tree.Partial``) of the values that it keeps, so compiled functions can return and
    take it.

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
    """Compute ``fun(*primals)``, and its jvp as a linear function of the tangents.

    Values that do not depend on the tangents are computed once, so many calls of the
    linear function are cheap. With ``has_aux`` the function returns a pair (value,
    aux), and the result has ``aux`` as its third item. The linear function is a tree
    (``tree.Partial``), like the function that ``vjp`` returns.

    >>> import numpy as np
    >>> y, forward = linearize(np.sin, np.array(0.0))
    >>> forward(np.array(2.0)), forward(np.array(3.0))
    (array(2.), array(3.))
    """
    at = _Linearized(fun, primals, has_aux)
    return at.with_value(tree.Partial(_PushForward(at), at.residuals))


class _Linearized:
    """A function linearized at ``primals``: its value, and a linear Program.

    ``linear`` takes the ``residuals`` and the tangents of the leaves marked in ``wrt``.
    It returns the tangents of the value. ``split`` is the whole linearization, and
    ``outputs`` are the leaves of the value and of aux.
    """

    def __init__(
        self, function: Function, primals: tuple[Any, ...], has_aux: bool
    ) -> None:
        """Trace ``function``, linearize it, and compute its value at ``primals``."""
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
        # The results are the outputs (the value, then aux), then the residuals.
        outputs = len(traced.program.outputs)
        self.outputs, self.residuals = results[:outputs], results[outputs:]
        self.linear = _first_outputs(self.split.linear, self.value_tree.num_leaves)

    def with_value(self, linear_map: Function) -> tuple[Any, ...]:
        """Return (value, linear_map), or (value, linear_map, aux) with ``has_aux``."""
        own = self.value_tree.num_leaves
        value = tree.unflatten(self.value_tree, self.outputs[:own])
        if self.aux_tree is None:
            return value, linear_map
        return value, linear_map, tree.unflatten(self.aux_tree, self.outputs[own:])


class _PushForward:
    """A linearized function: a callable of residuals and tangents.

    ``types`` and ``structure`` are those of the arguments, and ``wrt`` says which
    leaves have a tangent in the Program ``linear``.
    """

    def __init__(self, at: _Linearized) -> None:
        self.linear, self.value_tree = at.linear, at.value_tree
        self.structure, self.types, self.wrt = at.structure, at.types, at.wrt

    def __call__(self, residuals: Sequence[Any], *tangents: Any) -> Any:
        """Return the tangents of the value."""
        tangent_leaves = _flat_like(
            "linearize: tangent", tangents, self.structure, self.types
        )
        directions = itertools.compress(tangent_leaves, self.wrt)
        values = apply_program(self.linear, [*residuals, *directions])
        return tree.unflatten(self.value_tree, values)


class _PullBack:
    """The transpose of a linearized function: a callable of residuals and cotangents.

    ``backward`` is the transposed Program. ``value_tree`` and ``value_types`` are the
    structure and the leaves' types of the value, which its cotangents have, too.
    ``structure`` is that of the arguments, and ``wrt`` says which of their leaves have
    a cotangent in ``backward``.
    """

    def __init__(self, at: _Linearized) -> None:
        self.backward = transpose(at.linear, at.split.residuals)
        self.value_tree, self.value_types = at.value_tree, at.linear.output_types
        self.structure, self.wrt = at.structure, at.wrt

    def __call__(
        self, residuals: Sequence[Any], fixed: Sequence[Any], cotangents: Any
    ) -> Any:
        """Return the cotangents of the arguments.

        ``residuals`` are what the forward pass kept; ``fixed`` are the cotangents of
        integers.
        """
        cotangent_leaves = _flat_like(
            "vjp: cotangent", cotangents, self.value_tree, self.value_types
        )
        gradients = iter(apply_program(self.backward, [*residuals, *cotangent_leaves]))
        others = iter(fixed)
        dense = [next(gradients if wanted else others) for wanted in self.wrt]
        return tree.unflatten(self.structure, dense)


def linear_transpose(fun: Function, *primals: Any) -> Function:
    """Transpose the linear function ``fun``: from its result to its arguments.

    Only the structures, shapes and dtypes of ``primals`` matter. Their leaves may be
    ``ShapeDtypeStruct``, or any objects with a shape and a dtype. The transpose takes a
    value like the result of ``fun``, and returns a tuple with one entry for each
    argument. The transpose is also a tree (``tree.Partial``). Raises
    DifferentiationError if the function is not linear, or if it converts integers to
    other numbers.

    >>> import numpy as np
    >>> transposed = linear_transpose(lambda x: 3.0 * x[:2], np.zeros(3))
    >>> transposed(np.array([1.0, 10.0]))
    (array([ 3., 30.,  0.]),)
    """
    primals = stand_ins(primals)
    structure = tree.structure(primals)
    traced = trace_function(fun, primals, {}, with_values=False)
    program, own = traced.program, structure.num_leaves
    types = (*program.input_types[:own], *program.output_types)
    if len({type.dtype in dtypes.INEXACT for type in types}) > 1:
        raise DifferentiationError(
            "linear_transpose takes functions of floating-point or complex numbers "
            "with such results, or of integers with such; those of "
            f"{shown_name(fun)} are {', '.join(map(str, dict.fromkeys(types)))}",
            user_location(),
        )
    captured = [*program.constant_values, *traced.trace.captured]
    ordered = Program(
        program.name,
        (*program.constants, *program.inputs[own:], *program.inputs[:own]),
        program.equations,
        program.outputs,
    )
    return tree.Partial(_Transposed(ordered, structure, traced.out_tree), captured)


class _Transposed:
    """The transpose of a linear Program, called with captured values and cotangents.

    The Program's inputs are the captured values, then the arguments' leaves.
    ``backward`` is the transposed Program. ``structure`` is that of the arguments.
    ``value_tree`` and ``value_types`` are the structure and the leaves' types of the
    Program's result, which its cotangents must have.
    """

    def __init__(
        self, program: Program, structure: tree.TreeDef, value_tree: tree.TreeDef
    ) -> None:
        captured = len(program.inputs) - structure.num_leaves
        self.backward = transpose(program, captured)
        self.structure = structure
        self.value_tree, self.value_types = value_tree, program.output_types
        self.leaf_name = f"the result of {program.name}: cotangent"

    def __call__(self, captured: Sequence[Any], cotangents: Any) -> Any:
        """Return the cotangents of the arguments.

        ``captured`` are the values that the function captured, ``cotangents`` those of
        its result.
        """
        cotangent_leaves = _flat_like(
            self.leaf_name, cotangents, self.value_tree, self.value_types
        )
        results = apply_program(self.backward, [*captured, *cotangent_leaves])
        return tree.unflatten(self.structure, results)


def _first_outputs(program: Program, count: int) -> Program:
    """Return ``program`` with only its first ``count`` outputs, and what they need."""
    if count == len(program.outputs):
        return program
    return dce(replace(program, outputs=program.outputs[:count]))


def _flat_like(
    leaf_name: str, value: Any, structure: tree.TreeDef, types: Sequence[ArrayType]
) -> list[Any]:
    """Flatten ``value``, after a check of its structure and its leaves' ``types``.

    A list stands for a tuple, too. ``leaf_name`` is what a leaf is called in messages,
    such as "vjp: cotangent".
    """
    if isinstance(value, list) and structure.type is tuple:
        value = tuple(value)
    leaves, own_structure = tree.flatten(value)
    if own_structure != structure:
        raise ArgumentError(
            f"{leaf_name}s have the structure {tree.text_of(own_structure)}, not "
            f"{tree.text_of(structure)}, that of the values they belong to",
            user_location(),
        )
    return [
        like(leaf_name, position, t, x)
        for position, (t, x) in enumerate(zip(types, leaves, strict=True))
    ]
