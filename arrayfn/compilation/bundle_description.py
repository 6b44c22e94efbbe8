"""``bundle.json``, the description of a bundle: what it must have, and its parts.

In: JSON that nobody trusts. Out: structures, options and numbers of arguments, checked.
BundleError, with the file, says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from arrayfn import tree
from arrayfn.backends.registry import has_backend
from arrayfn.compilation.structures import read
from arrayfn.dtypes import BY_SHORT_NAME
from arrayfn.errors import BundleError
from arrayfn.lowering.options import MODES, Options

FORMAT: Final = 4  # version of bundle.json
DESCRIPTION: Final = "bundle.json"

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
    """Return the file of a signature's Program."""
    return f"programs/{number}.txt"


def constant_file(number: int) -> str:
    """Return the file of an array."""
    return f"constants/{number}.npy"


def kernel_file(number: int, name: str) -> str:
    """Return the file of an edited kernel of a signature."""
    return f"kernels/{number}.{name}.py"


def read_description(folder: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Read ``bundle.json`` and check it against the files.

    Raises BundleError if they do not fit.
    """
    file = folder / DESCRIPTION
    if DESCRIPTION not in files:
        raise BundleError(f"{folder} has no {DESCRIPTION}")
    try:
        description: Any = json.loads(files[DESCRIPTION])
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file} is not JSON: {error}") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise BundleError(f"{file} describes no bundle of format {FORMAT}")
    _check_fields(file, description, _FIELDS)
    signatures, constants = description["signatures"], description["constants"]
    expected = {DESCRIPTION, *map(constant_file, range(len(constants)))}
    for number, signature in enumerate(signatures):
        _check_signature(file, signature, len(constants))
        expected.add(program_file(number))
        expected |= {kernel_file(number, name) for name in signature.get("edited", ())}
    if not has_backend(description["device"]):
        raise BundleError(f"{file}: there is no device {description['device']!r}")
    if expected != set(files) or not signatures:
        odd = sorted(expected.symmetric_difference(files)) or ["no signatures"]
        raise BundleError(f"{file} does not go with the files there: {odd[0]}")
    if not all(type(name) is str and name in BY_SHORT_NAME for name in constants):
        raise BundleError(f"{file}: 'constants' are data types")
    return description


def _check_signature(file: Path, signature: Any, constant_count: int) -> None:
    """Raise BundleError unless ``signature`` is valid JSON of a signature.

    It is from ``file``; the bundle has ``constant_count`` arrays.
    """
    if not isinstance(signature, dict):
        raise BundleError(f"{file}: 'signatures' are not of the form of save's")
    optional = {name: kind for name, kind in _OPTIONAL.items() if name in signature}
    _check_fields(file, signature, {**_SIGNATURE, **optional})
    if not all(name.isidentifier() for name in signature.get("edited", ())):
        raise BundleError(f"{file}: 'edited' are names of kernels")
    numbers = signature["constants"]
    if not all(type(k) is int and 0 <= k < constant_count for k in numbers):
        raise BundleError(f"{file}: 'constants' are numbers of arrays")


def _check_fields(
    file: Path, found: dict[str, Any], fields: Mapping[str, type | tuple[type, ...]]
) -> None:
    """Raise BundleError unless ``found`` has exactly these fields.

    ``found`` is JSON of ``file``; ``fields`` are the Python types of the values by
    name.
    """
    for name, kind in fields.items():
        if name not in found or not isinstance(found[name], kind):
            raise BundleError(f"{file} has no {name!r} of the form that save writes")
    if found.keys() != fields.keys():
        odd = sorted(found.keys() - fields.keys())
        raise BundleError(f"{file} has {odd[0]!r}, which save does not write")


def arguments_structure(folder: Path, description: dict[str, Any]) -> tree.TreeDef:
    """Read the structure of ``(args, kwargs)`` from the JSON ``description``.

    Raises BundleError, with the bundle's ``folder``, for another structure.
    """
    match description:
        case {"tuple": [{"tuple": _}, {"dict": _}]}:
            return structure_of(folder, description)
        case _:
            raise BundleError(f"{folder / DESCRIPTION} describes no arguments")


def structure_of(
    folder: Path, description: Any, count: int | None = None
) -> tree.TreeDef:
    """Return the structure that JSON describes, with ``count`` leaves if that is known.

    ``description`` is what ``described`` made. Raises BundleError, with the bundle's
    ``folder``, for anything else.
    """
    try:
        leaves, structure = read(description)
    except BundleError as error:
        raise BundleError(f"{folder / DESCRIPTION} {error}") from None
    if leaves != list(range(len(leaves))):
        raise BundleError(f"{folder / DESCRIPTION} describes no structure of arrays")
    if count is not None:
        check_count(folder, structure, count)
    return structure


def check_count(folder: Path, structure: tree.TreeDef, count: int) -> None:
    """Raise BundleError unless ``structure`` has ``count`` leaves."""
    if structure.num_leaves != count:
        raise BundleError(
            f"{folder / DESCRIPTION} describes {structure.num_leaves} arrays, not the "
            f"{count} of the Program"
        )


def options_of(folder: Path, description: dict[str, Any]) -> Options:
    """Read the options of ``jit`` from JSON; BundleError for invalid ones."""
    deterministic, mode = description.get("deterministic"), description.get("mode")
    if (
        description.keys() != {"deterministic", "mode"}
        or type(deterministic) is not bool
        or mode not in (None, *MODES)
    ):
        raise BundleError(f"{folder / DESCRIPTION} has options that jit does not have")
    return Options(deterministic, mode)


def donated_of(folder: Path, numbers_read: list[Any], count: int) -> frozenset[int]:
    """Check the indices of donated leaves, of ``count`` leaves; return them as a set.

    Raises BundleError unless they are ascending and in range.
    """
    numbers = [k for k in numbers_read if type(k) is int and 0 <= k < count]
    if numbers != numbers_read or sorted(set(numbers)) != numbers_read:
        raise BundleError(
            f"{folder / DESCRIPTION}: 'donated' are numbers of arguments, in order"
        )
    return frozenset(numbers)
