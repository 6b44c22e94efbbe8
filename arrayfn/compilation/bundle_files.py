"""The files of a bundle: written with their hashes, read without trusting them.

``SHA256SUMS`` has the hash of every other file, as ``sha256sum --check`` reads it: what
was damaged or edited is found, and so is a file that is missing or was added. It says
nothing of who wrote them. ``read_files`` opens only plain files of this folder, and
``read_array`` parses only the header that ``numpy.save`` writes.
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
from arrayfn.errors import ArgumentError, BundleError, user_location

SUMS: Final = "SHA256SUMS"
_MAX_TEXT: Final = 1 << 28  # bytes of a file that is text
_MAX_FILES: Final = 1 << 16  # of a bundle
_SUM: Final = re.compile(r"([0-9a-f]{64})  ([\w.]+(?:/[\w.]+)?)", re.ASCII)
_MAGIC: Final = b"\x93NUMPY\x01\x00"
_HEADER: Final = re.compile(
    r"\{'descr': '([<|]\w+)', 'fortran_order': (True|False), "
    r"'shape': \((?:(\d{1,19}),|(\d{1,19}(?:, \d{1,19})+)|)\), \} *\n",
    re.ASCII,
)
_MAX_AXES: Final = 32  # of an array, as of NumPy 1
_READ_ONLY: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# Dtypes that numpy.save has no name for are saved as integers.
_STORED: Final = {
    dtypes.bfloat16: np.dtype("<u2"),
    **dict.fromkeys(dtypes.STORAGE, np.dtype("u1")),
}
_DESCRIPTIONS: Final = {
    name: _STORED.get(dtype, dtype).newbyteorder("<").str
    for name, dtype in dtypes.BY_SHORT_NAME.items()
}


def check_new_folder(function: str, folder: Path) -> None:
    """Raise ArgumentError, about ``function``, unless ``folder`` is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentError(
            f"{function}: {folder} is there already; give a folder that is new, or "
            "empty",
            user_location(),
        )


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write ``files`` by their names into ``folder``, and their hashes last.

    A name has at most one folder in it.
    """
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    lines = [f"{content_hash(content)}  {name}\n" for name, content in files.items()]
    (folder / SUMS).write_text("".join(lines), "ascii")


def read_files(folder: Path) -> tuple[str, dict[str, bytes]]:
    """Return a hash of the bundle, and its files by their names.

    Raises BundleError unless all files are as they were written.
    """
    sums = _sums(folder)
    present = sorted(_names(folder))
    if present != sorted([SUMS, *sums]):
        unexpected = sorted({SUMS, *sums}.symmetric_difference(present))
        raise BundleError(
            f"{folder} does not have the files that {SUMS} lists: "
            f"{', '.join(unexpected[:5])}"
        )
    files: dict[str, bytes] = {}
    for name, expected_hash in sums.items():
        content = _read(folder, name, None if name.endswith(".npy") else _MAX_TEXT)
        if content_hash(content) != expected_hash:
            raise BundleError(f"{folder / name} was changed after it was saved")
        files[name] = content
    return content_hash(repr(sorted(sums.items())).encode()), files


def array_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Return ``array`` as a file of ``numpy.save``."""
    stored = _STORED.get(array.dtype)
    file = io.BytesIO()
    np.save(file, array if stored is None else array.view(stored), allow_pickle=False)
    return file.getvalue()


def read_array(name: str, content: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """Return the array in a file's ``content``, of the dtype with this short name.

    Raises BundleError, with the file's ``name``, if it has another type or is no array.
    No more memory is taken than ``content`` has.
    """
    # A .npy file: 8 bytes of magic and version, 2 of the header's length, the header.
    size = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + size]
    match = _HEADER.fullmatch(header.decode("latin-1"))
    if content[:8] != _MAGIC or len(header) != size or match is None:
        raise BundleError(f"{name} is not an array as numpy.save writes it")
    description, order, single_extent, extents = match.groups()
    if description != _DESCRIPTIONS.get(dtype):
        raise BundleError(f"{name} has elements of {description}, not of {dtype!r}")
    shape = (
        tuple(map(int, (single_extent or extents or "").split(", ")))
        if single_extent or extents
        else ()
    )
    element_dtype = dtypes.BY_SHORT_NAME[dtype]
    nbytes = len(content) - 10 - size
    if len(shape) > _MAX_AXES or math.prod(shape) * element_dtype.itemsize != nbytes:
        raise BundleError(
            f"{name} has {nbytes} bytes of elements, not those of {shape}"
        )
    flat = np.frombuffer(content, element_dtype, offset=10 + size)
    return flat.reshape(shape, order="F" if order == "True" else "C")


def content_hash(content: bytes) -> str:
    """Return the hash of ``content``, as ``SHA256SUMS`` has it."""
    return hashlib.sha256(content).hexdigest()


def _sums(folder: Path) -> dict[str, str]:
    """Return the hash of each file by its name, as ``SHA256SUMS`` lists them."""
    try:
        lines = _read(folder, SUMS, _MAX_TEXT).decode("ascii").split("\n")
    except UnicodeDecodeError:
        lines = ["?"]
    sums: dict[str, str] = {}
    for line in lines[:-1]:
        match = _SUM.fullmatch(line)
        if match is None or match[2] in sums:
            break  # the lengths differ then, which is an error below
        sums[match[2]] = match[1]
    if lines[-1] or len(sums) != len(lines) - 1 or not sums:
        raise BundleError(f"{folder / SUMS} is not a list of hashes and names")
    return sums


def _names(folder: Path) -> Iterator[str]:
    """Yield the names of all files in the folder, and in its folders."""
    try:
        count = 0
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                inner = [f"{entry.name}/{x.name}" for x in os.scandir(entry.path)]
            else:
                inner = [entry.name]
            count += len(inner)
            if count > _MAX_FILES:
                raise BundleError(f"{folder} has more files than a bundle has")
            yield from inner
    except OSError as error:
        raise BundleError(f"{folder} cannot be read: {error.strerror}") from None


def _read(folder: Path, name: str, max_bytes: int | None) -> bytes:
    """Return the content of a regular file of at most ``max_bytes``, not behind a link.

    ``name`` is the file's path in ``folder``, with slashes. Without ``max_bytes`` the
    machine's memory is the limit.
    """
    *folders, last = name.split("/")
    opened: list[int] = []
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        opened.append(directory)
        for part in folders:
            directory = os.open(part, _READ_ONLY | os.O_DIRECTORY, dir_fd=directory)
            opened.append(directory)
        descriptor = os.open(last, _READ_ONLY, dir_fd=directory)
        opened.append(descriptor)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{folder / name} is not a plain file")
        if status.st_size > (_physical_memory() if max_bytes is None else max_bytes):
            raise BundleError(
                f"{folder / name} has {status.st_size:,} bytes, more than can be read"
            )
        with open(descriptor, "rb", closefd=False) as file:
            # If the file grows meanwhile, one byte more changes its hash.
            return file.read(status.st_size + 1)
    except OSError as error:
        message = f"{folder / name} cannot be read: {error.strerror}"
        if not folder.exists():
            message = f"there is no bundle {folder}: the folder does not exist"
        raise BundleError(message, user_location()) from None
    except MemoryError:
        raise BundleError(f"{folder / name} does not fit into memory") from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _physical_memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
