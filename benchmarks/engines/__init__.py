"""How each engine compiles a function, takes its inputs, and delivers its results.

An engine is a class in a module of its own, so that a process imports only the one it
measures: ``load("jax")`` imports ``benchmarks.engines.with_jax``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Engine(Protocol):
    """What the measurements ask of an engine."""

    name: str
    version: str
    numpy: Any
    lax: Any

    def erf(self, x: Any) -> Any:
        """The error function, elementwise."""

    def grad(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        """The gradient of a scalar function."""

    def value_and_grad(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """A scalar function's value, and its gradient by the first argument."""

    def hessian(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The Hessian of a scalar function."""

    def vmap(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a batch, along the first axes."""

    def jit(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled function."""

    def put(self, inputs: Any) -> Any:
        """NumPy inputs as the engine likes them best."""

    def wait(self, result: Any) -> None:
        """Return when ``result`` has been computed."""

    def leaves(self, result: Any) -> list[Any]:
        """The arrays of a result, as NumPy arrays."""

    def precision(self, dtype: str) -> AbstractContextManager[Any]:
        """Holds while anything of this dtype is compiled or called."""

    def set_threads(self, count: int) -> bool:
        """Use ``count`` threads from now on; False if that cannot be set."""

    def store_in(self, directory: str) -> None:
        """Keep what is compiled from now on in ``directory``, and look for it there."""


ENGINES = ("arrayfn", "jax", "numpy")


def load(name: str) -> Engine:
    """The engine called ``name``; ImportError if it is not installed."""
    return importlib.import_module(f"benchmarks.engines.with_{name}").ENGINE()
