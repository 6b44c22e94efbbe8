"""Makes the native call entry of a plan, as two builtin functions. See ``entry``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn.backends.addresses import address_of
from arrayfn.backends.cuda import entry
from arrayfn.backends.cuda.device_array import DeviceArray
from arrayfn.backends.cuda.entry import Call, Input, Output
from arrayfn.backends.cuda.runner import Plan
from arrayfn.backends.native.objects import METH_FASTCALL, builtin_of
from arrayfn.backends.native.python_objects import PyObject, reads_objects
from arrayfn.backends.native.structures import Struct, i32
from arrayfn.ir import ArrayType
from arrayfn.records import frozen

_SLOTS: Final = {
    "type": "__arrayfn_type__",
    "pointer": "pointer",
    "owner": "owner",
    "shared": "shared",
    "writable": "writable",
}
"""The slots of a DeviceArray that native code uses, by the fields of ``Call``."""
ALWAYS: Final = 1 << 62
"""A limit of calls that no process reaches."""


@frozen
class Result:
    """A result of a plan: its type, its buffer, and the free list for its memory.

    ``buffer`` is a number, and ``free_list`` an address.
    """

    type: ArrayType
    buffer: int
    free_list: int


class CallEntry:
    """The tables that the native call entry of one plan reads.

    The entry compares types by identity. ``plan`` runs calls at any addresses; if it is
    None, calls at new addresses go to Python.
    """

    def __init__(
        self,
        buffers: Sequence[int],
        inputs: Sequence[tuple[ArrayType, int]],
        results: Sequence[Result],
        arena: tuple[int, int],
    ) -> None:
        """Fill the tables.

        ``buffers`` are the addresses of all buffers, of which a call sets inputs,
        results and arena. ``inputs`` are pairs (type, number of its buffer). ``arena``
        is (number of its buffer, address of its free list; 0 without an arena).
        """
        arena_buffer, arena_free_list = arena
        self._buffers = np.array(buffers, np.int64)
        self._inputs = (Input * len(inputs))(
            *(Input(type=id(type), buffer=buffer) for type, buffer in inputs)
        )
        self._outputs = (Output * len(results))(
            *(Output(id(r.type), r.buffer, r.free_list) for r in results)
        )
        self._recorded: tuple[object, ...] = ()  # what ``publish`` keeps alive
        self.plan: Plan | None = None
        self._kept = inputs, results  # the types that the tables point to
        self._call = Call(
            array_type=id(DeviceArray),
            false=id(False),
            buffers=address_of(self._buffers),
            buffer_count=len(buffers),
            inputs=ctypes.addressof(self._inputs),
            input_count=len(inputs),
            outputs=ctypes.addressof(self._outputs),
            output_count=len(results),
            arena=arena_buffer,
            arena_free_list=arena_free_list,
        )

    def run(self, plan: Plan, calls: int = ALWAYS) -> None:
        """Let the next ``calls`` calls at addresses without a plan run ``plan``.

        Later calls at such addresses enter Python.
        """
        if plan is not self.plan:
            self._call.calls_left = 0  # another thread may call before the plan is set
            self._call.set(plan=plan.address)
            self.plan = plan
        self._call.calls_left = calls

    def cache_address(self, number: int, value: object, address: int) -> None:
        """Let calls with the Python number ``value`` as input ``number`` use its copy.

        ``address`` is that of the copy on the GPU. The caller keeps value and copy
        alive until it caches another value.
        """
        # Other threads may call between these lines, so no value is cached meanwhile.
        self._inputs[number].set(cached=0)
        self._inputs[number].set(address=address)
        self._inputs[number].set(cached=id(value))

    def publish(self, plans: Mapping[bytes, Plan]) -> None:
        """Let calls run ``plans``, whose keys are the addresses of all buffers.

        The entry's table has a row for each plan: its address, then the key.
        """
        records = np.empty((len(plans), 1 + len(self._buffers)), np.int64)
        for record, (key, plan) in zip(records, plans.items(), strict=True):
            record[0] = plan.address
            record[1:] = np.frombuffer(key, np.int64)
        # Other threads may call between these lines, so the table is empty meanwhile.
        self._call.recorded_count = 0
        self._call.set(recorded=address_of(records))
        self._recorded = records, *plans.values()
        self._call.recorded_count = len(plans)

    def functions(
        self, call: Callable[..., Any], call_single: Callable[..., Any]
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Make two native entries: one returns a tuple of results, one a single result.

        ``call`` and ``call_single`` do the same in Python. An entry calls the Python
        function for what it cannot do. Where native code cannot read Python's objects,
        the Python functions are returned instead of entries.
        """
        if not reads_objects():
            return call, call_single
        # Native code finds a DeviceArray's slots by these offsets. They are read from
        # Python's objects, so not before the check above.
        self._call.set(**slot_numbers())
        # Each entry keeps ``self`` alive, which has the structure at this address.
        address = ctypes.addressof(self._call)
        return (
            builtin_of(entry.call_tuple, METH_FASTCALL, (address, call, self)),
            builtin_of(entry.call_single, METH_FASTCALL, (address, call_single, self)),
        )


@cache
def slot_numbers() -> dict[str, int]:
    """Return the offsets of a DeviceArray's slots, by the fields of ``Call``.

    They are in units of 8 bytes.
    """
    return {
        f"{field}_slot": _offset(getattr(DeviceArray, name))
        // ctypes.sizeof(ctypes.c_int64)
        for field, name in _SLOTS.items()
    }


def _offset(descriptor: Any) -> int:
    """Return the byte offset of a slot in its object, from CPython's structs.

    ``descriptor`` is the class attribute that reads the slot.
    """
    member = _MemberDescriptor.from_address(id(descriptor)).member
    return _Member.from_address(member).offset


class _Member(Struct):
    """CPython's ``PyMemberDef``."""

    name: int
    type: i32
    offset: int


class _MemberDescriptor(PyObject):
    """CPython's ``PyMemberDescrObject``."""

    owner: PyObject
    name: PyObject
    qualified_name: PyObject
    member: int
