"""The files of a bundle: written with their hashes, read without trusting them.

``SHA256SUMS`` has the hash of every other file, as ``sha256sum --check`` reads it: what
was damaged or edited is found, and so is a file that is missing or was added. It says
nothing of who wrote them. ``read_files`` opens plain files only, of this folder, and
``read_array`` parses the header that ``numpy.save`` writes and no other.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import BundleError

SUMS: Final = "SHA256SUMS"
_MOST_TEXT: Final = 1 << 28  # bytes of a file that is text
_MOST_FILES: Final = 1 << 16
_SUM: Final = re.compile(r"([0-9a-f]{64})  ([\w.]+(?:/[\w.]+)?)", re.ASCII)
_MAGIC: Final = b"\x93NUMPY\x01\x00"
_HEADER: Final = re.compile(
    r"\{'descr': '([<|]\w+)', 'fortran_order': (True|False), "
    r"'shape': \((?:(\d{1,19}),|(\d{1,19}(?:, \d{1,19})+)|)\), \} *\n",
    re.ASCII,
)
_MOST_AXES: Final = 32
_READ_ONLY: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# What numpy.save has no name for is saved as integers.
_STORED: Final = {dtypes.bfloat16: np.dtype("<u2")}
_DESCRIPTIONS: Final = {
    name: _STORED.get(dtype, dtype).newbyteorder("<").str
    for name, dtype in dtypes.BY_SHORT_NAME.items()
}


def write_files(place: Path, files: Mapping[str, bytes]) -> None:
    """Write ``files``, by their names in the folder ``place``, and their hashes last.

    Names have at most one folder.
    """
    for name, content in files.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    lines = [f"{content_hash(content)}  {name}\n" for name, content in files.items()]
    (place / SUMS).write_text("".join(lines), "ascii")


def read_files(place: Path) -> tuple[str, dict[str, bytes]]:
    """A hash of a bundle, and its files by their names.

    BundleError unless all are as written.
    """
    sums = _sums(place)
    present = sorted(_names(place))
    if present != sorted([SUMS, *sums]):
        odd = sorted({SUMS, *sums}.symmetric_difference(present))
        raise BundleError(
            f"{place} has not the files that {SUMS} lists: {', '.join(odd[:5])}"
        )
    found: dict[str, bytes] = {}
    for name, wanted in sums.items():
        content = _read(place, name, None if name.endswith(".npy") else _MOST_TEXT)
        if content_hash(content) != wanted:
            raise BundleError(f"{place / name} was changed after it was saved")
        found[name] = content
    return content_hash(repr(sorted(sums.items())).encode()), found


def array_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """``array`` as a file of ``numpy.save``."""
    stored = _STORED.get(array.dtype)
    file = io.BytesIO()
    np.save(file, array if stored is None else array.view(stored), allow_pickle=False)
    return file.getvalue()


def read_array(name: str, content: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """The array of a file's ``content``, of the data type of this short name.

    BundleError, with the file's ``name``, if it is of another type or no array. No more
    memory is taken than ``content`` has.
    """
    size = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + size]
    match = _HEADER.fullmatch(header.decode("latin-1"))
    if content[:8] != _MAGIC or len(header) != size or match is None:
        raise BundleError(f"{name} is no array as numpy.save writes it")
    described, order, one, several = match.groups()
    if described != _DESCRIPTIONS.get(dtype):
        raise BundleError(f"{name} has elements of {described}, not of {dtype!r}")
    shape = (
        tuple(map(int, (one or several or "").split(", "))) if one or several else ()
    )
    kept = dtypes.BY_SHORT_NAME[dtype]
    have = len(content) - 10 - size
    if len(shape) > _MOST_AXES or math.prod(shape) * kept.itemsize != have:
        raise BundleError(f"{name} has {have} bytes of elements, not those of {shape}")
    flat = np.frombuffer(content, kept, offset=10 + size)
    return flat.reshape(shape, order="F" if order == "True" else "C")


def content_hash(content: bytes) -> str:
    """The hash of ``content``, as ``SHA256SUMS`` has it."""
    return hashlib.sha256(content).hexdigest()


def _sums(place: Path) -> dict[str, str]:
    """The hash of each file, by its name."""
    try:
        lines = _read(place, SUMS, _MOST_TEXT).decode("ascii").split("\n")
    except UnicodeDecodeError:
        lines = ["?"]
    sums: dict[str, str] = {}
    for line in lines[:-1]:
        match = _SUM.fullmatch(line)
        if match is None or match[2] in sums:
            break
        sums[match[2]] = match[1]
    if lines[-1] or len(sums) != len(lines) - 1 or not sums:
        raise BundleError(f"{place / SUMS} is no list of hashes and names")
    return sums


def _names(place: Path) -> Iterator[str]:
    """The names of all that is in the folder, and in its folders."""
    try:
        count = 0
        for entry in os.scandir(place):
            if entry.is_dir(follow_symlinks=False):
                inner = [f"{entry.name}/{x.name}" for x in os.scandir(entry.path)]
            else:
                inner = [entry.name]
            count += len(inner)
            if count > _MOST_FILES:
                raise BundleError(f"{place} has more files than a bundle has")
            yield from inner
    except OSError as error:
        raise BundleError(f"{place} cannot be read: {error.strerror}") from None


def _read(place: Path, name: str, most: int | None) -> bytes:
    """A plain file of at most ``most`` bytes, reached through no link."""
    *folders, last = name.split("/")
    opened: list[int] = []
    try:
        at = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        opened.append(at)
        for part in folders:
            at = os.open(part, _READ_ONLY | os.O_DIRECTORY, dir_fd=at)
            opened.append(at)
        descriptor = os.open(last, _READ_ONLY, dir_fd=at)
        opened.append(descriptor)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{place / name} is no plain file")
        if status.st_size > (_physical_memory() if most is None else most):
            raise BundleError(
                f"{place / name} has {status.st_size:,} bytes, more than can be read"
            )
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size + 1)
    except OSError as error:
        raise BundleError(f"{place / name} cannot be read: {error.strerror}") from None
    except MemoryError:
        raise BundleError(f"{place / name} does not fit into memory") from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
