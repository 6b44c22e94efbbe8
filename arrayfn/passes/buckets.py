"""Buckets: small sums over the same axis of the mesh, joined into one collective.

A collective takes some time however small it is; a model has many small parameters,
whose gradients are summed one by one. Sums that do not depend on each other wait for
the first use of one of them, and are then one ``all_reduce`` of one array. Values do
not change: members are added element by element, in their order.
``a = all_reduce(x); b = all_reduce(y)`` of two vectors becomes
``s = all_reduce(concatenate(x, y)); a = s[:n]; b = s[n:]``.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

from arrayfn.ir import Atom, Equation, Program, Var, with_programs
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.primitives import views
from arrayfn.primitives.collectives import all_reduce
from arrayfn.primitives.slicing import concatenate, slice_along
from arrayfn.records import record

SMALL_BYTES: Final = 1 << 18  # the size of the largest array that goes into a bucket
BUCKET_BYTES: Final = 1 << 22  # the size from which a bucket is summed at once

Key = tuple[object, ...]
"""The axis, the operation and the dtype of sums that may share a bucket."""


@record
class _Bucket:
    """Sums that are not emitted yet, with their operands in the new Program.

    ``nbytes`` is the size of all operands.
    """

    nbytes: int = 0
    sums: list[tuple[Equation, Atom]] = field(default_factory=list)


def with_buckets(program: Program) -> Program:
    """Join small sums over the members of a mesh axis into fewer collectives.

    ``program`` is that of one device.
    """
    if not any(_is_small(e) or e.subprograms() for e in program.equations):
        return program
    builder = ProgramBuilder(program.name)
    with builder:
        emitter = _BucketEmitter(builder, program)
        for equation in program.equations:
            emitter.visit(equation)
        for key in list(emitter.buckets):
            emitter.close(key)
    return builder.build([rename(a, emitter.environment) for a in program.outputs])


class _BucketEmitter:
    """Emits the new Program; small sums are collected in buckets.

    Attributes:
        environment: the new Atom of each Var of the old Program.
        buckets: the buckets that are open.
        waiting: the bucket in which the sum that makes a Var waits.
    """

    def __init__(self, builder: ProgramBuilder, program: Program) -> None:
        self.builder = builder
        self.environment = builder.bind_inputs(program, builder.inputs_of(program))
        self.buckets: dict[Key, _Bucket] = {}
        self.waiting: dict[Var, Key] = {}

    def visit(self, equation: Equation) -> None:
        """Emit ``equation``, or put it into a bucket if it is a small sum over members.

        One collective later computes the sums of a bucket. It is emitted before the
        first equation that reads one of them.
        """
        # An operand that waits in a bucket is needed now.
        needed = [self.waiting[a] for a in equation.inputs if a in self.waiting]
        for key in dict.fromkeys(needed):
            self.close(key)
        operands = [rename(a, self.environment) for a in equation.inputs]
        if _is_small(equation):
            (x,) = operands
            params = equation.params
            key = params["axis_name"], params["op"], x.type.dtype
            bucket = self.buckets.setdefault(key, _Bucket())
            bucket.sums.append((equation, x))
            bucket.nbytes += x.type.nbytes
            self.waiting[equation.outputs[0]] = key
            if bucket.nbytes >= BUCKET_BYTES:
                self.close(key)
            return
        self.builder.source = equation.source
        if equation.subprograms():
            params = with_programs(equation.params, with_buckets)
            results = self.builder.emit(equation.primitive, operands, params)
        else:
            results = self.builder.keep(equation, operands)
        self.environment.update(zip(equation.outputs, results, strict=True))

    def close(self, key: Key) -> None:
        """Remove the bucket of ``key``, if any, and emit its sums as one collective."""
        bucket = self.buckets.pop(key, None)
        if bucket is None:
            return
        equations = [equation for equation, _ in bucket.sums]
        self.builder.source = equations[0].source
        results = _joined([x for _, x in bucket.sums], equations[0])
        for equation, result in zip(equations, results, strict=True):
            (output,) = equation.outputs
            self.environment[output] = result
            del self.waiting[output]


def _is_small(equation: Equation) -> bool:
    """Whether ``equation`` is an ``all_reduce`` small enough to go into a bucket."""
    is_sum = equation.primitive is all_reduce
    return is_sum and 0 < equation.inputs[0].type.nbytes <= SMALL_BYTES


def _joined(operands: list[Atom], equation: Equation) -> list[Atom]:
    """Emit one collective for the sums of all ``operands``; return the sums.

    The collective has the params of ``equation``. The operands are concatenated, and
    the result is cut at the same places.
    """
    if len(operands) == 1:
        return [all_reduce(operands[0], **equation.params)]
    flat = [views.reshape(x, shape=(x.type.size,)) for x in operands]
    total = all_reduce(concatenate(*flat, axis=0), **equation.params)
    results: list[Atom] = []
    begin = 0
    for x in operands:
        end = begin + x.type.size
        part = slice_along(total, 0, begin, end)
        results.append(views.reshape(part, shape=x.type.shape))
        begin = end
    return results
