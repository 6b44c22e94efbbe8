"""The registry of backends, the choice of one, and the reference backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends import parts, registry
from arrayfn.backends.base import BackendInfo
from arrayfn.backends.reference import ReferenceBackend
from arrayfn.errors import BackendError

X = np.random.default_rng(5).standard_normal((4, 6))
LABELS = np.array([0, 5, -1, 2], np.int32)


class Absent(ReferenceBackend):
    """A backend that says that it is missing."""

    name = "absent"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, "never there", ("a rare chip",), "no rare chip")


@pytest.fixture(autouse=True)
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "absent", Absent())


def test_cpu_and_reference_are_available_everywhere() -> None:
    assert {"cpu", "reference"} <= set(af.available_backends())
    assert "absent" not in af.available_backends()
    assert af.is_backend_available("cpu")
    assert not af.is_backend_available("absent")
    assert not af.is_backend_available("abacus")


@pytest.mark.parametrize("name", ["cpu", "cuda", "reference"])
def test_each_backend_says_what_it_is_and_needs(name: str) -> None:
    info = af.backend_info(name)
    assert info.name == name
    assert info.description
    assert info.requires
    assert bool(info.missing) != af.is_backend_available(name)


NAMES = (
    *("cuda", "cpu", "mps", "cudnn", "mkl", "mkldnn", "openmp", "nki", "triton"),
    *("cusparselt", "mha", "nnpack", "opt_einsum", "xeon"),
)


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_backends_say_what_they_are_and_why_they_are_missing(
    name: str,
) -> None:
    info = af.backend_info(name)
    assert info.name == name
    assert info.kind == ("backend" if name in ("cpu", "cuda") else "part")
    assert len(info.description) > 10
    assert info.requires
    assert af.is_backend_available(name) == (not info.missing)


def test_what_a_part_lacks_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert af.is_backend_available("opt_einsum")
    monkeypatch.setattr(parts, "missing_here", lambda: "no GPU")
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None)
    assert af.backend_info("cudnn").missing == (
        "no GPU; cudnn is not installed: pip install 'arrayfn[cuda-libraries]'"
    )
    assert af.backend_info("triton").missing == (
        "no GPU; triton and torch are not installed: pip install triton torch"
    )
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(parts, "missing_here", lambda: "")
    assert not af.backend_info("cudnn").missing
    monkeypatch.setattr(parts.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(parts.platform, "machine", lambda: "arm64")
    assert af.backend_info("mps").missing == (
        "there is no backend for Metal: use 'cpu'"
    )


def test_a_part_is_not_computed_on() -> None:
    with pytest.raises(
        BackendError, match=r"'mkl' is not a backend to compute on, but a"
    ):
        af.jit(anp.exp, device="mkl")


def test_a_name_that_is_near_is_suggested() -> None:
    with pytest.raises(BackendError, match=r"Did you mean 'cudnn'\?"):
        af.backend_info("cudn")


def test_what_is_missing_is_said() -> None:
    assert af.backend_info("absent").missing == "no rare chip"


@pytest.mark.parametrize(
    "ask", [af.backend_info, lambda name: af.jit(anp.exp, device=name)]
)
def test_an_unknown_backend_is_an_error_that_lists_those_there_are(ask: Any) -> None:
    names = "there is no backend 'abacus'; there are cpu, cuda, reference"
    with pytest.raises(BackendError, match=names):
        ask("abacus")


def test_jit_falls_back_in_order_and_says_why() -> None:
    text = r"backend 'absent' is not available \(no rare chip\): using 'reference'"
    with pytest.warns(RuntimeWarning, match=text) as caught:
        f = af.jit(lambda x: x + 1, device=("absent", "reference", "cpu"))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once, and not at every call
        assert f(np.ones(2)).tolist() == [2, 2]
    assert f.lower(np.ones(2)).compiled_program.target == "reference"


def test_the_first_that_is_there_is_taken_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = af.jit(lambda x: x + 1, device=["cpu", "absent"])
        assert f(np.ones(2)).tolist() == [2, 2]
    assert f.lower(np.ones(2)).compiled_program.target == "cpu"


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("absent", r"backend 'absent' is not available \(no rare chip\)"),
        (("absent", "absent"), r"backend 'absent' is not available"),
        ((), "no device was named"),
    ],
)
def test_without_any_backend_there_is_an_error_when_it_is_called(
    device: Any, text: str
) -> None:
    with pytest.raises(BackendError, match=text):
        af.jit(lambda x: x, device=device)(1.0)


# The reference backend.


def picked(x: Any) -> Any:
    logs = x - anp.log(anp.sum(anp.exp(x), axis=1, keepdims=True))
    return anp.mean(anp.take_along_axis(logs, LABELS[:, None], axis=1))


FUNCTIONS: dict[str, Any] = {
    "elementwise": lambda x: anp.tanh(x) * 2 - anp.exp(-x),
    "reductions": lambda x: (x.sum(), x.max(0), anp.argmin(x, axis=1), anp.cumsum(x)),
    "views": lambda x: (x.T, x[::-1, 1:], x.reshape(3, 8), anp.pad(x, 1)),
    "products": lambda x: (x @ x.T, anp.einsum("ij,kj->ik", x, x)),
    "indexing": lambda x: (x[LABELS[::3]], anp.roll(x, 1)),
    "gradient": af.grad(picked),
    "mapped gradient": af.vmap(af.grad(lambda row: anp.sum(row**3))),
    "nested jit": lambda x: af.jit(anp.exp)(x) + af.jit(anp.exp)(x),
    "integers": lambda x: (anp.floor(x * 9).astype("int32") // 4, x > 0, 7 % 3),
    "complex": lambda x: anp.abs(anp.exp(1j * x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_reference_computes_what_the_function_does_at_once(name: str) -> None:
    function = FUNCTIONS[name]
    got = af.tree.leaves(af.jit(function, device="reference")(X))
    want = af.tree.leaves(function(X))
    assert len(got) == len(want)
    for have, value in zip(got, want, strict=True):
        assert have.dtype == np.asarray(value).dtype
        np.testing.assert_allclose(have, value, 1e-14, 1e-14)
        assert have.flags.owndata
        assert have.flags.writeable
        assert not np.shares_memory(have, X)


def test_the_reference_has_a_program_but_no_kernels() -> None:
    lowered = af.jit(anp.exp, device="reference").lower(X)
    assert lowered.kernels == ()
    assert lowered.plan.steps == ()
    assert "exp(x)" in lowered.text()
    np.testing.assert_array_equal(lowered.compile()(X), np.exp(X))


def test_the_reference_takes_numbers_as_their_types_say() -> None:
    def chosen(x: Any, k: Any) -> Any:
        return lax.cond(k > 0, anp.sin, anp.cos, x) * k

    reference = af.jit(chosen, device="reference")
    np.testing.assert_array_equal(reference(X, 2), np.sin(X) * 2)
    np.testing.assert_array_equal(reference(X, -1), -np.cos(X))


class Point:
    """An installed package's entry point."""

    name, value = "rare", "rare_package:Rare"

    def __init__(self, made: Callable[[], Any]) -> None:
        self.load = lambda: made


def offer(monkeypatch: pytest.MonkeyPatch, *points: Point) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    monkeypatch.setattr(registry, "BACKENDS", dict(registry.BACKENDS))
    registry._load_entry_points.cache_clear()


class Rare(ReferenceBackend):
    """A backend of another package."""

    name = "rare"


def test_a_backend_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    af.register_backend(Rare())
    assert af.jit(anp.exp, device="rare")(np.zeros(2)).tolist() == [1, 1]
    with pytest.raises(BackendError, match=r"'rare' already; pass replace=True"):
        af.register_backend(Rare())
    other = Rare()
    af.register_backend(other, replace=True)
    assert registry.get_backend("rare") is other


def test_installed_packages_offer_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, Point(Rare))
    assert "rare" not in registry.BACKENDS
    assert af.jit(anp.exp, device="rare")(np.zeros(2)).tolist() == [1, 1]
    assert "rare" in af.available_backends()


def test_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise OSError("no driver")

    offer(monkeypatch, Point(broken))
    with pytest.warns(RuntimeWarning, match=r"'rare' \(rare_package:Rare\).*no driver"):
        assert "rare" not in af.available_backends()
    with pytest.raises(BackendError, match="there is no backend 'rare'; there are cpu"):
        af.backend_info("rare")
