"""Runs small plans with checked memory, on random inputs.

Integers among the inputs are valid indices, indices out of bounds, and the minimum or
the maximum of their dtype. Where a plan relies on indices that differ, they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn.errors import VerificationError
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import Kernel, KernelCall, Loop, Step, blocks_of

Array = np.ndarray[Any, Any]

_MAX_ELEMENTS: Final = 2048  # of all arrays of a plan that is run
_MAX_ITERATIONS: Final = 16  # of a loop
_WITH_EFFECTS: Final = ("callback", "collective", "operator", "reference")
"""Prefixes of providers that call Python."""


def is_small(compiled: CompiledProgram, max_threads: int) -> bool:
    """Whether a run of the plan ends soon, and has no side effects.

    It has at most ``max_threads`` threads in all kernel calls together, and few
    elements and iterations. The Program that computes values once, if there is one,
    must be small too.
    """
    if compiled.once is not None and not is_small(compiled.once.program, max_threads):
        return False
    kernels = {k.name: k for k in compiled.kernels}
    for kernel in kernels.values():
        if isinstance(kernel, Kernel):
            if "while " in kernel.source:
                return False  # nobody knows how long that takes
        elif kernel.provider.startswith(_WITH_EFFECTS):
            return False
    elements = sum(b.type.size for b in compiled.plan.buffers)
    if elements > _MAX_ELEMENTS:
        return False
    threads = 0
    for call, iterations in _calls(compiled.plan.steps, 1):
        kernel = kernels[call.kernel]
        if iterations > _MAX_ITERATIONS or call.iterations is None:
            return False
        if isinstance(kernel, Kernel):
            threads += (
                call.items * max(1, kernel.threads) * iterations * call.iterations
            )
    return threads <= max_threads


def _calls(steps: Iterable[Step], iterations: int) -> Iterable[tuple[KernelCall, int]]:
    """Yield (kernel call, how often it runs) for all calls in ``steps``.

    ``iterations`` is how often ``steps`` run. A loop without a known count counts as
    more than _MAX_ITERATIONS.
    """
    for step in steps:
        if isinstance(step, KernelCall):
            yield step, iterations
            continue
        inner = iterations
        if isinstance(step, Loop):
            inner *= _MAX_ITERATIONS + 1 if step.count is None else step.count
        for block in blocks_of(step):
            yield from _calls(block, inner)


def run_checked(
    compiled: CompiledProgram,
    run: Callable[[CompiledProgram, Sequence[Array]], object],
    fault: type[Exception],
    excused: tuple[type[Exception], ...] = (),
) -> bool:
    """Run ``compiled`` on random inputs; return whether a run came to an end.

    Args:
        compiled: the plan.
        run: runs the plan on inputs, with checked memory.
        fault: the exception that ``run`` raises for a wrong plan, such as one that
            accesses elements outside of an array; it becomes a VerificationError.
        excused: exceptions that ``run`` raises for inputs which break a promise of the
            user, such as that indices differ. The plan is then run again, on inputs
            whose integers differ.
    """
    for make_input in (_arbitrary, _distinct):
        random = np.random.default_rng(0)
        inputs = [make_input(type, random) for type in compiled.input_types]
        try:
            with np.errstate(all="ignore"):
                run(compiled, inputs)
        except excused:
            continue
        except fault as error:
            raise VerificationError(
                f"arrayfn made a wrong plan of {compiled.name} for {compiled.target}: "
                f"run with checked memory, {error}; this is a bug in arrayfn: please "
                "report it, with the function that is compiled"
            ) from error
        except (ArithmeticError, ValueError, RuntimeError, Warning):
            return False  # such inputs have no result
        return True
    return False


def _arbitrary(type: ArrayType, random: np.random.Generator) -> Array:
    """Return random values of ``type``.

    Integers are from -9 (or 0) to 9; an eighth of them is the minimum or the maximum of
    the dtype.
    """
    dtype = type.dtype
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low = max(limits.min, -9)
        values = random.integers(low, 9, type.shape, endpoint=True).astype(dtype)
        is_extreme = random.random(type.shape) < 1 / 8
        extreme = np.array(limits.min if random.random() < 1 / 2 else limits.max, dtype)
        return np.where(is_extreme, extreme, values)
    if dtype.kind == "b":
        return random.random(type.shape) < 1 / 2
    return random.standard_normal(type.shape).astype(dtype)


def _distinct(type: ArrayType, random: np.random.Generator) -> Array:
    """Return random values; integers are distinct: 0, 1, ... in random order."""
    if type.dtype.kind not in "iu":
        return _arbitrary(type, random)
    return random.permutation(type.size).reshape(type.shape).astype(type.dtype)
