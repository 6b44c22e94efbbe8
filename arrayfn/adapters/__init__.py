"""Functions of other libraries as kernels of operators, and in traced functions.

``torch``, ``triton``, ``tilelang`` and ``cuda_jit`` give what ``Operator.kernel``
registers. ``numba`` makes a function that Numba compiled one that can be traced; a
function of ``numba.njit`` or ``numba.vectorize`` is also taken as it stands.
"""

from __future__ import annotations

from arrayfn.adapters.numba_functions import NumbaFunction, numba
from arrayfn.adapters.tensors import cuda_jit, tilelang, torch, triton

__all__ = ["NumbaFunction", "cuda_jit", "numba", "tilelang", "torch", "triton"]
