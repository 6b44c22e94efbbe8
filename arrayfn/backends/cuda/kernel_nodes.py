"""Graphs whose kernels are told before a launch what they are given.

That takes a sixth of a microsecond for each such kernel (H200), where a launch of the
whole graph takes half as long as that of one kernel outside.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.captures import captured
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.runner import StepKind
from arrayfn.backends.native.structures import Array, Struct, u32


class Kernel(Struct):
    """CUDA_KERNEL_NODE_PARAMS, of a kernel's step of the runner."""

    function: int
    blocks: Annotated[Array[u32], 3]
    threads: Annotated[Array[u32], 3]
    shared: u32
    parameters: int
    extra: int
    kernel: int
    context: int

    @classmethod
    def of(cls, step: runner.Kernel) -> Kernel:
        """The node of a step."""
        return cls(
            function=step.function,
            blocks=(step.blocks, 1, 1),
            threads=(step.threads, 1, 1),
            shared=step.shared,
            parameters=step.parameters,
        )

    def capture(self, stream: int) -> int:
        """Capture it into a stream: its node."""
        gpu = device()
        status = gpu.library.cuLaunchKernel(
            ctypes.c_void_p(self.function),
            *(sizes[k] for sizes in (self.blocks, self.threads) for k in range(3)),
            self.shared,
            ctypes.c_void_p(stream),
            ctypes.c_void_p(self.parameters),
            None,
        )
        gpu.check(status, "in a capture")
        _, (node,) = captured(stream)
        return node


class Graph:
    """A graph as it was ``recorded``, and what is launched of it, from ``steps`` on."""

    def __init__(self, recorded: int) -> None:
        self._gpu = device()
        self.recorded = recorded
        self._launched = 0

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            if self._launched:
                self._gpu.forget(self._launched)
            self._gpu.library.cuGraphDestroy(ctypes.c_void_p(self.recorded))

    def steps(self, kernels: Sequence[tuple[int, Kernel]]) -> list[runner.Step]:
        """The runner's steps: ``kernels``, with their nodes, are told; all is launched.

        What they point to is the caller's to keep.
        """
        self._launched = launched = self._gpu.instantiate(self.recorded)
        told = [
            runner.Parameters(
                StepKind.PARAMETERS, launched, node, ctypes.addressof(kernel)
            )
            for node, kernel in kernels
        ]
        return [*told, runner.GraphLaunch(StepKind.GRAPH, launched)]
