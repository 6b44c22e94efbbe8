"""Errors for names that a namespace lacks, with the namespace that has them.

``arrayfn.numpy.relu`` is an AttributeError that names ``arrayfn.nn.relu``.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any, Final

# In the order in which they are searched.
_NAMESPACES: Final = (
    *("arrayfn", "arrayfn.numpy", "arrayfn.nn", "arrayfn.random", "arrayfn.lax"),
    *("arrayfn.numpy.linalg", "arrayfn.numpy.fft", "arrayfn.scipy.special"),
    *("arrayfn.scipy.linalg", "arrayfn.scipy.stats", "arrayfn.scipy.signal"),
    *("arrayfn.scipy.optimize", "arrayfn.scipy.interpolate", "arrayfn.scipy.ndimage"),
    *("arrayfn.scipy.integrate", "arrayfn.lax.linalg", "arrayfn.nn.initializers"),
    *("arrayfn.optim", "arrayfn.sparse", "arrayfn.ode", "arrayfn.tree"),
    *("arrayfn.tree_util", "arrayfn.image", "arrayfn.debug", "arrayfn.checkify"),
    *("arrayfn.test_util", "arrayfn.distributed", "arrayfn.errors"),
)


def missing(namespace: str, name: str) -> AttributeError:
    """Return the error for ``name``, which the module ``namespace`` lacks.

    >>> print(missing("arrayfn.numpy", "relu"))
    module 'arrayfn.numpy' has no attribute 'relu'; there is arrayfn.nn.relu
    """
    text = f"module {namespace!r} has no attribute {name!r}"
    owner = "" if name.startswith("_") else _namespace_of(name)
    if owner:
        return AttributeError(f"{text}; there is {owner}.{name}")
    # With these Python suggests a similar name.
    return AttributeError(text, name=name, obj=sys.modules[namespace])


def tell_where(namespace: str) -> None:
    """Let the module ``namespace`` raise ``missing`` for names that it lacks."""

    def absent(name: str) -> Any:
        """Return the module's ``__getattr__``."""
        raise missing(namespace, name)

    vars(sys.modules[namespace]).setdefault("__getattr__", absent)


@cache
def _namespace_of(name: str) -> str:
    """Return the first namespace with the public ``name``; empty if there is none.

    A name is public if ``__all__`` has it, or if it is defined in the module.
    """
    for namespace in _NAMESPACES:
        module = import_module(namespace)
        value = vars(module).get(name)
        public = getattr(module, "__all__", ())
        if name in public or getattr(value, "__module__", "") == namespace:
            return namespace
    return ""
