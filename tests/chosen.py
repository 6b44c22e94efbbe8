"""A plugin of pytest: run only the tests whose ids stand in a file.

    python -m pytest tests -p tests.chosen --chosen FILE

More ids than fit on a command line. One id a line; what is not collected is ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that names the file."""
    parser.addoption("--chosen", type=Path, required=True)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselect all but the ids of the file."""
    chosen = cast(Path, config.getoption("--chosen"))
    ids = set(chosen.read_text().splitlines())
    left_out = [item for item in items if item.nodeid not in ids]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.nodeid in ids]
