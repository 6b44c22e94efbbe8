"""Writes kernels as files that run, and takes edited ones back.

A file is the kernel's source and a few lines that call ``check``. The arguments of its
first call are in a file beside it, as ``numpy.savez`` writes: the memory behind each
pointer before and after the call, and the offset of the pointer in it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.cpu.code import kernel_codes
from arrayfn.backends.cpu.pointer import Pointer
from arrayfn.backends.cpu.runtime import runtime
from arrayfn.backends.cpu.unjitted import function_of, run_unjitted
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import (
    Kernel,
    KernelCall,
    LibraryKernel,
    Parameter,
    ScratchArgument,
)

Array = np.ndarray[Any, Any]
_FOOT: Final = '\n\nif __name__ == "__main__":\n'
_SCRIPT: Final = (
    f"{_FOOT}    from arrayfn.compilation.ejected import check\n\n"
    "    raise SystemExit(check(__file__))\n"
)
_REPEATS: Final = 20


def write_kernels(
    compiled: CompiledProgram, folder: Path, inputs: Sequence[Any]
) -> None:
    """Write the generated kernels of ``compiled``, with their first calls.

    The calls are those for ``inputs``, or for random numbers if there are none.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentError(
            f"eject: {folder} is there already; give a folder that is new, or empty",
            user_location(),
        )
    types = compiled.input_types
    random = np.random.default_rng(0)
    arguments_of_call = [_random(t, random) for t in types]
    if inputs:
        arguments_of_call = [
            np.asarray(x, t.dtype) for x, t in zip(inputs, types, strict=True)
        ]
    calls: dict[str, _Call] = {}

    @contextmanager
    def watch(
        step: KernelCall, kernel: Kernel, arguments: Sequence[Any]
    ) -> Generator[None]:
        """Keep the first call of each kernel: the memory before it and after it."""
        if kernel.name in calls:
            yield
            return
        call = calls[kernel.name] = _Call.before(arguments, step.items)
        yield
        # What scratch memory holds is no result.
        pairs = zip(step.arguments, arguments, strict=True)
        results = [a for s, a in pairs if not isinstance(s, ScratchArgument)]
        call.expected = [m.copy() for m in _numbered(results)[0]]

    run_unjitted(compiled, arguments_of_call, watch)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.txt").write_text(compiled.text, "utf-8")
    (folder / "plan.txt").write_text(str(compiled.plan), "utf-8")
    for kernel in compiled.kernels:
        if isinstance(kernel, Kernel):
            file = folder / f"{kernel.name}.py"
            file.write_text(kernel.source.rstrip("\n") + "\n" + _SCRIPT, "utf-8")
            if kernel.name in calls:
                calls[kernel.name].save(file.with_suffix(".npz"), kernel)


def read_kernels(
    kernels: Iterable[Kernel | LibraryKernel], folder: Path
) -> dict[str, str]:
    """The sources in ``folder`` that differ from those of ``kernels``, by name."""
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
    """The kernel's source in a file, without the lines that check it."""
    return file.read_text("utf-8").partition(_FOOT)[0].rstrip("\n") + "\n"


def check(file: str | os.PathLike[str]) -> int:
    """Run the kernel in ``file`` as Python and compiled; print how they compare.

    Returns 0 if both give the results that the kernel had when it was ejected, within
    some units in the last place, and 1 if not.
    """
    path = Path(file)
    call = _Call.load(path.with_suffix(".npz"))
    source = source_of(path)
    kernel = Kernel(path.stem, source, source, call.parameters)
    python_agrees = call.runs(
        f"{kernel.name} as Python", lambda *a: _as_python(kernel, *a)
    )
    code = kernel_codes([kernel])[kernel.name]
    runtime()
    return (
        0
        if call.runs(f"{kernel.name} compiled", _compiled(code)) and python_agrees
        else 1
    )


def _as_python(kernel: Kernel, call: _Call, memories: Sequence[Array]) -> None:
    """Run the call of ``kernel`` as Python, on ``memories``."""
    arguments = (
        Pointer(memories[memory], offset) if memory >= 0 else np.int64(offset)
        for memory, offset in call.arguments
    )
    function_of(kernel)(*arguments, 0, call.items)


def _compiled(code: Any) -> Any:
    """A function that runs a call of the compiled ``code``."""
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    entry = prototype(code.address)

    def run(call: _Call, memories: Sequence[Array]) -> None:
        addresses = [
            memories[memory].ctypes.data + offset * memories[memory].itemsize
            if memory >= 0
            else offset
            for memory, offset in call.arguments
        ]
        argument_words = (ctypes.c_int64 * max(1, len(addresses)))(*addresses)
        entry(ctypes.addressof(argument_words), 0, call.items)

    return run


@dataclass
class _Call:
    """A call of a kernel: its arguments, and the memories behind pointers.

    Attributes:
        memories: the memories before the call; scratch memories come last.
        arguments: ``(memory number, offset in elements)`` of each pointer, and ``(-1,
            value)`` of each integer.
        items: the number of work items.
        expected: the memories after the call, without scratch.
        parameters: the parameters of the kernel.
    """

    memories: list[Array]
    arguments: list[tuple[int, int]]
    items: int
    expected: list[Array] = field(default_factory=list[Array])
    parameters: tuple[Parameter, ...] = ()

    @classmethod
    def before(cls, arguments: Sequence[Any], items: int) -> _Call:
        """The call that is about to run, with copies of its memories.

        ``arguments`` are pointers and integers, and ``items`` the number of work items.
        """
        memories, pairs = _numbered(arguments)
        return cls([m.copy() for m in memories], pairs, items)

    def save(self, file: Path, kernel: Kernel) -> None:
        """Write the call of ``kernel`` to ``file``."""
        arrays = {f"before_{k}": m for k, m in enumerate(self.memories)}
        arrays |= {f"after_{k}": m for k, m in enumerate(self.expected)}
        pairs = np.array(self.arguments, np.int64).reshape(-1, 2)
        np.savez(
            file,
            allow_pickle=False,
            arguments=pairs,
            items=np.int64(self.items),
            names=np.array([p.name for p in kernel.parameters], str),
            kinds=np.array([p.kind for p in kernel.parameters], str),
            **arrays,
        )

    @classmethod
    def load(cls, file: Path) -> _Call:
        """The call that ``file`` holds."""
        with np.load(file, allow_pickle=False) as data:
            counts = [
                sum(name.startswith(word) for name in data.files)
                for word in ("before_", "after_")
            ]
            named_types = zip(data["names"], data["kinds"], strict=True)
            return cls(
                [data[f"before_{k}"] for k in range(counts[0])],
                [(int(a), int(b)) for a, b in data["arguments"]],
                int(data["items"]),
                [data[f"after_{k}"] for k in range(counts[1])],
                tuple(Parameter(str(n), str(kind)) for n, kind in named_types),
            )

    def runs(self, title: str, run: Any) -> bool:
        """Run the call, print how its results compare; return whether they agree.

        ``run(call, memories)`` runs the kernel, as Python or compiled. ``title`` says
        which, and begins the line.
        """
        memories = [m.copy() for m in self.memories]
        run(self, memories)
        pairs = list(zip(memories, self.expected, strict=False))
        equal = all(a.tobytes() == b.tobytes() for a, b in pairs)
        agrees = equal or all(_is_close(a, b) for a, b in pairs)
        times: list[float] = []
        for _ in range(_REPEATS if title.endswith("compiled") else 1):
            copies = [m.copy() for m in self.memories]
            begin = time.perf_counter()
            run(self, copies)
            times.append(time.perf_counter() - begin)
        verdict = "the same bits" if equal else "near" if agrees else "OTHER results"
        sys.stdout.write(f"{title}: {verdict}, {1e6 * min(times):.1f} us\n")
        return agrees


def _numbered(arguments: Sequence[Any]) -> tuple[list[Array], list[tuple[int, int]]]:
    """``(memories, arguments)``: each memory once, and arguments as in ``_Call``."""
    memories: list[Array] = []
    numbers: dict[tuple[int, int, str], int] = {}
    pairs: list[tuple[int, int]] = []
    for argument in arguments:
        if not isinstance(argument, Pointer):
            pairs.append((-1, int(argument)))
            continue
        memory = argument.memory
        key = memory.__array_interface__["data"][0], memory.nbytes, memory.dtype.str
        if key not in numbers:
            numbers[key] = len(memories)
            memories.append(memory)
        pairs.append((numbers[key], argument.begin))
    return memories, pairs


def _is_close(result: Array, expected: Array) -> bool:
    """Whether floats differ by a few units in the last place; never for integers."""
    if result.dtype not in dtypes.INEXACT:
        return False
    eps = float(np.finfo(result.dtype).eps)
    return bool(np.allclose(result, expected, 64 * eps, 64 * eps, equal_nan=True))


def _random(type: ArrayType, random: np.random.Generator) -> Array:
    """Random values of ``type``; integers are 0 and 1."""
    if type.dtype in dtypes.INEXACT:
        return np.asarray(random.standard_normal(type.shape)).astype(type.dtype)
    return np.asarray(random.integers(0, 2, type.shape)).astype(type.dtype)
