"""Ejected GPU kernels: files that run in the emulator, as PTX, and on a card.

With ``--device cuda`` the calls are recorded on the card, and the kernels run there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.backends.cuda import missing_here, missing_packages
from arrayfn.backends.numba.functions import executed_function
from arrayfn.backends.registry import BACKENDS
from arrayfn.compilation.ejected import check, source_of, write_kernels
from arrayfn.compilation.ejected_call import EjectedCall
from arrayfn.errors import BundleError
from arrayfn.lowering.plan import Kernel, KernelCall
from tests.common_functions import softmax
from tests.fuzz.devices import EMULATOR
from tests.lowering.test_cuda_persistent import RECURRENT, persistent, recurrent

pytestmark = pytest.mark.cuda
needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 64)).astype(np.float32)


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """``"cuda"`` with ``--device cuda``, or else the emulator."""
    if request.config.getoption("--device") == "cuda":
        return "cuda"
    monkeypatch.setitem(BACKENDS, EMULATOR.name, EMULATOR)
    return EMULATOR.name


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What ``check`` printed of each way to run a kernel."""
    ways = r"^\w+ (in the emulator|as PTX|on the GPU): (.*)$"
    return dict(re.findall(ways, capsys.readouterr().out, re.MULTILINE))


@needs_compiler
def test_eject_edit_register_save_round_trip(
    gpu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lowered = af.jit(softmax, device=gpu).lower(X)
    lowered.eject(tmp_path / "kernels", X)
    (kernel,) = lowered.kernels
    file = tmp_path / "kernels" / f"{kernel.name}.py"
    assert check(file) == 0
    texts = said(capsys)
    assert texts["in the emulator"] in ("the same bits", "near")
    assert re.fullmatch(r"\d+ lines for sm_\d+", texts["as PTX"])
    if missing_here():
        assert texts["on the GPU"] == f"not run: {missing_here()}"
    else:
        assert re.fullmatch(r"(the same bits|near), [\d.]+ us", texts["on the GPU"])
    assert lowered.register(tmp_path / "kernels") == lowered
    text = file.read_text()
    file.write_text(re.sub(r"\bexp_f32\b", "neg_f32", text))
    assert check(file) == 1
    assert said(capsys)["in the emulator"] == "OTHER results"
    edited = lowered.register(tmp_path / "kernels")
    af.save(edited, tmp_path / "bundle")
    with pytest.raises(BundleError, match=r"has edited kernels \(rows_0\)"):
        af.load(tmp_path / "bundle")
    shifted = X.max(axis=-1, keepdims=True) - X
    wanted = shifted / shifted.sum(axis=-1, keepdims=True)
    for run in (edited.compile(), af.load(tmp_path / "bundle", edited_kernels=True)):
        np.testing.assert_allclose(np.asarray(run(X)), wanted, rtol=1e-5)


def in_halves(x: Any) -> Any:
    return anp.sum(anp.tanh(x), axis=1)


CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "a reduction over rows": (softmax, X),
    "float16": (in_halves, X.astype(np.float16)),
    "bfloat16": (in_halves, X.astype(ml_dtypes.bfloat16)),
    "a sort, of several kernels": (anp.argsort, X[0]),
    "bool results": (lambda x: x > 0, X),
    "no elements": (lambda x: x + 1, X[:0]),
    "a transposed argument": (lambda x: anp.cumsum(x, axis=0), X.T),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_generated_kernel_is_written_and_right(
    name: str, gpu: str, tmp_path: Path
) -> None:
    function, x = CALLS[name]
    lowered = af.jit(function, device=gpu).lower(x)
    lowered.eject(tmp_path, x)
    names = {k.name for k in lowered.kernels if isinstance(k, Kernel)}
    assert names == {file.stem for file in tmp_path.glob("*.py")} != set()
    for kernel in names:
        assert check(tmp_path / f"{kernel}.py") == 0


def test_a_persistent_kernel_keeps_its_launch_and_its_overlapping_memory(
    tmp_path: Path,
) -> None:
    compiled = persistent(recurrent, *RECURRENT)
    write_kernels(compiled, tmp_path, RECURRENT)
    (kernel,) = compiled.kernels
    assert isinstance(kernel, Kernel)
    file = tmp_path / f"{kernel.name}.py"
    call = EjectedCall.load(file.with_suffix(".npz"), kernel.name, source_of(file))
    (step,) = compiled.plan.steps
    assert isinstance(step, KernelCall)
    assert (call.kernel.threads, call.kernel.cooperative) == (kernel.threads, True)
    assert (call.kernel.parameters, call.items) == (kernel.parameters, step.items)
    assert check(file) == 0


@needs_compiler
def test_numba_cuda_compiles_an_ejected_file(gpu: str, tmp_path: Path) -> None:
    cuda: Any = import_module("numba.cuda")
    dialect = import_module("arrayfn.backends.cuda.vocabulary").DIALECT
    lowered = af.jit(softmax, device=gpu).lower(X)
    lowered.eject(tmp_path, X)
    (kernel,) = lowered.kernels
    file = tmp_path / f"{kernel.name}.py"
    kinds = [dialect.parameter_type(p.kind) for p in kernel.parameters]
    function = executed_function(source_of(file), kernel.name)
    ptx, _ = cuda.compile_ptx(function, cuda.types.void(*kinds), cc=(9, 0))
    assert "shfl.sync" in ptx


def test_a_fault_of_an_edited_kernel_is_said(
    gpu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lowered = af.jit(lambda x: x + x, device=gpu).lower(X)
    lowered.eject(tmp_path, X)
    file = tmp_path / "elementwise_0.py"
    text = file.read_text()
    first = re.search(r"def elementwise_0\((\w+)", text)
    assert first is not None
    line = f"    {first[1]}[999] = {first[1]}[0]\n\n\nif __name__"
    file.write_text(re.sub(r"\n\nif __name__", line, text, count=1))
    assert check(file) == 1
    assert "lies outside the 256 elements" in said(capsys)["in the emulator"]


@pytest.mark.skipif(not missing_here(), reason="there is a GPU")
def test_what_is_too_large_for_the_emulator_is_said(tmp_path: Path) -> None:
    lowered = af.jit(lambda x: x + x, device="cuda").lower(
        np.zeros(1 << 20, np.float32)
    )
    with pytest.raises(
        TypeError, match="lower it for smaller arguments, or eject it on"
    ):
        lowered.eject(tmp_path)
