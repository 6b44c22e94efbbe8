"""Plans that can be called: ``bind`` makes an Executable of a plan and its kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from arrayfn.backends.addresses import address_of
from arrayfn.backends.cpu import image_layout
from arrayfn.backends.cpu.code import kernel_unit, library_unit
from arrayfn.backends.cpu.entry import call_tuple, image_free
from arrayfn.backends.cpu.image import Entry, encode, types_of
from arrayfn.backends.cpu.libraries import provider_arguments, provider_of
from arrayfn.backends.cpu.libraries.blas import Blas, blas, threaded_blas
from arrayfn.backends.cpu.libraries.callbacks import calls_python, raising
from arrayfn.backends.cpu.runtime import Runtime, runtime
from arrayfn.backends.cpu.signals import check_signals
from arrayfn.backends.native.code import native_address, native_units
from arrayfn.backends.native.engine import KernelCode
from arrayfn.backends.native.loading import Unit, load
from arrayfn.backends.native.objects import new_capsule
from arrayfn.errors import ArgumentError, BackendError
from arrayfn.ir import ArrayType, as_readable
from arrayfn.lowering.plan import (
    ExecutionPlan,
    Kernel,
    LibraryKernel,
    kernel_calls,
)
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]


@frozen(slots=True)
class Executable:
    """A plan, ready to run, with functions that run it on a flat list of inputs.

    ``call(*inputs)`` returns a tuple of new arrays, ``call_single(*inputs)`` the only
    one. ``call_into(*inputs, *outputs)`` writes into given arrays and returns 0. Inputs
    are ndarrays exactly as the plan's types say (layout and alignment included), or
    Python numbers for weakly typed rank-0 inputs. If an input does not fit, nothing is
    run, and the result is the ``int`` 1 + the input's number. Calls are safe from
    several threads at once. ``capsule`` owns the plan's image, which lies at
    ``address`` (0 if the plan calls Python, whose exceptions native callers do not
    see).
    """

    plan: ExecutionPlan
    input_types: tuple[ArrayType, ...]
    output_types: tuple[ArrayType, ...]
    call: Callable[..., tuple[Array, ...] | int]
    call_single: Callable[..., Array | int]
    call_into: Callable[..., int]
    capsule: Any = None
    address: int = 0

    def __call__(self, inputs: Sequence[Any]) -> tuple[Array, ...]:
        """Run on a flat sequence of inputs; return the tuple of outputs.

        If an input does not fit because its elements are not aligned, the run is
        repeated with aligned copies. Any other mismatch raises ArgumentError.
        """
        result = self.call(*inputs)
        if isinstance(result, int):
            return self(self.readable(inputs, result - 1))
        return result

    def readable(self, inputs: Sequence[Any], number: int) -> list[Any]:
        """Return ``inputs``, with copies of those that kernels cannot read.

        Input ``number`` does not fit the plan. Raises ArgumentError if kernels can read
        all inputs: then it does not fit for another reason.
        """
        readable = [as_readable(x) for x in inputs]
        if all(x is y for x, y in zip(inputs, readable, strict=True)):
            raise ArgumentError(self.mismatch(inputs, number))
        return readable

    def mismatch(self, inputs: Sequence[Any], number: int) -> str:
        """Return the text of an error: why input ``number`` of ``inputs`` does not fit.

        A wrong number of inputs is named first.
        """
        if len(inputs) != len(self.input_types):
            return f"expected {len(self.input_types)} arrays, not {len(inputs)}"
        argument = inputs[number]
        wanted = f"argument {number} is to be {self.input_types[number]}"
        if type(argument) is not np.ndarray:
            return f"{wanted}, not a {type(argument).__name__}"
        steps = ",".join(map(str, argument.strides))
        return (
            f"{wanted}, not an array of {argument.dtype} with shape {argument.shape} "
            f"and strides of {steps or 'no'} bytes"
        )


def bind(
    plan: ExecutionPlan,
    kernels: Iterable[Kernel | LibraryKernel],
    constants: Sequence[Array] = (),
    process: Runtime | None = None,
) -> Executable:
    """Load the kernels of ``plan`` and return an Executable that runs the plan.

    Kernels that no cache has are compiled. ``constants`` are the plan's constant
    buffers, by index: C-ordered unless their types say otherwise. They are referred to,
    not copied. ``process`` replaces the process's runtime, to use another thread pool.
    Raises BackendError for a plan that this runtime cannot run.

    If the plan calls Python functions, their exceptions are raised after the call, and
    ``Executable.address`` is 0.
    """
    kernels = list(kernels)
    entries, codes = _entries(kernels)
    process = process or runtime()
    if any(entry.uses_blas for entry in entries.values()):
        _let_runner_set_threads(process.blas, blas())
    is_threaded = any(entry.uses_threaded_blas for entry in entries.values())
    if is_threaded and threaded_blas() is not blas():
        _let_runner_set_threads(process.threaded_blas, threaded_blas())
    missing = {call.kernel for call in kernel_calls(plan.steps)} - entries.keys()
    if missing:
        raise BackendError(
            f"the plan calls kernels it does not have: {sorted(missing)}"
        )
    addresses = [address_of(c) for c in constants]
    image, tables = encode(plan, entries, addresses, process)
    # The capsule's destructor, ``image_free``, drops this reference.
    keepalive = (image, tables, tuple(constants), plan, codes)
    image.set(keepalive=id(keepalive))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(keepalive))
    capsule = new_capsule(ctypes.addressof(image), None, native_address(image_free))
    inputs, outputs = tuple(types_of(plan, "input")), tuple(types_of(plan, "output"))
    entry = process.entries(capsule, inputs, outputs)
    has_python = any(calls_python(kernel) for kernel in kernels)
    if has_python:
        entry = {name: raising(function) for name, function in entry.items()}
    return Executable(
        plan=plan,
        input_types=inputs,
        output_types=outputs,
        call=entry["call"],
        call_single=entry["call_single"],
        call_into=entry["call_into"],
        capsule=capsule,
        address=0 if has_python else ctypes.addressof(image),
    )


def _entries(
    kernels: Iterable[Kernel | LibraryKernel],
) -> tuple[Mapping[str, Entry], Collection[KernelCode]]:
    """Load ``kernels`` and return the Entry of each by name, and their code objects.

    The code of a kernel stays in memory as long as its code object lives. Kernels that
    the cache does not have are compiled.
    """
    kernels = list(kernels)
    units: dict[str, Unit] = {}
    for kernel in kernels:
        if isinstance(kernel, Kernel):
            units[kernel.name] = kernel_unit(kernel)
        elif not provider_of(kernel.provider).entry:
            units[kernel.name] = library_unit(kernel)
    # One call loads the runtime's routines and all kernels: LLVM compiles them in
    # parallel. The routines come first, because kernels call them.
    codes = load([*native_units(call_tuple, check_signals), *units.values()])
    entries: dict[str, Entry] = {}
    for kernel in kernels:
        unit = units.get(kernel.name)
        address = codes[unit.key].address if unit else 0
        if isinstance(kernel, Kernel):
            entries[kernel.name] = Entry(address, is_generated=True)
            continue
        provider = provider_of(kernel.provider)
        entries[kernel.name] = Entry(
            address or provider.entry,
            provider_arguments(kernel.provider),
            provider.uses_blas,
            provider.uses_threaded_blas,
        )
    return entries, tuple(codes.values())


def _let_runner_set_threads(state: image_layout.Blas, library: Blas) -> None:
    """Store in ``state`` the functions that read and set a library's thread count.

    The plan runner calls them.
    """
    state.set(get_threads=library.get_threads, set_threads=library.set_threads)
