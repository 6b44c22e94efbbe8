"""Makes ``import jax`` give arrayfn, so that programs and tests for JAX run on it.

A module of JAX is one of three things:

* *ours*: the public namespaces, with arrayfn's functions under JAX's names;
* *JAX's own*: a few files of the installed JAX that hold test utilities, dtypes and
  flags, and libraries written on JAX's public functions (stax, optimizers). They are
  executed with arrayfn in JAX's place;
* *absent*: all others, JAX's compiler and its internals (``tests.conformance.absent``).

A public name that arrayfn has not raises AttributeError, so that the test fails; one
that arrayfn leaves out on purpose (``arrayfn.tools.left_out``) is absent.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import math
import os
import re
import sys
import types
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

import arrayfn as af
from arrayfn.tools.left_out import LEFT_OUT
from arrayfn.tools.surface import NAMESPACES
from tests.conformance.absent import absent

# Files of JAX that are executed as they are.
_JAXS_OWN = {
    "jax.version",
    "jax._src.lib",
    "jax._src.logging_config",
    "jax._src.traceback_util",
    "jax._src.config",
    "jax._src.util",
    "jax._src.dtypes",
    "jax._src.typing",
    "jax._src.basearray",
    "jax._src.deprecations",
    "jax._src.test_util",
    "jax._src.public_test_util",
    "jax._src.test_loader",
    "jax._src.test_warning_util",
    "jax._src.lax_reference",
    "jax._src.internal_test_util",
    "jax._src.internal_test_util.lax_test_util",
    "jax.example_libraries",
    "jax.example_libraries.stax",
    "jax.example_libraries.optimizers",
    "jax.typing",
}

_ERRORS = {
    "ConcretizationTypeError": "AbstractValueError",
    "NonConcreteBooleanIndexError": "AbstractValueError",
    "TracerArrayConversionError": "TracedConversionError",
    "TracerBoolConversionError": "AbstractValueError",
    "TracerIntegerConversionError": "AbstractValueError",
    "UnexpectedTracerError": "TracerLeakError",
}


# Flags of JAX that tests set around what they test. Here they change nothing: types
# promote as NumPy's, and keys are of one generator.
_FLAGS = (
    "enable_checks",
    "enable_custom_prng",
    "legacy_prng_key",
    "log_compiles",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
    "threefry_partitionable",
    "default_matmul_precision",
)


class Layered(types.ModuleType):
    """A module with the names of ``extra``, then those of ``sources`` in order.

    Any other name raises AttributeError, or is absent if ``otherwise_absent``.
    """

    def __init__(
        self,
        name: str,
        *sources: Any,
        otherwise_absent: bool = False,
        **extra: Any,
    ) -> None:
        super().__init__(name)
        self.__path__ = []
        self._sources = sources
        self._otherwise_absent = otherwise_absent
        self.__dict__.update(extra)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for source in self._sources:
            with contextlib.suppress(AttributeError):
                return getattr(source, name)
        path = f"{self.__name__}.{name}"
        if path in _JAXS_OWN or path in _OURS:
            return importlib.import_module(path)
        if self._otherwise_absent or _left_out(self.__name__, name):
            return absent(path)
        raise AttributeError(f"{path} is missing in arrayfn")


@functools.cache
def _left_out(module: str, name: str) -> bool:
    patterns = " ".join(LEFT_OUT.get(module, {}).values()).split()
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _jax() -> types.ModuleType:
    config = importlib.import_module("jax._src.config")
    return Layered(
        "jax",
        af,
        config=config.config,
        ShapeDtypeStruct=_ShapedArray,
        **{name: getattr(config, name) for name in _FLAGS},
        errors=_errors(),
        Array=af.Array,
        # What JAX does with numbers on one machine.
        device_count=lambda *_, **__: len(_devices()),
        local_device_count=lambda *_, **__: len(_devices()),
        default_backend=lambda: "cpu",
        process_index=lambda *_: 0,
        process_count=lambda *_: 1,
        devices=_devices,
        local_devices=_devices,
        P=af.PartitionSpec,
        ensure_compile_time_eval=contextlib.nullcontext,
        effects_barrier=_nothing,  # calls on a CPU are synchronous
        device_put=_device_put,
        make_jaxpr=af.make_jaxpr,
        __version__=importlib.import_module("jax.version").__version__,
        float0=np.dtype([("float0", np.void, 0)]),
    )


def _device_put(x: Any, device: Any = None, **_: Any) -> Any:
    """JAX's default device is the first one; here it is the CPU."""
    if device is None or isinstance(device, af.Device):
        return af.tree.map(af.numpy.asarray, x)
    return af.device_put(x, device)


def _devices(*_: Any, **__: Any) -> list[Any]:
    return list(af.devices())


def _errors() -> types.ModuleType:
    errors = {theirs: getattr(af.errors, ours) for theirs, ours in _ERRORS.items()}
    return Layered(
        "jax.errors",
        af.errors,
        otherwise_absent=True,
        JAXTypeError=af.errors.ArrayfnError,
        JAXIndexError=af.errors.OutOfBoundsError,
        JaxRuntimeError=RuntimeError,
        **errors,
    )


def _dtypes() -> types.ModuleType:
    own = importlib.import_module("jax._src.dtypes")
    return Layered("jax.dtypes", own)


def _keys(name: str) -> types.ModuleType:
    """The classes of keys and of their dtype, which JAX's tests ask for."""
    af.random.Key._impl = types.SimpleNamespace(key_shape=(2,), tag="fry")
    key_type = type(af.random.key_dtype())
    return Layered(
        name, otherwise_absent=True, PRNGKeyArray=af.random.Key, KeyTy=key_type
    )


def _numpy(name: str) -> types.ModuleType:
    own = importlib.import_module("jax._src.dtypes")
    # arrayfn refuses these types; tests make lists of them when they are imported.
    narrow = {each: getattr(own, each) for each in dir(own) if _NARROW.fullmatch(each)}
    given_up = {"float_": np.float64, "complex_": np.complex128}
    return Layered(name, af.numpy, **narrow, **given_up)


_NARROW = re.compile(r"u?int[124]|float[48]_\w+")


class _Cache:
    misses = hits = currsize = 0

    def cache_info(self) -> _Cache:
        return self

    def cache_clear(self) -> None: ...


class _ShapedArray(af.ShapeDtypeStruct):
    """A shape and a dtype, with the text that tests make names of."""

    __slots__ = ()

    def str_short(self) -> str:
        return f"{np.dtype(self.dtype).name}[{','.join(map(str, self.shape))}]"


def _core() -> types.ModuleType:
    from arrayfn.tracing import Tracer

    return Layered(
        "jax._src.core",
        otherwise_absent=True,
        ShapedArray=_ShapedArray,
        Tracer=Tracer,
        reset_trace_state=lambda: True,
        trace_state_clean=lambda: True,
        typeof=af.typeof,
        get_aval=af.typeof,
        new_ref=af.new_ref,
        freeze=af.freeze,
        Ref=af.Ref,
        is_constant_dim=lambda d: True,
        is_constant_shape=lambda shape: True,
    )


def _backend() -> types.ModuleType:
    def get_backend(*_: Any) -> Any:
        return types.SimpleNamespace(
            platform="cpu", platform_version="", devices=_devices
        )

    get_backend.cache_clear = lambda: None
    return Layered(
        "jax._src.xla_bridge",
        otherwise_absent=True,
        devices=_devices,
        local_devices=_devices,
        device_count=lambda *_: len(_devices()),
        get_backend=get_backend,
        num_cpu_devices=types.SimpleNamespace(value=8),
    )


def pass_on_flags() -> None:
    """Set arrayfn's options to the values that a test has set JAX's flags to."""
    config: Any = importlib.import_module("jax._src.config")
    for name in ("debug_nans", "debug_infs"):
        setattr(af.config, name, bool(getattr(config, name).value))


def _nothing(*_: Any, **__: Any) -> None: ...


def _mesh(devices: Any, names: Any, axis_types: Any = None) -> Any:
    """Axes of a mesh are of one type here."""
    return af.Mesh(devices, names)


class _AxisType:
    Auto, Explicit, Manual = "auto", "explicit", "manual"


def _numpy_util() -> types.ModuleType:
    anp = af.numpy

    def promote_dtypes(*args: Any) -> list[Any]:
        dtype = anp.result_type(*args)
        return [anp.asarray(x, dtype=dtype) for x in args]

    def promote_dtypes_inexact(*args: Any) -> list[Any]:
        dtype = anp.result_type(*args)
        if not anp.issubdtype(dtype, np.inexact):
            dtype = np.exp(np.zeros((), dtype)).dtype  # as NumPy's functions choose
        return [anp.asarray(x, dtype=dtype) for x in args]

    return Layered(
        "jax._src.numpy.util",
        otherwise_absent=True,
        promote_dtypes=promote_dtypes,
        promote_dtypes_inexact=promote_dtypes_inexact,
    )


def _experimental() -> types.ModuleType:
    return Layered(
        "jax.experimental",
        otherwise_absent=True,
        io_callback=af.io_callback,
        disable_x64=contextlib.nullcontext,
        enable_x64=contextlib.nullcontext,
    )


def _ode() -> types.ModuleType:
    return Layered("jax.experimental.ode", importlib.import_module("arrayfn.ode"))


def _checkify(name: str) -> types.ModuleType:
    """Errors of checks with the texts of JAX's, which its tests compare."""
    ours = importlib.import_module("arrayfn.checkify")
    faults = importlib.import_module("arrayfn.passes.faults")

    def text(error: Any, fault: int, message: str) -> str:
        site = error.sites[fault >> faults.DETAIL_BITS]
        if site.kind == faults.NAN:
            return f"nan generated by primitive: {site.name}"
        if site.kind == faults.DIVISION:
            return "division by zero"
        if site.kind != faults.INDEX:
            return message
        index = (fault & ((1 << faults.DETAIL_BITS) - 1)) - faults.MAX_INDEX
        if index < 0 and not site.length:
            index += site.extent  # JAX has added it before
        axis = f"axis {site.axis} with size {site.extent}"
        return f"out-of-bounds indexing: index {index} is out of bounds for {axis}"

    def get(error: Any) -> str | None:
        """The texts of all members' errors."""
        if error.get_exception() is None:
            return None
        members = np.ndindex(np.shape(error.numbers[-1]))
        each = [ours.Error(error.sites, [x[k] for x in error.numbers]) for k in members]
        return "\n".join(
            text(error, int(one.numbers[-1]), one.get_exception().message)
            for one in each
            if one.get_exception() is not None
        )

    ours.Error.get = get
    return Layered(name, ours, otherwise_absent=True)


def _over(ours: str, *, internal: bool = False) -> Callable[[str], types.ModuleType]:
    def make(name: str) -> types.ModuleType:
        modules = [importlib.import_module(each) for each in ours.split()]
        return Layered(name, *modules, otherwise_absent=internal)

    return make


_OURS: dict[str, Callable[[str], types.ModuleType]] = {
    theirs: _over(ours)
    for theirs, ours in NAMESPACES
    if theirs.startswith("jax.") and ":" not in ours
} | {
    "jax": lambda _: _jax(),
    "jax.numpy": _numpy,
    "jax.errors": lambda _: _errors(),
    "jax.dtypes": lambda _: _dtypes(),
    "jax.core": lambda _: _core(),
    "jax.test_util": lambda name: Layered(
        name, importlib.import_module("jax._src.public_test_util")
    ),
    "jax.scipy": _over("arrayfn.scipy"),
    "jax.scipy.cluster": _over("arrayfn.scipy.cluster"),
    "jax.scipy.sparse": _over("arrayfn.scipy.sparse"),
    "jax.scipy.spatial": _over("arrayfn.scipy.spatial"),
    "jax.ref": _over("arrayfn.references"),
    "jax.custom_derivatives": _over("arrayfn.custom_derivatives"),
    "jax.ad_checkpoint": _over("arrayfn.ad_checkpoint"),
    "jax.checkpoint_policies": _over("arrayfn.checkpoint_policies"),
    "jax.sharding": _over("arrayfn.sharding arrayfn", internal=True),
    "jax.experimental": lambda _: _experimental(),
    "jax.experimental.ode": lambda _: _ode(),
    "jax.experimental.jet": lambda name: Layered(
        name, af, otherwise_absent=True, fact=math.factorial, zero_series=object()
    ),
    "jax._src.debugging": lambda name: Layered(
        name, otherwise_absent=True, debug_print=af.debug.print
    ),
    "jax.experimental.shard_map": _over("arrayfn"),
    "jax.experimental.pjit": lambda name: Layered(
        name, otherwise_absent=True, pjit=af.jit
    ),
    "jax.experimental.checkify": _checkify,
    # Internals that have a public counterpart.
    "jax._src.api": lambda _: sys.modules["jax"],
    "jax._src.core": lambda _: _core(),
    "jax._src.xla_bridge": lambda _: _backend(),
    "jax._src.dispatch": lambda name: Layered(
        name,
        otherwise_absent=True,
        xla_primitive_callable=_Cache(),
        runtime_tokens=types.SimpleNamespace(
            clear=_nothing, block_until_ready=_nothing
        ),
    ),
    "jax._src.compilation_cache": lambda name: Layered(
        name, otherwise_absent=True, _cache=None
    ),
    "jax._src.mesh": lambda name: Layered(
        name, otherwise_absent=True, Mesh=_mesh, AxisType=_AxisType
    ),
    "jax._src.sharding_impls": lambda name: Layered(
        name,
        otherwise_absent=True,
        make_mesh=lambda shape, names, *_, **__: af.make_mesh(shape, names),
        set_mesh=af.set_mesh,
        NamedSharding=af.NamedSharding,
        PartitionSpec=af.PartitionSpec,
    ),
    "jax._src.shard_map": _over("arrayfn", internal=True),
    "jax._src.array": lambda name: Layered(
        name,
        otherwise_absent=True,
        make_array_from_callback=af.make_array_from_callback,
    ),
    "jax._src.numpy.util": lambda _: _numpy_util(),
    "jax._src.tree_util": _over("arrayfn.tree_util", internal=True),
    "jax._src.lax": _over("arrayfn.lax", internal=True),
    "jax._src.lax.lax": _over("arrayfn.lax", internal=True),
    "jax._src.lax.control_flow": _over("arrayfn.lax", internal=True),
    "jax._src.lax.linalg": _over("arrayfn.lax.linalg", internal=True),
    "jax._src.random": _over("arrayfn.random", internal=True),
    "jax._src.random.prng": _keys,
    "jax._src.errors": lambda _: _errors(),
    "jax._src.ad_checkpoint": _over("arrayfn.ad_checkpoint", internal=True),
    "jax._src.custom_derivatives": _over("arrayfn.transforms.custom", internal=True),
    "jax._src.scipy.special": _over("arrayfn.scipy.special", internal=True),
    "jax._src.scipy.sparse.linalg": _over("arrayfn.scipy.sparse.linalg", internal=True),
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, jax: Path) -> None:
        self._jax = jax  # the folder of the installed package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "jax" and not name.startswith("jax."):
            return None
        if name in _JAXS_OWN:
            base = self._jax.joinpath(*name.split(".")[1:])
            if base.is_dir():
                return importlib.util.spec_from_file_location(
                    name, base / "__init__.py", submodule_search_locations=[]
                )
            return importlib.util.spec_from_file_location(name, f"{base}.py")
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        make = _OURS.get(spec.name)
        if make is not None:
            return make(spec.name)
        return Layered(spec.name, otherwise_absent=True)

    def exec_module(self, module: types.ModuleType) -> None: ...


def install() -> None:
    """Make ``import jax`` and its submodules give arrayfn, in this process.

    JAX must be installed, for the few files of it that are executed.
    """
    if "jax" in sys.modules:
        raise RuntimeError("jax is imported already")
    found = importlib.util.find_spec("jax")
    if found is None or found.origin is None:
        raise RuntimeError("JAX is not installed: pip install jax==0.10.2 absl-py")
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    os.environ.setdefault("JAX_TEST_DUT", "cpu")
    sys.meta_path.insert(0, _Finder(Path(found.origin).parent))
    # Files of JAX import each other through the package, so it comes first, empty.
    package = sys.modules["jax"] = Layered("jax", otherwise_absent=True)
    dtypes = importlib.import_module("jax._src.dtypes")
    dtypes.promote_types = af.numpy.promote_types  # promotion is NumPy's
    dtypes.result_type = lambda *args, **_: af.numpy.result_type(*args)
    dtypes.prng_key = af.dtypes.prng_key
    dtypes.extended = af.dtypes.extended
    flags: Any = importlib.import_module("jax._src.config")
    for name in ("jax_pprint_use_color",):  # defined in files that are absent
        flags.bool_state(name=name, default=False, help="")
    made = _jax()
    package.__dict__.update({k: v for k, v in vars(made).items() if k[:2] != "__"})
    package.__version__ = made.__version__
    for name in _OURS:
        if name != "jax":
            importlib.import_module(name)
