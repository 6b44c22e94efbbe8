"""NumPy as it stands: nothing compiled, no gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from scipy import special


class NumpyEngine:
    """NumPy, one operation at a time."""

    name = "numpy"
    version = np.__version__
    numpy = np

    def erf(self, x: Any) -> Any:
        return special.erf(x)

    def grad(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        raise NotImplementedError("NumPy has no gradients")

    def value_and_grad(self, f: Callable[..., Any]) -> Callable[..., Any]:
        raise NotImplementedError("NumPy has no gradients")

    def jit(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return f

    def put(self, inputs: Any) -> Any:
        return inputs

    def wait(self, result: Any) -> None:
        pass

    def leaves(self, result: Any) -> list[Any]:
        return list(result) if isinstance(result, tuple) else [result]

    def precision(self, dtype: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def set_threads(self, count: int) -> bool:
        return False

    def store_in(self, directory: str) -> None:
        pass


ENGINE = NumpyEngine
