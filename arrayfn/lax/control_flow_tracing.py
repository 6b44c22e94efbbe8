"""Traces the functions of loops and branches, and settles the types of carries.

The Programs of a loop or branch have no constants: captured values are operands, before
the arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
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
from arrayfn.ir import ArrayType, Program, Var, joined_variance
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.lax.collectives import pvary
from arrayfn.primitives import collectives, conversion
from arrayfn.records import frozen
from arrayfn.tracing import Tracer, apply
from arrayfn.transforms import ShapeDtypeStruct, leaf_type, trace_function
from arrayfn.transforms.arguments import check_leaf, described, own_name

Function = Callable[..., Any]


@frozen
class Closed:
    """A traced function, whose Program takes the values it captured as first inputs.

    The inputs of ``program`` are the ``captured`` values, then the leaves of the
    arguments. ``function`` is the Python function, for errors. ``out_tree`` is the
    structure of the result.
    """

    function: Function
    program: Program
    captured: tuple[Any, ...]
    out_tree: tree.TreeDef

    @property
    def out_types(self) -> list[ArrayType]:
        """The types of the leaves of the result."""
        return list(self.program.output_types)

    def made_at(self, number: int) -> str:
        """Return ", computed at FILE:LINE" for result leaf ``number``, or "".

        The text is empty if the line is not known, for example for an input.
        """
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
    leaf_types = [plain_type(x) for x in leaves] if types is None else list(types)
    stand_ins = [ShapeDtypeStruct(t.shape, t.dtype) for t in leaf_types]
    traced = trace_function(
        function,
        tree.unflatten(structure, stand_ins),
        {},
        types=leaf_types,
        abstract=True,
        with_values=False,
        constants=False,
    )
    program, captured = traced.program, traced.trace.captured
    # The trace lists the captured values last. Put them first.
    count = len(leaves)
    inputs = (*program.inputs[count:], *program.inputs[:count])
    return Closed(
        function,
        Program(program.name, inputs, program.equations, program.outputs),
        captured,
        traced.out_tree,
    )


def sharing(closed: Sequence[Closed]) -> tuple[list[Any], list[Program]]:
    """Give traced functions common captured values.

    Returns the values that any of the functions captures, without duplicates, and for
    each function a Program whose inputs are all of these values, then its own
    arguments. So all branches of a ``cond`` take the same operands.
    """
    values: dict[int, Any] = {}
    for c in closed:
        values.update((_key(value), value) for value in c.captured)
    programs: list[Program] = []
    for c in closed:
        count = len(c.captured)
        own = dict(zip(map(_key, c.captured), c.program.inputs[:count], strict=True))
        # A value that this function does not capture becomes an unused input.
        inputs = [
            own[key] if key in own else Var(leaf_type(value))
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
    """Return a number that is the same for two captures of one value.

    Two Tracers can stand for one Var, so a Tracer is identified by its atom.
    """
    return id(value.atom) if isinstance(value, Tracer) else id(value)


def plain_type(leaf: Any) -> ArrayType:
    """Return the type of ``leaf`` without its layout and its sharding."""
    return leaf_type(leaf).plain()


def check_function(
    name: str, what: str, function: Any, takes: Sequence[str] | None = None
) -> None:
    """Raise ArgumentError unless ``function`` is callable with the arguments ``takes``.

    The public function ``name`` got ``function`` for its parameter ``what``, and calls
    it with positional arguments called ``takes``. If ``takes`` is None, or ``function``
    has no signature, only callability is checked.
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
    """Return ``program`` with its first outputs converted to the types ``wanted``.

    On a mesh, outputs are also marked as varying along the axes of these types. One
    branch may compute a leaf that is equal on all members, where another branch
    computes a leaf that varies.
    """
    pairs = list(zip(program.outputs, wanted, strict=False))
    if all(a.type == t for a, t in pairs):
        return program
    builder = ProgramBuilder(program.name)
    with builder:
        results = builder.inline(program, builder.inputs_of(program))
        for k, (_, type) in enumerate(pairs):
            current = results[k].type
            # A weak type (of a Python number) stays weak after the conversion.
            if type.weak and (current.dtype, current.weak) != (type.dtype, True):
                results[k] = conversion.convert_element_type(
                    results[k], dtype=type.dtype, weak=True
                )
            elif not type.weak:
                results[k] = conversion.convert(results[k], type.dtype)
            for axis in sorted(type.varying - current.varying):
                results[k] = collectives.pvary(results[k], axis_name=axis)
        return builder.build(results)


def alike_over_members(
    values: Sequence[Any], leaves: Sequence[Any], programs: Sequence[Program]
) -> tuple[list[Any], list[Program]]:
    """Return ``leaves`` and ``programs`` that vary along the axes of all operands.

    ``programs`` take ``values`` and ``leaves``, or arrays like these. The results of a
    call vary along all these axes. So do the arrays of its derivatives, which the
    Programs are applied to.
    """
    axes = joined_variance(plain_type(x) for x in (*values, *leaves))
    if not axes:
        return list(leaves), list(programs)
    varying = [varying_along(x, axes) for x in leaves]
    return varying, [
        with_types(p, [t.with_varying(axes) for t in p.output_types])
        for p in (p.varying_along(axes) for p in programs)
    ]


def varying_along(leaf: Any, axes: frozenset[str]) -> Any:
    """Mark ``leaf`` as varying along ``axes`` of a mesh, unless it already varies."""
    return pvary(leaf, sorted(axes - plain_type(leaf).varying))


# Carries.


@frozen
class Carried:
    """The traced body of a loop, which keeps the types of the carry.

    ``leaves`` are those of the initial carry, converted to these types.
    """

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
    DTypeError or ArgumentError if the body changes the type of the carry in another
    way.

    Args:
        name: the public function, for errors.
        body: the function that runs in each iteration.
        init: the first carry, a pytree.
        others: the other arguments of ``body``.
        carry_of: extracts the structure of the next carry from the traced body.
        types_of_others: the types of the leaves of ``others`` inside of ``body``.
        paths: names of the leaves of the carry, for errors; by default, their paths.
    """
    check_arrays(name, "the first carry", init)
    leaves, structure = tree.flatten(init)
    types = [plain_type(x) for x in leaves]
    # The body's result may widen the type of a carry, and a wider carry may widen the
    # result. Each type widens at most twice, so this ends.
    while True:
        closed = close(body, (init, *others), [*types, *types_of_others])
        returned = carry_of(closed)
        if returned != structure:
            raise ArgumentError(
                f"{name}: {described(body)} returned a carry of structure "
                f"{tree.text_of(returned)}, but was given {tree.text_of(structure)}; "
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
    traced = Closed(body, program, closed.captured, closed.out_tree)
    return Carried(traced, converted)


def _carry_type(given: ArrayType, result: ArrayType) -> ArrayType:
    """Return the next candidate for the type of a carry.

    The carry enters the body as ``given``, and the body returns ``result``. A Python
    number (a weak type) takes the dtype of the result. A carry that varies along a mesh
    axis on one side varies on both. Shapes never change: ``_check_kept`` reports other
    shapes.
    """
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
    """Raise an error unless the results of a body have the carry's ``types``.

    A Python number may be returned for a carry whose dtype can hold it. ``paths`` name
    the leaves of the carry. ``name`` is the public function. Raises ShapeError if any
    shape differs, else DTypeError.
    """
    problems: list[str] = []
    error: type[ArrayfnError] = DTypeError
    for k, (wanted, returned) in enumerate(
        zip(types, closed.out_types[: len(types)], strict=True)
    ):
        if wanted.shape == returned.shape and (wanted.dtype == returned.dtype):
            continue
        # A Python number takes the dtype of the carry, but True is no number.
        fits = returned.dtype != dtypes.bool_ or wanted.dtype == dtypes.bool_
        if returned.weak and wanted.shape == returned.shape and fits:
            dtype, _ = dtypes.promote(
                [(wanted.dtype, wanted.weak), (returned.dtype, True)]
            )
            if dtype == wanted.dtype:
                continue
        remedy = (
            f"convert it with .astype({wanted.dtype.name!r}), or begin with "
            f"{dtypes.short_name(returned.dtype)}"
        )
        if wanted.shape != returned.shape:
            error = ShapeError
            remedy = "begin with an array of the shape that is returned"
        where = f"carry{paths[k]}" if paths[k] else "the carry"
        problems.append(
            f"{where} comes in as {wanted} and goes out as {returned}"
            f"{closed.made_at(k)}: {remedy}"
        )
    if problems:
        raise error(
            f"{name}: {described(closed.function)} changes the type of what it "
            f"carries, and the next step could not take it. {'; '.join(problems)}",
            user_location(),
        )


def as_type(leaf: Any, wanted: ArrayType) -> Any:
    """Convert ``leaf``, a Python number or weak value, to the type ``wanted``.

    On a mesh, ``leaf`` is also marked as varying along the axes of ``wanted``.
    """
    current = plain_type(leaf)
    for axis in sorted(wanted.varying - current.varying):
        leaf = pvary(leaf, axis)
    if (current.dtype, current.weak) == (wanted.dtype, wanted.weak):
        return leaf
    if dtypes.is_python_scalar(leaf):
        array = np.asarray(leaf).astype(wanted.dtype)
        return array.item() if wanted.weak else array  # weak: still a Python number
    params = {"dtype": wanted.dtype, **({"weak": True} if wanted.weak else {})}
    return apply(conversion.convert_element_type, leaf, **params)


def renamed(function: Function, inner: Function) -> Function:
    """Return ``inner`` with the name and signature of ``function``, for errors."""
    named = functools.wraps(function)(inner)
    named.__name__ = own_name(function)
    return named
