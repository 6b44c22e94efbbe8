"""Calls of Python functions from a plan.

The runner calls a C function that ctypes made, which takes the interpreter's lock,
makes arrays of the pointers, and calls the function. An exception cannot pass through
the runner: it is kept, further calls of the plan are left out, and what called the plan
raises it once the plan has returned.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from arrayfn.backends.cpu.libraries.provider import Provider
from arrayfn.backends.cpu.native import call, load, native
from arrayfn.lowering.plan import Kernel, LibraryKernel
from arrayfn.primitives.callbacks import SITES, Form

Array = np.ndarray[Any, Any]

FUNCTION: Final = 0  # the C function
SITE: Final = 8
POINTERS: Final = 16

STEM: Final = "callback"


@native
def callback_run(arguments: int, begin: int, end: int) -> int:
    """Call the C function with the address of the arguments."""
    for _ in range(begin, end):
        call(load(arguments + FUNCTION), arguments)
    return 0


class _Failure(threading.local):
    """The exception that a function raised in the plan this thread is running."""

    error: BaseException | None = None


_failure = _Failure()


def _dispatch(arguments: int) -> None:
    number = ctypes.c_int64.from_address(arguments + SITE).value
    site = SITES.find(number)
    forms = (*site.operands, *site.results)
    words = (ctypes.c_int64 * len(forms)).from_address(arguments + POINTERS)
    arrays = [_array(at, form) for at, form in zip(words, forms, strict=True)]
    operands, results = arrays[: len(site.operands)], arrays[len(site.operands) :]
    if _failure.error is None:
        try:
            given = site.run([np.array(x) for x in operands])
            for target, value in zip(results, given, strict=True):
                target[...] = value
        except BaseException as error:  # noqa: BLE001 - it goes on in the caller
            _failure.error = error
    if _failure.error is not None:
        # Zeros end most loops that wait for a function's result.
        for target in results:
            target[...] = 0


def _array(address: int, form: Form) -> Array:
    """The memory at ``address`` as an array."""
    shape, dtype = form
    nbytes = int(np.prod(shape)) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.ctypeslib.as_array(memory).view(dtype).reshape(shape)


_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_dispatch)


def words(number: str) -> tuple[int, ...]:
    """The words before the arguments of the call site of this number.

    Raises ProgramError if this process has no such site.
    """
    SITES.find(int(number))
    address = ctypes.cast(_ENTRY, ctypes.c_void_p).value
    assert address is not None
    return address, int(number)


def unjitted(given: Mapping[str, Any], items: int) -> None:
    """The call, on pointers of un-jitted kernels."""
    site = SITES.find(int(given["site"]))
    operands = [
        np.array(given[f"x{k}"].array(shape))
        for k, (shape, _) in enumerate(site.operands)
    ]
    for k, value in enumerate(site.run(operands)):
        given[f"y{k}"].array(value.shape)[...] = value


def is_callback(kernel: Kernel | LibraryKernel) -> bool:
    """Whether ``kernel`` calls a Python function."""
    is_library = isinstance(kernel, LibraryKernel)
    return is_library and kernel.provider.rpartition("_")[0] == STEM


def raising(entry: Callable[..., Any]) -> Callable[..., Any]:
    """``entry``, which runs a plan, raising what a function in the plan has raised."""

    @functools.wraps(entry, assigned=(), updated=())
    def run(*arguments: Any) -> Any:
        before, _failure.error = _failure.error, None
        try:
            result = entry(*arguments)
            if _failure.error is not None:
                raise _failure.error
            return result
        finally:
            _failure.error = before

    return run


PROVIDERS: Final = {STEM: Provider(callback_run, words, unjitted)}
