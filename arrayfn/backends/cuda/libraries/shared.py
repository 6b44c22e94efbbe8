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
    """A library of NVIDIA's, which is opened at the first call.

    ``title`` is the library's name in messages, ``name`` its file's ("cublas"), and
    ``package`` the Python package that has it. ``what`` is the feature that needs the
    library, for the BackendError if it is missing. ``create`` and ``set_stream`` are
    the functions that make a handle and set its stream; functions that take a handle
    are called through ``routine``.
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
        """Take the names; ``package`` is by default ``nvidia-<name>``."""
        self.title = title
        self._name = name
        self._what = what
        self._package = package or f"nvidia-{name.lower()}"
        self._create = create
        self._set_stream = set_stream
        # By the GPU's number, and the function that made the object.
        self._objects: dict[tuple[int, str], ctypes.c_void_p] = {}

    @cached_property
    def functions(self) -> Any:
        """The opened library, whose attributes are its functions."""
        return open_library(self._name, self._what, self._package)

    def has(self, function: str) -> bool:
        """Whether the installed version of the library has ``function``."""
        return hasattr(self.functions, function)

    def call(self, function: str, *arguments: Any) -> None:
        """Call the library's ``function``; raise BackendError for a status but 0."""
        status = getattr(self.functions, function)(*arguments)
        if status:
            raise BackendError(f"{self.title} says: error {status} in {function}")

    @property
    def handle(self) -> ctypes.c_void_p:
        """The library's handle for this thread's GPU, created at the first use."""
        return self.per_gpu_object(self._create)

    def per_gpu_object(self, create: str) -> ctypes.c_void_p:
        """Return the object that the function ``create`` makes for this thread's GPU.

        It is a handle, for example, and made at the first call for a GPU.
        """
        key = current_number(), create
        if key not in self._objects:
            device().make_current()
            result = ctypes.c_void_p()
            self.call(create, ctypes.byref(result))
            self._objects[key] = result
        return self._objects[key]

    def routine(self, function: str, stream: int) -> Callable[..., None]:
        """Return the library's ``function`` with the handle as its first argument.

        Sets the handle to enqueue on ``stream``.
        """
        handle = self.handle
        device().make_current()
        self.call(self._set_stream, handle, ctypes.c_void_p(stream))
        return partial(self.call, function, handle)


def open_library(name: str, what: str, package: str) -> Any:
    """Open NVIDIA's library ``name`` by ctypes, from ``package`` or the system.

    Raises BackendError, which says that ``what`` needs it, if it is not installed.
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
