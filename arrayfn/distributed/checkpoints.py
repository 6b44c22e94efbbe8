"""Checkpoints: arrays over a mesh, saved by part and loaded on any other mesh.

A checkpoint is a folder. Each process writes the parts that it owns as ``.npy`` files,
into a folder inside with a random name; ``index.json``, written last and moved to its
place, says which parts make up which array. So a save that does not come to its end
leaves the earlier checkpoint as it was. Nothing in the files is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.distributed.arrays import ShardedArray, make_array_from_callback
from arrayfn.distributed.devices import DEVICES, devices_of
from arrayfn.distributed.processes import agree
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.ir import NamedSharding
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]
Box = tuple[tuple[int, int], ...]
"""A part's bounds in the whole array: (begin, end) along each axis."""

_INDEX: Final = "index.json"
_FORMAT: Final = 1  # version of index.json
_PART: Final = re.compile(r"[0-9a-f]{16}/[0-9]+\.[0-9]+\.npy")


@frozen
class _Stored:
    """An array in a checkpoint: its shape, its dtype, and the file of each part."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: dict[Box, Path]

    def read(self, index: tuple[slice, ...]) -> Array:
        """Read the elements at ``index`` from the parts that have some of them.

        Raises ArgumentError if an element is in no part.
        """
        wanted = _box(index, self.shape)
        elements = np.empty([stop - start for start, stop in wanted], self.dtype)
        missing = elements.size
        for box, path in self.parts.items():
            overlap = [
                (max(a, c), min(b, d))
                for (a, b), (c, d) in zip(wanted, box, strict=True)
            ]
            if any(start >= stop for start, stop in overlap):
                continue
            part = np.load(path, mmap_mode="r", allow_pickle=False)
            part = part.view(self.dtype).reshape([d - c for c, d in box])
            elements[_within(overlap, wanted)] = part[_within(overlap, box)]
            missing -= int(np.prod([stop - start for start, stop in overlap]))
        if missing:
            raise ArgumentError(
                f"load: a checkpoint lacks parts of an array of shape {self.shape}, "
                f"at {index}",
                user_location(),
            )
        return elements


def _box(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """Return the bounds of ``index``, slices of an array of ``shape``."""
    return _as_box(part.indices(n)[:2] for part, n in zip(index, shape, strict=True))


def _within(inner: Iterable[tuple[int, int]], outer: Box) -> tuple[slice, ...]:
    """Return the slices of a part with bounds ``outer`` that select ``inner``.

    Both are bounds in the whole array.
    """
    pairs = zip(inner, outer, strict=True)
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in pairs)


def save(path: str | Path, x: Any) -> None:
    """Save ``x``, a pytree of arrays and numbers, as the checkpoint ``path``.

    Each process writes its parts of an array over a mesh, and each part is written
    once. The first process writes other arrays. All processes must call ``save``
    together. The checkpoint replaces an existing one only when all parts are written.
    If a process fails, the existing one stays.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(folder, (np.arange(3.0), 5))
    ...     load(folder, (None, None))
    (array([0., 1., 2.]), array(5))
    """
    import json
    import secrets

    # ``agree`` also waits until all processes have called it.
    folder = Path(path)
    name = agree(secrets.token_hex(8), "the beginning of a save")
    if DEVICES.process == 0:
        (folder / name).mkdir(parents=True)
    agree("", "the folder of a save")
    index: dict[str, Any] = {}
    for number, (path_of_leaf, leaf) in enumerate(tree.leaves_with_path(x)):
        whole = leaf if isinstance(leaf, ShardedArray) else np.asarray(leaf)
        parts: list[Any] = []
        for member, box in _owned(whole):
            file = f"{name}/{number}.{member}.npy"
            parts.append([list(map(list, box)), file])
            part = _part_here(whole, member)
            if part is not None:
                _write(folder / file, part)
        index[tree.keystr(path_of_leaf)] = [
            list(whole.shape),
            dtypes.short_name(whole.dtype),
            parts,
        ]
    agree("", "the parts of a save")
    if DEVICES.process == 0:
        text = json.dumps({"format": _FORMAT, "arrays": index}, indent=0)
        _commit(folder, text, name)
    agree("", "the end of a save")


def load(path: str | Path, like: Any) -> Any:
    """Read the arrays of the checkpoint ``path`` into a pytree like ``like``.

    Each leaf of ``like`` says how to distribute the array. It is a NamedSharding on any
    mesh, or an array over a mesh, whose sharding is then used. For anything else, such
    as None, the result is a NumPy array. A leaf that was saved as None is None. Each
    process reads the parts that it needs. Raises ArgumentError for a folder without a
    checkpoint, and for leaves that the checkpoint does not have. Raises ShapeError if
    an extent is not a multiple of the number of parts, or if ``like`` has an array of
    another shape.
    """
    folder = Path(path)
    stored = _read_index(folder)
    pairs, structure = tree.flatten_with_path(like, _is_leaf)
    loaded: list[Any] = []
    for path_of_leaf, leaf in pairs:
        name = tree.keystr(path_of_leaf)
        if leaf is None and name not in stored:
            loaded.append(None)  # a leaf saved as None is not stored
            continue
        if name not in stored:
            raise ArgumentError(
                f"load: the checkpoint {folder} has no array {name}; it has "
                + ", ".join(sorted(stored)[:8]),
                user_location(),
            )
        loaded.append(_loaded(stored[name], leaf, name))
    return tree.unflatten(structure, loaded)


def _loaded(stored: _Stored, leaf: Any, name: str) -> Any:
    """Load a stored array: over a mesh if ``leaf`` says so, or else as a NumPy array.

    ``leaf`` is a sharding, an array or a struct with the shape of the array, or
    something else; ``name`` is the array's, for the error. Raises ShapeError if
    ``leaf`` has another shape.
    """
    shape = getattr(leaf, "shape", stored.shape)
    if tuple(shape) != stored.shape:
        raise ShapeError(
            f"load: {name} has shape {stored.shape}, not {tuple(shape)}",
            user_location(),
        )
    sharding = leaf if isinstance(leaf, NamedSharding) else None
    if isinstance(leaf, ShardedArray):
        sharding = leaf.sharding
    if sharding is None:
        return stored.read(tuple(slice(0, n) for n in stored.shape))
    return make_array_from_callback(stored.shape, sharding, stored.read, stored.dtype)


def _is_leaf(x: Any) -> bool:
    """Whether ``load`` takes ``x`` as a leaf: None or a NamedSharding.

    Pytrees would take None as an empty subtree.
    """
    return x is None or isinstance(x, NamedSharding)


def _owned(x: Any) -> list[tuple[int, Box]]:
    """Return the different parts of ``x``, each as (member that writes it, bounds).

    Of the members that hold the same part, the first writes it. An array that is not
    over a mesh is one part, of member 0.
    """
    if not isinstance(x, ShardedArray):
        return [(0, tuple((0, n) for n in x.shape))]
    index = x.sharding.index
    return [(k, _box(index(x.shape, k), x.shape)) for k in x.sharding.owners()]


def _part_here(x: Any, member: int) -> Array | None:
    """Return the part of ``x`` that ``member`` holds, as a NumPy array.

    None if another process writes it. The first process writes an array that is not
    over a mesh.
    """
    if not isinstance(x, ShardedArray):
        return x if DEVICES.process == 0 else None
    device = devices_of(x.sharding.mesh)[member]
    is_here = device.process_index == DEVICES.process
    return np.asarray(x.parts[member]) if is_here else None


def _write(path: Path, x: Array) -> None:
    """Write the bytes of the part ``x`` to a file, and wait until they are on disk."""
    with path.open("wb") as file:
        raw = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        np.save(file, raw, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _commit(folder: Path, text: str, name: str) -> None:
    """Replace the index of a checkpoint by ``text``, then delete the old parts.

    ``name`` is the folder of the new parts. The index is replaced by an atomic rename.
    """
    new_index = folder / f"{name}.{_INDEX}"
    with new_index.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new_index.replace(folder / _INDEX)
    import shutil

    # Folders of parts have names of 16 hexadecimal digits.
    for other in folder.iterdir():
        if re.fullmatch(r"[0-9a-f]{16}", other.name) and other.name != name:
            shutil.rmtree(other)


def _read_index(folder: Path) -> dict[str, _Stored]:
    """Read the index of a checkpoint: its arrays by name.

    Raises ArgumentError if there is no valid index, or one of another format.
    """
    import json

    try:
        index = json.loads((folder / _INDEX).read_text())
        if index["format"] != _FORMAT:
            raise ArgumentError(
                f"load: {folder} has format {index['format']}, not {_FORMAT}",
                user_location(),
            )
        return {
            name: _Stored(
                tuple(map(int, shape)),
                dtypes.BY_SHORT_NAME[dtype],
                {_as_box(box): _file(folder, file) for box, file in parts},
            )
            for name, (shape, dtype, parts) in index["arrays"].items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"load: {folder} has no whole checkpoint ({error})", user_location()
        ) from error


def _as_box(bounds: Any) -> Box:
    """Convert bounds, such as lists of numbers from JSON, to tuples of ints."""
    return tuple((int(start), int(stop)) for start, stop in bounds)


def _file(folder: Path, name: str) -> Path:
    """Return the path of the part ``name`` of the checkpoint ``folder``.

    Raises ValueError for any other name, which might lead out of the folder.
    """
    if not _PART.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a part")
    return folder / name
