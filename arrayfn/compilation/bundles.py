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
_MAX_DEPTH: Final = 64  # of nested arguments


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
    argument: Any = lowered
    if not isinstance(argument, Lowered):
        raise ArgumentError(
            f"save: the first argument is what jit(f).lower(*args) gives, not "
            f"{type(argument).__name__}; give the arguments to lower() first",
            user_location(),
        )
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ArgumentError(
            f"save: {path} is there already; give a folder that is new, or empty",
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
    edited_kernels = {k.name: k for k in generated if k.is_replaced}
    description: dict[str, Any] = {
        "format": EDITED_FORMAT if edited_kernels else FORMAT,
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
    if edited_kernels:
        description["edited"] = {
            name: _parameter_types(k) for name, k in edited_kernels.items()
        }
    description_text = json.dumps(description, indent=1)
    files = {_PROGRAM: text.encode(), _DESCRIPTION: f"{description_text}\n".encode()}
    files |= {_constant(k): array_bytes(x) for k, x in enumerate(constants)}
    files |= {_kernel(name): k.source.encode() for name, k in edited_kernels.items()}
    write_files(path, files)


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
    path = Path(folder)
    files = read_files(path)
    description = _description(path, files)
    program = _program(path, files, description["constants"])
    in_tree = _arguments(path, description["arguments"], len(program.inputs))
    out_tree = _structure(path, description["results"], len(program.outputs))
    options = _options(path, description["options"])
    donated = _donated(path, description["donated"], len(program.inputs))
    backend = choose(description["device"] if device is None else device)
    try:
        compiled = _never_executed(backend.lower(program, donated, options))
        lowered = Lowered(
            program, compiled, in_tree, out_tree, backend, (), options, donated
        )
        edited = _edited_sources(path, files, description, allowed=edited_kernels)
        same_machine = description["machine"] == _machine()
        if same_machine and backend.name == description["device"]:
            _compare_kernels(path, lowered, description["kernels"], edited)
        return _with_sources(path, lowered, description, edited).compile()
    except (BundleError, OutOfMemoryError):
        raise
    except (*MISFITS, ArrayfnError) as error:
        raise BundleError(
            f"{path / _PROGRAM} cannot be compiled: {type(error).__name__}: {error}"
        ) from error


def _never_executed(compiled: CompiledProgram) -> CompiledProgram:
    """``compiled``, with all kernels marked as never executed as Python."""
    kernels = tuple(
        replace(k, from_file=True) if isinstance(k, Kernel) else k
        for k in compiled.kernels
    )
    return replace(compiled, kernels=kernels)


def _edited_sources(
    folder: Path,
    files: Mapping[str, bytes],
    description: Mapping[str, Any],
    *,
    allowed: bool,
) -> dict[str, str]:
    """The sources of edited kernels by name.

    Raises BundleError if there are some that are not ``allowed``.
    """
    names = list(description.get("edited", {}))
    if names and not allowed:
        raise BundleError(
            f"{folder} has edited kernels ({', '.join(names)}), whose code is run: "
            "pass edited_kernels=True if you trust who wrote it"
        )
    try:
        return {name: files[_kernel(name)].decode("utf-8") for name in names}
    except UnicodeDecodeError as error:
        raise BundleError(f"{folder}: an edited kernel is no text: {error}") from None


def _with_sources(
    folder: Path,
    lowered: Lowered,
    description: Mapping[str, Any],
    edited: Mapping[str, str],
) -> Lowered:
    """``lowered`` with the sources of edited kernels.

    Parameters go by position: their names follow from names in the Program, which
    loading does not keep.
    """
    kernels = {k.name: k for k in lowered.kernels}
    for name, source in edited.items():
        kernel = kernels.get(name)
        if not isinstance(kernel, Kernel) or (
            _parameter_types(kernel) != description["edited"][name]
        ):
            raise BundleError(
                f"{folder}: the edited kernel {name} is none of those that this "
                "version makes of the Program; lower it here, and edit it again"
            )
        kernels[name] = replace(kernel, source=source, key=source)
    program = replace(lowered.compiled_program, kernels=tuple(kernels.values()))
    return replace(lowered, compiled_program=program)


def _parameter_types(kernel: Kernel) -> list[str]:
    """The types of a kernel's parameters, as ``"f32*"``."""
    return [parameter.kind for parameter in kernel.parameters]


def _compare_kernels(
    folder: Path,
    lowered: Lowered,
    saved_hashes: dict[str, Any],
    edited: Collection[str],
) -> None:
    """Raise BundleError unless the kernels have the hashes that were saved."""
    hashes = _hashes(lowered.kernels)
    if hashes.keys() != saved_hashes.keys() or any(
        hashes[name] != saved_hashes[name] for name in hashes if name not in edited
    ):
        raise BundleError(
            f"{folder}: the kernels made of the Program are not those that were "
            "saved, by the same version on a machine like this; were operators' "
            "kernels registered then, or is the bundle changed? Save it again"
        )


def _self_contained(lowered: Lowered) -> Program:
    """The Program without derivative rules, which are functions of this process.

    Raises ArgumentError for checks, and for calls of Python functions.
    """
    if lowered.sites:
        raise ArgumentError(
            "save: the function was compiled with checks, whose errors name lines of "
            "this machine; lower it without",
            user_location(),
        )
    name = lowered.backend.name
    program = inline_calls(
        lowered.program, keep=lambda call: KERNELS.for_call(call, name) is not None
    )
    _refuse_callbacks(program.equations)
    return program


def _refuse_callbacks(equations: Sequence[Equation]) -> None:
    """Raise ArgumentError if an equation calls a Python function."""
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
    """What kernels depend on besides the Program: compiler, processor, cores."""
    return [_sources(), platform.machine(), str(machine.cores())]


@cache
def _sources() -> str:
    """The hash of the source files of the compiler."""
    package = Path(__file__).parents[1]
    files = sorted((package / "lowering").rglob("*.py")) + sorted(
        (package / "passes").rglob("*.py")
    )
    return _hash(b"".join(file.read_bytes() for file in files))


def _hashes(kernels: Sequence[Kernel | LibraryKernel]) -> dict[str, str]:
    """The hash of each kernel's neutral text by its name; "" for library kernels."""
    return {
        kernel.name: _hash(kernel.key.encode()) if isinstance(kernel, Kernel) else ""
        for kernel in kernels
    }


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Structures of arguments, as JSON: a number is a leaf, by its position.


def _described(structure: tree.TreeDef) -> Any:
    """The JSON value of a structure."""
    return _as_json(tree.unflatten(structure, range(structure.num_leaves)))


def _as_json(value: Any) -> Any:
    """The JSON value of a structure of numbers.

    Raises ArgumentError for containers that another process may not have.
    """
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


def _arguments(folder: Path, value: dict[str, Any], count: int) -> tree.TreeDef:
    """The structure of arguments by position and by name that JSON describes."""
    match value:
        case {"tuple": [{"tuple": _}, {"dict": _}]}:
            return _structure(folder, value, count)
        case _:
            raise BundleError(f"{folder / _DESCRIPTION} describes no arguments")


def _structure(folder: Path, value: Any, count: int) -> tree.TreeDef:
    """The structure that JSON describes, with ``count`` leaves."""
    leaves, structure = tree.flatten(_from_json(folder, value, 0))
    if leaves != list(range(count)):
        raise BundleError(
            f"{folder / _DESCRIPTION} describes {len(leaves)} arrays, not the {count} "
            "of the Program"
        )
    return structure


def _from_json(folder: Path, value: Any, depth: int) -> Any:
    """The containers that a JSON value describes, at ``depth`` containers inside."""
    if value is None or type(value) is int:
        return value
    if isinstance(value, dict) and len(value) == 1 and depth < _MAX_DEPTH:
        ((container, content),) = value.items()
        if container in ("tuple", "list") and isinstance(content, list):
            items = [_from_json(folder, x, depth + 1) for x in content]
            return tuple(items) if container == "tuple" else items
        if container == "dict" and isinstance(content, dict):
            return {k: _from_json(folder, x, depth + 1) for k, x in content.items()}
    raise BundleError(f"{folder / _DESCRIPTION} describes no structure of arrays")


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
    """The file of constant number ``number``."""
    return f"constants/{number}.npy"


def _kernel(name: str) -> str:
    """The file of the edited kernel ``name``."""
    return f"kernels/{name}.py"


def _description(folder: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The content of ``bundle.json``.

    Raises BundleError unless it has the fields that ``save`` writes.
    """
    file = folder / _DESCRIPTION
    if not {_DESCRIPTION, _PROGRAM} <= files.keys():
        raise BundleError(f"{folder} has no {_DESCRIPTION}, or no {_PROGRAM}")
    try:
        description: Any = json.loads(files[_DESCRIPTION])
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file} is no JSON: {error}") from None
    if not isinstance(description, dict) or description.get("format") not in (
        FORMAT,
        EDITED_FORMAT,
    ):
        raise BundleError(f"{file} describes no bundle of format {FORMAT}")
    fields = dict(_FIELDS)
    if description["format"] == EDITED_FORMAT:
        fields["edited"] = dict
    for name, expected_type in fields.items():
        if name not in description or not isinstance(description[name], expected_type):
            raise BundleError(f"{file} has no {name!r} of the form that save writes")
    if description.keys() != fields.keys():
        unexpected = sorted(description.keys() - fields.keys())
        raise BundleError(f"{file} has {unexpected[0]!r}, which save does not write")
    if not has_backend(description["device"]):
        raise BundleError(f"{file}: there is no device {description['device']!r}")
    constants, edited = description["constants"], description.get("edited", {})
    if not all(name.isidentifier() for name in edited):
        raise BundleError(f"{file}: 'edited' are names of kernels")
    expected = {_DESCRIPTION, _PROGRAM, *map(_constant, range(len(constants)))}
    expected |= set(map(_kernel, edited))
    if expected != set(files):
        unexpected = sorted(expected.symmetric_difference(files))
        raise BundleError(f"{file} does not go with the files there: {unexpected[0]}")
    if not all(type(name) is str and name in BY_SHORT_NAME for name in constants):
        raise BundleError(f"{file}: 'constants' are data types")
    return description


def _program(folder: Path, files: Mapping[str, bytes], types: list[str]) -> Program:
    """The Program of a bundle with its constants, parsed and checked."""
    file = folder / _PROGRAM
    arrays = [
        read_array(str(folder / name), files[name], dtype)
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
    """Raise BundleError for equations that no saved Program has.

    These are calls of Python functions, and results with layouts that no type rule
    gives: the compiler chooses how results lie in memory.
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
    """A copy of ``array`` with the layout of ``type``."""
    strides = type.layout.strides(type.shape)
    order = sorted(range(type.ndim), key=lambda k: -strides[k])
    ordered = np.ascontiguousarray(array.transpose(order))
    laid_out = np.array(ordered.transpose(np.argsort(order)), order="K")
    if type_of(laid_out).layout != type.layout:
        raise BundleError(f"{file}: no constant lies in memory as {type} says")
    return laid_out


def _options(folder: Path, value: dict[str, Any]) -> Options:
    """The options that JSON describes."""
    deterministic, mode = value.get("deterministic"), value.get("mode")
    if (
        value.keys() != {"deterministic", "mode"}
        or type(deterministic) is not bool
        or mode not in (None, *MODES)
    ):
        raise BundleError(f"{folder / _DESCRIPTION} has options that jit has not")
    return Options(deterministic, mode)


def _donated(folder: Path, value: list[Any], count: int) -> frozenset[int]:
    """The numbers of donated arguments that JSON describes."""
    numbers = [k for k in value if type(k) is int and 0 <= k < count]
    if numbers != value or sorted(set(numbers)) != value:
        raise BundleError(
            f"{folder / _DESCRIPTION}: 'donated' are numbers of arguments, in order"
        )
    return frozenset(numbers)
