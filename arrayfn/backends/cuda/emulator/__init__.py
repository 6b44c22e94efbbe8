"""Runs kernels and plans for a GPU on NumPy arrays, without a GPU.

``launch`` runs one kernel (``kernels``), ``plan.run_plan`` a whole plan. Both raise
``EmulationError`` for data races, divergent barriers and accesses out of bounds.
"""

from arrayfn.backends.cuda.emulator.kernels import launch
from arrayfn.backends.cuda.emulator.memory import EmulationError, Pointer

__all__ = ["EmulationError", "Pointer", "launch"]
