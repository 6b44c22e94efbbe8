"""The notebooks as pages of the site, with their stored outputs: a hook of MkDocs.

Formulas become outlines, so that the site needs no script from elsewhere.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.textpath import TextPath
from mkdocs.structure.files import File, Files

_FOLDER = Path(__file__).parents[1] / "notebooks"
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+?)\$", re.DOTALL)
_COMMANDS = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each notebook."""
    for path in sorted(_FOLDER.glob("*.ipynb")):
        uri = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, uri, content=_page(path)))
    return files


def _page(path: Path) -> str:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    note = (
        f"\n\n*This page is `notebooks/{path.name}` with its outputs; run it with "
        "`jupyter lab notebooks`.*"
    )
    title, *parts = [part for cell in notebook["cells"] for part in _cell(cell)]
    heading, _, rest = title.partition("\n")
    return "\n\n".join([heading + note, rest.strip(), *parts])


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield _FORMULA.sub(lambda found: _formula(*found.groups()), source)
    elif source.strip():
        yield f"```python\n{source}\n```"
        for output in _joined(cell["outputs"]):
            yield from _output(output)


def _joined(outputs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The outputs, with what was printed to one stream in a row as one."""
    for name, group in groupby(outputs, lambda output: output.get("name")):
        if name is None:
            yield from group
        else:
            yield {"text": [line for output in group for line in output["text"]]}


def _formula(alone: str | None, inside: str | None) -> str:
    """A formula as outlines in the colour of the text, so that nothing is loaded."""
    tex = " ".join((alone or inside or "").split())
    size = 10.0
    path = TextPath((0, 0), f"${tex}$", size=size)
    box = path.get_extents()
    parts = []
    for points, code in path.iter_segments():
        flipped = [f"{-y if k % 2 else y:.2f}" for k, y in enumerate(points)]
        closes = _COMMANDS[int(code)] == "Z"
        parts.append(_COMMANDS[int(code)] + ("" if closes else " ".join(flipped)))
    style = (
        f"height:{box.height / size:.3f}em;vertical-align:{box.y0 / size:.3f}em;"
        "fill:currentColor;overflow:visible"
    )
    view = f"{box.x0:.2f} {-box.y1:.2f} {box.width:.2f} {box.height:.2f}"
    label = tex.replace('"', "'").replace("<", "&lt;")
    svg = (
        f'<svg role="img" aria-label="{label}" viewBox="{view}" style="{style}">'
        f'<path d="{"".join(parts)}"/></svg>'
    )
    return f'<p style="text-align:center;font-size:1.2em">{svg}</p>' if alone else svg


def _output(output: dict[str, Any]) -> Iterator[str]:
    data = output.get("data", {})
    if image := data.get("image/png"):
        yield f"![Figure](data:image/png;base64,{''.join(image).strip()})"
    elif html := data.get("text/html"):
        # A blank line would end the block of HTML.
        kept = re.sub(r"\n\s*\n", "\n", "".join(html))
        yield f'<div class="output">\n{kept}\n</div>'
    else:
        text = "".join(output.get("text", data.get("text/plain", "")))
        if text := _wrapped(_ESCAPES.sub("", text).rstrip()):
            yield f"```text\n{text}\n```"


def _wrapped(text: str) -> str:
    """Text with no line of more than 100 characters: messages are one long line."""
    lines = text.split("\n")
    return "\n".join(
        part
        for line in lines
        for part in (textwrap.wrap(line, 88) if len(line) > 100 else [line])
    )
