"""The kernel of ``spsolve`` on a GPU: cuDSS's."""

from __future__ import annotations

from typing import Any

from arrayfn.errors import BackendError
from arrayfn.ir import ArrayType
from arrayfn.lowering.operator_kernels import KERNELS, OperatorKernel


def _takes(*types: ArrayType, ordering: str | None, **static: Any) -> bool:
    """Accept all sparse systems, but BackendError for an ``ordering`` of columns."""
    if ordering is not None:
        raise BackendError(
            f"spsolve: on a GPU cuDSS orders the columns itself; leave out permc_spec="
            f"{ordering!r} there"
        )
    return True


def solve_by_cudss(
    *arrays: Any, ordering: None, transposed: bool, is_deterministic: bool = True
) -> None:
    """Solve with the CSC matrix of the first three arrays; see ``cudss.solve``."""
    from arrayfn.backends.cuda.libraries import cudss

    cudss.solve(*arrays, transposed=transposed, is_deterministic=is_deterministic)


def solve_by_cudss_in_any_order(*arrays: Any, **static: Any) -> None:
    """Solve with sums in any order, faster but not deterministic, and refine."""
    solve_by_cudss(*arrays, **static, is_deterministic=False)


def register() -> None:
    """Register the kernels; the last one that the options allow is chosen."""
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
