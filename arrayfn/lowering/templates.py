"""Kernels of primitives that are no nests: written as text, one function each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from arrayfn.errors import BackendError
from arrayfn.ir import Equation, Var
from arrayfn.lowering.cpu_source import ScheduledKernel
from arrayfn.passes.reads import Read


def instantiate(
    name: str,
    equation: Equation,
    reads: Mapping[Var, Read],
    names: Mapping[Var, str],
    fresh: Callable[[str], str],
) -> Iterable[ScheduledKernel]:
    """The kernels that compute ``equation``, in order."""
    raise BackendError(
        f"{equation.primitive.name} has no kernel on the CPU yet; "
        "use device='reference'",
        equation.source,
    )
