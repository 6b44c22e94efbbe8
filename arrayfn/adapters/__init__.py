"""Functions of other libraries as kernels of operators, and in traced functions.

``torch``, ``triton``, ``tilelang`` and ``cuda_jit`` make kernels for
``Operator.kernel``. ``numba`` makes a traceable function from a function that Numba
compiled. Functions of ``numba.njit`` or ``numba.vectorize`` can also be traced
directly.
"""

from __future__ import annotations

from arrayfn.adapters.numba_functions import NumbaFunction, numba
from arrayfn.adapters.tensors import cuda_jit, tilelang, torch, triton

__all__ = ["NumbaFunction", "cuda_jit", "numba", "tilelang", "torch", "triton"]
