"""A pass that guards cuSOLVER against matrices with NaN or infinity.

cuSOLVER's iterations (eigenvalues, singular values) return anything, or an error, for
such matrices. After this pass they get zeros in place of these elements, and the
results are set to NaN, as they are where an iteration does not converge.

LU's search for pivots skips NaN, so that factors and solutions of a matrix with NaN may
be finite. After this pass such a matrix is all NaN, and so are its factors. The kernel
that copies the matrix to the memory of its factors also sets the NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from arrayfn.ir import Atom, Equation, Program
from arrayfn.ir.builder import current_builder, rewritten
from arrayfn.primitives import discrete, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import linalg_matrices as m
from arrayfn.primitives.base import Primitive, primitive_of
from arrayfn.primitives.linalg_lu import lu, solve
from arrayfn.primitives.linalg_spectral import eig, eigh, eigvals, eigvalsh
from arrayfn.primitives.linalg_svd import svd, svdvals
from arrayfn.primitives.reductions import reduce_and

_OF_TRIANGLES: Final = (eigh, eigvalsh)  # they read only the lower triangle
_ITERATIONS: Final = (eig, eigvals, svd, svdvals, *_OF_TRIANGLES)
_SOLVERS: Final = (lu, solve)
_GUARDED: Final = (*_SOLVERS, *_ITERATIONS)


def with_lapack_guards(program: Program) -> Program:
    """Guard the linear algebra of ``program`` against NaN and infinity.

    Eigenvalues and singular values are computed of matrices whose elements that are not
    finite are replaced by 0; their results are then set to NaN. A matrix with a NaN
    becomes all NaN before it is factored by LU. The pipeline also runs this pass on
    bodies of loops and branches.
    """
    if all(equation.primitive not in _GUARDED for equation in program.equations):
        return program
    return rewritten(program, _guarded)


def _guarded(equation: Equation, operands: list[Atom]) -> Sequence[Atom] | None:
    """Compute ``equation`` with guards; None if it needs none.

    ``operands`` are its operands in the new Program. Returns the results. A matrix with
    a NaN becomes all NaN before it is factored (LU); iterations are guarded by
    ``_of_finite``.
    """
    primitive = primitive_of(equation)
    if primitive not in _GUARDED or not operands[0].type.size:
        return None
    if primitive not in _SOLVERS:
        return _of_finite(primitive, operands[0], equation)
    # ``solve`` has right-hand sides before its matrix.
    *sides, a = operands
    inputs = (*sides, _where(_without_nan(a), a))
    return current_builder().emit(primitive, inputs, equation.params)


def _of_finite(primitive: Primitive, x: Atom, equation: Equation) -> list[Atom]:
    """Compute an iteration, with NaN as the results of matrices that are not finite.

    ``x`` is the operand of ``equation``, whose primitive is ``primitive``. Elements
    that are not finite are replaced by 0. A matrix counts as finite if the elements
    that the primitive reads are.
    """
    finite = discrete.isfinite(x)
    ndim = x.type.ndim
    read = finite
    if primitive in _OF_TRIANGLES:
        read = discrete.isfinite(m.lower_part(x))
    is_finite = reduce_and(read, axes=(ndim - 2, ndim - 1))
    inputs = (e.select(finite, x, m.constant(0, x)),)
    results = current_builder().emit(primitive, inputs, equation.params)
    return [_where(is_finite, result) for result in results]


def _without_nan(x: Atom) -> Atom:
    """Return whether each matrix of ``x`` [..., rows, columns] has no NaN."""
    ndim = x.type.ndim
    numbers = discrete.bitwise_not(discrete.isnan(x))
    return reduce_and(numbers, axes=(ndim - 2, ndim - 1))


def _where(valid: Atom, result: Atom) -> Atom:
    """Replace the matrices of ``result`` that are not ``valid`` by NaN."""
    axes = tuple(range(valid.type.ndim))
    spread = views.broadcast_in_dim(valid, shape=result.type.shape, axes=axes)
    return e.select(spread, result, m.constant(math.nan, result))
