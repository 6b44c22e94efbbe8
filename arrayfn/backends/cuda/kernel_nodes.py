"""Graphs whose kernels are told before a launch what they are given.

That takes a sixth of a microsecond for each such kernel (H200), where a launch of the
whole graph takes half as long as that of one kernel outside.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.captures import captured
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.runner import StepKind


class Kernel(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS, of a kernel's step of the runner."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("blocks", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )

    @classmethod
    def of(cls, step: runner.Kernel) -> Kernel:
        """The node of a step."""
        made = cls(step.function)
        made.blocks[:] = (step.blocks, 1, 1)
        made.threads[:] = (step.threads, 1, 1)
        made.shared = step.shared
        made.parameters = step.parameters
        return made

    def capture(self, stream: int) -> int:
        """Capture it into a stream: its node."""
        gpu = device()
        status = gpu.library.cuLaunchKernel(
            ctypes.c_void_p(self.function),
            *(*self.blocks, *self.threads, self.shared),
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
