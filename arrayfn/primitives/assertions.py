"""check: a condition that the user asserts, with a message and values to format.

``loops`` has the mapped axes of the call, outermost first: the extent of each, and
which values have it in front. The condition has all of them in front. The reference
raises; ``passes.checks`` turns the equation into a test, whose result the host reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import Formatter
from typing import Any, cast

import numpy as np
from typing_extensions import override

from arrayfn import dtypes
from arrayfn.errors import CheckError, DTypeError
from arrayfn.ir import ArrayType, Atom, Program, Var, walk
from arrayfn.ir.builder import ProgramBuilder, current_builder, rename
from arrayfn.ir.layout import Shape
from arrayfn.primitives import discrete, families, views
from arrayfn.primitives.base import (
    NOT_LINEAR,
    ZERO_TANGENT,
    Array,
    Atoms,
    Batched,
    Composition,
    Dims,
    Primitive,
    Sample,
    primitive_of,
)
from arrayfn.primitives.rules import mapped_axes_first, repeated

Loops = tuple[tuple[int, tuple[bool, ...]], ...]


def failure(
    message: str,
    names: Sequence[str],
    loops: Loops,
    shape: Shape,
    position: int,
    values: Sequence[Any],
) -> str:
    """Return the error text of a failed check: ``message`` with its values inserted.

    Args:
        message: a format string, for ``str.format``.
        names: the keyword of each of ``values`` in ``message``; "" if it is positional.
        loops: the mapped axes of the call, as in the module's docstring.
        shape: the shape of the condition, mapped axes first.
        position: the row-major index of the condition's first False element. The text
            shows the values of the member of the mapped axes that has this element.
        values: the arrays to format, with the mapped axes that ``loops`` says they
            have.

    >>> failure("{0} < {limit}", ("", "limit"), (), (3,), 1, (2.0, 1.0))
    '2.0 < 1.0 (the condition is false at [1])'
    """
    index = tuple(int(k) for k in np.unravel_index(position, shape)) if shape else ()
    member, inside = index[: len(loops)], index[len(loops) :]
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        # Index only the mapped axes that this value has.
        mapped = [flags[number] for _, flags in loops]
        member_index = tuple(k for k, has in zip(member, mapped, strict=True) if has)
        array = np.asarray(value)[member_index]
        shown = array if array.ndim else array.item()
        if name:
            named[name] = shown
        else:
            positional.append(shown)
    text = ValueFormatter().vformat(message, positional, named)
    notes: list[str] = []
    if inside:
        notes.append(f"the condition is false at {list(inside)}")
    if member:
        notes.append(f"for member {', '.join(map(str, member))} of what vmap maps")
    return f"{text} ({', '.join(notes)})" if notes else text


class ValueFormatter(Formatter):
    """Formats the elements of arrays by a format string.

    A value that does not support a format is shown plainly.
    """

    @override
    def format_field(self, value: Any, format_spec: str) -> str:
        """Format ``value`` by ``format_spec``, an array element by element.

        Returns ``str(value)`` if the value does not support ``format_spec``.
        """
        try:
            if isinstance(value, np.ndarray) and format_spec:
                each = {"all": lambda x: format(x, format_spec)}
                return np.array2string(value, formatter=cast(Any, each))
            return format(value, format_spec)
        except (ValueError, TypeError):
            return str(value)


def _types(
    condition: ArrayType,
    *values: ArrayType,
    message: str,
    names: tuple[str, ...],
    loops: Loops,
) -> tuple[ArrayType, ...]:
    """Type rule of check: a bool condition and any values, no outputs.

    ``names`` are the names of the values in ``message``. ``loops`` are the mapped axes
    in front of the condition.
    """
    if condition.dtype != dtypes.bool_:
        raise DTypeError(
            f"check: the condition must be a bool or an array of bools, not {condition}"
        )
    return ()


def _reference(
    condition: Array,
    *values: Array,
    message: str,
    names: tuple[str, ...],
    loops: Loops,
) -> tuple[Any, ...]:
    """Raise CheckError if an element of ``condition`` is False; return no outputs.

    The params are those of ``failure``.
    """
    bad = np.flatnonzero(~np.asarray(condition))
    if bad.size:
        shape, first = np.shape(condition), int(bad[0])
        raise CheckError(failure(message, names, loops, shape, first, values))
    return ()


def _expand(*operands: Atom, **params: Any) -> list[Atom]:
    """Emit nothing: a check whose failure is not reported costs nothing.

    ``passes.checks`` has already replaced the checks whose failures are reported.
    """
    return []


def _batch(
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    message: str,
    names: tuple[str, ...],
    loops: Loops,
) -> Batched:
    """Batching rule: one check of all members, with the mapped axis added to ``loops``.

    The condition gets the mapped axis in front even if only values are mapped.
    """
    condition, *values = mapped_axes_first(inputs, dims)
    if dims[0] is None:
        condition = repeated(axis_size, condition, dim=None)
    mapped = tuple(dim is not None for dim in dims[1:])
    loops = ((axis_size, mapped), *loops)
    check(condition, *values, message=message, names=names, loops=loops)
    return [], []


def _samples() -> Iterable[Sample]:
    """Yield a check that holds, with two float32 values to format, for table tests."""
    x = families.random_array(dtypes.float32, (3, 4), 73)
    params = {"message": "{x} is not {y}", "names": ("x", "y"), "loops": ()}
    condition = np.ones((2,), np.bool_)
    yield Sample((condition, x, x[0]), params, differentiate=())


check = Primitive(
    name="check",
    family="callback",
    types=_types,
    reference=_reference,
    kernel=Composition(_expand),
    jvp=ZERO_TANGENT,
    transpose=NOT_LINEAR,
    batch=_batch,
    samples=_samples,
    doc="Raises an error with a message unless a condition is true.",
    effect=True,
)


def has_check(program: Program) -> bool:
    """Whether ``program``, or a Program inside it, has a check."""
    return any(equation.primitive is check for equation in walk(program.equations))


# Branches that are computed though they are not taken.


def only_if(program: Program) -> Program:
    """Return ``program`` with a further first input, a bool scalar that enables checks.

    If the bool is False, no check fails, except checks in functions with custom rules,
    which ignore it.
    """
    builder = ProgramBuilder(program.name)
    with builder:
        active = builder.input(ArrayType((), dtypes.bool_), "active")
        environment = builder.bind_inputs(program, builder.inputs_of(program))
        _emit_if(program, environment, active)
    return builder.build([rename(a, environment) for a in program.outputs])


def _emit_if(program: Program, environment: dict[Var, Atom], active: Atom) -> None:
    """Emit the equations of ``program``, with checks that can fail only if ``active``.

    The condition of each check becomes ``condition | ~active``. ``active``, a bool
    scalar, is passed on to the Programs of operator calls, branches and loops.
    ``environment`` maps Vars of ``program`` to Atoms of the current builder. On entry
    it has the inputs of ``program``; the outputs of all equations are added.
    """
    builder = current_builder()
    for equation in program.equations:
        builder.source = equation.source
        primitive, params = primitive_of(equation), dict(equation.params)
        operands = [rename(a, environment) for a in equation.inputs]
        if primitive is check:
            inactive = discrete.bitwise_not(active)
            shape = operands[0].type.shape
            if shape:
                inactive = views.broadcast_in_dim(inactive, shape=shape, axes=())
            operands[0] = discrete.bitwise_or(operands[0], inactive)
        elif not any(map(has_check, equation.subprograms())):
            builder.replay(equation, environment)
            continue
        elif primitive.name == "operator_call":
            body: Program = params["body"]
            inner = builder.bind_inputs(body, operands)
            _emit_if(body, inner, active)
            results = [rename(a, inner) for a in body.outputs]
            environment.update(zip(equation.outputs, results, strict=True))
            continue
        elif primitive.name == "cond":
            params["branches"] = tuple(map(only_if, params["branches"]))
            operands = [operands[0], active, *operands[1:]]
        elif primitive.name == "scan":
            params["program"] = only_if(params["program"])
            params["consts"] += 1
            operands = [active, *operands]
        elif primitive.name == "while_loop":
            # Operands: the condition's constants, the body's, the carry.
            first: int = params["cond_consts"]
            operands = [active, *operands[:first], active, *operands[first:]]
            for part in ("cond", "body"):
                params[f"{part}_program"] = only_if(params[f"{part}_program"])
                params[f"{part}_consts"] += 1
        outputs = builder.emit(primitive, operands, params)
        environment.update(zip(equation.outputs, outputs, strict=True))
