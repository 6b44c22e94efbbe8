"""Saved functions: a folder of text, JSON and arrays, loaded without their source code.

A bundle is ``program.txt`` (the Program as text), ``bundle.json`` (structure of
arguments and results, options, hashes of kernels), ``constants/0.npy`` and so on, and
``SHA256SUMS``, the hashes of these files. Loading traces nothing and runs no code from
the files, but for edited kernels, ``kernels/NAME.py``, if the caller allows them. The
Program is parsed and checked, and its kernels are made again for the machine that loads
it. Names in the file do not become names in kernels, and a kernel that arrayfn's own
compiler does not know is refused. On a machine like the one that saved the bundle,
kernels are compared with their hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from arrayfn import tree
from arrayfn.backends.registry import choose, has_backend
from arrayfn.compilation.bundle_files import (
    array_bytes,
    read_array,
    read_files,
    write_files,
)
from arrayfn.compilation.stages import Compiled, Lowered
from arrayfn.dtypes import BY_SHORT_NAME, short_name
from arrayfn.errors import (
    ArgumentError,
    ArrayfnError,
    BundleError,
    OutOfMemoryError,
    user_location,
)
from arrayfn.ir import ArrayType, Equation, Program, type_of
from arrayfn.ir.text import MISFITS, format_program, parse_program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cpu import machine
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.lowering.options import MODES, Options
from arrayfn.lowering.plan import Kernel, LibraryKernel
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.primitives.table import TABLE

FORMAT: Final = 2
EDITED_FORMAT: Final = 3  # of a bundle with edited kernels
_PROGRAM: Final = "program.txt"
_DESCRIPTION: Final = "bundle.json"
_DEEPEST: Final = 64  # of nested arguments


def save(lowered: Lowered, folder: str | os.PathLike[str]) -> None:
    """Write ``lowered``, what ``jit(f).lower(*args)`` gives, into a new ``folder``.

    ``load`` makes a function of it. Arguments and results are arrays in tuples, lists
    and dicts with strings for keys.

    Kernels that were edited (``with_kernel``, ``register``) are saved as they are.

    Raises ArgumentError for other structures, for functions that call Python functions
    (``pure_callback``, ``debug.print``), have checks or run on a mesh, and if the
    folder is there and not empty.

    >>> import tempfile
    >>> import arrayfn as af
    >>> lowered = af.jit(lambda x: {"twice": 2 * x}).lower(np.zeros(3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(lowered, folder)
    ...     again = load(folder)
    >>> again(np.arange(3.0))
    {'twice': array([0., 2., 4.])}
    """
    given: Any = lowered
    if not isinstance(given, Lowered):
        raise ArgumentError(
            f"save: the first argument is what jit(f).lower(*args) gives, not "
            f"{type(given).__name__}; give the arguments to lower() first",
            user_location(),
        )
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ArgumentError(
            f"save: {place} is there already; give a folder that is new, or empty",
            user_location(),
        )
    if lowered.backend.name == "mesh":
        raise ArgumentError(
            f"save: {lowered.program.name} runs on a mesh of devices, which a bundle "
            "does not hold; lower it for one device, jit(f, device='cpu')",
            user_location(),
        )
    program = _self_contained(lowered)
    text = format_program(program)
    constants = [np.asarray(x) for x in program.constant_values]
    generated = (k for k in lowered.kernels if isinstance(k, Kernel))
    edited = {k.name: k for k in generated if k.is_replaced}
    description: dict[str, Any] = {
        "format": EDITED_FORMAT if edited else FORMAT,
        "device": lowered.backend.name,
        "options": {
            "deterministic": lowered.options.deterministic,
            "mode": lowered.options.mode,
        },
        "donated": sorted(lowered.donated),
        "arguments": _described(lowered.in_tree),
        "results": _described(lowered.out_tree),
        "constants": [short_name(x.dtype) for x in constants],
        "machine": _machine(),
        "kernels": _hashes(lowered.kernels),
    }
    if edited:
        description["edited"] = {name: _kinds(k) for name, k in edited.items()}
    whole = json.dumps(description, indent=1)
    files = {_PROGRAM: text.encode(), _DESCRIPTION: f"{whole}\n".encode()}
    files |= {_constant(k): array_bytes(x) for k, x in enumerate(constants)}
    files |= {_kernel(name): k.source.encode() for name, k in edited.items()}
    write_files(place, files)


def load(
    folder: str | os.PathLike[str],
    device: str | None = None,
    *,
    edited_kernels: bool = False,
) -> Compiled:
    """The function that ``save`` wrote, compiled for ``device`` or the one it was for.

    It takes arguments of the structure, shapes and dtypes that it was lowered for. A
    bundle with edited kernels is loaded only with ``edited_kernels=True``: what they
    read and write is not checked, so load none of a stranger's.

    Raises BundleError, with the file, for a bundle that is broken or was changed, and
    BackendError if the device is not there. The hashes find what was damaged or edited;
    they do not say who wrote a bundle. Loading one of a stranger runs none of its text,
    but what it computes is the stranger's choice.
    """
    place = Path(folder)
    files = read_files(place)
    description = _description(place, files)
    program = _program(place, files, description["constants"])
    in_tree = _arguments(place, description["arguments"], len(program.inputs))
    out_tree = _structure(place, description["results"], len(program.outputs))
    options = _options(place, description["options"])
    donated = _donated(place, description["donated"], len(program.inputs))
    backend = choose(description["device"] if device is None else device)
    try:
        compiled = _of_a_file(backend.lower(program, donated, options))
        lowered = Lowered(
            program, compiled, in_tree, out_tree, backend, (), options, donated
        )
        edited = _edited(place, files, description, allowed=edited_kernels)
        alike = description["machine"] == _machine()
        if alike and backend.name == description["device"]:
            _compare_kernels(place, lowered, description["kernels"], edited)
        return _with_sources(place, lowered, description, edited).compile()
    except (BundleError, OutOfMemoryError):
        raise
    except (*MISFITS, ArrayfnError) as error:
        raise BundleError(
            f"{place / _PROGRAM} cannot be compiled: {type(error).__name__}: {error}"
        ) from error


def _of_a_file(compiled: CompiledProgram) -> CompiledProgram:
    """``compiled``, none of whose kernels is ever executed as Python."""
    kernels = tuple(
        replace(k, from_file=True) if isinstance(k, Kernel) else k
        for k in compiled.kernels
    )
    return replace(compiled, kernels=kernels)


def _edited(
    place: Path,
    files: Mapping[str, bytes],
    description: Mapping[str, Any],
    *,
    allowed: bool,
) -> dict[str, str]:
    """The sources of edited kernels; BundleError if there are some, unless allowed."""
    names = list(description.get("edited", {}))
    if names and not allowed:
        raise BundleError(
            f"{place} has edited kernels ({', '.join(names)}), whose code is run: pass "
            "edited_kernels=True if you trust who wrote it"
        )
    try:
        return {name: files[_kernel(name)].decode("utf-8") for name in names}
    except UnicodeDecodeError as error:
        raise BundleError(f"{place}: an edited kernel is no text: {error}") from None


def _with_sources(
    place: Path,
    lowered: Lowered,
    description: Mapping[str, Any],
    edited: Mapping[str, str],
) -> Lowered:
    """``lowered`` with the sources of edited kernels in place of its own.

    Parameters go by position: their names follow from names in the Program, which
    loading does not keep.
    """
    kernels = {k.name: k for k in lowered.kernels}
    for name, source in edited.items():
        kernel = kernels.get(name)
        if not isinstance(kernel, Kernel) or (
            _kinds(kernel) != description["edited"][name]
        ):
            raise BundleError(
                f"{place}: the edited kernel {name} is none of those that this version "
                "makes of the Program; lower it here, and edit it again"
            )
        kernels[name] = replace(kernel, source=source, key=source)
    program = replace(lowered.compiled_program, kernels=tuple(kernels.values()))
    return replace(lowered, compiled_program=program)


def _kinds(kernel: Kernel) -> list[str]:
    return [parameter.kind for parameter in kernel.parameters]


def _compare_kernels(
    place: Path,
    lowered: Lowered,
    wanted: dict[str, Any],
    edited: Collection[str],
) -> None:
    made = _hashes(lowered.kernels)
    if made.keys() != wanted.keys() or any(
        made[name] != wanted[name] for name in made if name not in edited
    ):
        raise BundleError(
            f"{place}: the kernels made of the Program are not those that were "
            "saved, by the same version on a machine like this; were operators' "
            "kernels registered then, or is the bundle changed? Save it again"
        )


def _self_contained(lowered: Lowered) -> Program:
    """The Program without derivative rules, which are functions of this process."""
    if lowered.sites:
        raise ArgumentError(
            "save: the function was compiled with checks, its own or those of jit, "
            "whose errors name lines of this machine; lower it without",
            user_location(),
        )
    name = lowered.backend.name
    program = inline_calls(
        lowered.program, keep=lambda call: KERNELS.for_call(call, name) is not None
    )
    _refuse_callbacks(program.equations)
    return program


def _refuse_callbacks(equations: Sequence[Equation]) -> None:
    for equation in equations:
        if "callback" in equation.params:
            raise ArgumentError(
                f"save: the function calls the Python function "
                f"{equation.params['callback']}, which is no part of a Program",
                equation.source,
            )
        for inner in equation.subprograms():
            _refuse_callbacks(inner.equations)


def _machine() -> list[str]:
    """What kernels follow from besides the Program."""
    return [_sources(), platform.machine(), str(machine.cores())]


@cache
def _sources() -> str:
    """The hash of what makes kernels."""
    package = Path(__file__).parents[1]
    files = sorted((package / "lowering").rglob("*.py")) + sorted(
        (package / "passes").rglob("*.py")
    )
    return _hash(b"".join(file.read_bytes() for file in files))


def _hashes(kernels: Sequence[Kernel | LibraryKernel]) -> dict[str, str]:
    return {
        kernel.name: _hash(kernel.key.encode()) if isinstance(kernel, Kernel) else ""
        for kernel in kernels
    }


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Structures of arguments, as JSON: a number is a leaf, by its place.


def _described(structure: tree.TreeDef) -> Any:
    return _as_json(tree.unflatten(structure, range(structure.num_leaves)))


def _as_json(value: Any) -> Any:
    if value is None or type(value) is int:
        return value
    if type(value) in (tuple, list):
        return {type(value).__name__: [_as_json(x) for x in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _as_json(x) for key, x in value.items()}}
    raise ArgumentError(
        f"save: an argument or result is a {type(value).__name__}, which another "
        "process may not have; use tuples, lists, and dicts with strings for keys",
        user_location(),
    )


def _arguments(place: Path, given: dict[str, Any], count: int) -> tree.TreeDef:
    """The structure of positional arguments and those by name."""
    match given:
        case {"tuple": [{"tuple": _}, {"dict": _}]}:
            return _structure(place, given, count)
        case _:
            raise BundleError(f"{place / _DESCRIPTION} describes no arguments")


def _structure(place: Path, given: Any, count: int) -> tree.TreeDef:
    """The structure that JSON describes, with ``count`` leaves."""
    leaves, structure = tree.flatten(_from_json(place, given, 0))
    if leaves != list(range(count)):
        raise BundleError(
            f"{place / _DESCRIPTION} describes {len(leaves)} arrays, not the {count} "
            "of the Program"
        )
    return structure


def _from_json(place: Path, given: Any, depth: int) -> Any:
    if given is None or type(given) is int:
        return given
    if isinstance(given, dict) and len(given) == 1 and depth < _DEEPEST:
        ((kind, content),) = given.items()
        if kind in ("tuple", "list") and isinstance(content, list):
            items = [_from_json(place, x, depth + 1) for x in content]
            return tuple(items) if kind == "tuple" else items
        if kind == "dict" and isinstance(content, dict):
            return {k: _from_json(place, x, depth + 1) for k, x in content.items()}
    raise BundleError(f"{place / _DESCRIPTION} describes no structure of arrays")


# Files.

_FIELDS: Final = {
    "format": int,
    "device": str,
    "options": dict,
    "donated": list,
    "arguments": dict,
    "results": (dict, int, type(None)),
    "constants": list,
    "machine": list,
    "kernels": dict,
}


def _constant(number: int) -> str:
    return f"constants/{number}.npy"


def _kernel(name: str) -> str:
    return f"kernels/{name}.py"


def _description(place: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    file = place / _DESCRIPTION
    if not {_DESCRIPTION, _PROGRAM} <= files.keys():
        raise BundleError(f"{place} has no {_DESCRIPTION}, or no {_PROGRAM}")
    try:
        found: Any = json.loads(files[_DESCRIPTION])
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file} is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") not in (
        FORMAT,
        EDITED_FORMAT,
    ):
        raise BundleError(f"{file} describes no bundle of format {FORMAT}")
    fields = dict(_FIELDS)
    if found["format"] == EDITED_FORMAT:
        fields["edited"] = dict
    for name, kind in fields.items():
        if name not in found or not isinstance(found[name], kind):
            raise BundleError(f"{file} has no {name!r} of the form that save writes")
    if found.keys() != fields.keys():
        odd = sorted(found.keys() - fields.keys())
        raise BundleError(f"{file} has {odd[0]!r}, which save does not write")
    if not has_backend(found["device"]):
        raise BundleError(f"{file}: there is no device {found['device']!r}")
    constants, edited = found["constants"], found.get("edited", {})
    if not all(name.isidentifier() for name in edited):
        raise BundleError(f"{file}: 'edited' are names of kernels")
    expected = {_DESCRIPTION, _PROGRAM, *map(_constant, range(len(constants)))}
    expected |= set(map(_kernel, edited))
    if expected != set(files):
        odd = sorted(expected.symmetric_difference(files))
        raise BundleError(f"{file} does not go with the files there: {odd[0]}")
    if not all(type(name) is str and name in BY_SHORT_NAME for name in constants):
        raise BundleError(f"{file}: 'constants' are data types")
    return found


def _program(place: Path, files: Mapping[str, bytes], types: list[str]) -> Program:
    """The Program of a bundle with its constants, checked."""
    file = place / _PROGRAM
    arrays = [
        read_array(str(place / name), files[name], dtype)
        for name, dtype in zip(map(_constant, range(len(types))), types, strict=True)
    ]
    try:
        text = files[_PROGRAM].decode("utf-8")
        program = parse_program(text, TABLE, arrays, keep_names=False)
        program.check()
    except UnicodeDecodeError as error:
        raise BundleError(f"{file} is no text: {error}") from None
    except ArrayfnError as error:
        raise BundleError(f"{file} is no Program: {error}") from None
    _check_equations(file, program)
    laid_out = [
        _laid_out(file, x, v.type)
        for v, x in zip(program.constants, arrays, strict=True)
    ]
    return replace(program, constant_values=tuple(laid_out))


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
    strides = type.layout.strides(type.shape)
    order = sorted(range(type.ndim), key=lambda k: -strides[k])
    whole = np.ascontiguousarray(array.transpose(order))
    laid_out = np.array(whole.transpose(np.argsort(order)), order="K")
    if type_of(laid_out).layout != type.layout:
        raise BundleError(f"{file}: no constant lies in memory as {type} says")
    return laid_out


def _options(place: Path, given: dict[str, Any]) -> Options:
    deterministic, mode = given.get("deterministic"), given.get("mode")
    if (
        given.keys() != {"deterministic", "mode"}
        or type(deterministic) is not bool
        or mode not in (None, *MODES)
    ):
        raise BundleError(f"{place / _DESCRIPTION} has options that jit has not")
    return Options(deterministic, mode)


def _donated(place: Path, given: list[Any], count: int) -> frozenset[int]:
    numbers = [k for k in given if type(k) is int and 0 <= k < count]
    if numbers != given or sorted(set(numbers)) != given:
        raise BundleError(
            f"{place / _DESCRIPTION}: 'donated' are numbers of arguments, in order"
        )
    return frozenset(numbers)
