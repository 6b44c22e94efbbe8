"""Opening NVIDIA's libraries, wherever they are installed."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from arrayfn.errors import BackendError


def open_library(name: str, what: str, package: str) -> Any:
    """NVIDIA's library ``name``; BackendError says what needs it, and its package."""
    try:
        finder = importlib.import_module("cuda.pathfinder")
        return ctypes.CDLL(str(finder.load_nvidia_dynamic_lib(name).abs_path))
    except (ImportError, OSError, RuntimeError):
        pass
    for version in (".so.13", ".so.12", ".so"):
        try:
            return ctypes.CDLL(f"lib{name}{version}")
        except OSError:
            continue
    raise BackendError(f"{what} on a GPU needs {name}: pip install {package}")
