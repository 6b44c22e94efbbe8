"""cuBLASLt's algorithms with tiles that it does not propose, where these are faster.

For batches of float32 products, as of attention's logits, a tile that its heuristics
leave out is 5 % faster than any that they propose (H200).
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from arrayfn.backends.cuda.product_forms import Form
from arrayfn.records import frozen

MIN_ALL_TILES_WORK: Final = 1 << 30
"""Multiply-adds of a float32 batch from which all tiles are tried."""
_TILE_IDS, _STAGE_IDS = 6, 13  # capabilities of an algorithm
_ALGORITHM_ID, _TILE, _SPLIT_K, _STAGES = 0, 1, 2, 6  # its settings


class Choice(ctypes.Structure):
    """cuBLASLt's cublasLtMatmulHeuristicResult_t: an algorithm and what it needs."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def tries_all_tiles(form: Form, p: Mapping[str, int]) -> bool:
    """Whether all tiles are timed for a product, besides cuBLASLt's proposals.

    They are for a large batch in float32.
    """
    is_float = form.operand.name == "f32" and not form.uses_tensor_cores
    work = p["batch"] * p["m"] * p["n"] * p["k"]
    return is_float and p["batch"] > 1 and work >= MIN_ALL_TILES_WORK


@frozen
class Tiles:
    """Lists algorithms with other tiles than the proposed ones, for one product.

    ``handle``, ``operation`` and ``layouts`` are cuBLASLt's: of ``library``, of the
    product, and of its matrices. ``form`` has the product's dtypes.
    """

    library: ctypes.CDLL
    handle: int
    form: Form
    operation: ctypes.c_void_p
    layouts: Sequence[ctypes.c_void_p]

    def all_choices(
        self, proposals: Sequence[Choice], workspace: int
    ) -> Iterator[Choice]:
        """Yield the algorithms of ``proposals`` with each of their tiles and stages.

        Those that need more than ``workspace`` bytes are left out.
        """
        made = self._all(proposals)
        return (c for c in made if c is not None and c.workspace <= workspace)

    def _all(self, proposals: Sequence[Choice]) -> Iterator[Choice | None]:
        """Yield each proposed algorithm with each tile and number of stages.

        For a combination that cuBLASLt refuses, yield None.
        """
        for number in sorted({self._algorithm_id(choice) for choice in proposals}):
            made = (ctypes.c_uint64 * 8)()  # a cublasLtMatmulAlgo_t
            operand, result = self.form.operand, self.form.result
            types = (operand.data, operand.data, result.data, result.data)
            what = (self.form.compute, operand.scale, *types, number)
            handle = ctypes.c_void_p(self.handle)
            if self.library.cublasLtMatmulAlgoInit(handle, *what, ctypes.byref(made)):
                continue
            for tile, stages in itertools.product(
                self._capability(made, _TILE_IDS), self._capability(made, _STAGE_IDS)
            ):
                yield self._configured(
                    made, {_TILE: tile, _STAGES: stages, _SPLIT_K: 1}
                )

    def _algorithm_id(self, choice: Choice) -> int:
        """Return cuBLASLt's number of the algorithm of ``choice``."""
        number, written = ctypes.c_int(), ctypes.c_size_t()
        self.library.cublasLtMatmulAlgoConfigGetAttribute(
            ctypes.byref(choice.algorithm),
            _ALGORITHM_ID,
            ctypes.byref(number),
            ctypes.c_size_t(ctypes.sizeof(number)),
            ctypes.byref(written),
        )
        return number.value

    def _capability(self, algorithm: Any, attribute: int) -> list[int]:
        """Return the values of a capability of ``algorithm``; [0] if it has none.

        ``attribute`` is the capability's number.
        """
        nbytes = ctypes.c_size_t()
        get = self.library.cublasLtMatmulAlgoCapGetAttribute
        reference, size = ctypes.byref(algorithm), ctypes.byref(nbytes)
        get(reference, attribute, None, ctypes.c_size_t(0), size)
        found = (ctypes.c_int * (nbytes.value // ctypes.sizeof(ctypes.c_int)))()
        get(reference, attribute, found, nbytes, size)
        return list(found) or [0]

    def _configured(self, algorithm: Any, settings: Mapping[int, int]) -> Choice | None:
        """Return ``algorithm`` with ``settings``; None if cuBLASLt refuses them.

        ``settings`` has the values of its attributes, by the attributes' numbers.
        """
        made, choice = type(algorithm)(*algorithm), Choice()
        for attribute, value in settings.items():
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
