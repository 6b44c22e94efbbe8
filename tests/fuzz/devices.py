"""Devices that need no compiler, or no card: un-jitted kernels, and emulated ones.

They are backends like others, so that ``jit(f, device="emulator")`` runs a function on
them. Neither is installed unless ``install`` is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arrayfn.backends.base import BackendInfo, Executable
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.backends.registry import BACKENDS
from arrayfn.ir import Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cuda.lower import lower as lower_for_gpu
from arrayfn.lowering.lower import lower
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.lowering.plan import Kernel

ARCHITECTURE = (9, 0)
DEVICES = ("cpu", "unjitted", "emulator", "cuda")


class UnjittedBackend:
    """The CPU's kernels as the Python functions they are."""

    name = "unjitted"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, "kernels of the CPU, interpreted", ())

    def array_types(self) -> tuple[type, ...]:
        return ()

    def put(self, x: Any) -> Any:
        return np.array(x)

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        return lower(program, donated, check=True)

    def load(self, compiled: CompiledProgram) -> Executable:
        return lambda inputs: run_unjitted(compiled, _typed(compiled, inputs))


class EmulatorBackend:
    """Kernels for a GPU, emulated; ``compiles`` compiles each of them to PTX too."""

    name = "emulator"
    compiles = False

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, "kernels of a GPU, emulated", ())

    def array_types(self) -> tuple[type, ...]:
        return ()

    def put(self, x: Any) -> Any:
        return np.array(x)

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        return lower_for_gpu(program, donated, check=True, options=options)

    def load(self, compiled: CompiledProgram) -> Executable:
        if self.compiles:
            for kernel in compiled.kernels:
                if isinstance(kernel, Kernel):
                    kernel_ptx(kernel, ARCHITECTURE)
        return lambda inputs: run_plan(compiled, _typed(compiled, inputs))


def _typed(compiled: CompiledProgram, inputs: Sequence[Any]) -> list[Any]:
    types = compiled.input_types
    return [np.asarray(x, t.dtype) for x, t in zip(inputs, types, strict=True)]


EMULATOR = EmulatorBackend()


def install() -> None:
    """Let ``jit`` find these devices."""
    for backend in (UnjittedBackend(), EMULATOR):
        BACKENDS[backend.name] = backend
