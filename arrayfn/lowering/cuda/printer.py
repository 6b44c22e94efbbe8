"""What CUDA's printers share: names of threads, vectors of elements, the function.

A kernel is a function ``name(pointers, integers)`` that every thread of every block
runs. Its statements look as on a CPU; the code around them says which thread has which
elements, and how threads combine their results.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from arrayfn import dtypes
from arrayfn.dtypes import DType, compute_dtype, short_name
from arrayfn.lowering.cuda.imports import imports
from arrayfn.lowering.cuda.schedule import Schedule, is_vector
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS
from arrayfn.lowering.kernel_ir import Count, Load, Statement, Store, Value
from arrayfn.lowering.kernel_printer import KernelPrinter
from arrayfn.lowering.kernel_text import WIDTH, wrapped
from arrayfn.lowering.plan import Parameter

_SMALL: Final = 2**31
RESERVED: Final = frozenset(
    (
        *("thread", "lane", "warp", "part", "item", "items", "live", "first"),
        *("vector", "vectors", "step", "start", "other", "column", "line", "row"),
        *("blocks", "tile", "rest", "elements", "kernel", "rank", "block"),
        *("slot", "iteration", "begin", "mbarriers", "size", "place", "member"),
        *("numbers", "numbered", "following", "peer", "later", "aside"),
        *("ahead", "whole", "smallest", "largest", "again", "moved"),
        *("flag_buffer", "parts", "number", "within", "before", "upto"),
        *("newest", "second", "oldest", "taken", "takes", "ring"),
        *("clusters", "counter", "groups", "half_lag", "lag", "rows", "at"),
        *("count", "exchanged"),
        *FUNCTIONS,
    )
)
"""Names of a kernel's own variables, and of functions that it may call."""

S = TypeVar("S", bound=Schedule)


@dataclass
class CudaPrinter(KernelPrinter, Generic[S]):
    """Prints one kernel by a ``schedule``.

    ``live`` is the variable that says whether this thread has a row or column to store;
    it is empty where every thread has one.
    """

    own_names = RESERVED
    schedule: S = field(kw_only=True)
    live: str = ""
    dynamic_shared: int = 0  # bytes of shared memory that have names
    flag_words: int = 0  # of the flag_buffer by which blocks hand values on
    wide: set[int] = field(default_factory=set[int])
    """Operands whose tiles have their compute dtype."""

    # Text.

    def extent_of(self, axes: Sequence[int], name: str) -> str:
        """The number of indices of ``axes`` together."""
        if len(axes) == 1:
            return self.extent(axes[0])
        return self.integer(name, math.prod(self.nest.axes[k].extent for k in axes))

    def quotient(self, x: str, y: str, most: int) -> str:
        """The text of ``x // y`` for an ``x`` up to ``most``: divisions are dear."""
        if most < _SMALL:
            return f"quotient({x}, {y})"
        return f"({x}) // {y}"

    def remainder(self, x: str, y: str, most: int) -> str:
        if most < _SMALL:
            return f"remainder({x}, {y})"
        return f"({x}) % {y}"

    def decompose(
        self, text: str, axes: Sequence[int], letter: str = "i"
    ) -> dict[int, str]:
        most = math.prod(self.nest.axes[k].extent for k in axes)
        variables = {axis: f"{letter}{axis}" for axis in axes}
        if not axes:
            return variables
        if len(axes) > 1:
            self.line(f"rest = {text}")
            text = "rest"
        for axis in reversed(axes[1:]):
            n = self.extent(axis)
            self.line(f"{letter}{axis} = {self.remainder('rest', n, most)}")
            if axis == axes[1]:
                text = self.quotient("rest", n, most)
            else:
                self.line(f"rest = {self.quotient('rest', n, most)}")
        self.line(f"{letter}{axes[0]} = {text}")
        return variables

    def stored_name(self, dtype: DType) -> str:
        """The vocabulary's name of a dtype in memory."""
        if dtype == dtypes.bool_:
            return "u8"
        return "u16" if dtype in dtypes.HALF_PRECISION else short_name(dtype)

    def registers(self, name: str, dtype: str, count: int) -> None:
        self.line(f"{name} = registers_{dtype}({count})")

    def tile_name(self, operand: int) -> str:
        pointer = self.pointer(operand).removesuffix("_in").removesuffix("_out")
        return f"{pointer}_tile"

    def store(self, s: Store, variables: dict[int, str]) -> None:
        if not s.adds:
            super().store(s, variables)
            return
        dtype = self.stored_name(self.nest.operands[s.operand].dtype)
        with self.open_if("" if s.where is None else self.name_of(s.where)):
            target = f"{self.pointer(s.operand)}, {self.full_index(s, variables)}"
            self.line(f"atomic_add_{dtype}({target}, {self.scalar(s.value)})")

    # Vectors of neighbouring elements.

    def vectors(
        self, body: Iterable[Statement], kind: type[Load | Store], lanes: int
    ) -> list[int]:
        """The operands that ``body`` loads (or stores) as whole vectors."""
        return [
            s.operand for s in body if isinstance(s, kind) and self.is_whole(s, lanes)
        ]

    def is_whole(self, s: Load | Store, lanes: int) -> bool:
        """Whether ``s`` can be done for ``lanes`` neighbouring elements at once."""
        conditional = isinstance(s, Store) and s.where is not None
        return (
            s.level == "element"
            and not s.indices
            and not conditional
            and not (isinstance(s, Store) and s.adds)
            and is_vector(self.nest.operands[s.operand], lanes)
        )

    def vector_name(self, operand: int, lanes: int) -> str:
        return f"{self.stored_name(self.nest.operands[operand].dtype)}x{lanes}"

    def load_vector(
        self,
        operand: int,
        lanes: int,
        variables: dict[int, str],
        place: str,
    ) -> None:
        function = f"load_{self.vector_name(operand, lanes)}"
        at = self.index(operand, variables)
        tile = self.tile_name(operand)
        self.line(f"{function}({self.pointer(operand)}, {at}, {tile}, {place})")

    def declare_wide(self, operands: Iterable[int], count: int) -> None:
        """Tiles for results, which are rounded when they are stored."""
        for operand in operands:
            dtype = compute_dtype(self.nest.operands[operand].dtype)
            if dtype == self.nest.operands[operand].dtype:
                self.declare_tiles([operand], count)
            else:
                self.registers(self.tile_name(operand), short_name(dtype), count)
                self.wide.add(operand)

    def stored(self, operand: int, text: str) -> str:
        wide = operand in self.wide and operand in self.staged
        return text if wide else super().stored(operand, text)

    def store_vector(
        self, operand: int, lanes: int, variables: dict[int, str], place: str
    ) -> None:
        name = self.vector_name(operand, lanes)
        if operand in self.wide:
            name = f"{short_name(self.nest.operands[operand].dtype)}x{lanes}"
        function = f"store_{name}"
        at = self.index(operand, variables)
        tile = self.tile_name(operand)
        self.line(f"{function}({self.pointer(operand)}, {at}, {tile}, {place})")

    def declare_tiles(self, operands: Iterable[int], count: int) -> None:
        for operand in operands:
            dtype = self.stored_name(self.nest.operands[operand].dtype)
            self.registers(self.tile_name(operand), dtype, count)

    def moves_along(self, body: Iterable[Statement], axis: int) -> bool:
        """Whether the index along ``axis`` itself appears in ``body``."""
        for s in body:
            if isinstance(s, Count) and s.axis == axis:
                return True
            if (
                isinstance(s, (Load, Store))
                and s.level == "element"
                and s.operand not in self.staged
                and self.nest.operands[s.operand].strides[axis]
            ):
                return True
        return False

    def shared_array(self, value: Value, suffix: str, count: int) -> None:
        shared = f"shared_{short_name(value.dtype)}"
        self.line(f"{self.name_of(value)}_{suffix} = {shared}({count})")

    # Rows of row groups.

    def begin_rows(self, threads: int, threads_per_row: int) -> dict[int, str]:
        """Give each row group of a block a row: the indices along kept axes.

        ``thread`` is the thread's number in its group. Where a block may have more
        groups than there are rows left, ``live`` says who has one.
        """
        kept = self.kept_axes
        rows = math.prod(self.nest.axes[k].extent for k in kept)
        thread = "thread_index()"
        block = "block_index()"
        per_block = threads // threads_per_row
        self.items = -(-rows // per_block)
        if per_block > 1:
            group = thread
            if threads_per_row > 1:
                rest = f"remainder({thread}, {threads_per_row})"
                self.line(f"thread = {rest}")
                group = f"quotient({thread}, {threads_per_row})"
            item = f"{block} * {per_block} + {group}" if kept else group
        else:
            self.line(f"thread = {thread}")
            item = block if kept else ""
        if rows % per_block:
            self.live = "live"
            count = self.extent_of(kept, "rows") if kept else "1"
            self.line(f"item = {item}")
            self.line(f"live = item < {count}")
            item = f"min_i64(item, {count} - 1)"
        return self.decompose(item, kept)

    def begin_cluster(self, cluster: int, threads: int) -> dict[int, str]:
        """Give each cluster of blocks a row: the indices along kept axes."""
        kept = self.kept_axes
        self.items = math.prod(self.nest.axes[k].extent for k in kept) * cluster
        self.share_row(cluster, threads)
        return self.decompose("start", kept)

    def share_row(self, cluster: int, threads: int) -> None:
        """Say which row this block's cluster has, and which thread of it this is.

        These are ``start`` and ``thread``; ``rank`` is the block's number in the
        cluster, ``member`` the thread's in the block.
        """
        block = "block_index()"
        self.line("member = thread_index()")
        self.line(f"rank = {self.remainder(block, str(cluster), self.items)}")
        self.line(f"start = {self.quotient(block, str(cluster), self.items)}")
        self.line(f"thread = rank * {threads} + member")

    def shared_name(self, operand: int) -> str:
        """The name of an operand's array in dynamic shared memory."""
        return self.tile_name(operand).removesuffix("tile") + "ahead"

    def dynamic_shared_arrays(self, operands: Sequence[int], count: int) -> None:
        """Lay out ``count`` elements of each operand in dynamic shared memory."""
        for operand in operands:
            dtype = self.nest.operands[operand].dtype
            allocate = f"dynamic_shared_{self.stored_name(dtype)}"
            name = self.shared_name(operand)
            self.line(f"{name} = {allocate}({self.dynamic_shared}, {count})")
            self.dynamic_shared += count * dtype.itemsize

    def fetch_all(
        self,
        operands: Sequence[int],
        at: Callable[[int], str],
        place: str,
        size: str,
        mbarrier: str,
    ) -> None:
        """Begin to copy ``size`` elements of operands to ``place`` in shared memory.

        They begin where ``at`` says; ``mbarrier`` completes when all have arrived.
        """
        self.mbarrier_expect_all(operands, size, mbarrier)
        for operand in operands:
            self.fetch(operand, at(operand), place, size, mbarrier)

    def mbarrier_expect_all(
        self, operands: Sequence[int], size: str, mbarrier: str, less: int = 0
    ) -> None:
        """Expect ``size`` elements of each operand, less ``less`` bytes."""
        width = sum(self.nest.operands[k].dtype.itemsize for k in operands)
        expected = f"{size} * {width}" + (f" - {less}" if less else "")
        self.line(f"mbarrier_expect_tx(mbarriers, {mbarrier}, {expected})")

    def fetch(
        self, operand: int, at: str, place: str, size: str, mbarrier: str
    ) -> None:
        """Begin to copy ``size`` elements, which ``mbarrier`` expects already."""
        dtype = self.nest.operands[operand].dtype
        fetch = f"bulk_copy_{self.stored_name(dtype)}"
        source = f"{self.pointer(operand)}, {at}"
        target = f"{self.shared_name(operand)}, {place}"
        self.line(f"{fetch}({source}, {target}, {size}, mbarriers, {mbarrier})")

    def make_mbarriers(self, **mbarriers: Sequence[int | None]) -> None:
        """Initialize mbarriers by their arrays' names, and what each expects in bytes.

        None stands for a number of bytes that is given later.
        """
        for name, sizes in mbarriers.items():
            self.line(f"{name} = mbarriers_i64({len(sizes)})")
        with self.open("if member == 0:"):
            for name, sizes in mbarriers.items():
                self.line(f"mbarrier_init({name}, {len(sizes)})")
            self.line("fence_mbarrier_init()")
            for name, sizes in mbarriers.items():
                for slot, size in enumerate(sizes):
                    if size is not None:
                        self.line(f"mbarrier_expect_tx({name}, {slot}, {size})")

    # The function around it.

    def finish(self) -> None:
        pointers = [
            Parameter(self.pointer(k), short_name(o.dtype) + "*")
            for k, o in enumerate(self.nest.operands)
        ]
        if self.flag_words:
            pointers.append(Parameter("flag_buffer", "u64*"))
        integers = [Parameter(i.name, "i64") for i in self.integers.values()]
        self.parameters = (*pointers, *integers)
        head = [self.title()] if self.readable else []
        head += [*imports([*self.constant_lines, *self.lines]), "", ""]
        arguments = ", ".join(p.name for p in self.parameters)
        head += wrapped(f"def {self.name}(", arguments, "):")
        if self.readable:
            head += textwrap.wrap(
                f'"""{self.signature()}"""',
                WIDTH,
                initial_indent="    ",
                subsequent_indent="    ",
            )
        self.source = "\n".join([*head, *self.constant_lines, *self.lines]) + "\n"

    def signature(self) -> str:
        text = super().signature().removesuffix("Items begin to end.")
        return f"{text}{self.schedule.threads} threads a block."
