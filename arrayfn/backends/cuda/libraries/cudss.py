"""Sparse systems solved directly on a GPU by cuDSS.

The analysis and factors of the last few matrices are cached. An equal matrix needs only
substitutions, and one with other entries at the same positions reuses the analysis,
which is most of the work: 510 ms beside 4 ms for the factors and 1 ms for a solution,
of 450,000 entries (H200). Matrices are compared on the host, where cuDSS begins its
analysis. For results that are the same in each run, cuDSS neither refines solutions nor
solves for several right-hand sides at once.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cuda.device_array import DeviceArray, device_put
from arrayfn.backends.cuda.driver import device, per_device
from arrayfn.backends.cuda.libraries.shared import Library
from arrayfn.caches import forgets
from arrayfn.errors import BackendError, warn_of_singular_matrix

Array = np.ndarray[Any, Any]

# Names and numbers of cudss.h and library_types.h.
_ANALYSIS: Final = 1 << 0 | 1 << 1
_FACTORIZATION: Final = 1 << 2
_SOLUTION: Final = 0b11_1111 << 4
_SOLVE_MODE, _REFINEMENTS, _DETERMINISTIC = 4, 5, 24  # cudssConfigParam_t
_INFO, _PERTURBED_PIVOTS = 0, 2  # cudssDataParam_t
_COLUMN_MAJOR: Final = 0
_INT32: Final = 10
_TYPES: Final = {
    dtypes.float32: 0,
    dtypes.float64: 1,
    dtypes.complex64: 4,
    dtypes.complex128: 5,
}
_MAJOR: Final = 1  # the version whose numbers these are

_CACHED_FACTORS: Final = 4
_REFINEMENT_STEPS: Final = (
    2  # of refinement: the digits that cuDSS's choice of pivots may lose
)

_LIBRARY: Final = Library(
    "cuDSS",
    "cudss",
    "spsolve",
    "cudssCreate",
    "cudssSetStream",
    package="nvidia-cudss-cu13",
)


def solve(
    data: DeviceArray,
    indices: DeviceArray,
    indptr: DeviceArray,
    b: DeviceArray,
    out: DeviceArray,
    *,
    transposed: bool,
    is_deterministic: bool,
) -> None:
    """Write to ``out`` the solution for the CSC matrix ``data, indices, indptr``.

    ``b`` and ``out`` are vectors, or have a right-hand side in each row. ``transposed``
    solves with the matrix's transpose; with ``is_deterministic`` each run gives equal
    bits. Batch axes are in front, with extent 1 where an operand has the same values
    for all members.
    """
    if not out.size:
        return
    kept = _factor_cache(is_deterministic)
    matrix = [np.asarray(x) for x in (data, indices, indptr)]
    axes = indptr.ndim - 1
    if all(prod(x.shape[:axes]) == 1 for x in matrix):
        arrays = [x.reshape(x.shape[axes:]) for x in matrix]
        kept.solve(arrays, b.pointer, out.pointer, out.size, transposed)
        return
    lead = out.shape[:axes]
    count = prod(out.shape[axes:])
    nbytes = count * out.dtype.itemsize
    numbers = np.arange(prod(b.shape[:axes])).reshape(b.shape[:axes])
    sides = np.broadcast_to(numbers, lead)
    for number, member in enumerate(np.ndindex(lead)):
        arrays = [np.broadcast_to(x, (*lead, *x.shape[axes:]))[member] for x in matrix]
        side = b.pointer + int(sides[member]) * nbytes
        kept.solve(arrays, side, out.pointer + number * nbytes, count, transposed)


@cache
def _library() -> Library:
    """Load the library; BackendError if the constants above are not its version's."""
    major = ctypes.c_int()
    _LIBRARY.call("cudssGetProperty", 0, ctypes.byref(major))
    if major.value != _MAJOR:
        raise BackendError(
            f"spsolve on a GPU needs cuDSS {_MAJOR}, not {major.value}: "
            f"pip install 'nvidia-cudss-cu13=={_MAJOR}.*'"
        )
    return _LIBRARY


class _FactorCache:
    """The factors of the matrices that were last solved with, on one GPU."""

    def __init__(self, is_deterministic: bool) -> None:
        self._is_deterministic = is_deterministic
        self._known: deque[_Factors] = deque(maxlen=_CACHED_FACTORS)
        self._lock = threading.Lock()
        forgets(self._known.clear)

    def solve(
        self,
        arrays: Sequence[Array],
        b: int,
        out: int,
        size: int,
        transposed: bool,
    ) -> None:
        """Solve with the CSC matrix ``arrays`` for ``b``; both are addresses.

        ``b`` and ``out`` have ``size`` elements.
        """
        with self._lock:
            self._of(arrays).solve(b, out, size, transposed)

    def _of(self, arrays: Sequence[Array]) -> _Factors:
        """The factors of a matrix; new if no cached matrix has the same positions."""
        data = arrays[0]
        alike = [known for known in self._known if known.has_positions_of(arrays)]
        for known in alike:
            if np.array_equal(known.arrays[0], data):
                return known
        if alike:
            alike[0].update(data)
            return alike[0]
        made = _Factors(arrays, self._is_deterministic)
        self._known.appendleft(made)
        return made


@per_device
def _factor_cache(is_deterministic: bool) -> _FactorCache:
    """The cached factors of this GPU."""
    return _FactorCache(is_deterministic)


class _Factors:
    """The factors of a CSC matrix, which is the transpose of a CSR matrix to cuDSS."""

    def __init__(self, arrays: Sequence[Array], is_deterministic: bool) -> None:
        self._is_deterministic = is_deterministic
        self.arrays = [np.array(x) for x in arrays]
        data, indices, indptr = self.arrays
        self._library, self._gpu = _library(), device()
        self._size = len(indptr) - 1
        self._type = _TYPES[data.dtype]
        self._config, self._found = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cudssConfigCreate", ctypes.byref(self._config))
        self._handle = self._library.handle  # this GPU's, also when it is destroyed
        self._call("cudssDataCreate", self._handle, ctypes.byref(self._found))
        if is_deterministic:
            self._set(_DETERMINISTIC, 1)
        else:
            self._set(_REFINEMENTS, _REFINEMENT_STEPS)
        positions = (x.astype(np.int32) for x in (indptr, indices))
        self._starts, self._columns = map(device_put, positions)
        self._values = device_put(data)
        self._matrix = ctypes.c_void_p()
        extents = (self._size, self._size, len(indices))
        self._call(
            "cudssMatrixCreateCsr",
            ctypes.byref(self._matrix),
            *map(ctypes.c_int64, extents),
            ctypes.c_void_p(self._starts.pointer),
            None,
            ctypes.c_void_p(self._columns.pointer),
            ctypes.c_void_p(self._values.pointer),
            *(_INT32, _INT32, self._type, 0, 0, 0),
        )
        self._factor(_ANALYSIS, _FACTORIZATION)
        self.is_singular = self._is_singular()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self._gpu.make_current()
            self._call("cudssMatrixDestroy", self._matrix)
            self._call("cudssDataDestroy", self._handle, self._found)
            self._call("cudssConfigDestroy", self._config)

    def has_positions_of(self, arrays: Sequence[Array]) -> bool:
        """Whether another matrix has entries of this dtype at the same positions."""
        pairs = zip(self.arrays[1:], arrays[1:], strict=True)
        is_of_dtype = self.arrays[0].dtype == arrays[0].dtype
        return is_of_dtype and all(np.array_equal(x, y) for x, y in pairs)

    def update(self, data: Array) -> None:
        """Factor the matrix again, with other entries.

        The analysis also chose pivots by the entries. If these pivots do not suit the
        new entries, the analysis is repeated.
        """
        self.arrays[0] = np.array(data)
        self._values = device_put(self.arrays[0])
        self._call(
            "cudssMatrixSetValues", self._matrix, ctypes.c_void_p(self._values.pointer)
        )
        self._factor(_FACTORIZATION)
        if self._has_perturbed_pivots():
            self._factor(_ANALYSIS, _FACTORIZATION)
        self.is_singular = self._is_singular()

    def solve(self, b: int, out: int, size: int, transposed: bool) -> None:
        """Write ``size`` elements of solutions to the address ``out``, for those of b.

        They are NaN, with a warning, for a singular matrix.
        """
        if self.is_singular:
            warn_of_singular_matrix()
            self._gpu.fill(out, 0xFF, size * self.arrays[0].itemsize)
            return
        self._set(_SOLVE_MODE, int(not transposed))
        step = self._size if self._is_deterministic else size
        for first in range(0, size, step):
            offset = first * self.arrays[0].itemsize
            self._execute(_SOLUTION, b + offset, out + offset, step)

    def _factor(self, *phases: int) -> None:
        """Run these ``phases`` of cuDSS, such as the factorization."""
        space = device_put(np.zeros(self._size, self.arrays[0].dtype))
        for phase in phases:
            self._execute(phase, space.pointer, space.pointer, self._size)

    def _has_perturbed_pivots(self) -> bool:
        """Whether a pivot was too small, and was replaced."""
        return bool(self._get(_INFO) or self._get(_PERTURBED_PIVOTS))

    def _is_singular(self) -> bool:
        """Whether the matrix has no solution for most right-hand sides.

        A matrix with a perturbed pivot counts as singular if cuDSS's solution for a
        random right-hand side does not solve the system.
        """
        if not self._has_perturbed_pivots():
            return False
        data, indices, indptr = self.arrays
        random = np.random.default_rng(0).standard_normal(self._size)
        side = random.astype(data.dtype)
        b, x = device_put(side), device_put(np.zeros_like(side))
        self._set(_SOLVE_MODE, 0)
        self._execute(_SOLUTION, b.pointer, x.pointer, self._size)
        rows = np.repeat(np.arange(self._size), np.diff(indptr))
        products = np.zeros_like(side)
        np.add.at(products, rows, data * np.asarray(x)[indices])
        error = np.abs(products - side).max()
        return not error <= np.sqrt(np.finfo(data.dtype).eps) * np.abs(side).max()

    def _execute(self, phase: int, b: int, x: int, size: int) -> None:
        """Run a phase; ``b`` and ``x`` are the addresses of sides and solutions."""
        sides = [self._columns_at(address, size) for address in (x, b)]
        run = self._library.routine("cudssExecute", self._gpu.stream)
        try:
            run(phase, self._config, self._found, self._matrix, *sides)
        finally:
            for side in sides:
                self._call("cudssMatrixDestroy", side)

    def _columns_at(self, address: int, size: int) -> ctypes.c_void_p:
        """Describe ``size`` elements at ``address`` as contiguous column vectors."""
        made = ctypes.c_void_p()
        extents = self._size, size // self._size, self._size
        self._call(
            "cudssMatrixCreateDn",
            ctypes.byref(made),
            *map(ctypes.c_int64, extents),
            ctypes.c_void_p(address),
            *(self._type, _COLUMN_MAJOR),
        )
        return made

    def _call(self, function: str, *arguments: Any) -> None:
        self._library.call(function, *arguments)

    def _set(self, parameter: int, value: int) -> None:
        """Set an integer of the configuration."""
        held = ctypes.c_int(value)
        size = ctypes.c_size_t(ctypes.sizeof(held))
        self._call("cudssConfigSet", self._config, parameter, ctypes.byref(held), size)

    def _get(self, parameter: int) -> int:
        """Read an integer result of the last phase."""
        found, written = ctypes.c_int(), ctypes.c_size_t()
        self._call(
            "cudssDataGet",
            self._handle,
            self._found,
            parameter,
            ctypes.byref(found),
            ctypes.c_size_t(ctypes.sizeof(found)),
            ctypes.byref(written),
        )
        return found.value
