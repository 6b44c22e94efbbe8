"""Warns where a transformation uses an operator's body instead of its kernels.

``KernelTable`` records here which operators have registered kernels, because
transformations know no backend. Each operator and transformation is reported once for
each line of the user's code.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

from arrayfn.errors import DroppedKernelWarning, SourceLocation, readable_file
from arrayfn.ir import Equation

DIFFERENTIATION: Final = "differentiation"
VMAP: Final = "vmap"

_REMEDIES: Final = {
    DIFFERENTIATION: (
        "call the operator inside a function with a custom_vjp rule, to compute its "
        "value by the kernel and its derivative by your rule"
    ),
    VMAP: (
        'give the kernel vmap="sequential", or vmap="expand_dims" if it takes operands '
        "with one more leading axis"
    ),
}

_kernels: dict[str, dict[str, None]] = {}
_warned: dict[Any, Any] = {}  # the registry of the warnings module


def note_kernel(operator: str, kernel: str) -> None:
    """Record that ``operator`` has a kernel, which warnings call ``kernel``."""
    _kernels.setdefault(operator, {})[kernel] = None


def forget_kernels(operator: str) -> None:
    """Remove the record of all kernels of ``operator``."""
    _kernels.pop(operator, None)


def warn_dropped(equation: Equation, transformation: str) -> None:
    """Warn if ``equation`` calls an operator that has kernels.

    ``transformation``, DIFFERENTIATION or VMAP, is about to replace the call by the
    transformed body. The warning is at the user's line of the call.
    """
    name = equation.params.get("name", "")
    kernels = _kernels.get(name)
    # Only operators' calls have the param ``static``.
    if not kernels or "static" not in equation.params:
        return
    location = equation.source or SourceLocation("<unknown>", 0)
    warnings.warn_explicit(
        f"{transformation} of operator {name} uses its body, not its kernels "
        f"({', '.join(kernels)}); {_REMEDIES[transformation]}, or register the kernel "
        "with check=False to accept this silently",
        DroppedKernelWarning,
        readable_file(location.file),
        location.line,
        registry=_warned,
    )
