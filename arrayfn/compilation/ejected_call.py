"""A call of one kernel, as a plan of its own: recorded, saved, and run by any backend.

It holds the bytes behind the kernel's pointers before and after the call, so that an
edited kernel can be run on the same memory, and compared with what it gave.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from arrayfn import dtypes
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import (
    Argument,
    BufferAllocation,
    BufferArgument,
    ExecutionPlan,
    Kernel,
    KernelCall,
    Parameter,
    ScratchArgument,
)
from arrayfn.records import record

Array = np.ndarray[Any, Any]

_INTEGER, _SCRATCH = -1, -2  # in files, in place of a memory's number
_LAUNCH: Final = (
    *("threads", "cluster", "shared", "blocks_per_multiprocessor"),
    *("cached", "cooperative"),
)
"""What a kernel has besides its source and its parameters."""


@record
class EjectedCall:
    """A recorded call of ``kernel`` on a backend ``target``, with its memory.

    Attributes:
        target: ``"cpu"`` or ``"cuda"``.
        kernel: the kernel, with its source for people only.
        items, grain, scratch: as in ``KernelCall``.
        arguments: as in ``KernelCall``, with memories as buffers.
        before: the bytes of each memory before the call.
        after: those after the call.
    """

    target: str
    kernel: Kernel
    items: int
    grain: int
    scratch: int
    arguments: list[Argument]
    before: list[Array]
    after: list[Array] = field(default_factory=list[Array])

    def program(self, kernel: Kernel | None = None) -> CompiledProgram:
        """Return a compiled Program of this one call, on copies of the memories.

        Its arguments are the memories before the call, and its results those after it:
        result k takes over the contents of argument k. ``kernel`` is called instead of
        this one, if it is given.
        """
        kernel = kernel or self.kernel
        # Buffers 0 to count - 1 are the arguments, count to 2 * count - 1 the results.
        count = len(self.before)
        types = tuple(ArrayType((m.size,), m.dtype) for m in self.before)
        # Memories are arrays of bytes, so that their sizes are numbers of bytes.
        buffers = [BufferAllocation("input", k, t, t.size) for k, t in enumerate(types)]
        buffers += [
            BufferAllocation("output", k, t, t.size, donor=k)
            for k, t in enumerate(types)
        ]
        numbers = tuple(range(count, 2 * count))
        call = KernelCall(
            kernel.name,
            tuple(
                BufferArgument(count + a.buffer, a.offset)
                if isinstance(a, BufferArgument)
                else a
                for a in self.arguments
            ),
            self.items,
            self.grain,
            self.scratch,
            updates=numbers,
            writes=numbers,
        )
        plan = ExecutionPlan(tuple(buffers), (call,), scratch=self.scratch)
        return CompiledProgram(
            kernel.name,
            self.target,
            text="",
            input_types=types,
            output_types=types,
            kernels=(kernel,),
            plan=plan,
            constants=(),
        )

    def inputs(self) -> tuple[Array, ...]:
        """Return the arguments of ``program``."""
        return tuple(m.copy() for m in self.before)

    def equals(self, results: Sequence[Any]) -> bool:
        """Whether the memories in ``results`` have the bits of ``after``."""
        pairs = zip(results, self.after, strict=True)
        return all(np.asarray(a).tobytes() == b.tobytes() for a, b in pairs)

    def is_close(self, results: Sequence[Any]) -> bool:
        """Whether ``results`` equal ``after`` up to some units in the last place."""
        return all(
            _is_close(np.asarray(result), expected, self._dtypes_of(number))
            for number, (result, expected) in enumerate(
                zip(results, self.after, strict=True)
            )
        )

    def _dtypes_of(self, memory: int) -> Iterator[np.dtype[Any]]:
        """Yield the float dtypes of the kernel's pointers into memory ``memory``."""
        pairs = zip(self.arguments, self.kernel.parameters, strict=True)
        names = {
            parameter.kind.removesuffix("*")
            for argument, parameter in pairs
            if isinstance(argument, BufferArgument) and argument.buffer == memory
        }
        pointer_dtypes = (dtypes.BY_SHORT_NAME.get(name) for name in sorted(names))
        return (d for d in pointer_dtypes if d is not None and d in dtypes.INEXACT)

    def save(self, file: Path) -> None:
        """Write the call, without the kernel's source."""
        parameters, launch = self.kernel.parameters, asdict(self.kernel)
        np.savez(
            file,
            allow_pickle=False,
            target=np.array(self.target),
            counts=np.array([self.items, self.grain, self.scratch], np.int64),
            arguments=np.array(
                [_stored(argument) for argument in self.arguments], np.int64
            ).reshape(-1, 2),
            names=np.array([p.name for p in parameters], str),
            kinds=np.array([p.kind for p in parameters], str),
            launch=np.array([int(launch[name]) for name in _LAUNCH], np.int64),
            **{f"before_{k}": m for k, m in enumerate(self.before)},
            **{f"after_{k}": m for k, m in enumerate(self.after)},
        )

    @classmethod
    def load(cls, file: Path, name: str, source: str) -> EjectedCall:
        """Read the call in ``file``, of the kernel ``name`` with this ``source``."""
        with np.load(file, allow_pickle=False) as data:
            named_types = zip(data["names"], data["kinds"], strict=True)
            parameters = tuple(Parameter(str(n), str(kind)) for n, kind in named_types)
            threads, cluster, shared, blocks, cached, cooperative = map(
                int, data["launch"]
            )
            kernel = Kernel(
                name=name,
                source=source,
                key=source,  # as of a kernel that was replaced by hand
                parameters=parameters,
                threads=threads,
                cluster=cluster,
                shared=shared,
                blocks_per_multiprocessor=blocks,
                cached=bool(cached),
                cooperative=bool(cooperative),
            )
            items, grain, scratch = map(int, data["counts"])
            # Each argument is a pair of integers, as ``_stored`` returns.
            arguments = [
                _loaded(int(memory), int(value)) for memory, value in data["arguments"]
            ]
            count = sum(n.startswith("before_") for n in data.files)
            before = [data[f"before_{k}"] for k in range(count)]
            after = [data[f"after_{k}"] for k in range(count)]
            target = str(data["target"])
        return cls(target, kernel, items, grain, scratch, arguments, before, after)


class Recorder:
    """Records a call in the host's memory, before and after it runs.

    ``pointers`` are ``(array, offset in bytes)``, where the kernel's argument is a
    pointer. Arrays that overlap are one memory.
    """

    def __init__(
        self,
        target: str,
        kernel: Kernel,
        step: KernelCall,
        pointers: Sequence[tuple[Array, int] | None],
    ) -> None:
        """Copy the memories before the call; ``call`` becomes the recorded call."""
        arguments: list[Argument] = []
        # ``_memories`` are views by address, which do not keep the arrays alive.
        self._keepalive = [array for array, _ in filter(None, pointers)]
        arrays = [
            pointer[0]
            for pointer, argument in zip(pointers, step.arguments, strict=True)
            if pointer is not None and isinstance(argument, BufferArgument)
        ]
        # Each range of addresses is one memory; find the one of each argument.
        ranges = _merged([_range(array) for array in arrays])
        self._memories = [_bytes(first, last) for first, last in ranges]
        for argument, pointer in zip(step.arguments, pointers, strict=True):
            if not isinstance(argument, BufferArgument):
                arguments.append(argument)
            else:
                assert pointer is not None
                array, offset = pointer
                first, last = _range(array)
                number = next(
                    k for k, (a, b) in enumerate(ranges) if a <= first and last <= b
                )
                begin = first + offset - ranges[number][0]
                arguments.append(BufferArgument(number, begin))
        before = [m.copy() for m in self._memories]
        self.call = EjectedCall(
            target, kernel, step.items, step.grain, step.scratch, arguments, before
        )

    def write(self, results: Sequence[Any]) -> None:
        """Copy the results of ``EjectedCall.program`` to the memories."""
        for memory, result in zip(self._memories, results, strict=True):
            memory[...] = np.asarray(result)

    def finish(self) -> EjectedCall:
        """Copy the memories after the call has run; return the recorded call."""
        self.call.after = [m.copy() for m in self._memories]
        return self.call


def _stored(argument: Argument) -> tuple[int, int]:
    """Return an argument as two numbers for a file: its memory, and the offset.

    The offset is in bytes. An integer is (-1, its value), and scratch memory is (-2,
    its offset).
    """
    if isinstance(argument, int):
        return _INTEGER, argument
    if isinstance(argument, ScratchArgument):
        return _SCRATCH, argument.offset
    return argument.buffer, argument.offset


def _loaded(memory: int, value: int) -> Argument:
    """Return the argument that ``_stored`` turned into these numbers."""
    if memory == _INTEGER:
        return value
    return (
        ScratchArgument(value) if memory == _SCRATCH else BufferArgument(memory, value)
    )


def _range(array: Array) -> tuple[int, int]:
    """Return the addresses of a contiguous array's first byte, and after its last."""
    first = int(array.__array_interface__["data"][0])
    return first, first + array.nbytes


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ``(first, last)`` ranges that overlap; return them in order."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(set(ranges)):
        if merged and first < merged[-1][1]:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def _bytes(first: int, last: int) -> Array:
    """Return the memory between two addresses as an array of bytes, without a copy."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * (last - first)).from_address(first))


def _is_close(result: Array, expected: Array, kinds: Iterator[np.dtype[Any]]) -> bool:
    """Whether two byte arrays are equal, or are close as floats of one of ``kinds``.

    Each element must be close, by 64 machine epsilons, or have the same bits.
    """
    if result.tobytes() == expected.tobytes():
        return True
    for dtype in kinds:
        whole = expected.size // dtype.itemsize * dtype.itemsize
        actual, wanted = (m[:whole].view(dtype) for m in (result, expected))
        wide = np.result_type(dtype, np.float32)
        tolerance = 64 * float(ml_dtypes.finfo(dtype).eps)
        close = np.isclose(
            actual.astype(wide),
            wanted.astype(wide),
            tolerance,
            tolerance,
            equal_nan=True,
        )
        equal = result[:whole].reshape(-1, dtype.itemsize) == expected[:whole].reshape(
            -1, dtype.itemsize
        )
        if bool(np.all(close | equal.all(axis=1))):
            return True
    return False
