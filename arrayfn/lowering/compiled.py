"""CompiledProgram: the plain-data result of lowering, all that a runtime needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from arrayfn.dtypes import STORAGE
from arrayfn.ir import ArrayType, Program
from arrayfn.lowering.plan import ExecutionPlan, Kernel, LibraryKernel
from arrayfn.records import frozen


@frozen
class CompiledProgram:
    """A Program lowered for one target: its signature, plan, kernels and constants.

    ``text`` is the Program after the passes, as text. Nothing here refers to the
    tracer, so that it can be saved, and run by a process that never traced. ``once``
    computes constants that depend only on captured arrays.
    """

    name: str
    target: str
    text: str
    input_types: tuple[ArrayType, ...]
    output_types: tuple[ArrayType, ...]
    kernels: tuple[Kernel | LibraryKernel, ...]
    plan: ExecutionPlan
    constants: tuple[np.ndarray[Any, Any], ...]
    once: Once | None = None


@frozen
class Once:
    """A Program that computes constants of another one, before its first call.

    ``program`` has no inputs: it depends only on captured arrays. Its results are the
    constants of the other Program from number ``first`` on, where ``ShapeDtypeStruct``s
    stand for them until then.
    """

    program: CompiledProgram
    first: int


def with_types_of(program: Program, compiled: CompiledProgram) -> CompiledProgram:
    """Give the inputs and outputs of ``compiled`` the dtypes that ``program`` has.

    They differ for storage types, which kernels see as bytes.
    """
    wanted = {"input": program.input_types, "output": program.output_types}
    if not any(t.dtype in STORAGE for types in wanted.values() for t in types):
        return compiled

    def typed(kind: str, index: int, type: ArrayType) -> ArrayType:
        """Return ``type`` with the Program's dtype of input or output ``index``."""
        return replace(type, dtype=wanted[kind][index].dtype)

    def all_typed(kind: str, types: Sequence[ArrayType]) -> tuple[ArrayType, ...]:
        """Return the ``types`` of all inputs, or of all outputs, with these dtypes."""
        return tuple(typed(kind, index, type) for index, type in enumerate(types))

    buffers = tuple(
        replace(b, type=typed(b.kind, b.index, b.type)) if b.kind in wanted else b
        for b in compiled.plan.buffers
    )
    return replace(
        compiled,
        input_types=all_typed("input", compiled.input_types),
        output_types=all_typed("output", compiled.output_types),
        plan=replace(compiled.plan, buffers=buffers),
    )


P = TypeVar("P", bound=CompiledProgram)


def completed(compiled: P, run: Callable[[CompiledProgram], Sequence[Any]]) -> P:
    """Compute the constants in ``compiled.once`` by ``run``, which runs a plan.

    Returns ``compiled`` with these constants, and without ``once``.
    """
    once = compiled.once
    if once is None:
        return compiled
    values = list(compiled.constants)
    results = run(once.program)
    values[once.first : once.first + len(results)] = results
    return replace(compiled, constants=tuple(values), once=None)
