"""``print`` and ``callback`` from compiled code."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from arrayfn.callbacks import staged_call
from arrayfn.errors import ArgumentError, user_location
from arrayfn.primitives import callbacks
from arrayfn.transforms import name_of


@contextmanager
def named_scope(name: str) -> Generator[None]:
    """A block, or as a decorator a function, with a name for who reads the code.

    Equations carry the file and line that made them, so the name changes nothing.

    >>> with named_scope("encoder"):
    ...     total = 1.0 + 2.0
    """
    yield


def callback(
    callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any
) -> None:
    """Call ``callback(*args, **kwargs)`` with NumPy arrays, for its effects.

    In compiled code it is called when the values are known. Calls keep the order in
    which they are written, so ``ordered`` changes nothing. Under ``vmap`` it is called
    once for each member. Derivatives ignore it. Its result is not used. The call of the
    compiled function raises its exceptions.

    >>> import numpy as np
    >>> from arrayfn.compilation.jit import jit
    >>> seen = []
    >>> def f(x):
    ...     callback(lambda y: seen.append(float(y)), x * 2)
    ...     return x
    >>> jit(f)(np.array(3.0)), seen
    (array(3.), [6.0])
    """

    def run(*operands: Any, **options: Any) -> tuple[Any, ...]:
        callback(*operands, **options)
        return ()

    row = callbacks.debug_callback
    if staged_call(row, run, name_of(callback), args, kwargs) is None:
        callback(*args, **kwargs)


def print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Print ``fmt.format(*args, **kwargs)`` when the values are known.

    In a traced function Python's ``print`` shows types without values. See
    ``callback`` for the order, ``vmap`` and derivatives.

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
    try:
        string.Formatter().vformat(fmt, args, kwargs)
    except (IndexError, KeyError) as error:
        raise ArgumentError(
            f"debug.print: the format {fmt!r} takes a value that is not given: "
            f"{error}; it is filled in as by str.format",
            user_location(),
        ) from None

    def show(*operands: Any, **options: Any) -> None:
        sys.stdout.write(fmt.format(*operands, **options) + "\n")

    callback(show, *args, ordered=ordered, **kwargs)
