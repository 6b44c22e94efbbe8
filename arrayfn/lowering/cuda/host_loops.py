"""Marks the loops and branches of a plan that the host has to control.

They are those with a step that a CUDA graph cannot hold, such as a reference on the
host or a solver that waits. For them the host reads the predicate once an iteration.
All others become conditional nodes of a CUDA graph. The plan's text names the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from arrayfn.lowering.host_steps import HOST_STEPS
from arrayfn.lowering.plan import (
    ExecutionPlan,
    Kernel,
    KernelCall,
    LibraryKernel,
    Loop,
    Step,
    kernel_calls,
)

CAPTURED: Final = frozenset(
    ("gemm", "collective", "convolution", "fft", "ifft", "rfft", "irfft")
)
"""Providers of libraries whose calls can be captured.

Those of ``syevd`` can be in some cases, but which ones is known only on a GPU.
"""


def needs_host(kernel: Kernel | LibraryKernel) -> bool:
    """Return whether a CUDA graph cannot hold calls of ``kernel``.

    Kernels can be held. A library call is known by its provider: ``operator_12`` is a
    registered kernel, which must be prepared, ``reference_3`` runs NumPy on the host,
    and ``potrf_f32`` waits.
    """
    if isinstance(kernel, Kernel):
        return False
    kind, _, number = kernel.provider.partition("_")
    if kind == "operator":
        step = HOST_STEPS.find(int(number))
        return step.kernel is None or not step.kernel.prepared
    return kind not in CAPTURED


def with_host_loops(
    plan: ExecutionPlan, kernels: Mapping[str, Kernel | LibraryKernel]
) -> ExecutionPlan:
    """Set ``host`` in the loops and branches of ``plan`` that the host has to control.

    It names the step for which they need the host. ``kernels`` has the kernels that the
    plan calls, by name.
    """
    return replace(plan, steps=_marked(plan.steps, kernels))


def _marked(
    steps: Iterable[Step], kernels: Mapping[str, Kernel | LibraryKernel]
) -> tuple[Step, ...]:
    """Set ``host`` of loops and branches to their first kernel that needs the host.

    It is the kernel's name, or "". Where it is set, the host reads the loop's predicate
    or the branch's index. ``kernels`` has the kernels by name.
    """
    marked: list[Step] = []
    for step in steps:
        if isinstance(step, KernelCall):
            marked.append(step)
            continue
        calls = (call.kernel for call in kernel_calls([step]))
        host = next((name for name in calls if needs_host(kernels[name])), "")
        if isinstance(step, Loop):
            # Without a predicate there is nothing that the host would have to read.
            host = "" if step.predicate is None else host
            marked.append(replace(step, body=_marked(step.body, kernels), host=host))
        else:
            branches = tuple(_marked(branch, kernels) for branch in step.branches)
            marked.append(replace(step, branches=branches, host=host))
    return tuple(marked)
