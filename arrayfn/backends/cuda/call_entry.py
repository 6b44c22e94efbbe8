"""The native entry of a plan, as two builtin functions. See ``entry``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda import entry, runner
from arrayfn.backends.cuda.device_array import DeviceArray
from arrayfn.backends.cuda.runner import Plan
from arrayfn.backends.native.code import native_address
from arrayfn.backends.native.objects import METH_FASTCALL, builtin_of
from arrayfn.ir import ArrayType

_SLOTS: Final = ("__arrayfn_type__", "pointer", "owner", "shared", "writable")
_MEMBER: Final = 40  # of a slot's descriptor: its PyMemberDef, and in this the offset
_MEMBER_OFFSET: Final = 16
ALWAYS: Final = 1 << 62
_TUPLE_ITEMS: Final = tuple.__basicsize__


@dataclass(frozen=True)
class Result:
    """What a result is, the number of its buffer, and the shelf for its memory."""

    type: ArrayType
    buffer: int
    shelf: int


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
        """``buffers`` are addresses; ``arena`` is its buffer, and its shelf or 0."""
        self._buffers = np.array(buffers, np.int64)
        self._inputs = np.array([(id(t), b, 0, 0) for t, b in inputs], np.int64)
        outputs = [(id(r.type), r.buffer, r.shelf) for r in results]
        self._outputs = np.array(outputs, np.int64)
        self._recorded: tuple[object, ...] = ()
        self.plan: Plan | None = None
        self._kept = inputs, results
        self._words = np.zeros(entry.CALL_BYTES // 8, np.int64)
        self._set(
            {
                entry.ARRAY_TYPE: id(DeviceArray),
                entry.FALSE: id(False),
                entry.TUPLE_ITEMS: _TUPLE_ITEMS,
                entry.BUFFERS: _address(self._buffers),
                entry.BUFFER_COUNT: len(self._buffers),
                entry.INPUTS: _address(self._inputs),
                entry.INPUT_COUNT: len(inputs),
                entry.OUTPUTS: _address(self._outputs),
                entry.OUTPUT_COUNT: len(results),
                entry.ARENA: arena[0],
                entry.ARENA_SHELF: arena[1],
                entry.RUN: native_address(runner.run),
            }
        )
        for k, offset in enumerate(slot_offsets()):
            self._set({entry.SLOTS + 8 * k: offset})

    def _set(self, words: Mapping[int, int]) -> None:
        for word, value in words.items():
            self._words[word // 8] = value

    def run(self, plan: Plan, left: int = ALWAYS) -> None:
        """Have the next ``left`` calls for which there is no other one run ``plan``."""
        if plan is not self.plan:
            self._set({entry.LEFT: 0})
            self._set({entry.PLAN: plan.address})
            self.plan = plan
        self._set({entry.LEFT: left})

    def know(self, number: int, value: object, address: int) -> None:
        """Have input ``number`` be at ``address`` where it is ``value`` itself.

        The caller keeps ``value`` until it says another one.
        """
        row = self._inputs[number]
        # Other threads may call between these lines.
        row[2] = 0
        row[3] = address
        row[2] = id(value)

    def publish(self, plans: Mapping[bytes, Plan]) -> None:
        """Have calls run ``plans``, which are by the addresses of all buffers."""
        records = np.empty((len(plans), 1 + len(self._buffers)), np.int64)
        for record, (key, plan) in zip(records, plans.items(), strict=True):
            record[0] = plan.address
            record[1:] = np.frombuffer(key, np.int64)
        # Other threads may call between these lines.
        self._set({entry.RECORDED_COUNT: 0})
        self._set({entry.RECORDED: _address(records)})
        self._recorded = records, *plans.values()
        self._set({entry.RECORDED_COUNT: len(plans)})

    def functions(
        self, call: Callable[..., Any], call_single: Callable[..., Any]
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The entries for tuples and for the only result, with their fallbacks."""
        address = _address(self._words)
        return (
            builtin_of(entry.call_tuple, METH_FASTCALL, (address, call, self)),
            builtin_of(entry.call_single, METH_FASTCALL, (address, call_single, self)),
        )


def _address(words: Any) -> int:
    return int(words.__array_interface__["data"][0])


@cache
def slot_offsets() -> tuple[int, ...]:
    """Where the slots of a DeviceArray are, from its own address on."""
    return tuple(_offset(getattr(DeviceArray, name)) for name in _SLOTS)


def _offset(descriptor: Any) -> int:
    member = ctypes.c_int64.from_address(id(descriptor) + _MEMBER).value
    return ctypes.c_int64.from_address(member + _MEMBER_OFFSET).value
