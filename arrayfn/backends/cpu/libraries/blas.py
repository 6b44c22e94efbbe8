"""Where BLAS's and LAPACK's functions are: the addresses SciPy exports for Cython.

Matrices are multiplied by NumPy's OpenBLAS where there is one (NumPy's wheels have it):
it is the newer one, and up to twice as fast where a matrix is narrow.

Of SciPy only the extension modules ``scipy.linalg.cython_blas`` and ``cython_lapack``
are loaded (20 ms each), not the package ``scipy.linalg`` (250 ms), unless that is there
already.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from arrayfn.errors import BackendError

_THREAD_FUNCTIONS: Final = (
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
)
LETTERS: Final = {"f32": "s", "f64": "d", "c64": "c", "c128": "z"}


@dataclass(frozen=True, slots=True)
class Blas:
    """A library's functions, and those that get and set its number of threads.

    Their addresses are 0 where it has no such function. Integers are passed to BLAS by
    address: words of 64 bits do for libraries of either width.
    """

    find: Callable[[str], int]
    get_threads: int
    set_threads: int

    def address(self, name: str) -> int:
        """The address of a BLAS function such as ``"sgemm"``."""
        return self.find(name)


@cache
def blas() -> Blas:
    """SciPy's BLAS; its integers have 32 bits."""
    module = _load("cython_blas")
    threads = _thread_functions(ctypes.CDLL(str(module.__file__)))
    return Blas(lambda name: _exported(module, name), *threads)


@cache
def products_blas() -> Blas:
    """The BLAS that multiplies: NumPy's OpenBLAS, or else SciPy's BLAS."""
    module = importlib.import_module("numpy._core._multiarray_umath")
    # What the module is linked with is found through it.
    library = ctypes.CDLL(str(module.__file__))
    if not hasattr(library, "scipy_dgemm_64_"):
        return blas()

    def find(name: str) -> int:
        return _address(getattr(library, f"scipy_{name}_64_"))

    return Blas(find, *_thread_functions(library))


def _thread_functions(library: ctypes.CDLL) -> tuple[int, int]:
    for get_name, set_name in _THREAD_FUNCTIONS:
        if hasattr(library, get_name) and hasattr(library, set_name):
            return _address(getattr(library, get_name)), _address(
                getattr(library, set_name)
            )
    return 0, 0


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def lapack_address(name: str) -> int:
    """The address of a LAPACK function such as ``"spotrf"``."""
    return _exported(_lapack(), name)


@cache
def _lapack() -> ModuleType:
    return _load("cython_lapack")


def _exported(module: ModuleType, name: str) -> int:
    """The address of a function that a Cython module exports."""
    exported: Mapping[str, Any] = vars(module)["__pyx_capi__"]
    capsule = exported[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype = ctypes.c_char_p
    get_name.argtypes = (ctypes.py_object,)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return int(get_pointer(capsule, get_name(capsule)))


def _load(name: str) -> ModuleType:
    specification = importlib.util.find_spec("scipy")
    if specification is None or not specification.submodule_search_locations:
        raise BackendError(
            "matrix products and linear algebra on a CPU need SciPy: pip install scipy"
        )
    folder = Path(specification.submodule_search_locations[0], "linalg")
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"{name}{suffix}"
        if "scipy.linalg" not in sys.modules and path.exists():
            found = importlib.util.spec_from_file_location(f"scipy.linalg.{name}", path)
            if found is not None and found.loader is not None:
                module = importlib.util.module_from_spec(found)
                found.loader.exec_module(module)
                return module
    return importlib.import_module(f"scipy.linalg.{name}")
