"""How many arithmetic operations an equation or a Program does.

An elementwise operation counts once for each element of its result, cheap or not; a
contraction or convolution counts its multiplications and additions, and a reduction,
also of windows or of all elements so far, each element that it reads. Factorizations
and Fourier transforms count the leading term of their usual algorithm (Golub and Van
Loan, Matrix Computations, 4th edition). Views, copies, sorts and calls of Python count
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from arrayfn.ir import Equation, Program
from arrayfn.primitives.base import (
    Contraction,
    Library,
    Reduction,
    Scalar,
    primitive_of,
)
from arrayfn.primitives.contraction import depth
from arrayfn.primitives.convolution_forms import ARRAYS, GROUP, OUTER, extents_of

# Of one matrix, by its rows and columns.
_FACTORIZATIONS: Final[dict[str, Callable[[int, int], float]]] = {
    "cholesky": lambda m, n: n**3 / 3,
    "lu": lambda m, n: (
        2 * m * n * min(m, n) - (m + n) * min(m, n) ** 2 + 2 * min(m, n) ** 3 / 3
    ),
    "qr": lambda m, n: 4 * m * n * min(m, n) - 4 * min(m, n) ** 3 / 3,
    "eigh": lambda m, n: 9 * n**3,
    "eigvalsh": lambda m, n: 4 * n**3 / 3,
    "eig": lambda m, n: 25 * n**3,
    "eigvals": lambda m, n: 10 * n**3,
    "svd": lambda m, n: 14 * max(m, n) * min(m, n) ** 2 + 8 * min(m, n) ** 3,
    "svdvals": lambda m, n: 4 * max(m, n) * min(m, n) ** 2 - 4 * min(m, n) ** 3 / 3,
    "hessenberg": lambda m, n: 10 * n**3 / 3,
    "tridiagonal": lambda m, n: 4 * n**3 / 3,
    "schur": lambda m, n: 25 * n**3,
}


def operations(program: Program) -> int:
    """Return the operations of ``program``; a ``while_loop`` counts one iteration."""
    return sum(map(operations_of, program.equations))


def operations_of(equation: Equation) -> int:
    """Count the arithmetic operations of ``equation`` and of the Programs in it.

    A branch counts its longest Program.
    """
    primitive = primitive_of(equation)
    inner = [operations(p) for p in equation.subprograms()]
    if primitive.name == "cond":
        return max(inner)
    if inner:
        iterations = equation.params.get("length", 1) if primitive.name == "scan" else 1
        return iterations * inner[0]
    form = primitive.kernel
    if isinstance(form, Contraction):
        return 2 * depth(equation) * equation.outputs[0].type.size
    if isinstance(form, Reduction):
        return equation.inputs[0].type.size
    if isinstance(form, Scalar):
        return equation.outputs[0].type.size
    if isinstance(form, Library):
        return _library_operations(primitive.name, equation)
    count = _COUNTS.get(primitive.name)
    return count(equation) if count else 0


def _operand_size(equation: Equation) -> int:
    """Count one operation for each element of the operand."""
    return equation.inputs[0].type.size


def _window_elements(equation: Equation) -> int:
    """Count one operation for each element of each window."""
    return equation.outputs[0].type.size * math.prod(equation.params["sizes"])


def _convolution_operations(equation: Equation) -> int:
    """Count the operations of a convolution: each output reads a whole kernel.

    An equation computes one of the arrays "operand", "kernel" and "output", which its
    parameter ``gives`` names, from the other two: an output, or a gradient by one of
    the operands. Products with padding count like any other.
    """
    gives = equation.params.get("gives", "output")
    given_types = (atom.type for atom in equation.inputs)
    types = dict(zip(ARRAYS[gives], given_types, strict=True))
    types[gives] = equation.outputs[0].type
    kernel, roles = types["kernel"], equation.params["rhs"]
    features = extents_of(kernel, (*roles[GROUP], *roles[OUTER]))
    products = types["output"].size * kernel.size
    return 2 * products // max(1, math.prod(features))


def _solve_operations(equation: Equation) -> int:
    """Count the operations of a solve: a factorization, two triangular solves."""
    right, matrix = (atom.type for atom in equation.inputs)
    n = matrix.shape[-1]
    batch = matrix.size // max(1, n * n)
    return round(batch * _FACTORIZATIONS["lu"](n, n)) + 2 * right.size * n


_COUNTS: Final[dict[str, Callable[[Equation], int]]] = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), _operand_size),
    **dict.fromkeys(("argmax", "argmin"), _operand_size),
    **dict.fromkeys(
        ("reduce_window_sum", "reduce_window_max", "reduce_window_min"),
        _window_elements,
    ),
    "conv_general": _convolution_operations,
    "padded_convolution": _convolution_operations,
    "solve": _solve_operations,
}
"""How to count the operations of templates and compositions, by the primitive."""


def _library_operations(name: str, equation: Equation) -> int:
    """Count the operations of a library primitive: its algorithm's leading term.

    0 if no count is known.
    """
    if not equation.inputs or not equation.inputs[0].type.size:
        return 0
    type = equation.inputs[0].type
    if name == "fft":
        return round(5 * type.size * math.log2(max(2, type.shape[-1])))
    if name == "triangular_solve":
        return equation.outputs[0].type.size * type.shape[-1]
    if name in _FACTORIZATIONS:
        *batch, m, n = type.shape
        return round(math.prod(batch) * _FACTORIZATIONS[name](m, n))
    return 0
