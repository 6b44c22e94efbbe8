"""Which Numba: the modules of one target, and the types of its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION
from arrayfn.records import frozen


class UntypedKernelError(Exception):
    """A kernel uses Python whose types are not known without Numba's inference."""


@frozen(slots=True)
class Dialect:
    """Numba's modules and types for one target.

    Numba and numba-cuda have classes of their own for types and IR.

    Attributes:
        ir: the module of IR statements.
        types: the module of types.
        signature: ``signature(result, *arguments)`` makes a signature of types.
        call: ``call(function, arguments, constants)`` returns the signature of a call
            of one of the target's own functions, such as ``prefetch_row``, or None if
            it is not known. ``arguments`` are types; ``constants`` has, for each
            argument, its value if it is a constant integer, else None.
        functions: maps each scalar function of the vocabulary to its Numba type.
    """

    ir: ModuleType
    types: ModuleType
    signature: Callable[..., Any]
    call: Callable[[Any, Sequence[Any], Sequence[int | None]], Any]
    functions: Mapping[Any, Any]

    def value_type(self, dtype: str) -> Any:
        """Return the Numba type of values of ``dtype``, a short name such as "f32"."""
        return numba_type(self.types, dtype)

    def pointer_type(self, dtype: str) -> Any:
        """Return the Numba type of a pointer to elements of ``dtype``.

        Bools are stored as bytes.
        """
        element = self.types.uint8 if dtype == "bool" else self.value_type(dtype)
        return self.types.CPointer(element)

    def parameter_type(self, kind: str) -> Any:
        """Return the Numba type of a kernel's parameter.

        ``kind`` is a dtype's short name, such as "i64", or a pointer, such as "f32*".
        """
        if kind.endswith("*"):
            return self.pointer_type(kind[:-1])
        return self.value_type(kind)


def numba_type(types: ModuleType, dtype: str) -> Any:
    """Return the Numba type of a kernel's values of ``dtype``, a name such as "f32".

    ``types`` is Numba's module of types. Half-precision numbers are kept as their bits.
    """
    if dtype in HALF_PRECISION:
        return types.uint16
    names = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
    if dtype == "bool":
        return types.boolean
    return getattr(types, names[dtype[0]] + dtype[1:])
