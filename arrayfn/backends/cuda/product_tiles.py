"""cuBLASLt's algorithms with tiles that it does not propose, where these are faster.

For batches of float32 products, as of attention's logits, a tile that its heuristics
leave out is 5 % faster than any that they propose. For large float16 and bfloat16
products they assume the full clock, which a card does not hold for long: there the
tiles that draw less power are 1 to 3 % faster (H200).
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from arrayfn.backends.cuda.product_forms import Form
from arrayfn.lowering.scalars.arithmetic import HALF_PRECISION

MIN_ALL_TILES_WORK: Final = 1 << 30
"""Multiply-adds of a float32 batch from which all tiles are tried."""
MIN_LOW_POWER_WORK: Final = (
    1 << 36
)  # multiply-adds of a 16-bit product that slow the clock down
"""Multiply-adds of a 16-bit product that heat the GPU until it slows its clock down."""
_TILE_IDS, _STAGE_IDS = 6, 13  # capabilities of an algorithm
_ALGORITHM_ID, _TILE, _SPLIT_K, _CUSTOM_OPTION, _STAGES, _CLUSTER = (
    0,
    1,
    2,
    5,
    6,
    8,
)  # its settings
_LOW_POWER_SETTINGS: Final = (
    {_TILE: 20, _CUSTOM_OPTION: 3, _CLUSTER: 2},
    {_TILE: 32, _CUSTOM_OPTION: 7, _CLUSTER: 3},
)
"""Settings that draw less power on an H200, where cuBLASLt accepts them."""

Candidates = Literal["proposals", "all tiles", "low power"]
"""What is timed: cuBLASLt's proposals, or also other or less power-hungry tiles."""


class Choice(ctypes.Structure):
    """cuBLASLt's cublasLtMatmulHeuristicResult_t: an algorithm and what it needs."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def choose_candidates(form: Form, p: Mapping[str, int]) -> Candidates:
    """Choose which algorithms are timed for a product.

    All tiles for a batch in float32; tiles that draw less power for a large 16-bit
    product; else what cuBLASLt proposes alone.
    """
    work = p["batch"] * p["m"] * p["n"] * p["k"]
    is_float = form.operand.name == "f32" and not form.uses_tensor_cores
    if is_float and p["batch"] > 1 and work >= MIN_ALL_TILES_WORK:
        return "all tiles"
    is_half = form.operand.name in HALF_PRECISION
    return "low power" if is_half and work >= MIN_LOW_POWER_WORK else "proposals"


@dataclass(frozen=True)
class Tiles:
    """Lists algorithms with other tiles than the proposed ones, for one product."""

    library: ctypes.CDLL
    handle: int
    form: Form
    operation: ctypes.c_void_p
    layouts: Sequence[ctypes.c_void_p]

    def other_choices(
        self, proposals: Sequence[Choice], which: Candidates, workspace: int
    ) -> Iterator[Choice]:
        """Choices besides ``proposals`` that need ``workspace`` bytes at most."""
        made: Iterator[Choice | None] = iter(())
        if which == "all tiles":
            made = self._all(proposals)
        elif which == "low power":
            pairs = itertools.product(proposals[:1], _LOW_POWER_SETTINGS)
            made = (self._configured(c.algorithm, settings) for c, settings in pairs)
        return (c for c in made if c is not None and c.workspace <= workspace)

    def _all(self, proposals: Sequence[Choice]) -> Iterator[Choice | None]:
        """Each proposed algorithm with each tile and stage count; None if refused."""
        for number in sorted({self._algorithm_id(choice) for choice in proposals}):
            made = (ctypes.c_uint64 * 8)()
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
        """cuBLASLt's number of the algorithm of ``choice``."""
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
        """The values of a capability of ``algorithm``; 0, for none, if it has none.

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
        """``algorithm`` with ``settings``; None if cuBLASLt refuses them."""
        made, choice = type(algorithm)(*algorithm), Choice()
        for attribute, value in settings.items():
            kind = ctypes.c_uint16 if attribute == _CLUSTER else ctypes.c_uint32
            number = kind(value)
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
