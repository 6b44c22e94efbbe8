"""``print`` and ``callback`` from compiled code."""

from __future__ import annotations

import functools
import string
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import numpy as np
from typing_extensions import override

from arrayfn.callbacks import staged_call
from arrayfn.errors import ArgumentError, user_location
from arrayfn.primitives import callbacks
from arrayfn.transforms import name_of

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def named_scope(name: str) -> Generator[None]:
    """A context manager or decorator that names a part of the code for its readers.

    Equations carry the file and line that made them, so the name has no effect.

    >>> with named_scope("encoder"):
    ...     total = 1.0 + 2.0
    """
    yield


def named_call(fun: Callable[P, R], *, name: str | None = None) -> Callable[P, R]:
    """Return ``fun`` in a ``named_scope`` of this name, by default its own.

    >>> named_call(abs, name="magnitude")(-2.0)
    2.0
    """
    return named_scope(name_of(fun) if name is None else name)(fun)


_Callback = Callable[..., Any]


def callback(
    callback: _Callback | None = None, *args: Any, ordered: bool = False, **kwargs: Any
) -> Any:
    """Call ``callback(*args, **kwargs)`` with NumPy arrays, for its effects.

    Compiled code calls it when the values are known. Calls keep their order in the
    source, so ``ordered`` has no effect. ``vmap`` calls it once for each member.
    Derivatives ignore the callback, and its result is not used. The call of the
    compiled function raises the exceptions of the callback. Without a callback, the
    result is a function that takes one.

    >>> import numpy as np
    >>> from arrayfn.compilation.jit import jit
    >>> seen = []
    >>> def f(x):
    ...     callback(lambda y: seen.append(float(y)), x * 2)
    ...     return x
    >>> jit(f)(np.array(3.0)), seen
    (array(3.), [6.0])
    """
    if callback is None:
        return functools.partial(globals()["callback"], ordered=ordered)
    _run(callback, args, kwargs)
    return None


def _run(callback: _Callback, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call ``callback`` for its effects, or emit its call in a trace."""

    def run(*operands: Any, **options: Any) -> tuple[Any, ...]:
        """Call the callback, and drop its result."""
        callback(*operands, **options)
        return ()

    row = callbacks.debug_callback
    if staged_call(row, run, name_of(callback), args, kwargs) is None:
        callback(*args, **kwargs)


class _AllUsed(string.Formatter):
    """A formatter that refuses values which the format does not take."""

    @override
    def check_unused_args(
        self, used_args: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        given = [*range(len(args)), *kwargs]
        unused = [str(name) for name in given if name not in used_args]
        if unused:
            raise ArgumentError(
                f"debug.print: the format has no place for the value {unused[0]!r}; "
                "write {} or {name} for it (an f-string has already been filled in)",
                user_location(),
            )


def print(
    fmt: str | None = None, *args: Any, ordered: bool = False, **kwargs: Any
) -> Any:
    """Print ``fmt.format(*args, **kwargs)`` when the values are known.

    In a traced function Python's ``print`` shows types without values. See
    ``callback`` for the order, ``vmap`` and derivatives. Arrays are printed with the
    ``np.printoptions`` of the line that calls it. Without a format, the result is a
    function that takes one.

    Raises ArgumentError if the format and the values do not fit.

    >>> import numpy as np
    >>> from arrayfn.compilation.jit import jit
    >>> @jit
    ... def f(x):
    ...     print("x = {}, half of it {half:.2f}", x, half=x / 2)
    ...     return x
    >>> f(np.array(3.0))
    x = 3.0, half of it 1.50
    array(3.)
    """
    if fmt is None:
        return functools.partial(print, ordered=ordered)
    try:
        _AllUsed().vformat(fmt, args, kwargs)
    except (IndexError, KeyError) as error:
        raise ArgumentError(
            f"debug.print: the format {fmt!r} needs a value that was not given: "
            f"{error}; it is filled in as by str.format",
            user_location(),
        ) from None
    shown_with = np.get_printoptions()

    def show(*operands: Any, **options: Any) -> None:
        """Print the values, with the print options of the line that was traced."""
        with np.printoptions(**shown_with):
            sys.stdout.write(fmt.format(*operands, **options) + "\n")

    _run(show, args, kwargs)
    return None
