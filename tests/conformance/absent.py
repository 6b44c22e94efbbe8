"""What stands for parts of JAX that arrayfn has not: tests that use one are left out.

While test modules are imported, an ``Absent`` can be subclassed, called and used as a
decorator. While a test runs, using it raises ``NotApplicable``, which names the part.
"""

from __future__ import annotations

import types
import unittest
from typing import Any, NoReturn

running = False  # whether a test runs, as opposed to its module being imported


class NotApplicable(unittest.SkipTest):
    """The test uses a part of JAX that arrayfn has not, on purpose."""


class _AbsentClass(type):
    path: str

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.path}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if running:
            cls._refuse()
        if len(args) == 1 and isinstance(args[0], types.FunctionType) and not kwargs:
            return args[0]  # a decorator
        return absent(f"{cls.path}()")

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        if running:
            cls._refuse()
        return iter(())

    def __setitem__(cls, key: Any, value: Any) -> None:
        if running:
            cls._refuse()

    __delitem__ = __getitem__

    def __len__(cls) -> int:
        return 0

    def __enter__(cls) -> NoReturn:
        cls._refuse()

    def __exit__(cls, *_: object) -> None: ...

    def _refuse(cls) -> NoReturn:
        raise NotApplicable(f"uses {cls.path}")


def absent(path: str) -> Any:
    """A class that stands for ``path``."""
    return _AbsentClass(path.rpartition(".")[2], (), {"path": path})
