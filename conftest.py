"""Names that examples in docstrings use without importing them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp


@pytest.fixture(autouse=True)
def names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    """``np``, ``af`` and ``anp``, as on the first page of the documentation."""
    doctest_namespace.update(np=np, af=af, anp=anp)
