"""The signatures of a bundle, and what is compiled of them.

In: the files of a bundle. Their hashes are right, but that does not make them
trustworthy, so everything is checked. Out: ``Signature``s, which give a ``Compiled``
for arguments of their types. BundleError, with the file, says what is wrong.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from arrayfn import tree
from arrayfn.backends.base import Backend, Executable
from arrayfn.backends.registry import get_backend
from arrayfn.compilation.bundle_description import (
    DESCRIPTION,
    arguments_structure,
    check_count,
    donated_of,
    kernel_file,
    options_of,
    program_file,
    structure_of,
)
from arrayfn.compilation.bundle_files import content_hash
from arrayfn.compilation.compiled import (
    Compiled,
    check_structure,
    laid_out,
    signature,
)
from arrayfn.compilation.kept_plans import KeptPlan, keep, kept_plan, plan_key
from arrayfn.compilation.open_sizes import OpenText, Sizes, open_text_from
from arrayfn.compilation.stages import Lowered
from arrayfn.dtypes import short_name
from arrayfn.errors import (
    ArgumentError,
    ArrayfnError,
    BundleError,
    OutOfMemoryError,
    user_location,
)
from arrayfn.ir import ArrayType, Program, walk
from arrayfn.ir.text import MISFITS, parse_program
from arrayfn.lowering.compiled import CompiledProgram, completed
from arrayfn.lowering.cpu import machine
from arrayfn.lowering.plan import Kernel, LibraryKernel
from arrayfn.primitives.table import TABLE
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]


@frozen
class Contents:
    """The verified contents of a bundle: files by name, and what they describe.

    ``folder`` is where they were read, and ``content_hash`` the hash of all files.
    ``description`` is what ``bundle.json`` says, and ``constants`` are the arrays.
    """

    folder: Path
    content_hash: str
    files: Mapping[str, bytes]
    description: Mapping[str, Any]
    constants: Sequence[Array]


class Signature:
    """One signature of a bundle: the function for arguments of certain types.

    If the disk cache has its plan, the kernels are loaded at the first call. Otherwise
    the signature is compiled at once, so that errors come when the bundle is loaded. A
    signature with open sizes is compiled for each size. ``example`` is the function for
    one choice of sizes, which the bundle names.
    """

    def __init__(self, contents: Contents, number: int, backend: Backend) -> None:
        """Read signature ``number`` of the bundle, for calls on ``backend``.

        Raises BundleError for files that are not understood.
        """
        self._contents = contents
        self._number = number
        self._backend = backend
        folder = contents.folder
        description: dict[str, Any] = contents.description["signatures"][number]
        self._description = description
        self._file = folder / program_file(number)
        self._text = _decoded(self._file, contents.files[program_file(number)])
        self._in_tree = arguments_structure(folder, description["arguments"])
        self._out_tree = structure_of(folder, description["results"])
        self._options = options_of(folder, description["options"])
        self._donated = donated_of(
            folder, description["donated"], self._in_tree.num_leaves
        )
        self._compiled: dict[str, Compiled] = {}  # by the sizes, as text
        self._open: OpenText | None = None
        if "open" in description:
            try:
                self._open = open_text_from(self._text, description["open"])
            except BundleError as error:
                raise BundleError(f"{folder / DESCRIPTION} {error}") from None
        self.example = self._for_sizes({} if self._open is None else self._open.example)
        compiled = self.example.compiled
        self._types = compiled.input_types
        if self._open is None:
            self._shown = signature(compiled)
        else:
            self._shown = compiled.name + self._open.shown(self._types)

    @override
    def __str__(self) -> str:
        return self._shown

    def accepting(
        self, structure: tree.TreeDef, types: Sequence[ArrayType]
    ) -> Compiled:
        """Return the function compiled for these types; ArgumentError for others."""
        check_structure(structure, self._in_tree)
        if self._open is None:
            compiled = self._for_sizes({})
            compiled.check(types)
            return compiled
        pairs = zip(types, self._types, strict=True)
        for number, (actual, wanted) in enumerate(pairs):
            if actual.dtype != wanted.dtype:
                raise ArgumentError(
                    f"argument {number} is {actual}, not of {short_name(wanted.dtype)}",
                    user_location(),
                )
        return self._for_sizes(self._open.sizes([t.shape for t in types]))

    def without_libraries(self, sizes: Sizes) -> Compiled:
        """Return the function for ``sizes``, lowered for a CPU without libraries.

        Raises ArgumentError unless ``sizes`` are those that are open.
        """
        dims = () if self._open is None else self._open.dims
        if {d.name for d in dims} != set(sizes) or not all(
            d.accepts(sizes[d.name]) for d in dims
        ):
            wanted = ", ".join(f"{d.name} {d.description}" for d in dims) or "none"
            raise ArgumentError(
                f"the open sizes of the function are {wanted}, not {dict(sizes)}",
                user_location(),
            )
        text = self._text if self._open is None else self._open.text(sizes)
        program = _program(self._file, text, self._arrays())
        cpu = get_backend("cpu")
        options = replace(self._options, library_products=False)
        lowered = _never_run_as_python(cpu.lower(program, self._donated, options))
        # Run the part that depends only on constants; its plan takes no arguments.
        compiled = completed(lowered, lambda once: cpu.load(once)(()))
        run = cpu.load(compiled)
        return Compiled(compiled, run, self._in_tree, self._out_tree, cpu)

    def _for_sizes(self, sizes: Sizes) -> Compiled:
        """Return the function compiled for ``sizes``: empty if no sizes are open."""
        key = repr(sorted(sizes.items()))
        if key not in self._compiled:
            text = self._text if self._open is None else self._open.text(sizes)
            parts = str(self._number), key, self._backend.name
            plan = plan_key(self._contents.content_hash, *parts)
            self._compiled[key] = self._load_or_compile(plan, text)
        return self._compiled[key]

    def _load_or_compile(self, key: str, text: str) -> Compiled:
        """Load the plan of a Program's ``text`` under ``key``, or compile it.

        A new plan is stored in the disk cache under ``key``.
        """
        # A GPU's plans follow from the card, and kernels of operators from the process.
        may_keep = self._backend.name == "cpu" and "edited" not in self._description
        may_keep = may_keep and "operator_call(" not in text
        cached_plan = kept_plan(key, self._captured) if may_keep else None
        run: Executable
        try:
            if cached_plan is None:
                program = _program(self._file, text, self._arrays())
                lowered = self._lowered(program)
                compiled = lowered.compiled_program
                run = lowered.load()
                if may_keep:
                    types = tuple(v.type for v in program.constants)
                    keep(key, KeptPlan(types, compiled), program.constant_values)
            else:
                compiled = cached_plan.compiled
                run = _on_first_call(lambda: self._backend.load(compiled))
        except (BundleError, OutOfMemoryError):
            raise
        except (*MISFITS, ArrayfnError) as error:
            raise BundleError(
                f"{self._file} cannot be compiled: {type(error).__name__}: {error}"
            ) from error
        self._check_counts(compiled)
        return Compiled(compiled, run, self._in_tree, self._out_tree, self._backend)

    def _check_counts(self, compiled: CompiledProgram) -> None:
        """Raise BundleError unless the structures have a leaf for each array."""
        folder = self._contents.folder
        check_count(folder, self._in_tree, len(compiled.input_types))
        check_count(folder, self._out_tree, len(compiled.output_types))

    def _arrays(self) -> list[Array]:
        """Return the arrays that the Program captures."""
        return [self._contents.constants[k] for k in self._description["constants"]]

    def _captured(self, types: Sequence[ArrayType]) -> list[Array]:
        """Return the Program's captured arrays, laid out in memory as ``types`` say."""
        pairs = zip(self._arrays(), types, strict=True)
        return [_laid_out(self._file, x, type) for x, type in pairs]

    def _lowered(self, program: Program) -> Lowered:
        """Lower ``program``, with the sources of edited kernels.

        If a machine like this one saved the bundle, the kernels must be the same as
        those that were saved, else BundleError is raised.
        """
        backend, folder = self._backend, self._contents.folder
        trees = self._in_tree, self._out_tree
        check_count(folder, self._in_tree, len(program.inputs))
        check_count(folder, self._out_tree, len(program.outputs))
        compiled = _never_run_as_python(
            backend.lower(program, self._donated, self._options)
        )
        lowered = Lowered(
            program, compiled, *trees, backend, (), self._options, self._donated
        )
        described = self._contents.description
        alike = described["machine"] == machine_of()
        is_example = self._open is None or not self._compiled
        if alike and is_example and backend.name == described["device"]:
            self._compare_kernels(lowered)
        return self._with_sources(lowered)

    def _compare_kernels(self, lowered: Lowered) -> None:
        """Raise BundleError unless the kernels are those saved, except edited ones."""
        edited, saved = (
            self._description.get("edited", {}),
            self._description["kernels"],
        )
        hashes = kernel_hashes(lowered.kernels)
        if hashes.keys() != saved.keys() or any(
            hashes[name] != saved[name] for name in hashes if name not in edited
        ):
            raise BundleError(
                f"{self._contents.folder}: the kernels made of the Program are not "
                "those that were saved, by the same version on a machine like this; "
                "were operators' kernels registered then, or is the bundle changed? "
                "Save it again"
            )

    def _with_sources(self, lowered: Lowered) -> Lowered:
        """Replace kernels of ``lowered`` by the edited sources in the bundle.

        Parameters are matched by position: their names follow from names in the
        Program, which loading does not restore.
        """
        folder = self._contents.folder
        kernels = {k.name: k for k in lowered.kernels}
        for name, kinds in self._description.get("edited", {}).items():
            kernel = kernels.get(name)
            if not isinstance(kernel, Kernel) or kinds_of(kernel) != kinds:
                raise BundleError(
                    f"{folder}: the edited kernel {name} is none of those that this "
                    "version makes of the Program; lower it here, and edit it again"
                )
            file = kernel_file(self._number, name)
            source = _decoded(folder / file, self._contents.files[file])
            kernels[name] = replace(kernel, source=source, key=source)
        program = replace(lowered.compiled_program, kernels=tuple(kernels.values()))
        return replace(lowered, compiled_program=program)


def _on_first_call(make: Callable[[], Executable]) -> Executable:
    """Return an executable that ``make`` makes when it is first called."""
    executable = cache(make)

    def run(inputs: tuple[Any, ...]) -> Sequence[Any]:
        """Make the executable if that has not been done, and run it."""
        return executable()(inputs)

    return run


def _never_run_as_python(compiled: CompiledProgram) -> CompiledProgram:
    """Mark all kernels of ``compiled`` as never to be executed as Python."""
    kernels = tuple(
        replace(k, from_file=True) if isinstance(k, Kernel) else k
        for k in compiled.kernels
    )
    return replace(compiled, kernels=kernels)


def kinds_of(kernel: Kernel) -> list[str]:
    """Return the kinds of a kernel's parameters."""
    return [parameter.kind for parameter in kernel.parameters]


def machine_of() -> list[str]:
    """Return what kernels depend on besides the Program: compiler and machine."""
    return [_compiler_hash(), platform.machine(), *machine.properties()]


@cache
def _compiler_hash() -> str:
    """Return the hash of the files that make kernels of Programs."""
    package = Path(__file__).parents[1]
    files = sorted((package / "lowering").rglob("*.py")) + sorted(
        (package / "passes").rglob("*.py")
    )
    return content_hash(b"".join(file.read_bytes() for file in files))


def kernel_hashes(kernels: Sequence[Kernel | LibraryKernel]) -> dict[str, str]:
    """Return the hash of each generated kernel's key, by the kernel's name.

    A library's kernel has an empty hash.
    """
    return {
        k.name: content_hash(k.key.encode()) if isinstance(k, Kernel) else ""
        for k in kernels
    }


# The Program.


def _decoded(file: Path, content: bytes) -> str:
    """Return the text of a file with this content; BundleError unless it is UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{file} is not text: {error}") from None


def _program(file: Path, text: str, arrays: Sequence[Array]) -> Program:
    """Parse the text of a Program, give it its constants, and check it."""
    try:
        program = parse_program(text, TABLE, arrays, keep_names=False)
        program.check()
    except ArrayfnError as error:
        raise BundleError(f"{file} is not a Program: {error}") from None
    _check_equations(file, program)
    pairs = zip(program.constants, arrays, strict=True)
    values = tuple(_laid_out(file, x, v.type) for v, x in pairs)
    return replace(program, constant_values=values)


def _check_equations(file: Path, program: Program) -> None:
    """Raise BundleError for equations that no saved Program has.

    These are calls of Python functions, and layouts that no rule gives: the layout of
    what is computed is the compiler's choice.
    """
    for equation in walk(program.equations):
        if "callback" in equation.params:
            raise BundleError(f"{file} is not a Program: it calls a Python function")
        types = equation.primitive.result_types(equation.inputs, equation.params)
        if tuple(v.type for v in equation.outputs) != types:
            raise BundleError(
                f"{file} is not a Program: {equation.primitive.name} gives "
                f"{', '.join(map(str, types))}"
            )


def _laid_out(
    file: Path, array: np.ndarray[Any, Any], type: ArrayType
) -> np.ndarray[Any, Any]:
    """Copy ``array`` to the memory layout of ``type``."""
    _, spanned = type.span()  # the number of elements in memory, gaps included
    if spanned != type.size:
        raise BundleError(f"{file}: no constant lies in memory as {type} says")
    return laid_out(array, type)
