"""Matrices that solvers do not take: what is not finite is kept from them.

cuSOLVER's iterations return anything, or an error, for matrices with NaN or infinity.
After this pass such elements are zeros to them, and the results are NaN, as they are
where an iteration does not converge.
"""

from __future__ import annotations

import math
from typing import Final

from arrayfn.builder import ProgramBuilder, rename
from arrayfn.ir import Atom, Program
from arrayfn.primitives import discrete, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import linalg_matrices as m
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.linalg_spectral import eig, eigh, eigvals, eigvalsh
from arrayfn.primitives.linalg_svd import svd, svdvals
from arrayfn.primitives.reductions import reduce_and

_OF_TRIANGLES: Final = (eigh, eigvalsh)  # which read the lower one alone
_GUARDED: Final = (eig, eigvals, svd, svdvals, *_OF_TRIANGLES)


def guarded(program: Program) -> Program:
    """``program`` with only finite matrices given to iterations."""
    if all(equation.primitive not in _GUARDED for equation in program.equations):
        return program
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = builder.inputs_of(program)
        environment = builder.bind_inputs(program, inputs)
        for equation in program.equations:
            builder.source = equation.source
            row = equation.primitive
            if row not in _GUARDED or not equation.inputs[0].type.size:
                builder.replay(equation, environment)
                continue
            assert isinstance(row, Primitive)
            x = rename(equation.inputs[0], environment)
            finite = discrete.isfinite(x)
            ndim = x.type.ndim
            read = finite
            if row in _OF_TRIANGLES:
                read = discrete.isfinite(m.lower_part(x))
            whole = reduce_and(read, axes=(ndim - 2, ndim - 1))
            made = row(e.select(finite, x, m.constant(0, x)), **equation.params)
            results = made if isinstance(made, tuple) else (made,)
            for output, result in zip(equation.outputs, results, strict=True):
                environment[output] = _where(whole, result)
    return builder.build([rename(a, environment) for a in program.outputs])


def _where(whole: Atom, result: Atom) -> Atom:
    """``result``, or NaN for the matrices that are not ``whole``."""
    axes = tuple(range(whole.type.ndim))
    spread = views.broadcast_in_dim(whole, shape=result.type.shape, axes=axes)
    return e.select(spread, result, m.constant(math.nan, result))
