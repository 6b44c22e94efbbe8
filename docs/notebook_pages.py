"""The notebooks as pages of the site, with their stored outputs: a hook of MkDocs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_FOLDER = Path(__file__).parents[1] / "notebooks"
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
        yield source
    elif source.strip():
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            yield from _output(output)


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
        if text := _ESCAPES.sub("", text).rstrip():
            yield f"```text\n{text}\n```"
