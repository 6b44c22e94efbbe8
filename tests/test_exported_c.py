"""Functions as C: the bits of a C program are those that Python computes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.dtypes import bfloat16
from arrayfn.errors import ArgumentError

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no cc here")
RNG = np.random.default_rng(5)
W = RNG.standard_normal((16, 8)).astype("f4")
X = RNG.standard_normal((6, 16)).astype("f4")


def layer(x: Any) -> Any:
    return nn.softmax(anp.tanh(x @ W) + W[0])


def scanned(x: Any, c: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        c = lax.cond(c[0] > 0, lambda c: anp.sin(c) + row @ W, lambda c: c - 1, c)
        return c, c.sum()

    return lax.scan(step, c, x, reverse=True)


def rounds(n: Any, x: Any) -> Any:
    state = lax.while_loop(
        lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 1.25), (0, x)
    )
    return {"n": state[0], "x": state[1]}


def rearranged(x: Any, k: Any) -> Any:
    taken = anp.take(x, anp.asarray([3, 0, 11]), axis=1)[:, ::-1]
    return taken.at[k].add(1.5), anp.cumsum(x, axis=0), x.T.astype(bfloat16), x > 0


def drawn(key: Any) -> Any:
    return af.random.normal(key, (50,)), af.random.bits(key, (3,))


CASES: list[tuple[Any, tuple[Any, ...]]] = [
    (layer, (X,)),
    (af.value_and_grad(lambda x: anp.mean(layer(x) ** 2)), (X,)),
    (scanned, (X, W[1])),
    (rounds, (np.int64(7), X)),
    (rearranged, (X, np.int32(2))),
    (drawn, (af.random.key(4),)),
    (lambda z: anp.exp(z) * (1 + 2j), (X + 1j * X,)),
    (lambda x: x @ anp.linalg.inv(W.T @ W), (X[:, :8].copy(),)),  # inverted once
]


def run(folder: Path, name: str, leaves: list[Any], count: int) -> list[bytes]:
    """The results of a program that ``export_c`` wrote, on ``leaves``."""
    given = [folder / f"in{k}" for k in range(len(leaves))]
    for file, leaf in zip(given, leaves, strict=True):
        file.write_bytes(np.asarray(leaf).tobytes())
    program = folder / "program"
    sources = [folder / f"{name}{end}" for end in ("_main.c", ".c", ".o")]
    subprocess.run(
        [str(COMPILER), "-Wall", "-Werror", *sources, "-lm", "-o", program], check=True
    )
    results = [folder / f"out{k}" for k in range(count)]
    subprocess.run([program, *given, *results], check=True)
    return [file.read_bytes() for file in results]


@needs_compiler
@pytest.mark.parametrize(("function", "args"), CASES)
def test_a_c_program_gives_the_same_bits(
    function: Any, args: Any, tmp_path: Path
) -> None:
    jitted = af.jit(function)
    af.save(jitted.lower(*args), tmp_path / "f")
    (same,) = af.load(tmp_path / "f").export_c(tmp_path / "c", "computed")
    want = af.tree.leaves(same(*args))
    have = run(tmp_path / "c", "computed", af.tree.leaves(args), len(want))
    for one, other, jit in zip(have, want, af.tree.leaves(jitted(*args)), strict=True):
        assert one == other.tobytes()
        np.testing.assert_allclose(other.astype(jit.dtype), jit, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_a_training_step_with_open_sizes_and_donated_state(tmp_path: Path) -> None:
    optimizer = af.optim.adam(1e-2)

    def step(w: Any, state: Any, x: Any) -> Any:
        slope = af.grad(lambda w: anp.mean(anp.tanh(x @ w) ** 2))(w)
        updates, state = optimizer.update(slope, state, w)
        return af.optim.apply_updates(w, updates), state

    state = optimizer.init(W)
    rows = af.ShapeDtypeStruct((af.Dim("n"), 16), "float32")
    jitted = af.jit(step, donate_argnums=(0, 1))
    af.save(jitted.lower(W, state, rows), tmp_path / "f")
    loaded = af.load(tmp_path / "f")
    (same,) = loaded.export_c(tmp_path / "c", sizes={"n": 6})
    want = af.tree.leaves(same(W.copy(), af.tree.map(np.array, state), X))
    leaves = af.tree.leaves((W, state, X))
    assert run(tmp_path / "c", "step", leaves, len(want)) == [x.tobytes() for x in want]
    assert "in4: f32[6,16]" in (tmp_path / "c/step.h").read_text()
    with pytest.raises(
        ArgumentError, match="open sizes of the function are n at least"
    ):
        loaded.export_c(tmp_path / "other")


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    def solved(a: Any, x: Any) -> Any:
        return anp.fft.fft(anp.linalg.solve(a, x)).real

    af.save(af.jit(solved).lower(np.eye(40), np.ones(40)), tmp_path / "f")
    loaded = af.load(tmp_path / "f")
    with pytest.raises(ArgumentError, match=r"does not have: getrf_f64 calls .*fft"):
        loaded.export_c(tmp_path / "c")
    assert not (tmp_path / "c").exists()
    af.save(af.jit(anp.sin).lower(X), tmp_path / "sin")
    with pytest.raises(
        ArgumentError, match="'int' is not a valid name of a C function"
    ):
        af.load(tmp_path / "sin").export_c(tmp_path / "c", "int")
    with pytest.raises(ArgumentError, match="is there already"):
        loaded.export_c(tmp_path / "sin")
