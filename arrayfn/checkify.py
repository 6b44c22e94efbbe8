"""Errors as values: ``checkify(f)`` returns an error beside the result.

``af.check`` and ``jit(f, checks=...)`` raise errors. A function that ``checkify`` makes
returns an ``Error`` instead. An ``Error`` is a pytree, so ``jit``, ``vmap`` and loops
can return it. The names are those of ``jax.experimental.checkify``.

The function is traced with its checks. The Program gets a further result, the *fault*,
which says which check failed (see ``passes.checks``). An Error holds the fault and the
sites of the checks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, ParamSpec, TypeVar, cast

import numpy as np
from typing_extensions import override

from arrayfn import tree
from arrayfn.assertions import check
from arrayfn.errors import ArgumentError, ArrayfnError, user_location
from arrayfn.ir import Equation
from arrayfn.passes.checks import with_checks
from arrayfn.passes.faults import (
    CHECK,
    DETAIL_BITS,
    DIVISION,
    INDEX,
    INF,
    KINDS,
    NAN,
    NO_FAULT,
    Site,
    fault_error,
)
from arrayfn.primitives.assertions import has_check
from arrayfn.tracing import apply_program
from arrayfn.tracing.frames import current_frame
from arrayfn.transforms import trace_function
from arrayfn.transforms.arguments import is_array, name_of, short
from arrayfn.transforms.mapping import with_fixed_leaves

P = ParamSpec("P")
R = TypeVar("R")

user_checks: Final = frozenset((CHECK,))
"""The conditions that the function asserts by ``check``."""
index_checks: Final = frozenset((INDEX,))
"""Indices out of bounds."""
nan_checks: Final = frozenset((NAN,))
"""Operations that make NaN of operands without NaN."""
inf_checks: Final = frozenset((INF,))
"""Operations that make an infinity of finite operands."""
div_checks: Final = frozenset((DIVISION,))
"""Divisions by zero."""
float_checks: Final = nan_checks | div_checks
"""NaN and divisions by zero."""
automatic_checks: Final = float_checks | index_checks
"""NaN, divisions by zero and indices out of bounds."""
all_checks: Final = automatic_checks | user_checks
"""The automatic checks, and the function's own."""


@tree.register_node
class Error:
    """The outcome of the checks of a call: ``get()`` is a message, or None.

    An Error is a pytree of numbers. Under ``vmap`` or ``scan`` the numbers have leading
    axes, and the Error is about the first member for which a check failed.

    >>> import numpy as np
    >>> from arrayfn.transforms import vmap
    >>> error, _ = vmap(checkify(lambda x: check(x > 0, "{} <= 0", x)))(np.arange(2.0))
    >>> error.get()
    '0.0 <= 0'
    """

    __slots__ = ("numbers", "sites")

    def __init__(self, sites: Sequence[Site] = (), numbers: Sequence[Any] = ()) -> None:
        """The Error of the checks at ``sites``.

        ``numbers`` are the values of the function's own checks, then the fault, a
        number that encodes the site that failed. Without sites there are none.
        """
        self.sites = tuple(sites)
        self.numbers = tuple(numbers)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Site, ...]]:
        """Return the numbers as children, and the sites, which are static."""
        return self.numbers, self.sites

    @classmethod
    def tree_unflatten(cls, sites: tuple[Site, ...], numbers: Sequence[Any]) -> Error:
        """Return the Error of these numbers."""
        return cls(sites, numbers)

    def get(self) -> str | None:
        """The message of the first check that failed, or None if no check failed."""
        error = self.get_exception()
        return None if error is None else error.message

    def get_exception(self) -> ArrayfnError | None:
        """Return the error that ``throw`` would raise, with the user's line, or None.

        Its class is the one that ``jit(f, checks=...)`` raises: CheckError,
        OutOfBoundsError, NotFiniteError or DivisionByZeroError.
        """
        if not self.sites:
            return None
        *values, faults = [np.asarray(x) for x in self.numbers]
        # The indices of members with a fault; empty indices without leading axes.
        bad = np.argwhere(faults != NO_FAULT)
        if not len(bad):
            return None
        member = tuple(bad[0])
        return fault_error(self.sites, int(faults[member]), [x[member] for x in values])

    def throw(self) -> None:
        """Raise the error of the first check that failed, if any check failed."""
        error = self.get_exception()
        if error is not None:
            raise error

    @override
    def __repr__(self) -> str:
        known = all(isinstance(x, (np.ndarray, np.generic)) for x in self.numbers)
        return f"Error({self.get() if known else f'{len(self.sites)} checks'!r})"


def checkify(
    f: Callable[P, R], errors: Iterable[str] = user_checks
) -> Callable[P, tuple[Error, R]]:
    """Return a function that does what ``f`` does, but returns (error, result).

    The function does not raise. ``errors`` are the kinds of checks: ``user_checks``
    (those of ``check``), ``index_checks``, ``nan_checks``, ``div_checks``,
    ``float_checks``, ``automatic_checks`` or ``all_checks``, or a union of several.
    Checks of other kinds are left as they are. The Error is about the first check of
    the function that failed. The result is computed all the same. A ``while_loop`` ends
    where a check failed. ``f`` is traced, so it sees no values of arrays, as under
    ``jit``. To compile it, write ``jit(checkify(f))``. Arguments that are neither
    arrays nor numbers reach ``f`` unchanged. The same holds for ``True`` and ``False``,
    and in a traced function for all Python numbers, such as static arguments of
    ``jit``. Raises ArgumentError for unknown kinds.

    >>> import arrayfn.numpy as anp
    >>> from arrayfn.compilation.jit import jit
    >>> error, y = jit(checkify(anp.log, errors=nan_checks))(-1.0)
    >>> print(error.get())
    log makes NaN of operands without NaN: they are outside its domain...
    >>> error, y = checkify(anp.log, errors=nan_checks)(1.0)
    >>> error.get() is None, y
    (True, array(0.))
    """
    kinds = frozenset(errors)
    if not kinds <= {*KINDS, CHECK}:
        raise ArgumentError(
            f"checkify: errors = {short(errors)} has unknown kinds; it must be one of "
            "user_checks, index_checks, float_checks, all_checks, or a union of them",
            user_location(),
        )

    def is_whole(call: Equation) -> bool:
        """Whether ``call`` has nothing to check: only user checks, and it has none."""
        return kinds <= user_checks and not has_check(call.params["body"])

    @functools.wraps(f)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> tuple[Error, R]:
        """Trace the function with checks, and apply its Program.

        Leaves that are no arrays are bound. Python bools are, too, and inside a trace
        all Python numbers.
        """
        leaves, structure = tree.flatten((args, kwargs))
        known = bool if current_frame() is None else (bool, int, float, complex)
        fixed = {
            k: x
            for k, x in enumerate(leaves)
            if isinstance(x, known) or not is_array(x)
        }
        arrays = [x for k, x in enumerate(leaves) if k not in fixed]
        traced = trace_function(
            with_fixed_leaves(f, structure, fixed),
            tuple(arrays),
            {},
            abstract=True,
            with_values=False,
            constants=False,
            checks=kinds,
        )
        program, sites = with_checks(
            traced.program, kinds - user_checks, is_whole, asserted=CHECK in kinds
        )
        results = apply_program(program, [*arrays, *traced.trace.captured], once=True)
        count = traced.out_tree.num_leaves
        result = tree.unflatten(traced.out_tree, results[:count])
        return Error(sites, results[count:]), cast(R, result)

    wrapper.__name__ = name_of(f)
    return wrapper


def check_error(error: Error) -> None:
    """Raise the error of the first check that failed, also from compiled code.

    Under ``jit``, calling the compiled function raises it as CheckError. ``checkify``
    around the compiled function makes the error a value again.

    >>> import numpy as np
    >>> from arrayfn.compilation.jit import jit
    >>> @jit
    ... def f(x):
    ...     error, y = checkify(lambda x: check(x > 0, "{} is not positive", x))(x)
    ...     check_error(error)
    >>> f(-1.0)
    Traceback (most recent call last):
    ...
    arrayfn.errors.CheckError: ... -1.0 is not positive
    """
    if current_frame() is None:
        error.throw()
        return
    if not error.sites:
        return
    *values, fault = error.numbers
    for number, site in enumerate(error.sites):
        own = [values.pop(0) for _ in site.names]  # the values in this site's message
        positional = [x for x, name in zip(own, site.names, strict=True) if not name]
        named = {n: x for x, n in zip(own, site.names, strict=True) if n}
        holds = (fault >> DETAIL_BITS) != number
        check(holds, _message(site), *positional, **named)


_PROBLEMS: Final = {
    NAN: "makes NaN",
    INF: "makes an infinity",
    DIVISION: "divides by zero",
    INDEX: "is out of bounds",
}


def _message(site: Site) -> str:
    """Return the format of the message about ``site``.

    A check of the user's has its own; others get a text without values.
    """
    if site.kind == CHECK:
        return site.name
    where = f", at {site.location}" if site.location is not None else ""
    return f"{site.name} {_PROBLEMS[site.kind]}{where}".replace("{", "{{")


def debug_check(condition: Any, message: str, *args: Any, **values: Any) -> None:
    """Do what ``check`` does, but only inside a function of ``checkify``.

    ``checkify`` must check the function for ``user_checks``. Elsewhere, ``debug_check``
    does nothing and costs nothing.

    >>> debug_check(False, "not seen")
    >>> checkify(lambda: debug_check(False, "seen"))()[0].get()
    'seen'
    """
    frame = current_frame()
    if frame is not None and CHECK in frame.checks:
        check(condition, message, *args, **values)


__all__ = [
    "Error",
    "all_checks",
    "automatic_checks",
    "check",
    "check_error",
    "checkify",
    "debug_check",
    "div_checks",
    "float_checks",
    "index_checks",
    "inf_checks",
    "nan_checks",
    "user_checks",
]
