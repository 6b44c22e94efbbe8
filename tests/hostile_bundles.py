"""Bundles that somebody broke: mutated by a seed, loaded, and what came of it.

    python -m tests.hostile_bundles --count 10000 --seed 1

A mutation changes bytes, tokens, fields of the JSON, headers of arrays or the set of
files, one to three times; hashes are made anew in three of four. ``af.load`` may then
give a function, or raise BundleError, and nothing else, within seconds and a bound of
memory, and it executes nothing of the files. Functions that load are called, with
``--call``, in a process of their own: results of any value, or an error of arrayfn's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.errors import ArrayfnError, BundleError
from arrayfn.primitives.table import TABLE

SECONDS: Final = 20
MEMORY: Final = 6 << 30  # bytes of address space beyond what the process has
CANARY: Final = "ARRAYFN_CANARY"
_RNG = np.random.default_rng(3)


# What is saved.


def _loss(p: Any, x: Any, *, scale: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        return anp.tanh(c + row @ p["w"] + p["b"][0]), c.sum()

    last, sums = lax.scan(step, anp.zeros(4), x)
    chosen = lax.cond(sums[1] > 0, lambda y: y, lambda y: _CAPTURED @ y, last)
    return scale * anp.sum(chosen) + nn.softmax(sums)[0]


def _sorted(x: Any, k: Any) -> Any:
    order = anp.argsort(x, axis=1)
    taken = anp.take_along_axis(x, order, axis=1)[:, ::-1]
    return {"rows": taken.at[k].add(1.5), "sums": anp.cumsum(x * _HALF, axis=0)}


def _solved(a: Any, b: Any) -> Any:
    def goes_on(state: Any) -> Any:
        return state[0] < 5

    def body(state: Any) -> Any:
        return state[0] + 1, anp.linalg.solve(a, state[1]) * 0.5

    count, y = lax.while_loop(goes_on, body, (0, b))
    return [y, (count, anp.fft.fft(y).real), y.astype("int32") % 7 | 1]


def _moved(x: Any, w: Any, at: Any) -> Any:
    part = lax.dynamic_slice(x, (at, 0, 1), (2, 3, 4))
    part = lax.dynamic_update_slice(x, part * 2, (0, at, 0))
    windows = lax.conv(part[None, 0:1], w, (1, 1), "SAME")
    best = anp.argmax(anp.where(part > 0, part, -anp.inf), axis=-1)
    padded = anp.pad(anp.concatenate([part, x[::-1]]), ((1, 0), (0, 2), (0, 0)))
    drawn = af.random.uniform(af.random.key(at), (3,))
    return windows, best, anp.var(padded, axis=(0, 2)), drawn, x[:, at, [0, 2, 1]]


def _mapped(state: Any, x: Any) -> Any:
    return state, anp.mean(anp.concatenate([x, x * state[0].mean["w"]]), axis=0)


_STATE: Final = af.optim.adam(1e-3).init({"w": np.ones(4)})
_CAPTURED: Final = _RNG.standard_normal((8, 8))[::2, ::2].T
_HALF: Final = _RNG.standard_normal((3, 5)).astype(np.float16)
_P: Final = {
    "w": _RNG.standard_normal((3, 4)),
    "b": [_RNG.standard_normal(4), None],
}
_X: Final = _RNG.standard_normal((5, 3))
_A: Final = np.eye(4) * 3 + _RNG.standard_normal((4, 4)) / 9


def originals(folder: Path) -> list[Path]:
    """Valid bundles in ``folder``.

    They are of control flow, libraries, indexing, constants, open sizes, signatures.
    """
    step = af.jit(af.value_and_grad(_loss), donate_argnums=0)
    saved = [
        step.lower(_P, _X, scale=2.0),
        af.jit(_sorted).lower(_X.T[:3] @ np.ones((5, 5)), np.int32(1)),
        af.jit(_solved).lower(_A, np.ones(4)),
        af.jit(_moved).lower(np.ones((3, 4, 6)), np.ones((2, 1, 3, 3)), np.int32(1)),
        af.jit(lambda x: x * 2 + 1).lower(np.ones(3, np.float32)),
        af.jit(_mapped).lower(_STATE, af.ShapeDtypeStruct((af.Dim("n"), 4), "f8")),
    ]
    several = [af.jit(anp.cumsum).lower(np.ones(n)) for n in (2, 3)]
    for number, lowered in enumerate([*saved, several]):
        af.save(lowered, folder / str(number), arrays={"state": _STATE})
    saved = [*saved, *several[:1]]
    return [folder / str(number) for number in range(len(saved))]


def rehash(folder: Path) -> None:
    """Write the hashes of what is in ``folder`` now."""
    lines: list[str] = []
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and not file.is_symlink() and name != "SHA256SUMS":
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            lines.append(f"{digest}  {name}\n")
    sums = folder / "SHA256SUMS"
    if sums.is_symlink() or not sums.exists() or sums.is_file():
        sums.unlink(missing_ok=True)
        sums.write_text("".join(lines), "utf-8")


# Mutations. Each takes a folder and a random generator.

_CODE: Final = f"__import__('os').environ.__setitem__('{CANARY}','1')"
_ENDS: Final = ("\r", "\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\0")
_WORDS: Final = (
    *("0", "-1", "1", "2", "7", "9223372036854775807", "99999999999999999999"),
    *("3000000000", "1e400", "nan", "-inf", "(1+2j)", "True", "None", "'\\x'", "''"),
    *(
        "f32",
        "bf16",
        "i8",
        "c128",
        "bool",
        "f",
        "program",
        "return",
        "{",
        "}",
        "(",
        ")",
    ),
    *("[", "]", ",", ":", "=", "~", "->", "F", "S(1)", "S(0,-8)", "constants", "()"),
    *("(1,)", "(0,1,2)", "callback='sin'", "'nan'", "a", "b", "x", "\uff41", "import"),
)
_VALUES: Final = (
    *(None, True, 0, -1, 1, 2**63, 10**30, 1.5, float("nan"), "", "cpu", "reference"),
    *("\r" + _CODE, [], {}, [0], {"tuple": [0]}, {"dict": {"a": 0}}, {"set": [0]}),
    *({"list": [{"list": [0]}]}, [[]], ["f32"], ["object"]),
)
_DTYPES: Final = (
    *("|O", "<M8[ns]", "<U4", "|S3", "<f16", ">f8", "|V8", "<f8", "<i4", "|b1"),
    *("<c8", "|u1", "f8", "<f80", "<m8", "|V0"),
)
_NAMES: Final = (
    *("import", "exec", "range", "f64", "begin", "\uff41", "\u03b1", "x\u0301"),
    *("a" * 5000, "__import__", "lambda", "inf", "a\u200bb", "a\u2028b"),
)
_SHAPES: Final = (
    *("(3000000000, 4000000)", "(4, 4)", "(-4, -4)", "()", "(0,)", "(2, 8)", "(1e9,)"),
    *("(" * 300 + "4", "(4, 4), " * 2, "(True, 16)", "(99999999999999999999,)"),
)
_TOKEN: Final = re.compile(r"[\w.+-]+|'[^']*'|\S")


def _bytes_of(folder: Path, r: random.Random) -> None:
    """Bits, bytes, holes, ends."""
    file = r.choice(_files(folder))
    content = bytearray(file.read_bytes())
    at = r.randrange(len(content) + 1)
    match r.randrange(6):
        case 0 if content:
            content[at % len(content)] ^= 1 << r.randrange(8)
        case 1:
            content[at:at] = r.randbytes(r.randrange(1, 9))
        case 2:
            del content[at : at + r.randrange(1, 200)]
        case 3:
            del content[at:]
        case 4:
            content += content[: r.randrange(1, 500)]
        case _:
            content[at:at] = r.choice(_ENDS).encode() + _CODE.encode()
    file.write_bytes(content)


def _token_of(folder: Path, r: random.Random) -> None:
    """A token of the Program becomes another, goes, or comes twice."""
    file = folder / "programs/0.txt"
    text = _text(file)
    tokens = list(_TOKEN.finditer(text))
    if not tokens:
        return
    one, other = r.choice(tokens), r.choice(tokens)
    new = r.choice(
        (other.group(), other.group(), r.choice(_WORDS), r.choice(list(TABLE)), "")
    )
    if r.random() < 0.1:
        new = f"{one.group()} {one.group()}"
    _write(file, text[: one.start()] + new + text[one.end() :])


def _number_of(folder: Path, r: random.Random) -> None:
    """A number of the Program becomes another, maybe wherever it stands."""
    file = folder / "programs/0.txt"
    text = _text(file)
    numbers = list(re.finditer(r"(?<=[\[(,=])-?\d+", text))
    if not numbers:
        return
    one = r.choice(numbers)
    new = r.choice(("0", "1", "2", "3", "5", "6", "64", "-1", "-2", "4000000000"))
    if r.random() < 0.3:
        _write(file, re.sub(rf"(?<=[\[(,=]){re.escape(one.group())}\b", new, text))
    else:
        _write(file, text[: one.start()] + new + text[one.end() :])


def _line_of(folder: Path, r: random.Random) -> None:
    """A line of the Program goes, moves, or comes twice."""
    file = folder / "programs/0.txt"
    lines = _text(file).splitlines(keepends=True)
    if not lines:
        return
    line = lines.pop(r.randrange(len(lines)))
    for _ in range(r.choice((0, 1, 1, 2))):
        lines.insert(r.randrange(len(lines) + 1), line)
    _write(file, "".join(lines))


def _comment_of(folder: Path, r: random.Random) -> None:
    """The place of an equation ends its line, and code follows."""
    file = folder / "programs/0.txt"
    text = _text(file)
    places = [m.end() for m in re.finditer(r"# [^\n]*(?=:\d+\n)", text)]
    if places:
        at = r.choice(places)
        end = r.choice(_ENDS)
        code = f"{end}{r.choice(('', '    ', '        '))}{_CODE}{r.choice(('', '#'))}"
        _write(file, text[:at] + code + text[at:])


def _name_of(folder: Path, r: random.Random) -> None:
    """A value or the Program is called something else, everywhere."""
    file = folder / "programs/0.txt"
    text = _text(file)
    names = re.findall(r"\b[a-z]\w*(?=: \w+\[)|(?<=program )\w+", text)
    if names:
        new = r.choice(_NAMES)
        _write(file, re.sub(rf"\b{re.escape(r.choice(names))}\b", new, text))


def _field_of(folder: Path, r: random.Random) -> None:
    """A field of the JSON, at any depth, becomes another, goes, or is new."""
    file = folder / "bundle.json"
    try:
        whole = json.loads(_text(file))
    except (ValueError, RecursionError):
        return
    places = list(_places(whole))
    if not places:
        return
    holder, key = r.choice(places)
    match r.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[r.choice(("new", "", "\0", "format ", "__class__"))] = holder[key]
        case 2:
            other, theirs = r.choice(places)
            holder[key] = json.loads(json.dumps(other[theirs]))
        case _:
            holder[key] = r.choice(_VALUES)
    _write(file, json.dumps(whole))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys: Any = ()
    if isinstance(value, dict):
        keys = value.keys()
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _header_of(folder: Path, r: random.Random) -> None:
    """The header of an array says something else."""
    arrays = sorted((folder / "constants").glob("*.npy"))
    arrays = [f for f in arrays if f.is_file() and not f.is_symlink()]
    if not arrays:
        return
    file = r.choice(arrays)
    content = file.read_bytes()
    head, data = content[:10], content[128:]
    shape = r.choice(_SHAPES)
    descr = repr(r.choice(_DTYPES))
    order = r.choice(("True", "False", "0", "None", f"[{_CODE}]"))
    extra = r.choice(("", "", "", "'new': 1, ", "\x00", "\r", f"'x': {_CODE}, "))
    header = (
        f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, {extra}}}"
    ).ljust(117)
    head = r.choice((head, head, head[:8] + r.randbytes(2), b"\x93NUMPY\x03\x00v\x00"))
    file.write_bytes(head + header.encode() + b"\n" + data)


def _set_of(folder: Path, r: random.Random) -> None:
    """Files that are missing, new, elsewhere, or no files."""
    file = r.choice([*_files(folder), folder / "SHA256SUMS"])
    outside = folder.parent / "outside"
    outside.write_text("program f() -> () {\n return\n}\n")
    match r.randrange(9):
        case 0:
            file.unlink()
        case 1:
            (folder / r.choice(("new.py", "..x", "constants/7.npy", "a b"))).write_text(
                _CODE
            )
        case 2:
            file.unlink()
            os.mkfifo(file)
        case 3:
            file.unlink()
            file.symlink_to(r.choice(("/dev/zero", "/etc/passwd", outside)))
        case 4:
            file.unlink()
            file.mkdir()
        case 5:
            with open(file, "r+b") as opened:
                opened.truncate(1 << r.choice((33, 41, 44)))
        case 6:
            held = folder / "constants"
            if held.is_dir() and not held.is_symlink():
                shutil.rmtree(held)
                held.symlink_to(r.choice(("/dev", "..", "/tmp")))
        case 7:
            sums = folder / "SHA256SUMS"
            if sums.is_file() and not sums.is_symlink():
                line = f"{'0' * 64}  {r.choice(('../outside', '/etc/passwd', 'x'))}\n"
                sums.write_text(sums.read_text("utf-8", "replace") + line)
        case _:
            other = r.choice(_files(folder) or [file])
            content = other.read_bytes()
            file.unlink(missing_ok=True)
            file.write_bytes(content)


_MUTATIONS: Final[tuple[Callable[[Path, random.Random], None], ...]] = (
    *(_bytes_of, _token_of, _token_of, _token_of, _number_of, _number_of, _line_of),
    *(_comment_of, _name_of, _field_of, _field_of, _header_of, _set_of),
)


def _files(folder: Path) -> list[Path]:
    """The plain files that are left, the hashes' apart, of a size to be read."""
    return [
        f
        for f in sorted(folder.rglob("*"))
        if f.is_file()
        and not f.is_symlink()
        and f.name != "SHA256SUMS"
        and f.stat().st_size < 1 << 24
    ] or [_anew(folder)]


def _anew(folder: Path) -> Path:
    file = folder / "left"
    file.write_bytes(b"")
    return file


def _text(file: Path) -> str:
    if not file.is_file() or file.is_symlink() or file.stat().st_size > 1 << 24:
        return ""
    return file.read_bytes().decode("utf-8", "replace")


def _write(file: Path, text: str) -> None:
    if file.is_file() and not file.is_symlink():
        file.write_bytes(text.encode("utf-8", "replace"))


def mutate(original: Path, folder: Path, seed: int) -> list[str]:
    """A mutated copy of ``original`` in ``folder``; the names of what was done."""
    r = random.Random(seed)
    shutil.copytree(original, folder)
    done: list[str] = []
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        mutation = r.choice(_MUTATIONS)
        with suppress(OSError):  # another mutation has left nothing of the kind
            mutation(folder, r)
        done.append(mutation.__name__)
    if r.random() < 0.4:
        # Kernels of another machine are not compared.
        file = folder / "bundle.json"
        _write(file, re.sub(r'"machine": \[[^]]*\]', '"machine": []', _text(file)))
        done.append("another machine")
    if r.random() < 0.9:
        small = all(
            f.stat().st_size < 1 << 24 for f in folder.rglob("*") if f.is_file()
        )
        if small:
            with suppress(OSError):
                rehash(folder)
            done.append("rehash")
    return done


# Loading them.


@dataclass
class Report:
    """What came of ``count`` bundles; ``faults`` are what must not be."""

    count: int = 0
    loaded: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    slowest: float = 0.0

    def __str__(self) -> str:
        faults = f"{len(self.faults)} faults; the slowest took {self.slowest:.2f} s"
        total = self.refused.total()
        head = f"{self.count} bundles: {self.loaded} load, {total} are refused, "
        lines = [head + faults]
        lines += [f"  {n:6} {what}" for what, n in self.refused.most_common(12)]
        return "\n".join([*lines, *self.faults])


def run(count: int, seed: int, *, call: bool = False) -> Report:
    """Load ``count`` mutated bundles, by seeds from ``seed`` on."""
    report = Report()
    os.environ.pop(CANARY, None)
    with tempfile.TemporaryDirectory() as name, _watched():
        home = Path(name)
        valid = originals(home / "valid")
        for number in range(seed, seed + count):
            folder = home / "mutated" / str(number)
            folder.parent.mkdir(exist_ok=True)
            done = mutate(valid[number % len(valid)], folder, number)
            began = time.perf_counter()
            with _limits():
                _load(report, folder, f"seed {number} ({', '.join(done)})", call=call)
            report.slowest = max(report.slowest, time.perf_counter() - began)
            shutil.rmtree(folder)
    return report


def _load(report: Report, folder: Path, label: str, *, call: bool) -> None:
    report.count += 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function = af.load(folder)
        report.loaded += 1
        if call:
            _call(report, function, label)
    except BundleError as error:
        report.refused[_kind(str(error), folder)] += 1
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = "".join(traceback.format_exception(error)[-3:])
        report.faults.append(f"{label}: {type(error).__name__}: {error}\n{where}")
    if os.environ.pop(CANARY, None) is not None:
        report.faults.append(f"{label}: text of the bundle was executed")


def _kind(message: str, folder: Path) -> str:
    """A message without what is of one bundle."""
    text = re.sub(r"'[^']*'|\d+", "_", message.replace(str(folder), ""))
    return text.split("\n")[0][:60]


def _call(report: Report, function: Any, label: str) -> None:
    """Call it in a child: a crash there is a fault."""
    child = os.fork()
    if child == 0:
        try:
            _limit_memory()
            signal.alarm(SECONDS)
            for one in function.compiled:
                zeros = [np.zeros(t.shape, t.dtype) for t in one.compiled.input_types]
                args, kwargs = af.tree.unflatten(one.in_tree, zeros)
                function(*args, **kwargs)
        except (ArrayfnError, MemoryError, np.linalg.LinAlgError):
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  # the child says what it was
            sys.stderr.write(f"{label}: calling: {type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status and not (
        os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    ):
        report.faults.append(f"{label}: calling it ended with status {status}")


@contextmanager
def _limits() -> Generator[None, None, None]:
    """An alarm, and a bound of the address space."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    _limit_memory()
    previous = signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, old)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    have = pages * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (have + MEMORY, hard))


class _LateError(BaseException):
    """A load took longer than it may."""


def _late(*_: Any) -> None:
    raise _LateError(f"took more than {SECONDS} s")


@contextmanager
def _watched() -> Generator[None, None, None]:
    """Let ``exec``, ``eval``, new processes and sockets be faults meanwhile."""
    _WATCHES.append(True)
    if len(_WATCHES) == 1 and not _HOOKED:
        sys.addaudithook(_audit)
        _HOOKED.append(True)
    try:
        yield
    finally:
        _WATCHES.pop()


_WATCHES: Final[list[bool]] = []
_HOOKED: Final[list[bool]] = []
_FORBIDDEN: Final = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")


def _audit(event: str, arguments: Any) -> None:
    if not _WATCHES:
        return
    if event.startswith(_FORBIDDEN):
        raise RuntimeError(f"{event} while a bundle was loaded")
    if event == "exec":
        name = str(getattr(arguments[0], "co_filename", ""))
        if name.startswith("<arrayfn") or CANARY in str(
            getattr(arguments[0], "co_consts", "")
        ):
            raise RuntimeError(f"{name} was executed while a bundle was loaded")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--call", action="store_true", help="call what loads")
    options = parser.parse_args()
    report = run(options.count, options.seed, call=options.call)
    sys.stdout.write(f"{report}\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
