"""Plans on a GPU that can be called: prepared launches, one native call for all."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn.backends.cuda import cublas, runner
from arrayfn.backends.cuda.code import functions
from arrayfn.backends.cuda.device_array import (
    DeviceArray,
    device_put,
    interned,
    put,
)
from arrayfn.backends.cuda.driver import FUNCTIONS, device
from arrayfn.backends.cuda.runner import STEP_WORDS, Header, Phase, Stage, Step
from arrayfn.dtypes import is_python_scalar
from arrayfn.errors import ArgumentError, BackendError, user_location
from arrayfn.ir import type_of
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import (
    BufferAllocation,
    BufferArgument,
    Kernel,
    KernelCall,
    LibraryKernel,
)

_OUT_OF_MEMORY: Final = 2
_GRAPH_STEPS: Final = 4  # from here launching a graph is faster than launching steps
_MOST_GRAPHS: Final = 64
_MOST_SEEN: Final = 256


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
        self.output_types = tuple(interned(t) for t in compiled.output_types)
        self._lock = threading.Lock()
        self._numbers: dict[int, tuple[Any, DeviceArray]] = {}
        self._constants = [device_put(value) for value in compiled.constants]
        self._arena = len(plan.buffers)
        self._addresses = (ctypes.c_int64 * (self._arena + 1))()
        self._inputs = _numbered(plan.buffers, "input")
        self._outputs = _numbered(plan.buffers, "output")
        for number, buffer in enumerate(plan.buffers):
            if buffer.kind == "constant":
                self._addresses[number] = self._constants[buffer.index].pointer
        donors = [plan.buffers[number].donor for number in self._outputs]
        self._donors = donors if any(d is not None for d in donors) else None
        self._allocated = [
            number
            for number, donor in zip(self._outputs, donors, strict=True)
            if donor is None
        ]
        self._image = _Image(compiled, self._allocated, self._arena)
        self._run = runner.run()
        self._plan_address = self._image.header.ctypes.data
        self._buffers_address = ctypes.addressof(self._addresses)
        self._graphs = _Graphs(self._launch_into)
        self._by_graph = self._image.steps >= _GRAPH_STEPS
        self._single = self._outputs[0] if len(self._outputs) == 1 else -1

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
        if self._donors is not None:
            result = self.call(*inputs)
            return result if isinstance(result, int) else result[0]
        addresses = self._addresses
        with self._lock:
            held = self._enter(inputs)
            if type(held) is int:
                return held
            status = self._start()
            if status:
                self._again(status)
            pointer = addresses[self._single]
            addresses[self._single] = 0
        return DeviceArray(self.output_types[0], pointer)

    def call(self, *inputs: Any) -> tuple[DeviceArray, ...] | int:
        """The results, or 1 + the number of an input that does not fit."""
        addresses = self._addresses
        with self._lock:
            held = self._enter(inputs)
            if isinstance(held, int):
                return held
            if self._donors is not None:
                self._point_to_donors(self._donors, inputs, held)
            status = self._start()
            if status:
                self._again(status)
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

    def _start(self) -> int:
        """Allocate, launch and free: 0, or the status of what failed."""
        plan, buffers = self._plan_address, self._buffers_address
        if not self._by_graph:
            return self._run(plan, buffers, Phase.ALL)
        status = self._run(plan, buffers, Phase.ALLOCATE)
        if status:
            return status
        graph = self._graphs.find(bytes(self._addresses))
        if graph:
            device().launch(graph)
        else:
            status = self._run(plan, buffers, Phase.LAUNCH)
        return status or self._run(plan, buffers, Phase.FREE)

    def _launch_into(self, stream: int) -> None:
        """Enqueue the steps, on the addresses that are set."""
        header = self._image.header
        own = int(header[Header.STREAM])
        header[Header.STREAM] = stream
        try:
            status = self._run(self._plan_address, self._buffers_address, Phase.LAUNCH)
        finally:
            header[Header.STREAM] = own
        device().check(status >> 8)

    def _again(self, status: int) -> None:
        """A run failed: run again if memory can be found, or raise the error."""
        gpu = device()
        self._release(status)
        gpu.trim()
        status = self._run(self._plan_address, self._buffers_address, Phase.ALL)
        if not status:
            return
        self._release(status)
        code, stage = status >> 8, Stage(status & 255)
        if stage is Stage.ALLOCATE and code == _OUT_OF_MEMORY:
            raise gpu.out_of_memory(self._image.allocated_bytes)
        if stage is Stage.MATMUL:
            cublas.library().check(code)
        gpu.check(code, f"in {stage.name.lower()}")

    def _release(self, status: int) -> None:
        """Free what a failed run has allocated."""
        numbers = list(self._allocated)
        if self.plan.arena and status & 255 > Stage.ALLOCATE:
            numbers.append(self._arena)
        for number in numbers:
            if self._addresses[number]:
                device().free(self._addresses[number])
                self._addresses[number] = 0


class _Graphs:
    """Graphs of a plan's steps, by the addresses of its buffers.

    Memory that is freed is soon allocated again, so a program that repeats its calls
    repeats their addresses. Addresses seen twice are captured.
    """

    def __init__(self, enqueue: Callable[[int], None]) -> None:
        self._enqueue = enqueue
        self._known: dict[bytes, int] = {}
        self._seen: set[bytes] = set()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            for graph in self._known.values():
                device().forget(graph)

    def find(self, addresses: bytes) -> int:
        """The graph for ``addresses``, or 0: then steps are launched one by one."""
        graph = self._known.get(addresses)
        if graph is not None:
            return graph
        if addresses not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(addresses)
            return 0
        if len(self._known) >= _MOST_GRAPHS:
            return 0
        self._known[addresses] = graph = device().capture(self._enqueue)
        return graph


class _Image:
    """The words that the native runner reads, and all that they point to."""

    def __init__(
        self, compiled: CompiledProgram, allocated: Sequence[int], arena: int
    ) -> None:
        plan, gpu = compiled.plan, device()
        self._buffers = plan.buffers
        self._arena = arena
        self._kernels = {k.name: k for k in compiled.kernels}
        generated = [k for k in compiled.kernels if isinstance(k, Kernel)]
        self._functions = functions(generated)
        self._slots: dict[tuple[int, int], int] = {}
        self._kept: list[object] = []
        # One slot for each pair at most, which must not move.
        count = sum(len(step.arguments) for step in plan.steps)
        self._values = np.zeros(max(1, count), np.int64)
        steps = [words for step in plan.steps for words in self._step(step)]
        table = np.zeros((max(1, len(steps)), STEP_WORDS), np.int64)
        for row, words in zip(table, steps, strict=False):
            row[: len(words)] = words
        sizes = [(n, max(1, plan.buffers[n].nbytes)) for n in allocated]
        if plan.arena:
            sizes.append((arena, plan.arena))
        self.steps = len(steps)
        self.allocated_bytes = sum(size for _, size in sizes)
        allocations = np.array(sizes, np.int64).reshape(-1, 2)
        slots = np.array(
            [
                (self._address(slot), *place)
                for place, slot in sorted(self._slots.items(), key=lambda item: item[1])
            ],
            np.int64,
        ).reshape(-1, 3)
        self._kept += [table, allocations, slots]
        words = {
            Header.CONTEXT: gpu.context,
            Header.STREAM: gpu.stream,
            Header.POOL: gpu.pool,
            Header.ALLOCATIONS: allocations.ctypes.data,
            Header.ALLOCATION_COUNT: len(allocations),
            Header.SLOTS: slots.ctypes.data,
            Header.SLOT_COUNT: len(slots),
            Header.STEPS: table.ctypes.data,
            Header.STEP_COUNT: len(steps),
            Header.ARENA: arena if plan.arena else -1,
            Header.MATMUL: cublas.library().matmul if self._has_products else 0,
        }
        for name, function in FUNCTIONS.items():
            words[Header[name.upper()]] = gpu.address(function)
        self.header = np.zeros(Header.WORDS, np.int64)
        for word, value in words.items():
            self.header[word] = value

    @property
    def _has_products(self) -> bool:
        return any(isinstance(k, LibraryKernel) for k in self._kernels.values())

    def _address(self, slot: int) -> int:
        return self._values.ctypes.data + 8 * slot

    def _slot(self, argument: object) -> int:
        """The address of the slot of a pointer argument."""
        assert isinstance(argument, BufferArgument)
        buffer = self._buffers[argument.buffer]
        place = (argument.buffer, argument.offset)
        if buffer.kind == "temporary":
            place = (self._arena, buffer.offset + argument.offset)
        return self._address(self._slots.setdefault(place, len(self._slots)))

    def _step(self, step: KernelCall) -> list[list[int]]:
        """The words of ``step``, if it has anything to do."""
        if step.items == 0:
            return []
        kernel = self._kernels[step.kernel]
        if isinstance(kernel, LibraryKernel):
            return [self._product(step, kernel)]
        if step.items >= 2**31:
            raise BackendError(f"{step.items} blocks are more than a grid can have")
        integers = np.array([a for a in step.arguments if isinstance(a, int)], np.int64)
        self._kept.append(integers)
        pointers: list[int] = []
        taken = 0
        for argument in step.arguments:
            if isinstance(argument, int):
                pointers.append(integers.ctypes.data + 8 * taken)
                taken += 1
            else:
                pointers.append(self._slot(argument))
        parameters = np.array(pointers, np.int64)
        self._kept.append(parameters)
        function = self._functions[kernel.name]
        launch = [function, step.items, kernel.threads, parameters.ctypes.data]
        return [[Step.KERNEL, *launch]]

    def _product(self, step: KernelCall, kernel: LibraryKernel) -> list[int]:
        a, b, c, *integers = step.arguments
        names = [parameter.name for parameter in kernel.parameters[3:]]
        values = {
            name: value
            for name, value in zip(names, integers, strict=True)
            if isinstance(value, int)
        }
        if not values["k"]:
            output = self._buffers[step.writes[0]]
            return [Step.FILL, self._slot(c), output.nbytes]
        made = cublas.library().product(kernel.provider, values)
        self._kept.append(made)
        second, first, result = made.layouts
        return [
            Step.MATMUL,
            made.handle,
            made.operation,
            made.alpha,
            self._slot(b),
            second,
            self._slot(a),
            first,
            made.beta,
            self._slot(c),
            result,
            made.algorithm,
            made.workspace,
            made.workspace_bytes,
        ]


def _numbered(buffers: Sequence[BufferAllocation], kind: str) -> list[int]:
    """The buffers of a kind, by their index."""
    found = {b.index: number for number, b in enumerate(buffers) if b.kind == kind}
    return [found[index] for index in sorted(found)]
