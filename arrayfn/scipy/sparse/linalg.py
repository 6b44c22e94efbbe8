"""Linear systems with sparse matrices, or with functions that multiply by a matrix.

``spsolve`` factors a sparse matrix. ``cg``, ``bicgstab`` and ``gmres`` iterate. Each
takes a sparse or dense matrix, or a function that multiplies vectors or pytrees by the
matrix. Each is one loop, which ``lax.custom_linear_solve`` differentiates. You can
differentiate with respect to b and to the values that the function captures, in both
modes and every order.

Sources: Saad, Iterative Methods for Sparse Linear Systems (2003), algorithms 9.1 (CG),
7.7 (BiCGSTAB) and 9.5 (GMRES). A solver of a transposed system has the transposed
preconditioner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import arrayfn.numpy as anp
from arrayfn import dtypes, lax, tree
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.flatten_util import ravel_pytree
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array
from arrayfn.numpy._parameters import also_takes
from arrayfn.sparse import SparseArray
from arrayfn.sparse.solves import factorized, spsolve
from arrayfn.transforms import leaf_type, linear_transpose

Operator = Callable[[Any], Any]
_STEPS = 10  # default limit of iterations, per unknown
# GMRES takes a part of a vector for rounding error up to this multiple of eps.
_NOTHING = 10.0


class _Limits(NamedTuple):
    """When to stop: at the larger of two residual norms, or after ``steps`` iterations.

    The norms are |b| times ``relative``, and ``absolute``.
    """

    relative: float
    absolute: float
    steps: int

    def reached(self, residual: Array, b: Array) -> Array:
        """Return whether the ``residual`` for the right-hand side b is small enough."""
        threshold = anp.maximum(self.relative * _norm(b), self.absolute)
        return _norm(residual) <= threshold


# (apply A, apply M, b, x0, limits) -> (x, 0 or the number of iterations)
Solve = Callable[[Operator, Operator, Array, Array, _Limits], tuple[Array, Array]]


@also_takes(rtol="tol")  # rtol is another name of tol
def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> tuple[Any, Array]:
    """Solve A x = b by conjugate gradients, for Hermitian positive definite A.

    Args:
        A: a dense or sparse matrix (n, n), or a linear function. The function takes and
            returns pytrees like b.
        b: the right-hand side, a vector (n,) or a pytree of arrays.
        x0: the initial guess, like b; zeros by default. A system for a derivative is
            also solved from ``x0``, if ``x0`` is closer to its solution than zero.
        tol: the residual, relative to b, at which to stop (SciPy's ``rtol``).
        atol: the absolute residual at which to stop.
        maxiter: the largest number of iterations, by default ten times the number of
            unknowns.
        M: a preconditioner, which is a matrix or a function, like A. It approximates
            the inverse of A.

    Returns:
        x, and 0 if the residual became small enough, else the number of iterations.

    Raises:
        ArgumentError, ShapeError: A, M or x0 does not match b.

    >>> import numpy as np
    >>> x, info = cg(np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0]))
    >>> np.round(x, 6), int(info)
    (array([0.090909, 0.636364]), 0)
    """
    return _solved("cg", _cg, (A, b, x0, M), (tol, atol, maxiter), symmetric=True)


@also_takes(rtol="tol")  # rtol is another name of tol
def bicgstab(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> tuple[Any, Array]:
    """Solve A x = b by stabilised biconjugate gradients, for any A.

    Arguments and results are those of ``cg``. The loop ends if an iteration breaks
    down.

    >>> import numpy as np
    >>> x, info = bicgstab(np.array([[4.0, 1.0], [0.0, 3.0]]), np.array([1.0, 3.0]))
    >>> np.round(x, 6) + 0.0, int(info)
    (array([0., 1.]), 0)
    """
    return _solved("bicgstab", _bicgstab, (A, b, x0, M), (tol, atol, maxiter))


@also_takes("solve_method", rtol="tol")
def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Any = None,
) -> tuple[Any, Array]:
    """Solve A x = b by the smallest residual in a Krylov space, for any A.

    Arguments and results are those of ``cg``. ``maxiter`` counts restarts. Each restart
    builds a space of ``restart`` vectors. M multiplies from the right, so residuals are
    those of the system itself.

    >>> import numpy as np
    >>> x, info = gmres(np.array([[4.0, 1.0], [0.0, 3.0]]), np.array([1.0, 3.0]))
    >>> np.round(x, 6) + 0.0, int(info)
    (array([0., 1.]), 0)
    """
    if restart < 1:
        raise ArgumentError(f"gmres: restart is {restart}", user_location())

    def solve(
        apply: Operator, precondition: Operator, b: Array, x0: Array, limits: _Limits
    ) -> tuple[Array, Array]:
        """Run GMRES with at most as many vectors as there are unknowns."""
        size = min(restart, b.shape[0])
        return _gmres(apply, precondition, b, x0, limits, size)

    return _solved("gmres", solve, (A, b, x0, M), (tol, atol, maxiter))


def norm(x: SparseArray, ord: Any = "fro") -> Array:
    """Return a norm of a sparse matrix: "fro" (Frobenius), 1, -1, inf or -inf.

    1 is the largest sum of absolute values of a column, and inf that of a row. -1 and
    -inf are the smallest sums. Another ``ord`` raises ArgumentError.

    >>> import numpy as np
    >>> from arrayfn.sparse import CSR
    >>> norm(CSR(np.array([[3.0, 0.0], [0.0, 4.0]])))
    array(5.)
    """
    if ord in ("fro", None, "f"):
        return anp.linalg.norm(x.tocsr().data)
    # {ord: (axis to sum over, reduction of the sums)}
    sums = {1: (0, anp.max), -1: (0, anp.min), anp.inf: (1, anp.max)}
    sums[-anp.inf] = (1, anp.min)
    if ord not in sums:
        raise ArgumentError(
            f"norm of a sparse matrix: ord must be 'fro', 1, -1, inf or -inf, not "
            f"{ord!r}",
            user_location(),
        )
    axis, reduction = sums[ord]
    return reduction(abs(x).sum(axis=axis))


# Operators of vectors.


class _System(NamedTuple):
    """A system A x = b on vectors.

    ``apply`` and ``precondition`` multiply vectors by A and by M. ``precondition`` is
    None without M. ``guess`` is the initial x. ``unravel`` turns a vector into a pytree
    like b.
    """

    apply: Operator
    precondition: Operator | None
    b: Array
    guess: Array
    unravel: Callable[[Array], Any]


def _solved(
    name: str,
    solve: Solve,
    system: tuple[Any, Any, Any, Any],
    limits: tuple[float, float, int | None],
    symmetric: bool = False,
) -> tuple[Any, Array]:
    """Solve the ``system`` (A, b, x0, M) by ``solve``, which works on vectors.

    Returns x in the form of b, and 0 or the number of iterations. ``limits`` has the
    relative and the absolute tolerance, and the number of iterations or None for the
    default. ``symmetric`` says that A is Hermitian; if A is real, it is then its own
    transpose. Errors call the function ``name``.
    """
    apply, precondition, b, guess, unravel = _on_vectors(name, *system)
    relative, absolute, steps = limits
    max_steps = _STEPS * b.shape[0] if steps is None else steps

    def from_guess(
        apply: Operator, precondition: Operator, b: Array
    ) -> tuple[Array, Array]:
        """Solve from the initial guess, or from zeros if their residual is smaller."""
        # Derivatives have other right-hand sides, for which the guess may be far off.
        nearer = _norm(b - apply(guess)) < _norm(b)
        x0 = anp.where(nearer, guess, 0.0)
        return solve(apply, precondition, b, x0, _Limits(relative, absolute, max_steps))

    def forwards(apply: Operator, b: Array) -> tuple[Array, Array]:
        """Solve A x = b."""
        return from_guess(apply, precondition or _identity, b)

    def transposed(apply_transpose: Operator, b: Array) -> tuple[Array, Array]:
        """Solve with the transposes of A and M, as derivatives in reverse mode do."""
        if precondition is None:
            return from_guess(apply_transpose, _identity, b)
        transpose = linear_transpose(precondition, b)  # returns a tuple of one
        return from_guess(apply_transpose, lambda x: transpose(x)[0], b)

    is_its_transpose = symmetric and b.dtype not in dtypes.COMPLEX
    x, info = lax.custom_linear_solve(
        apply,
        b,
        forwards,
        None if is_its_transpose else transposed,
        symmetric=is_its_transpose,
        has_aux=True,
    )
    return unravel(x), info


def _on_vectors(
    name: str, given_a: Any, given_b: Any, x0: Any, given_m: Any
) -> _System:
    """Convert A, b, the initial guess ``x0`` (None: zeros) and M to work on vectors.

    Integers in b become float64. A, x0 and M are checked against b. No derivative flows
    through the guess. Errors call the function ``name``.
    """
    b, unravel = ravel_pytree(given_b)
    if b.dtype not in dtypes.INEXACT:
        b = ops.convert(b, dtypes.float64)
        inexact = tree.map(lambda x: ops.convert(x, b.dtype), given_b)
        _, unravel = ravel_pytree(inexact)
    apply = _operator(f"{name}: A", given_a, given_b, unravel, b.dtype)
    guess = anp.zeros_like(b)
    if x0 is not None:
        _check_form(f"{name}: x0", x0, given_b)
        guess = lax.stop_gradient(ops.convert(ravel_pytree(x0)[0], b.dtype))
    precondition = None
    if given_m is not None:
        precondition = _operator(f"{name}: M", given_m, given_b, unravel, b.dtype)
    return _System(apply, precondition, b, guess, unravel)


def _identity(x: Array) -> Array:
    """Return x: multiply by the preconditioner I."""
    return x


def _operator(
    what: str, given: Any, like: Any, unravel: Callable[[Array], Any], dtype: Any
) -> Operator:
    """Return a function that multiplies a vector by ``given``.

    ``given`` is a sparse or dense matrix, or a linear function of pytrees like
    ``like``. ``unravel`` turns a vector into such a pytree. Results of a function are
    converted to ``dtype``. ``what`` names ``given`` in errors.
    """
    if isinstance(given, SparseArray):
        _check_size(what, given.shape, like)
        return lambda x: given @ x
    if callable(given):

        def applied(x: Array) -> Array:
            """Apply the function to a vector, and check the form of its result."""
            result = given(unravel(x))
            _check_form(f"the result of {what}", result, like)
            vector, _ = ravel_pytree(result)
            return ops.convert(vector, dtype)

        return applied
    _check_size(what, leaf_type(given).shape, like)
    return lambda x: anp.matmul(given, x)


def _check_size(what: str, shape: tuple[int, ...], like: Any) -> None:
    """Raise ShapeError unless a matrix of ``shape`` takes the vector ``like``.

    ``like`` is b, and must be a single array (n,). ``what`` names the matrix.
    """
    size = leaf_type(ravel_pytree(like)[0]).shape[0]
    if tree.structure(like) != tree.structure(0.0) or shape != (size, size):
        raise ShapeError(
            f"{what} is a matrix of shape {shape}, which takes no vector like b; "
            "give a matrix (n, n) with a vector (n,), or a function",
            user_location(),
        )


def _check_form(what: str, given: Any, wanted: Any) -> None:
    """Raise an error unless two pytrees have the same structure and shapes of leaves.

    Different structures are an ArgumentError about ``what``, and different shapes a
    ShapeError.
    """
    structure, wanted_structure = tree.structure(given), tree.structure(wanted)
    if structure != wanted_structure:
        raise ArgumentError(
            f"{what} has the structure {tree.text_of(structure)}, and b "
            f"{tree.text_of(wanted_structure)}",
            user_location(),
        )
    for x, y in zip(tree.leaves(given), tree.leaves(wanted), strict=True):
        if leaf_type(x).shape != leaf_type(y).shape:
            raise ShapeError(
                f"{what} is {leaf_type(x)} where b is {leaf_type(y)}", user_location()
            )


def _norm(x: Array) -> Array:
    """Return the Euclidean norm of a vector."""
    return anp.sqrt(_inner(x, x).real)


def _inner(x: Array, y: Array) -> Array:
    """Return the inner product conj(x) . y."""
    return anp.vecdot(x, y)


def _ratio(x: Array, y: Array) -> Array:
    """Return x / y, and 0 for y = 0.

    An iteration that breaks down then does not move.
    """
    return anp.where(y == 0, 0.0, x / anp.where(y == 0, 1.0, y))


def _end(x: Array, b: Array, residual: Array, steps: Array, limits: _Limits) -> Any:
    """Return x, and 0 if the residual is small enough, else the number of iterations.

    The number is at least 1, so that a failure differs from success.
    """
    return x, anp.where(limits.reached(residual, b), 0, anp.maximum(steps, 1))


# The methods.


def _cg(
    apply: Operator, precondition: Operator, b: Array, x0: Array, limits: _Limits
) -> tuple[Array, Array]:
    """Solve by conjugate gradients from ``x0``, for Hermitian positive definite A.

    ``apply`` and ``precondition`` multiply by A and M. Returns x, and 0 or the number
    of iterations.
    """

    def going(state: Any) -> Array:
        """Return whether to iterate again."""
        _, residual, _, _, count = state
        return ~limits.reached(residual, b) & (count < limits.steps)

    def step(state: Any) -> Any:
        """Move along a direction that is conjugate (by A) to those before it.

        The state is x, the residual r, the direction, gamma = r . M r, and the count.
        """
        x, residual, direction, gamma, count = state
        change = apply(direction)
        length = _ratio(gamma, _inner(direction, change).real)
        x = x + length * direction
        residual = residual - length * change
        near = precondition(residual)
        after = _inner(residual, near).real
        direction = near + _ratio(after, gamma) * direction
        return x, residual, direction, after, count + 1

    residual = b - apply(x0)
    near = precondition(residual)
    start = (x0, residual, near, _inner(residual, near).real, anp.asarray(0))
    x, residual, _, _, count = lax.while_loop(going, step, start)
    return _end(x, b, residual, count, limits)


def _bicgstab(
    apply: Operator, precondition: Operator, b: Array, x0: Array, limits: _Limits
) -> tuple[Array, Array]:
    """Solve by stabilised biconjugate gradients from ``x0`` (van der Vorst, 1992)."""

    def going(state: Any) -> Array:
        """Return whether to iterate again, with state (x, residual, ..., rho, count).

        The loop ends if it has converged, or has broken down with rho = 0.
        """
        _, residual, _, rho, count = state
        enough = limits.reached(residual, b) | (rho == 0)
        return ~enough & (count < limits.steps)

    def step(state: Any) -> Any:
        """Move along the direction, then along the residual that remains.

        rho is the inner product of the initial residual ``shadow`` and the residual.
        The state is x, the residual, the direction, rho, and the count.
        """
        x, residual, direction, rho, count = state
        near = precondition(direction)
        change = apply(near)
        length = _ratio(rho, _inner(shadow, change))
        middle = residual - length * change
        near_middle = precondition(middle)
        change_middle = apply(near_middle)
        omega = _ratio(
            _inner(change_middle, middle), _inner(change_middle, change_middle)
        )
        x = x + length * near + omega * near_middle
        residual = middle - omega * change_middle
        after = _inner(shadow, residual)
        # Saad's beta.
        bend = _ratio(after, rho) * _ratio(length, omega)
        direction = residual + bend * (direction - omega * change)
        return x, residual, direction, after, count + 1

    residual = b - apply(x0)
    shadow = residual
    rho = _inner(shadow, residual)
    start = (x0, residual, residual, rho, anp.asarray(0))
    x, residual, _, _, count = lax.while_loop(going, step, start)
    return _end(x, b, residual, count, limits)


def _gmres(
    apply: Operator,
    precondition: Operator,
    b: Array,
    x0: Array,
    limits: _Limits,
    size: int,
) -> tuple[Array, Array]:
    """Run GMRES from ``x0`` in cycles of ``size`` steps (Saad and Schultz, 1986)."""
    epsilon = float(anp.finfo(b.dtype).eps)

    def arnoldi(k: Array, state: Any) -> Any:
        """Add column k of H and vector k + 1 of V, where A M V[:, :size] = V H.

        The ``state`` is V and H, transposed: row k of ``basis`` is a vector, and row k
        of ``columns`` is column k of H. The vector is made orthogonal to the others
        twice, because once loses accuracy.
        """
        basis, columns = state
        vector = apply(precondition(basis[k]))
        whole = _norm(vector)
        parts = anp.zeros(size + 1, b.dtype)
        for _ in range(2):
            part = anp.matmul(anp.conj(basis), vector)
            vector = vector - anp.matmul(part, basis)
            parts = parts + part
        length = _norm(vector)
        # The remainder may be rounding error alone: the space is complete.
        is_independent = length > _NOTHING * epsilon * whole
        length = anp.where(is_independent, length, 0.0)
        vector = anp.where(
            is_independent, vector / anp.where(is_independent, length, 1.0), 0.0
        )
        basis = anp.at(basis)[k + 1].set(vector)
        parts = anp.at(parts)[k + 1].set(ops.convert(length, b.dtype))
        return basis, anp.at(columns)[k].set(parts)

    def step(state: Any) -> Any:
        """Build a Krylov space of ``size``, and take the best correction in it.

        The state is x, the residual, and the count of cycles.
        """
        x, residual, count = state
        length = _norm(residual)
        # The first vector of the space is the residual, normalised.
        basis = anp.zeros((size + 1, b.shape[0]), b.dtype)
        basis = anp.at(basis)[0].set(residual / length)
        columns = anp.zeros((size, size + 1), b.dtype)
        basis, columns = lax.fori_loop(0, size, arnoldi, (basis, columns))
        # In this basis, the residual is (length, 0, ..., 0). Fit it by least squares.
        wanted = anp.zeros(size + 1, b.dtype)
        wanted = anp.at(wanted)[0].set(ops.convert(length, b.dtype))
        weights = anp.linalg.lstsq(columns.T, wanted)[0]
        x = x + precondition(anp.matmul(weights, basis[:size]))
        return x, b - apply(x), count + 1

    def going(state: Any) -> Array:
        """Return whether to restart again."""
        _, residual, count = state
        return ~limits.reached(residual, b) & (count < limits.steps)

    start = (x0, b - apply(x0), anp.asarray(0))
    x, residual, count = lax.while_loop(going, step, start)
    return _end(x, b, residual, count, limits)


__all__ = ["bicgstab", "cg", "factorized", "gmres", "norm", "spsolve"]
