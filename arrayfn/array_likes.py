"""Arrays of other libraries, read without a copy: tensors, series, columns, datasets.

Whatever has ``__dlpack__`` or ``__array__`` is an array to arrayfn's functions. On a
CPU it becomes a NumPy array of the same memory if its library allows that; on a GPU it
stays there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from arrayfn import dlpack, dtypes
from arrayfn.errors import ArgumentError, user_location

Array = np.ndarray[Any, Any]
OWN: Final = "__arrayfn_array__"
"""The attribute that marks classes of arrayfn's own arrays."""
# DLPack's kinds of devices with memory of the host: CPU, CUDA's pinned and managed.
_ON_HOST: Final = (dlpack.CPU, 3, 11)


class Elsewhere:
    """The function that receives arrays on a GPU; ``transfers`` sets it."""

    receive: ClassVar[Callable[[Any], Any] | None] = None


def adopted(x: Any) -> Any:
    """Convert an array of another library to NumPy's, or to an array on a device.

    NumPy's own arrays, numbers, arrayfn's objects, and objects that are no arrays are
    returned as they are. Raises ArgumentError, with the reason, for an array that its
    library does not give away, and for dtypes that arrayfn does not have. The way of
    reading is cached for each class.
    """
    cls = type(x)
    read = _TAKES.get(cls)
    if read is None:
        read = _TAKES[cls] = _way_of(cls)
    return x if read is _itself else read(x)


def _itself(x: Any) -> Any:
    """Return x, which needs no conversion."""
    return x


def _way_of(cls: type) -> Callable[[Any], Any]:
    """Return the function that reads objects of ``cls``."""
    known = issubclass(cls, (np.ndarray, np.generic, int, float, complex))
    if cls is Shared:
        return _by_dlpack
    packages = {base.__module__.partition(".")[0] for base in cls.__mro__}
    own = "arrayfn" in packages or hasattr(cls, OWN)
    if known or own:
        return _itself
    if hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__"):
        return _by_dlpack
    return _by_conversion if hasattr(cls, "__array__") else _itself


# {class: the function that reads its objects}
_TAKES: Final[dict[type, Callable[[Any], Any]]] = {np.ndarray: _itself}


def _by_conversion(x: Any) -> Array:
    """Return the NumPy array that ``x.__array__`` gives.

    Raises ArgumentError if it fails, or if arrayfn does not have the dtype.
    """
    try:
        array = np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _refused(x, str(error)) from error
    if array.dtype not in dtypes.ALL:
        raise _refused(
            x,
            f"its elements are of {array.dtype}, which arrayfn does not have; "
            "convert them",
        )
    return array


def _by_dlpack(x: Any) -> Any:
    """Return an array of the memory of ``x``, through DLPack, without a copy.

    Memory of a GPU goes to ``Elsewhere.receive``. If the library gives no capsule,
    NumPy's ``from_dlpack`` and then ``__array__`` are tried. Raises ArgumentError if
    all fail.
    """
    kind, _ = x.__dlpack_device__()
    refused = _refused(x, "it is on a device of DLPack's kind " + str(int(kind)))
    if kind not in _ON_HOST:
        if Elsewhere.receive is None or kind != dlpack.CUDA:
            raise refused
        return Elsewhere.receive(x)
    # NumPy's from_dlpack does not know bfloat16, but it takes read-only arrays.
    try:
        capsule = x.__dlpack__()
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError):
            if hasattr(x, "__array__"):
                return _by_conversion(x)
            raise _refused(x, str(error)) from error
    try:
        return host_array(dlpack.receive(capsule))
    except TypeError as error:
        raise _refused(x, str(error)) from error


def host_array(received: dlpack.Received) -> Array:
    """Return a NumPy array of memory of the host that another library gave.

    Strides may be negative, so elements may lie before the pointer. From the first to
    the last byte, the memory is a ctypes array that owns ``received``.
    """
    shape, dtype = received.shape, received.dtype
    steps = received.strides or row_major(shape)
    # The offset of the last element along each axis.
    last_offsets = [(n - 1) * step for n, step in zip(shape, steps, strict=True)]
    low = sum(min(0, end) for end in last_offsets) * dtype.itemsize
    high = (1 + sum(max(0, end) for end in last_offsets)) * dtype.itemsize
    if not all(shape):
        return np.empty(shape, dtype)
    bytes_type = ctypes.c_ubyte * (high - low)
    memory: Any = bytes_type.from_address(received.pointer + low)
    memory.owner = received  # keeps the memory as long as the array lives
    strides = [step * dtype.itemsize for step in steps]
    return np.ndarray(shape, dtype, memory, -low, strides)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a row-major array of ``shape``."""
    steps: list[int] = []
    step = 1
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def _refused(x: Any, why: str) -> ArgumentError:
    """Return the error for ``x``, an array that cannot be read because of ``why``."""
    cls = type(x)
    return ArgumentError(
        f"an array of {cls.__module__}.{cls.__qualname__} cannot be read: {why}",
        user_location(),
    )


class Shared:
    """A wrapper that exports a NumPy array of any dtype through DLPack."""

    def __init__(self, array: Array) -> None:
        """Export ``array``."""
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's kind and number of the device: the CPU."""
        return dlpack.CPU, 0

    def __dlpack__(self, **_: Any) -> Any:
        """Return a capsule of the array's memory."""
        array = self._array
        steps = [step // array.itemsize for step in array.strides]
        pointer = array.__array_interface__["data"][0]
        return dlpack.export(
            array, pointer, array.shape, steps, array.dtype, (dlpack.CPU, 0)
        )
