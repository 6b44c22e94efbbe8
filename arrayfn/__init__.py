"""arrayfn differentiates, maps and compiles pure functions of arrays.

import arrayfn as af, arrayfn.numpy as anp

step = af.jit(af.value_and_grad(loss))
value, gradients = step(params, batch)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from arrayfn import documentation as _documentation
from arrayfn import einops_backend, errors, logs, tracebacks, tree
from arrayfn.arrays import Array, typeof
from arrayfn.backends.registry import (
    LATER,
    available_backends,
    backend_info,
    is_backend_available,
    register_backend,
)
from arrayfn.caches import clear_caches
from arrayfn.compilation.debugging import (
    config,
    debug_infs,
    debug_nans,
    disable_jit,
    set_by_environment,
)
from arrayfn.compilation.jit import jit
from arrayfn.compilation.jitted import Jitted
from arrayfn.compilation.operators import Operator, operator
from arrayfn.documentation.missing_names import missing
from arrayfn.ir import Mesh, NamedSharding, PartitionSpec, Program
from arrayfn.references import Ref, empty_ref, freeze, new_ref
from arrayfn.tracing import Immediate, Namespace
from arrayfn.tracing.meshes import set_mesh
from arrayfn.transfers import (
    block_until_ready,
    device_get,
    device_put,
    from_dlpack,
    to_dlpack,
)
from arrayfn.transforms import (
    Dim,
    ShapeDtypeStruct,
    eval_shape,
    grad,
    hessian,
    jacfwd,
    jacobian,
    jacrev,
    jet,
    jvp,
    linear_transpose,
    linearize,
    make_program,
    pmap,
    shard_map,
    smap,
    value_and_grad,
    vjp,
    vmap,
)
from arrayfn.transforms.custom import (
    closure_convert,
    custom_gradient,
    custom_jvp,
    custom_vjp,
    custom_vmap,
    stop_gradient,
)

if TYPE_CHECKING:
    from arrayfn import (
        ad_checkpoint,
        adapters,
        checkify,
        checkpoint_policies,
        custom_batching,
        custom_derivatives,
        debug,
        distributed,
        fft,
        flatten_util,
        image,
        lax,
        linalg,
        nn,
        numpy,
        ode,
        ops,
        optim,
        random,
        scipy,
        sharding,
        sparse,
        test_util,
        tree_util,
    )
    from arrayfn.ad_checkpoint import checkpoint, checkpoint_name, remat
    from arrayfn.assertions import check
    from arrayfn.backends.cpu.runtime import get_num_threads, set_num_threads
    from arrayfn.backends.cuda.device_array import DeviceArray
    from arrayfn.backends.cuda.this_gpu import memory_stats
    from arrayfn.callbacks import io_callback, pure_callback
    from arrayfn.compilation.bundles import Bundle, load, save
    from arrayfn.compilation.compiled import Compiled
    from arrayfn.compilation.kernels import get_kernel, kernels
    from arrayfn.compilation.stages import Lowered
    from arrayfn.debug import named_call, named_scope
    from arrayfn.distributed import (
        Device,
        ShardedArray,
        devices,
        local_devices,
        make_array_from_callback,
        make_mesh,
        set_num_devices,
    )
    from arrayfn.lax import platform_dependent
    from arrayfn.lowering.plan import ExecutionPlan as Plan
    from arrayfn.parameter_files import load_parameters, save_parameters
    from arrayfn.tools.bisect import bisect
    from arrayfn.tools.compare import compare
    from arrayfn.tools.explain import explain
    from arrayfn.tools.hazards import lint
    from arrayfn.tools.profile import profile

    __version__: str

logs.configure_from_environment()
tracebacks.install()
einops_backend.install()
set_by_environment()
LATER["mesh"] = "arrayfn.distributed.backend:MeshBackend"
Immediate.module = "arrayfn.compilation.immediate"
Namespace.numpy_module = "arrayfn.numpy"
Namespace.special_module = "arrayfn.scipy.special"
Namespace.numba_module = "arrayfn.adapters.numba_functions"
make_jaxpr = make_program


# Public modules, and names with their modules, that are imported when they are named.
# Type checkers find them above.
_NAMESPACES = (
    *("ad_checkpoint", "adapters", "checkify", "checkpoint_policies"),
    *("custom_batching", "custom_derivatives", "debug", "distributed", "fft"),
    *("flatten_util", "image", "lax", "linalg", "nn", "numpy", "ode", "ops", "optim"),
    *("random", "scipy", "sharding", "sparse", "test_util", "tree_util"),
)
_NAMES = {
    "ad_checkpoint": ("checkpoint", "checkpoint_name", "remat"),
    "assertions": ("check",),
    "backends.cpu.runtime": ("get_num_threads", "set_num_threads"),
    "backends.cuda.device_array": ("DeviceArray",),
    "backends.cuda.this_gpu": ("memory_stats",),
    "callbacks": ("io_callback", "pure_callback"),
    "compilation.bundles": ("Bundle", "load", "save"),
    "compilation.compiled": ("Compiled",),
    "compilation.kernels": ("get_kernel", "kernels"),
    "compilation.stages": ("Lowered",),
    "debug": ("named_call", "named_scope"),
    "distributed": (
        *("Device", "ShardedArray", "devices", "local_devices"),
        *("make_array_from_callback", "make_mesh", "set_num_devices"),
    ),
    "lax": ("platform_dependent",),
    "lowering.plan": ("Plan",),
    "parameter_files": ("load_parameters", "save_parameters"),
    "tools.bisect": ("bisect",),
    "tools.compare": ("compare",),
    "tools.explain": ("explain",),
    "tools.hazards": ("lint",),
    "tools.profile": ("profile",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import the module of a public name when the name is first used.

    Functions get their documentation, and are stored as globals of this package.
    Another name raises an error that says where the name is.
    """
    if name in _NAMESPACES:
        return import_module(f"arrayfn.{name}")
    if name in _MODULES:
        module = import_module(f"arrayfn.{_MODULES[name]}")
        value = getattr(module, "ExecutionPlan" if name == "Plan" else name)
        _documentation.attach_to(__name__, name, value)
        globals()[name] = value
        return value
    if name == "__version__":
        return _version()
    raise missing(__name__, name)


def __dir__() -> list[str]:
    """Return all public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})


def _version() -> str:
    """Return the installed version; "0+unknown" for a source tree."""
    from importlib import metadata

    try:
        return metadata.version("arrayfn")
    except metadata.PackageNotFoundError:
        return "0+unknown"


__all__ = [
    "Array",
    "Bundle",
    "Compiled",
    "Device",
    "DeviceArray",
    "Dim",
    "Jitted",
    "Lowered",
    "Mesh",
    "NamedSharding",
    "Operator",
    "PartitionSpec",
    "Plan",
    "Program",
    "Ref",
    "ShapeDtypeStruct",
    "ShardedArray",
    "ad_checkpoint",
    "adapters",
    "available_backends",
    "backend_info",
    "bisect",
    "block_until_ready",
    "check",
    "checkify",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clear_caches",
    "closure_convert",
    "compare",
    "config",
    "custom_batching",
    "custom_derivatives",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "debug",
    "debug_infs",
    "debug_nans",
    "device_get",
    "device_put",
    "devices",
    "disable_jit",
    "distributed",
    "empty_ref",
    "errors",
    "eval_shape",
    "explain",
    "fft",
    "flatten_util",
    "freeze",
    "from_dlpack",
    "get_kernel",
    "get_num_threads",
    "grad",
    "hessian",
    "image",
    "io_callback",
    "is_backend_available",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jet",
    "jit",
    "jvp",
    "kernels",
    "lax",
    "linalg",
    "linear_transpose",
    "linearize",
    "lint",
    "load",
    "load_parameters",
    "local_devices",
    "make_array_from_callback",
    "make_jaxpr",
    "make_mesh",
    "make_program",
    "memory_stats",
    "named_call",
    "named_scope",
    "new_ref",
    "nn",
    "numpy",
    "ode",
    "operator",
    "ops",
    "optim",
    "platform_dependent",
    "pmap",
    "profile",
    "pure_callback",
    "random",
    "register_backend",
    "remat",
    "save",
    "save_parameters",
    "scipy",
    "set_mesh",
    "set_num_devices",
    "set_num_threads",
    "shard_map",
    "sharding",
    "smap",
    "sparse",
    "stop_gradient",
    "test_util",
    "to_dlpack",
    "tree",
    "tree_util",
    "typeof",
    "value_and_grad",
    "vjp",
    "vmap",
]

_documentation.attach(__name__)
