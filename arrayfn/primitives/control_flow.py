"""Branches and loops: primitives that run Programs.

``cond`` runs one of several Programs, ``scan`` runs one for each slice of its operands,
and ``while_loop`` runs one while another returns True. The Programs have no constants:
captured values are operands. This module has the type rules and the NumPy references.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom, Equation, Program, Var, joined_variance
from arrayfn.ir.builder import ProgramBuilder, current_builder
from arrayfn.primitives.base import Array, Atoms, Dims, Primitive, needed
from arrayfn.primitives.calls import evaluate
from arrayfn.primitives.rules import all_mapped, mapped_axes_first
from arrayfn.records import frozen

T = TypeVar("T")
Interpret = Callable[[Program, Sequence[Any]], list[Any]]
"""Interprets the Programs inside: ``evaluate``, or a function that counts steps."""

# The transformations that rules are given; see arrayfn.transforms.


class Jvp(Protocol):
    """The jvp transformation of a Program.

    The result takes the inputs and the tangents of those marked in ``wrt``. It returns
    the outputs and the tangents of those that vary, or are marked in ``dense``. The
    flags say for which outputs it returns a tangent.
    """

    def __call__(
        self, program: Program, wrt: Sequence[bool], dense: Sequence[bool], /
    ) -> tuple[Program, list[bool]]:
        """Return the jvp of ``program``, and which outputs have a tangent.

        ``wrt`` marks the inputs that have a tangent, and ``dense`` the outputs that get
        one in any case: zeros, if they do not vary.
        """
        ...


class Batch(Protocol):
    """The batching transformation of a Program over an axis of ``axis_size``.

    Inputs marked in ``mapped`` have the mapped axis in front. So have the outputs that
    depend on them, and those marked in ``dense``. The flags say which outputs have it.
    """

    def __call__(
        self,
        program: Program,
        axis_size: int,
        mapped: Sequence[bool],
        dense: Sequence[bool],
        /,
    ) -> tuple[Program, list[bool]]:
        """Return the mapped ``program``, and which outputs are mapped."""
        ...


class Transpose(Protocol):
    """The transposition of ``program``, linear in the inputs marked in ``linear``.

    The result takes the other inputs, and cotangents of the outputs marked in
    ``has_cotangent``. It returns the cotangents of linear inputs that are not zero, and
    those marked in ``dense``. The flags say which of them it returns.
    """

    def __call__(
        self,
        program: Program,
        linear: Sequence[bool],
        has_cotangent: Sequence[bool],
        dense: Sequence[bool],
        /,
    ) -> tuple[Program, list[bool]]:
        """Return the transpose of ``program``, and which cotangents it returns."""
        ...


@frozen
class Parts:
    """A Program split by whether equations depend on its unknown inputs.

    known:  known inputs -> known outputs, residuals
    linear: residuals, unknown inputs -> unknown outputs

    ``unknown`` marks the unknown outputs; ``residuals`` is the number of residuals,
    each of which is one Var in both parts.
    """

    known: Program
    linear: Program
    unknown: list[bool]
    residuals: int

    @property
    def residual_outputs(self) -> Atoms:
        """The outputs of ``known`` that are residuals: the last ones."""
        return self.known.outputs[len(self.known.outputs) - self.residuals :]


class Split(Protocol):
    """The transformation that splits a Program by its unknown inputs.

    ``unknown`` marks the unknown inputs. Outputs marked in ``linear_outputs`` count as
    unknown even if they depend on known inputs only.
    """

    def __call__(
        self,
        program: Program,
        unknown: Sequence[bool],
        linear_outputs: Sequence[bool],
        /,
    ) -> Parts:
        """Return the known and the linear part of ``program``.

        ``unknown`` has a flag for each input, and ``linear_outputs`` for each output.
        """
        ...


# Programs and equations.


def selected(items: Iterable[T], chosen: Iterable[Any]) -> list[T]:
    """Return the items whose flag in ``chosen`` is true."""
    return list(compress(items, chosen))


def unselected(items: Iterable[T], excluded: Iterable[Any]) -> list[T]:
    """Return the items whose flag in ``excluded`` is false."""
    return [x for x, out in zip(items, excluded, strict=True) if not out]


def elementwise_or(*flags: Iterable[bool]) -> list[bool]:
    """Return the elementwise "or" of several lists of flags, of equal lengths."""
    return [any(at) for at in zip(*flags, strict=True)]


def split_by_counts(items: Sequence[T], *counts: int) -> list[list[T]]:
    """Cut ``items`` into lists of the lengths ``counts``, and a last list of the rest.

    >>> split_by_counts("abcde", 1, 2)
    [['a'], ['b', 'c'], ['d', 'e']]
    """
    pieces: list[list[T]] = []
    begin = 0
    for count in counts:
        pieces.append(list(items[begin : begin + count]))
        begin += count
    return [*pieces, list(items[begin:])]


def agreeing(
    branches: Sequence[Program],
    count: int,
    transform: Callable[[Program, list[bool]], tuple[T, list[bool]]],
) -> tuple[list[T], list[bool]]:
    """Transform the branches of a cond so that all return the same results.

    ``transform(branch, dense)`` returns the transformed branch, and a flag for each of
    ``count`` results that says whether the result exists: whether it has a tangent, is
    mapped, or is unknown. Results marked in ``dense`` exist in any case.

    A result exists in all branches if it exists in one. Returns the transformed
    branches and the flags that they agree on.
    """
    independent = [transform(branch, [False] * count) for branch in branches]
    exists = elementwise_or(*(flags for _, flags in independent))
    return [
        result if flags == exists else transform(branch, exists)[0]
        for branch, (result, flags) in zip(branches, independent, strict=True)
    ], exists


def fixed_point(
    transform: Callable[[list[bool]], tuple[T, list[bool]]], carry: list[bool]
) -> tuple[T, list[bool]]:
    """Transform a loop's body for flags of its carry that an iteration preserves.

    A flag says whether an array of the carry varies, is mapped or is unknown.
    ``transform(flags)`` transforms the body for a carry with these flags. It returns
    the transformed body and the flags of the body's outputs, of which the first belong
    to the carry; it only ever sets flags.

    Starts with the flags ``carry`` of the initial carry, and repeats until the flags of
    the outputs equal those of the inputs. Returns the last result of ``transform``.
    """
    while True:
        result, flags = transform(carry)
        if flags[: len(carry)] == carry:
            return result, flags
        carry = flags[: len(carry)]


def arranged(program: Program, inputs: Sequence[Var], outputs: Atoms) -> Program:
    """Return a Program of the equations of ``program`` with other inputs and outputs.

    ``inputs`` and ``outputs`` are Vars and Atoms of ``program``, in any order.
    """
    return Program(program.name, tuple(inputs), program.equations, tuple(outputs))


def equation(
    primitive: Primitive,
    inputs: Atoms,
    params: dict[str, Any],
    outputs: Sequence[Var],
    like: Equation,
) -> Equation:
    """Make an Equation that defines ``outputs``, with the source line of ``like``."""
    frozen_params = MappingProxyType(params)
    return Equation(
        primitive, tuple(inputs), frozen_params, tuple(outputs), like.source
    )


def building(like: Equation) -> ProgramBuilder:
    """Return a builder for equations that get the source line of ``like``."""
    builder = ProgramBuilder(like.primitive.name)
    builder.source = like.source
    return builder


def mapped_with_constants(
    batch: Batch, axis_size: int, inputs: Atoms, dims: Dims, consts: int
) -> tuple[list[Atom], Callable[[Program], Program]]:
    """Map a call whose first ``consts`` operands are constants of its Programs.

    Returns the operands, of which all but constants are mapped, by repetition if they
    were not; and a function that maps a Program of the call, and all its results.
    """
    constants = mapped_axes_first(inputs[:consts], dims[:consts])
    others = all_mapped(axis_size, inputs[consts:], dims[consts:])
    varies = [dim is not None for dim in dims[:consts]]

    def mapped(program: Program) -> Program:
        """Map ``program`` by the mapped constants and all other inputs."""
        wanted = [*varies, *[True] * (len(program.inputs) - consts)]
        return batch(program, axis_size, wanted, [True] * len(program.outputs))[0]

    return [*constants, *others], mapped


def check_types(
    what: str, types: Sequence[ArrayType], wanted_types: Sequence[ArrayType]
) -> None:
    """Raise unless ``types`` equal ``wanted_types`` in shapes, dtypes and order.

    ``what`` says what has the types, at the beginning of the error message. Raises
    DTypeError if only dtypes differ, else ShapeError.
    """
    actual = [(t.shape, t.dtype) for t in types]
    wanted = [(t.shape, t.dtype) for t in wanted_types]
    if actual == wanted:
        return
    shapes_agree = [shape for shape, _ in actual] == [shape for shape, _ in wanted]
    raise (DTypeError if shapes_agree else ShapeError)(
        f"{what}: ({', '.join(map(str, types))}), "
        f"not ({', '.join(map(str, wanted_types))})"
    )


def check_closed(name: str, *programs: Program) -> None:
    """Raise ArgumentError if one of ``programs`` has captured constants."""
    for program in programs:
        if program.constants:
            raise ArgumentError(
                f"{name}: {program.name} has constants; what it closes over is given "
                "as an operand"
            )


def _arrays(results: Sequence[Any]) -> list[Array]:
    """Convert each of ``results`` to an array."""
    return [np.asarray(x) for x in results]


def built(
    name: str, emit: Callable[..., Sequence[Atom]], types: Sequence[ArrayType]
) -> Program:
    """Build a Program called ``name`` with inputs of ``types``.

    ``emit`` is called with the input Vars. It emits the equations and returns the
    outputs.
    """
    builder = ProgramBuilder(name)
    with builder:
        inputs = [builder.input(t.plain()) for t in types]
        return builder.build(emit(*inputs))


def emitted(program: Program, operands: Sequence[Atom]) -> list[Atom]:
    """Emit ``program`` on ``operands`` into the current builder; return its outputs."""
    return current_builder().inline(program, operands)


def pruned(
    program: Program, outputs: Atoms, *, effects: bool = False
) -> tuple[Program, set[Atom]]:
    """Return ``program`` with other ``outputs``, and the set of all Atoms it reads.

    Only the equations that the outputs need remain. With ``effects``, equations with
    side effects remain too.
    """
    remaining = needed(program.equations, outputs, effects=effects)
    live = {*outputs, *(a for equation in remaining for a in equation.inputs)}
    new_outputs = tuple(outputs)
    return Program(program.name, program.inputs, tuple(remaining), new_outputs), live


# cond


def cond_types(
    index: ArrayType, *operands: ArrayType, branches: tuple[Program, ...]
) -> tuple[ArrayType, ...]:
    """Type rule of cond: the result types of the branches, which must agree.

    ``index`` is an int32 scalar. A result has a weak type if it has one in all
    branches. It varies along the mesh axes along which ``index`` or the result of any
    branch varies.
    """
    check_closed("cond", *branches)
    if index.shape or index.dtype != dtypes.int32:
        raise DTypeError(f"cond: the index is i32[], not {index}")
    if not branches:
        raise ArgumentError("cond: there is no branch to choose")
    results = branches[0].output_types
    for branch in branches:
        check_types(f"cond: operands of {branch.name}", operands, branch.input_types)
        check_types(f"cond: results of {branch.name}", branch.output_types, results)
    return tuple(
        ArrayType(
            t.shape,
            t.dtype,
            weak=all(b.output_types[k].weak for b in branches),
            varying=joined_variance([index, *(b.output_types[k] for b in branches)]),
        )
        for k, t in enumerate(results)
    )


def cond_reference(
    index: Array,
    *operands: Array,
    branches: tuple[Program, ...],
    run: Interpret = evaluate,
) -> tuple[Array, ...]:
    """Return the results of branch number ``index``, clamped to the last branch.

    ``run`` interprets the branch's Program.
    """
    chosen = min(max(int(index), 0), len(branches) - 1)
    return tuple(_arrays(run(branches[chosen], _arrays(operands))))


# while_loop


def while_types(
    *operands: ArrayType,
    cond_program: Program,
    body_program: Program,
    cond_consts: int,
    body_consts: int,
) -> tuple[ArrayType, ...]:
    """Type rule of while_loop: the types of the carry, which the body must preserve.

    The operands are ``cond_consts`` constants for the condition, ``body_consts``
    constants for the body, and the carry.
    """
    check_closed("while_loop", cond_program, body_program)
    first, second = cond_consts, cond_consts + body_consts
    carry = operands[second:]
    for_cond = (*operands[:first], *carry)
    for_body = (*operands[first:second], *carry)
    check_types("while_loop: operands of cond", for_cond, cond_program.input_types)
    check_types("while_loop: operands of body", for_body, body_program.input_types)
    check_types("while_loop: results of body", body_program.output_types, carry)
    predicate = (ArrayType((), dtypes.bool_),)
    check_types("while_loop: result of cond", cond_program.output_types, predicate)
    (goes_on,) = cond_program.output_types
    return tuple(
        t.plain().with_varying(t.varying | c.varying | goes_on.varying)
        for t, c in zip(body_program.output_types, carry, strict=True)
    )


def while_reference(*operands: Array, **params: Any) -> tuple[Array, ...]:
    """Run the body on the carry while the condition holds; return the last carry."""
    return limited_while(*operands, **params)[0]


def limited_while(
    *operands: Array,
    cond_program: Program,
    body_program: Program,
    cond_consts: int,
    body_consts: int,
    limit: float = math.inf,
    run: Interpret = evaluate,
    watch: Callable[[list[Array]], None] = lambda carry: None,
) -> tuple[tuple[Array, ...], int]:
    """Interpret a while_loop for at most ``limit`` iterations.

    The operands are constants of the condition, constants of the body, and the carry;
    ``cond_consts`` and ``body_consts`` are the numbers of constants. ``run`` interprets
    a Program. ``watch`` is called with the initial carry, and with the carry after each
    iteration. Returns the final carry and the number of iterations.
    """
    second = cond_consts + body_consts
    values = _arrays(operands)
    for_cond, for_body = values[:cond_consts], values[cond_consts:second]
    carry = values[second:]
    count = 0
    watch(carry)
    while count < limit and run(cond_program, [*for_cond, *carry])[0]:
        carry = _arrays(run(body_program, [*for_body, *carry]))
        watch(carry)
        count += 1
    return tuple(carry), count


# scan


def scan_types(
    *operands: ArrayType,
    program: Program,
    length: int,
    reverse: bool,
    consts: int,
    carry: int,
    unroll: int,
) -> tuple[ArrayType, ...]:
    """Type rule of scan: the types of the carry, and of the stacked results.

    Args:
        operands: the constants, the initial carry, and arrays to slice along axis 0.
        program: the body. It takes constants, carry and slices; it returns carry and
            results.
        length: the number of iterations, the extent of axis 0 of the sliced arrays.
        reverse: whether iterations run from the last slice to the first.
        consts: the number of constants.
        carry: the number of arrays of the carry.
        unroll: the number of iterations to compile in a row. With 0, no pass rewrites
            the loop because of its length, or moves equations out of it.
    """
    check_closed("scan", program)
    if length < 0 or unroll < 0:
        raise ArgumentError(f"scan: length is {length}, unroll is {unroll}")
    state, xs = operands[consts : consts + carry], operands[consts + carry :]
    for x in xs:
        if not x.shape or x.shape[0] != length:
            raise ShapeError(f"scan: {x} is not scanned in {length} steps")
    slices = [x.with_shape(x.shape[1:]) for x in xs]
    inputs = (*operands[:consts], *state, *slices)
    check_types(f"scan: operands of {program.name}", inputs, program.input_types)
    check_types("scan: the carry", program.output_types[:carry], state)
    return (
        *(
            t.plain().with_varying(t.varying | c.varying)
            for t, c in zip(program.output_types, state, strict=False)
        ),
        *(
            t.with_shape((length, *t.shape)).with_varying(t.varying)
            for t in program.output_types[carry:]
        ),
    )


def scan_reference(
    *operands: Array,
    program: Program,
    length: int,
    reverse: bool,
    consts: int,
    carry: int,
    unroll: int,
    run: Interpret = evaluate,
) -> tuple[Array, ...]:
    """Return the final carry, and the results stacked over iterations.

    Params are as in ``scan_types``; ``run`` interprets the body.
    """
    fixed, state, xs = split_by_counts(_arrays(operands), consts, carry)
    ys = [np.zeros((length, *t.shape), t.dtype) for t in program.output_types[carry:]]
    for step in reversed(range(length)) if reverse else range(length):
        results = run(program, [*fixed, *state, *[x[step] for x in xs]])
        state = _arrays(results[:carry])
        for y, value in zip(ys, results[carry:], strict=True):
            y[step] = value
    return (*state, *ys)
