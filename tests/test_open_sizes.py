"""Functions lowered for open sizes: what is saved serves them all, with equal bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Dim, lax, nn
from arrayfn.compilation.size_polynomials import evaluated, parsed
from arrayfn.errors import ArgumentError, BundleError
from tests.test_bundles import written

RNG = np.random.default_rng(8)
W = RNG.standard_normal((6, 4))
N = Dim("n")


def rows(n: Any, dtype: str = "float64") -> Any:
    return af.ShapeDtypeStruct((n, 6), dtype)


def attended(x: Any) -> Any:
    scores = nn.softmax(x @ x.T / np.sqrt(6.0))
    return scores @ x


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, row: (anp.tanh(c + row @ W), c.sum()), anp.ones(4), x)


def moments(x: Any) -> Any:
    return anp.mean(x), anp.var(x, axis=0), anp.std(x, ddof=1), anp.cov(x.T)


def rearranged(x: Any) -> Any:
    pairs = anp.concatenate([x, 2 * x[::-1]])
    order = anp.argsort(pairs[:, 0])
    return pairs[order].reshape(-1, 3), anp.cumsum(x, axis=0), anp.pad(x, 1)


def loss(x: Any) -> Any:
    return anp.mean(anp.square(nn.layer_norm(x) @ W)) + anp.max(x)


@pytest.mark.parametrize(
    "function", [attended, scanned, moments, rearranged, af.value_and_grad(loss)]
)
def test_one_bundle_serves_all_sizes(
    function: Callable[..., Any], tmp_path: Path
) -> None:
    af.save(af.jit(function).lower(rows(N)), tmp_path / "f")
    loaded = af.load(tmp_path / "f")
    jitted = af.jit(function)
    for size in (2, 3, 5, 68, 130):
        x = RNG.standard_normal((size, 6))
        for have, want in zip(
            af.tree.leaves(loaded(x)), af.tree.leaves(jitted(x)), strict=True
        ):
            np.testing.assert_array_equal(have, want)


def test_two_sizes_and_their_products(tmp_path: Path) -> None:
    def flat(x: Any, y: Any) -> Any:
        outer = x[:, None] * y
        return anp.ravel(outer), anp.mean(outer), anp.concatenate([x, y, x])

    m, n = Dim("m"), Dim("n", multiple_of=4, maximum=400)
    structs = [af.ShapeDtypeStruct((size,), "float32") for size in (m, n)]
    af.save(af.jit(flat).lower(*structs), tmp_path / "f")
    text = (tmp_path / "f/programs/0.txt").read_text()
    assert "f32[$(m*n)]" in text
    assert "f32[$(n+2*m)]" in text or "f32[$(2*m+n)]" in text
    loaded = af.load(tmp_path / "f")
    assert loaded.signatures == ("flat(f32[m], f32[n])",)
    for sizes in ((1, 4), (5, 400), (12, 12)):
        x, y = (RNG.standard_normal(size).astype("f4") for size in sizes)
        for have, want in zip(loaded(x, y), flat(x, y), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-6)
    x, y = np.ones(3, "f4"), np.ones(6, "f4")
    with pytest.raises(ArgumentError, match="6 elements, but n must be at least 1"):
        loaded(x, y)
    with pytest.raises(ArgumentError, match="at most 400 and a multiple of 4"):
        loaded(x, np.ones(404, "f4"))


def test_axes_of_one_dim_have_one_size(tmp_path: Path) -> None:
    af.save(af.jit(lambda x, y: x + y).lower(rows(N), rows(N)), tmp_path / "f")
    loaded = af.load(tmp_path / "f")
    x = np.ones((4, 6))
    with pytest.raises(ArgumentError, match=r"axis 0 of argument 1 has 5 .* n is 4"):
        loaded(x, np.ones((5, 6)))
    with pytest.raises(ArgumentError, match=r"axis 1 of argument 0 has 5 .*, not 6"):
        loaded(x[:, :5], x)
    with pytest.raises(ArgumentError, match=r"argument 0 is f32\[4,6\], not of f64"):
        loaded(x.astype("f4"), x)
    with pytest.raises(ArgumentError, match="argument 0 has 1 axis, not 2"):
        loaded(x[0], x)


def test_a_size_without_a_program_is_refused(tmp_path: Path) -> None:
    even = Dim("n", multiple_of=2)
    halved = af.jit(lambda x: x.reshape(-1, 12))
    af.save(halved.lower(rows(even)), tmp_path / "even")
    template = (tmp_path / "even/programs/0.txt").read_text()
    assert "f64[$(1/2*n),12]" in template
    written("bundle.json", "2\n", "1\n")(tmp_path / "even")  # multiple_of
    loaded = af.load(tmp_path / "even")
    assert loaded(np.ones((4, 6))).shape == (2, 12)
    with pytest.raises(
        ArgumentError, match=r"computed for n = 3: 1/2.n .* not a whole"
    ):
        loaded(np.ones((3, 6)))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            lambda x: sum(x[k] for k in range(x.shape[0])),
            "has another Program for n = ",
        ),
        (lambda x: x if x.shape[0] > 1000 else 2 * x, "from .* on. Write loops"),
        (
            lambda x: x + np.arange(x.shape[0])[:, None],
            "captures an array that depends",
        ),
        (lambda x: x * float(np.sin(x.shape[0])), "not a polynomial of its open sizes"),
    ],
)
def test_a_function_without_one_program_is_refused(function: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        af.jit(function).lower(rows(N))


def test_open_sizes_are_for_lowering_alone() -> None:
    struct = rows(N)
    assert repr(struct) == "ShapeDtypeStruct(shape=(n, 6), dtype=float64)"
    assert struct == rows(Dim("n"))
    assert struct != rows(Dim("n", minimum=2))
    with pytest.raises(ArgumentError, match=r"only jit\(f\).lower takes it"):
        af.eval_shape(anp.sin, struct)
    with pytest.raises(ArgumentError, match="two Dims are called n"):
        af.jit(anp.add).lower(struct, rows(Dim("n", minimum=2)))
    with pytest.raises(ArgumentError, match="leaves 3 sizes above 1"):
        af.jit(anp.sin).lower(rows(Dim("n", maximum=4)))
    for limits in ({"minimum": 0.5}, {"multiple_of": 0}, {"minimum": 9, "maximum": 4}):
        with pytest.raises(ArgumentError, match="Dim: "):
            Dim("n", **limits)
    with pytest.raises(ArgumentError, match="is not a valid name"):
        Dim("n-1")


@pytest.mark.parametrize("text", ["", "n**2", "2n", "(n)", "1/0*n", "n*n*n*n", "k"])
def test_a_polynomial_of_a_file_is_checked(text: str, tmp_path: Path) -> None:
    af.save(af.jit(lambda x: x + 1).lower(rows(N)), tmp_path / "f")
    written("programs/0.txt", "$(n)", f"$({text})")(tmp_path / "f")
    with pytest.raises(BundleError):
        af.load(tmp_path / "f")


def test_polynomials_have_exact_values() -> None:
    assert evaluated(parsed("1/3*n*n-2*m+7"), {"n": 6, "m": 10}) == -1
