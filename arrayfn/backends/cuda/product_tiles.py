"""cuBLASLt's algorithms with each of their tiles, where it does not propose the best.

Its heuristics are made for large products: of batches of float32, as of attention's
logits, a tile that it leaves out is 5 % faster than any that it proposes.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from arrayfn.backends.cuda.product_forms import Form

WORK: Final = 1 << 30  # multiply-adds from where a tile of its own is worth being found
_TILE_IDS, _STAGE_IDS = 6, 13  # what an algorithm can do
_NUMBER, _TILE, _PARTS, _STAGES = 0, 1, 2, 6  # what is set


class Choice(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def are_tried(form: Form, p: Mapping[str, int]) -> bool:
    """Whether all tiles are tried for a product: it is of a batch in float32."""
    work = p["batch"] * p["m"] * p["n"] * p["k"]
    is_float = form.operand.name == "f32" and not form.by_tensor_cores
    return is_float and p["batch"] > 1 and work >= WORK


@dataclass(frozen=True)
class Tiles:
    """The tiles for one product: cuBLASLt, and what it is told of the product."""

    library: ctypes.CDLL
    handle: int
    form: Form
    operation: ctypes.c_void_p
    layouts: Sequence[ctypes.c_void_p]

    def of(self, proposals: Sequence[Choice], workspace: int) -> Iterator[Choice]:
        """The proposed algorithms with each tile that takes the product.

        They need up to ``workspace`` bytes.
        """
        numbers = {self._number(choice) for choice in proposals}
        for number in sorted(numbers):
            made = (ctypes.c_uint64 * 8)()
            operand, result = self.form.operand, self.form.result
            types = (operand.data, operand.data, result.data, result.data)
            what = (self.form.compute, operand.scale, *types, number)
            handle = ctypes.c_void_p(self.handle)
            if self.library.cublasLtMatmulAlgoInit(handle, *what, ctypes.byref(made)):
                continue
            for tile, stages in itertools.product(
                self._able(made, _TILE_IDS), self._able(made, _STAGE_IDS)
            ):
                choice = self._checked(made, tile, stages)
                if choice is not None and choice.workspace <= workspace:
                    yield choice

    def _number(self, choice: Choice) -> int:
        """Of the algorithm."""
        number, written = ctypes.c_int(), ctypes.c_size_t()
        self.library.cublasLtMatmulAlgoConfigGetAttribute(
            ctypes.byref(choice.algorithm),
            _NUMBER,
            ctypes.byref(number),
            ctypes.c_size_t(ctypes.sizeof(number)),
            ctypes.byref(written),
        )
        return number.value

    def _able(self, algorithm: Any, attribute: int) -> list[int]:
        """The numbers of what ``algorithm`` has; 0, which is none, if it has none."""
        nbytes = ctypes.c_size_t()
        get = self.library.cublasLtMatmulAlgoCapGetAttribute
        place, size = ctypes.byref(algorithm), ctypes.byref(nbytes)
        get(place, attribute, None, ctypes.c_size_t(0), size)
        found = (ctypes.c_int * (nbytes.value // ctypes.sizeof(ctypes.c_int)))()
        get(place, attribute, found, nbytes, size)
        return list(found) or [0]

    def _checked(self, algorithm: Any, tile: int, stages: int) -> Choice | None:
        """The algorithm with this tile, if it computes the product."""
        made, choice = type(algorithm)(*algorithm), Choice()
        for attribute, value in ((_TILE, tile), (_STAGES, stages), (_PARTS, 1)):
            number = ctypes.c_uint32(value)
            self.library.cublasLtMatmulAlgoConfigSetAttribute(
                ctypes.byref(made),
                attribute,
                ctypes.byref(number),
                ctypes.c_size_t(ctypes.sizeof(number)),
            )
        status = self.library.cublasLtMatmulAlgoCheck(
            ctypes.c_void_p(self.handle),
            self.operation,
            *self.layouts,
            ctypes.byref(made),
            ctypes.byref(choice),
        )
        if status or choice.status:
            return None
        choice.algorithm = made
        return choice
