"""Loops with independent elements: each thread runs the whole loop for one element.

The text is that of a small loop on a CPU (``cpu.serial``). The loop's arrays become
variables with this thread's element: they are read before the loop and written after
it. In between, only slices of scanned arrays access memory. Scalars are the same for
all: every thread computes them, and the first stores them.
"""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from arrayfn import dtypes
from arrayfn.ir import Var
from arrayfn.lowering.cpu.serial import LoopPrinter
from arrayfn.lowering.cuda.config import GpuConfig
from arrayfn.lowering.cuda.schedule import power_of_two
from arrayfn.lowering.cuda.vocabulary import WARP
from arrayfn.lowering.in_place import Storage
from arrayfn.lowering.steps import LoopStep


def threads_for(lanes: int, gpu: GpuConfig) -> int:
    """Choose the threads of a block for a loop over ``lanes`` independent elements.

    A block has few enough threads that the elements' blocks occupy all multiprocessors.
    """
    return min(gpu.threads, max(WARP, power_of_two(-(-lanes // gpu.multiprocessors))))


class OneThreadLoopPrinter(LoopPrinter):
    """Prints a loop that one thread runs from its first to its last iteration."""

    is_interruptible = False
    """A kernel of a GPU does not end early if the user interrupts the run."""


class ElementLoopPrinter(OneThreadLoopPrinter):
    """Prints a loop that each thread runs for one element of the carried arrays."""

    items = ()
    """No parameters give a range of work items: a thread has one element."""

    def __init__(
        self,
        loop: LoopStep,
        name: str,
        storage: Storage,
        names: Mapping[Var, str],
        *,
        readable: bool,
        threads: int,
    ) -> None:
        """Begin without text; ``threads`` are the threads of a block."""
        super().__init__(loop, name, storage, names, readable=readable)
        # A work item is a block of the GPU: its elements, its threads.
        self.block = self.threads = threads
        self.items_text = f"{threads} threads a block."

    @override
    def print(self) -> None:
        """Print the whole kernel; ``i0`` is the thread's element."""
        self.lanes = self.integer("n", self.step.lanes)
        self.line(f"i0 = block_index() * {self.threads} + thread_index()")
        with self.open(f"if i0 < {self.lanes}:"):
            self.loop(self.step)
        self.finish()

    def is_lane(self, root: Var) -> bool:
        """Whether the array ``root`` has one element for each thread of the loop."""
        return root.type.size == self.step.lanes

    @override
    def can_be_variable(self, root: Var) -> bool:
        """Return whether a variable can stand for a thread's element of ``root``.

        It cannot for half precision, which memory stores in another form, nor if the
        loop needs the array itself (``in_memory``).
        """
        used_plainly = (
            root not in self.in_memory and root.type.dtype not in dtypes.HALF_PRECISION
        )
        return used_plainly and (root.type.size == 1 or self.is_lane(root))

    @override
    def index_of(self, root: Var) -> str:
        """Return the index of this thread's element of ``root``; "" for a scalar's."""
        return "i0" if self.is_lane(root) else ""

    @override
    def guard(self, array: Var) -> str:
        """Return the condition of a store to ``array``: one thread stores a scalar."""
        return "" if self.is_lane(array) else "i0 == 0"

    @override
    def bounds(self, extent: int) -> str | None:
        """Return the bounds of a loop over ``extent``; None along the threads' axis."""
        return None if extent == self.step.lanes else str(extent)

    @override
    def vocabularies(self) -> list[tuple[str, set[str]]]:
        """Return the modules that the kernel imports from, with the names it uses."""
        own = {"block_index", "thread_index"}
        return [("cuda.vocabulary", own), *super().vocabularies()]
