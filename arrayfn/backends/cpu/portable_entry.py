"""Call entries in Python, for interpreters whose objects native code cannot read.

They do what ``entry`` does and take some microseconds more: Python checks arguments and
makes results, and the plan runs on a frame as ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu.frames import frame_acquire, frame_release
from arrayfn.backends.cpu.image_layout import Frame
from arrayfn.backends.cpu.runner import run_frame
from arrayfn.backends.native.code import native_address
from arrayfn.ir import ArrayType, layout

_NUMBERS: Final = {
    dtypes.float32: float,
    dtypes.float64: float,
    dtypes.int64: int,
    dtypes.bool_: bool,
}
Types = Sequence[ArrayType]


def entries(
    capsule: Any, inputs: Types, outputs: Types
) -> dict[str, Callable[..., Any]]:
    """Return the functions ``call``, ``call_single`` and ``call_into`` of a plan.

    ``capsule`` holds the plan's Image; ``inputs`` and ``outputs`` are its types. See
    ``executable.Executable`` for what the functions do.
    """
    functions = {"call": _call, "call_single": _call_single, "call_into": _call_into}
    return {
        name: partial(function, capsule, inputs, outputs)
        for name, function in functions.items()
    }


def _call_single(*arguments: Any) -> Any:
    """Call ``_call`` and return the only output, or the int of a mismatch."""
    results = _call(*arguments)
    return results if isinstance(results, int) else results[0]


def _call(
    capsule: Any, inputs: Types, outputs: Types, *arguments: Any
) -> tuple[Any, ...] | int:
    """Check the arguments, run the plan on new outputs, and return these.

    Returns 1 + the number of the first argument that does not fit, if there is one.
    ``capsule`` holds the plan's Image.
    """
    if len(arguments) != len(inputs):
        return 1 + min(len(arguments), len(inputs))
    results = tuple(map(_empty, outputs))
    mismatch = _call_into(capsule, inputs, outputs, *arguments, *results)
    return mismatch or results


def _call_into(capsule: Any, inputs: Types, outputs: Types, *arguments: Any) -> int:
    """Check ``arguments``, the inputs and then the outputs, and run the plan on them.

    Returns 0, or 1 + the number of the first argument that does not fit. ``capsule``
    holds the plan's Image.
    """
    types = (*inputs, *outputs)
    if len(arguments) != len(types):
        return 1 + min(len(arguments), len(types))
    take, run, give = _routines()
    image = _pointer()(capsule, None)  # the capsule has no name
    address = take(image)
    if not address:
        raise MemoryError
    try:
        frame = Frame.from_address(address)
        bases = (ctypes.c_int64 * len(types)).from_address(_field(frame, "bases"))
        for number, (value, type) in enumerate(zip(arguments, types, strict=True)):
            is_output = number >= len(inputs)
            # Python numbers are stored in the frame, 8 bytes for each input.
            storage = _field(frame, "numbers") + 8 * number
            if _fits(value, type, is_output=is_output):
                bases[number] = value.__array_interface__["data"][0]
            elif not is_output and _store_number(value, type, storage):
                bases[number] = storage
            else:
                return 1 + number
        run(image, address)
    finally:
        give(image, address)
    return 0


def _field(frame: Frame, name: str) -> int:
    """Return the field ``name`` of a frame, a pointer, as an address."""
    return getattr(frame, name)


def _fits(value: Any, kind: ArrayType, *, is_output: bool) -> bool:
    """Return whether ``value`` is an aligned ndarray of exactly the type ``kind``.

    If ``is_output`` it must also be writable. Strides do not matter in an empty array,
    nor along an axis of length 1.
    """
    if type(value) is not np.ndarray or not value.flags.aligned:
        return False
    if value.dtype != kind.dtype or value.shape != kind.shape:
        return False
    if is_output and not value.flags.writeable:
        return False
    steps = kind.layout.strides(kind.shape)
    return not kind.size or all(
        extent == 1 or stride == step * kind.dtype.itemsize
        for stride, step, extent in zip(value.strides, steps, kind.shape, strict=True)
    )


def _store_number(value: Any, kind: ArrayType, storage: int) -> bool:
    """Write the Python number ``value`` to address ``storage``, as a ``kind``.

    Returns False if ``kind`` is not weak and of rank 0, or if ``value`` is not of the
    Python type of its dtype, or does not fit in 64 bits.
    """
    if not kind.weak or kind.shape or type(value) is not _NUMBERS.get(kind.dtype):
        return False
    if type(value) is int and not -(2**63) <= value < 2**63:
        return False
    memory: Any = (ctypes.c_uint8 * kind.dtype.itemsize).from_address(storage)
    np.ndarray((), kind.dtype, memory)[...] = value
    return True


def _empty(kind: ArrayType) -> Any:
    """Allocate an array of type ``kind``, with undefined values."""
    if isinstance(kind.layout, layout.Strided):
        # The Strided layout of an output has no gaps: ``nbytes`` holds its elements.
        steps = [n * kind.dtype.itemsize for n in kind.layout.strides(kind.shape)]
        return np.ndarray(kind.shape, kind.dtype, np.empty(kind.nbytes, "u1"), 0, steps)
    return np.empty(kind.shape, kind.dtype, "F" if kind.layout == layout.F else "C")


@cache
def _routines() -> tuple[Callable[..., int], ...]:
    """Return ``frame_acquire``, ``run_frame``, ``frame_release`` as Python functions.

    They take and return addresses. If a routine sets a Python exception, its call
    raises the exception.
    """
    word = ctypes.c_int64
    return tuple(
        ctypes.PYFUNCTYPE(word, *[word] * routine.arity)(native_address(routine))
        for routine in (frame_acquire, run_frame, frame_release)
    )


@cache
def _pointer() -> Callable[..., int]:
    """Return ``PyCapsule_GetPointer`` as a Python function of capsule and name."""
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.py_object, ctypes.c_char_p)
    return prototype(("PyCapsule_GetPointer", ctypes.pythonapi))
