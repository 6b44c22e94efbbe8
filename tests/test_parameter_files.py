"""Parameters as safetensors files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn.dtypes import bfloat16
from arrayfn.errors import ArgumentError, ShapeError
from tests.processes import python_path

RNG = np.random.default_rng(2)
PARAMETERS: Any = {
    "layers": [
        {"w": RNG.standard_normal((3, 4)).astype("f4"), "b": np.arange(4)},
        {"w": RNG.standard_normal((4, 2)).T.astype(bfloat16), "on": np.array(True)},
    ],
    "scale": 2.5,
}


def test_files_need_the_package(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['safetensors.numpy'] = None\n"
        "import arrayfn as af\n"
        "try: af.save_parameters({}, 'file')\n"
        "except af.errors.ArgumentError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": python_path(), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install 'arrayfn[safetensors]'" in done.stdout


def test_arrays_that_a_file_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="a is of complex128"):
        af.save_parameters({"a": np.ones(2, complex)}, tmp_path / "p")
    with pytest.raises(ArgumentError, match=r"two arrays are called a\.0"):
        af.save_parameters({"a": [1.0], "a.0": 2.0}, tmp_path / "p")


def test_parameters_come_back(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    file = tmp_path / "p.safetensors"
    af.save_parameters(PARAMETERS, file, {"made": "here"})
    size = int.from_bytes(file.read_bytes()[:8], "little")
    head = json.loads(file.read_bytes()[8 : 8 + size])
    assert head["layers.1.w"]["dtype"] == "BF16"
    assert head["__metadata__"] == {"made": "here"}
    again = af.load_parameters(file, like=PARAMETERS)
    assert af.tree.structure(again) == af.tree.structure(PARAMETERS)
    for have, want in zip(
        af.tree.leaves(again), af.tree.leaves(PARAMETERS), strict=True
    ):
        assert have.dtype == np.asarray(want).dtype
        np.testing.assert_array_equal(have, want)
    assert set(af.load_parameters(file)) == set(head) - {"__metadata__"}


def test_a_file_that_does_not_fit(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    file = tmp_path / "p.safetensors"
    af.save_parameters(PARAMETERS, file)
    with pytest.raises(ArgumentError, match=r"lacks x, and has besides layers.0.b"):
        af.load_parameters(file, like={"x": 1.0})
    wrong = af.tree.map(lambda x: np.zeros(5), PARAMETERS)
    with pytest.raises(ShapeError, match=r"layers\.0\.b is i64\[4\], not f64\[5\]"):
        af.load_parameters(file, like=wrong)
    file.write_bytes(b"{" * 100)
    with pytest.raises(ArgumentError, match="is not a safetensors file"):
        af.load_parameters(file)
