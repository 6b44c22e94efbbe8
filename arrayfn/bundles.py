"""Saved functions: a folder of text, JSON and arrays, loaded without what made it.

A bundle is ``program.txt`` (the Program, to read), ``bundle.json`` (structure of
arguments and results, options, hashes) and ``constants/0.npy`` and so on. Loading
traces nothing and runs no code of the files: the Program is parsed and checked, and
kernels are made of it anew, for the machine that loads it. Where that is one like the
machine that saved it, they are compared with the hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from arrayfn import tree
from arrayfn.backends.registry import choose
from arrayfn.errors import ArgumentError, ArrayfnError, BundleError, user_location
from arrayfn.ir import Equation, Program
from arrayfn.ir_text import format_program, parse_program
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.lowering.options import MODES, Options
from arrayfn.lowering.plan import Kernel, LibraryKernel
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.primitives.table import TABLE
from arrayfn.stages import Compiled, Lowered

FORMAT: Final = 1
_PROGRAM: Final = "program.txt"
_DESCRIPTION: Final = "bundle.json"
_DEEPEST: Final = 64  # of nested arguments


def save(lowered: Lowered, folder: str | os.PathLike[str]) -> None:
    """Write ``lowered``, what ``jit(f).lower(*args)`` gives, into a new ``folder``.

    ``load`` makes a function of it. Arguments and results are arrays in tuples, lists
    and dicts with strings for keys.

    Raises ArgumentError for other structures, for functions that call Python functions
    (``pure_callback``, ``debug.print``) or have checks, for edited kernels, and if the
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
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ArgumentError(
            f"save: {place} is there already; give a folder that is new, or empty",
            user_location(),
        )
    program = _self_contained(lowered)
    text = format_program(program)
    constants = [np.asarray(x) for x in program.constant_values]
    description = {
        "format": FORMAT,
        "device": lowered.backend.name,
        "options": {
            "deterministic": lowered.options.deterministic,
            "mode": lowered.options.mode,
        },
        "donated": sorted(lowered.donated),
        "arguments": _described(lowered.in_tree),
        "results": _described(lowered.out_tree),
        "program": _hash(text.encode()),
        "constants": [_hash(x.tobytes()) for x in constants],
        "machine": _machine(),
        "kernels": _hashes(lowered.kernels),
    }
    (place / "constants").mkdir(parents=True)
    (place / _PROGRAM).write_text(text, "utf-8")
    for number, array in enumerate(constants):
        np.save(place / "constants" / f"{number}.npy", array, allow_pickle=False)
    whole = json.dumps(description, indent=1)
    (place / _DESCRIPTION).write_text(whole + "\n", "utf-8")


def load(folder: str | os.PathLike[str], device: str | None = None) -> Compiled:
    """The function that ``save`` wrote, compiled for ``device`` or the one it was for.

    It takes arguments of the structure, shapes and dtypes that it was lowered for.

    Raises BundleError, with the file, for a bundle that is broken or was changed, and
    BackendError if the device is not there.
    """
    place = Path(folder)
    description = _read_description(place)
    text = _read(place / _PROGRAM).decode("utf-8", "replace")
    if _hash(text.encode()) != description["program"]:
        raise BundleError(f"{place / _PROGRAM} was changed after it was saved")
    constants = _read_constants(place, description["constants"])
    try:
        program = parse_program(text, TABLE, constants)
        program.check()
    except ArrayfnError as error:
        raise BundleError(f"{place / _PROGRAM} is no Program: {error}") from None
    in_tree = _structure(place, description["arguments"], len(program.inputs))
    out_tree = _structure(place, description["results"], len(program.outputs))
    options = _options(place, description["options"])
    donated = frozenset(k for k in description["donated"] if k < len(program.inputs))
    backend = choose(description["device"] if device is None else device)
    compiled = backend.lower(program, donated, options)
    lowered = Lowered(
        program, compiled, in_tree, out_tree, backend, (), options, donated
    )
    alike = description["machine"] == _machine()
    if alike and backend.name == description["device"]:
        made = _hashes(lowered.kernels)
        if made != description["kernels"]:
            raise BundleError(
                f"{place}: the kernels made of the Program are not those that were "
                "saved, by the same version on a machine like this; were operators' "
                "kernels registered then, or is the bundle changed? Save it again"
            )
    return lowered.compile()


def _self_contained(lowered: Lowered) -> Program:
    """The Program without derivative rules, which are functions of this process."""
    if lowered.sites:
        raise ArgumentError(
            "save: the function was compiled with checks, whose errors name lines of "
            "this machine; lower it without",
            user_location(),
        )
    for kernel in lowered.kernels:
        if isinstance(kernel, Kernel) and kernel.key == kernel.source:
            raise ArgumentError(
                f"save: the source of {kernel.name} was replaced, and loading runs no "
                "code of a file; load the bundle, and replace it there",
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
    package = Path(__file__).parent
    files = sorted((package / "lowering").rglob("*.py")) + sorted(
        (package / "passes").rglob("*.py")
    )
    sources = _hash(b"".join(file.read_bytes() for file in files))
    return [sources, platform.machine(), platform.processor(), str(os.cpu_count())]


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
    "device": str,
    "options": dict,
    "donated": list,
    "arguments": dict,
    "results": (dict, int, type(None)),
    "program": str,
    "constants": list,
    "machine": list,
    "kernels": dict,
}


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}") from None


def _read_description(place: Path) -> dict[str, Any]:
    file = place / _DESCRIPTION
    try:
        found: Any = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file} is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise BundleError(f"{file} describes no bundle of format {FORMAT}")
    for name, kind in _FIELDS.items():
        if name not in found or not isinstance(found[name], kind):
            raise BundleError(f"{file} has no {name!r} of the form that save writes")
    if not all(type(k) is int and k >= 0 for k in found["donated"]):
        raise BundleError(f"{file}: 'donated' are numbers of arguments")
    return found


def _options(place: Path, given: dict[str, Any]) -> Options:
    deterministic, mode = given.get("deterministic"), given.get("mode")
    if type(deterministic) is not bool or mode not in (None, *MODES):
        raise BundleError(f"{place / _DESCRIPTION} has options that jit has not")
    return Options(deterministic, mode)


def _read_constants(place: Path, hashes: list[Any]) -> list[np.ndarray[Any, Any]]:
    arrays: list[np.ndarray[Any, Any]] = []
    for number, wanted in enumerate(hashes):
        file = place / "constants" / f"{number}.npy"
        try:
            array = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BundleError(f"{file} is no array: {error}") from None
        if _hash(array.tobytes()) != wanted:
            raise BundleError(f"{file} was changed after it was saved")
        arrays.append(array)
    return arrays
