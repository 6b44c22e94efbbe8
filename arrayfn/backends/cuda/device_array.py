"""DeviceArray: an immutable array in a GPU's memory.

Other libraries share its memory without a copy, by DLPack or by
``__cuda_array_interface__``; ``numpy.asarray`` copies it to the host. Computation is
asynchronous: ``block_until_ready`` waits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Self

import numpy as np
from typing_extensions import override

from arrayfn import dlpack, dtypes
from arrayfn.backends.addresses import address_of
from arrayfn.backends.cuda.driver import (
    Device,
    current_number,
    device,
    gpu,
    gpu_count,
    on,
)
from arrayfn.errors import ArgumentError, LayoutError, user_location
from arrayfn.ir import ArrayType, as_readable, layout, type_of
from arrayfn.ir.layout import Layout
from arrayfn.tracing import ArrayOnDevice

Array = np.ndarray[Any, Any]

ALIGNMENT: Final = 16  # of memory that kernels access in vectors
_LEGACY_STREAM: Final = 1  # CU_STREAM_LEGACY, CUDA's default stream
_interned: dict[tuple[int, ArrayType], ArrayType] = {}  # by (GPU number, equal type)
_gpu_by_type: dict[int, int] = {}  # GPU number, by the id of an interned type


def interned(type: ArrayType) -> ArrayType:
    """Return the one object equal to ``type`` for all arrays on this thread's GPU.

    Each GPU has its own object of equal types. The call entry compares types by
    identity, so it accepts no array of another GPU.
    """
    number = current_number()
    known = _interned.get((number, type))
    if known is None:
        # GPU 0 interns ``type`` itself, unless it is an object of another GPU.
        is_taken = number or _gpu_by_type.get(id(type), 0)
        known = _interned[number, type] = replace(type) if is_taken else type
        _gpu_by_type[id(known)] = number
    return known


class DeviceArray(ArrayOnDevice):
    """An array on a GPU.

    ``device_put``, ``from_dlpack`` and compiled calls make such arrays. A DeviceArray
    has NumPy's operators and methods. NumPy's and arrayfn's functions accept it,
    compute on the GPU and return DeviceArrays.

    ``pointer`` is the address of the element with index 0; it is 0 after donation.
    """

    __slots__ = (
        "__arrayfn_type__",
        "__weakref__",
        "owner",
        "pointer",
        "shared",
        "writable",
    )

    __arrayfn_type__: ArrayType
    pointer: int
    owner: object  # its destructor frees the memory
    shared: bool  # whether another library owns the memory, or has seen it
    writable: bool  # only while a kernel of an operator computes it

    KIND = "on a GPU"
    CHANGED = "by what is computed on a GPU"

    def __init__(self, type: ArrayType, pointer: int, owner: object) -> None:
        """Make an array of the interned ``type`` in memory that ``owner`` holds.

        The native call entry makes arrays without calling this (``entry``).
        """
        self.__arrayfn_type__ = type
        self.pointer = pointer
        self.owner = owner
        self.shared = False
        self.writable = False

    # Attributes.

    @property
    @override
    def type(self) -> ArrayType:
        """The array's type: shape, dtype and layout."""
        return self.__arrayfn_type__

    @property
    def layout(self) -> Layout:
        """The layout of the elements in memory."""
        return self.__arrayfn_type__.layout

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each axis, in bytes."""
        steps = self.layout.strides(self.shape)
        return tuple(step * self.dtype.itemsize for step in steps)

    @property
    def gpu(self) -> Device:
        """The GPU that holds the array in its memory."""
        number = _gpu_by_type.get(id(self.__arrayfn_type__), 0)
        return device() if number == current_number() else gpu(number)

    @property
    @override
    def device(self) -> str:
        """The backend of the array: "cuda", or "cuda:1" on the second GPU."""
        number = _gpu_by_type.get(id(self.__arrayfn_type__), 0)
        return f"cuda:{number}" if number else "cuda"

    @override
    def copy(self) -> DeviceArray:
        """Copy the array to memory of its own on the same GPU."""
        # ``low`` is the offset of the lowest element from the first, at most 0.
        low, count = self.__arrayfn_type__.span()
        size = self.dtype.itemsize
        gpu = self.gpu
        pointer, owner = gpu.block(count * size)
        if count:
            gpu.copy(pointer, self.address() + low * size, count * size)
        return DeviceArray(self.__arrayfn_type__, pointer - low * size, owner)

    def __copy__(self) -> DeviceArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> DeviceArray:
        return self.copy()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the array as a NumPy array, which is unpickled on the current GPU."""
        return device_put, (np.asarray(self),)

    @property
    def is_deleted(self) -> bool:
        """Whether the array was donated: then another array owns its memory."""
        return not self.pointer

    def address(self) -> int:
        """Return the address of the element with index 0.

        Raises ArgumentError if the array was donated.
        """
        if not self.pointer:
            raise ArgumentError(
                f"this array of {self.__arrayfn_type__} was donated to a call, whose "
                "result has its memory now; donate x.copy() to keep x",
                user_location(),
            )
        return self.pointer

    @override
    def take(self) -> object:
        """Mark this array as donated, and return the owner of its memory.

        The caller makes another array with that owner.
        """
        owner, self.owner, self.pointer = self.owner, None, 0
        return owner

    def share(self) -> None:
        """Record that another library also uses the memory.

        Such memory cannot be donated, and is reused only after a wait for the GPU.
        """
        if not self.shared:
            self.shared = True
            self.gpu.share(self.owner)

    # Elements.

    @override
    def block_until_ready(self) -> Self:
        """Wait for all work on the array's GPU, and return the array.

        Raises errors of kernels, and ArgumentError if the array was donated.
        """
        if not self.pointer:
            self.address()  # raises
        self.gpu.synchronize()
        return self

    @override
    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> Array:
        """Copy the array to the host, in the same layout; called by ``np.asarray``.

        Waits for the computation. Raises ValueError if ``copy`` is False.
        """
        if copy is False:
            raise ValueError("an array on a GPU cannot be a NumPy array without a copy")
        low, count = self.__arrayfn_type__.span()
        flat = np.empty(count, self.dtype)
        if count:
            start = self.address() + low * self.dtype.itemsize
            self.gpu.copy_out(flat.ctypes.data, start, flat.nbytes)
        if self.size == 0:
            host: Array = np.empty(self.shape, self.dtype)
        else:
            host = np.ndarray(
                self.shape,
                self.dtype,
                flat.view(np.uint8).data,  # the buffer protocol has no float8
                -low * self.dtype.itemsize,  # of the first element in ``flat``
                self.strides,
            )
        return host if dtype is None else host.astype(dtype)

    @override
    def __repr__(self) -> str:
        if self.is_deleted:
            return f"<DeviceArray {self.__arrayfn_type__}, donated>"
        text = np.array2string(np.asarray(self), prefix="DeviceArray(", separator=", ")
        return f"DeviceArray({text}, dtype={self.dtype})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: type, size and device, and the elements."""
        from arrayfn.display import markup
        from arrayfn.display.units import in_bytes

        type = self.__arrayfn_type__
        size = in_bytes(type.nbytes)
        title = f"DeviceArray {type} <small>{size} on {self.device}</small>"
        return markup.shown(title, markup.listing(str(self).splitlines()))

    @override
    def __str__(self) -> str:
        return repr(self) if self.is_deleted else str(np.asarray(self))

    @override
    def __format__(self, spec: str) -> str:
        host = np.asarray(self)
        return format(host if host.ndim else host.item(), spec)

    # Other libraries.

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array in the form that CuPy and Numba accept without a copy.

        They let their work wait for ``stream``, on which the values are computed.
        Records that another library uses the memory.
        """
        self.share()
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address() if self.size else 0, not self.writable),
            "strides": None if self.layout == layout.C else self.strides,
            "stream": self.gpu.stream,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's (device type, device number) of the array's GPU."""
        return dlpack.CUDA, self.gpu.number

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the memory without a copy, as a DLPack capsule.

        Later work on the CUDA ``stream`` waits for the values; None is the default
        stream, and -1 asks for no wait. Raises BufferError for another device.
        """
        if copy:
            return self.copy().__dlpack__(stream=stream, dl_device=dl_device)
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(
                "DLPack gives arrays where they are: numpy.asarray copies"
            )
        self.share()
        if stream != -1:
            self.gpu.let_wait(_LEGACY_STREAM if stream is None else stream)
        steps = self.layout.strides(self.shape)
        return dlpack.export(
            self,
            self.address(),
            self.shape,
            steps,
            self.dtype,
            (dlpack.CUDA, self.gpu.number),
        )


class Borrowed:
    """Owns memory of another library for a DeviceArray.

    It waits for this GPU's stream before it lets go of the other library's ``owner``,
    because that library may reuse freed memory at once, on another stream.
    """

    __slots__ = ("_gpu", "_owner")

    def __init__(self, owner: object) -> None:
        self._owner = owner  # dropped after __del__, which waits
        self._gpu = device()

    # ``is_finalizing`` is a default argument because the module's names may be gone
    # when the interpreter ends.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self._gpu.synchronize()


def device_put(x: Any) -> DeviceArray:
    """Put ``x`` on this thread's GPU, in the same layout.

    A NumPy array, a number, or a DeviceArray of another GPU is copied; a DeviceArray of
    this GPU is returned itself. Arrays of other libraries on a GPU are not copied; work
    on them waits for the work that their library has enqueued before.
    """
    if isinstance(x, DeviceArray):
        return x if x.gpu is device() else _copied_between_gpus(x)
    if hasattr(x, "__dlpack__") and x.__dlpack_device__()[0] == dlpack.CUDA:
        return device_put(from_dlpack(x))
    if hasattr(x, "__cuda_array_interface__"):
        return device_put(from_cuda(x))
    return put(x, interned(type_of(x)))


def put(x: Any, type: ArrayType) -> DeviceArray:
    """Copy ``x`` to this thread's GPU as an array of the interned ``type``.

    ``x`` is a number, or an array with the layout of ``type``.
    """
    # A copy if kernels cannot read ``x``, for example because it is not aligned.
    host = np.asarray(as_readable(x), type.dtype)
    size = type.dtype.itemsize
    # The lowest element's offset from the first one (negative if a stride is), and how
    # many elements the memory has from the lowest to the highest.
    low, count = type.span()
    gpu = device()
    pointer, owner = gpu.block(count * size)
    if count:
        start = address_of(host) + low * size
        gpu.copy_in(pointer, start, count * size)
    return DeviceArray(type, pointer - low * size, owner)


def _copied_between_gpus(x: DeviceArray) -> DeviceArray:
    """Copy an array of another GPU to this one, without the host."""
    low, count = x.type.span()
    size = x.dtype.itemsize
    here, there = device(), x.gpu
    pointer, owner = here.block(count * size)
    if count:
        there.let_wait(here.stream)
        here.copy_from(there, pointer, x.address() + low * size, count * size)
        # Later work there may reuse the memory of ``x``, so it waits for the copy.
        here.let_wait(there.stream)
    return DeviceArray(interned(x.type), pointer - low * size, owner)


def from_cuda(x: Any) -> DeviceArray:
    """Make an array of an object with ``__cuda_array_interface__``, in its memory.

    The array keeps ``x`` alive. The memory is copied only if it is not aligned. Raises
    ArgumentError for a masked array.
    """
    interface = x.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ArgumentError(
            "a masked array is not accepted; fill in the masked elements",
            user_location(),
        )
    dtype = dtypes.canonical(np.dtype(interface["typestr"]))
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        kind: Layout = layout.C
    else:
        kind = _layout(shape, [s / dtype.itemsize for s in strides])
    pointer = interface["data"][0]
    with on(_gpu_of(pointer)):
        # Streams in the interface belong to the GPU of the memory.
        device().wait_for(interface.get("stream") or _LEGACY_STREAM)
        return _adopted(ArrayType(shape, dtype, kind), pointer, x)


def _gpu_of(pointer: int) -> Device:
    """Return the GPU that owns the memory at the address ``pointer``.

    That is this thread's GPU for the address 0, which an empty array may have.
    """
    here = device()
    if not pointer or gpu_count() < 2:
        return here
    number = here.owner_of(pointer)
    return here if number == here.number else gpu(number)


def from_dlpack(x: Any) -> DeviceArray:
    """Make an array of an object with ``__dlpack__``, in its memory on the GPU.

    The array keeps the exported memory alive. The memory is copied only if it is not
    aligned, or if it is a host's: then it is copied to this thread's GPU.
    """
    kind, number = x.__dlpack_device__()
    if kind != dlpack.CUDA:
        return device_put(np.from_dlpack(x))
    there = device() if number == device().number else gpu(number)
    with on(there):
        tensor = dlpack.receive(x.__dlpack__(stream=there.stream))
        steps = tensor.strides
        memory_layout = layout.C if steps is None else _layout(tensor.shape, steps)
        return _adopted(
            ArrayType(tensor.shape, tensor.dtype, memory_layout), tensor.pointer, tensor
        )


def _layout(shape: tuple[int, ...], steps: Any) -> Layout:
    """Return the layout of ``shape`` with strides ``steps`` in elements.

    Raises LayoutError if a stride is not a whole number of elements.
    """
    if any(step != int(step) for step in steps):
        raise LayoutError("an array that does not lie on whole elements cannot be read")
    return layout.from_strides(shape, [int(step) for step in steps])


def _adopted(type: ArrayType, pointer: int, owner: object) -> DeviceArray:
    """Make an array in another library's memory, or copy it if that is not aligned.

    ``pointer`` is the address of the element with index 0; ``owner`` keeps the memory
    alive. Kernels access memory in vectors, so the lowest element must be aligned.
    """
    type = interned(type)
    low, count = type.span()  # low < 0 if a stride is negative
    size = type.dtype.itemsize
    if (pointer + low * size) % ALIGNMENT == 0:
        taken = DeviceArray(type, pointer, Borrowed(owner))
        taken.shared = True  # with the other library, which owns the memory
        return taken
    gpu = device()
    copied, block = gpu.block(count * size)
    gpu.copy(copied, pointer + low * size, count * size)
    gpu.synchronize()
    return DeviceArray(type, copied - low * size, block)
