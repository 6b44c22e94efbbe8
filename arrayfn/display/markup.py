"""Code listings, tables and whole pages as HTML.

A line that is listed in several places has the same *links* there: hovering over one of
them marks the others. Links are names of steps (``"s3"``) and of lines (``"l12"``).
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from arrayfn.display.style import STYLE
from arrayfn.records import frozen

_TOKENS: Final = re.compile(
    r"(?P<comment>\#.*)"
    r"|(?P<string>\"\"\".*|'[^']*'|\"[^\"]*\")"
    r"|(?P<type>~?\b(?:bool|[iu](?:4|8|16|32|64)|f(?:8\w+|16|32|64)|bf16|c(?:64|128))\b"
    r"(?:\[[\d,]*\])?\*?)"
    r"|(?P<number>(?<![\w.])-?\d[\w.]*(?:[eE][+-]?\d+)?)"
    r"|(?P<call>\b[A-Za-z_]\w*(?=\())"
    r"|(?P<name>\b[A-Za-z_]\w*)"
)
_KEYWORDS: Final = frozenset({*keyword.kwlist, "program", "constants"})


@frozen(slots=True)
class Line:
    """A line of code, and what links it to other lines.

    ``groups`` are the links of the steps that it belongs to (``"s3"``), and ``part`` is
    the link of its line of the Program (``"l12"``).
    """

    text: str
    groups: tuple[str, ...] = ()
    part: str = ""

    def html(self) -> str:
        """Return the line, highlighted."""
        code = highlighted(self.text)
        return f"<span class='afn-line'{attributes(self)}>{code}\n</span>"


def attributes(line: Line) -> str:
    """Return the attributes that CSS links elements by.

    ``data-s`` are the names of steps, ``data-l`` is that of a line. Hovering over an
    element marks all elements that share one.
    """
    groups = f" data-s='{' '.join(line.groups)}'" if line.groups else ""
    return groups + (f" data-l='{line.part}'" if line.part else "")


def highlighted(text: str) -> str:
    """Mark the parts of code of a Program or a kernel, for the colours.

    >>> highlighted("a: f32[2] = exp(x)  # f.py:1")
    "a: <i class='t'>f32[2]</i> = <i class='f'>exp</i>(x)  <i class='c'># f.py:1</i>"
    """
    pieces: list[str] = []
    end = 0
    for match in _TOKENS.finditer(text):
        pieces.append(escape(text[end : match.start()], quote=False))
        end = match.end()
        mark = {"comment": "c", "string": "s", "type": "t", "number": "n", "call": "f"}
        kind = mark.get(match.lastgroup or "", "")
        word = match.group()
        if word in _KEYWORDS:
            kind = "k"
        inner = escape(word, quote=False)
        pieces.append(f"<i class='{kind}'>{inner}</i>" if kind else inner)
    return "".join(pieces) + escape(text[end:], quote=False)


def listing(lines: Iterable[Line | str]) -> str:
    """Return lines of code as an HTML listing; a text is a line without links."""
    every = (Line(x) if isinstance(x, str) else x for x in lines)
    return f"<pre class='afn-code'>{''.join(line.html() for line in every)}</pre>"


def folded(summary: str, body: str, *, is_open: bool = False, link: str = "") -> str:
    """Hide the HTML ``body`` behind the line ``summary``, until that is clicked on.

    ``link`` has attributes of the line. If ``is_open``, the body is shown at first.
    """
    state = " open=''" if is_open else ""
    return f"<details{state}><summary{link}>{summary}</summary>{body}</details>"


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    links: Sequence[str] = (),
    texts: int = 1,
) -> str:
    """Return a table of HTML cells with the column titles ``head``, which are text.

    The first ``texts`` columns have text, others numbers. ``links`` are the attributes
    of the rows (see ``attributes``). A row may have fewer cells.
    """
    classes = ["" if k < texts else " class='afn-n'" for k in range(len(head))]
    columns = list(zip(head, classes, strict=True))
    titles = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in columns)
    body: list[str] = []
    for number, row in enumerate(rows):
        link = links[number] if number < len(links) else ""
        cells = zip(row, classes, strict=False)
        inner = "".join(f"<td{kind}>{cell}</td>" for cell, kind in cells)
        body.append(f"<tr{link}>{inner}</tr>")
    return (
        f"<table class='afn-table'><thead><tr>{titles}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def shown(title: str, *parts: str, groups: Iterable[str] = (), lines: int = 0) -> str:
    """Return a whole output: its title (HTML), its parts, and CSS that links lines.

    ``groups`` are the links of steps (``"s3"``). ``lines`` is the number of linked
    lines, named ``l1`` and so on.
    """
    rules = [
        f".afn:has([data-s~='{g}']:hover) [data-s~='{g}']"
        "{background:var(--afn-soft);stroke:currentColor}"
        for g in groups
    ]
    rules += [
        f".afn:has([data-l='l{k}']:hover) [data-l='l{k}']{{background:var(--afn-mark)}}"
        for k in range(1, lines + 1)
    ]
    return (
        f"<div class='afn'><style>{STYLE}{''.join(rules)}</style>"
        f"<div class='afn-title'>{title}</div>{''.join(parts)}</div>"
    )


def columns(*parts: str) -> str:
    """Put parts beside each other, or below each other where there is no room."""
    return f"<div class='afn-columns'>{''.join(f'<div>{p}</div>' for p in parts)}</div>"


def heading(text: str) -> str:
    """Return the heading of a part."""
    return f"<div class='afn-head'>{escape(text)}</div>"


def page(title: str, body: str) -> str:
    """Return an HTML document with a ``title`` and an HTML ``body``.

    It is light or dark as the reader's system is.
    """
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}</title><style>:root{{color-scheme:light dark}}"
        "body{font:14px system-ui,sans-serif;margin:2rem auto;max-width:1200px;"
        f"padding:0 1rem}}</style></head><body>{body}</body></html>\n"
    )
