"""The call entry: native routines that CPython calls as METH_FASTCALL builtins.

They check every argument from its PyArrayObject struct, make the outputs, and run the
plan. Nothing is run, and an ``int`` is returned, if an argument does not fit: 1 + the
number of the first that does not. The struct offsets are those of CPython 3.11 to 3.13
(with the GIL) and NumPy 2 (``ndarraytypes.h``).
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.frames import (
    frame_give,
    frame_scalars,
    frame_take,
    frames_free,
)
from arrayfn.backends.cpu.heap import heap_give, heap_take
from arrayfn.backends.cpu.image_layout import (
    BOOL_TYPE,
    FLOAT_TYPE,
    FRAME_HEADER,
    HEAP,
    INPUT_COUNT,
    INPUT_SPECS,
    INT_TYPE,
    KEEPALIVE,
    MEMORY_HANDLER,
    NDARRAY_TYPE,
    NEW_FROM_DESCR,
    OUTPUT_COUNT,
    OUTPUT_SPECS,
    TUPLE_ITEMS,
)
from arrayfn.backends.cpu.runner import run_frame
from arrayfn.backends.native import (
    CFunction,
    call,
    load,
    load_i32,
    load_u8,
    narrow_f64,
    native,
    stack,
    store,
    store_i32,
)

# Byte offsets into the spec of an input or output.
SPEC_DESCR: Final = 0  # a PyArray_Descr
SPEC_NDIM: Final = 8
SPEC_LAYOUT: Final = 16
SPEC_SCALAR: Final = 24  # which Python numbers are accepted, and as what stored
SPEC_BYTES: Final = 32
SPEC_DIMS: Final = 40  # ndim extents, then ndim strides in bytes

LAYOUT_C: Final = 0
LAYOUT_F: Final = 1
LAYOUT_STRIDED: Final = 2

SCALAR_NONE: Final = 0
SCALAR_F32: Final = 1
SCALAR_F64: Final = 2
SCALAR_INT: Final = 3  # of 8 bytes
SCALAR_BOOL: Final = 4

OBJECT_TYPE: Final = 8
FLOAT_VALUE: Final = 16
ARRAY_DATA: Final = 16
ARRAY_NDIM: Final = 24
ARRAY_DIMS: Final = 32
ARRAY_STRIDES: Final = 40
ARRAY_DESCR: Final = 56
ARRAY_FLAGS: Final = 64
ARRAY_HANDLER: Final = 88
DESCR_KIND: Final = 24
DESCR_BYTEORDER: Final = 26
DESCR_TYPE_NUMBER: Final = 28
DESCR_ITEMSIZE: Final = 40

API_ARRAY_TYPE: Final = 2  # positions in NumPy's table of C functions
API_NEW_FROM_DESCR: Final = 94

C_CONTIGUOUS: Final = 0x1
F_CONTIGUOUS: Final = 0x2
OWNDATA: Final = 0x4
ALIGNED: Final = 0x100
WRITEABLE: Final = 0x400
KIND_VOID: Final = ord("V")
SWAPPED: Final = ord(">")
HEAP_FROM: Final = 1 << 17  # smaller outputs are NumPy's own

Py_IncRef = CFunction("Py_IncRef", 1, "void")
Py_DecRef = CFunction("Py_DecRef", 1, "void")
PyCapsule_GetPointer = CFunction("PyCapsule_GetPointer", 2)
PyLong_FromLongLong = CFunction("PyLong_FromLongLong", 1)
PyLong_AsLongLongAndOverflow = CFunction("PyLong_AsLongLongAndOverflow", 2)
PyObject_IsTrue = CFunction("PyObject_IsTrue", 1, "i32")
PyTuple_New = CFunction("PyTuple_New", 1)
PyErr_NoMemory = CFunction("PyErr_NoMemory", 0)


@native
def same_dtype(have: int, want: int) -> int:
    """Whether two descriptors are of the same data type in native byte order."""
    if have == want:
        return 1
    if load_u8(have + DESCR_BYTEORDER) == SWAPPED:
        return 0
    if load_i32(have + DESCR_TYPE_NUMBER) == load_i32(want + DESCR_TYPE_NUMBER):
        return load(have + DESCR_ITEMSIZE) == load(want + DESCR_ITEMSIZE)
    kind = load_u8(have + DESCR_KIND)
    if kind != load_u8(want + DESCR_KIND) or kind == KIND_VOID:
        return 0
    return load(have + DESCR_ITEMSIZE) == load(want + DESCR_ITEMSIZE)


@native
def array_fits(image: int, array: int, spec: int, flags: int) -> int:
    """Whether an object is an ndarray as ``spec`` says, with all of ``flags``."""
    if load(array + OBJECT_TYPE) != load(image + NDARRAY_TYPE):
        return 0
    ndim = load(spec + SPEC_NDIM)
    if (load_i32(array + ARRAY_NDIM)) != ndim:
        return 0
    layout = load(spec + SPEC_LAYOUT)
    if layout == LAYOUT_C:
        flags = flags | C_CONTIGUOUS
    elif layout == LAYOUT_F:
        flags = flags | F_CONTIGUOUS
    if (load_i32(array + ARRAY_FLAGS) & flags) != flags:
        return 0
    dims = load(array + ARRAY_DIMS)
    empty = 0
    for i in range(ndim):
        extent = load(dims + 8 * i)
        if extent != load(spec + SPEC_DIMS + 8 * i):
            return 0
        empty = empty | (extent == 0)
    if same_dtype(load(array + ARRAY_DESCR), load(spec + SPEC_DESCR)) == 0:
        return 0
    if layout == LAYOUT_STRIDED and not empty:
        strides = load(array + ARRAY_STRIDES)
        for j in range(ndim):
            wanted = load(spec + SPEC_DIMS + 8 * (ndim + j))
            if load(dims + 8 * j) != 1 and load(strides + 8 * j) != wanted:
                return 0
    return 1


@native
def scalar_fits(image: int, number: int, spec: int, value: int) -> int:
    """Write a Python number given for a rank-0 array to ``value``; 0 if it can't."""
    scalar = load(spec + SPEC_SCALAR)
    kind = load(number + OBJECT_TYPE)
    if scalar == SCALAR_NONE:
        return 0
    if scalar == SCALAR_BOOL:
        if kind != load(image + BOOL_TYPE):
            return 0
        store(value, PyObject_IsTrue(number))
        return 1
    if scalar == SCALAR_INT:
        if kind != load(image + INT_TYPE):
            return 0
        overflow = stack(1)
        store(overflow, 0)
        integer = PyLong_AsLongLongAndOverflow(number, overflow)
        store(value, integer)
        return load_i32(overflow) == 0
    if kind != load(image + FLOAT_TYPE):
        return 0
    bits = load(number + FLOAT_VALUE)
    if scalar == SCALAR_F32:
        bits = narrow_f64(bits)
    store(value, bits)
    return 1


@native
def bind_inputs(image: int, frame: int, arguments: int) -> int:
    """Set the frame's input bases: 0, or 1 + the number of the first mismatch."""
    specs = load(image + INPUT_SPECS)
    bases = frame + FRAME_HEADER
    for i in range(load(image + INPUT_COUNT)):
        argument = load(arguments + 8 * i)
        spec = load(specs + 8 * i)
        if array_fits(image, argument, spec, ALIGNED):
            store(bases + 8 * i, load(argument + ARRAY_DATA))
        else:
            value = frame_scalars(image, frame) + 8 * i
            if scalar_fits(image, argument, spec, value) == 0:
                return i + 1
            store(bases + 8 * i, value)
    return 0


@native
def output_make(image: int, spec: int) -> int:
    """A new array as ``spec`` says; 0 with an exception set if memory is out."""
    size = load(spec + SPEC_BYTES)
    ndim = load(spec + SPEC_NDIM)
    dims = spec + SPEC_DIMS
    strides = dims + 8 * ndim
    descr = load(spec + SPEC_DESCR)
    data = 0
    flags = 0
    if size >= HEAP_FROM:
        data = heap_take(load(image + HEAP), size)
        if data == 0:
            return PyErr_NoMemory()
        flags = WRITEABLE
    if load(spec + SPEC_LAYOUT) == LAYOUT_C:
        strides = 0
    Py_IncRef(descr)
    new = load(image + NEW_FROM_DESCR)
    array = call(
        new, load(image + NDARRAY_TYPE), descr, ndim, dims, strides, data, flags, 0
    )
    if data != 0:
        if array == 0:
            heap_give(load(image + HEAP), data, size)
            return 0
        handler = load(image + MEMORY_HANDLER)
        Py_IncRef(handler)
        store(array + ARRAY_HANDLER, handler)
        store_i32(array + ARRAY_FLAGS, load_i32(array + ARRAY_FLAGS) | OWNDATA)
    return array


@native
def call_with(self: int, arguments: int, count: int, single: int) -> int:
    """Check ``arguments``, run the plan on new outputs, and return them."""
    image = PyCapsule_GetPointer(self, 0)
    inputs = load(image + INPUT_COUNT)
    if count != inputs:
        if count > inputs:
            count = inputs
        return PyLong_FromLongLong(count + 1)
    frame = frame_take(image)
    if frame == 0:
        return PyErr_NoMemory()
    mismatch = bind_inputs(image, frame, arguments)
    if mismatch:
        frame_give(image, frame)
        return PyLong_FromLongLong(mismatch)
    result = outputs_make(image, frame, single)
    if result != 0 and run_frame(image, frame) == 0:
        Py_DecRef(result)
        result = 0
    frame_give(image, frame)
    return result


@native
def outputs_make(image: int, frame: int, single: int) -> int:
    """Make the outputs and set their bases: a tuple, or the one array if ``single``."""
    specs = load(image + OUTPUT_SPECS)
    bases = frame + FRAME_HEADER + 8 * load(image + INPUT_COUNT)
    if single:
        array = output_make(image, load(specs))
        if array != 0:
            store(bases, load(array + ARRAY_DATA))
        return array
    outputs = load(image + OUTPUT_COUNT)
    result = PyTuple_New(outputs)
    if result == 0:
        return 0
    items = result + load(image + TUPLE_ITEMS)
    for i in range(outputs):
        member = output_make(image, load(specs + 8 * i))
        if member == 0:
            Py_DecRef(result)
            return 0
        store(items + 8 * i, member)
        store(bases + 8 * i, load(member + ARRAY_DATA))
    return result


@native
def call_tuple(self: int, arguments: int, count: int) -> int:
    """``call(*inputs)``: the tuple of outputs, or an int."""
    return call_with(self, arguments, count, 0)


@native
def call_single(self: int, arguments: int, count: int) -> int:
    """``call_single(*inputs)``: the one output, or an int."""
    return call_with(self, arguments, count, 1)


@native
def call_into(self: int, arguments: int, count: int) -> int:
    """``call_into(*inputs, *outputs)``: 0 after running, or 1 + the first mismatch."""
    image = PyCapsule_GetPointer(self, 0)
    inputs = load(image + INPUT_COUNT)
    outputs = load(image + OUTPUT_COUNT)
    if count != inputs + outputs:
        if count > inputs + outputs:
            count = inputs + outputs
        return PyLong_FromLongLong(count + 1)
    frame = frame_take(image)
    if frame == 0:
        return PyErr_NoMemory()
    mismatch = bind_inputs(image, frame, arguments)
    specs = load(image + OUTPUT_SPECS)
    bases = frame + FRAME_HEADER + 8 * inputs
    i = 0
    while i < outputs and mismatch == 0:
        array = load(arguments + 8 * (inputs + i))
        if array_fits(image, array, load(specs + 8 * i), ALIGNED | WRITEABLE):
            store(bases + 8 * i, load(array + ARRAY_DATA))
        else:
            mismatch = inputs + i + 1
        i += 1
    ran = 1
    if mismatch == 0:
        ran = run_frame(image, frame)
    frame_give(image, frame)
    if ran == 0:
        return 0
    return PyLong_FromLongLong(mismatch)


@native
def image_free(capsule: int) -> int:
    """The destructor of an image's capsule."""
    image = PyCapsule_GetPointer(capsule, 0)
    frames_free(image)
    Py_DecRef(load(image + KEEPALIVE))
    return 0
