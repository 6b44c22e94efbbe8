"""arrayfn: pure functions of arrays, differentiated, mapped and compiled.

import arrayfn as af, arrayfn.numpy as anp

step = af.jit(af.value_and_grad(loss))
value, gradients = step(params, batch)
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from arrayfn import (
    ad_checkpoint,
    checkpoint_policies,
    debug,
    distributed,
    errors,
    fft,
    flatten_util,
    lax,
    linalg,
    nn,
    numpy,
    ops,
    optim,
    random,
    sharding,
    tree,
)
from arrayfn.ad_checkpoint import checkpoint, checkpoint_name, remat
from arrayfn.backends.cpu.runtime import get_num_threads, set_num_threads
from arrayfn.backends.cuda import (
    DeviceArray,
    from_dlpack,
    memory_stats,
)
from arrayfn.backends.registry import (
    available_backends,
    backend_info,
    is_backend_available,
    register_backend,
)
from arrayfn.caches import clear_caches
from arrayfn.callbacks import pure_callback
from arrayfn.compilation import immediate
from arrayfn.compilation.bundles import load, save
from arrayfn.compilation.jit import jit
from arrayfn.compilation.operators import operator
from arrayfn.devices import block_until_ready, device_get, device_put
from arrayfn.distributed import (
    Device,
    Mesh,
    NamedSharding,
    PartitionSpec,
    ShardedArray,
    devices,
    local_devices,
    make_array_from_callback,
    make_mesh,
    set_num_devices,
)
from arrayfn.tools.compare import compare
from arrayfn.tools.hazards import lint
from arrayfn.tracing import Namespace
from arrayfn.transforms import (
    ShapeDtypeStruct,
    eval_shape,
    grad,
    hessian,
    jacfwd,
    jacobian,
    jacrev,
    jvp,
    linear_transpose,
    linearize,
    make_program,
    pmap,
    shard_map,
    value_and_grad,
    vjp,
    vmap,
)
from arrayfn.transforms.custom import (
    closure_convert,
    custom_gradient,
    custom_jvp,
    custom_vjp,
    stop_gradient,
)

if TYPE_CHECKING:
    from arrayfn import scipy

immediate.install()
Namespace.special_module = "arrayfn.scipy.special"


def __getattr__(name: str) -> object:
    """``arrayfn.scipy``, imported when it is asked for: a tenth of all the rest."""
    if name == "scipy":
        return import_module("arrayfn.scipy")
    raise AttributeError(f"module 'arrayfn' has no attribute {name!r}")


try:
    __version__ = version("arrayfn")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "Device",
    "DeviceArray",
    "Mesh",
    "NamedSharding",
    "PartitionSpec",
    "ShapeDtypeStruct",
    "ShardedArray",
    "ad_checkpoint",
    "available_backends",
    "backend_info",
    "block_until_ready",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clear_caches",
    "closure_convert",
    "compare",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "debug",
    "device_get",
    "device_put",
    "devices",
    "distributed",
    "errors",
    "eval_shape",
    "fft",
    "flatten_util",
    "from_dlpack",
    "get_num_threads",
    "grad",
    "hessian",
    "is_backend_available",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linalg",
    "linear_transpose",
    "linearize",
    "lint",
    "load",
    "local_devices",
    "make_array_from_callback",
    "make_mesh",
    "make_program",
    "memory_stats",
    "nn",
    "numpy",
    "operator",
    "ops",
    "optim",
    "pmap",
    "pure_callback",
    "random",
    "register_backend",
    "remat",
    "save",
    "scipy",
    "set_num_devices",
    "set_num_threads",
    "shard_map",
    "sharding",
    "stop_gradient",
    "tree",
    "value_and_grad",
    "vjp",
    "vmap",
]
