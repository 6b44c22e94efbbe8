"""The pages are true: their Python runs as it stands, and prints what they say.

Each ``python`` block of a page runs after those before it. A ``text`` block that
follows one is its output, or the error that it raises; `pytest --update-golden`
writes it anew.
"""

import contextlib
import io
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from arrayfn.errors import ArrayfnError

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FOLDERS = ("", "tutorial", "coming-from")
PAGES = [
    ROOT / "README.md",
    *(page for name in FOLDERS for page in sorted((DOCS / name).glob("*.md"))),
]
BLOCKS = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<text>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A piece of code, what the page says it prints, and where in the page that is."""

    code: str
    text: str | None
    span: tuple[int, int]


def blocks(page: str) -> Iterator[Block]:
    for match in BLOCKS.finditer(page):
        yield Block(match["code"], match["text"], match.span("text"))


def output(code: str, namespace: dict[str, object]) -> str:
    """What ``code`` prints, with the message of an error of arrayfn's."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that a device is missing here
        try:
            exec(compile(code, "example.py", "exec"), namespace)
        except ArrayfnError as error:
            message = f"{type(error).__name__}: {error}"
            printed.write(textwrap.fill(message, 84, break_on_hyphens=False))
    return printed.getvalue().rstrip() + "\n"


def with_text(page: str, replacements: list[tuple[tuple[int, int], str]]) -> str:
    for (start, end), text in reversed(replacements):
        page = page[:start] + text + page[end:]
    return page


@pytest.mark.usefixtures("machine_of_examples")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_of_a_page_runs_and_prints_what_the_page_says(path, request):
    page = path.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "example"}
    replacements = []
    for block in blocks(page):
        printed = output(block.code, namespace)
        if block.text is None:
            assert "Error: " not in printed, printed
            continue
        if request.config.getoption("--update-golden"):
            replacements.append((block.span, printed))
        else:
            assert printed == block.text
    if replacements:
        path.write_text(with_text(page, replacements), encoding="utf-8")


def test_a_block_is_paired_with_the_text_that_follows_it():
    page = "a\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\nx = 2\n```\n"
    first, second = blocks(page)
    assert (first.code, first.text, second.text) == ("print(1)\n", "1\n", None)
    assert with_text(page, [(first.span, "one\n")]) == page.replace("\n1\n", "\none\n")
