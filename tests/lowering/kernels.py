"""Helpers of the tests on kernels: one Program run three ways, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu.executable import bind
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.ir import ArrayType, Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.lower import lower
from arrayfn.lowering.plan import Kernel
from arrayfn.primitives.base import Tolerance
from arrayfn.primitives.calls import evaluate
from arrayfn.tools.oracle import oracle

Array = np.ndarray[Any, Any]

EXACT = Tolerance(0.0, 0.0)
_HALF_ULP = {dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7}


def run_compiled(compiled: CompiledProgram, inputs: Sequence[Array]) -> list[Array]:
    """The outputs, from compiled kernels."""
    executable = bind(compiled.plan, compiled.kernels, compiled.constants)
    return list(executable(tuple(inputs)))


def check_kernels(
    program: Program,
    inputs: Sequence[Array],
    tolerance: Tolerance = EXACT,
    labels: Sequence[str] = (),
    *,
    jit: bool = True,
    judge: bool = False,
) -> CompiledProgram:
    """Assert that the reference, the un-jitted and the compiled kernels agree.

    With ``judge`` inexact results are compared with those in float64, by the bounds of
    their errors, instead.
    """
    wanted = evaluate(program, inputs)
    judged = oracle(program, inputs) if judge else []
    compiled = lower(program, check=True)
    runs = {"un-jitted": run_unjitted(compiled, inputs)}
    if jit:
        runs["compiled"] = run_compiled(compiled, inputs)
    for how, results in runs.items():
        assert len(results) == len(wanted)
        for k, (have, want) in enumerate(zip(results, wanted, strict=True)):
            label = labels[k] if labels else f"output {k}"
            if judged and have.dtype in dtypes.INEXACT:
                judged[k].check(have, f"{label}, {how}")
                continue
            assert_near(have, want, tolerance, f"{label}, {how}")
    return compiled


def assert_near(have: Array, want: Any, tolerance: Tolerance, label: str) -> None:
    """Shape and dtype are equal; so are exact values; inexact ones are near."""
    want = np.asarray(want)
    assert (have.shape, have.dtype) == (want.shape, want.dtype), label
    if want.dtype not in dtypes.INEXACT or tolerance == EXACT:
        wide = dtypes.compute_dtype(want.dtype)
        wide = dtypes.float32 if want.dtype in dtypes.FLOAT8 else wide
        np.testing.assert_array_equal(have.astype(wide), want.astype(wide), label)
        return
    real = dtypes.compute_dtype(dtypes.real_of(want.dtype))
    rtol = tolerance.float32 if real == dtypes.float32 else tolerance.float64
    rtol = max(rtol, _HALF_ULP.get(want.dtype, 0.0))
    wide = np.complex128 if want.dtype in dtypes.COMPLEX else np.float64
    want = want.astype(wide)
    scale = np.abs(want[np.isfinite(want)]).max(initial=0.0)
    np.testing.assert_allclose(
        have.astype(wide), want, rtol, rtol * scale, err_msg=label
    )


def laid_out(x: Array, type: ArrayType) -> Array:
    """``x`` as an array that lies as ``type`` says (where strides are 0, its first)."""
    steps = type.layout.strides(type.shape)
    ends = [(n - 1) * step for n, step in zip(type.shape, steps, strict=True)]
    before, after = (sum(f(end, 0) for end in ends) for f in (min, max))
    memory = np.zeros(after - before + 1 if type.size else 0, type.dtype)
    strides = [step * type.dtype.itemsize for step in steps]
    view = np.lib.stride_tricks.as_strided(memory[-before:], type.shape, strides)
    repeated = tuple(slice(0, 1) if step == 0 else slice(None) for step in steps)
    view[repeated] = x[repeated]
    return view


def sources(compiled: CompiledProgram) -> list[str]:
    """The sources of its generated kernels."""
    return [k.source for k in compiled.kernels if isinstance(k, Kernel)]


def keys(compiled: CompiledProgram) -> set[str]:
    """The keys of its generated kernels: what is compiled."""
    return {k.key for k in compiled.kernels if isinstance(k, Kernel)}
