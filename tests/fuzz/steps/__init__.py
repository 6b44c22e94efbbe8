"""What lines are drawn from: the public functions, family by family."""

from typing import Final

from tests.fuzz.generator import STEPS
from tests.fuzz.steps import (
    contractions,
    control,
    elementwise,
    indexing,
    libraries,
    others,
    reductions,
    shapes,
    storage,
)

FAMILIES: Final = {
    "elementwise": 16,
    "binary": 20,
    "integers": 3,
    "special": 3,
    "nn": 3,
    "complex": 2,
    "dtypes": 5,
    "storage": 4,
    "choose": 6,
    "reduce": 11,
    "cumulative": 4,
    "sorting": 3,
    "statistics": 3,
    "shapes": 12,
    "join": 5,
    "create": 3,
    "index": 12,
    "take": 5,
    "update": 6,
    "slices": 4,
    "contract": 7,
    "windows": 2,
    "linalg": 2,
    "fft": 1,
    "random": 1,
    "search": 2,
    "control": 7,
    "calls": 4,
    "others": 8,
}
"""How often a family is drawn."""

__all__ = [
    "FAMILIES",
    "STEPS",
    "contractions",
    "control",
    "elementwise",
    "indexing",
    "libraries",
    "others",
    "reductions",
    "shapes",
    "storage",
]
