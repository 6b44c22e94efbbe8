"""Object code on disk, by the content it was compiled from.

``ObjectCache.get_or_compile(key, compile)`` returns the object code for a key: from
memory, from the cache directory, or by compiling and storing it. A key names everything
that the code depends on (``content_key``), so entries are never out of date. Entries
are written to a temporary file and renamed, and carry their key, length and hash: a
reader sees a whole entry of that key or none, and two processes may write the same one.
The directory is ``ARRAYFN_CACHE_DIR``, else the one for caches of the user (on Linux
``$XDG_CACHE_HOME/arrayfn``, else ``~/.cache/arrayfn``). It must belong to this user and
not be writable by others, nor may the folders around it, since what it holds is
executed. Where it cannot be used, code is kept in memory and one warning says what to
do.
"""

from __future__ import annotations

import grp
import logging
import os
import pwd
import stat
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from arrayfn.caches import forgets
from arrayfn.logs import CACHE
from arrayfn.records import frozen

LOGGER = logging.getLogger(__name__)
COUNTS: Final[Counter[str]] = Counter()
"""The ``hits`` and ``misses`` of this process, in all caches."""

DIRECTORY_VARIABLE: Final = "ARRAYFN_CACHE_DIR"
MAGIC: Final = b"arrayfn2"
KEY_BYTES: Final = 64  # hexadecimal digits of SHA-256
HEADER_BYTES: Final = len(MAGIC) + KEY_BYTES + 8 + 32
MAX_ENTRY_BYTES: Final = 64 << 20  # larger files are taken as damaged
MAX_BYTES: Final = 256 << 20  # of all entries
SUFFIX: Final = ".o"
EVICT_EVERY: Final = 64  # entries written between two looks at the bound
STALE_TEMPORARY_SECONDS: Final = 3600.0  # after which a writer has surely ended


def content_key(*parts: str) -> str:
    """Return a cache key: a hash of ``parts`` in 64 hexadecimal digits."""
    import hashlib  # imported late, because it loads OpenSSL

    digest = hashlib.sha256(MAGIC)  # a changed file format gives other keys
    for part in parts:
        encoded = part.encode()
        # The length keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


def default_directory() -> Path:
    """Return the directory named by ``ARRAYFN_CACHE_DIR``, or the user's default."""
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    if chosen:
        return Path(chosen)
    import platformdirs

    return platformdirs.user_cache_path("arrayfn")


def object_cache() -> ObjectCache:
    """Return the cache of ``default_directory()``; there is one for each directory."""
    directory = default_directory()
    known = _caches.get(directory)
    return known or _caches.setdefault(directory, ObjectCache(directory))


@frozen(slots=True)
class Entry:
    """An entry of the cache on disk."""

    key: str
    size: int  # of its file, in bytes
    used: float  # when it was last read or written, in seconds since 1970


class ObjectCache:
    """A cache of object code by key, in a directory or else in memory. Thread-safe.

    If it exceeds ``max_bytes``, the entries that were not used for longest are removed.
    ``refused`` counts entries that were damaged or could not be read.
    """

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        """Use ``directory``, which is first accessed when code is looked up."""
        self.directory = directory
        self.max_bytes = max_bytes
        self._memory: dict[str, bytes] = {}  # code that could not be written
        self._written = 0  # entries that this object has written
        self._lock = threading.Lock()
        self._usable: bool | None = None  # whether the directory is; None: not known
        self.refused = 0

    def get_or_compile(self, key: str, compile: Callable[[], bytes]) -> bytes:
        """Return the code for ``key``; if there is none, compile and store it."""
        code = self.get(key)
        if code is None:
            code = compile()
            self.put(key, code)
        return code

    def lookup(self, key: str) -> bytes | None:
        """Return the code for ``key``, or None; count and log the hit or miss."""
        code = self.get(key)
        COUNTS["misses" if code is None else "hits"] += 1
        CACHE.info("%s %s", "missing" if code is None else "found", key[:16])
        return code

    def get(self, key: str) -> bytes | None:
        """Return the code for ``key`` from memory or disk, or None.

        A damaged file is removed. It counts as missing, like a file that cannot be
        read; both are logged and counted in ``refused``.
        """
        code = self._memory.get(key)
        if code is not None or not self._is_usable():
            return code
        path = self._path(key)
        try:
            entry = _read_private(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.refused += 1
            LOGGER.warning("cannot read cache entry %s: %s", path, error)
            return None
        code = _unpack(key, entry)
        if code is None:
            self.refused += 1
            LOGGER.warning("cache entry %s is damaged; compiling it again", path)
            _remove(path)
        return code

    def put(self, key: str, code: bytes) -> None:
        """Store ``code`` under ``key``: on disk, or in memory if that fails.

        After a failed write, all later code is kept in memory, unless only this entry's
        path is at fault. Every ``EVICT_EVERY`` writes, old entries are removed.
        """
        if not self._is_usable():
            self._memory[key] = code
            return
        path = self._path(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _write_atomically(path, _pack(key, code))
        except OSError as error:
            self._memory[key] = code
            if path.is_dir() or not path.parent.is_dir():
                LOGGER.warning("cannot write cache entry %s: %s", path, error)
            else:
                self._give_up(f"writing to it failed: {error}")
            return
        if self._written % EVICT_EVERY == 0:
            self.evict()
        self._written += 1

    def evict(self) -> None:
        """Remove the least recently used entries until the cache fits ``max_bytes``.

        Temporary files that a writer left behind are removed too.
        """
        if not self._is_usable():
            return
        for path in self.directory.glob(f"??/*{SUFFIX}.*"):
            if time.time() - _modified(path) > STALE_TEMPORARY_SECONDS:
                _remove(path)
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        excess = sum(entry.size for entry in entries) - self.max_bytes
        for entry in entries:
            if excess <= 0:
                break
            _remove(self._path(entry.key))
            excess -= entry.size

    def entries(self) -> list[Entry]:
        """List the entries on disk, without reading their code."""
        entries: list[Entry] = []
        for path in self.directory.glob(f"??/*{SUFFIX}"):
            try:
                status = path.stat()
            except OSError:  # another process has removed it
                continue
            used = max(status.st_atime, status.st_mtime)
            key = path.parent.name + path.name.removesuffix(SUFFIX)
            entries.append(Entry(key, status.st_size, used))
        return entries

    def clear(self) -> None:
        """Remove all entries, on disk and in memory."""
        self.clear_memory()
        for entry in self.entries():
            _remove(self._path(entry.key))

    def is_empty(self) -> bool:
        """Return whether the cache has no entry, on disk or in memory."""
        return not self._memory and not any(self.directory.glob(f"*/*{SUFFIX}"))

    def clear_memory(self) -> None:
        """Forget the code that is in memory because it could not be written."""
        self._memory.clear()

    def _path(self, key: str) -> Path:
        """Return the file of ``key``: in a folder named by its first two digits."""
        return self.directory / key[:2] / (key[2:] + SUFFIX)

    def _is_usable(self) -> bool:
        """Return whether the directory can be used; the first call finds out.

        That call creates the directory, and warns if it cannot be used.
        """
        if self._usable is None:
            with self._lock:
                if self._usable is None:
                    problem = _prepare(self.directory)
                    self._usable = problem is None
                    if problem is not None:
                        self._warn(problem)
        return self._usable

    def _give_up(self, problem: str) -> None:
        """Keep all later code in memory only, and warn once of the ``problem``."""
        with self._lock:
            was_usable, self._usable = self._usable, False
        if was_usable:
            self._warn(problem)

    def _warn(self, problem: str) -> None:
        """Warn that code is kept in memory only, because of ``problem``."""
        warnings.warn(
            "arrayfn keeps compiled kernels in memory only, because the cache "
            f"directory {self.directory} cannot be used: {problem}. Set "
            f"{DIRECTORY_VARIABLE} to a directory of your own that only you can write.",
            RuntimeWarning,
            stacklevel=2,
        )


_caches: dict[Path, ObjectCache] = {}


@forgets
def _clear_memories() -> None:
    """Forget the code that caches hold in memory; ``clear_caches`` calls this."""
    for cache in list(_caches.values()):
        cache.clear_memory()


def _prepare(directory: Path) -> str | None:
    """Create the directory if needed; return why it cannot be used, or None.

    It must belong to this user, and no other user may write to it or replace it.
    """
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
    return _exposed_by(directory.resolve())


def _exposed_by(directory: Path) -> str | None:
    """Return which folder above ``directory`` lets other users replace it, or None.

    The result is a sentence. A folder's owner and those who can write to the folder may
    rename its contents. In a sticky folder, such as /tmp, users may rename only their
    own files.
    """
    for folder in directory.parents:
        status = folder.stat()
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid not in (0, os.geteuid()):
            return f"{folder} around it belongs to user {status.st_uid}"
        shared = mode & stat.S_IWOTH or (
            mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
        )
        if shared and not mode & stat.S_ISVTX:
            return (
                f"other users can write to {folder} around it (mode {mode:o}; "
                "`chmod go-w` repairs that)"
            )
    return None


def _is_private_group(number: int) -> bool:
    """Return whether this user is the only member of the group with id ``number``.

    It must be the user's primary group and have the user's name, as many systems make
    one for each user.
    """
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    is_users = user.pw_gid == number and group.gr_name == user.pw_name
    return is_users and set(group.gr_mem) <= {user.pw_name}


def _read_private(path: Path) -> bytes:
    """Read a plain file that only this user can write.

    Raises OSError if another user owns the file or its folder or can write to them, or
    if the file is a link, is not plain, or is too large.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags), "rb") as file:
        own = os.fstat(file.fileno())
        for status in (own, path.parent.stat()):
            writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if status.st_uid != os.geteuid() or writable:
                raise PermissionError(f"{path} can be written by another user")
        if not stat.S_ISREG(own.st_mode):
            raise OSError(f"{path} is not a plain file")
        if own.st_size > MAX_ENTRY_BYTES:
            raise OSError(f"{path} has {own.st_size:,} bytes")
        # One byte more: a file that has grown meanwhile has a wrong length.
        return file.read(own.st_size + 1)


def _modified(path: Path) -> float:
    """Return when a file was last changed; the current time if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that other processes see all of ``content`` or nothing.

    A temporary file in the same folder is written and then renamed.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        _remove(Path(temporary))
        raise


def _remove(path: Path) -> None:
    """Remove a file; if that fails, only log the error."""
    try:
        path.unlink()
    except OSError as error:
        LOGGER.debug("cannot remove %s: %s", path, error)


def _pack(key: str, code: bytes) -> bytes:
    """Return the bytes of a cache file: magic, key, length, SHA-256 of code, code."""
    import hashlib

    length = len(code).to_bytes(8, "little")
    digest = hashlib.sha256(code).digest()
    return MAGIC + key.encode("ascii") + length + digest + code


def _unpack(key: str, entry: bytes) -> bytes | None:
    """Return the code in the bytes of a cache file; None if they are not intact.

    They are intact if packing the code under ``key`` gives the same bytes.
    """
    code = entry[HEADER_BYTES:]
    return code if _pack(key, code) == entry else None
