"""Helpers of the tests on Programs: build, evaluate, differentiate numerically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Program, type_of
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.primitives.calls import evaluate
from arrayfn.transforms.batching import batch
from arrayfn.transforms.forward_mode import jvp
from arrayfn.transforms.transposition import vjp

Array = np.ndarray[Any, Any]
MAPPED = 3  # the extent of mapped axes in check_mapped


def build(
    emit: Callable[..., Any], *types: ArrayType, name: str = "program"
) -> Program:
    """The Program of ``emit``, called with Vars of ``types``."""
    builder = ProgramBuilder(name)
    with builder:
        outputs = emit(*[builder.input(t) for t in types])
    return builder.build(outputs if isinstance(outputs, (tuple, list)) else [outputs])


def inexact(program: Program) -> list[bool]:
    """Which inputs of ``program`` have an inexact dtype."""
    return [t.dtype in dtypes.INEXACT for t in program.input_types]


def noise(rng: np.random.Generator, like: ArrayType) -> Array:
    """Normal noise of a type, complex if that is."""
    value = rng.standard_normal(like.shape)
    if like.dtype in dtypes.COMPLEX:
        value = value + 1j * rng.standard_normal(like.shape)
    return np.asarray(value).astype(like.dtype)


def inner(xs: Sequence[Array], ys: Sequence[Array]) -> float:
    """The pairing that transposition keeps: the real part, without conjugation."""
    return float(sum(np.real(np.sum(x * y)) for x, y in zip(xs, ys, strict=True)))


def directional(
    program: Program,
    arguments: Sequence[Array],
    directions: Sequence[Array | None],
    step: float = 1e-5,
) -> list[Array]:
    """The derivative of the outputs along ``directions``, by central differences."""

    def at(distance: float) -> list[Any]:
        moved = [
            x if d is None else x + distance * d
            for x, d in zip(arguments, directions, strict=True)
        ]
        return evaluate(program, [np.asarray(m) for m in moved])

    return [
        (np.asarray(ahead) - np.asarray(behind)) / (2 * step)
        if np.asarray(ahead).dtype in dtypes.INEXACT
        else np.zeros(np.shape(ahead), np.asarray(ahead).dtype)
        for ahead, behind in zip(at(step), at(-step), strict=True)
    ]


def check_derivatives(
    program: Program,
    arguments: Sequence[Array],
    wrt: Sequence[bool],
    *,
    forward: bool = True,
    rtol: float = 2e-6,
    atol: float = 2e-7,
    seed: int = 0,
) -> None:
    """Assert that jvp and vjp agree with finite differences along random directions.

    ``arguments`` are float64 or complex128 where ``wrt`` is true.
    """
    rng = np.random.default_rng(seed)
    types = program.input_types
    directions = [noise(rng, t) if w else None for t, w in zip(types, wrt, strict=True)]
    given = [d for d in directions if d is not None]
    expected = directional(program, arguments, directions)
    count = len(program.outputs)
    if forward:
        results = evaluate(jvp(program, wrt), [*arguments, *given])
        for have, want, type in zip(
            results[count:], expected, program.output_types, strict=True
        ):
            assert np.shape(have) == type.shape
            assert np.asarray(have).dtype == type.dtype
            np.testing.assert_allclose(have, want, rtol, atol)
    cotangents = [
        noise(rng, t) if t.dtype in dtypes.INEXACT else np.zeros(t.shape, t.dtype)
        for t in program.output_types
    ]
    results = evaluate(vjp(program, wrt), [*arguments, *cotangents])[count:]
    for have, x in zip(
        results, [x for x, w in zip(arguments, wrt, strict=True) if w], strict=True
    ):
        assert type_of(np.asarray(have)).shape == np.shape(x)
        assert np.asarray(have).dtype == np.asarray(x).dtype
    scale = 1.0 + sum(
        float(np.sum(np.abs(c * e))) for c, e in zip(cotangents, expected, strict=True)
    )
    assert abs(inner(results, given) - inner(cotangents, expected)) <= rtol * scale


def variants(x: Any) -> list[Any]:
    """MAPPED arrays of the type of ``x``, with values from its domain."""
    if x.ndim:
        return [np.roll(x.reshape(-1), k).reshape(x.shape) for k in range(MAPPED)]
    if x.dtype == dtypes.bool_:
        return [x, ~x, x]
    if x.dtype in dtypes.INTEGERS:
        return [x, np.maximum(x, 1) - np.ones_like(x), x]
    return [x, (x * x.dtype.type(0.75)).astype(x.dtype), x]


def tolerance(dtype: Any) -> float:
    if dtype in (dtypes.float64, dtypes.complex128):
        return 1e-12
    if dtype in dtypes.HALF_PRECISION:
        return 2e-2
    return 1e-5 if dtype in dtypes.INEXACT else 0.0


def check_mapped(program: Program, arguments: list[Any]) -> None:
    """Assert that batching is a loop, for several choices of the mapped axes."""
    count = len(arguments)
    last = [x.ndim for x in arguments]
    choices = [[0] * count, last]
    choices += [[min(1, n) for n in last]] if any(n > 1 for n in last) else []
    if count > 1:
        choices += [[0 if j == k else None for j in range(count)] for k in range(count)]
        choices += [[None, *last[1:]]]
    lists = [variants(x) for x in arguments]
    for dims in choices:
        given = [
            x if dim is None else np.stack(values, dim)
            for x, values, dim in zip(arguments, lists, dims, strict=True)
        ]
        mapped = batch(program, MAPPED, dims, [0] * len(program.outputs))
        mapped.check()
        results = evaluate(mapped, given)
        rounds = [
            evaluate(
                program,
                [
                    x if dim is None else values[k]
                    for x, values, dim in zip(arguments, lists, dims, strict=True)
                ],
            )
            for k in range(MAPPED)
        ]
        for position, have in enumerate(results):
            want = np.stack([np.asarray(r[position]) for r in rounds])
            have = np.asarray(have)
            assert have.dtype == want.dtype
            assert have.shape == want.shape
            if have.dtype in dtypes.HALF_PRECISION:
                have, want = have.astype(np.float32), want.astype(np.float32)
                np.testing.assert_allclose(have, want, 2e-2, 2e-2)
            else:
                bound = tolerance(have.dtype)
                np.testing.assert_allclose(have, want, bound, bound)
