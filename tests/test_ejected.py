"""Ejected kernels: files that run, edited and taken back, also by another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.compilation.ejected import check
from arrayfn.errors import BundleError
from arrayfn.lowering.plan import Kernel

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)


def softmax(x: Any) -> Any:
    e = anp.exp(x - anp.max(x, axis=1, keepdims=True))
    return e / anp.sum(e, axis=1, keepdims=True)


def test_eject_edit_register_round_trip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lowered = af.jit(softmax).lower(X)
    folder = tmp_path / "kernels"
    lowered.eject(folder, X)
    (kernel,) = lowered.kernels
    file = folder / f"{kernel.name}.py"
    assert check(file) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{kernel.name} as Python: ")
    assert said[1].startswith(f"{kernel.name} compiled: ")
    # Nothing edited: nothing replaced.
    assert lowered.register(folder) == lowered
    text = file.read_text()
    assert text.count("exp_f32(") >= 1
    file.write_text(
        text.replace("exp_f32(", "neg_f32(").replace("exp_f32,", "neg_f32,")
    )
    assert check(file) == 1
    assert "OTHER results" in capsys.readouterr().out
    edited = lowered.register(folder)
    assert edited.kernels[0].is_replaced
    shifted = X - X.max(axis=1, keepdims=True)
    np.testing.assert_allclose(
        edited.compile()(X),
        -shifted / (-shifted).sum(axis=1, keepdims=True),
        rtol=1e-5,
    )
    np.testing.assert_array_equal(lowered.compile()(X), af.jit(softmax)(X))


def test_files_run_as_scripts_and_are_taken_back_by_another_process(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "import sys, numpy as np, arrayfn as af\n"
        "lowered = af.jit(lambda x: x * 2.0 + 1.0).lower(np.zeros(5))\n"
        "if sys.argv[1] == 'eject':\n"
        "    lowered.eject(sys.argv[2], np.arange(5.0))\n"
        "else:\n"
        "    print(lowered.register(sys.argv[2]).compile()(np.arange(5.0)).tolist())\n"
    )

    def run(*command: str) -> str:
        return subprocess.run(
            [sys.executable, *command], check=True, capture_output=True, text=True
        ).stdout

    folder = tmp_path / "kernels"
    run(str(model), "eject", str(folder))
    file = folder / "elementwise_0.py"
    said = run(str(file))
    assert "as Python: the same bits" in said
    assert "compiled: the same bits" in said
    text = file.read_text()
    assert text.count(" + f64(1.0)") == 1
    file.write_text(text.replace(" + f64(1.0)", " - f64(1.0)"))
    assert run(str(model), "register", str(folder)) == "[-1.0, 1.0, 3.0, 5.0, 7.0]\n"


def test_an_edited_kernel_is_saved_and_loaded_if_it_is_allowed(tmp_path: Path) -> None:
    lowered = af.jit(softmax).lower(X)
    (kernel,) = lowered.kernels
    assert isinstance(kernel, Kernel)
    edited = kernel.source.replace("exp_f32", "neg_f32")
    changed = lowered.with_kernel(kernel.name, edited)
    folder = tmp_path / "bundle"
    af.save(changed, folder)
    with pytest.raises(BundleError, match=r"has edited kernels \(rows_0\), whose code"):
        af.load(folder)
    loaded = af.load(folder, edited_kernels=True)
    np.testing.assert_array_equal(loaded(X), changed.compile()(X))
    assert not np.allclose(loaded(X), af.jit(softmax)(X))
    # It is compiled by arrayfn alone: nothing of the file is run as Python.
    python = edited.replace("begin, end):", "begin, end):\n    print(begin)", 1)
    af.save(lowered.with_kernel(kernel.name, python), tmp_path / "python")
    with pytest.raises(BundleError, match="cannot be compiled"):
        af.load(tmp_path / "python", edited_kernels=True)
    # A changed file is found, and so is a kernel of another function.
    (folder / "kernels" / "0.rows_0.py").write_text(edited + "\n")
    with pytest.raises(BundleError, match="was changed"):
        af.load(folder, edited_kernels=True)


def test_every_generated_kernel_of_a_plan_is_written_and_right(tmp_path: Path) -> None:
    def loss(w: Any, x: Any) -> Any:
        return anp.sum(anp.tanh(softmax(x) @ w) ** 2)

    lowered = af.jit(af.value_and_grad(loss)).lower(np.ones((6, 3), np.float32), X)
    folder = tmp_path / "kernels"
    lowered.eject(folder)  # on random numbers
    names = {k.name for k in lowered.kernels if not k.source.startswith("# gemm")}
    assert {f.stem for f in folder.glob("*.py")} == names
    assert (folder / "plan.txt").read_text() == str(lowered.plan)
    for name in names:
        assert check(folder / f"{name}.py") == 0


def test_what_cannot_be_ejected_or_registered_is_said(tmp_path: Path) -> None:
    lowered = af.jit(softmax).lower(X)
    (tmp_path / "something").write_text("")
    with pytest.raises(TypeError, match="is there already; give a folder that is new"):
        lowered.eject(tmp_path, X)
    with pytest.raises(TypeError, match="has no file of a kernel of this function"):
        lowered.register(tmp_path)
    with pytest.raises(TypeError, match="lowered for arguments of structure"):
        lowered.eject(tmp_path / "new", X, X)
    with pytest.raises(
        TypeError, match="kernels for 'reference' do not run by themsel"
    ):
        af.jit(softmax, device="reference").lower(X).eject(tmp_path / "new", X)
