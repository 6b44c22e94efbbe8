"""Every public name has types, a description and an example that runs.

``--update-golden`` writes the computed lines of ``arrayfn/documentation/*.txt`` again;
the examples themselves run as doctests of the functions that they are attached to.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import re
import warnings
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

import arrayfn as af
from arrayfn import documentation
from tests import reference
from tests.reference import NAMESPACES, Public, public_names

DOCS = Path(__file__).parents[1] / "docs"
WITH_ENTRIES = [
    namespace
    for namespace in NAMESPACES
    if (documentation.FOLDER / f"{namespace.removeprefix('arrayfn.')}.txt").exists()
]
# Names without an example, and why.
NO_EXAMPLE = {
    "arrayfn.memory_stats": "needs a GPU",
    "arrayfn.DeviceArray": "needs a GPU",
    "arrayfn.load_parameters": "needs the package safetensors",
    "arrayfn.save_parameters": "needs the package safetensors",
}


def test_every_public_name_has_an_example() -> None:
    names = public_names()
    missing = {each.path for each in names if ">>>" not in each.doc}
    assert missing == set(NO_EXAMPLE)
    assert len(names) > 1100


def test_every_public_function_and_class_is_described() -> None:
    missing = [
        each.path
        for each in public_names()
        if inspect.isfunction(each.value) or inspect.isclass(each.value)
        if not each.doc or each.doc.startswith(">>>")
    ]
    assert missing == []


def test_every_parameter_of_a_public_function_has_a_type() -> None:
    untyped = []
    for each in public_names():
        if not inspect.isfunction(each.value) or not reference.documented(each.value):
            continue
        for name, parameter in inspect.signature(each.value).parameters.items():
            if parameter.annotation is inspect.Parameter.empty:
                untyped.append(f"{each.path}({name})")
    assert untyped == []


def test_every_public_name_is_on_a_page() -> None:
    shown = reference.shown_on_pages(also_further=True)
    missing = [each.path for each in public_names() if id(each.value) not in shown]
    assert missing == []


def test_every_file_of_entries_belongs_to_a_namespace() -> None:
    files = {path.stem for path in documentation.FOLDER.glob("*.txt")}
    assert files == {name.removeprefix("arrayfn.") for name in WITH_ENTRIES}


@pytest.mark.parametrize("namespace", WITH_ENTRIES)
def test_entries_are_what_the_functions_do(
    namespace: str, request: pytest.FixtureRequest
) -> None:
    module = importlib.import_module(namespace)
    short = namespace.removeprefix("arrayfn.")
    stored = documentation.entries(short)
    assert list(stored) == sorted(stored)
    computed = {}
    for name, text in stored.items():
        public = Public(namespace, name, reduce(getattr, name.split("."), module))
        computed[name] = reference.entry(public, reference.code_of(text))
    if request.config.getoption("--update-golden"):
        text = "\n\n".join(computed.values()) + "\n"
        (documentation.FOLDER / f"{short}.txt").write_text(text, encoding="utf-8")
        return
    differing = {
        name: (text, computed[name])
        for name, text in stored.items()
        if f"{name}\n{text}" != computed[name]
    }
    assert differing == {}, "pytest tests/test_reference.py --update-golden writes them"


# Where a result is not the one of the library of the same name, and why.
DIFFERENT = {
    "numpy.empty": "its numbers are arbitrary",
    "numpy.empty_like": "its numbers are arbitrary",
}


def with_source() -> list[tuple[str, str, str]]:
    """(namespace, function of NumPy or SciPy, code) for entries that name one."""
    found = []
    for namespace in WITH_ENTRIES:
        short = namespace.removeprefix("arrayfn.")
        for text in documentation.entries(short).values():
            source = re.match(r"The same\s+as\s+``([\w.]+)``", text)
            code = reference.code_of(text)
            if source and "\n" not in code and "lambda" not in code:
                found.append((namespace, source[1], code))
    return found


@pytest.mark.parametrize("namespace", sorted({each[0] for each in with_source()}))
def test_the_library_of_the_same_name_gives_the_same_numbers(namespace: str) -> None:
    root: dict[str, Any] = {"numpy": np, "scipy": scipy}
    compared = 0
    for here, source, code in with_source():
        if here != namespace or source in DIFFERENT:
            continue
        theirs = re.sub(r"\banp\b", "np", re.sub(r"\baf\.scipy\b", "scipy", code))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            importlib.import_module(source.rpartition(".")[0])
            want = eval(theirs, {**root, "np": np})
            got = eval(code, dict(reference.NAMES))
        leaves = af.tree.leaves(got), af.tree.leaves(want)
        assert len(leaves[0]) == len(leaves[1]), code
        for g, w in zip(*leaves, strict=True):
            if isinstance(w, np.ndarray | np.generic | int | float | complex):
                np.testing.assert_allclose(g, w, 1e-6, 1e-12, err_msg=code)
            else:
                assert repr(g) == repr(w), code
        compared += 1
    assert compared


def test_help_shows_an_entry_below_the_docstring() -> None:
    text = inspect.getdoc(af.numpy.exp) or ""
    assert text.startswith("Raise e to the power")
    assert "The same as ``numpy.exp``." in text
    assert ">>> anp.exp(np.array([0.0, 1.0]))\narray([1.        , 2.71828183])" in text


# The pages of the site.


@pytest.fixture(scope="module")
def hook() -> Any:
    """The hook that writes the pages, which only ``make docs`` needs."""
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location(
        "reference_pages", DOCS / "reference_pages.py"
    )
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("page", ["reference.md", "reference-statistics.md"])
def test_headings_stand_apart_from_the_tables_before_them(hook: Any, page: str) -> None:
    text = hook.on_page_markdown((DOCS / page).read_text(encoding="utf-8"))
    lines = re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n")
    headings = [k for k, line in enumerate(lines) if line.startswith("#")]
    assert len(headings) > 20
    assert [lines[k] for k in headings if k and lines[k - 1]] == []


def test_powers_in_docstrings_are_no_bold_text(hook: Any) -> None:
    text = hook._markdown("The root of x**2 + ``y**2``.\n\n    indented**2")
    assert text == "The root of x\\*\\*2 + `y**2`.\n\n    indented**2"


@pytest.mark.parametrize("page", ["reference.md", "reference-linalg.md"])
def test_a_page_has_each_anchor_once(hook: Any, page: str) -> None:
    text = hook.on_page_markdown((DOCS / page).read_text(encoding="utf-8"))
    anchors = re.findall(r"^#.* \{#(.+)\}$", text, re.MULTILINE)
    assert len(anchors) > 50
    assert sorted(set(anchors)) == sorted(anchors)


def test_names_with_two_underscores_are_no_bold_text(hook: Any) -> None:
    markdown = pytest.importorskip("markdown")
    name = "__array_namespace_info__"
    entry = hook._shown("arrayfn.numpy", name, getattr(af.numpy, name))
    html = markdown.markdown(entry, extensions=["attr_list"])
    assert html.startswith(f'<h3 id="arrayfn.numpy.{name}">{name}</h3>')


def test_a_docstring_that_begins_with_a_signature_is_summarised_by_what_follows() -> (
    None
):
    assert Public("arrayfn.numpy", "dtype", np.dtype).doc.startswith("Create a data")


def test_facts_hold_for_shapes_that_follow_from_values_and_for_indices() -> None:
    def dtypes(name: str, call: str) -> list[str]:
        public = Public("arrayfn.numpy", name, getattr(af.numpy, name))
        return reference.facts(public, call)

    assert dtypes("union1d", "anp.union1d(np.array([1, 2]), np.array([2, 5]))")[
        1:3
    ] == [
        "Shapes: (2,), (2,) -> (3,).",
        "The result has the dtype of the arguments.",
    ]
    assert "The result has the dtype of the arguments." in dtypes(
        "take", "anp.take(np.array([5, 6, 7]), np.array([2, 0, 1]))"
    )


def test_signatures_show_defaults_as_they_are_written(hook: Any) -> None:
    shown = hook._signature("searchsorted", af.numpy.searchsorted)
    assert "    side: str = 'left',\n" in shown
    assert "ArrayLike | None = None" in shown


def test_what_is_no_function_is_shown_without_its_address(hook: Any) -> None:
    for namespace, name in [("numpy", "mgrid"), ("numpy", "s_"), ("ode", "METHODS")]:
        module = importlib.import_module(f"arrayfn.{namespace}")
        entry = hook._shown(f"arrayfn.{namespace}", name, getattr(module, name))
        assert " at 0x" not in entry


def test_an_example_that_uses_a_bare_name_imports_it(hook: Any) -> None:
    entry = hook._shown("arrayfn.numpy", "vectorize", af.numpy.vectorize)
    assert "```pycon\n>>> from arrayfn.numpy import vectorize\n>>> import" in entry
    entry = hook._shown("arrayfn.numpy", "mgrid", af.numpy.mgrid)
    assert ">>> from arrayfn.numpy import mgrid, ogrid\n" in entry


def test_examples_of_pages_use_no_name_that_they_do_not_import(hook: Any) -> None:
    unknown = {}
    for each in public_names():
        home = hook._home(each.namespace, each.value)
        shown = reference.code_of(hook.with_imports(each.namespace, each.doc, home))
        if names := hook.free_names(shown, {*dir(builtins)}):
            unknown[each.path] = names
    assert unknown == {}
