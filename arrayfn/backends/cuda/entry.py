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
    """An input of a plan: its type, and the number of its buffer.

    ``cached`` is a Python number from an earlier call, and ``address`` is the address
    of the number's copy on the GPU.
    """

    type: PyObject
    buffer: int
    cached: PyObject | None
    address: int


class Output(Struct):
    """A result of a plan: its type, its buffer's number, its memory's free list."""

    type: PyObject
    buffer: int
    free_list: FreeList


class Call(Struct):
    """The state of the call entry of one plan: inputs, results, and runnable plans."""

    array_type: PyObject  # DeviceArray
    type_slot: int  # offsets of a DeviceArray's slots, in units of 8 bytes
    pointer_slot: int
    owner_slot: int
    shared_slot: int
    writable_slot: int
    false: PyObject  # the value of the slots ``shared`` and ``writable`` in a result
    plan: LaunchPlan  # for any addresses
    calls_left: int  # how many calls may run ``plan`` before one enters Python
    buffers: Array[int]  # the address of each buffer
    buffer_count: int
    inputs: Array[Input]
    input_count: int
    outputs: Array[Output]
    output_count: int
    arena: int  # the number of the arena's buffer
    arena_free_list: FreeList | None
    recorded: Array[int]  # records: a plan's address, then the buffers' addresses
    recorded_count: int  # of records
    last_recorded: int  # the number of the record that was found last


class Wait(Struct):
    """Parameters of ``wait``: a stream, the driver's cuStreamQuery, and limits."""

    stream: int
    query: Callable[[int], i32]
    spins: int  # queries before the wait releases the GIL
    cycles: int  # clock cycles after which the wait returns, for signals


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
    """Run a plan of one result; the C function of the builtin ``call_single(*inputs)``.

    Returns the result as a DeviceArray, or what the fallback returns. ``self`` holds
    the address of the ``Call`` and the fallback; ``count`` is the number of
    ``arguments``.
    """
    return call_with(self, arguments, count, True)  # True: a single result


@native
def call_tuple(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int
) -> PyObject | None:
    """Run a plan; the C function of the builtin ``call(*inputs)``.

    Returns a tuple of DeviceArrays, or what the fallback returns. The parameters are
    those of ``call_single``.
    """
    return call_with(self, arguments, count, False)  # False: a tuple of results


@native
def call_with(
    self: PyObject, arguments: Array[Ref[PyObject]], count: int, single: bool
) -> PyObject | None:
    """Run the plan on ``arguments``; if that is not possible, call the fallback.

    The result is an array if ``single``, else a tuple. The result's objects are made
    first, because making them may run the garbage collector, which may call this entry
    again. ``self`` is a tuple that begins with the address of the ``Call`` and the
    fallback, a Python function.
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
    """Make DeviceArrays whose slots are empty: one if ``single``, else a tuple.

    Returns None with an exception set if there is no memory.
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
    """Set the addresses of the inputs' buffers; return whether all arguments fit.

    An argument fits if it is a DeviceArray of the input's type that was not donated, or
    the cached number.
    """
    for i in range(call.input_count):
        array = arguments[i]
        expected = call.inputs[i]
        pointer = expected.address  # of the cached number's copy
        if array is not expected.cached:
            if array.ob_type is not call.array_type:
                return False
            slots = cast(Array[Ref[PyObject]], array)
            if slots[call.type_slot] is not expected.type:
                return False
            pointer = PyLong_AsLongLong(slots[call.pointer_slot])
        if pointer == 0:  # a result has taken over the array's memory
            return False
        call.buffers[expected.buffer] = pointer
    return True


@native
def start(call: Call) -> bool:
    """Allocate results and arena, and enqueue the plan; return whether that succeeds.

    If it fails, the memory is freed again. The arena is freed in any case: later work
    that reuses it runs after the plan.
    """
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

    That is the plan recorded for the buffers' addresses, or else ``call.plan``, which
    runs at any addresses. ``call.plan`` serves ``calls_left`` calls. After them the
    result is 1, so that the call enters Python, which decides whether to record a plan.
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

    The search begins after the record found last, since callers often alternate between
    a few sets of addresses. A record is a plan's address, then its buffers' addresses.
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

    Returns ``result``, or None with an exception set if there is no memory. All arrays
    are filled in any case, so that each owns its block and frees it.
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
    """Set the slots of the DeviceArray ``array``, which is the result ``output``.

    Returns False with an exception set if there is no memory for its objects.
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
    """Wait until a stream's work has run; return the driver's status.

    After some clock cycles the wait ends with the status NOT_READY. After the first
    ``spins`` queries it releases the GIL. ``self`` is the address of a ``Wait``, as a
    Python int. The driver's own wait also polls, but a signal does not end it.
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
