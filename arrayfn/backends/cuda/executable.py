"""Executables on a GPU: a call checks inputs, allocates results, launches the plan."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from arrayfn.backends.cuda.call_entry import CallEntry, Result
from arrayfn.backends.cuda.device_array import (
    DeviceArray,
    device_put,
    interned,
    put,
)
from arrayfn.backends.cuda.driver import device, on
from arrayfn.backends.cuda.graphs.dispatch import Dispatch
from arrayfn.dtypes import is_python_scalar
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import type_of
from arrayfn.lowering.compiled import CompiledProgram, completed
from arrayfn.lowering.plan import BufferAllocation

Call = Callable[..., Any]


class Executable:
    """A plan that is ready to run on the GPU. ``Dispatch`` decides how it is launched.

    ``call(*inputs)`` returns a tuple of new DeviceArrays; ``call_single(*inputs)``, for
    a plan of one result, returns it without a tuple. Both are builtin functions if the
    plan has a native call entry. Inputs are DeviceArrays, or NumPy arrays and Python
    numbers, which are copied to the GPU; their types must be exactly those of the plan.
    If input number k has another type, nothing runs, and the result is the ``int``
    k + 1. Calls return before the work is done, and are safe from several threads at
    once.
    """

    def __init__(
        self,
        compiled: CompiledProgram,
        dispatch: Callable[..., Dispatch] | None = None,
        through: Callable[[Call], Call] = lambda call: call,
    ) -> None:
        """Load the plan on this thread's GPU, and compute its constants.

        ``dispatch`` is the class of the object that launches the plan, by default
        ``Dispatch``. ``through`` wraps the Python functions of calls. The plan gets a
        native call entry if it is a single segment and donates no argument.
        """
        compiled = completed(compiled, _complete_results)
        plan = compiled.plan
        self.plan = plan
        self._gpu = device()
        self.input_types = tuple(interned(t) for t in compiled.input_types)
        # Results are arrays: only Python numbers have weak types.
        self.output_types = tuple(
            interned(replace(t, weak=False)) for t in compiled.output_types
        )
        self._lock = threading.Lock()
        # By input: the Python number of the last call, and its copy on the GPU.
        self._numbers: dict[int, tuple[Any, DeviceArray]] = {}
        self._entry: CallEntry | None = None
        self._constants = [device_put(value) for value in compiled.constants]
        # The addresses of all buffers, and last the arena's.
        self._arena = len(plan.buffers)
        self._addresses = (ctypes.c_int64 * (self._arena + 1))()
        # The buffers' numbers, in order of inputs and of results.
        self._inputs = _numbered(plan.buffers, "input")
        self._outputs = _numbered(plan.buffers, "output")
        for number, buffer in enumerate(plan.buffers):
            if buffer.kind == "constant":
                self._addresses[number] = self._constants[buffer.index].pointer
        # For each result, the number of the donated input that it overwrites, or None.
        donors = [plan.buffers[number].donor for number in self._outputs]
        self._donors = donors if any(d is not None for d in donors) else None
        self._dispatch = (dispatch or Dispatch)(
            compiled, self._inputs, self._outputs, self._addresses
        )
        self.call: Call = through(self._call)
        self.call_single: Call = through(self._call_single)
        if self._dispatch.is_single and self._donors is None:
            self._entry = entry = self._native_entry()
            self._dispatch.attach(entry)
            self.call, self.call_single = entry.functions(self.call, self.call_single)

    def _native_entry(self) -> CallEntry:
        """Make the native call entry of the plan."""
        gpu, buffers = device(), self.plan.buffers
        numbered = zip(self.output_types, self._outputs, strict=True)
        return CallEntry(
            list(self._addresses),
            tuple(zip(self.input_types, self._inputs, strict=True)),
            [Result(t, b, gpu.free_list(buffers[b].nbytes)) for t, b in numbered],
            (self._arena, gpu.free_list(self.plan.arena) if self.plan.arena else 0),
        )

    def __call__(self, inputs: Sequence[Any]) -> tuple[DeviceArray, ...]:
        """Run the plan on ``inputs``; raises ArgumentError if one has another type."""
        result = self.call(*inputs)
        if isinstance(result, int):
            raise ArgumentError(self.mismatch(inputs, result - 1), user_location())
        return result

    def mismatch(self, inputs: Sequence[Any], number: int) -> str:
        """Return the error text for input ``number``, which has another type.

        If the number of inputs is wrong, the text says that instead.
        """
        if len(inputs) != len(self.input_types):
            return f"expected {len(self.input_types)} arrays, not {len(inputs)}"
        argument, wanted = inputs[number], self.input_types[number]
        if isinstance(argument, DeviceArray):
            if argument.type == wanted:
                here = argument.device
                return (
                    f"argument {number} is on {here!r}, but this runs on GPU "
                    f"{self._gpu.number}; compile it with jit(f, device={here!r}), or "
                    "move the argument with device_put"
                )
            return f"argument {number} is to be {wanted}, not {argument.type}"
        return f"argument {number} is to be {wanted}, not a {type(argument).__name__}"

    def _call_single(self, *inputs: Any) -> DeviceArray | int:
        """Run a plan of one result; return it, or 1 + the number of a wrong input."""
        result = self._call(*inputs)
        return result if isinstance(result, int) else result[0]

    def _call(self, *inputs: Any) -> tuple[DeviceArray, ...] | int:
        """Run the plan; return the results, or 1 + the number of a wrong input."""
        with on(self._gpu):
            return self._run(inputs)

    def _run(self, inputs: tuple[Any, ...]) -> tuple[DeviceArray, ...] | int:
        """Do what ``_call`` does, while this plan's GPU is current.

        One thread at a time sets the addresses and launches. Donated inputs lose their
        memory to results. ``copies`` has the inputs that were copied to the GPU, by
        number.
        """
        addresses = self._addresses
        with self._lock:
            copies = self._set_inputs(inputs)
            if isinstance(copies, int):
                return copies
            if self._donors is not None:
                self._point_to_donors(self._donors, inputs, copies)
            owners = self._allocate_and_launch()
            pointers = [addresses[number] for number in self._outputs]
            for number in self._outputs:
                addresses[number] = 0
        # A result that overwrites a donated input takes over the owner of its memory.
        if self._donors is not None:
            for k, donor in enumerate(self._donors):
                if donor is not None:
                    array: DeviceArray = (
                        copies[donor] if donor in copies else inputs[donor]
                    )
                    owners[k] = array.take()
        return tuple(
            DeviceArray(type, pointer, owner)
            for type, pointer, owner in zip(
                self.output_types, pointers, owners, strict=True
            )
        )

    def _set_inputs(self, inputs: tuple[Any, ...]) -> dict[int, DeviceArray] | int:
        """Set the addresses of the inputs' buffers; copy inputs to the GPU if needed.

        Returns the copies on the GPU by the inputs' numbers; the caller keeps them
        until the plan is enqueued. (A DeviceArray whose type was not interned is among
        them, uncopied.) If an input has another type, returns 1 + its number instead.
        """
        types = self.input_types
        if len(inputs) != len(types):
            return 1
        addresses, numbers = self._addresses, self._inputs
        copies: dict[int, DeviceArray] = {}
        for n, x in enumerate(inputs):
            if type(x) is not DeviceArray or x.__arrayfn_type__ is not types[n]:
                fitting = self._input_on_gpu(x, n)
                if fitting is None:
                    return n + 1
                copies[n] = fitting
                addresses[numbers[n]] = fitting.address()
            else:
                # A donated array has pointer 0, and ``address()`` raises.
                addresses[numbers[n]] = x.pointer or x.address()
        return copies

    def _input_on_gpu(self, x: Any, number: int) -> DeviceArray | None:
        """Return ``x``, which is input ``number``, as an array on this plan's GPU.

        A NumPy array or a Python number is copied. The copy of a number is cached for
        later calls with the same object, unless the input is donated. The result is
        None if ``x`` has another type than the input, or is on another GPU.
        """
        wanted = self.input_types[number]
        if isinstance(x, DeviceArray):
            fits = x.__arrayfn_type__ == wanted and x.gpu is self._gpu
            return x if fits else None
        if is_python_scalar(x):
            cached = self._numbers.get(number)
            if cached is not None:
                python_number, array = cached
                if python_number is x:
                    return array
            if type_of(x) != wanted:
                return None
            array = put(x, wanted)
            if self._donors is None or number not in self._donors:
                if self._entry is not None:
                    self._entry.cache_address(number, x, array.pointer)
                self._numbers[number] = (x, array)
            return array
        if isinstance(x, (np.ndarray, np.generic)):
            return put(x, wanted) if type_of(x) == wanted else None
        return None

    def _point_to_donors(
        self,
        donors: Sequence[int | None],
        inputs: Sequence[Any],
        copies: dict[int, DeviceArray],
    ) -> None:
        """Set the addresses of results that overwrite donated inputs to the inputs'.

        ``donors`` has for each result the number of its donated input, or None.
        ``copies`` are those of ``_set_inputs``. Raises ArgumentError if another
        argument or another library uses a donated input's memory.
        """
        used = [self._addresses[number] for number in self._inputs]
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
            array: DeviceArray = copies[donor] if donor in copies else inputs[donor]
            if array.shared:
                raise ArgumentError(
                    f"argument {donor} is donated, but another library has its memory "
                    "too; pass a copy of it",
                    user_location(),
                )
            self._addresses[output] = address

    def _allocate_and_launch(self) -> list[object]:
        """Allocate results and temporaries, and launch the plan.

        Returns the owners of the results' memory: None for a result that overwrites a
        donated input.
        """
        gpu, addresses, buffers = device(), self._addresses, self.plan.buffers
        owners: list[object] = []
        for number in self._outputs:
            owner: object = None
            if buffers[number].donor is None:
                addresses[number], owner = gpu.block(buffers[number].nbytes)
            owners.append(owner)
        temporaries: object = None
        if self.plan.arena:
            addresses[self._arena], temporaries = gpu.block(self.plan.arena)
        self._dispatch.enqueue(bytes(addresses))
        # The plan may not have run yet, but work that reuses the memory runs after it.
        del temporaries
        return owners


def _complete_results(once: CompiledProgram) -> Sequence[DeviceArray]:
    """Run ``once``, which has no inputs, and wait for its results.

    ``once`` computes what is the same in every call of a plan. The wait raises errors
    of its kernels when the plan is loaded, instead of in a call.
    """
    results = Executable(once)(())
    for result in results:
        result.block_until_ready()
    return results


def _numbered(buffers: Sequence[BufferAllocation], kind: str) -> list[int]:
    """Return the numbers of the buffers of ``kind``, such as "input", by their index.

    A buffer's index is its position among the plan's inputs, for example.
    """
    by_index = {b.index: number for number, b in enumerate(buffers) if b.kind == kind}
    return [by_index[index] for index in sorted(by_index)]
