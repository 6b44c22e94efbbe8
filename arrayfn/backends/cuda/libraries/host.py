"""Steps that Python enqueues: references on the host, kernels of operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from arrayfn.backends.cuda.device_array import DeviceArray
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.ir import ArrayType
from arrayfn.lowering.host_steps import HOST_STEPS, HostStep

_LEGACY_STREAM = 1


def reference(number: str, integers: Mapping[str, int], items: int) -> Call:
    """A primitive's reference: arrays go to the host and back."""
    step = HOST_STEPS.find(int(number))
    count = len(step.operands)

    def enqueue(stream: int, *addresses: int) -> None:
        operands = [
            np.asarray(_array(type, address))
            for type, address in zip(step.operands, addresses, strict=False)
        ]
        assert step.function is not None
        result = step.function(*operands)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for value, type, address in zip(
            results, step.results, addresses[count:], strict=True
        ):
            host = np.ascontiguousarray(np.asarray(value, type.dtype))
            if host.size:
                device().copy_in(address, host.ctypes.data, host.nbytes)

    return Call(enqueue, _names(step), capturable=False)


def operator(number: str, integers: Mapping[str, int], items: int) -> Call:
    """An operator's kernel on DeviceArrays; a prepared one says what it enqueues."""
    step = HOST_STEPS.find(int(number))
    kernel, static = step.kernel, dict(step.static)
    assert kernel is not None
    types = (*step.operands, *step.results)
    if kernel.prepared:
        enqueue: Callable[..., None] = kernel.function(*types, **static)
        return Call(enqueue, _names(step))

    def call(stream: int, *addresses: int) -> None:
        arrays = [_array(t, a) for t, a in zip(types, addresses, strict=True)]
        for array in arrays[len(step.operands) :]:
            array.writable = True
        gpu = device()
        gpu.let_wait(_LEGACY_STREAM)
        kernel.function(*arrays, **static)
        gpu.wait_for(_LEGACY_STREAM)

    return Call(call, _names(step), capturable=False)


def _array(type: ArrayType, address: int) -> DeviceArray:
    """An array whose memory is the plan's."""
    array = DeviceArray(type, address, owner=_PLAN)
    array.shared = True
    return array


_PLAN: Any = object()


def _names(step: HostStep) -> tuple[str, ...]:
    return (
        *(f"x{k}" for k in range(len(step.operands))),
        *(f"y{k}" for k in range(len(step.results))),
    )
