"""``check_grads`` compares derivatives with central differences in random directions.

See Maclaurin, Duvenaud, Adams, Autograd: effortless gradients in NumPy, 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.transforms import jvp, vjp
from arrayfn.transforms.arguments import leaf_type, own_name

Function = Callable[..., Any]
_SEED: Final = 0
# The step of a central difference, and the error it leaves, by the bits of a dtype.
_STEPS: Final = {64: 1e-5, 32: 1e-2, 16: 1e-1}
_TOLERANCES: Final = {64: 1e-6, 32: 2e-2, 16: 2e-1}


def check_grads(
    f: Function,
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> None:
    """Compare derivatives of ``f`` at ``args``, up to ``order``, with differences.

    Arguments and results are pytrees. Leaves that are neither floating-point nor
    complex are not changed. ``modes`` are "fwd" (``jvp``) and "rev" (``vjp``). ``eps``
    is the step of the central differences. Tolerances depend on the narrowest dtype.
    ``f`` should vary on a scale of 1 around ``args``.

    Raises AssertionError with the two derivatives if they differ.

    >>> check_grads(np.sin, (1.0,), order=2)
    >>> from arrayfn.transforms.custom import stop_gradient
    >>> check_grads(lambda x: stop_gradient(x) * x, (1.0,), order=1)
    Traceback (most recent call last):
    ...
    AssertionError: jvp of <lambda>: ...
    """
    eps = _STEPS[_narrowest(args)] if eps is None else eps
    limits = _limits(args, atol, rtol)
    _check(f, tuple(args), order, modes, eps, limits, _Directions())


def check_jvp(
    f: Function,
    f_jvp: Function,
    args: Sequence[Any],
    atol: float | None = None,
    rtol: float | None = None,
    eps: float = 1e-5,
    err_msg: str = "",
) -> None:
    """Compare ``f_jvp(args, tangents)`` with a central difference of ``f``.

    ``f_jvp`` returns the pair (value, tangent), as ``jvp`` does. If they differ,
    AssertionError is raised.

    >>> check_jvp(np.exp, lambda p, t: (np.exp(*p), np.exp(*p) * t[0]), (1.0,))
    """
    limits = _limits(args, atol, rtol)
    tangents = _Directions().like(tuple(args))
    value, tangent = f_jvp(tuple(args), tangents)
    what = err_msg or f"jvp of {own_name(f)}"
    _close(value, f(*args), f"value in {what}", limits)
    _close(tangent, _difference(f, args, tangents, eps), what, limits)


def _limits(
    args: Sequence[Any], atol: float | None, rtol: float | None
) -> dict[str, float]:
    """Return the given tolerances; for None that of the narrowest dtype of ``args``."""
    tolerance = _TOLERANCES[_narrowest(args)]
    return {
        "atol": tolerance if atol is None else atol,
        "rtol": tolerance if rtol is None else rtol,
    }


def check_vjp(
    f: Function,
    f_vjp: Function,
    args: Sequence[Any],
    atol: float | None = None,
    rtol: float | None = None,
    eps: float = 1e-5,
    err_msg: str = "",
) -> None:
    """Compare ``f_vjp(*args)``, the pair (value, pull-back), with a difference.

    The test uses a random tangent and a random cotangent. The inner product of the
    cotangent with the difference must equal the inner product of the pulled-back
    cotangent with the tangent. Raises AssertionError.

    >>> check_vjp(np.exp, lambda x: (np.exp(x), lambda ct: (ct * np.exp(x),)), (1.0,))
    """
    limits = _limits(args, atol, rtol)
    directions = _Directions()
    tangents = directions.like(tuple(args))
    value, pull_back = f_vjp(*args)
    what = err_msg or f"vjp of {own_name(f)}"
    _close(value, f(*args), f"value in {what}", limits)
    cotangents = directions.like(value)
    pulled = tuple(pull_back(cotangents))
    forward = _inner(_difference(f, args, tangents, eps), cotangents)
    _close(_inner(tangents, pulled), forward, what, limits)


def _check(
    f: Function,
    args: tuple[Any, ...],
    order: int,
    modes: Sequence[str],
    eps: float,
    limits: dict[str, float],
    directions: _Directions,
) -> None:
    """Compare derivatives up to ``order`` with differences of step ``eps``.

    ``modes`` are "fwd" and "rev"; ``limits`` are the tolerances. Orders above 1 check
    the derivatives of the jvp and vjp along random ``directions``.
    """
    name = own_name(f)
    further = order > 1
    rest: Any = (order - 1, modes, eps, limits, directions)
    if "fwd" in modes:
        check_jvp(f, partial(jvp, f), args, eps=eps, **limits, err_msg=f"jvp of {name}")
        if further:
            tangents = directions.like(args)

            def forward(*given: Any) -> Any:
                """Return the jvp along fixed tangents, at arguments ``given``."""
                return jvp(f, given, tangents)[1]

            forward.__name__ = f"jvp of {name}"
            _check(forward, args, *rest)
    if "rev" in modes:
        check_vjp(f, partial(vjp, f), args, eps=eps, **limits, err_msg=f"vjp of {name}")
        if further:
            cotangents = directions.like(f(*args))

            def backward(*given: Any) -> Any:
                """Return the vjp of fixed cotangents, at arguments ``given``."""
                return vjp(f, *given)[1](cotangents)

            backward.__name__ = f"vjp of {name}"
            _check(backward, args, *rest)


def _is_inexact(leaf: Any) -> bool:
    """Return whether a leaf is floating-point or complex."""
    return leaf_type(leaf).dtype in dtypes.INEXACT


def _narrowest(args: Sequence[Any]) -> int:
    """Return the bits of the narrowest floating-point dtype in ``args``.

    Complex numbers count by their real parts. It is 64 if there is none.
    """
    kinds = [leaf_type(leaf).dtype for leaf in tree.leaves(tuple(args))]
    inexact = [dtypes.real_of(k) for k in kinds if k in dtypes.INEXACT]
    return min((8 * k.itemsize for k in inexact), default=64)


class _Directions:
    """A source of random directions, which are the same in each run."""

    def __init__(self) -> None:
        """Start the random generator at a fixed seed."""
        self._random = np.random.default_rng(_SEED)

    def like(self, value: Any) -> Any:
        """Return a tree like ``value``: normal numbers, and zeros for integers."""
        return tree.map(self._one, value)

    def _one(self, leaf: Any) -> Any:
        """Return normal random numbers like ``leaf``; zeros for integers."""
        type = leaf_type(leaf)
        if type.dtype not in dtypes.INEXACT:
            return np.zeros(type.shape, type.dtype)
        numbers: Any = self._random.standard_normal(type.shape)
        if type.dtype in dtypes.COMPLEX:
            numbers = numbers + 1j * self._random.standard_normal(type.shape)
        return np.asarray(numbers, type.dtype)


def _difference(f: Function, args: Sequence[Any], tangents: Any, eps: float) -> Any:
    """Return the central difference of ``f`` at ``args`` along ``tangents``.

    It is (f(args + eps tangents) - f(args - eps tangents)) / (2 eps).
    """

    def moved(step: float) -> Any:
        """Return the value at ``args``, moved by ``step`` times the tangents."""

        def one(leaf: Any, tangent: Any) -> Any:
            """Move a leaf, and keep its dtype."""
            if not _is_inexact(leaf):
                return leaf
            exact = np.asarray(leaf) + np.asarray(step * tangent)
            return exact.astype(leaf_type(leaf).dtype)

        return f(*tree.map(one, tuple(args), tangents))

    def quotient(high: Any, low: Any) -> Any:
        """Return the difference of two values over the distance; zeros for integers."""
        if not _is_inexact(high):
            return np.zeros(leaf_type(high).shape)
        return (np.asarray(high) - np.asarray(low)) / np.asarray(2.0 * eps)

    return tree.map(quotient, moved(eps), moved(-eps))


def _inner(first: Any, second: Any) -> Any:
    """Return the real part of the sum of products of two pytrees, in float64."""
    pairs = zip(tree.leaves(first), tree.leaves(second), strict=True)
    wide = [(np.asarray(x), np.asarray(y)) for x, y in pairs]
    return sum(np.sum(x * y, dtype=np.complex128).real for x, y in wide)


def _close(ours: Any, expected: Any, what: str, limits: dict[str, float]) -> None:
    """Raise AssertionError, about ``what``, unless all leaves are close."""
    for x, y in zip(tree.leaves(ours), tree.leaves(expected), strict=True):
        left, right = (np.asarray(v).astype(np.complex128) for v in (x, y))
        if left.shape != right.shape or not np.allclose(
            left, right, **limits, equal_nan=True
        ):
            raise AssertionError(f"{what}: {x} is not the difference's {y}")


__all__ = ["check_grads", "check_jvp", "check_vjp"]
