"""The call entry: native routines that CPython calls as METH_FASTCALL builtins.

They check every argument from its PyArrayObject struct, make the outputs, and run the
plan. Nothing is run, and an ``int`` is returned, if an argument does not fit: 1 + the
number of the first that does not. What they read of objects is in ``python_objects``,
which says whether it is known to lie there; else ``portable_entry`` is called.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.frames import frame_acquire, frame_release, frames_free
from arrayfn.backends.cpu.heap import heap_allocate, heap_free
from arrayfn.backends.cpu.image_layout import Frame, Image, Layout, Number, Spec
from arrayfn.backends.cpu.runner import run_frame
from arrayfn.backends.native import CFunction, cast, local, native
from arrayfn.backends.native.python_objects import (
    Py_DecRef,
    Py_IncRef,
    PyArrayDescr,
    PyArrayObject,
    PyCapsule_GetPointer,
    PyErr_NoMemory,
    PyLong_FromLongLong,
    PyObject,
    PyTuple_New,
    PyTuple_SetItem,
)
from arrayfn.backends.native.structures import Array, Ref, f32, i32

C_CONTIGUOUS: Final = 0x1
F_CONTIGUOUS: Final = 0x2
OWNDATA: Final = 0x4
ALIGNED: Final = 0x100
WRITEABLE: Final = 0x400
KIND_VOID: Final = ord("V")
SWAPPED: Final = ord(">")
HEAP_FROM: Final = 1 << 17  # bytes; NumPy allocates smaller outputs

PyFloat_AsDouble = CFunction[[PyObject], float]("PyFloat_AsDouble")
PyLong_AsLongLongAndOverflow = CFunction[[PyObject, Array[i32]], int](
    "PyLong_AsLongLongAndOverflow"
)
PyObject_IsTrue = CFunction[[PyObject], i32]("PyObject_IsTrue")


@native
def same_dtype(have: PyArrayDescr, want: PyArrayDescr) -> bool:
    """Return whether ``have`` is the data type ``want``, in native byte order.

    Types of equal kind and size are the same type even if their type numbers differ,
    such as C's ``long`` and ``long long``. Void types (records) are only the same if
    their type numbers are equal.
    """
    if have is want:
        return True
    if have.byteorder == SWAPPED or have.elsize != want.elsize:
        return False
    if have.type_num == want.type_num:
        return True
    return have.kind == want.kind and have.kind != KIND_VOID


@native
def array_fits(image: Image, value: PyObject, spec: Spec, flags: int) -> bool:
    """Return whether ``value`` is an ndarray of the type in ``spec``.

    The array must also have all of ``flags``, a sum of NumPy's flags such as ALIGNED.
    Strides are compared only for a strided layout, and only where they matter: not in
    an empty array, nor along an axis of length 1.
    """
    if value.ob_type is not image.ndarray_type:
        return False
    array = cast(PyArrayObject, value)
    ndim = spec.ndim
    if array.nd != ndim:
        return False
    layout = spec.layout
    if layout == Layout.C:
        flags |= C_CONTIGUOUS
    elif layout == Layout.F:
        flags |= F_CONTIGUOUS
    if (array.flags & flags) != flags:
        return False
    empty = False
    for i in range(ndim):
        if array.dimensions[i] != spec.shape[i]:
            return False
        empty = empty or spec.shape[i] == 0
    if not same_dtype(array.descr, spec.descr):
        return False
    if layout == Layout.STRIDED and not empty:
        for j in range(ndim):
            if spec.shape[j] != 1 and array.strides[j] != spec.strides[j]:
                return False
    return True


@native
def number_fits(
    image: Image, number: PyObject, spec: Spec, storage: Array[int]
) -> bool:
    """Write the Python number ``number`` to ``storage``, in the dtype of ``spec``.

    Returns False if the argument does not accept such a number: ``spec.number`` says
    which Python type it accepts. An int must fit in 64 bits.
    """
    wanted = spec.number
    kind = number.ob_type
    if wanted == Number.NONE:
        return False
    if wanted == Number.BOOL:
        if kind is not image.bool_type:
            return False
        storage[0] = PyObject_IsTrue(number)
        return True
    if wanted == Number.INT:
        if kind is not image.int_type:
            return False
        overflow = local(i32, 1)
        storage[0] = PyLong_AsLongLongAndOverflow(number, overflow)
        return overflow[0] == 0
    if kind is not image.float_type:
        return False
    if wanted == Number.F32:
        cast(Array[f32], storage)[0] = PyFloat_AsDouble(number)
    else:
        cast(Array[float], storage)[0] = PyFloat_AsDouble(number)
    return True


@native
def bind_inputs(image: Image, frame: Frame, arguments: Array[Ref[PyObject]]) -> int:
    """Check the inputs, and store their addresses in the frame.

    A Python number is first converted into ``frame.numbers``. Returns 0, or 1 + the
    number of the first input that does not fit.
    """
    for i in range(image.input_count):
        argument = arguments[i]
        spec = image.inputs[i]
        if array_fits(image, argument, spec, ALIGNED):
            frame.bases[i] = cast(PyArrayObject, argument).data
        else:
            storage = frame.numbers + i
            if not number_fits(image, argument, spec, storage):
                return i + 1
            frame.bases[i] = cast(int, storage)
    return 0


@native
def output_make(image: Image, spec: Spec) -> PyArrayObject | None:
    """Allocate an ndarray of the type in ``spec``.

    Large arrays get a block of our heap, and NumPy is given the memory handler that
    returns the block to the heap. Returns None, with an exception set, on failure.
    """
    data = 0
    flags = 0
    if spec.nbytes >= HEAP_FROM:
        data = heap_allocate(image.heap, spec.nbytes)
        if data == 0:
            PyErr_NoMemory()
            return None
        flags = WRITEABLE
    strides: Array[int] | None = None
    if spec.layout != Layout.C:
        strides = spec.strides
    Py_IncRef(spec.descr)
    array = image.new_from_descr(
        image.ndarray_type,
        spec.descr,
        spec.ndim,
        spec.shape,
        strides,
        data,
        flags,
        None,
    )
    if data != 0:
        if array is None:
            heap_free(image.heap, data, spec.nbytes)
            return None
        Py_IncRef(image.memory_handler)
        array.mem_handler = image.memory_handler
        array.flags |= OWNDATA
    return array


@native
def call_with(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int, single: bool
) -> PyObject | None:
    """Check ``arguments``, run the plan on new outputs, and return them.

    ``self`` is a capsule of the plan's Image, ``count`` the number of arguments. The
    result is one array if ``single``, else a tuple. If an argument does not fit, it is
    an int: 1 + the argument's number.
    """
    image = cast(Image, PyCapsule_GetPointer(self, None))
    inputs = image.input_count
    if count != inputs:
        return PyLong_FromLongLong(1 + (min(count, inputs)))
    frame = frame_acquire(image)
    if frame is None:
        PyErr_NoMemory()
        return None
    mismatch = bind_inputs(image, frame, arguments)
    if mismatch:
        frame_release(image, frame)
        return PyLong_FromLongLong(mismatch)
    bases = frame.bases + inputs
    if single:
        result = single_make(image, bases)
    else:
        result = tuple_make(image, bases)
    if result is not None and not run_frame(image, frame):
        Py_DecRef(result)
        result = None
    frame_release(image, frame)
    return result


@native
def single_make(image: Image, bases: Array[int]) -> PyObject | None:
    """Allocate the only output, and store its address in ``bases``."""
    array = output_make(image, image.outputs[0])
    if array is not None:
        bases[0] = array.data
    return array


@native
def tuple_make(image: Image, bases: Array[int]) -> PyObject | None:
    """Allocate the outputs as a tuple, and store their addresses in ``bases``."""
    result = PyTuple_New(image.output_count)
    if result is None:
        return None
    for i in range(image.output_count):
        array = output_make(image, image.outputs[i])
        if array is None:
            Py_DecRef(result)
            return None
        PyTuple_SetItem(result, i, array)
        bases[i] = array.data
    return result


@native
def call_tuple(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int
) -> PyObject | None:
    """Implement ``call(*inputs)``: return the tuple of outputs, or an int.

    The int is 1 + the number of the first of the ``count`` arguments that does not fit.
    ``self`` is a capsule of the plan's Image.
    """
    return call_with(self, arguments, count, False)  # False: a tuple of outputs


@native
def call_single(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int
) -> PyObject | None:
    """Implement ``call_single(*inputs)``: return the only output, or an int.

    The int is 1 + the number of the first of the ``count`` arguments that does not fit.
    ``self`` is a capsule of the plan's Image.
    """
    return call_with(self, arguments, count, True)  # True: a single output


@native
def call_into(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int
) -> PyObject | None:
    """Implement ``call_into(*inputs, *outputs)``: run the plan on given outputs.

    Returns the int 0 after the run, or 1 + the number of the first argument that does
    not fit, or None with an exception set. ``self`` is a capsule of the plan's Image,
    ``count`` the number of ``arguments``.
    """
    image = cast(Image, PyCapsule_GetPointer(self, None))
    inputs = image.input_count
    wanted = inputs + image.output_count
    if count != wanted:
        return PyLong_FromLongLong(1 + (min(count, wanted)))
    frame = frame_acquire(image)
    if frame is None:
        PyErr_NoMemory()
        return None
    mismatch = bind_inputs(image, frame, arguments)
    i = 0
    while i < image.output_count and mismatch == 0:
        output = arguments[inputs + i]
        if array_fits(image, output, image.outputs[i], ALIGNED | WRITEABLE):
            frame.bases[inputs + i] = cast(PyArrayObject, output).data
        else:
            mismatch = inputs + i + 1
        i += 1
    ran = True
    if mismatch == 0:
        ran = run_frame(image, frame)
    frame_release(image, frame)
    return PyLong_FromLongLong(mismatch) if ran else None


@native
def image_free(capsule: PyObject) -> None:
    """Free an image with its frames; the destructor of the image's capsule.

    Dropping the reference ``keepalive`` frees the image's tables.
    """
    image = cast(Image, PyCapsule_GetPointer(capsule, None))
    frames_free(image)
    Py_DecRef(image.keepalive)
