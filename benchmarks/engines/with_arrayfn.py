"""arrayfn as it is used: NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax


class ArrayfnEngine:
    """arrayfn on the CPU."""

    name = "arrayfn"
    version = af.__version__
    numpy = anp
    lax = lax

    def erf(self, x: Any) -> Any:
        return lax.erf(x)

    def grad(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        return af.grad(f, argnums=argnums)

    def value_and_grad(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return af.value_and_grad(f)

    def hessian(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return af.hessian(f)

    def vmap(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return af.vmap(f)

    def jit(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return af.jit(f)

    def put(self, inputs: Any) -> Any:
        return inputs

    def wait(self, result: Any) -> None:
        pass  # a CPU call is synchronous

    def leaves(self, result: Any) -> list[Any]:
        return list(af.tree.leaves(result))

    def precision(self, dtype: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def set_threads(self, count: int) -> bool:
        af.set_num_threads(count)
        return True

    def store_in(self, directory: str) -> None:
        pass  # the disk cache is always on; $ARRAYFN_CACHE_DIR says where


ENGINE = ArrayfnEngine
