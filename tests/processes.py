"""Other Python processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

import arrayfn as af


def python_path() -> str:
    """PYTHONPATH for a process that is to import this arrayfn and what it needs."""
    here = str(Path(af.__file__).parents[1])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
