"""Plans on a GPU that can be called: prepared launches, one native call for all."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from arrayfn.backends.cuda import runner
from arrayfn.backends.cuda.conditional import conditionals
from arrayfn.backends.cuda.device_array import (
    DeviceArray,
    device_put,
    interned,
    put,
)
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.graphs import Graphs, segments
from arrayfn.backends.cuda.image import Image, raise_status
from arrayfn.backends.cuda.memory import block_size
from arrayfn.backends.cuda.nodes import Node
from arrayfn.backends.cuda.walk import CapturingWalk, Walk
from arrayfn.dtypes import is_python_scalar
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import type_of
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import BufferAllocation


class Executable:
    """A plan, ready to run on the GPU.

    ``call(*inputs)`` returns a tuple of new DeviceArrays, ``call_single(*inputs)`` the
    only one. Inputs are DeviceArrays, or NumPy arrays and numbers, which are copied to
    the GPU, exactly as the plan's types say. If one does not fit nothing is run, and
    the result is the ``int`` 1 + its number. Calls return before the work is done. They
    are safe from several threads at once.
    """

    def __init__(self, compiled: CompiledProgram) -> None:
        plan = compiled.plan
        self.plan = plan
        self.input_types = tuple(interned(t) for t in compiled.input_types)
        # Arrays are what they are: only numbers give way in promotion.
        self.output_types = tuple(
            interned(replace(t, weak=False)) for t in compiled.output_types
        )
        self._lock = threading.Lock()
        self._numbers: dict[int, tuple[Any, DeviceArray]] = {}
        self._constants = [device_put(value) for value in compiled.constants]
        self._arena = len(plan.buffers)
        self._addresses = (ctypes.c_int64 * (self._arena + 1))()
        self._inputs = _numbered(plan.buffers, "input")
        self._outputs = _numbered(plan.buffers, "output")
        self._wanted = tuple(zip(self.input_types, self._inputs, strict=True))
        for number, buffer in enumerate(plan.buffers):
            if buffer.kind == "constant":
                self._addresses[number] = self._constants[buffer.index].pointer
        donors = [plan.buffers[number].donor for number in self._outputs]
        self._donors = donors if any(d is not None for d in donors) else None
        allocated = [
            (number, plan.buffers[number].nbytes)
            for number, donor in zip(self._outputs, donors, strict=True)
            if donor is None
        ]
        if plan.arena:
            allocated.append((self._arena, plan.arena))
        self._allocated = tuple(allocated)
        self._image = Image(compiled, self._arena)
        self._run = runner.run()
        self._buffers_address = ctypes.addressof(self._addresses)
        self._walk = Walk(self._image, self._addresses)
        self._segments = [
            (part.nodes, Graphs(partial(self._capture, part.nodes), part.patience))
            if part.by_graph
            else (part.nodes, None)
            for part in segments(self._image.nodes)
        ]
        by_graph = any(graphs is not None for _, graphs in self._segments)
        self._is_native = self._image.is_native and not by_graph
        self._gpu = device()
        self._single = self._outputs[0] if len(self._outputs) == 1 else -1
        simple = not plan.arena and self._donors is None and self._single >= 0
        self._direct = self._is_native and simple
        if self._direct:
            self._result_type = self.output_types[0]
            self._result_size = block_size(self._allocated[0][1])

    def __call__(self, inputs: Sequence[Any]) -> tuple[DeviceArray, ...]:
        """Run on a flat sequence of inputs; ArgumentError if one does not fit."""
        result = self.call(*inputs)
        if isinstance(result, int):
            raise ArgumentError(self.mismatch(inputs, result - 1), user_location())
        return result

    def mismatch(self, inputs: Sequence[Any], number: int) -> str:
        """Why input ``number`` does not fit, in words."""
        if len(inputs) != len(self.input_types):
            return f"expected {len(self.input_types)} arrays, not {len(inputs)}"
        given = inputs[number]
        what = (
            str(given.__arrayfn_type__)
            if isinstance(given, DeviceArray)
            else f"a {type(given).__name__}"
        )
        return f"argument {number} is to be {self.input_types[number]}, not {what}"

    def call_single(self, *inputs: Any) -> DeviceArray | int:
        """The only result, or 1 + the number of an input that does not fit."""
        if not self._direct:
            result = self.call(*inputs)
            return result if isinstance(result, int) else result[0]
        addresses, held = self._addresses, None
        with self._lock:
            if len(inputs) != len(self._inputs):
                return 1
            for x, (wanted, place) in zip(inputs, self._wanted):  # noqa: B905
                if x.__class__ is not DeviceArray or x.__arrayfn_type__ is not wanted:
                    held = self._enter(inputs)
                    if isinstance(held, int):
                        return held
                    break
                addresses[place] = x.pointer or x.address()
            addresses[self._single] = pointer = self._gpu.take(self._result_size)
            status = self._run(self._image.address, self._buffers_address)
            if status:
                self._gpu.free(pointer)
                raise_status(status)
        return DeviceArray(self._result_type, pointer)

    def call(self, *inputs: Any) -> tuple[DeviceArray, ...] | int:
        """The results, or 1 + the number of an input that does not fit."""
        addresses = self._addresses
        with self._lock:
            held = self._enter(inputs)
            if isinstance(held, int):
                return held
            if self._donors is not None:
                self._point_to_donors(self._donors, inputs, held)
            self._start()
            pointers = [addresses[number] for number in self._outputs]
            for number in self._outputs:
                addresses[number] = 0
        if self._donors is not None:
            for donor in self._donors:
                if donor is not None:
                    array: DeviceArray = held[donor] if donor in held else inputs[donor]
                    array.take()
        return tuple(
            DeviceArray(type, pointer)
            for type, pointer in zip(self.output_types, pointers, strict=True)
        )

    def _enter(self, inputs: tuple[Any, ...]) -> dict[int, DeviceArray] | int:
        """Set the inputs' addresses. The copies made of inputs, or what does not fit.

        Copies die with the call: their memory is freed after what was launched.
        """
        types = self.input_types
        if len(inputs) != len(types):
            return 1
        addresses, places = self._addresses, self._inputs
        held: dict[int, DeviceArray] = {}
        for n, x in enumerate(inputs):
            if type(x) is not DeviceArray or x.__arrayfn_type__ is not types[n]:
                fitting = self._fitting(x, n)
                if fitting is None:
                    return n + 1
                held[n] = fitting
                addresses[places[n]] = fitting.address()
            else:
                addresses[places[n]] = x.pointer or x.address()
        return held

    def _fitting(self, x: Any, number: int) -> DeviceArray | None:
        """``x`` on the GPU, or None if it is not of the type of input ``number``."""
        wanted = self.input_types[number]
        if isinstance(x, DeviceArray):
            return x if x.__arrayfn_type__ == wanted else None
        if is_python_scalar(x):
            known = self._numbers.get(number)
            if known is not None and known[0] is x:
                return known[1]
            if type_of(x) != wanted:
                return None
            made = put(x, wanted)
            if self._donors is None or number not in self._donors:
                self._numbers[number] = (x, made)
            return made
        if isinstance(x, (np.ndarray, np.generic)):
            return put(x, wanted) if type_of(x) == wanted else None
        return None

    def _point_to_donors(
        self,
        donors: Sequence[int | None],
        inputs: Sequence[Any],
        held: dict[int, DeviceArray],
    ) -> None:
        """Let results over donated inputs have the inputs' addresses."""
        used = [self._addresses[place] for place in self._inputs]
        for output, donor in zip(self._outputs, donors, strict=True):
            if donor is None:
                continue
            address = used[donor]
            if used.count(address) > 1 and self.input_types[donor].size:
                raise ArgumentError(
                    f"argument {donor} is donated, and passed as another argument too; "
                    "pass a copy of it",
                    user_location(),
                )
            array: DeviceArray = held[donor] if donor in held else inputs[donor]
            if array.owner is not None or array.shared:
                raise ArgumentError(
                    f"argument {donor} is donated, but another library has its memory "
                    "too; pass a copy of it",
                    user_location(),
                )
            self._addresses[output] = address

    def _start(self) -> None:
        """Allocate, launch, and give the temporaries' memory back."""
        gpu, addresses = device(), self._addresses
        taken = 0
        try:
            for number, nbytes in self._allocated:
                addresses[number] = gpu.allocate(nbytes)
                taken += 1
            self._launch()
        except BaseException:
            for number, _ in self._allocated[:taken]:
                gpu.free(addresses[number])
                addresses[number] = 0
            raise
        if self.plan.arena:
            gpu.free(addresses[self._arena])

    def _launch(self) -> None:
        if self._is_native:
            status = self._run(self._image.address, self._buffers_address)
            if status:
                raise_status(status)
            return
        gpu, addresses = device(), bytes(self._addresses)
        for nodes, graphs in self._segments:
            graph = graphs.find(addresses) if graphs is not None else 0
            if graph:
                gpu.launch(graph)
            else:
                self._walk.run(nodes, gpu.stream)

    def _capture(self, nodes: Sequence[Node], stream: int) -> None:
        """Enqueue ``nodes`` on a stream that is being captured."""
        walk = CapturingWalk(self._image, self._addresses, conditionals())
        walk.run(nodes, stream)


def _numbered(buffers: Sequence[BufferAllocation], kind: str) -> list[int]:
    """The buffers of a kind, by their index."""
    found = {b.index: number for number, b in enumerate(buffers) if b.kind == kind}
    return [found[index] for index in sorted(found)]
