"""JAX in its fastest setting: jitted, on its own arrays, x64 only for f64 cases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

# Where there is a GPU, JAX would take it: these engines are compared on the CPU.
jax.config.update("jax_platforms", "cpu")
# Full float32 products, as arrayfn's: XLA takes bfloat16 where a CPU has tiles for it.
jax.config.update("jax_default_matmul_precision", "highest")


class JaxEngine:
    """JAX on the CPU."""

    name = "jax"
    version = jax.__version__
    numpy = jnp
    lax = jax.lax

    def erf(self, x: Any) -> Any:
        return jax.lax.erf(x)

    def grad(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        return jax.grad(f, argnums=argnums)

    def value_and_grad(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.value_and_grad(f)

    def hessian(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.hessian(f)

    def vmap(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(f)

    def jit(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(f)

    def put(self, inputs: Any) -> Any:
        return jax.block_until_ready(jax.device_put(inputs))

    def wait(self, result: Any) -> None:
        if isinstance(result, jax.Array):
            result.block_until_ready()
        else:
            jax.block_until_ready(result)

    def leaves(self, result: Any) -> list[Any]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(result)]

    def precision(self, dtype: str) -> AbstractContextManager[Any]:
        return jax.enable_x64(True) if dtype == "float64" else nullcontext()

    def set_threads(self, count: int) -> bool:
        return False  # fixed when XLA starts

    def store_in(self, directory: str) -> None:
        """Off by default, so that a cold compile is measured without it."""
        jax.clear_caches()
        jax.config.update("jax_compilation_cache_dir", directory)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        compilation_cache.reset_cache()


ENGINE = JaxEngine
