"""The functions of einops for traced arrays and arrays on a device.

einops finds the library of an array among the subclasses of its ``AbstractBackend``.
arrayfn defines its subclass as soon as a program has imported both einops and arrayfn.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.tracing import ImmutableArray, namespace

_MODULE = "einops._backends"


class _Finder:
    """An import hook that lets einops' module of backends be found as usual.

    It makes sure that arrayfn's backend is defined once the module has run. It is in
    ``sys.meta_path`` until then.
    """

    def find_spec(self, name: str, _path: object, _target: object = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)  # the call below must not find this hook again
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            _run_after(spec)
        return spec


def _run_after(spec: ModuleSpec) -> None:
    """Make the loader of ``spec`` define arrayfn's backend after the module has run."""
    loader: Any = spec.loader
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        """Run the module, then define the backend."""
        run(module)
        _define(module)

    loader.exec_module = exec_module


def _define(backends: Any) -> None:
    """Define the subclass of einops' backends that einops finds for our arrays."""

    class ArrayfnBackend(backends.NumpyBackend):  # pyright: ignore[reportUnusedClass]
        framework_name = "arrayfn"

        def __init__(self) -> None:
            self.np = namespace().module

        def is_appropriate_type(self, tensor: object) -> bool:
            return isinstance(tensor, ImmutableArray)

        def from_numpy(self, x: np.ndarray[Any, Any]) -> Any:
            return self.np.asarray(x)

        def to_numpy(self, x: ImmutableArray) -> np.ndarray[Any, Any]:
            return x.concrete("to_numpy", "Return the array from the traced function")

        def is_float_type(self, x: ImmutableArray) -> bool:
            return x.dtype in dtypes.FLOATS

    backends._arrayfn_backend = ArrayfnBackend


def install() -> None:
    """Define the backend now if einops is imported, or else when it is imported."""
    backends = sys.modules.get(_MODULE)
    if backends is not None:
        _define(backends)
    else:
        sys.meta_path.insert(0, _Finder())
