"""A device for tests without one: kernels of the CPU, arrays that are not NumPy's.

What a GPU's arrays share, their operators and all that is computed of them outside
``jit``, goes through the same code; only the backend is another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from arrayfn.backends.base import BackendInfo, Executable
from arrayfn.backends.registry import BACKENDS
from arrayfn.ir import ArrayType, Program, type_of
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.tracing import ArrayOnDevice

Array = np.ndarray[Any, Any]


class SimulatedArray(ArrayOnDevice):
    """An array on the simulated device; ``reads`` counts copies to the host."""

    __slots__ = ("__arrayfn_type__", "_host")

    reads = 0

    def __init__(self, host: Array) -> None:
        self._host = host
        self.__arrayfn_type__ = type_of(host)

    @property
    def type(self) -> ArrayType:
        return self.__arrayfn_type__

    @property
    def device(self) -> str:
        return "simulated"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        SimulatedArray.reads += 1
        return np.array(self._host, dtype)

    def copy(self) -> SimulatedArray:
        return SimulatedArray(self._host.copy())

    def __repr__(self) -> str:
        return f"Simulated({self._host!r})"


@dataclass(frozen=True)
class SimulatedBackend:
    """The CPU's kernels on ``SimulatedArray``; NumPy's arrays are copied."""

    name: str = "simulated"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, "a device for tests", ())

    def array_types(self) -> tuple[type, ...]:
        return (SimulatedArray,)

    def put(self, x: Any) -> SimulatedArray:
        if isinstance(x, SimulatedArray):
            return x
        return SimulatedArray(np.array(x, order="K"))

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        compiled = BACKENDS["cpu"].lower(program, donated)
        host = tuple(_host(x) for x in compiled.constants)
        return replace(compiled, constants=host)

    def load(self, compiled: CompiledProgram) -> Executable:
        run = BACKENDS["cpu"].load(compiled)

        def call(inputs: Sequence[Any]) -> list[SimulatedArray]:
            for x, wanted in zip(inputs, compiled.input_types, strict=True):
                assert type_of(x) == wanted, (type_of(x), wanted)
            return [SimulatedArray(y) for y in run(tuple(map(_host, inputs)))]

        return call


def _host(x: Any) -> Any:
    return x._host if isinstance(x, SimulatedArray) else x
