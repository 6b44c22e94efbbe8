"""``disable_jit``: calls of jitted functions run as plain Python."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from arrayfn.compilation.jit import Jitted


class _Choice(threading.local):
    """Whether this thread runs jitted functions as plain Python."""

    plain = False


_choice = _Choice()
_compiled = Jitted.__call__
_lock = threading.Lock()
_open: list[object] = []  # the ``disable_jit`` blocks of all threads


def _chosen(self: Jitted, *args: Any, **kwargs: Any) -> Any:
    """A call of a jitted function while a thread has disabled jit."""
    if _choice.plain:
        return self.python_function(*args, **kwargs)
    return _compiled(self, *args, **kwargs)


@contextmanager
def disable_jit(disable: bool = True) -> Generator[None]:
    """In this block, and in this thread, jitted functions run as plain Python.

    ``print``, ``pdb`` and ``if x > 0:`` then see values, and results are NumPy arrays,
    whatever device was named. Functions given to ``lax.scan`` and the like are traced
    all the same. Calls outside such blocks cost nothing more.

    >>> from arrayfn.compilation.jit import jit
    >>> f = jit(lambda x: 1.0 if x > 0 else -1.0)
    >>> with disable_jit():
    ...     f(2.0)
    1.0
    """
    previous, block = _choice.plain, object()
    with _lock:
        _open.append(block)
        Jitted.__call__ = _chosen
    _choice.plain = disable
    try:
        yield
    finally:
        _choice.plain = previous
        with _lock:
            _open.remove(block)
            if not _open:
                Jitted.__call__ = _compiled
