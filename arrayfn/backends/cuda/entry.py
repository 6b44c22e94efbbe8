"""The call entry: native routines that CPython calls as METH_FASTCALL builtins.

They take the addresses of arguments that are DeviceArrays of the right types, memory
for the results, and have the native runner run the plan that was recorded for these
addresses, or one that is for any. Whatever else comes (NumPy's arrays, numbers,
addresses without a plan, memory that has run out, errors of the driver) goes to the
fallback, a Python function that is called with the same arguments. Objects are made
before anything is bound: a collection of garbage may call the entry again.

``self`` of a builtin is a tuple: the address of a *call*, the fallback, what both need.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cuda.blocks import I32, block_object, shelf_give, shelf_take
from arrayfn.backends.native import (
    CFunction,
    call,
    cycles,
    load,
    native,
    pause,
    store,
)

# Byte offsets into a call.
ARRAY_TYPE: Final = 0  # DeviceArray
SLOTS: Final = 8  # offsets of its slots, in this order: type, pointer, owner, ...
FALSE: Final = 48  # ... shared, writable; then what these two are at first
TUPLE_ITEMS: Final = 56
PLAN: Final = 64  # the runner's, for any addresses
BUFFERS: Final = 72  # an address for each buffer
BUFFER_COUNT: Final = 80
INPUTS: Final = 88  # type, buffer, a number that is known or 0, its address
INPUT_COUNT: Final = 96
OUTPUTS: Final = 104  # triples: type, buffer, shelf
OUTPUT_COUNT: Final = 112
ARENA: Final = 120  # its buffer
ARENA_SHELF: Final = 128  # or 0: the plan has none
RUN: Final = 136  # the runner
LEFT: Final = 144  # how many calls may run the plan
RECORDED: Final = 152  # of each its plan, then the buffers' addresses
RECORDED_COUNT: Final = 160
LAST_RECORDED: Final = 168
CALL_BYTES: Final = 176

SLOT_TYPE: Final = SLOTS
SLOT_POINTER: Final = SLOTS + 8
SLOT_OWNER: Final = SLOTS + 16
SLOT_SHARED: Final = SLOTS + 24
SLOT_WRITABLE: Final = SLOTS + 32

OBJECT_TYPE: Final = 8
INPUT_BYTES: Final = 32
TRIPLE: Final = 24

NOT_READY: Final = 600  # CUDA_ERROR_NOT_READY

Py_IncRef = CFunction("Py_IncRef", 1, "void")
Py_DecRef = CFunction("Py_DecRef", 1, "void")
PyLong_AsLongLong = CFunction("PyLong_AsLongLong", 1)
PyLong_FromLongLong = CFunction("PyLong_FromLongLong", 1)
PyTuple_New = CFunction("PyTuple_New", 1)
PyTuple_GetItem = CFunction("PyTuple_GetItem", 2)
PyType_GenericAlloc = CFunction("PyType_GenericAlloc", 2)
PyObject_Vectorcall = CFunction("PyObject_Vectorcall", 4)


@native
def call_single(self: int, arguments: int, count: int) -> int:
    """``call_single(*inputs)``: the one result, or what the fallback returns."""
    return call_with(self, arguments, count, 1)


@native
def call_tuple(self: int, arguments: int, count: int) -> int:
    """``call(*inputs)``: the tuple of results, or what the fallback returns."""
    return call_with(self, arguments, count, 0)


@native
def call_with(self: int, arguments: int, count: int, single: int) -> int:
    """Run the plan on ``arguments``, or have the fallback do it."""
    made = PyLong_AsLongLong(PyTuple_GetItem(self, 0))
    if count == load(made + INPUT_COUNT):
        result = results_new(made, single)
        if result == 0:
            return 0
        if inputs_bind(made, arguments) and start(made):
            return results_fill(made, result, single)
        Py_DecRef(result)
    return PyObject_Vectorcall(PyTuple_GetItem(self, 1), arguments, count, 0)


@native
def results_new(made: int, single: int) -> int:
    """Arrays that have nothing yet: one, or a tuple; 0 with an exception set."""
    if single:
        return PyType_GenericAlloc(load(made + ARRAY_TYPE), 0)
    count = load(made + OUTPUT_COUNT)
    result = PyTuple_New(count)
    if result == 0:
        return 0
    items = result + load(made + TUPLE_ITEMS)
    for i in range(count):
        array = PyType_GenericAlloc(load(made + ARRAY_TYPE), 0)
        if array == 0:
            Py_DecRef(result)
            return 0
        store(items + 8 * i, array)
    return result


@native
def inputs_bind(made: int, arguments: int) -> int:
    """Set the inputs' addresses; 0 if one is neither of its type nor known."""
    buffers = load(made + BUFFERS)
    given = load(made + INPUTS)
    for i in range(load(made + INPUT_COUNT)):
        array = load(arguments + 8 * i)
        if array == load(given + 16):
            pointer = load(given + 24)
        else:
            if load(array + OBJECT_TYPE) != load(made + ARRAY_TYPE):
                return 0
            if load(array + load(made + SLOT_TYPE)) != load(given):
                return 0
            pointer = PyLong_AsLongLong(load(array + load(made + SLOT_POINTER)))
        if pointer == 0:
            return 0
        store(buffers + 8 * load(given + 8), pointer)
        given += INPUT_BYTES
    return 1


@native
def start(made: int) -> int:
    """Take memory and enqueue the plan; 0, with all given back, if that fails."""
    buffers = load(made + BUFFERS)
    output = load(made + OUTPUTS)
    count = load(made + OUTPUT_COUNT)
    for i in range(count):
        block = shelf_take(load(output + 16))
        if block == 0:
            return outputs_give(made, i)
        store(buffers + 8 * load(output + 8), block)
        output += TRIPLE
    shelf = load(made + ARENA_SHELF)
    arena = 0
    if shelf != 0:
        arena = shelf_take(shelf)
        if arena == 0:
            return outputs_give(made, count)
        store(buffers + 8 * load(made + ARENA), arena)
    status = launch(made)
    if shelf != 0:
        shelf_give(shelf, arena)
    if status != 0:
        return outputs_give(made, count)
    return 1


@native
def outputs_give(made: int, count: int) -> int:
    """Give the memory of the first ``count`` results back."""
    buffers = load(made + BUFFERS)
    output = load(made + OUTPUTS)
    for _ in range(count):
        shelf_give(load(output + 16), load(buffers + 8 * load(output + 8)))
        output += TRIPLE
    return 0


@native
def launch(made: int) -> int:
    """Enqueue the plan on the buffers; not 0 if it can't be.

    Where nothing was recorded for these addresses, one call after ``LEFT`` others is
    for the fallback, which sees which addresses are worth it.
    """
    plan = recorded_find(made)
    if plan == 0:
        left = load(made + LEFT)
        if left == 0:
            return 1
        store(made + LEFT, left - 1)
        plan = load(made + PLAN)
    return call(load(made + RUN), plan, load(made + BUFFERS))


@native
def recorded_find(made: int) -> int:
    """The plan for the addresses of the buffers, or 0. They often come in turns."""
    words = load(made + BUFFER_COUNT)
    count = load(made + RECORDED_COUNT)
    number = load(made + LAST_RECORDED)
    for _ in range(count):
        number += 1
        if number >= count:
            number = 0
        record = load(made + RECORDED) + 8 * (words + 1) * number
        if is_same(record + 8, load(made + BUFFERS), words):
            store(made + LAST_RECORDED, number)
            return load(record)
    return 0


@native
def is_same(a: int, b: int, words: int) -> int:
    """Whether memory is equal."""
    for k in range(words):
        if load(a + 8 * k) != load(b + 8 * k):
            return 0
    return 1


@native
def results_fill(made: int, result: int, single: int) -> int:
    """Give arrays what they are and have; 0 with an exception set if memory is out."""
    output = load(made + OUTPUTS)
    is_filled = 1
    if single:
        is_filled = result_fill(made, result, output)
    else:
        items = result + load(made + TUPLE_ITEMS)
        for i in range(load(made + OUTPUT_COUNT)):
            if result_fill(made, load(items + 8 * i), output) == 0:
                is_filled = 0
            output += TRIPLE
    if is_filled == 0:
        Py_DecRef(result)
        return 0
    return result


@native
def result_fill(made: int, array: int, output: int) -> int:
    """Give one array its memory; 0 with an exception set if the host has none."""
    pointer = load(load(made + BUFFERS) + 8 * load(output + 8))
    owner = block_object(load(output + 16), pointer)
    number = PyLong_FromLongLong(pointer)
    store(array + load(made + SLOT_OWNER), owner)
    store(array + load(made + SLOT_POINTER), number)
    slot_fill(array + load(made + SLOT_TYPE), load(output))
    slot_fill(array + load(made + SLOT_SHARED), load(made + FALSE))
    slot_fill(array + load(made + SLOT_WRITABLE), load(made + FALSE))
    return owner != 0 and number != 0


@native
def slot_fill(slot: int, value: int) -> int:
    """Set an empty slot of an object."""
    Py_IncRef(value)
    store(slot, value)
    return 0


# Byte offsets into what is waited for.
WAIT_STREAM: Final = 0
WAIT_QUERY: Final = 8
WAIT_SPINS: Final = 16
WAIT_CYCLES: Final = 24  # of a wait, after which Python may handle signals
WAIT_BYTES: Final = 32

PyEval_SaveThread = CFunction("PyEval_SaveThread", 0)
PyEval_RestoreThread = CFunction("PyEval_RestoreThread", 1, "void")


@native
def wait(self: int, _: int) -> int:
    """Wait for a stream: the driver's status, NOT_READY if it takes very long.

    If it takes long other threads go on. The driver's own wait asks as often, and is
    not left when a signal comes.
    """
    made = PyLong_AsLongLong(self)
    stream = load(made + WAIT_STREAM)
    for _ in range(load(made + WAIT_SPINS)):
        status = call(load(made + WAIT_QUERY), stream) & I32
        if status != NOT_READY:
            return PyLong_FromLongLong(status)
    thread = PyEval_SaveThread()
    begin = cycles()
    status = NOT_READY
    while status == NOT_READY and cycles() - begin < load(made + WAIT_CYCLES):
        pause()
        status = call(load(made + WAIT_QUERY), stream) & I32
    PyEval_RestoreThread(thread)
    return PyLong_FromLongLong(status)
