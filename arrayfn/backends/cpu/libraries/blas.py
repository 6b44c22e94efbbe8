"""BLAS and LAPACK: addresses of their functions, found by name when a plan is bound.

NumPy's wheels carry an OpenBLAS with 64-bit integers, SciPy's an older one with 32-bit
integers. ``blas()`` is NumPy's where there is one, else SciPy's: it does all work that
our threads divide, with one BLAS thread for each of them. CPU milliseconds of NumPy's
and SciPy's, float64, on an AMD Zen 5: eigh of 512 rows 25.5 and 26.7, svd 60.0 and
61.0, QR 15.0 and 15.4, Cholesky 1.32 and 1.24, LU 2.51 and 2.33; float32: 14.5 and
15.7, 32.2 and 34.2, 8.1 and 9.7, 0.60 and 0.63, 1.27 and 1.33; products of narrow
matrices up to twice.

``threaded_blas()`` factors single large matrices on threads of its own. A library's
number of threads is a state of the process, so that is the other copy: SciPy's.

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
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from arrayfn.backends.addresses import address_of, function_address
from arrayfn.dtypes import BY_SHORT_NAME
from arrayfn.errors import BackendError
from arrayfn.lowering.cpu.machine import numpy_library
from arrayfn.records import frozen

_THREAD_FUNCTIONS: Final = (
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
)
LETTERS: Final = {"f32": "s", "f64": "d", "c64": "c", "c128": "z"}


@frozen(slots=True)
class Blas:
    """A BLAS library: its functions, and those that get and set its thread count.

    ``address(name)`` returns the address of a function of BLAS or LAPACK, such as
    ``"sgemm"``. ``get_threads`` and ``set_threads`` are addresses, 0 if the library has
    no such functions. Integers are passed by address as 64-bit words, which libraries
    with 32-bit integers read as well. Arrays of integers have elements of
    ``integer_bytes``.
    """

    address: Callable[[str], int]
    get_threads: int
    set_threads: int
    integer_bytes: int


@cache
def blas() -> Blas:
    """Return the BLAS for work that arrayfn's threads divide, which uses one thread.

    It is NumPy's OpenBLAS if NumPy has one, else SciPy's.
    """
    library = numpy_library()
    if not hasattr(library, "scipy_dgemm_64_"):
        return scipy_blas()

    def find(name: str) -> int:
        """Return the address of the function ``name``."""
        return function_address(getattr(library, f"scipy_{name}_64_"))

    return Blas(find, *_thread_functions(library), integer_bytes=8)


@cache
def scipy_blas() -> Blas:
    """Return SciPy's BLAS and LAPACK."""
    module = _load("cython_blas")
    threads = _thread_functions(ctypes.CDLL(str(module.__file__)))

    def find(name: str) -> int:
        """Return the address of the function ``name`` of BLAS, or else of LAPACK."""
        is_blas = name in vars(module)["__pyx_capi__"]
        return _exported(module if is_blas else _lapack(), name)

    return Blas(find, *threads, integer_bytes=4)


def blas_file() -> str:
    """Return the path of SciPy's extension module through which BLAS is called."""
    return str(_load("cython_blas").__file__)


@cache
def constant(dtype: str, number: float) -> int:
    """Return the address of ``number`` in memory as a ``dtype`` such as "f32".

    BLAS takes numbers by reference. The memory is never freed.
    """
    array = np.array([number], BY_SHORT_NAME[dtype])
    _CONSTANTS.append(array)
    return address_of(array)


_CONSTANTS: Final[list[np.ndarray[Any, Any]]] = []
"""The arrays whose addresses ``constant`` has returned, kept alive."""


def threaded_blas() -> Blas:
    """Return the BLAS that factors a single large matrix on its own threads.

    It is SciPy's. If SciPy's has no functions that set its threads, it is ``blas()``.
    """
    library = scipy_blas()
    return library if library.set_threads else blas()


def _thread_functions(library: ctypes.CDLL) -> tuple[int, int]:
    """Return the addresses of a library's functions that get and set its thread count.

    They are 0 for a library without such functions.
    """
    for get_name, set_name in _THREAD_FUNCTIONS:
        if hasattr(library, get_name) and hasattr(library, set_name):
            return function_address(getattr(library, get_name)), function_address(
                getattr(library, set_name)
            )
    return 0, 0


@cache
def _lapack() -> ModuleType:
    """Return SciPy's extension module with LAPACK; the first call loads it."""
    return _load("cython_lapack")


def _exported(module: ModuleType, name: str) -> int:
    """Return the address of the C function ``name`` that a Cython module exports.

    Cython puts it into a capsule whose name is the function's C signature.
    """
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
    """Import SciPy's extension module ``name`` without its package scipy.linalg.

    Importing the package takes 250 ms. Raises BackendError if SciPy is not installed.
    """
    specification = importlib.util.find_spec("scipy")
    if specification is None or not specification.submodule_search_locations:
        raise BackendError(
            "matrix products and linear algebra on a CPU need SciPy: pip install scipy"
        )
    folder = Path(specification.submodule_search_locations[0], "linalg")
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"{name}{suffix}"
        if "scipy.linalg" not in sys.modules and path.exists():
            spec = importlib.util.spec_from_file_location(f"scipy.linalg.{name}", path)
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    return importlib.import_module(f"scipy.linalg.{name}")
