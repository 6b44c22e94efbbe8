"""The kernels of ``spsolve`` on a GPU, which call NVIDIA's library cuDSS."""

from __future__ import annotations

from typing import Any

from arrayfn.errors import BackendError
from arrayfn.ir import ArrayType
from arrayfn.lowering.operator_kernels import KERNELS, OperatorKernel


def _takes(*types: ArrayType, ordering: str | None, **static: Any) -> bool:
    """Return True: cuDSS solves all sparse systems.

    Raises BackendError if the user asks for an ``ordering`` of the columns.
    """
    if ordering is not None:
        raise BackendError(
            f"spsolve: on a GPU cuDSS orders the columns itself; leave out permc_spec="
            f"{ordering!r} there"
        )
    return True


def solve_by_cudss(
    *arrays: Any, ordering: None, transposed: bool, is_deterministic: bool = True
) -> None:
    """Solve a sparse system by cuDSS.

    ``arrays`` are those of ``cudss.solve``: the first three are a CSC matrix.
    ``transposed`` solves with the transposed matrix. ``ordering`` is for the CPU: cuDSS
    chooses the order of elimination itself.
    """
    from arrayfn.backends.cuda.libraries import cudss

    cudss.solve(*arrays, transposed=transposed, is_deterministic=is_deterministic)


def solve_by_cudss_in_any_order(*arrays: Any, **static: Any) -> None:
    """Solve a sparse system by cuDSS with sums in any order, and refine the solution.

    This is faster than ``solve_by_cudss``, but not deterministic.
    """
    solve_by_cudss(*arrays, **static, is_deterministic=False)


def register() -> None:
    """Register both kernels; the last one that the options allow is chosen.

    The nondeterministic kernel is last, so it is chosen wherever it is allowed.
    """
    for function in (solve_by_cudss, solve_by_cudss_in_any_order):
        kernel = OperatorKernel(
            "sparse_solve",
            "cuda",
            function,
            _takes,
            vmap="expand_dims",
            deterministic=function is solve_by_cudss,
        )
        KERNELS.register(kernel)
