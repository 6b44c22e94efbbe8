"""Execute the notebooks; any error in a cell fails: ``make notebooks``.

``make notebooks ARGS=--write`` also stores their outputs, without the times of the
run, so that a notebook whose results are the same stays the same file.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def execute(path: Path, write: bool) -> None:
    """Run all cells in a fresh kernel, in the notebook's folder."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute()
    if write:
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [each for each in cell.outputs if not progress(each)]
        notebook.metadata.pop("language_info", None)  # names the Python of this machine
        nbformat.write(notebook, path)


def progress(output: Mapping[str, Any]) -> bool:
    """Whether an output says that a compilation takes long, as on a busy machine."""
    lines = str(output.get("text", "")).splitlines()
    of_compiler = all(line.startswith("arrayfn: ") for line in lines)
    return output.get("name") == "stderr" and of_compiler


def main() -> None:
    """Execute all notebooks of this folder."""
    parser = argparse.ArgumentParser(description="Execute the notebooks.")
    parser.add_argument("--write", action="store_true", help="store the outputs")
    chosen = parser.parse_args()
    logging.getLogger("traitlets").setLevel(logging.ERROR)
    for path in sorted(FOLDER.glob("*.ipynb")):
        print(path.name, flush=True)
        execute(path, chosen.write)


if __name__ == "__main__":
    main()
