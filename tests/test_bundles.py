"""Saved functions: what is written, what comes back, and what broken files say."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.backends.cpu import written_kernels
from arrayfn.backends.native.engine import ENGINE
from arrayfn.backends.numba import target
from arrayfn.backends.numba.dialect import UntypedKernelError
from arrayfn.dtypes import canonical
from arrayfn.errors import ArgumentError, BundleError
from tests import hostile_bundles
from tests.hostile_bundles import rehash
from tests.processes import python_path

RNG = np.random.default_rng(6)
WEIGHTS = {"w": RNG.standard_normal((3, 4)), "b": [RNG.standard_normal(4), None]}
X = RNG.standard_normal((5, 3))
CAPTURED = RNG.standard_normal((8, 8))[::2, ::2].T  # strided


@af.custom_jvp
def squashed(x: Any) -> Any:
    return anp.tanh(x)


squashed.defjvps(lambda t, y, x: t * (1 - y * y))


def loss(p: Any, x: Any, *, scale: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        return squashed(c + row @ p["w"] + p["b"][0]), c.sum()

    last, sums = lax.scan(step, anp.zeros(4), x)
    chosen = lax.cond(sums[1] > 0, lambda y: y, lambda y: CAPTURED @ y, last)
    return scale * anp.sum(chosen) + nn.softmax(sums)[0]


def lowered() -> Any:
    step = af.jit(af.value_and_grad(loss), donate_argnums=0)
    return step.lower(WEIGHTS, X, scale=2.0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "step"
    af.save(lowered(), folder)
    return folder


def test_a_bundle_knows_the_sources_that_made_its_kernels(saved: Path) -> None:
    described = json.loads((saved / "bundle.json").read_text())
    assert described["machine"][0] != hashlib.sha256(b"").hexdigest()


def test_a_saved_function_gives_the_same_bits(tmp_path: Path) -> None:
    af.save(lowered(), tmp_path / "step")
    value, slope = af.load(tmp_path / "step")(WEIGHTS, X, scale=2.0)
    have, want = (value, slope), lowered().compile()(WEIGHTS, X, scale=2.0)
    assert af.tree.structure(have) == af.tree.structure(want)
    for one, other in zip(af.tree.leaves(have), af.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(one, other)
    again = af.load(tmp_path / "step", device="reference")(WEIGHTS, X, scale=2.0)
    np.testing.assert_allclose(again[0], value, rtol=1e-13)


def test_another_process_loads_it(tmp_path: Path) -> None:
    af.save(lowered(), tmp_path / "step")
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "p.npz", w=WEIGHTS["w"], b=WEIGHTS["b"][0])
    code = (
        "import arrayfn as af, numpy as np\n"
        "p = np.load('p.npz'); x = np.load('x.npy')\n"
        "f = af.load('step')\n"
        "value, _ = f({'w': p['w'], 'b': [p['b'], None]}, x, scale=2.0)\n"
        "print(value.item().hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": python_path(), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    value, _ = lowered().compile()(WEIGHTS, X, scale=2.0)
    assert done.stdout.strip() == value.item().hex()


def test_a_process_after_the_first_neither_traces_nor_compiles(tmp_path: Path) -> None:
    """A training step with its optimizer's state, for five sizes."""
    state = af.optim.adam(1e-2).init({"w": CAPTURED[:3]})

    def step(p: Any, state: Any, x: Any) -> Any:
        slopes = af.grad(lambda p: anp.mean(anp.tanh(x @ p["w"]) ** 2))(p)
        updates, state = af.optim.adam(1e-2).update(slopes, state, p)
        return af.optim.apply_updates(p, updates), state

    rows = af.ShapeDtypeStruct((af.Dim("n"), 3), np.float64)
    p = {"w": CAPTURED[:3]}
    arrays = {"p": p, "state": state}
    af.save(af.jit(step).lower(p, state, rows), tmp_path / "step", arrays=arrays)
    code = (
        "import sys, time, arrayfn as af, numpy as np\n"
        "from arrayfn import optim\n"  # imports are not timed
        "from arrayfn.backends.cpu import executable\n"
        "from arrayfn.backends.object_cache import COUNTS\n"
        "from arrayfn.compilation import bundles, compiling\n"
        "begin = time.process_time()\n"
        "f = af.load('step')\n"
        "for n in (1, 2, 7, 40, 300):\n"
        "    p, state = f(f.arrays['p'], f.arrays['state'], np.ones((n, 3)))\n"
        "print(time.process_time() - begin)\n"
        "print(COUNTS['misses'], 'numba' in sys.modules, type(state[0]).__name__)"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={"PYTHONPATH": python_path(), "PATH": "", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
    seconds, rest = done.stdout.splitlines()
    assert rest == "0 False MomentState"
    assert float(seconds) < 0.15  # 0.03 on a machine that does nothing else


def test_the_files_can_be_read(tmp_path: Path) -> None:
    af.save(lowered(), tmp_path)
    assert (tmp_path / "programs/0.txt").read_text().startswith("program loss")
    found = json.loads((tmp_path / "bundle.json").read_text())
    assert found["device"] == "cpu"
    (found,) = found["signatures"]
    assert found["donated"] == [0, 1]
    assert found["arguments"]["tuple"][1] == {"dict": {"scale": 3}}
    np.testing.assert_array_equal(np.load(tmp_path / "constants/0.npy"), CAPTURED)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


TOP = ("format", "device", "machine", "arrays", "signatures")


def changed(name: str, value: Any) -> Any:
    def change(folder: Path) -> None:
        file = folder / "bundle.json"
        found = json.loads(file.read_text())
        (found if name in TOP else found["signatures"][0])[name] = value
        file.write_text(json.dumps(found))
        rehash(folder)

    return change


def written(name: str, old: str, new: str) -> Any:
    """A change of a file whose hash is made anew."""

    def change(folder: Path) -> None:
        edit(folder / name, old, new)
        rehash(folder)

    return change


def array(content: Any) -> Any:
    """Another first constant, whose hash is made anew."""

    def change(folder: Path) -> None:
        file = folder / "constants/0.npy"
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            np.save(file, content, allow_pickle=content.dtype == object)
        rehash(folder)

    return change


def fifo(folder: Path) -> None:
    (folder / "programs/0.txt").unlink()
    os.mkfifo(folder / "programs/0.txt")


def link(folder: Path) -> None:
    shutil.move(folder / "constants", folder.parent / "elsewhere")
    (folder / "constants").symlink_to(folder.parent / "elsewhere")


def with_layout(folder: Path) -> None:
    """Say of a value that it lies as no value does that is computed."""
    file = folder / "programs/0.txt"
    pattern = r"(?<=\n  )(\w+: f64\[\d+(?:,\d+)*\])(?= = mul\()"
    axes = re.search(pattern, file.read_text())
    assert axes is not None
    steps = ",".join(["100000"] * (axes[1].count(",") + 1))
    file.write_text(re.sub(pattern, rf"\1 S({steps})", file.read_text(), count=1))
    rehash(folder)


def sparse(folder: Path) -> None:
    with open(folder / "constants/0.npy", "r+b") as file:
        file.truncate(1 << 42)


HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': SHAPE, }"


def header(shape: str) -> bytes:
    text = HEADER.replace("SHAPE", shape).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00v\x00" + text.encode() + bytes(128)


DEEP: Any = 0
for _ in range(100):
    DEEP = {"list": [DEEP]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda f: edit(f / "programs/0.txt", "tanh", "sinh"),
            "programs/0.txt was changed",
        ),
        (lambda f: edit(f / "bundle.json", "cpu", "cuda"), "bundle.json was changed"),
        (lambda f: edit(f / "bundle.json", '"results": {', '"results":{'), "changed"),
        (
            lambda f: (f / "programs/0.txt").unlink(),
            "does not have the files .* programs/0.txt",
        ),
        (lambda f: (f / "SHA256SUMS").unlink(), "SHA256SUMS cannot be read: No such"),
        (
            lambda f: (f / "new.py").write_text("pass"),
            "does not have the files .* new.py",
        ),
        (
            lambda f: (f / "constants/x").symlink_to("."),
            "not have the files .* constants/x",
        ),
        (lambda f: edit(f / "SHA256SUMS", "  ", "   "), "is not a list of hashes"),
        (fifo, "programs/0.txt is not a plain file"),
        (link, "does not have the files"),
        (sparse, "more than can be read"),
        (written("bundle.json", "{", "{{"), "is not JSON"),
        (written("bundle.json", "{", "[" * 10**5), "is not JSON"),
        (changed("format", 1), "no bundle of format 4"),
        (changed("new", 1), "has 'new', which save does not write"),
        (changed("device", "tpu"), "there is no device 'tpu'"),
        (changed("kernels", []), "no 'kernels'"),
        (changed("kernels", {}), "kernels made of the Program are not those"),
        (changed("donated", [-1]), "numbers of arguments"),
        (changed("options", {"deterministic": 3}), "options that jit does not have"),
        (changed("arguments", {"tuple": [{"tuple": [0]}, None]}), "no arguments"),
        (
            changed("arguments", {"tuple": [{"tuple": [0]}, {"dict": {}}]}),
            "numbers of arguments",
        ),
        (changed("results", {"set": [0]}), "no structure of arrays"),
        (changed("results", DEEP), "no structure of arrays"),
        (
            written("programs/0.txt", "tanh(", "__import__("),
            "is not a Program: .*__import__",
        ),
        (written("programs/0.txt", "tanh(", "t\uff41nh("), "not the normal form"),
        (
            written("programs/0.txt", "5,3]", "5,3000000000000000000]"),
            "no memory can hold",
        ),
        (written("programs/0.txt", "(x)", "('a\\x')"), "is not a Program"),
        (
            written("programs/0.txt", "] F", "] S(1,1000000)"),
            "no constant lies in memory",
        ),
        (with_layout, "is not a Program: mul gives"),
        (
            lambda f: np.save(f / "constants/0.npy", CAPTURED + 1),
            "0.npy was changed",
        ),
        (array(np.array([{}], object)), "has elements of [|]O, not of 'f64'"),
        (array(np.zeros((4, 4), "M8[s]")), "is not an array"),
        (array(np.zeros((4, 4), np.longdouble)), "has elements of <f16"),
        (array(np.zeros((4, 3))), r"program has f64\[4,4\]"),
        (array(b""), "is not an array"),
        (array(header("(3000000000, 4000000)")), "has 128 bytes of elements"),
        (array(header("(4, 4")), "is not an array"),
        (array(header('(4, """')), "is not an array"),
    ],
)
def test_a_broken_bundle_says_what_is_wrong(
    change: Any, text: str, saved: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path / "step")
    change(tmp_path / "step")
    with pytest.raises(BundleError, match=text):
        af.load(tmp_path / "step")


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_the_place_of_an_equation_never_ends_its_line(end: str, tmp_path: Path) -> None:
    plain = "def f(x):\n    return x * 3 + 1\n"
    name = f"model{end}import os #.py"
    names: dict[str, Any] = {}
    exec(compile(plain, name, "exec"), names)
    made = af.jit(names["f"]).lower(X)
    (kernel,) = made.kernels
    assert end not in kernel.source
    assert kernel.source.splitlines() == kernel.source.split("\n")[:-1]
    af.save(made, tmp_path / "f")
    np.testing.assert_array_equal(af.load(tmp_path / "f")(X), X * 3 + 1)
    written("programs/0.txt", "# model", f"# model{end}import os")(tmp_path / "f")
    with pytest.raises(BundleError, match="a control character in"):
        af.load(tmp_path / "f")


def test_a_kernel_of_a_loaded_function_is_never_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    af.save(af.jit(lambda x: anp.sinh(x * 3.5) - 1).lower(X), tmp_path / "f")

    def refuse(*_: Any) -> Any:
        raise UntypedKernelError("not known")

    monkeypatch.setattr(target, "kernel_types", refuse)
    monkeypatch.setenv("ARRAYFN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(ENGINE, "kernel", lambda key: None)
    monkeypatch.setattr(written_kernels, "executed_function", pytest.fail)
    with pytest.raises(
        BundleError, match=r"kernel \w+_0 cannot be compiled: not known"
    ):
        af.load(tmp_path / "f")


def test_names_of_a_bundle_are_no_names_in_kernels(tmp_path: Path) -> None:
    af.save(af.jit(lambda secret: secret * 2.0).lower(X), tmp_path / "f")
    assert "secret" in (tmp_path / "f/programs/0.txt").read_text()
    loaded = af.load(tmp_path / "f")
    assert "secret" not in "".join(
        k.source for k in loaded.compiled[0].compiled.kernels
    )


def test_a_bundle_calls_no_function_of_the_process(tmp_path: Path) -> None:
    af.save(af.jit(anp.sin).lower(X), tmp_path / "f")
    call = "= sin(x) {callback='sin'}"
    written("programs/0.txt", "= sin(x)", call)(tmp_path / "f")
    with pytest.raises(BundleError, match="is not a Program"):
        af.load(tmp_path / "f")


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "bool", "int8"])
def test_constants_come_back_as_they_lay(
    order: Any, dtype: str, tmp_path: Path
) -> None:
    values = RNG.standard_normal((2, 3, 4)) * 5
    kept = values.astype(canonical(dtype)).transpose(order)
    function = lambda x: anp.where(x > 0, kept, kept[::-1])  # noqa: E731
    x = RNG.standard_normal(kept.shape)
    af.save(af.jit(function).lower(x), tmp_path / "f")
    result = af.load(tmp_path / "f")(x)
    assert result.dtype == kept.dtype
    np.testing.assert_array_equal(result, np.where(x > 0, kept, kept[::-1]))


def test_hashes_are_those_of_sha256sum(tmp_path: Path) -> None:
    af.save(lowered(), tmp_path)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert done.stdout.count(b": OK") == 3


def test_mutated_bundles_load_or_are_refused() -> None:
    report = hostile_bundles.run(500, 20_000, call=True)
    assert report.faults == []
    assert report.loaded > 20
    assert report.refused.total() > 300


class Pair(NamedTuple):
    x: Any
    y: Any


@af.tree.register_dataclass
@dataclass
class Scaled:
    values: Any
    name: str = af.tree.static(default="a")


@af.tree.register_node
class Interval:
    def __init__(self, low: Any, high: Any, closed: Any = (True, "both")) -> None:
        self.low, self.high, self.closed = low, high, closed

    def tree_flatten(self) -> Any:
        return (self.low, self.high), self.closed

    @classmethod
    def tree_unflatten(cls, closed: Any, children: Any) -> Any:
        return cls(*children, closed)


@pytest.mark.parametrize(
    "value",
    [
        Pair(X, {"k": 2 * X}),
        Scaled(X, "weights"),
        Interval(X, X + 1, (False, None, np.dtype("f4"), 2.5)),
        OrderedDict(b=X, a=X),
        {1: X, (2, "b"): [X]},
        af.random.key(3),
        af.optim.adam(1e-3).init({"w": X}),
        af.sparse.COO((X[0], ([0, 1, 2], [2, 1, 0])), (3, 3)),
    ],
)
def test_trees_of_other_classes_come_back(value: Any, tmp_path: Path) -> None:
    function = af.jit(lambda tree, x: (tree, x + 1))
    af.save(function.lower(value, X), tmp_path / "f", arrays={"value": value})
    loaded = af.load(tmp_path / "f")
    have, _ = loaded(value, X)
    for again in (have, loaded.arrays["value"]):
        assert af.tree.structure(again) == af.tree.structure(value)
        for one, other in zip(
            af.tree.leaves(again), af.tree.leaves(value), strict=True
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            "Scaled",
            "Sealed",
            "has a Sealed of the module .* which this process has not",
        ),
        ("Scaled", "Interval", "describes no structure"),
        ("tests.test_bundles:Scaled", "os:PathLike", "has a PathLike of the module os"),
        ('"weights"', '{"code": 1}', "describes no static values"),
    ],
)
def test_a_bundle_chooses_no_class_that_is_not_registered(
    old: str, new: str, text: str, tmp_path: Path
) -> None:
    lowered = af.jit(lambda s: s.values + 1).lower(Scaled(X, "weights"))
    af.save(lowered, tmp_path / "f")
    written("bundle.json", old, new)(tmp_path / "f")
    with pytest.raises(BundleError, match=text):
        af.load(tmp_path / "f")


def test_named_tuples_are_found_without_running_code(tmp_path: Path) -> None:
    af.save(af.jit(lambda p: p.x + p.y).lower(Pair(X, X)), tmp_path / "f")
    named = '"tests.test_bundles:Pair"'
    written("bundle.json", named, '"tests.test_bundles:Other"')(tmp_path / "f")
    with pytest.raises(BundleError, match="Other with fields x, y of the module tests"):
        af.load(tmp_path / "f")


def test_signatures_of_one_function(tmp_path: Path) -> None:
    weights = RNG.standard_normal((3, 4)).astype("f4")
    function = af.jit(lambda x, **more: x @ weights + more.get("b", 0))
    x = RNG.standard_normal((6, 3)).astype("f4")
    b = np.ones(4, "f4")
    lowered = [function.lower(x[:n]) for n in (1, 2, 5)] + [function.lower(x, b=b)]
    af.save(lowered, tmp_path / "f")
    assert len(list((tmp_path / "f/constants").iterdir())) == 1
    loaded = af.load(tmp_path / "f")
    for n in (1, 2, 5):
        np.testing.assert_array_equal(loaded(x[:n]), function(x[:n]))
    np.testing.assert_array_equal(loaded(x, b=b), function(x, b=b))
    with pytest.raises(
        ArgumentError, match=r"takes f32\[3,3\]; there are .*f32\[5,3\]"
    ):
        loaded(x[:3])
    assert loaded.signatures[0].endswith("(f32[1,3]) -> (f32[1,4])")


def test_arguments_of_another_layout_are_copied(tmp_path: Path) -> None:
    for x in (X, X.T.copy().T):
        af.save(af.jit(lambda x: x[::-1] * 2).lower(x), tmp_path / str(x.strides))
        loaded = af.load(tmp_path / str(x.strides))
        for given in (X, X.T.copy().T, np.repeat(X, 2, axis=1)[:, ::2]):
            np.testing.assert_array_equal(loaded(given), X[::-1] * 2)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    def refused(f: Any, *args: Any, text: str, **options: Any) -> None:
        with pytest.raises(ArgumentError, match=text):
            af.save(af.jit(f, **options).lower(*args), tmp_path / "new")

    x = np.ones(3)
    shape = af.ShapeDtypeStruct((3,), np.float64)
    partial = af.tree_util.Partial(np.sin)
    refused(lambda f, x: f(x), partial, x, text="Partial .* has a static ufunc")
    with pytest.raises(ArgumentError, match="lowered for cpu, reference"):
        af.save(
            [af.jit(anp.sin, device=d).lower(x) for d in ("cpu", "reference")],
            tmp_path / "new",
        )
    refused(anp.log, x, text="lower it without", checks="nan")
    refused(lambda x: af.pure_callback(np.sin, shape, x), x, text="Python function sin")
    plain = af.jit(lambda x: x + 1).lower(x)
    af.save(plain, tmp_path / "new")
    with pytest.raises(ArgumentError, match="is there already"):
        af.save(plain, tmp_path / "new")


def test_a_loaded_function_checks_its_arguments(tmp_path: Path) -> None:
    af.save(af.jit(lambda x: x + 1).lower(X), tmp_path)
    with pytest.raises(ArgumentError, match=r"argument 0 must be f64\[5,3\]"):
        af.load(tmp_path)(X[0])


def test_a_jitted_function_is_lowered_before_it_is_saved(tmp_path):
    with pytest.raises(ArgumentError, match=r"give the arguments to lower\(\) first"):
        af.save(af.jit(anp.sin), tmp_path / "saved")
