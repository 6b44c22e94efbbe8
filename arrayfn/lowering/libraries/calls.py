"""A library's kernel as a step of a plan, before its buffers have numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from arrayfn import dtypes
from arrayfn.ir import Atom, Var
from arrayfn.lowering.plan import LibraryKernel, Parameter
from arrayfn.passes.reads import Reads

ITEM_WORK = 1 << 17  # multiply-adds that are worth waking a thread for
START = 8  # multiply-adds that take as long as to begin with a matrix, or an element


@dataclass(frozen=True, slots=True)
class Place:
    """A pointer argument: ``offset`` elements into ``array``."""

    array: Var
    offset: int = 0


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """Work items 0 to ``items`` of a library's kernel.

    The kernel's parameters are, in this order: what is ``read``, what is ``written``
    (it may be read too), the running thread's own ``scratch`` memory (bytes for each
    pointer), and ``integers``. Work items must be independent of each other, so that
    neither their order nor the thread that does one matters to the result; ``grain``
    is how many are worth giving to a thread.
    """

    provider: str
    reads: Mapping[str, Place]
    writes: Mapping[str, Place]
    integers: Mapping[str, int]
    items: int
    grain: int = 1
    scratch: Mapping[str, int] = field(default_factory=dict)
    library: str = ""

    def kernel(self) -> LibraryKernel:
        """The kernel that is called."""
        arrays = {**self.reads, **self.writes}
        parameters = [
            Parameter(name, dtypes.short_name(place.array.type.dtype) + "*")
            for name, place in arrays.items()
        ]
        parameters += [Parameter(name, "u8*") for name in self.scratch]
        parameters += [Parameter(name, "i64") for name in self.integers]
        return LibraryKernel(
            self.provider, self.provider, tuple(parameters), self.library
        )


def place_of(atom: Atom, reads: Reads) -> Place:
    """The memory of an operand, which the layout pass has made row-major."""
    assert isinstance(atom, Var)
    read = reads[atom]
    base = read.base.type
    return Place(read.base, read.offset(base.layout.strides(base.shape)))


def grain_of(work: float) -> int:
    """The smallest number of items, of ``work`` multiply-adds each, worth a thread."""
    return max(1, int(ITEM_WORK / max(1.0, work)))
