"""Traces the functions of loops and branches, and settles the types of carries.

The Programs of a loop or branch have no constants: captured values are operands, before
the arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.errors import (
    ArgumentError,
    ArrayfnError,
    DTypeError,
    ShapeError,
    user_location,
)
from arrayfn.ir import ArrayType, Program, Var
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.lax.collectives import pvary
from arrayfn.primitives import collectives, conversion
from arrayfn.tracing import Tracer, apply
from arrayfn.transforms import ShapeDtypeStruct, leaf_type, trace_function
from arrayfn.transforms.arguments import check_leaf, described, own_name

Function = Callable[..., Any]


@dataclass(frozen=True)
class Closed:
    """A traced function: its Program takes ``captured`` values, then the arguments."""

    function: Function
    program: Program
    captured: tuple[Any, ...]
    out_tree: tree.TreeDef

    @property
    def out_types(self) -> list[ArrayType]:
        """The types of the leaves of the result."""
        return list(self.program.output_types)

    def made_at(self, number: int) -> str:
        """Where result leaf ``number`` was computed, for messages; empty if unknown."""
        wanted = self.program.outputs[number]
        for equation in self.program.equations:
            if any(v is wanted for v in equation.outputs) and equation.source:
                return f", computed at {equation.source}"
        return ""


def close(
    function: Function, args: Sequence[Any], types: Sequence[ArrayType] | None = None
) -> Closed:
    """Trace ``function``, and make the arrays that it captures inputs of its Program.

    The inputs are the captured arrays, then the leaves of ``args``. ``types`` are the
    types of these leaves; by default, they are those of ``args``.
    """
    leaves, structure = tree.flatten(tuple(args))
    given = [plain_type(x) for x in leaves] if types is None else list(types)
    stand_ins = [ShapeDtypeStruct(t.shape, t.dtype) for t in given]
    traced = trace_function(
        function,
        tree.unflatten(structure, stand_ins),
        {},
        types=given,
        abstract=True,
        with_values=False,
        constants=False,
    )
    program, captured = traced.program, traced.trace.captured
    own = len(leaves)
    inputs = (*program.inputs[own:], *program.inputs[:own])
    return Closed(
        function,
        Program(program.name, inputs, program.equations, program.outputs),
        captured,
        traced.out_tree,
    )


def sharing(closed: Sequence[Closed]) -> tuple[list[Any], list[Program]]:
    """The values that any function captures, and Programs that take all of them."""
    values: dict[int, Any] = {}
    for c in closed:
        values.update((_key(value), value) for value in c.captured)
    programs: list[Program] = []
    for c in closed:
        count = len(c.captured)
        have = dict(zip(map(_key, c.captured), c.program.inputs[:count], strict=True))
        inputs = [
            have[key] if key in have else Var(leaf_type(value))
            for key, value in values.items()
        ]
        programs.append(
            Program(
                c.program.name,
                (*inputs, *c.program.inputs[count:]),
                c.program.equations,
                c.program.outputs,
            )
        )
    return list(values.values()), programs


def _key(value: Any) -> int:
    return id(value.atom) if isinstance(value, Tracer) else id(value)


def plain_type(leaf: Any) -> ArrayType:
    """The type of a leaf, as a row-major array."""
    return leaf_type(leaf).plain()


def check_function(
    name: str, what: str, function: Any, takes: Sequence[str] | None = None
) -> None:
    """Raise ArgumentError unless ``function`` can be called.

    The function ``name`` was given it for its parameter ``what``, and calls it with the
    arguments ``takes`` (None: unknown).
    """
    if not callable(function):
        raise ArgumentError(
            f"{name}: {what} must be a function, but is {type(function).__name__}",
            user_location(),
        )
    if takes is None:
        return
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # some functions written in C have none
    try:
        signature.bind(*takes)
    except TypeError:
        raise ArgumentError(
            f"{name} calls {what}({', '.join(takes)}), but {described(function)} "
            f"takes {signature}",
            user_location(),
        ) from None


def check_arrays(name: str, what: str, value: Any) -> None:
    """Raise ArgumentError unless every leaf of ``value`` is an array or a number."""
    for path, leaf in zip(tree.paths(value), tree.leaves(value), strict=True):
        check_leaf(leaf, f"{name}: {what}{path}")


def with_types(program: Program, wanted: Sequence[ArrayType]) -> Program:
    """``program`` with its first outputs converted to these types.

    Over a mesh they are also marked as varying along the axes of those types: a result
    that all members share, where another way gives each its own, counts for each.
    """
    pairs = list(zip(program.outputs, wanted, strict=False))
    if all(a.type == t for a, t in pairs):
        return program
    builder = ProgramBuilder(program.name)
    with builder:
        results = builder.inline(program, builder.inputs_of(program))
        for k, (_, type) in enumerate(pairs):
            have = results[k].type
            if type.weak and (have.dtype, have.weak) != (type.dtype, True):
                results[k] = conversion.convert_element_type(
                    results[k], dtype=type.dtype, weak=True
                )
            elif not type.weak:
                results[k] = conversion.convert(results[k], type.dtype)
            for axis in sorted(type.varying - have.varying):
                results[k] = collectives.pvary(results[k], axis_name=axis)
        return builder.build(results)


# Members of a mesh that take different ways.


def widened(program: Program, axes: frozenset[str]) -> Program:
    """``program`` of inputs that vary along ``axes`` of a mesh, too.

    Members that take different ways compute derivatives by themselves. What they share
    is summed outside, where they all come.
    """
    if all(axes <= t.varying for t in program.input_types):
        return program
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = [
            builder.input(v.type.with_varying(v.type.varying | axes), v.hint)
            for v in program.inputs
        ]
        return builder.build(builder.inline(program, inputs))


def varying_along(leaf: Any, axes: frozenset[str]) -> Any:
    """``leaf``, marked as varying along ``axes`` of a mesh."""
    return pvary(leaf, sorted(axes - plain_type(leaf).varying))


# Carries.


@dataclass(frozen=True)
class Carried:
    """A traced body that keeps the carry's types, and the initial carry's leaves."""

    closed: Closed
    leaves: list[Any]


def keep_types(
    name: str,
    body: Function,
    init: Any,
    others: Sequence[Any],
    carry_of: Callable[[Closed], tree.TreeDef],
    types_of_others: Sequence[ArrayType] = (),
    paths: Sequence[str] | None = None,
) -> Carried:
    """Trace ``body(carry, *others)``, whose result begins with the next carry.

    A Python number in ``init`` takes the type that the body returns. Raises ShapeError,
    DTypeError or ArgumentError if the body changes a carry's type otherwise.
    ``carry_of`` extracts the carry's structure from the result's; ``paths`` name its
    leaves.
    """
    check_arrays(name, "the first carry", init)
    leaves, structure = tree.flatten(init)
    types = [plain_type(x) for x in leaves]
    while True:  # types only widen, each at most twice
        closed = close(body, (init, *others), [*types, *types_of_others])
        given = carry_of(closed)
        if given != structure:
            raise ArgumentError(
                f"{name}: {described(body)} returned a carry of structure "
                f"{tree.text_of(given)}, but was given {tree.text_of(structure)}; "
                "return a carry with the same keys and lengths",
                user_location(),
            )
        results = closed.out_types[: len(types)]
        wider = [_carry_type(t, r) for t, r in zip(types, results, strict=True)]
        if wider == types:
            break
        types = wider
    _check_kept(name, closed, types, tree.paths(init) if paths is None else paths)
    program = with_types(closed.program, types)
    converted = [as_type(x, t) for x, t in zip(leaves, types, strict=True)]
    kept = Closed(body, program, closed.captured, closed.out_tree)
    return Carried(kept, converted)


def _carry_type(given: ArrayType, result: ArrayType) -> ArrayType:
    """The type of a carry that starts as ``given`` and is returned as ``result``."""
    if given.shape != result.shape:
        return given
    varying = given.varying | result.varying
    if not given.weak:
        return given.with_varying(varying)
    dtype, weak = dtypes.promote([(given.dtype, True), (result.dtype, result.weak)])
    return ArrayType(given.shape, dtype, weak=weak, varying=varying)


def _check_kept(
    name: str, closed: Closed, types: Sequence[ArrayType], paths: Sequence[str]
) -> None:
    """Raise an error unless a body's results have the types that it carries.

    ``paths`` are those of the carries' leaves; errors call the loop ``name``.
    """
    problems: list[str] = []
    error: type[ArrayfnError] = DTypeError
    for k, (wanted, have) in enumerate(
        zip(types, closed.out_types[: len(types)], strict=True)
    ):
        if wanted.shape == have.shape and (wanted.dtype == have.dtype):
            continue
        # A Python number takes the dtype of the carry, but True is no number.
        fits = have.dtype != dtypes.bool_ or wanted.dtype == dtypes.bool_
        if have.weak and wanted.shape == have.shape and fits:
            dtype, _ = dtypes.promote([(wanted.dtype, wanted.weak), (have.dtype, True)])
            if dtype == wanted.dtype:
                continue
        remedy = (
            f"convert it with .astype({wanted.dtype.name!r}), or begin with "
            f"{dtypes.short_name(have.dtype)}"
        )
        if wanted.shape != have.shape:
            error = ShapeError
            remedy = "begin with an array of the shape that is returned"
        where = f"carry{paths[k]}" if paths[k] else "the carry"
        problems.append(
            f"{where} comes in as {wanted} and goes out as {have}"
            f"{closed.made_at(k)}: {remedy}"
        )
    if problems:
        raise error(
            f"{name}: {described(closed.function)} changes the type of what it "
            f"carries, and the next step could not take it. {'; '.join(problems)}",
            user_location(),
        )


def as_type(leaf: Any, wanted: ArrayType) -> Any:
    """``leaf``, a Python number or weak value, converted to ``wanted``.

    Over a mesh it is also marked as varying along the axes of that type.
    """
    have = plain_type(leaf)
    for axis in sorted(wanted.varying - have.varying):
        leaf = pvary(leaf, axis)
    if (have.dtype, have.weak) == (wanted.dtype, wanted.weak):
        return leaf
    if dtypes.is_python_scalar(leaf):
        array = np.asarray(leaf).astype(wanted.dtype)
        return array.item() if wanted.weak else array
    to = {"dtype": wanted.dtype, **({"weak": True} if wanted.weak else {})}
    return apply(conversion.convert_element_type, leaf, **to)


def renamed(function: Function, inner: Function) -> Function:
    """``inner`` with the name and signature of ``function``."""
    named = functools.wraps(function)(inner)
    named.__name__ = own_name(function)
    return named
