"""What objects look like in a terminal, and in a notebook."""

from __future__ import annotations

import logging
import re
import xml.dom.minidom
from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn.compilation import building
from arrayfn.display import charts, markup
from arrayfn.lowering.plan import KernelCall, numbered

X = np.ones((8, 4), np.float32)


def loss(w: Any, x: Any) -> Any:
    h = anp.tanh(x @ w)
    shifted = h - anp.max(h, axis=1, keepdims=True)
    return anp.sum(anp.exp(shifted).T)


@pytest.fixture(scope="module")
def lowered() -> Any:
    return af.jit(af.grad(loss)).lower(np.ones((4, 4), np.float32), X)


def parsed(html: str) -> Any:
    """The elements of ``html``, which must nest as XML does."""
    return xml.dom.minidom.parseString(html.replace("<br>", "<br/>"))


def test_texts_in_a_terminal_are_one_line(lowered: Any) -> None:
    step = af.jit(loss, device="cpu")
    assert repr(step) == "<jitted loss for cpu, not compiled yet>"
    step(np.ones((4, 4), np.float32), X)
    assert repr(step) == "<jitted loss for cpu, compiled for 1 signature>"
    assert repr(lowered.program).startswith("<Program loss(w: f32[4,4], x: f32[8,4])")
    assert repr(lowered.plan).startswith("<ExecutionPlan: ")
    assert repr(lowered.kernels[0]) == "<LibraryKernel gemm_f32: BLAS>"
    assert repr(lowered.compile()) == (
        "<Compiled loss(f32[4,4], f32[8,4]) -> (f32[4,4]) for cpu>"
    )
    for thing in (step, lowered, lowered.program, lowered.plan, *lowered.kernels):
        assert "\n" not in repr(thing)


def test_every_equation_is_linked_to_a_step_and_its_kernel(lowered: Any) -> None:
    html = lowered._repr_html_()
    lines = lowered.compiled_program.text.splitlines()
    equations = {k for k, line in enumerate(lines, 1) if " = " in line}
    document = parsed(html)
    linked = {
        int(span.getAttribute("data-l")[1:])
        for span in document.getElementsByTagName("span")
        if span.getAttribute("data-l")
    }
    assert linked == equations
    kernels = document.getElementsByTagName("summary")
    steps = {
        f"s{n}" for n, s in numbered(lowered.plan.steps) if isinstance(s, KernelCall)
    }
    called = " ".join(k.getAttribute("data-s") for k in kernels).split()
    assert set(called) == steps
    for step in steps:
        assert f"[data-s~='{step}']:hover" in html


def test_a_kernels_line_is_linked_to_the_programs(lowered: Any) -> None:
    html = lowered._repr_html_()
    lines = lowered.compiled_program.text.splitlines()
    number = next(k for k, line in enumerate(lines, 1) if "= exp(" in line)
    found = re.findall(rf"data-l='l{number}'>([^\n]*)\n", html)
    assert len(found) >= 2
    assert any("exp_f32" in line for line in found)


def test_what_is_shown_is_well_formed(lowered: Any) -> None:
    step = af.jit(loss)
    step(np.ones((4, 4), np.float32), X)
    every = [lowered, lowered.program, lowered.plan, step]
    every += [k for k in lowered.kernels if hasattr(k, "_repr_html_")]
    for thing in every:
        html = thing._repr_html_()
        parsed(html)
        # Colours are mixed with the page's own: there is no black and no white.
        assert not re.search(r"#fff\b|#000\b|:(white|black)|<script", html)


def test_markup_escapes_what_users_named() -> None:
    assert "<script>" not in markup.listing(["a = '<script>' # <b>"])
    page = markup.page("<&>", markup.shown("x", markup.listing(["<&>"])))
    parsed(page[page.index("<body>") : page.index("</html>")])


def test_memory_is_drawn_over_steps() -> None:
    bars = [charts.Bar("a", 0, 64, 0, 2), charts.Bar("b", 64, 64, 1, 1)]
    svg = parsed(charts.timeline(bars, 3, 128))
    first, second = svg.getElementsByTagName("rect")
    assert first.getAttribute("data-s") == "s0 s1 s2"
    assert float(first.getAttribute("width")) == pytest.approx(
        3 * float(second.getAttribute("width")), abs=0.2
    )
    assert charts.timeline([], 3, 0) == ""


def test_a_retrace_is_logged_with_the_argument_that_caused_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @af.jit
    def scaled(x: Any, rate: Any) -> Any:
        return x * rate

    powers = af.jit(lambda n, x: x**n, static_argnums=0)
    with caplog.at_level(logging.INFO, "arrayfn.retrace"):
        scaled(X, 2.0)
        scaled(X[0], 2.0)
        scaled(X, np.float64(2.0))
        scaled((X, X)[0], rate=2.0)
        powers(2, X)
        powers(3, X)
    structures = "((*,), {'rate': *}), not ((*, *), {})"
    assert [record.message for record in caplog.records] == [
        "scaled: x is f32[4], not f32[8,4]",
        "scaled: rate is f64[], not ~f64[]",
        f"scaled: the arguments have another structure: {structures}",
        "function: static argument 0 is 3, not 2",
    ]
    reasons = [built.reason for _, built in scaled.signatures()]
    assert reasons[0] == ""
    assert "x is f32[4], not f32[8,4]" in scaled._repr_html_()


def test_a_long_compilation_is_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(building, "PATIENCE", 0.0)
    monkeypatch.setattr(building, "_is_read", lambda: True)
    with building.building("step", "cpu", "") as built:
        built.begin -= 7.5
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "arrayfn: step took 7.5 s to compile"
