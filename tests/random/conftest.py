"""The script that writes the expected values needs JAX, and is no test."""

from __future__ import annotations

collect_ignore = ["write_expected.py"]
