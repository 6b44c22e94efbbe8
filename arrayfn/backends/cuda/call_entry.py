"""The native entry of a plan, as two builtin functions. See ``entry``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda import entry
from arrayfn.backends.cuda.device_array import DeviceArray
from arrayfn.backends.cuda.entry import Call, Input, Output
from arrayfn.backends.cuda.runner import Plan
from arrayfn.backends.native.objects import METH_FASTCALL, builtin_of
from arrayfn.backends.native.python_objects import PyObject, reads_objects
from arrayfn.backends.native.structures import Struct, i32
from arrayfn.ir import ArrayType

_SLOTS: Final = {
    "type": "__arrayfn_type__",
    "pointer": "pointer",
    "owner": "owner",
    "shared": "shared",
    "writable": "writable",
}
ALWAYS: Final = 1 << 62


@dataclass(frozen=True)
class Result:
    """What a result is, the number of its buffer, and the free list for its memory."""

    type: ArrayType
    buffer: int
    free_list: int


class CallEntry:
    """What the entry of one plan reads. Types are kept as they are: ``is`` counts.

    ``plan`` is what the runner runs, if there is something.
    """

    def __init__(
        self,
        buffers: Sequence[int],
        inputs: Sequence[tuple[ArrayType, int]],
        results: Sequence[Result],
        arena: tuple[int, int],
    ) -> None:
        """``buffers`` are addresses; ``arena`` is its buffer and free list, or 0."""
        self._buffers = np.array(buffers, np.int64)
        self._inputs = (Input * len(inputs))(
            *(Input(type=id(type), buffer=buffer) for type, buffer in inputs)
        )
        self._outputs = (Output * len(results))(
            *(Output(id(r.type), r.buffer, r.free_list) for r in results)
        )
        self._recorded: tuple[object, ...] = ()
        self.plan: Plan | None = None
        self._kept = inputs, results
        self._call = Call(
            array_type=id(DeviceArray),
            false=id(False),
            buffers=_address(self._buffers),
            buffer_count=len(buffers),
            inputs=ctypes.addressof(self._inputs),
            input_count=len(inputs),
            outputs=ctypes.addressof(self._outputs),
            output_count=len(results),
            arena=arena[0],
            arena_free_list=arena[1],
        )

    def run(self, plan: Plan, left: int = ALWAYS) -> None:
        """Have the next ``left`` calls for which there is no other one run ``plan``."""
        if plan is not self.plan:
            self._call.left = 0
            self._call.set(plan=plan.address)
            self.plan = plan
        self._call.left = left

    def know(self, number: int, value: object, address: int) -> None:
        """Have input ``number`` be at ``address`` where it is ``value`` itself.

        The caller keeps ``value`` until it says another one.
        """
        # Other threads may call between these lines.
        self._inputs[number].set(known=0)
        self._inputs[number].set(address=address)
        self._inputs[number].set(known=id(value))

    def publish(self, plans: Mapping[bytes, Plan]) -> None:
        """Have calls run ``plans``, which are by the addresses of all buffers."""
        records = np.empty((len(plans), 1 + len(self._buffers)), np.int64)
        for record, (key, plan) in zip(records, plans.items(), strict=True):
            record[0] = plan.address
            record[1:] = np.frombuffer(key, np.int64)
        # Other threads may call between these lines.
        self._call.recorded_count = 0
        self._call.set(recorded=_address(records))
        self._recorded = records, *plans.values()
        self._call.recorded_count = len(plans)

    def functions(
        self, call: Callable[..., Any], call_single: Callable[..., Any]
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The entries for tuples and for the only result, with their fallbacks.

        These alone, where native code cannot read objects.
        """
        if not reads_objects():
            return call, call_single
        self._call.set(**slot_numbers())
        address = ctypes.addressof(self._call)
        return (
            builtin_of(entry.call_tuple, METH_FASTCALL, (address, call, self)),
            builtin_of(entry.call_single, METH_FASTCALL, (address, call_single, self)),
        )


def _address(words: Any) -> int:
    return int(words.__array_interface__["data"][0])


@cache
def slot_numbers() -> dict[str, int]:
    """Which words of a DeviceArray its slots are, by the fields that say so."""
    return {
        f"{field}_slot": _offset(getattr(DeviceArray, name))
        // ctypes.sizeof(ctypes.c_int64)
        for field, name in _SLOTS.items()
    }


def _offset(descriptor: Any) -> int:
    """Where a slot is, from its object's address on."""
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
