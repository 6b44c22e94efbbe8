"""Object code on disk, by the content it was compiled from.

``ObjectCache.get_or_compile(key, compile)`` returns the object code for a key: from
memory, from the cache directory, or by compiling and storing it. A key names everything
that the code depends on (``content_key``), so entries are never out of date. Entries
are written to a temporary file and renamed, and carry their length and hash: a reader
sees a whole entry or none, and two processes may write the same one. The directory is
``ARRAYFN_CACHE_DIR``, else ``$XDG_CACHE_HOME/arrayfn``, else ``~/.cache/arrayfn``; it
must belong to this user and not be writable by others, since what it holds is executed.
Where it cannot be used, code is kept in memory and one warning says what to do.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

LOGGER = logging.getLogger(__name__)

DIRECTORY_VARIABLE: Final = "ARRAYFN_CACHE_DIR"
MAGIC: Final = b"arrayfn1"
HEADER_BYTES: Final = len(MAGIC) + 8 + 32
MAX_BYTES: Final = 256 << 20
SUFFIX: Final = ".o"
EVICT_EVERY: Final = 64  # entries written between two looks at the bound
STALE_TEMPORARY_SECONDS: Final = 3600.0


def content_key(*parts: str) -> str:
    """The key of what ``parts`` say, in 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


def default_directory() -> Path:
    """Where the cache is kept, by the environment."""
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path("~/.cache").expanduser()
    return root / "arrayfn"


def object_cache() -> ObjectCache:
    """The cache in the directory that the environment names now."""
    directory = default_directory()
    known = _caches.get(directory)
    return known or _caches.setdefault(directory, ObjectCache(directory))


class ObjectCache:
    """Object code by key, in memory and in a directory. Safe to use from threads."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self._memory: dict[str, bytes] = {}
        self._written = 0
        self._lock = threading.Lock()
        self._usable: bool | None = None

    def get_or_compile(self, key: str, compile: Callable[[], bytes]) -> bytes:
        """The object code for ``key``; ``compile`` is called if there is none."""
        code = self.get(key)
        if code is None:
            code = compile()
            self.put(key, code)
        return code

    def get(self, key: str) -> bytes | None:
        """The code for ``key``, or None; a damaged entry is removed and logged."""
        code = self._memory.get(key)
        if code is not None or not self._is_usable():
            return code
        path = self._path(key)
        try:
            entry = _read_private(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            LOGGER.warning("cannot read cache entry %s: %s", path, error)
            return None
        code = _unpack(entry)
        if code is None:
            LOGGER.warning("cache entry %s is damaged; compiling it again", path)
            _remove(path)
            return None
        self._memory[key] = code
        return code

    def put(self, key: str, code: bytes) -> None:
        """Keep ``code`` under ``key``, in memory and if possible on disk."""
        self._memory[key] = code
        if not self._is_usable():
            return
        path = self._path(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _write_atomically(path, _pack(code))
        except OSError as error:
            self._give_up(f"writing to it failed: {error}")
            return
        if self._written % EVICT_EVERY == 0:
            self.evict()
        self._written += 1

    def evict(self) -> None:
        """Remove the entries used longest ago until the cache is within its bound."""
        if not self._is_usable():
            return
        entries: list[tuple[float, int, Path]] = []
        for path in self.directory.glob(f"??/*{SUFFIX}*"):
            try:
                status = path.stat()
            except OSError:
                continue
            abandoned = time.time() - status.st_mtime > STALE_TEMPORARY_SECONDS
            if path.suffix == SUFFIX:
                used = max(status.st_atime, status.st_mtime)
                entries.append((used, status.st_size, path))
            elif abandoned:
                _remove(path)
        excess = sum(size for _, size, _ in entries) - self.max_bytes
        for _, size, path in sorted(entries):
            if excess <= 0:
                break
            _remove(path)
            excess -= size

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / (key[2:] + SUFFIX)

    def _is_usable(self) -> bool:
        if self._usable is None:
            with self._lock:
                if self._usable is None:
                    problem = _prepare(self.directory)
                    self._usable = problem is None
                    if problem is not None:
                        self._warn(problem)
        return self._usable

    def _give_up(self, problem: str) -> None:
        with self._lock:
            was_usable, self._usable = self._usable, False
        if was_usable:
            self._warn(problem)

    def _warn(self, problem: str) -> None:
        warnings.warn(
            "arrayfn keeps compiled kernels in memory only, because the cache "
            f"directory {self.directory} cannot be used: {problem}. Set "
            f"{DIRECTORY_VARIABLE} to a directory of your own that only you can write.",
            RuntimeWarning,
            stacklevel=2,
        )


_caches: dict[Path, ObjectCache] = {}


def _prepare(directory: Path) -> str | None:
    """Make the directory if need be; what is wrong with it, or None."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        return str(error)
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, not to you ({os.geteuid()})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        return f"other users can write to it (mode {mode:o}; `chmod go-w` repairs that)"
    return None


def _read_private(path: Path) -> bytes:
    """The bytes of a file that belongs to this user and that only they can write."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        for status in (os.fstat(descriptor), path.parent.stat()):
            writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if status.st_uid != os.geteuid() or writable:
                raise PermissionError(f"{path} can be written by another user")
        return file.read()


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that others see all of it or nothing."""
    descriptor, temporary = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        _remove(Path(temporary))
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        LOGGER.debug("cannot remove %s: %s", path, error)


def _pack(code: bytes) -> bytes:
    length = len(code).to_bytes(8, "little")
    return MAGIC + length + hashlib.sha256(code).digest() + code


def _unpack(entry: bytes) -> bytes | None:
    """The code of an entry, or None if the entry is not whole."""
    code = entry[HEADER_BYTES:]
    return code if _pack(code) == entry else None
