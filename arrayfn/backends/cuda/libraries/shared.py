"""Opens NVIDIA's libraries and calls them through ctypes.

nvmath-python binds the same functions. Its import takes 0.19 s of CPU time, beside 0.07
for cuda-bindings (2-core Xeon), and a warm process imports neither.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from arrayfn.backends.cuda.driver import current_number, device
from arrayfn.errors import BackendError


class Library:
    """A library, opened at the first call. ``title`` is its name in messages.

    ``what`` is the feature that needs it, for the BackendError if it is missing.
    Functions that take a handle are called by ``routine``; ``create`` makes the handle
    and ``set_stream`` sets its stream.
    """

    def __init__(
        self,
        title: str,
        name: str,
        what: str,
        create: str = "",
        set_stream: str = "",
        package: str = "",
    ) -> None:
        self.title = title
        self._name = name
        self._what = what
        self._package = package or f"nvidia-{name.lower()}"
        self._create = create
        self._set_stream = set_stream
        self._made: dict[tuple[int, str], ctypes.c_void_p] = {}

    @cached_property
    def functions(self) -> Any:
        """The library's functions."""
        return open_library(self._name, self._what, self._package)

    def has(self, function: str) -> bool:
        """Whether this version of the library has a function."""
        return hasattr(self.functions, function)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function; raise BackendError unless its status is success."""
        status = getattr(self.functions, function)(*arguments)
        if status:
            raise BackendError(f"{self.title} says: error {status} in {function}")

    @property
    def handle(self) -> ctypes.c_void_p:
        """The handle of this GPU, created at the first call."""
        return self.per_gpu_object(self._create)

    def per_gpu_object(self, create: str) -> ctypes.c_void_p:
        """The object that the function ``create`` makes for each GPU: a handle, say."""
        key = current_number(), create
        if key not in self._made:
            device().make_current()
            result = ctypes.c_void_p()
            self.call(create, ctypes.byref(result))
            self._made[key] = result
        return self._made[key]

    def routine(self, function: str, stream: int) -> Callable[..., None]:
        """``function`` with the handle, to enqueue on ``stream``."""
        handle = self.handle
        device().make_current()
        self.call(self._set_stream, handle, ctypes.c_void_p(stream))
        return partial(self.call, function, handle)


def open_library(name: str, what: str, package: str) -> Any:
    """Open NVIDIA's library ``name``, which ``what`` needs and ``package`` has.

    Raises BackendError if it is not installed.
    """
    try:
        finder = importlib.import_module("cuda.pathfinder")
        return ctypes.CDLL(str(finder.load_nvidia_dynamic_lib(name).abs_path))
    except (ImportError, OSError, RuntimeError):
        pass
    for version in (".so.13", ".so.12", ".so.1", ".so"):
        try:
            return ctypes.CDLL(f"lib{name}{version}")
        except OSError:
            continue
    raise BackendError(f"{what} on a GPU needs {name}: pip install {package}")
