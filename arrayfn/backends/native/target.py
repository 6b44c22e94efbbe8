"""The host as an LLVM target: optimises LLVM IR and generates object code for it.

The only user of llvmlite's optimiser and code generator. Nothing here imports Numba.
Code can be compiled in several threads at once: each text is a module in a context of
its own, and what takes long is called without llvmlite's lock.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from typing_extensions import override

_LIBRARY_BYTES: Final = 192 << 20
"""Bytes of address space that llvmlite's library takes, with what it maps at first."""


@cache
def llvm() -> Any:
    """Import ``llvmlite.binding``: it takes 60 ms, and tracing does not need it.

    Raises MemoryError where there is no room for its library.
    """
    try:
        return importlib.import_module("llvmlite.binding")
    except OSError as error:
        # The loader does not say why it "failed to map segment from shared object".
        if has_room(_LIBRARY_BYTES):
            raise
        raise MemoryError(
            "there is no address space left for LLVM, which compiles functions"
        ) from error


def has_room(size: int) -> bool:
    """Whether the process can map ``size`` more bytes."""
    try:
        mmap.mmap(-1, size).close()
    except OSError:
        return False
    return True


def llvm_version() -> str:
    """The versions of llvmlite and of its LLVM."""
    version = ".".join(map(str, llvm().llvm_version_info))
    return f"{importlib.import_module('llvmlite').__version__} {version}"


@dataclass(frozen=True, slots=True)
class Host:
    """The processor that code is compiled for, as LLVM names it."""

    triple: str
    cpu: str
    features: str

    @override
    def __str__(self) -> str:
        return f"{self.triple} {self.cpu} {self.features}"


@cache
def host() -> Host:
    """This machine's processor."""
    features = llvm().get_host_cpu_features().flatten()
    return Host(llvm().get_process_triple(), llvm().get_host_cpu_name(), features)


@cache
def initialize() -> None:
    """Initialise LLVM's native target, which compiling and loading code needs."""
    llvm().initialize_native_target()
    llvm().initialize_native_asmprinter()


def target_machine(*, optimize: bool = True, linked: bool = False) -> Any:
    """Make a code generator for the host; LLVM's are not shared between threads.

    Without ``optimize`` it compiles fast and its code is slow. Addresses are whole
    words: the sections of an object may come to lie more than 2 GB apart in a crowded
    process, which code with short addresses does not survive. Code that is ``linked``
    into a program is independent of its position instead.
    """
    initialize()
    processor = host()
    return (
        llvm()
        .Target.from_triple(processor.triple)
        .create_target_machine(
            cpu=processor.cpu,
            features=processor.features,
            opt=2 if optimize else 0,
            reloc="pic" if linked else "static",
            codemodel="default" if linked else "large",
            jit=not linked,
        )
    )


def compile_vectorized(text: str, *, interleave: bool) -> bytes:
    """Optimise a kernel's LLVM IR ``text`` fully and return its object code.

    Vectorised loops are interleaved all (``interleave``), or where metadata asks for
    it. Runtime unrolling is off: the loop vectoriser interleaves already, and
    unrolled remainders doubled the time to compile a kernel without making it faster.
    """
    machine, module = _vectorized(text, interleave=interleave)
    return _emit(machine, module)


def linked_object(texts: Sequence[tuple[str, bool]]) -> tuple[bytes, set[str]]:
    """Compile ``texts`` to one object for a linker; also the symbols that it lacks.

    ``texts`` are LLVM IR, each with ``interleave`` as ``compile_vectorized`` takes it.
    """
    machine = target_machine(linked=True)
    context = llvm().create_context()
    modules = [
        _optimized(text, machine, context, interleave=interleave)
        for text, interleave in texts
    ]
    whole = modules[0]
    for module in modules[1:]:
        whole.link_in(module)
    needed = {
        f.name
        for f in whole.functions
        if f.is_declaration and not f.name.startswith("llvm.")
    }
    return _emit(machine, whole), needed


def assembly(text: str, *, interleave: bool) -> str:
    """Compile the LLVM IR ``text`` as ``compile_vectorized`` does, to assembly text."""
    machine, module = _vectorized(text, interleave=interleave)
    return machine.emit_assembly(module)


def _vectorized(text: str, *, interleave: bool) -> tuple[Any, Any]:
    """Optimise the LLVM IR ``text`` fully; the code generator and the module.

    With ``interleave`` LLVM runs several iterations of loops side by side.
    """
    machine = target_machine()
    context = llvm().create_context()
    return machine, _optimized(text, machine, context, interleave=interleave)


def _optimized(text: str, machine: Any, context: Any, *, interleave: bool) -> Any:
    """Parse the LLVM IR ``text`` and optimise it for ``machine``; the module."""
    module = _parse(text, machine, context)
    options = llvm().create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.loop_interleaving = interleave
    options.slp_vectorization = False
    options.loop_unrolling = False
    builder = llvm().create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    return module


def compile_quickly(text: str) -> bytes:
    """Compile the LLVM IR ``text``, with variables in registers but no more optimised.

    For the runtime's own routines, which are short: full optimisation takes ten times
    as long and saves 0.03 us of a call.
    """
    machine = target_machine(optimize=False)
    module = _parse(text, machine, llvm().create_context())
    options = llvm().create_pipeline_tuning_options(speed_level=1)
    builder = llvm().create_pass_builder(machine, options)
    passes = llvm().create_new_module_pass_manager()
    passes.add_sroa_pass()
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    return _emit(machine, module)


def _parse(text: str, machine: Any, context: Any) -> Any:
    """Parse the LLVM IR ``text``, with the memory layout of ``machine``."""
    module = llvm().parse_assembly(text, context)
    module.data_layout = str(machine.target_data)
    return module


def _emit(machine: Any, module: Any) -> bytes:
    """Generate the object code of a module, without llvmlite's lock.

    ``machine`` is the code generator.
    """
    library = _library()
    with library.OutputString() as problem:
        emit = _unlocked("LLVMPY_TargetMachineEmitToMemory")
        buffer = emit(machine, module, 1, problem)
        if not buffer:
            raise RuntimeError(str(problem))
    try:
        begin = library.lib.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(begin, library.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        library.lib.LLVMPY_DisposeMemoryBuffer(buffer)


@cache
def _library() -> Any:
    return importlib.import_module("llvmlite.binding.ffi")


@cache
def _unlocked(name: str) -> Any:
    """LLVM's function ``name`` as llvmlite calls it, without the lock that it holds.

    LLVM itself works in many threads, as long as they share no context.
    """
    library = _library().lib
    locked = getattr(library, name)
    function = ctypes.CDLL(library._name, handle=library._handle)[name]
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function
