"""Calls of Python from a plan: callbacks, and kernels of operators.

The runner calls a C function that ctypes made, which takes the interpreter's lock,
makes arrays of the pointers, and calls the function. An exception cannot pass through
the runner: it is kept, further calls of the plan are left out, and what called the plan
raises it once the plan has returned.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import numpy as np

from arrayfn.backends.addresses import function_address
from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.kernel_checks import check_first_call, wants_check
from arrayfn.backends.members import combine
from arrayfn.ir import ArrayType
from arrayfn.lowering.host_steps import HOST_STEPS
from arrayfn.lowering.libraries.collectives import COLLECTIVES
from arrayfn.lowering.plan import Kernel, LibraryKernel
from arrayfn.primitives.callbacks import SITES, Form
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]


class _Failure(threading.local):
    """The exception that a Python function raised in the plan that this thread runs.

    ``error`` is None if there is none.
    """

    error: BaseException | None = None


_failure = _Failure()


@frozen(slots=True)
class PythonCall:
    """A Python function that a step of a plan calls.

    ``run`` takes arrays of the types ``operands``, which it reads, and arrays of the
    types ``results``, which it writes.
    """

    operands: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    run: Callable[[list[Array], list[Array]], None]


def _callback(number: int) -> PythonCall:
    """Return the call of a user's callback, site ``number`` of SITES.

    The function gets copies of its operands, so that it may keep them.
    """
    site = SITES.find(number)

    def run(operands: list[Array], results: list[Array]) -> None:
        """Call the function, and copy its results to ``results``."""
        values = site.run([np.array(x) for x in operands])
        for target, value in zip(results, values, strict=True):
            target[...] = value

    def types(forms: Iterable[Form]) -> tuple[ArrayType, ...]:
        """Return the row-major array types of pairs of shape and dtype."""
        return tuple(ArrayType(shape, dtype) for shape, dtype in forms)

    return PythonCall(types(site.operands), types(site.results), run)


def _operator(number: int) -> PythonCall:
    """Return the call of an operator's kernel, step ``number`` of HOST_STEPS.

    The kernel works on the plan's own memory.
    """
    step = HOST_STEPS.find(number)
    types = step.types_of_call
    function = step.call_of_kernel()

    def call_kernel(operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Run the kernel: once, or for each index of the axes that ``vmap`` added.

        Operands are made read-only first. ``types`` are the types of a call's arrays.
        """
        for x in operands:
            x.flags.writeable = False
        arrays = (*operands, *results)
        if not step.mapped:
            function(*arrays)
            return
        flat = [x.reshape(-1) for x in arrays]
        # Each call gets a part of each array, which begins at an offset in elements.
        for offsets in step.offsets_of_calls():
            parts = zip(flat, offsets, types, strict=True)
            function(*(x[at : at + t.size].reshape(t.shape) for x, at, t in parts))

    def run(operands: list[Array], results: list[Array]) -> None:
        """Run the kernel; at the first call, compare it with the operator's body."""
        if wants_check(step):
            check_first_call(step, call_kernel, operands)
        call_kernel(operands, results)

    return PythonCall(step.operands, step.results, run)


def _collective(number: int) -> PythonCall:
    """Return the call of a collective, step ``number`` of COLLECTIVES.

    It works on the plan's own memory.
    """
    step = COLLECTIVES.find(number)

    def run(operands: list[Array], results: list[Array]) -> None:
        """Compute the collective together with the other members of the mesh."""
        combine(step, operands[0], results[0])

    return PythonCall((step.operand,), (step.result,), run)


_CALLS: Final = {
    "callback": _callback,
    "collective": _collective,
    "operator": _operator,
}


@cache
def _call_of(kind: str, number: int) -> PythonCall:
    """Return the call of a ``kind`` of ``_CALLS`` with this ``number`` in its table."""
    return _CALLS[kind](number)


def _dispatch(kind: str, arguments: int, begin: int, end: int) -> None:
    """Run the Python call that a step refers to; the plan runner calls this.

    ``kind`` says which table has the call. The address ``arguments`` holds the call's
    number and then the addresses of its operands and results. A call has one work item,
    so ``begin`` and ``end`` are not used. An exception is stored for ``raising``. After
    one, functions are not called any more in this plan, and all results are zeros.
    """
    number = ctypes.c_int64.from_address(arguments)
    step = _call_of(kind, number.value)
    types = (*step.operands, *step.results)
    pointers = arguments + ctypes.sizeof(number)
    addresses = (ctypes.c_int64 * len(types)).from_address(pointers)
    arrays = [_array(at, type) for at, type in zip(addresses, types, strict=True)]
    operands, results = arrays[: len(step.operands)], arrays[len(step.operands) :]
    if _failure.error is None:
        try:
            step.run(operands, results)
        except BaseException as error:  # noqa: BLE001 - it goes on in the caller
            _failure.error = error
    if _failure.error is not None:
        # Zeros end most loops that wait for a function's result.
        for target in results:
            target[...] = 0


def _array(address: int, type: ArrayType) -> Array:
    """Return the memory at ``address`` as an array of ``type``, which shares it."""
    strides = [n * type.dtype.itemsize for n in type.layout.strides(type.shape)]
    if not type.size:
        return np.empty(type.shape, type.dtype)
    # With negative strides, elements also lie before the first one, at ``address``.
    ends = [(n - 1) * step for n, step in zip(type.shape, strides, strict=True)]
    before = -sum(min(end, 0) for end in ends)
    nbytes = before + sum(max(end, 0) for end in ends) + type.dtype.itemsize
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address - before)
    return np.ndarray(type.shape, type.dtype, memory, before, strides)


_ENTRY_TYPE: Final = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)
_ENTRIES: Final = {kind: _ENTRY_TYPE(partial(_dispatch, kind)) for kind in _CALLS}
"""The C functions that the plan runner calls, by kind."""


def _provider(kind: str) -> Provider:
    """Return the provider of the calls of one ``kind``, a key of ``_CALLS``.

    Its name in a plan ends with the call's number, where others have a dtype.
    """

    def leading_arguments(number: str) -> tuple[int, ...]:
        """Return the first argument of the C function: the call's ``number``.

        Raises an error if this process has no such call.
        """
        _call_of(kind, int(number))
        return (int(number),)

    def unjitted(arguments: Mapping[str, Any], items: int) -> None:
        """Run the call in un-jitted execution; ``items`` is 1.

        ``arguments`` has, by name, the call's number, the operands' Pointers x0, x1,
        ... and the results' y0, y1, ...
        """
        step = _call_of(kind, int(arguments["number"]))

        def arrays(prefix: str, types: Iterable[ArrayType]) -> list[Array]:
            """Return the arrays of ``types`` at the pointers ``prefix`` + 0, 1, ..."""
            return [
                arguments[f"{prefix}{k}"].array(t.shape, t.layout.strides(t.shape))
                for k, t in enumerate(types)
            ]

        step.run(arrays("x", step.operands), arrays("y", step.results))

    return Provider(
        kernel=None,
        leading_arguments=leading_arguments,
        unjitted=unjitted,
        entry=function_address(_ENTRIES[kind]),
    )


def calls_python(kernel: Kernel | LibraryKernel) -> bool:
    """Return whether ``kernel`` calls a Python function: if it is of ``_CALLS``."""
    is_library = isinstance(kernel, LibraryKernel)
    return is_library and kernel.provider.rpartition("_")[0] in _CALLS


def raising(entry: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``entry``, which runs a plan, to raise exceptions of its Python calls."""

    @functools.wraps(entry, assigned=(), updated=())
    def run(*arguments: Any) -> Any:
        """Call the entry, then raise the exception of a Python call, if any."""
        # A Python call may run a plan itself: restore the outer plan's exception.
        before, _failure.error = _failure.error, None
        try:
            result = entry(*arguments)
            if _failure.error is not None:
                raise _failure.error
            return result
        finally:
            _failure.error = before

    return run


PROVIDERS: Final = {kind: _provider(kind) for kind in _CALLS}
