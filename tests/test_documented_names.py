"""What pages say about the code is there: paths, modules, commands, targets, rooms.

Decision records and the CHANGELOG are history and may name what has gone.
"""

from __future__ import annotations

import datetime as dt
import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *(
        page
        for folder in ("", "tutorial", "coming-from")
        for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    ),
]
DECISIONS = ROOT / "docs" / "decisions"
TREES = "arrayfn|tests|docs|benchmarks|notebooks|examples"
QUOTED_PATH = re.compile(rf"`((?:{TREES})/[\w./-]*)`")
DOTTED = re.compile(r"`(arrayfn(?:\.\w+)+)")
COMMAND = re.compile(r"python -m ((?:arrayfn|benchmarks|tests)[\w.]*)")
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"(?:`|^)make ([a-z][a-z-]*)", re.MULTILINE)
SECTIONS = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def each_page(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.name)


def exists(name: str) -> bool:
    """Whether ``name`` is a module, or an attribute of one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@each_page(PAGES)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    named = QUOTED_PATH.findall(page.read_text(encoding="utf-8"))
    examples = {path for path in named if "NAME" in path}
    missing = {path for path in named if not (ROOT / path).exists()}
    assert missing == examples


@each_page(PAGES)
def test_names_of_arrayfn_that_a_page_uses_exist(page: Path) -> None:
    named = DOTTED.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if not exists(name)] == []


@each_page(PAGES)
def test_commands_that_a_page_shows_can_be_run(page: Path) -> None:
    modules = COMMAND.findall(page.read_text(encoding="utf-8"))
    roots = [ROOT / name.replace(".", "/") for name in modules]
    missing = [
        path
        for path in roots
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists()
    ]
    assert missing == []


@each_page(PAGES)
def test_targets_of_make_that_a_page_names_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {line.split(":")[0] for line in makefile.splitlines() if ":" in line}
    text = page.read_text(encoding="utf-8")
    in_prose = TARGET.findall(re.sub(SHELL, "", text).replace("\nmake", " make"))
    in_shell = [name for block in SHELL.findall(text) for name in TARGET.findall(block)]
    assert {*in_prose, *in_shell} <= targets


def test_the_index_lists_every_decision() -> None:
    listed = re.findall(r"\]\((.*?\.md)\)", (DECISIONS / "index.md").read_text())
    pages = {path.name for path in DECISIONS.glob("2*.md")}
    assert set(listed) == pages
    assert len(listed) == len(pages)


@each_page(sorted(DECISIONS.glob("2*.md")))
def test_a_decision_has_a_title_a_date_and_a_decision(page: Path) -> None:
    title, _, status, *body = page.read_text(encoding="utf-8").splitlines()
    made = dt.date.fromisoformat(page.name[:10])
    assert title.startswith("# ")
    assert status.startswith(f"{made.day} {made:%B %Y}. ")
    assert any(re.match("## .*[Dd]ecision", line) for line in body)


def test_the_map_of_contributing_has_every_layer() -> None:
    layers = CONTRACTS["contracts"][0]["layers"]
    rooms = {room for layer in layers for room in re.findall(r"\w+", layer)}
    sections = dict(SECTIONS.findall((ROOT / "CONTRIBUTING.md").read_text()))
    paths = [Path(path) for path in QUOTED_PATH.findall(sections["The layers"])]
    drawn = {
        path.with_suffix("").parts[1:2] for path in paths if "arrayfn" in path.parts
    }
    drawn = {name for parts in drawn for name in parts}
    assert drawn <= rooms
    packages = {
        name for name in rooms if (ROOT / "arrayfn" / name / "__init__.py").exists()
    }
    small = {"linalg", "fft"}  # namespaces that only export again
    assert packages - small <= drawn


def test_contracts_that_contributing_quotes_are_in_force() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = {contract["name"] for contract in CONTRACTS["contracts"]}
    assert "Backends do not know each other" in names
    assert "Backends do not know each other" in text


def test_the_glossary_defines_each_term_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    terms = [term.strip() for row in rows for term in row.split(",")]
    terms = [term for term in terms if term not in {"Term", "---"}]
    assert len(terms) > 100
    assert sorted(terms) == sorted(set(terms))


def test_a_name_that_is_not_there_is_found() -> None:
    assert exists("arrayfn.numpy.exp")
    assert exists("arrayfn.lowering.kernel_ir")
    assert not exists("arrayfn.lowering.no_such_module")
    assert importlib.import_module("arrayfn") is pkgutil.resolve_name("arrayfn")
