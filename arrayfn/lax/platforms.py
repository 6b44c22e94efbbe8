"""Functions with a version for each platform, or a name for others to know."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from arrayfn import tree
from arrayfn.compilation.operators import Operator
from arrayfn.errors import ArgumentError, user_location
from arrayfn.tracing import ImmutableArray, device_of
from arrayfn.tracing.frames import platform

Function = Callable[..., Any]

# The names of the functions for a platform. Other platforms than CUDA, such as the
# reference backend, use functions of their own name or of "cpu".
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {"cuda": ("cuda", "gpu")}


def platform_dependent(
    *args: Any, default: Function | None = None, **per_platform: Function
) -> Any:
    """Call the function in ``per_platform`` for the current platform, or ``default``.

    Platforms are ``cpu`` and ``cuda`` (or ``gpu``). Under ``jit``, the current platform
    is the one for which the function is compiled. Outside ``jit``, it is that of the
    arguments. Only the function for that platform is traced. All should give results of
    the same structure and types.

    Raises ArgumentError if there is neither a function for the platform nor a default.

    >>> import numpy as np
    >>> platform_dependent(np.ones(2), cpu=lambda x: x + 1, default=lambda x: x)
    array([2., 2.])
    """
    current = platform() or device_of(tree.leaves(args)) or "cpu"
    current = current.partition(":")[0]  # "cuda" for "cuda:1"
    for name in _NAMES.get(current, (current, "cpu")):
        if name in per_platform:
            return per_platform[name](*args)
    if default is None:
        raise ArgumentError(
            f"platform_dependent has functions for {', '.join(sorted(per_platform))}, "
            f"and is computed on {current}; give default=",
            user_location(),
        )
    return default(*args)


_ARRAYS: Final = (np.ndarray, ImmutableArray)


def composite(decomposition: Function, name: str, version: int = 0) -> Function:
    """Return a function that calls ``decomposition`` as one equation called ``name``.

    The equation is an ``operator``. Operands are given by position, and static
    attributes by name. Attributes that are arrays become operands after the others, in
    the order of their names. If a kernel is registered for the operator, the kernel
    computes it. The kernel gets ``attributes``, pairs of name and value, and
    ``version`` as static arguments. Otherwise, ``decomposition`` computes it.

    >>> import numpy as np
    >>> import arrayfn as af
    >>> scaled = composite(lambda x, *, factor: x * factor, "my.scaled")
    >>> str(af.make_program(lambda x: scaled(x, factor=2.0))(1.0)).count("my.scaled")
    1
    >>> af.jit(lambda x: scaled(x, factor=2.0))(np.ones(2))
    array([2., 2.])
    """

    def body(operands: Any, attributes: Any = (), version: int = version) -> Any:
        """Call ``decomposition``; ``operands`` are (arguments, arrays by name).

        ``attributes`` are pairs of name and value. Only kernels use ``version``.
        """
        args, arrays = operands
        return decomposition(*args, **arrays, **dict(attributes))

    op = Operator(body, name, frozenset({"attributes", "version"}))

    @functools.wraps(decomposition)
    def call(*args: Any, **kwargs: Any) -> Any:
        """Sort the keyword arguments into operands (arrays) and static attributes."""
        arrays = {k: v for k, v in kwargs.items() if isinstance(v, _ARRAYS)}
        static = sorted(kwargs.keys() - arrays.keys())
        attributes = tuple((name, kwargs[name]) for name in static)
        return op((args, arrays), attributes=attributes)

    return call
