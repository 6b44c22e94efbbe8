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
from functools import cache
from typing import Any, Final, NamedTuple

from typing_extensions import override

from arrayfn.records import frozen

_LIBRARY_BYTES: Final = 192 << 20
"""Bytes of address space that llvmlite's library takes, with what it maps at first."""


@cache
def llvm() -> Any:
    """Import and return ``llvmlite.binding``.

    The import takes 60 ms, so only functions that need it call this. Raises MemoryError
    if there is no address space left for its library.
    """
    try:
        return importlib.import_module("llvmlite.binding")
    except OSError as error:
        # The loader's error does not say whether memory is the reason.
        if has_room(_LIBRARY_BYTES):
            raise
        raise MemoryError(
            "there is no address space left for LLVM, which compiles functions"
        ) from error


def has_room(size: int) -> bool:
    """Return whether the process can map ``size`` more bytes; tries to map them."""
    try:
        mmap.mmap(-1, size).close()
    except OSError:
        return False
    return True


def llvm_version() -> str:
    """Return the versions of llvmlite and of its LLVM as one text."""
    version = ".".join(map(str, llvm().llvm_version_info))
    return f"{importlib.import_module('llvmlite').__version__} {version}"


@frozen(slots=True)
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
    """Return this machine's processor."""
    features = llvm().get_host_cpu_features().flatten()
    return Host(llvm().get_process_triple(), llvm().get_host_cpu_name(), features)


@cache
def initialize() -> None:
    """Initialise LLVM's native target, which compiling and loading code needs."""
    llvm().initialize_native_target()
    llvm().initialize_native_asmprinter()


def target_machine(*, optimize: bool = True, linked: bool = False) -> Any:
    """Make LLVM's code generator for the host. Each thread needs its own.

    Without ``optimize`` it compiles fast and its code is slow. Code to load into this
    process has 64-bit addresses (the "large" code model), because an object's sections
    may be more than 2 GB apart in memory. Code to be ``linked`` into a program is
    position-independent instead.
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


class PreparedModule(NamedTuple):
    """A module of LLVM IR with all that ``compile`` needs, which runs in a thread.

    A thread waits up to 5 ms for the GIL whenever it takes it from a busy one
    (``sys.getswitchinterval``). So all short calls are made before, where the GIL is
    held, and ``compile`` takes it twice.
    """

    module: Any
    machine: Any  # the code generator
    builder: Any  # of ``passes``
    passes: Any  # the optimisations

    def compile(self) -> bytes:
        """Optimise the module and return its object code, without llvmlite's lock.

        Raises RuntimeError with LLVM's message.
        """
        self.optimize()
        problem = ctypes.c_char_p()
        emit = _function("LLVMPY_TargetMachineEmitToMemory")
        # 1: an object, not assembly
        buffer = emit(self.machine, self.module, 1, ctypes.byref(problem))
        if not buffer:
            raise RuntimeError((problem.value or b"no message").decode())
        try:
            begin = _function("LLVMPY_GetBufferStart", keeps_gil=True)(buffer)
            size = _function("LLVMPY_GetBufferSize", keeps_gil=True)(buffer)
            return ctypes.string_at(begin, size)
        finally:
            _function("LLVMPY_DisposeMemoryBuffer", keeps_gil=True)(buffer)

    def optimize(self) -> None:
        """Run the optimisations, without llvmlite's lock."""
        run = _function("LLVMPY_RunNewModulePassManager")
        run(self.passes, self.module, self.builder)


def prepare_vectorized(
    text: str, *, interleave: bool, machine: Any = None, context: Any = None
) -> PreparedModule:
    """Parse a kernel's LLVM IR ``text``, to be optimised fully.

    With ``interleave`` LLVM may interleave any vectorised loop, without it only those
    whose metadata asks for it. Runtime unrolling is off: the loop vectoriser
    interleaves already, and unrolled remainders doubled the time to compile a kernel
    without making it faster. ``machine`` is the code generator and ``context`` the
    module's LLVM context; by default, they are made.
    """
    machine = machine or target_machine()
    options = llvm().create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.loop_interleaving = interleave
    options.slp_vectorization = False
    options.loop_unrolling = False
    builder = llvm().create_pass_builder(machine, options)
    module = _parse(text, machine, context or llvm().create_context())
    return PreparedModule(module, machine, builder, builder.getModulePassManager())


def prepare_quick(text: str) -> PreparedModule:
    """Parse the LLVM IR ``text`` of native routines, to be compiled quickly.

    The only optimisation keeps variables in registers (SROA). The routines are short:
    full optimisation takes ten times as long and saves 0.03 us of a call.
    """
    machine = target_machine(optimize=False)
    options = llvm().create_pipeline_tuning_options(speed_level=1)
    builder = llvm().create_pass_builder(machine, options)
    passes = llvm().create_new_module_pass_manager()
    passes.add_sroa_pass()
    module = _parse(text, machine, llvm().create_context())
    return PreparedModule(module, machine, builder, passes)


def linked_object(texts: Sequence[tuple[str, bool]]) -> tuple[bytes, set[str]]:
    """Compile LLVM IR to one object file for a linker.

    ``texts`` are pairs of LLVM IR and the ``interleave`` that ``prepare_vectorized``
    takes. Returns the object's bytes, and the symbols that it uses and does not define.
    """
    machine = target_machine(linked=True)
    context = llvm().create_context()
    whole, *others = (
        prepare_vectorized(
            text, interleave=interleave, machine=machine, context=context
        )
        for text, interleave in texts
    )
    for prepared in (whole, *others):
        prepared.optimize()
    for prepared in others:
        whole.module.link_in(prepared.module)
    needed = {
        f.name
        for f in whole.module.functions
        if f.is_declaration and not f.name.startswith("llvm.")
    }
    return machine.emit_object(whole.module), needed


def assembly(text: str, *, interleave: bool) -> str:
    """Compile a kernel's LLVM IR ``text``, optimised fully, to assembly text."""
    prepared = prepare_vectorized(text, interleave=interleave)
    prepared.optimize()
    return prepared.machine.emit_assembly(prepared.module)


def _parse(text: str, machine: Any, context: Any) -> Any:
    """Parse the LLVM IR ``text`` into a module with the data layout of ``machine``."""
    module = llvm().parse_assembly(text, context)
    module.data_layout = str(machine.target_data)
    return module


@cache
def _library() -> Any:
    """Import and return llvmlite's handle of its library, which calls LLVM."""
    return importlib.import_module("llvmlite.binding.ffi").lib


@cache
def _function(name: str, *, keeps_gil: bool = False) -> Any:
    """Return LLVM's C function ``name`` with llvmlite's types, but without its lock.

    llvmlite holds a lock in each call. LLVM itself may run in several threads as long
    as they share no context. ``keeps_gil`` is for functions that return at once.
    """
    library = _library()
    locked = getattr(library, name)
    kind = ctypes.PyDLL if keeps_gil else ctypes.CDLL
    function = kind(library._name, handle=library._handle)[name]
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function
