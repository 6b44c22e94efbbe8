"""Which Numba: the modules of one target, and the types of its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION


class UntypedKernelError(Exception):
    """A kernel's variable has no type that is known without inference."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Numba's modules and types for one target.

    ``ir`` and ``types`` are Numba's modules of IR statements and of types;
    ``signature`` makes a signature. ``call(function, arguments, constants)`` is the
    signature of a call of one of the target's own functions (``prefetch_row``), from
    the arguments' types and the values of those that are constant integers; None if it
    is not known. ``functions`` has the types of vocabulary functions that have types of
    their own.
    """

    ir: ModuleType
    types: ModuleType
    signature: Callable[..., Any]
    call: Callable[[Any, Sequence[Any], Sequence[int | None]], Any]
    functions: Mapping[Any, Any]

    def value_type(self, dtype: str) -> Any:
        """The type of a dtype's values in kernels."""
        return numba_type(self.types, dtype)

    def pointer_type(self, dtype: str) -> Any:
        """The type of a pointer to elements of ``dtype``."""
        element = self.types.uint8 if dtype == "bool" else self.value_type(dtype)
        return self.types.CPointer(element)

    def parameter_type(self, kind: str) -> Any:
        """The type of a kernel's parameter.

        ``kind`` is a dtype, as "i64", or a pointer to its elements, "f32*".
        """
        if kind.endswith("*"):
            return self.pointer_type(kind[:-1])
        return self.value_type(kind)


def numba_type(types: ModuleType, dtype: str) -> Any:
    """The Numba type of a dtype's values in kernels."""
    if dtype in HALF_PRECISION:
        return types.uint16
    names = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
    if dtype == "bool":
        return types.boolean
    return getattr(types, names[dtype[0]] + dtype[1:])
