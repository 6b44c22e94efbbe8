"""Saved functions: what is written, what comes back, and what broken files say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.errors import ArgumentError, BundleError

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
    root = Path(af.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    value, _ = lowered().compile()(WEIGHTS, X, scale=2.0)
    assert done.stdout.strip() == value.item().hex()


def test_the_files_can_be_read(tmp_path: Path) -> None:
    af.save(lowered(), tmp_path)
    assert (tmp_path / "program.txt").read_text().startswith("program loss")
    found = json.loads((tmp_path / "bundle.json").read_text())
    assert found["device"] == "cpu"
    assert found["donated"] == [0, 1]
    assert found["arguments"]["tuple"][1] == {"dict": {"scale": 3}}
    np.testing.assert_array_equal(np.load(tmp_path / "constants/0.npy"), CAPTURED)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def changed(name: str, value: Any) -> Any:
    def change(folder: Path) -> None:
        file = folder / "bundle.json"
        found = json.loads(file.read_text())
        found[name] = value
        file.write_text(json.dumps(found))

    return change


def hostile(folder: Path) -> None:
    import hashlib  # noqa: PLC0415

    text = (folder / "program.txt").read_text().replace("tanh(", "__import__(")
    (folder / "program.txt").write_text(text)
    changed("program", hashlib.sha256(text.encode()).hexdigest())(folder)


DEEP: Any = 0
for _ in range(100):
    DEEP = {"list": [DEEP]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda f: edit(f / "program.txt", "tanh", "sinh"), "program.txt was changed"),
        (lambda f: (f / "program.txt").unlink(), "cannot be read: No such file"),
        (lambda f: (f / "bundle.json").write_text("{"), "is no JSON"),
        (lambda f: (f / "bundle.json").write_text("[" * 10**5), "is no JSON"),
        (changed("format", 2), "no bundle of format 1"),
        (changed("kernels", []), "no 'kernels'"),
        (changed("kernels", {}), "kernels made of the Program are not those"),
        (changed("donated", [-1]), "numbers of arguments"),
        (changed("options", {"deterministic": 3}), "options that jit has not"),
        (changed("arguments", {"tuple": [{"tuple": [0]}, None]}), "describes 1 arrays"),
        (changed("results", {"set": [0]}), "no structure of arrays"),
        (changed("results", DEEP), "no structure of arrays"),
        (hostile, "is no Program: .*__import__"),
        (
            lambda f: np.save(f / "constants/0.npy", CAPTURED + 1),
            "0.npy was changed",
        ),
        (
            lambda f: np.save(f / "constants/0.npy", np.array([{}], object)),
            "is no array: .*allow_pickle=False",
        ),
        (lambda f: (f / "constants/0.npy").write_bytes(b""), "is no array"),
    ],
)
def test_a_broken_bundle_says_what_is_wrong(
    change: Any, text: str, tmp_path: Path
) -> None:
    af.save(lowered(), tmp_path)
    change(tmp_path)
    with pytest.raises(BundleError, match=text):
        af.load(tmp_path)


class Pair(NamedTuple):
    x: Any
    y: Any


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    def refused(f: Any, *args: Any, text: str, **options: Any) -> None:
        with pytest.raises(ArgumentError, match=text):
            af.save(af.jit(f, **options).lower(*args), tmp_path / "new")

    x = np.ones(3)
    shape = af.ShapeDtypeStruct((3,), np.float64)
    refused(lambda p: p.x, Pair(x, x), text="is a Pair, which another process")
    refused(anp.log, x, text="lower it without", checks="nan")
    refused(lambda x: af.pure_callback(np.sin, shape, x), x, text="Python function sin")
    plain = af.jit(lambda x: x + 1).lower(x)
    (kernel,) = plain.kernels
    with pytest.raises(ArgumentError, match="was replaced"):
        af.save(plain.with_kernel(kernel.name, kernel.source), tmp_path / "new")
    af.save(plain, tmp_path / "new")
    with pytest.raises(ArgumentError, match="is there already"):
        af.save(plain, tmp_path / "new")


def test_a_loaded_function_checks_its_arguments(tmp_path: Path) -> None:
    af.save(af.jit(lambda x: x + 1).lower(X), tmp_path)
    with pytest.raises(ArgumentError, match=r"argument 0 is to be f64\[5,3\]"):
        af.load(tmp_path)(X[0])
