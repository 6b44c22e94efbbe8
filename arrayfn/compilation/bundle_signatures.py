"""The signatures of a bundle: its description, checked, and what is compiled of it.

In: the files of a bundle, whose hashes are right and which nobody trusts for that. Out:
``Signature``s, which give a ``Compiled`` for arguments of their types. BundleError,
with the file, says what is wrong.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn import tree
from arrayfn.backends.base import Backend, Executable
from arrayfn.backends.registry import get_backend, has_backend
from arrayfn.compilation.bundle_files import content_hash
from arrayfn.compilation.kept_plans import KeptPlan, keep, kept_plan, plan_key
from arrayfn.compilation.open_sizes import OpenText, Sizes, open_text_from
from arrayfn.compilation.stages import Compiled, Lowered, laid_out, signature
from arrayfn.compilation.structures import read
from arrayfn.dtypes import BY_SHORT_NAME, short_name
from arrayfn.errors import (
    ArgumentError,
    ArrayfnError,
    BundleError,
    OutOfMemoryError,
    user_location,
)
from arrayfn.ir import ArrayType, Program
from arrayfn.ir.text import MISFITS, parse_program
from arrayfn.lowering.compiled import CompiledProgram, completed
from arrayfn.lowering.cpu import machine
from arrayfn.lowering.options import MODES, Options
from arrayfn.lowering.plan import Kernel, LibraryKernel
from arrayfn.primitives.table import TABLE

Array = np.ndarray[Any, Any]
FORMAT: Final = 4
DESCRIPTION: Final = "bundle.json"


@dataclass(frozen=True)
class Source:
    """A bundle's files, which lie at ``place``, and what they say.

    ``content`` is a hash of all of them.
    """

    place: Path
    content: str
    files: Mapping[str, bytes]
    description: Mapping[str, Any]
    constants: Sequence[Array]


class Signature:
    """One signature of a bundle, compiled when it is first asked for.

    It is compiled at once if the disk cache has not its plan, so that errors come when
    a bundle is loaded. One for open sizes is compiled for each size.
    """

    def __init__(self, source: Source, number: int, backend: Backend) -> None:
        self._source = source
        self._number = number
        self._backend = backend
        place, given = source.place, source.description["signatures"][number]
        self._given: dict[str, Any] = given
        self._file = place / program_file(number)
        self._text = _decoded(self._file, source.files[program_file(number)])
        self._in_tree = _arguments(place, given["arguments"])
        self._out_tree = structure_of(place, given["results"])
        self._options = _options(place, given["options"])
        self._donated = _donated(place, given["donated"], self._in_tree.num_leaves)
        self._compiled: dict[str, Compiled] = {}
        self._open: OpenText | None = None
        if "open" in given:
            try:
                self._open = open_text_from(self._text, given["open"])
            except BundleError as error:
                raise BundleError(f"{place / DESCRIPTION} {error}") from None
        self.example = self._at({} if self._open is None else self._open.example)
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
        """The function for arguments of these types; ArgumentError if it is another."""
        if structure != self._in_tree:
            raise ArgumentError(
                f"this was compiled for arguments of structure "
                f"{tree.text_of(self._in_tree)}, not {tree.text_of(structure)}",
                user_location(),
            )
        if self._open is None:
            compiled = self._at({})
            compiled.check(types)
            return compiled
        pairs = zip(types, self._types, strict=True)
        for number, (given, wanted) in enumerate(pairs):
            if given.dtype != wanted.dtype:
                raise ArgumentError(
                    f"argument {number} is {given}, not of {short_name(wanted.dtype)}",
                    user_location(),
                )
        return self._at(self._open.sizes([t.shape for t in types]))

    def without_libraries(self, sizes: Sizes) -> Compiled:
        """The function for ``sizes``, lowered for a CPU without a library's products.

        Raises ArgumentError unless ``sizes`` are those that are open.
        """
        dims = () if self._open is None else self._open.dims
        if {d.name for d in dims} != set(sizes) or not all(
            d.accepts(sizes[d.name]) for d in dims
        ):
            wanted = ", ".join(f"{d.name} {d.wanted}" for d in dims) or "none"
            raise ArgumentError(
                f"the open sizes of the function are {wanted}, not {dict(sizes)}",
                user_location(),
            )
        text = self._text if self._open is None else self._open.text(sizes)
        program = _program(self._file, text, self._arrays())
        cpu = get_backend("cpu")
        options = replace(self._options, library_products=False)
        lowered = _of_a_file(cpu.lower(program, self._donated, options))
        compiled = completed(lowered, lambda once: cpu.load(once)(()))
        run = cpu.load(compiled)
        return Compiled(compiled, run, self._in_tree, self._out_tree, cpu)

    def _at(self, sizes: Sizes) -> Compiled:
        """The function for ``sizes``, which are none unless some are open."""
        key = repr(sorted(sizes.items()))
        known = self._compiled.get(key)
        if known is None:
            text = self._text if self._open is None else self._open.text(sizes)
            parts = self._source.content, str(self._number), key, self._backend.name
            known = self._compiled[key] = self._made(plan_key(*parts), text)
        return known

    def _made(self, key: str, text: str) -> Compiled:
        # A GPU's plans follow from the card, and kernels of operators from the process.
        may_keep = self._backend.name == "cpu" and "edited" not in self._given
        may_keep = may_keep and "operator_call(" not in text
        kept = kept_plan(key, self._captured) if may_keep else None
        run: Executable
        try:
            if kept is None:
                program = _program(self._file, text, self._arrays())
                lowered = self._lowered(program)
                compiled = lowered.compiled_program
                run = lowered.load()
                if may_keep:
                    types = tuple(v.type for v in program.constants)
                    keep(key, KeptPlan(types, compiled), program.constant_values)
            else:
                compiled = kept.compiled
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
        for structure, types in (
            (self._in_tree, compiled.input_types),
            (self._out_tree, compiled.output_types),
        ):
            _check_count(self._source.place, structure, len(types))

    def _arrays(self) -> list[Array]:
        return [self._source.constants[k] for k in self._given["constants"]]

    def _captured(self, types: Sequence[ArrayType]) -> list[Array]:
        """The arrays that the Program captures, as they are to lie in memory."""
        pairs = zip(self._arrays(), types, strict=True)
        return [_laid_out(self._file, x, type) for x, type in pairs]

    def _lowered(self, program: Program) -> Lowered:
        backend, place = self._backend, self._source.place
        trees = self._in_tree, self._out_tree
        for structure, count in zip(trees, (len(program.inputs), len(program.outputs))):  # noqa: B905
            _check_count(place, structure, count)
        compiled = _of_a_file(backend.lower(program, self._donated, self._options))
        lowered = Lowered(
            program, compiled, *trees, backend, (), self._options, self._donated
        )
        described = self._source.description
        alike = described["machine"] == machine_of()
        is_example = self._open is None or not self._compiled
        if alike and is_example and backend.name == described["device"]:
            self._compare_kernels(lowered)
        return self._with_sources(lowered)

    def _compare_kernels(self, lowered: Lowered) -> None:
        made, wanted = kernel_hashes(lowered.kernels), self._given["kernels"]
        edited = self._given.get("edited", {})
        if made.keys() != wanted.keys() or any(
            made[name] != wanted[name] for name in made if name not in edited
        ):
            raise BundleError(
                f"{self._source.place}: the kernels made of the Program are not those "
                "that were saved, by the same version on a machine like this; were "
                "operators' kernels registered then, or is the bundle changed? Save it "
                "again"
            )

    def _with_sources(self, lowered: Lowered) -> Lowered:
        """``lowered`` with the sources of edited kernels in place of its own.

        Parameters go by position: their names follow from names in the Program, which
        loading does not keep.
        """
        place = self._source.place
        kernels = {k.name: k for k in lowered.kernels}
        for name, kinds in self._given.get("edited", {}).items():
            kernel = kernels.get(name)
            if not isinstance(kernel, Kernel) or kinds_of(kernel) != kinds:
                raise BundleError(
                    f"{place}: the edited kernel {name} is none of those that this "
                    "version makes of the Program; lower it here, and edit it again"
                )
            file = kernel_file(self._number, name)
            source = _decoded(place / file, self._source.files[file])
            kernels[name] = replace(kernel, source=source, key=source)
        program = replace(lowered.compiled_program, kernels=tuple(kernels.values()))
        return replace(lowered, compiled_program=program)


def _on_first_call(make: Callable[[], Executable]) -> Executable:
    """What ``make`` gives, made when it is first called."""
    made: list[Executable] = []

    def run(inputs: tuple[Any, ...]) -> Sequence[Any]:
        if not made:
            made.append(make())
        return made[0](inputs)

    return run


def _of_a_file(compiled: CompiledProgram) -> CompiledProgram:
    """``compiled``, none of whose kernels is ever executed as Python."""
    kernels = tuple(
        replace(k, from_file=True) if isinstance(k, Kernel) else k
        for k in compiled.kernels
    )
    return replace(compiled, kernels=kernels)


def kinds_of(kernel: Kernel) -> list[str]:
    """The kinds of a kernel's parameters."""
    return [parameter.kind for parameter in kernel.parameters]


def machine_of() -> list[str]:
    """What kernels follow from besides the Program."""
    return [_sources(), platform.machine(), str(machine.cores())]


@cache
def _sources() -> str:
    """The hash of what makes kernels."""
    package = Path(__file__).parents[1]
    files = sorted((package / "lowering").rglob("*.py")) + sorted(
        (package / "passes").rglob("*.py")
    )
    return content_hash(b"".join(file.read_bytes() for file in files))


def kernel_hashes(kernels: Sequence[Kernel | LibraryKernel]) -> dict[str, str]:
    """The hash of each generated kernel's key, by its name; "" of a library's."""
    return {
        k.name: content_hash(k.key.encode()) if isinstance(k, Kernel) else ""
        for k in kernels
    }


# The description.

_FIELDS: Final[dict[str, type | tuple[type, ...]]] = {
    "format": int,
    "device": str,
    "machine": list,
    "signatures": list,
    "arrays": dict,
    "constants": list,
}
_SIGNATURE: Final[dict[str, type | tuple[type, ...]]] = {
    "options": dict,
    "donated": list,
    "arguments": dict,
    "results": (dict, int, type(None)),
    "constants": list,
    "kernels": dict,
}
_OPTIONAL: Final = {"open": dict, "edited": dict}


def program_file(number: int) -> str:
    """The file of a signature's Program."""
    return f"programs/{number}.txt"


def constant_file(number: int) -> str:
    """The file of an array."""
    return f"constants/{number}.npy"


def kernel_file(number: int, name: str) -> str:
    """The file of an edited kernel of a signature."""
    return f"kernels/{number}.{name}.py"


def read_description(place: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    """``bundle.json``, checked against the files; BundleError if it does not fit."""
    file = place / DESCRIPTION
    if DESCRIPTION not in files:
        raise BundleError(f"{place} has no {DESCRIPTION}")
    try:
        found: Any = json.loads(files[DESCRIPTION])
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file} is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise BundleError(f"{file} describes no bundle of format {FORMAT}")
    _check_fields(file, found, _FIELDS)
    signatures, constants = found["signatures"], found["constants"]
    expected = {DESCRIPTION, *map(constant_file, range(len(constants)))}
    for number, one in enumerate(signatures):
        if not isinstance(one, dict):
            raise BundleError(f"{file}: 'signatures' are not of the form of save's")
        more = {name: kind for name, kind in _OPTIONAL.items() if name in one}
        _check_fields(file, one, {**_SIGNATURE, **more})
        if not all(name.isidentifier() for name in one.get("edited", ())):
            raise BundleError(f"{file}: 'edited' are names of kernels")
        if not all(
            type(k) is int and 0 <= k < len(constants) for k in one["constants"]
        ):
            raise BundleError(f"{file}: 'constants' are numbers of arrays")
        expected.add(program_file(number))
        expected |= {kernel_file(number, name) for name in one.get("edited", ())}
    if not has_backend(found["device"]):
        raise BundleError(f"{file}: there is no device {found['device']!r}")
    if expected != set(files) or not signatures:
        odd = sorted(expected.symmetric_difference(files)) or ["no signatures"]
        raise BundleError(f"{file} does not go with the files there: {odd[0]}")
    if not all(type(name) is str and name in BY_SHORT_NAME for name in constants):
        raise BundleError(f"{file}: 'constants' are data types")
    return found


def _check_fields(
    file: Path, found: dict[str, Any], fields: Mapping[str, type | tuple[type, ...]]
) -> None:
    for name, kind in fields.items():
        if name not in found or not isinstance(found[name], kind):
            raise BundleError(f"{file} has no {name!r} of the form that save writes")
    if found.keys() != fields.keys():
        odd = sorted(found.keys() - fields.keys())
        raise BundleError(f"{file} has {odd[0]!r}, which save does not write")


def _arguments(place: Path, given: dict[str, Any]) -> tree.TreeDef:
    """The structure of positional arguments and those by name."""
    match given:
        case {"tuple": [{"tuple": _}, {"dict": _}]}:
            return structure_of(place, given)
        case _:
            raise BundleError(f"{place / DESCRIPTION} describes no arguments")


def structure_of(place: Path, given: Any, count: int | None = None) -> tree.TreeDef:
    """The structure that JSON describes, with ``count`` leaves if that is known."""
    try:
        leaves, structure = read(given)
    except BundleError as error:
        raise BundleError(f"{place / DESCRIPTION} {error}") from None
    if leaves != list(range(len(leaves))):
        raise BundleError(f"{place / DESCRIPTION} describes no structure of arrays")
    if count is not None:
        _check_count(place, structure, count)
    return structure


def _check_count(place: Path, structure: tree.TreeDef, count: int) -> None:
    if structure.num_leaves != count:
        raise BundleError(
            f"{place / DESCRIPTION} describes {structure.num_leaves} arrays, not the "
            f"{count} of the Program"
        )


def _options(place: Path, given: dict[str, Any]) -> Options:
    deterministic, mode = given.get("deterministic"), given.get("mode")
    if (
        given.keys() != {"deterministic", "mode"}
        or type(deterministic) is not bool
        or mode not in (None, *MODES)
    ):
        raise BundleError(f"{place / DESCRIPTION} has options that jit has not")
    return Options(deterministic, mode)


def _donated(place: Path, given: list[Any], count: int) -> frozenset[int]:
    numbers = [k for k in given if type(k) is int and 0 <= k < count]
    if numbers != given or sorted(set(numbers)) != given:
        raise BundleError(
            f"{place / DESCRIPTION}: 'donated' are numbers of arguments, in order"
        )
    return frozenset(numbers)


# The Program.


def _decoded(file: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{file} is no text: {error}") from None


def _program(file: Path, text: str, arrays: Sequence[Array]) -> Program:
    """The Program of a text, with its constants, checked."""
    try:
        program = parse_program(text, TABLE, arrays, keep_names=False)
        program.check()
    except ArrayfnError as error:
        raise BundleError(f"{file} is no Program: {error}") from None
    _check_equations(file, program)
    pairs = zip(program.constants, arrays, strict=True)
    values = tuple(_laid_out(file, x, v.type) for v, x in pairs)
    return replace(program, constant_values=values)


def _check_equations(file: Path, program: Program) -> None:
    """BundleError for what no saved Program has.

    That are calls of Python functions, and layouts that no rule gives: how what is
    computed lies in memory is the compiler's choice.
    """
    for equation in program.equations:
        if "callback" in equation.params:
            raise BundleError(f"{file} is no Program: it calls a Python function")
        types = equation.primitive.result_types(equation.inputs, equation.params)
        if tuple(v.type for v in equation.outputs) != types:
            raise BundleError(
                f"{file} is no Program: {equation.primitive.name} gives "
                f"{', '.join(map(str, types))}"
            )
        for inner in equation.subprograms():
            _check_equations(file, inner)


def _laid_out(
    file: Path, array: np.ndarray[Any, Any], type: ArrayType
) -> np.ndarray[Any, Any]:
    """An own copy of ``array`` that lies in memory as ``type`` says."""
    if type.span()[1] != type.size:
        raise BundleError(f"{file}: no constant lies in memory as {type} says")
    return laid_out(array, type)
