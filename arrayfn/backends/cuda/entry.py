"""The call entry: native routines that CPython calls as METH_FASTCALL builtins.

An entry reads the addresses of arguments that are DeviceArrays of the right types,
allocates the results, and has the native runner run the plan that was recorded for
these addresses, or one for any addresses. Everything else (NumPy arrays, numbers,
addresses without a plan, exhausted memory, errors of the driver) goes to the fallback,
a Python function with the same arguments. Objects are made before any state is set: the
garbage collector may call the entry again.

``self`` of a builtin is a tuple: the address of a *call*, the fallback, what both need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from arrayfn.backends.cuda.free_lists import (
    FreeList,
    block_object,
    free_list_give,
    free_list_take,
)
from arrayfn.backends.cuda.runner import LaunchPlan, run
from arrayfn.backends.native import CFunction, cast, cycles, native, pause, size_of
from arrayfn.backends.native.python_objects import (
    Py_DecRef,
    Py_IncRef,
    PyEval_RestoreThread,
    PyEval_SaveThread,
    PyLong_AsLongLong,
    PyLong_FromLongLong,
    PyObject,
    PyTuple_New,
    PyTuple_SetItem,
)
from arrayfn.backends.native.structures import Array, Ref, Struct, i32

NOT_READY: Final = 600  # CUDA_ERROR_NOT_READY


class Input(Struct):
    """An input's type and buffer, and a Python number whose copy has an address."""

    type: PyObject
    buffer: int
    cached: PyObject | None
    address: int


class Output(Struct):
    """A result's type and buffer, and the free list for its memory."""

    type: PyObject
    buffer: int
    free_list: FreeList


class Call(Struct):
    """A plan's inputs and results, and the plans that calls may run."""

    array_type: PyObject  # DeviceArray
    type_slot: int  # the numbers of the words of a DeviceArray that are its slots
    pointer_slot: int
    owner_slot: int
    shared_slot: int
    writable_slot: int
    false: PyObject  # what the last two are at first
    plan: LaunchPlan  # for any addresses
    left: int  # how many calls may run it
    buffers: Array[int]
    buffer_count: int
    inputs: Array[Input]
    input_count: int
    outputs: Array[Output]
    output_count: int
    arena: int  # its buffer
    arena_free_list: FreeList | None
    recorded: Array[int]  # of each its plan's address, then the buffers' addresses
    recorded_count: int
    last_recorded: int


class Wait(Struct):
    """A stream that is waited for, by a function of the driver."""

    stream: int
    query: Callable[[int], i32]
    spins: int
    cycles: int  # after which Python may handle signals


memcmp = CFunction[[Array[int], Array[int], int], i32]("memcmp")
PyTuple_GetItem = CFunction[[PyObject, int], PyObject]("PyTuple_GetItem")
PyType_GenericAlloc = CFunction[[PyObject, int], PyObject | None]("PyType_GenericAlloc")
PyObject_Vectorcall = CFunction[
    [PyObject, Array[Ref[PyObject]], int, None], PyObject | None
]("PyObject_Vectorcall")


@native
def call_single(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int
) -> PyObject | None:
    """``call_single(*inputs)``: the one result, or what the fallback returns.

    ``self`` holds the address of the ``Call`` and the fallback; ``count`` is the number
    of ``arguments``.
    """
    return call_with(self, arguments, count, True)


@native
def call_tuple(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int
) -> PyObject | None:
    """``call(*inputs)``: the tuple of results, or what the fallback returns.

    The parameters are those of ``call_single``.
    """
    return call_with(self, arguments, count, False)


@native
def call_with(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int, single: bool
) -> PyObject | None:
    """Run the plan on ``arguments``, or have the fallback do it.

    If ``single``, the result is an array, else a tuple. ``count`` is the number of
    arguments.
    """
    made = cast(Call, PyLong_AsLongLong(PyTuple_GetItem(self, 0)))
    if count == made.input_count:
        result = results_new(made, single)
        if result is None:
            return None
        if inputs_bind(made, arguments) and start(made):
            return results_fill(made, result, single)
        Py_DecRef(result)
    return PyObject_Vectorcall(PyTuple_GetItem(self, 1), arguments, count, None)


@native
def results_new(made: Call, single: bool) -> PyObject | None:
    """Empty DeviceArrays: one if ``single``, else a tuple.

    None with an exception set if there is no memory.
    """
    if single:
        return PyType_GenericAlloc(made.array_type, 0)
    result = PyTuple_New(made.output_count)
    if result is None:
        return None
    for i in range(made.output_count):
        array = PyType_GenericAlloc(made.array_type, 0)
        if array is None:
            Py_DecRef(result)
            return None
        PyTuple_SetItem(result, i, array)
    return result


@native
def inputs_bind(made: Call, arguments: Array[Ref[PyObject]]) -> bool:
    """Set the inputs' addresses; False if one is neither of its type nor cached."""
    for i in range(made.input_count):
        array = arguments[i]
        given = made.inputs[i]
        pointer = given.address
        if array is not given.cached:
            if array.ob_type is not made.array_type:
                return False
            slots = cast(Array[Ref[PyObject]], array)
            if slots[made.type_slot] is not given.type:
                return False
            pointer = PyLong_AsLongLong(slots[made.pointer_slot])
        if pointer == 0:
            return False
        made.buffers[given.buffer] = pointer
    return True


@native
def start(made: Call) -> bool:
    """Allocate memory and enqueue the plan; False, with all freed, if that fails."""
    count = made.output_count
    for i in range(count):
        output = made.outputs[i]
        block = free_list_take(output.free_list)
        if block == 0:
            outputs_give(made, i)
            return False
        made.buffers[output.buffer] = block
    free_list = made.arena_free_list
    arena = 0
    if free_list is not None:
        arena = free_list_take(free_list)
        if arena == 0:
            outputs_give(made, count)
            return False
        made.buffers[made.arena] = arena
    status = launch(made)
    if free_list is not None:
        free_list_give(free_list, arena)
    if status != 0:
        outputs_give(made, count)
        return False
    return True


@native
def outputs_give(made: Call, count: int) -> None:
    """Free the memory of the first ``count`` results."""
    for i in range(count):
        output = made.outputs[i]
        free_list_give(output.free_list, made.buffers[output.buffer])


@native
def launch(made: Call) -> int:
    """Enqueue the plan on the buffers; not 0 if that fails.

    If no plan was recorded for these addresses, each call after ``left`` others goes to
    the fallback, which decides whether to record one.
    """
    plan = recorded_find(made)
    if plan is None:
        if made.left == 0:
            return 1
        made.left -= 1
        plan = made.plan
    return run(plan, made.buffers)


@native
def recorded_find(made: Call) -> LaunchPlan | None:
    """The plan for the addresses of the buffers, which often alternate."""
    number = made.last_recorded
    nbytes = size_of(int) * made.buffer_count
    for _ in range(made.recorded_count):
        number += 1
        if number >= made.recorded_count:
            number = 0
        record = made.recorded + (made.buffer_count + 1) * number
        if memcmp(record + 1, made.buffers, nbytes) == 0:
            made.last_recorded = number
            return cast(LaunchPlan, record[0])
    return None


@native
def results_fill(made: Call, result: PyObject, single: bool) -> PyObject | None:
    """Set the slots of ``result``, which is one array if ``single``, else a tuple.

    Returns it, or None with an exception set if there is no memory.
    """
    is_filled = True
    if single:
        is_filled = result_fill(made, result, made.outputs[0])
    else:
        for i in range(made.output_count):
            if not result_fill(made, PyTuple_GetItem(result, i), made.outputs[i]):
                is_filled = False
    if not is_filled:
        Py_DecRef(result)
        return None
    return result


@native
def result_fill(made: Call, array: PyObject, output: Output) -> bool:
    """Set the slots of one result; False with an exception set without memory."""
    pointer = made.buffers[output.buffer]
    owner = block_object(output.free_list, pointer)
    number = PyLong_FromLongLong(pointer)
    slots = cast(Array[Ref[PyObject | None]], array)
    slots[made.owner_slot] = owner
    slots[made.pointer_slot] = number
    Py_IncRef(output.type)
    slots[made.type_slot] = output.type
    Py_IncRef(made.false)
    slots[made.shared_slot] = made.false
    Py_IncRef(made.false)
    slots[made.writable_slot] = made.false
    return owner is not None and number is not None


@native
def wait(self: PyObject, _: None) -> PyObject | None:
    """Wait for a stream: the driver's status, NOT_READY after ``cycles``.

    A longer wait releases the GIL. The driver's own wait polls as often, and a signal
    does not end it.
    """
    made = cast(Wait, PyLong_AsLongLong(self))
    for _iteration in range(made.spins):
        status = made.query(made.stream)
        if status != NOT_READY:
            return PyLong_FromLongLong(status)
    thread = PyEval_SaveThread()
    begin = cycles()
    status = NOT_READY
    while status == NOT_READY and cycles() - begin < made.cycles:
        pause()
        status = made.query(made.stream)
    PyEval_RestoreThread(thread)
    return PyLong_FromLongLong(status)
