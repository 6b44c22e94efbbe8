"""Parameters as safetensors files, which other libraries read and write.

A file has arrays by names. The arrays of a pytree are named by their paths, such as
``layers.0.w``. It needs the package ``safetensors``, arrayfn's extra of that name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.array_likes import adopted
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.transforms import check_leaf, leaf_type

Array = np.ndarray[Any, Any]
# The names of dtypes in safetensors files.
_NAMES: Final = {
    dtypes.bool_: "BOOL",
    dtypes.uint8: "U8",
    dtypes.int8: "I8",
    dtypes.uint16: "U16",
    dtypes.int16: "I16",
    dtypes.uint32: "U32",
    dtypes.int32: "I32",
    dtypes.uint64: "U64",
    dtypes.int64: "I64",
    dtypes.float8_e4m3fn: "F8_E4M3",
    dtypes.float8_e5m2: "F8_E5M2",
    dtypes.float16: "F16",
    dtypes.bfloat16: "BF16",
    dtypes.float32: "F32",
    dtypes.float64: "F64",
    dtypes.complex64: "C64",
}
_DTYPES: Final = {name: dtype for dtype, name in _NAMES.items()}


def save_parameters(
    parameters: Any,
    file: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the arrays of a pytree into a safetensors ``file``, by their paths.

    ``metadata`` maps names to texts that are stored in the file.

    Raises ArgumentError for dtypes that the format does not have, such as complex128,
    and for two arrays with the same name. Also raises it if the package ``safetensors``
    is missing.
    """
    arrays: dict[str, Array] = {}
    for path, leaf in _named(parameters):
        leaf = adopted(leaf)
        check_leaf(leaf, f"save_parameters: {path or 'the first argument'}")
        array = np.asarray(leaf, leaf_type(leaf).dtype, order="C")
        if array.dtype not in _NAMES:
            raise ArgumentError(
                f"save_parameters: {path} is of {array.dtype}, which a safetensors "
                "file does not hold; convert it, for example to its real and imaginary "
                "parts",
                user_location(),
            )
        if path in arrays:
            raise ArgumentError(
                f"save_parameters: two arrays are called {path}; give them different "
                "keys",
                user_location(),
            )
        arrays[path] = array
    _package().numpy.save_file(arrays, os.fspath(file), dict(metadata or {}) or None)


def load_parameters(file: str | os.PathLike[str], like: Any = None) -> Any:
    """Read the arrays of a safetensors ``file`` into a pytree like ``like``.

    ``like`` has the arrays, numbers or ``ShapeDtypeStruct``s that the arrays of the
    file replace. Without ``like``, the result is a dict of the arrays by their names.
    If the file does not have the arrays of ``like``, raises ArgumentError or
    ShapeError, which names the arrays. Raises ArgumentError for a broken file.
    """
    package = _package()
    content = Path(file).read_bytes()
    try:
        entries = package.deserialize(content)
    except package.SafetensorError as error:
        raise ArgumentError(
            f"{os.fspath(file)} is not a safetensors file: {error}", user_location()
        ) from None
    arrays = {name: _array(name, entry) for name, entry in entries}
    if like is None:
        return arrays
    pairs = _named(like)
    missing = [name for name, _ in pairs if name not in arrays]
    more = sorted(arrays.keys() - {name for name, _ in pairs})
    if missing or more:
        raise ArgumentError(
            f"{os.fspath(file)} does not have the arrays of like: it lacks "
            f"{', '.join(missing[:5]) or 'none'}, and has besides "
            f"{', '.join(more[:5]) or 'none'}",
            user_location(),
        )
    for name, leaf in pairs:
        wanted_type, file_type = leaf_type(leaf), leaf_type(arrays[name])
        if (wanted_type.shape, wanted_type.dtype) != (file_type.shape, file_type.dtype):
            raise ShapeError(
                f"{os.fspath(file)}: {name} is {file_type}, not {wanted_type} as in "
                "like",
                user_location(),
            )
    return tree.unflatten(tree.structure(like), [arrays[name] for name, _ in pairs])


def _named(parameters: Any) -> list[tuple[str, Any]]:
    """Return the leaves of ``parameters`` with their names.

    A name is the leaf's path, joined by dots.
    """
    pairs, _ = tree.flatten_with_path(parameters)
    return [(tree.keystr(p, simple=True, separator="."), leaf) for p, leaf in pairs]


def _array(name: str, entry: Mapping[str, Any]) -> Array:
    """Return the array of a file's entry; ArgumentError for an unknown dtype."""
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise ArgumentError(
            f"load_parameters: {name} is of {entry['dtype']}, which arrayfn does not "
            "have",
            user_location(),
        )
    # A bytearray makes the array writable.
    return np.frombuffer(bytearray(entry["data"]), dtype).reshape(entry["shape"])


def _package() -> Any:
    """Import and return safetensors; ArgumentError if it is not installed."""
    try:
        import_module("safetensors.numpy")
        return import_module("safetensors")
    except ImportError:
        raise ArgumentError(
            "safetensors files need the package safetensors: pip install "
            "'arrayfn[safetensors]'",
            user_location(),
        ) from None


__all__ = ["load_parameters", "save_parameters"]
