"""Solves sparse systems directly on a GPU, by cuDSS.

The analysis and factors of the last few matrices are cached. An equal matrix needs only
substitutions. A matrix with other entries at the same positions reuses the analysis,
which is most of the work: it takes 510 ms, the factors 4 ms and a solution 1 ms, for
450,000 entries (H200). Matrices are compared on the host, where cuDSS begins its
analysis. If results must be the same in each run, solutions are not refined, and each
right-hand side is solved for on its own.
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

from arrayfn.backends.cuda.device_array import DeviceArray, device_put
from arrayfn.backends.cuda.driver import device, per_device
from arrayfn.backends.cuda.libraries.dense import TYPES
from arrayfn.backends.cuda.libraries.shared import Library
from arrayfn.caches import forgets
from arrayfn.errors import BackendError, warn_of_singular_matrix

Array = np.ndarray[Any, Any]

# Names and numbers of cudss.h and library_types.h.
# Bits of cudssPhase_t: reordering and symbolic factorization; numerical factorization;
# the six steps of the solution.
_ANALYSIS: Final = 1 << 0 | 1 << 1
_FACTORIZATION: Final = 1 << 2
_SOLUTION: Final = 0b11_1111 << 4
_SOLVE_MODE, _REFINEMENTS, _DETERMINISTIC = 4, 5, 24  # cudssConfigParam_t
_INFO, _PERTURBED_PIVOTS = 0, 2  # cudssDataParam_t
_COLUMN_MAJOR: Final = 0  # cudssLayout_t
_INT32: Final = 10  # cudaDataType_t, as the numbers of TYPES
_MAJOR: Final = 1  # the version whose numbers these are

_CACHED_FACTORS: Final = 4
"""Most matrices whose factors are cached."""
_REFINEMENT_STEPS: Final = 2
"""Steps of refinement, which restore digits that cuDSS's choice of pivots may lose."""

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
    """Solve A x = b for the CSC matrix A of ``data``, ``indices`` and ``indptr``.

    The solution is written to ``out``. ``b`` and ``out`` are vectors, or have a
    right-hand side in each row. ``transposed`` solves with the transpose of A; with
    ``is_deterministic`` each run gives equal bits. Batch axes are in front, with extent
    1 in an operand that is the same for all members of the batch. The matrix is copied
    to the host.
    """
    if not out.size:
        return
    factors = _factor_cache(is_deterministic)
    matrix = [np.asarray(x) for x in (data, indices, indptr)]
    axes = indptr.ndim - 1  # of the batch
    if all(prod(x.shape[:axes]) == 1 for x in matrix):
        # One matrix: all right-hand sides of the batch are solved for together.
        arrays = [x.reshape(x.shape[axes:]) for x in matrix]
        factors.solve(arrays, b.pointer, out.pointer, out.size, transposed)
        return
    batch = out.shape[:axes]
    count = prod(out.shape[axes:])  # of elements of a member
    nbytes = count * out.dtype.itemsize
    # The number of each member's right-hand sides in ``b``, which may be broadcast.
    numbers = np.arange(prod(b.shape[:axes])).reshape(b.shape[:axes])
    sides = np.broadcast_to(numbers, batch)
    for number, member in enumerate(np.ndindex(batch)):
        arrays = [np.broadcast_to(x, (*batch, *x.shape[axes:]))[member] for x in matrix]
        side = b.pointer + int(sides[member]) * nbytes
        factors.solve(arrays, side, out.pointer + number * nbytes, count, transposed)


@cache
def _library() -> Library:
    """Load cuDSS; raises BackendError for a version with other constants.

    This module's constants are those of cuDSS's major version ``_MAJOR``.
    """
    major = ctypes.c_int()
    _LIBRARY.call("cudssGetProperty", 0, ctypes.byref(major))
    if major.value != _MAJOR:
        raise BackendError(
            f"spsolve on a GPU needs cuDSS {_MAJOR}, not {major.value}: "
            f"pip install 'nvidia-cudss-cu13=={_MAJOR}.*'"
        )
    return _LIBRARY


class _FactorCache:
    """Caches the factors of the matrices that were last solved with, on one GPU."""

    def __init__(self, is_deterministic: bool) -> None:
        self._is_deterministic = is_deterministic
        self._known: deque[_Factors] = deque(maxlen=_CACHED_FACTORS)  # newest first
        self._lock = threading.Lock()
        forgets(self._known.clear)  # when the user clears all caches

    def solve(
        self,
        arrays: Sequence[Array],
        b: int,
        out: int,
        size: int,
        transposed: bool,
    ) -> None:
        """Solve with the CSC matrix ``arrays``: data, indices and indptr on the host.

        ``b`` and ``out`` are addresses of right-hand sides and solutions on the GPU, of
        ``size`` elements each. One thread at a time solves.
        """
        with self._lock:
            self._of(arrays).solve(b, out, size, transposed)

    def _of(self, arrays: Sequence[Array]) -> _Factors:
        """Return the factors of the CSC matrix ``arrays``.

        They are cached, or those of a cached matrix with the same positions, updated to
        the entries of this matrix, or new.
        """
        data = arrays[0]
        candidates = [f for f in self._known if f.has_positions_of(arrays)]
        for factors in candidates:
            if np.array_equal(factors.arrays[0], data):
                return factors
        if candidates:
            candidates[0].update(data)
            return candidates[0]
        factors = _Factors(arrays, self._is_deterministic)
        self._known.appendleft(factors)
        return factors


@per_device
def _factor_cache(is_deterministic: bool) -> _FactorCache:
    """Return the cache of factors of this thread's GPU."""
    return _FactorCache(is_deterministic)


class _Factors:
    """The factors of a CSC matrix: cuDSS takes its arrays as the transpose in CSR.

    ``arrays`` are the matrix's data, indices and indptr, on the host. ``is_singular``
    says whether solutions are NaN.
    """

    def __init__(self, arrays: Sequence[Array], is_deterministic: bool) -> None:
        """Copy the matrix to the GPU, analyse and factor it.

        With ``is_deterministic``, results are the same in each run.
        """
        self._is_deterministic = is_deterministic
        self.arrays = [np.array(x) for x in arrays]
        data, indices, indptr = self.arrays
        self._library, self._gpu = _library(), device()
        self._size = len(indptr) - 1
        self._type = TYPES[data.dtype]
        # cudssConfig_t (options), and cudssData_t (analysis and factors).
        self._config, self._data = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cudssConfigCreate", ctypes.byref(self._config))
        self._handle = self._library.handle  # of this GPU; __del__ may run on another
        self._call("cudssDataCreate", self._handle, ctypes.byref(self._data))
        if is_deterministic:
            self._set(_DETERMINISTIC, 1)
        else:
            self._set(_REFINEMENTS, _REFINEMENT_STEPS)
        # The arrays on the GPU, which ``_matrix`` points to.
        positions = (x.astype(np.int32) for x in (indptr, indices))
        self._starts, self._columns = map(device_put, positions)
        self._values = device_put(data)
        self._matrix = ctypes.c_void_p()  # a cudssMatrix_t
        extents = (self._size, self._size, len(indices))
        self._call(
            "cudssMatrixCreateCsr",
            ctypes.byref(self._matrix),
            *map(ctypes.c_int64, extents),
            ctypes.c_void_p(self._starts.pointer),
            None,
            ctypes.c_void_p(self._columns.pointer),
            ctypes.c_void_p(self._values.pointer),
            # Types of offsets, indices and values; a general matrix, all of it, with
            # indices from 0.
            *(_INT32, _INT32, self._type, 0, 0, 0),
        )
        self._factor(_ANALYSIS, _FACTORIZATION)
        self.is_singular = self._is_singular()

    # ``is_finalizing`` is a default argument because the module's names may be gone
    # when the interpreter ends.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self._gpu.make_current()
            self._call("cudssMatrixDestroy", self._matrix)
            self._call("cudssDataDestroy", self._handle, self._data)
            self._call("cudssConfigDestroy", self._config)

    def has_positions_of(self, arrays: Sequence[Array]) -> bool:
        """Whether the matrix ``arrays`` has the same positions, and the same dtype.

        ``arrays`` are the matrix's data, indices and indptr, as in ``self.arrays``.
        """
        pairs = zip(self.arrays[1:], arrays[1:], strict=True)
        is_of_dtype = self.arrays[0].dtype == arrays[0].dtype
        return is_of_dtype and all(np.array_equal(x, y) for x, y in pairs)

    def update(self, data: Array) -> None:
        """Factor the matrix again, with other entries at the same positions.

        The analysis chose pivots by the old entries. If these pivots do not suit the
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
        """Write the solutions to ``out`` for the right-hand sides at ``b``.

        Both are addresses on the GPU, of ``size`` elements. For a singular matrix the
        solutions are NaN, with a warning.
        """
        if self.is_singular:
            warn_of_singular_matrix()
            # All bits set is NaN.
            self._gpu.fill(out, 0xFF, size * self.arrays[0].itemsize)
            return
        # cuDSS has the transpose of the matrix.
        self._set(_SOLVE_MODE, int(not transposed))
        step = self._size if self._is_deterministic else size
        for first in range(0, size, step):
            offset = first * self.arrays[0].itemsize
            self._execute(_SOLUTION, b + offset, out + offset, step)

    def _factor(self, *phases: int) -> None:
        """Run these ``phases`` of cuDSS: analysis, factorization, or both.

        They need vectors as sides and solutions, but do not use their values.
        """
        space = device_put(np.zeros(self._size, self.arrays[0].dtype))
        for phase in phases:
            self._execute(phase, space.pointer, space.pointer, self._size)

    def _has_perturbed_pivots(self) -> bool:
        """Whether cuDSS replaced a pivot that was too small, or reports an error."""
        return bool(self._get(_INFO) or self._get(_PERTURBED_PIVOTS))

    def _is_singular(self) -> bool:
        """Whether the matrix has no solution for most right-hand sides.

        A matrix with a perturbed pivot counts as singular if cuDSS's solution for a
        random right-hand side does not solve the system. This tests the transpose,
        which is singular if the matrix is.
        """
        if not self._has_perturbed_pivots():
            return False
        data, indices, indptr = self.arrays
        random = np.random.default_rng(0).standard_normal(self._size)
        side = random.astype(data.dtype)
        b, x = device_put(side), device_put(np.zeros_like(side))
        self._set(_SOLVE_MODE, 0)  # with the CSR matrix of these arrays: the transpose
        self._execute(_SOLUTION, b.pointer, x.pointer, self._size)
        rows = np.repeat(np.arange(self._size), np.diff(indptr))
        products = np.zeros_like(side)
        np.add.at(products, rows, data * np.asarray(x)[indices])
        error = np.abs(products - side).max()
        # ``not <=``, because the error may be NaN.
        return not error <= np.sqrt(np.finfo(data.dtype).eps) * np.abs(side).max()

    def _execute(self, phase: int, b: int, x: int, size: int) -> None:
        """Run a ``phase`` of cuDSS on the GPU's stream.

        ``b`` and ``x`` are the addresses of right-hand sides and solutions, of ``size``
        elements.
        """
        sides = [self._columns_at(address, size) for address in (x, b)]
        run = self._library.routine("cudssExecute", self._gpu.stream)
        try:
            run(phase, self._config, self._data, self._matrix, *sides)
        finally:
            for side in sides:
                self._call("cudssMatrixDestroy", side)

    def _columns_at(self, address: int, size: int) -> ctypes.c_void_p:
        """Describe ``size`` elements at ``address`` as a matrix of contiguous columns.

        Returns a cudssMatrix_t, which the caller destroys.
        """
        columns = ctypes.c_void_p()
        extents = self._size, size // self._size, self._size  # and leading dimension
        self._call(
            "cudssMatrixCreateDn",
            ctypes.byref(columns),
            *map(ctypes.c_int64, extents),
            ctypes.c_void_p(address),
            *(self._type, _COLUMN_MAJOR),
        )
        return columns

    def _call(self, function: str, *arguments: Any) -> None:
        """Call cuDSS's ``function``; raise BackendError if it fails."""
        self._library.call(function, *arguments)

    def _set(self, parameter: int, value: int) -> None:
        """Set an integer option; ``parameter`` is a cudssConfigParam_t."""
        number = ctypes.c_int(value)
        size = ctypes.c_size_t(ctypes.sizeof(number))
        self._call(
            "cudssConfigSet", self._config, parameter, ctypes.byref(number), size
        )

    def _get(self, parameter: int) -> int:
        """Return an integer result of the last phase.

        ``parameter`` is a cudssDataParam_t.
        """
        value, bytes_written = ctypes.c_int(), ctypes.c_size_t()
        self._call(
            "cudssDataGet",
            self._handle,
            self._data,
            parameter,
            ctypes.byref(value),
            ctypes.c_size_t(ctypes.sizeof(value)),
            ctypes.byref(bytes_written),
        )
        return value.value
