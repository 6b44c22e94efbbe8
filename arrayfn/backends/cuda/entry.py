"""The call entry: native routines that CPython calls as METH_FASTCALL builtins.

An entry reads the addresses of arguments that are DeviceArrays of the right types,
allocates the results, and lets the native runner run the plan that was recorded for
these addresses, or one for any addresses. Everything else (NumPy arrays, numbers,
addresses without a plan, exhausted memory, errors of the driver) is left to the
fallback, a Python function with the same arguments. Objects are made before any state
is set: the garbage collector may call the entry again.

``self`` of a builtin is a tuple: the address of a ``Call``, the fallback, and an object
that keeps alive what both need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from arrayfn.backends.cuda.free_lists import (
    FreeList,
    block_object,
    free_list_pop,
    free_list_push,
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
    """An input: its type, and the number of its buffer.

    ``cached`` is a Python number from an earlier call, and ``address`` that of its copy
    on the GPU.
    """

    type: PyObject
    buffer: int
    cached: PyObject | None
    address: int


class Output(Struct):
    """A result: its type, the number of its buffer, the free list for its memory."""

    type: PyObject
    buffer: int
    free_list: FreeList


class Call(Struct):
    """State shared by all calls of one plan: types, results, and runnable plans."""

    array_type: PyObject  # DeviceArray
    type_slot: int  # offsets of a DeviceArray's slots, in units of 8 bytes
    pointer_slot: int
    owner_slot: int
    shared_slot: int
    writable_slot: int
    false: PyObject  # the value of the last two in a new array
    plan: LaunchPlan  # for any addresses
    calls_left: int  # how many calls may run it before one enters Python
    buffers: Array[int]
    buffer_count: int
    inputs: Array[Input]
    input_count: int
    outputs: Array[Output]
    output_count: int
    arena: int  # the number of its buffer
    arena_free_list: FreeList | None
    recorded: Array[int]  # for each: a plan's address, then the buffers' addresses
    recorded_count: int
    last_recorded: int


class Wait(Struct):
    """Parameters of ``wait``: a stream, the driver's cuStreamQuery, and limits."""

    stream: int
    query: Callable[[int], i32]
    spins: int  # queries before other threads may run
    cycles: int  # of a wait, after which Python may handle signals


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
    """``call_single(*inputs)`` returns the only result, or what the fallback returns.

    ``self`` holds the address of the ``Call`` and the fallback; ``count`` is the number
    of ``arguments``.
    """
    return call_with(self, arguments, count, True)


@native
def call_tuple(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int
) -> PyObject | None:
    """``call(*inputs)`` returns the tuple of results, or what the fallback returns.

    The parameters are those of ``call_single``.
    """
    return call_with(self, arguments, count, False)


@native
def call_with(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int, single: bool
) -> PyObject | None:
    """Run the plan on ``arguments``, or else call the fallback.

    If ``single``, the result is an array, else a tuple. ``count`` is the number of
    arguments.
    """
    call = cast(Call, PyLong_AsLongLong(PyTuple_GetItem(self, 0)))
    if count == call.input_count:
        result = results_new(call, single)
        if result is None:
            return None
        if inputs_bind(call, arguments) and start(call):
            return results_fill(call, result, single)
        Py_DecRef(result)
    return PyObject_Vectorcall(PyTuple_GetItem(self, 1), arguments, count, None)


@native
def results_new(call: Call, single: bool) -> PyObject | None:
    """Make empty DeviceArrays: one if ``single``, else a tuple.

    None with an exception set if there is no memory.
    """
    if single:
        return PyType_GenericAlloc(call.array_type, 0)
    result = PyTuple_New(call.output_count)
    if result is None:
        return None
    for i in range(call.output_count):
        array = PyType_GenericAlloc(call.array_type, 0)
        if array is None:
            Py_DecRef(result)
            return None
        PyTuple_SetItem(result, i, array)
    return result


@native
def inputs_bind(call: Call, arguments: Array[Ref[PyObject]]) -> bool:
    """Set the inputs' addresses; False if one is neither of its type nor cached."""
    for i in range(call.input_count):
        array = arguments[i]
        expected = call.inputs[i]
        pointer = expected.address
        if array is not expected.cached:
            if array.ob_type is not call.array_type:
                return False
            slots = cast(Array[Ref[PyObject]], array)
            if slots[call.type_slot] is not expected.type:
                return False
            pointer = PyLong_AsLongLong(slots[call.pointer_slot])
        if pointer == 0:
            return False
        call.buffers[expected.buffer] = pointer
    return True


@native
def start(call: Call) -> bool:
    """Allocate memory and enqueue the plan; False, with all freed, if that fails."""
    count = call.output_count
    for i in range(count):
        output = call.outputs[i]
        block = free_list_pop(output.free_list)
        if block == 0:
            free_outputs(call, i)
            return False
        call.buffers[output.buffer] = block
    free_list = call.arena_free_list
    arena = 0
    if free_list is not None:
        arena = free_list_pop(free_list)
        if arena == 0:
            free_outputs(call, count)
            return False
        call.buffers[call.arena] = arena
    status = launch(call)
    if free_list is not None:
        free_list_push(free_list, arena)
    if status != 0:
        free_outputs(call, count)
        return False
    return True


@native
def free_outputs(call: Call, count: int) -> None:
    """Free the memory of the first ``count`` results."""
    for i in range(count):
        output = call.outputs[i]
        free_list_push(output.free_list, call.buffers[output.buffer])


@native
def launch(call: Call) -> int:
    """Enqueue the plan on the buffers; return 0 on success.

    If no plan was recorded for these addresses, ``call.plan``, which runs at any,
    serves the next ``calls_left`` calls. After them the result is 1, so that the call
    enters Python, which decides whether to record a plan.
    """
    plan = recorded_find(call)
    if plan is None:
        if call.calls_left == 0:
            return 1
        call.calls_left -= 1
        plan = call.plan
    return run(plan, call.buffers)


@native
def recorded_find(call: Call) -> LaunchPlan | None:
    """Find the plan recorded for the addresses of ``call.buffers``, or None.

    The search begins after the last plan found, since callers often alternate between a
    few sets of addresses. A record is a plan's address and its buffers' addresses.
    """
    number = call.last_recorded
    nbytes = size_of(int) * call.buffer_count
    for _ in range(call.recorded_count):
        number += 1
        if number >= call.recorded_count:
            number = 0
        record = call.recorded + (call.buffer_count + 1) * number
        if memcmp(record + 1, call.buffers, nbytes) == 0:
            call.last_recorded = number
            return cast(LaunchPlan, record[0])
    return None


@native
def results_fill(call: Call, result: PyObject, single: bool) -> PyObject | None:
    """Set the slots of ``result``, which is one array if ``single``, else a tuple.

    Returns it, or None with an exception set if there is no memory.
    """
    is_filled = True
    if single:
        is_filled = result_fill(call, result, call.outputs[0])
    else:
        for i in range(call.output_count):
            if not result_fill(call, PyTuple_GetItem(result, i), call.outputs[i]):
                is_filled = False
    if not is_filled:
        Py_DecRef(result)
        return None
    return result


@native
def result_fill(call: Call, array: PyObject, output: Output) -> bool:
    """Set the slots of ``array``, one result of ``call``.

    ``output`` has its type and the number of its buffer. False with an exception set if
    there is no memory.
    """
    pointer = call.buffers[output.buffer]
    owner = block_object(output.free_list, pointer)
    number = PyLong_FromLongLong(pointer)
    slots = cast(Array[Ref[PyObject | None]], array)
    slots[call.owner_slot] = owner
    slots[call.pointer_slot] = number
    Py_IncRef(output.type)
    slots[call.type_slot] = output.type
    Py_IncRef(call.false)
    slots[call.shared_slot] = call.false
    Py_IncRef(call.false)
    slots[call.writable_slot] = call.false
    return owner is not None and number is not None


@native
def wait(self: PyObject, _: None) -> PyObject | None:
    """Wait for a stream; return the driver's status, NOT_READY after ``cycles``.

    ``self`` is the address of a ``Wait``, as a Python int. A longer wait releases the
    GIL. The driver's own wait polls as often, but a signal does not end it.
    """
    state = cast(Wait, PyLong_AsLongLong(self))
    for _iteration in range(state.spins):
        status = state.query(state.stream)
        if status != NOT_READY:
            return PyLong_FromLongLong(status)
    thread = PyEval_SaveThread()
    begin = cycles()
    status = NOT_READY
    while status == NOT_READY and cycles() - begin < state.cycles:
        pause()
        status = state.query(state.stream)
    PyEval_RestoreThread(thread)
    return PyLong_FromLongLong(status)
