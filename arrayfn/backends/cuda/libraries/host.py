"""Prepares steps that Python runs: NumPy references on the host, operators' kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from arrayfn.backends.cuda.device_array import DeviceArray, put
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.kernel_checks import check_first_call, wants_check
from arrayfn.ir import ArrayType
from arrayfn.lowering.host_steps import HOST_STEPS, HostStep
from arrayfn.primitives.rules import as_list

_LEGACY_STREAM = 1  # CU_STREAM_LEGACY, CUDA's default stream


def reference(number: str, integers: Mapping[str, int]) -> Call:
    """Prepare a step that computes a primitive by its NumPy reference on the host.

    Operands are copied to the host, and results back. ``number`` is that of the step in
    HOST_STEPS, as text; ``integers`` is not used.
    """
    step = HOST_STEPS.find(int(number))
    count = len(step.operands)

    def enqueue(stream: int, *addresses: int) -> None:
        """Compute on the host, and copy the results to their addresses.

        ``addresses`` are those of operands, then of results. Waits for the GPU.
        """
        operands = [
            np.asarray(_array(type, address))
            for type, address in zip(step.operands, addresses, strict=False)
        ]
        assert step.function is not None
        results = as_list(step.function(*operands))
        for value, type, address in zip(
            results, step.results, addresses[count:], strict=True
        ):
            host = np.ascontiguousarray(np.asarray(value, type.dtype))
            if host.size:
                device().copy_in(address, host.ctypes.data, host.nbytes)

    return Call(enqueue, _names(step), capturable=False)


def operator(number: str, integers: Mapping[str, int]) -> Call:
    """Prepare a step that calls an operator's kernel.

    A kernel that is ``prepared`` takes a stream and addresses, others take
    DeviceArrays. Unless the kernel's ``check`` is off, its first call is compared with
    the operator's body. ``number`` is that of the step in HOST_STEPS, as text;
    ``integers`` is not used.
    """
    step = HOST_STEPS.find(int(number))
    kernel = step.kernel
    assert kernel is not None
    types = step.types_of_call
    sizes = [type.dtype.itemsize for type in types]
    on_addresses: Callable[..., None]
    if kernel.prepared:
        on_addresses = step.call_of_kernel()
    else:
        on_addresses = partial(_call_on_arrays, step, types, step.call_of_kernel())

    def enqueue(stream: int, *addresses: int) -> None:
        """Enqueue the kernel once for each index of the axes of ``vmap``.

        Each call has its own offset in each array, in elements.
        """
        for offsets in step.offsets_of_calls():
            triples = zip(addresses, offsets, sizes, strict=True)
            on_addresses(stream, *(a + at * size for a, at, size in triples))

    def checked(stream: int, *addresses: int) -> None:
        """Enqueue the kernel; before the first time, check it on copies of the arrays.

        The check compares its results with those of the operator's body.
        """
        # A stream that is being captured runs nothing that could be compared.
        if stream == device().stream and wants_check(step):
            operands = zip(step.operands, addresses, strict=False)
            values = [np.asarray(_array(t, a)) for t, a in operands]
            check_first_call(step, partial(_run_on_copies, step, enqueue), values)
        enqueue(stream, *addresses)

    if kernel.check is False and not step.mapped:
        checked = on_addresses  # one call on whole arrays, which nothing checks
    return Call(checked, _names(step), capturable=kernel.prepared)


def _call_on_arrays(
    step: HostStep,
    types: Sequence[ArrayType],
    call: Callable[..., Any],
    stream: int,
    *addresses: int,
) -> None:
    """Call the kernel of ``step`` on DeviceArrays of ``types`` at ``addresses``.

    ``call`` is the kernel's function. The kernel enqueues on CUDA's default stream: its
    work waits for this GPU's stream, and later work there waits for the kernel's.
    ``stream`` is not used. Results are writable arrays.
    """
    arrays = [_array(t, a) for t, a in zip(types, addresses, strict=True)]
    for array in arrays[len(step.operands) :]:
        array.writable = True
    gpu = device()
    gpu.let_wait(_LEGACY_STREAM)
    call(*arrays)
    gpu.wait_for(_LEGACY_STREAM)


def _run_on_copies(
    step: HostStep,
    enqueue: Callable[..., None],
    operands: Sequence[np.ndarray[Any, Any]],
    results: Sequence[np.ndarray[Any, Any]],
) -> None:
    """Run ``enqueue`` on copies on the GPU of NumPy ``operands`` and ``results``.

    Then overwrite ``results`` with what was computed.
    """
    types = (*step.operands, *step.results)
    arrays = [put(x, t) for x, t in zip((*operands, *results), types, strict=True)]
    enqueue(device().stream, *(x.pointer for x in arrays))
    for host, there in zip(results, arrays[len(operands) :], strict=True):
        host[...] = np.asarray(there)


def _array(type: ArrayType, address: int) -> DeviceArray:
    """Make a DeviceArray of ``type`` at ``address``, in memory that the plan owns.

    It does not free the memory, and it cannot be donated.
    """
    array = DeviceArray(type, address, owner=_PLAN)
    array.shared = True
    return array


_PLAN: Any = object()  # stands for the owner of the memory, which is not known here


def _names(step: HostStep) -> tuple[str, ...]:
    """Return the names of a step's arrays: operands x0, x1, ..., results y0, y1, ..."""
    return (
        *(f"x{k}" for k in range(len(step.operands))),
        *(f"y{k}" for k in range(len(step.results))),
    )
