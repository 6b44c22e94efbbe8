"""The disk cache of object code: what it returns, and what it survives."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from arrayfn.backends import object_cache
from arrayfn.backends.object_cache import (
    ObjectCache,
    content_key,
    default_directory,
)

KEY = content_key("kernel")
CODE = bytes(range(256)) * 8


def entry_of(directory: Path, key: str = KEY) -> Path:
    return directory / key[:2] / f"{key[2:]}.o"


def put_twice(cache: ObjectCache) -> None:
    cache.put(KEY, CODE)
    cache.put(KEY[::-1], CODE)
    cache.evict()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def stored(directory: Path) -> Path:
    ObjectCache(directory).put(KEY, CODE)
    return entry_of(directory)


def test_an_entry_is_found_by_another_cache_of_the_same_directory(directory, stored):
    assert ObjectCache(directory).get(KEY) == CODE


def test_a_key_that_was_never_stored_is_none(directory):
    assert ObjectCache(directory).get(KEY) is None


def test_compile_is_called_only_on_a_miss(directory):
    calls = []

    def compile() -> bytes:
        calls.append(1)
        return CODE

    assert ObjectCache(directory).get_or_compile(KEY, compile) == CODE
    assert ObjectCache(directory).get_or_compile(KEY, compile) == CODE
    assert len(calls) == 1


def test_keys_tell_apart_where_one_part_ends_and_the_next_begins():
    assert content_key("ab", "c") != content_key("a", "bc")
    assert len(content_key("ab")) == 64


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: b"",
        lambda entry: entry[:20],
        lambda entry: entry[:-1],
        lambda entry: entry + b"x",
        lambda entry: entry[:-1] + bytes([entry[-1] ^ 1]),
        lambda entry: b"arrayfn0" + entry[8:],
    ],
    ids=["empty", "header cut", "cut", "longer", "bit flipped", "other format"],
)
def test_a_damaged_entry_is_logged_and_compiled_again(
    directory, stored, damage, caplog
):
    stored.write_bytes(damage(stored.read_bytes()))
    with caplog.at_level(logging.WARNING):
        code = ObjectCache(directory).get_or_compile(KEY, lambda: CODE[::-1])
    assert code == CODE[::-1]
    assert f"{stored} is damaged" in caplog.text
    assert ObjectCache(directory).get(KEY) == CODE[::-1]


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_directory_that_others_can_write_is_not_used(directory, stored, mode):
    directory.chmod(mode)
    cache = ObjectCache(directory)
    with pytest.warns(RuntimeWarning, match="ARRAYFN_CACHE_DIR") as caught:
        assert cache.get(KEY) is None
    assert f"mode {mode:o}" in str(caught[0].message)
    assert str(directory) in str(caught[0].message)


def test_an_entry_that_others_can_write_is_not_loaded(directory, stored, caplog):
    stored.chmod(0o666)
    assert ObjectCache(directory).get(KEY) is None
    assert "can be written by another user" in caplog.text


def test_an_entry_in_a_folder_that_others_can_write_is_not_loaded(directory, stored):
    stored.parent.chmod(0o777)
    assert ObjectCache(directory).get(KEY) is None


def test_a_symbolic_link_is_not_followed(directory, stored, tmp_path):
    elsewhere = tmp_path / "elsewhere.o"
    stored.rename(elsewhere)
    stored.symlink_to(elsewhere)
    assert ObjectCache(directory).get(KEY) is None


def test_an_entry_of_another_key_is_compiled_again(directory, stored):
    other = content_key("another")
    ObjectCache(directory).put(other, CODE[::-1])
    one, two = stored.read_bytes(), entry_of(directory, other).read_bytes()
    stored.write_bytes(two)
    entry_of(directory, other).write_bytes(one)
    cache = ObjectCache(directory)
    assert cache.get_or_compile(KEY, lambda: CODE) == CODE
    assert cache.get_or_compile(other, lambda: CODE[::-1]) == CODE[::-1]
    assert cache.refused == 2
    again = ObjectCache(directory)
    assert (again.get(KEY), again.get(other)) == (CODE, CODE[::-1])
    assert again.refused == 0


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


def sparse(path: Path) -> None:
    path.touch(mode=0o600)
    os.truncate(path, 1 << 38)


@pytest.mark.parametrize(
    "instead",
    [
        lambda path: os.mkfifo(path, 0o600),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.mkdir(mode=0o700),
        listen,
        sparse,
    ],
    ids=["fifo", "device", "folder", "socket", "huge"],
)
def test_what_is_no_file_is_not_waited_for(directory, stored, instead, monkeypatch):
    stored.unlink()
    monkeypatch.chdir(stored.parent)
    instead(Path(stored.name))
    cache = ObjectCache(directory)
    signal.alarm(10)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cache.get_or_compile(KEY, lambda: CODE) == CODE
            assert cache.get(KEY) == CODE
    finally:
        signal.alarm(0)
    assert cache.refused >= 1


@pytest.mark.parametrize(
    ("mode", "used"), [(0o777, False), (0o1777, True), (0o755, True), (0o757, False)]
)
def test_folders_around_the_directory_are_not_writable_by_others(directory, mode, used):
    around = directory / "around"
    (around / "between").mkdir(parents=True)
    around.chmod(mode)
    cache = ObjectCache(around / "between" / "cache")
    if used:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.put(KEY, CODE)
    else:
        with pytest.warns(RuntimeWarning, match=rf"can write to {around} around it"):
            cache.put(KEY, CODE)
    assert entry_of(around / "between" / "cache").exists() == used
    assert cache.get(KEY) == CODE


def test_a_folder_around_it_that_a_group_can_write(directory, monkeypatch):
    around = directory / "around"
    around.mkdir(parents=True)
    around.chmod(0o775)
    monkeypatch.setattr(object_cache, "_is_private_group", lambda number: False)
    with pytest.warns(RuntimeWarning, match=r"mode 775"):
        ObjectCache(around / "cache").put(KEY, CODE)
    monkeypatch.setattr(object_cache, "_is_private_group", lambda number: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ObjectCache(around / "cache").put(KEY, CODE)


def test_a_directory_of_another_user_is_not_used(directory, stored, monkeypatch):
    uid = os.geteuid()
    monkeypatch.setattr(object_cache.os, "geteuid", lambda: uid + 1)
    with pytest.warns(RuntimeWarning, match=f"belongs to user {uid}"):
        assert ObjectCache(directory).get(KEY) is None


def test_without_a_directory_code_is_kept_in_memory_with_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = ObjectCache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="in memory only") as caught:
        put_twice(cache)
    assert len(caught) == 1
    assert cache.get(KEY) == CODE


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_keeps_code_in_memory(directory, error, monkeypatch):
    def replace(source: str, target: Path) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(object_cache.os, "replace", replace)
    cache = ObjectCache(directory)
    with pytest.warns(RuntimeWarning, match=os.strerror(error)) as caught:
        put_twice(cache)
    assert len(caught) == 1
    assert cache.get(KEY) == CODE
    assert [path for path in directory.rglob("*") if path.is_file()] == []


WRITER = """
import sys
from pathlib import Path
from arrayfn.backends.object_cache import ObjectCache, content_key
cache = ObjectCache(Path(sys.argv[1]))
print("started", flush=True)
for turn in range(int(sys.argv[2])):
    cache.put(content_key(str(turn % 7)), bytes([turn % 7]) * 300_000)
"""


def writer(directory: Path, turns: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory), str(turns)],
        stdout=subprocess.PIPE,
        text=True,
    )


def assert_whole(directory: Path) -> int:
    found = 0
    for number in range(7):
        code = ObjectCache(directory).get(content_key(str(number)))
        if code is not None:
            assert code == bytes([number]) * 300_000
            found += 1
    return found


def test_a_kill_during_a_write_leaves_only_whole_entries(directory):
    process = writer(directory, 1_000_000)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert_whole(directory)
    ObjectCache(directory).put(KEY, CODE)
    assert ObjectCache(directory).get(KEY) == CODE


def test_two_processes_writing_the_same_entries_lose_nothing(directory):
    processes = [writer(directory, 70) for _ in range(2)]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0]
    assert assert_whole(directory) == 7


def test_eviction_removes_what_was_used_longest_ago(directory):
    cache = ObjectCache(directory, max_bytes=3 * len(CODE))
    keys = [content_key(str(number)) for number in range(4)]
    for age, key in enumerate(keys):
        cache.put(key, CODE)
        used = time.time() - 1000 + age
        os.utime(entry_of(directory, key), (used, used))
    cache.evict()
    kept = [entry_of(directory, key).exists() for key in keys]
    assert kept == [False, False, True, True]


def test_eviction_removes_what_a_killed_writer_left(directory, stored):
    abandoned = stored.with_name(stored.name + ".abcd")
    abandoned.write_bytes(b"half")
    recent = stored.with_name(stored.name + ".efgh")
    recent.write_bytes(b"being written")
    long_ago = time.time() - 2 * object_cache.STALE_TEMPORARY_SECONDS
    os.utime(abandoned, (long_ago, long_ago))
    ObjectCache(directory).evict()
    assert (stored.exists(), abandoned.exists(), recent.exists()) == (True, False, True)


def test_the_directory_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("ARRAYFN_CACHE_DIR", raising=False)
    assert default_directory() == tmp_path / ".cache" / "arrayfn"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_directory() == Path("/xdg/arrayfn")
    monkeypatch.setenv("ARRAYFN_CACHE_DIR", "/own")
    assert default_directory() == Path("/own")


def test_a_new_directory_is_private(directory):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ObjectCache(directory).put(KEY, CODE)
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_cache_is_empty_until_something_is_kept(directory: Path) -> None:
    cache = ObjectCache(directory)
    assert cache.is_empty()
    cache.put(KEY, CODE)
    assert not cache.is_empty()
    assert not ObjectCache(directory).is_empty()
