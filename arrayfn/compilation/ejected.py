"""Writes kernels as files that run, and takes edited ones back.

A file is the kernel's source and a few lines that call ``check``. Its first call is in
a file beside it, as ``numpy.savez`` writes (``ejected_call``). The calls of a CPU's
kernels are found by running the plan as Python, those of a GPU's by running it on the
GPU or, where there is none, in the emulator.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.base import TimingBackend
from arrayfn.backends.cpu import CpuBackend
from arrayfn.backends.cpu.pointer import Pointer
from arrayfn.backends.cpu.unjitted import run_unjitted
from arrayfn.backends.cuda import CudaBackend, missing_packages
from arrayfn.backends.cuda.emulator import EmulationError
from arrayfn.backends.cuda.emulator import Pointer as GpuPointer
from arrayfn.backends.cuda.emulator.plan import emulated, run_plan
from arrayfn.compilation.bundle_files import check_new_folder
from arrayfn.compilation.ejected_call import Array, EjectedCall, Recorder
from arrayfn.errors import ArgumentError, BackendError, user_location
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import Kernel, KernelCall, LibraryKernel, kernel_calls

_FOOT: Final = '\n\nif __name__ == "__main__":\n'
_SCRIPT: Final = (
    f"{_FOOT}    from arrayfn.compilation.ejected import check\n\n"
    "    raise SystemExit(check(__file__))\n"
)
_REPEATS: Final = 20  # runs that are timed
_EMULATED_THREADS: Final = 1 << 15  # of a call; each takes up to 1 ms


def write_kernels(
    compiled: CompiledProgram, folder: Path, inputs: Sequence[Any]
) -> None:
    """Write the generated kernels of ``compiled``, each with its first call.

    The calls are those for ``inputs``, or for random numbers if there are none. A
    kernel's source and a main program that checks it are in ``<name>.py``, its call in
    ``<name>.npz``.
    """
    check_new_folder("eject", folder)
    types = compiled.input_types
    random = np.random.default_rng(0)
    arguments_of_call = [_random(t, random) for t in types]
    if inputs:
        arguments_of_call = [
            np.asarray(x).astype(t.dtype) for x, t in zip(inputs, types, strict=True)
        ]
    calls = _RECORDERS[compiled.target](compiled, arguments_of_call)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.txt").write_text(compiled.text, "utf-8")
    (folder / "plan.txt").write_text(str(compiled.plan), "utf-8")
    for kernel in compiled.kernels:
        if isinstance(kernel, Kernel):
            file = folder / f"{kernel.name}.py"
            file.write_text(kernel.source.rstrip("\n") + "\n" + _SCRIPT, "utf-8")
            if kernel.name in calls:
                calls[kernel.name].save(file.with_suffix(".npz"))


def _calls_on_cpu(
    compiled: CompiledProgram, inputs: Sequence[Array]
) -> dict[str, EjectedCall]:
    """Record the first call of each kernel of a CPU's plan, run as Python."""
    calls: dict[str, EjectedCall] = {}

    @contextmanager
    def watch(
        step: KernelCall, kernel: Kernel, arguments: Sequence[Any]
    ) -> Generator[None]:
        """Record the first call of a kernel in ``calls``, by the kernel's name.

        The record has the memory before and after the call, which runs in the context.
        """
        if kernel.name in calls:
            yield
            return
        pointers = [
            (a.memory, a.begin * a.memory.itemsize) if isinstance(a, Pointer) else None
            for a in arguments
        ]
        recorder = Recorder("cpu", kernel, step, pointers)
        yield
        calls[kernel.name] = recorder.finish()

    run_unjitted(compiled, inputs, watch)
    return calls


def _calls_on_gpu(
    compiled: CompiledProgram, inputs: Sequence[Array]
) -> dict[str, EjectedCall]:
    """Record the first call of each kernel of a GPU's plan: on the GPU, or emulated."""
    calls: dict[str, EjectedCall] = {}
    threads = {k.name: k.threads for k in compiled.kernels if isinstance(k, Kernel)}
    emulates = bool(CudaBackend().info().missing)
    most = max(
        (c.items * threads.get(c.kernel, 0) for c in kernel_calls(compiled.plan.steps)),
        default=0,
    )
    if emulates and most > _EMULATED_THREADS:
        raise ArgumentError(
            f"eject: there is no GPU here, and a kernel of {compiled.name} has "
            f"{most:,} threads, of which the emulator runs {_EMULATED_THREADS:,}; "
            "lower it for smaller arguments, or eject it on a machine with a GPU",
            user_location(),
        )

    def launch(step: KernelCall, kernel: Kernel, arguments: Sequence[Any]) -> None:
        """Run a call of ``kernel``, and record it if it is the first."""
        pointers = [
            (a.array, a.start * a.array.itemsize) if isinstance(a, GpuPointer) else None
            for a in arguments
        ]
        recorder = Recorder("cuda", kernel, step, pointers)
        if emulates:
            emulated(step, kernel, arguments)
        else:
            call = recorder.call
            recorder.write(CudaBackend().load(call.program(kernel))(call.inputs()))
        calls.setdefault(kernel.name, recorder.finish())

    run_plan(compiled, inputs, launch)
    return calls


def read_kernels(
    kernels: Iterable[Kernel | LibraryKernel], folder: Path
) -> dict[str, str]:
    """Read the sources in ``folder`` that differ from those of ``kernels``, by name.

    Raises ArgumentError if there is no file for any of the kernels.
    """
    sources = {k.name: k.source for k in kernels if isinstance(k, Kernel)}
    files = {name: folder / f"{name}.py" for name in sources}
    edited_sources = {
        name: source_of(file) for name, file in files.items() if file.is_file()
    }
    if not edited_sources:
        raise ArgumentError(
            f"register: {folder} has no file of a kernel of this function: "
            f"{', '.join(sources) or 'it has none'}",
            user_location(),
        )
    return {
        name: source
        for name, source in edited_sources.items()
        if source.rstrip() != sources[name].rstrip()
    }


def source_of(file: Path) -> str:
    """Return the kernel's source in a file, without the lines that check it."""
    return file.read_text("utf-8").partition(_FOOT)[0].rstrip("\n") + "\n"


def check(file: str | os.PathLike[str]) -> int:
    """Run the kernel in ``file`` in each way that this machine has; print the results.

    A CPU's kernel is run as Python and compiled, a GPU's emulated, compiled to PTX and
    run on the GPU. Returns 0 if the results are those that the kernel had when it was
    ejected, within some units in the last place, and 1 if not, or if nothing could run.
    """
    path = Path(file)
    call = EjectedCall.load(path.with_suffix(".npz"), path.stem, source_of(path))
    agree: list[bool] = []
    for title, way in _WAYS[call.target].items():
        try:
            ran = way(call)
        except (BackendError, EmulationError, IndexError) as error:
            agree.append(False)
            text = str(error)
        else:
            if ran.results is not None:
                equal = call.equals(ran.results)
                agree.append(equal or call.is_close(ran.results))
                text = "the same bits" if equal else "near"
                text = (text if agree[-1] else "OTHER results") + ran.text
            else:
                text = ran.text
        sys.stdout.write(f"{call.kernel.name} {title}: {text}\n")
    return 0 if agree and all(agree) else 1


class _Outcome(NamedTuple):
    """The kernel's arrays after a call (None if it did not run), and text about it."""

    results: Sequence[Any] | None
    text: str = ""


def _as_python(call: EjectedCall) -> _Outcome:
    """Run the kernel as Python."""
    return _Outcome(run_unjitted(call.program(), call.inputs(), over_donors=True))


def _emulated(call: EjectedCall) -> _Outcome:
    """Run a GPU's kernel in the emulator, if it has few threads."""
    threads = call.items * call.kernel.threads
    if threads > _EMULATED_THREADS:
        return _Outcome(None, f"not run, since it has {threads:,} threads")
    return _Outcome(run_plan(call.program(), call.inputs()))


def _as_ptx(call: EjectedCall) -> _Outcome:
    """Compile the kernel to PTX, which needs no GPU."""
    if reason := missing_packages():
        return _Outcome(None, f"not compiled: {reason}")
    lines = CudaBackend().assembly(call.kernel).splitlines()
    (arch,) = (line.split()[1] for line in lines if line.startswith(".target"))
    return _Outcome(None, f"{len(lines)} lines for {arch}")


def _on_gpu(call: EjectedCall) -> _Outcome:
    """Run the compiled kernel on the GPU, if there is one."""
    if reason := CudaBackend().info().missing:
        return _Outcome(None, f"not run: {reason}")
    return _timed(call, CudaBackend())


def _on_cpu(call: EjectedCall) -> _Outcome:
    """Run the compiled kernel on the CPU."""
    return _timed(call, CpuBackend())


def _timed(call: EjectedCall, backend: TimingBackend) -> _Outcome:
    """Time some runs of the compiled kernel: the text has the shortest time.

    A kernel without items is run once, without a time.
    """
    run = backend.load_timed(call.program())
    results = run(call.inputs())
    if not call.items:
        return _Outcome(results)
    # ``times_of_steps()[0]`` is (runs, total seconds) of step 0, the only one, so far.
    times: list[float] = []
    for _ in range(_REPEATS):
        before = run.times_of_steps()[0][1]
        run(call.inputs())
        times.append(run.times_of_steps()[0][1] - before)
    return _Outcome(results, f", {1e6 * min(times):.3g} us")


def _random(type: ArrayType, random: np.random.Generator) -> Array:
    """Return random values of ``type``; integers are 0 and 1."""
    if type.dtype in dtypes.INEXACT:
        return np.asarray(random.standard_normal(type.shape)).astype(type.dtype)
    return np.asarray(random.integers(0, 2, type.shape)).astype(type.dtype)


_RECORDERS: Final[
    Mapping[str, Callable[[CompiledProgram, Sequence[Array]], dict[str, EjectedCall]]]
] = {"cpu": _calls_on_cpu, "cuda": _calls_on_gpu}
TARGETS: Final = frozenset(_RECORDERS)
"""Those whose kernels can be ejected."""
_WAYS: Final[Mapping[str, Mapping[str, Callable[[EjectedCall], _Outcome]]]] = {
    "cpu": {"as Python": _as_python, "compiled": _on_cpu},
    "cuda": {"in the emulator": _emulated, "as PTX": _as_ptx, "on the GPU": _on_gpu},
}
