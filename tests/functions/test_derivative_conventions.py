"""docs/derivative-conventions.md, line by line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.scipy import special as sp

PAGE = Path(__file__).parents[2] / "docs" / "derivative-conventions.md"
CODE = {"anp": anp, "nn": nn, "lax": lax, "sp": sp, "inf": np.inf}
NUMBERS = {"inf": np.inf, "nan": np.nan, "pi": np.pi, "log": np.log}


def rows(titles: str) -> list[tuple[str, str, str]]:
    """The first three columns of all tables with these titles."""
    found: list[tuple[str, str, str]] = []
    inside = False
    for line in PAGE.read_text().splitlines():
        if line.startswith("| Function"):
            inside = line == titles
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("| ---"):
            function, at, derivative = re.findall(r"`([^`]*)`", line)[:3]
            found.append((function, at, derivative))
    return found


FIRST = rows("| Function | At | Derivative | Why |")
HIGHER = rows("| Function | At | Derivatives |")


def number(text: str) -> list[np.ndarray[Any, Any]]:
    values = eval(f"[{text}]", NUMBERS)
    if text.startswith("["):
        return [np.array(values[0], np.float64)]
    return [np.array(v, np.float64) for v in values]


def compiled(text: str) -> Any:
    return eval(f"lambda x, y=0.0: anp.sum({text})", CODE)


def test_the_page_has_its_tables():
    assert len(FIRST) > 80
    assert len(HIGHER) > 12


@pytest.mark.parametrize(("function", "at", "derivative"), FIRST)
def test_the_first_derivative_is_the_one_on_the_page(function, at, derivative):
    of, point, want = compiled(function), number(at), number(derivative)
    places = tuple(range(len(point)))
    assert len(want) == len(point)
    gradient = af.grad(of, places)
    with np.errstate(all="ignore"):
        for got in (gradient(*point), af.jit(gradient)(*point)):
            for g, w in zip(got, want, strict=True):
                np.testing.assert_allclose(g, w, 1e-14, 1e-300)
        for place, w in enumerate(want):
            # Along each element alone: a tangent of 0 times an infinity is NaN.
            for index in np.ndindex(w.shape):

                def of_one(t, place=place, index=index):
                    x = anp.asarray(point[place])
                    moved = anp.at(x)[index].set(t) if index else t
                    return of(*point[:place], moved, *point[place + 1 :])

                def slope(t, of_one=of_one):
                    return af.jvp(of_one, (t,), (np.float64(1.0),))[1]

                for derivative in (slope, af.jit(slope)):
                    got = derivative(point[place][index])
                    np.testing.assert_allclose(got, w[index], 1e-14, 1e-300)


@pytest.mark.parametrize(("function", "at", "derivatives"), HIGHER)
def test_the_higher_derivatives_are_those_on_the_page(function, at, derivatives):
    of = compiled(function)
    (point,) = number(at)
    with np.errstate(all="ignore"):
        reverse = forward = of
        for want in number(derivatives):
            reverse = af.grad(reverse)
            forward = af.jacfwd(forward)
            for derivative in (reverse, af.jit(reverse), forward):
                np.testing.assert_allclose(derivative(point), want, 1e-13, 1e-300)
