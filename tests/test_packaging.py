"""What the package says about itself is so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RECIPE = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")


def required(lines: list[str]) -> dict[str, str]:
    found = [Requirement(line) for line in lines]
    return {each.name: str(each.specifier) for each in found}


def test_the_recipe_of_conda_requires_what_the_wheel_requires() -> None:
    section = RECIPE.partition("  run:\n")[2].partition("\n\n")[0]
    lines = [line.removeprefix("    - ") for line in section.splitlines()]
    recipe = required([line for line in lines if not line.startswith("__")])
    project = required(PROJECT["project"]["dependencies"])
    assert recipe.pop("python") == PROJECT["project"]["requires-python"]
    assert recipe == project


def test_the_recipe_of_conda_has_the_version_of_the_project() -> None:
    assert f'version: "{PROJECT["project"]["version"]}"' in RECIPE


def test_numpy_is_bounded_from_above_by_the_extra_cuda_alone() -> None:
    project = PROJECT["project"]
    assert required(project["dependencies"])["numpy"] == ">=2.2"
    assert required(project["optional-dependencies"]["cuda"])["numpy"] == "<2.5"


def test_the_sdist_has_every_folder_that_pages_name() -> None:
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for folder in ("arrayfn", "docs", "examples", "notebooks", "tests", "benchmarks"):
        assert f"/{folder}" in included
    for path in included:
        assert (ROOT / path.strip("/")).exists() or path == "/arrayfn"


def test_pages_name_extras_that_there_are() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"])
    for page in ("README.md", "docs/install.md", "docs/notebook-list.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for named in re.findall(r"'\.\[([\w,-]+)\]'", text):
            assert set(named.split(",")) <= extras, page
