"""Score and mask functions as scalar Programs, whose text a kernel of attention takes.

A text describes a Program of a score (float32), of the indices of batch, head, query
and key (int32), and of the arrays that the functions capture. Its result is the score
that the softmax takes, -inf for a key that is masked. Being text, it is a static
argument of an operator, and equal functions have equal kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes
from arrayfn.ir import Equation, Literal, Program, Var
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.ir.text import format_program, parse_program
from arrayfn.nn.block_masks import (
    MaskFunction,
    ScoreFunction,
    for_each,
    mask_of,
    scores_of,
)
from arrayfn.numpy._operands import Array
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.primitives.base import has_effect
from arrayfn.primitives.table import TABLE
from arrayfn.records import frozen
from arrayfn.tracing import apply_program
from arrayfn.transforms import trace_function
from arrayfn.transforms.dce import dce
from arrayfn.transforms.forward_mode import jvp

INDICES: Final = 4
"""How many of a Program's inputs are indices: batch, head, query and key."""


@frozen
class TracedScores:
    """The text of a Program of scores, and the captured arrays, its last inputs."""

    text: str
    captured: tuple[Array, ...]


def traced_scores(
    score_mod: ScoreFunction | None, mask_mod: MaskFunction | None
) -> TracedScores | None:
    """Trace the two functions as one scalar Program, and return its text.

    The Program maps a score and the indices of batch, head, query and key to the score
    that the softmax takes. What depends only on captured arrays is computed here,
    outside of the Program, and its results are captured instead. Returns None if an
    operator cannot have the functions: a text keeps no rule of ``custom_jvp`` or
    ``custom_vjp`` and no callback, and operators take no arrays of storage types.
    """

    def scored(score: Any, *places: Any) -> Array:
        """Return the score that the softmax takes, -inf where the mask is false."""
        value = score if score_mod is None else scores_of(score_mod, score, *places)
        if mask_mod is not None:
            value = anp.where(mask_of(mask_mod, *places), value, -math.inf)
        return anp.astype(value, dtypes.float32)

    scalars = np.float32(0), *(np.int32(0),) * INDICES
    traced = trace_function(scored, scalars, {}, with_values=False, constants=False)
    if not all(map(_is_plain, traced.program.equations)):
        return None
    known, program = _split(inline_calls(traced.program), len(scalars))
    if any(var.type.dtype in dtypes.STORAGE for var in program.inputs):
        return None
    values = apply_program(known, traced.trace.captured)
    return TracedScores(format_program(program, comments=False), tuple(values))


def _is_plain(equation: Equation) -> bool:
    """Return whether text keeps the meaning of ``equation`` and of Programs inside it.

    Effects and custom rules of differentiation would be lost.
    """
    if has_effect(equation) or equation.primitive.name.startswith("custom_"):
        return False
    return all(_is_plain(eq) for p in equation.subprograms() for eq in p.equations)


def _split(program: Program, scalars: int) -> tuple[Program, Program]:
    """Split ``program`` into what depends only on captured arrays, and the rest.

    The first ``scalars`` inputs are scalars, and the others captured arrays. The first
    Program maps captured arrays to the values that the rest needs. These values are the
    last inputs of the second Program.
    """
    first, captured = program.inputs[:scalars], program.inputs[scalars:]
    varying = set(first)
    # (equations of captured arrays, equations that depend on a scalar)
    by_varies: tuple[list[Equation], list[Equation]] = [], []
    for equation in program.equations:
        varies = not varying.isdisjoint(equation.inputs)
        by_varies[varies].append(equation)
        varying.update(equation.outputs if varies else ())
    of_captured, of_scalars = by_varies
    read = [a for eq in of_scalars for a in eq.inputs] + [*program.outputs]
    needed = tuple(
        dict.fromkeys(a for a in read if isinstance(a, Var) and a not in varying)
    )
    # Dead-code elimination drops equations whose results the rest does not need.
    known = dce(Program("captured", captured, tuple(of_captured), needed))
    inputs = (*first, *needed)
    return known, Program("scores", inputs, tuple(of_scalars), program.outputs)


@lru_cache(maxsize=256)
def program_of(text: str) -> Program:
    """Parse ``text`` to a Program, once for each text."""
    return parse_program(text, TABLE)


@lru_cache(maxsize=256)
def with_slope(text: str) -> str:
    """Return the text of a Program with a second result: the derivative by the score.

    The derivative is the tangent for a tangent 1 of the score, the first input.
    """
    program = program_of(text)
    forward = jvp(program, [number == 0 for number in range(len(program.inputs))])
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = builder.inputs_of(program)
        outputs = builder.inline(forward, [*inputs, Literal(1.0, dtypes.float32)])
        with_derivative = builder.build(outputs)
    return format_program(dce(with_derivative), comments=False)


def scores_at(
    text: str, scores: Array, places: Sequence[Array], captured: Sequence[Array]
) -> Array:
    """Return the first result of the Program ``text`` for each of ``scores``.

    The four index arrays ``places`` (batch, head, query, key) broadcast with the
    scores. ``captured`` are the Program's last inputs.
    """
    return _result_at(text, 0, scores, places, captured)


def slopes_at(
    text: str, scores: Array, places: Sequence[Array], captured: Sequence[Array]
) -> Array:
    """Return the second result of a ``with_slope`` text: the derivative by the score.

    The parameters are those of ``scores_at``.
    """
    return _result_at(text, 1, scores, places, captured)


def _result_at(
    text: str,
    number: int,
    scores: Array,
    places: Sequence[Array],
    captured: Sequence[Array],
) -> Array:
    """Return result ``number`` of the Program ``text`` for each of ``scores``.

    The Program takes a score, its four indices (batch, head, query, key), and the
    arrays ``captured``. The index arrays ``places`` broadcast with the scores.
    """
    program = program_of(text)

    def result(*scalars: Any) -> Any:
        """Return the result for one score and its indices."""
        return apply_program(program, [*scalars, *captured])[number]

    return anp.broadcast_to(for_each(result, scores, *places), scores.shape)


__all__ = [
    "TracedScores",
    "program_of",
    "scores_at",
    "slopes_at",
    "traced_scores",
    "with_slope",
]
