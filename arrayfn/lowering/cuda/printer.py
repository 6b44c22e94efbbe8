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

from typing_extensions import override

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
        *("numbers", "numbered", "following", "peer", "later", "shared_at"),
        *("ahead", "whole", "smallest", "largest", "opaque_member", "difference"),
        *("ring_at", "prefix", "claimed"),
        *("flag_buffer", "parts", "number", "within", "before", "upto"),
        *("newest", "second", "oldest", "taken", "takes", "ring"),
        *("clusters", "counter", "groups", "half_lag", "lag", "rows", "at"),
        *("count", "exchanged"),
        *FUNCTIONS,
    )
)
"""Names of a kernel's own variables, and of functions that it may call."""

S = TypeVar("S", bound=Schedule)
AxisIndices = dict[int, str]
"""The expression of the index along each axis of the nest, by axis number."""


@dataclass
class CudaPrinter(KernelPrinter, Generic[S]):
    """Prints one kernel by a ``schedule``; methods print lines unless they say more.

    Where a method takes or gives a ``str``, it is a piece of the kernel's source: a
    variable or an expression.
    """

    own_names = RESERVED
    schedule: S = field(kw_only=True)
    live: str = ""
    """The variable that says whether this thread has a row or column to store; empty
    where every thread has one."""
    dynamic_shared: int = 0
    """Bytes of dynamic shared memory that arrays have been given so far."""
    flag_words: int = 0
    """Words of the flag buffer, by which blocks send values to later ones; or 0."""
    result_tiles: set[int] = field(default_factory=set[int])
    """Operands whose registers have their compute dtype and are rounded by stores."""

    # Text.

    def extent_of(self, axes: Sequence[int], name: str) -> str:
        """The expression of the number of index tuples along ``axes``.

        For several axes it is an integer parameter of the kernel, called ``name``.
        """
        if len(axes) == 1:
            return self.extent(axes[0])
        return self.integer(name, math.prod(self.nest.axes[k].extent for k in axes))

    def quotient(self, x: str, y: str, limit: int) -> str:
        """The expression ``x // y``, by 32-bit division where ``x`` is below 2**31.

        ``x`` and ``y`` are expressions, with ``0 <= x <= limit``: 32-bit division is
        faster.
        """
        if limit < _SMALL:
            return f"quotient({x}, {y})"
        return f"({x}) // {y}"

    def remainder(self, x: str, y: str, limit: int) -> str:
        """The expression ``x % y`` for ``0 <= x <= limit``, as in ``quotient``."""
        if limit < _SMALL:
            return f"remainder({x}, {y})"
        return f"({x}) % {y}"

    @override
    def decompose(
        self, text: str, axes: Sequence[int], letter: str = "i"
    ) -> AxisIndices:
        """Define the indices along ``axes`` of the row-major index ``text``.

        ``text`` is an expression. Returns the variables by axis: ``letter`` and the
        number of the axis.
        """
        limit = math.prod(self.nest.axes[k].extent for k in axes)
        variables = {axis: f"{letter}{axis}" for axis in axes}
        if not axes:
            return variables
        if len(axes) > 1:
            self.line(f"rest = {text}")
            text = "rest"
        for axis in reversed(axes[1:]):
            n = self.extent(axis)
            self.line(f"{letter}{axis} = {self.remainder('rest', n, limit)}")
            if axis == axes[1]:
                text = self.quotient("rest", n, limit)
            else:
                self.line(f"rest = {self.quotient('rest', n, limit)}")
        self.line(f"{letter}{axes[0]} = {text}")
        return variables

    def stored_name(self, dtype: DType) -> str:
        """The name of a dtype in functions that access memory.

        It is u16 for fp16 and bf16, and u8 for booleans.
        """
        if dtype == dtypes.bool_:
            return "u8"
        return "u16" if dtype in dtypes.HALF_PRECISION else short_name(dtype)

    def registers(self, name: str, dtype: str, count: int) -> None:
        """Declare ``count`` registers of a thread as the array ``name``.

        ``dtype`` is a short name, such as ``f32``.
        """
        self.line(f"{name} = registers_{dtype}({count})")

    def array_name(self, operand: int) -> str:
        """What the names of an operand's registers and shared memory begin with."""
        return self.pointer(operand).removesuffix("_in").removesuffix("_out")

    def tile_name(self, operand: int) -> str:
        """The name of the register array for an operand's vectors."""
        return f"{self.array_name(operand)}_tile"

    @override
    def store(self, s: Store, variables: AxisIndices) -> None:
        """Print the store ``s`` at the indices ``variables``.

        One that adds to its target is atomic.
        """
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
        """The operands that ``body`` loads (or stores: ``kind``) as vectors.

        Gives their numbers. A vector has ``lanes`` elements.
        """
        return [
            s.operand
            for s in body
            if isinstance(s, kind) and self.is_vectorized(s, lanes)
        ]

    def is_vectorized(self, s: Load | Store, lanes: int) -> bool:
        """Whether ``s`` is one vector access for ``lanes`` neighbouring elements.

        It is not if indices are computed, or if it stores conditionally or adds.
        """
        conditional = isinstance(s, Store) and s.where is not None
        return (
            s.level == "element"
            and not s.indices
            and not conditional
            and not (isinstance(s, Store) and s.adds)
            and is_vector(self.nest.operands[s.operand], lanes)
        )

    def vector_name(self, operand: int, lanes: int) -> str:
        """The suffix ``TxN`` of functions that access vectors of ``operand``.

        A vector has ``lanes`` elements.
        """
        return f"{self.stored_name(self.nest.operands[operand].dtype)}x{lanes}"

    def load_vector(
        self,
        operand: int,
        lanes: int,
        variables: AxisIndices,
        register: str,
    ) -> None:
        """Load a vector of ``operand`` from memory to the operand's registers.

        Args:
            operand: The operand's number.
            lanes: Elements of the vector.
            variables: The indices of its first element.
            register: The index of the first register that it goes to.
        """
        at = self.index(operand, variables)
        self.move_vector(
            "load", operand, self.vector_name(operand, lanes), at, register
        )

    def move_vector(
        self, way: str, operand: int, name: str, at: str, register: str
    ) -> None:
        """Load or store (``way``) a vector of ``operand``.

        ``name`` is the suffix of the function, ``at`` the index of the vector's first
        element in memory, ``register`` that in the operand's registers.
        """
        arrays = f"{self.pointer(operand)}, {at}, {self.tile_name(operand)}"
        self.line(f"{way}_{name}({arrays}, {register})")

    def declare_result_tiles(self, operands: Iterable[int], count: int) -> None:
        """Declare ``count`` registers for each result; stores round what is in them."""
        for operand in operands:
            dtype = compute_dtype(self.nest.operands[operand].dtype)
            if dtype == self.nest.operands[operand].dtype:
                self.declare_tiles([operand], count)
            else:
                self.registers(self.tile_name(operand), short_name(dtype), count)
                self.result_tiles.add(operand)

    @override
    def stored(self, operand: int, text: str) -> str:
        is_unrounded = operand in self.result_tiles and operand in self.staged
        return text if is_unrounded else super().stored(operand, text)

    def store_vector(
        self, operand: int, lanes: int, variables: AxisIndices, register: str
    ) -> None:
        """Store a vector of ``operand`` from the operand's registers to memory.

        Args:
            operand: The operand's number.
            lanes: Elements of the vector.
            variables: The indices of its first element.
            register: The index of the register where it begins.
        """
        name = self.vector_name(operand, lanes)
        if operand in self.result_tiles:
            name = f"{short_name(self.nest.operands[operand].dtype)}x{lanes}"
        at = self.index(operand, variables)
        self.move_vector("store", operand, name, at, register)

    def declare_tiles(self, operands: Iterable[int], count: int) -> None:
        """Declare ``count`` registers for each operand, of its dtype in memory."""
        for operand in operands:
            dtype = self.stored_name(self.nest.operands[operand].dtype)
            self.registers(self.tile_name(operand), dtype, count)

    def uses_index(self, body: Iterable[Statement], axis: int) -> bool:
        """Whether the text of ``body`` has the index along ``axis`` in it."""
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
        """Declare the shared array NAME_suffix of ``count`` elements.

        NAME is that of ``value``, and the dtype is its dtype.
        """
        shared = f"shared_{short_name(value.dtype)}"
        self.line(f"{self.name_of(value)}_{suffix} = {shared}({count})")

    # Rows of row groups.

    def begin_rows(self, threads: int, threads_per_row: int) -> AxisIndices:
        """Assign a row to each row group of a block; return its indices by kept axis.

        A block has ``threads`` threads, a row group ``threads_per_row`` of them.
        Defines ``thread``, the thread's number in its group. Where the last block may
        have more groups than rows, defines ``live``, which says whether the group has a
        row; those without one compute the last row again and do not store it.
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

    def begin_cluster(self, cluster: int, threads: int) -> AxisIndices:
        """Assign a row to each cluster; return its indices by kept axis.

        A cluster has ``cluster`` blocks of ``threads`` threads.
        """
        kept = self.kept_axes
        self.items = math.prod(self.nest.axes[k].extent for k in kept) * cluster
        self.name_cluster_threads(cluster, threads)
        return self.decompose("start", kept)

    def name_cluster_threads(self, cluster: int, threads: int) -> None:
        """Define the numbers of a thread and its block in their cluster.

        A cluster has ``cluster`` blocks of ``threads`` threads. ``member`` is the
        thread's number in its block, ``rank`` the block's in the cluster, ``start`` the
        cluster's in the grid and ``thread`` the thread's in the cluster.
        """
        block = "block_index()"
        self.line("member = thread_index()")
        self.line(f"rank = {self.remainder(block, str(cluster), self.items)}")
        self.line(f"start = {self.quotient(block, str(cluster), self.items)}")
        self.line(f"thread = rank * {threads} + member")

    def shared_name(self, operand: int) -> str:
        """The name of an operand's array in dynamic shared memory."""
        return f"{self.array_name(operand)}_shared"

    def dynamic_shared_arrays(self, operands: Sequence[int], count: int) -> None:
        """Declare ``count`` elements of dynamic shared memory for each operand."""
        for operand in operands:
            dtype = self.nest.operands[operand].dtype
            allocate = f"dynamic_shared_{self.stored_name(dtype)}"
            name = self.shared_name(operand)
            self.line(f"{name} = {allocate}({self.dynamic_shared}, {count})")
            self.dynamic_shared += count * dtype.itemsize

    def bulk_copy_all(
        self,
        operands: Sequence[int],
        source: Callable[[int], str],
        target: str,
        size: str,
        mbarrier: str,
    ) -> None:
        """Begin bulk copies to shared memory, of as many elements of each operand.

        Args:
            operands: The operands' numbers.
            source: Gives the index of an operand's first element in global memory.
            target: The index in each operand's shared array.
            size: The number of elements.
            mbarrier: The index of the mbarrier that completes when all have arrived.
        """
        self.expect_bytes(operands, size, mbarrier)
        for operand in operands:
            self.bulk_copy(operand, source(operand), target, size, mbarrier)

    def expect_bytes(
        self, operands: Sequence[int], size: str, mbarrier: str, less: int = 0
    ) -> None:
        """Have ``mbarrier`` expect ``size`` elements of each operand.

        ``size`` and ``mbarrier`` are expressions; ``less`` bytes are subtracted.
        """
        width = sum(self.nest.operands[k].dtype.itemsize for k in operands)
        expected = f"{size} * {width}" + (f" - {less}" if less else "")
        self.line(f"mbarrier_expect_tx(mbarriers, {mbarrier}, {expected})")

    def bulk_copy(
        self, operand: int, source: str, target: str, size: str, mbarrier: str
    ) -> None:
        """Begin a bulk copy of ``size`` elements of ``operand`` to its shared array.

        ``source`` and ``target`` are the indices of the first in global memory and in
        the shared array. The mbarrier numbered ``mbarrier`` expects the bytes already.
        """
        dtype = self.nest.operands[operand].dtype
        copy = f"bulk_copy_{self.stored_name(dtype)}"
        arrays = f"{self.pointer(operand)}, {source}, {self.shared_name(operand)}"
        self.line(f"{copy}({arrays}, {target}, {size}, mbarriers, {mbarrier})")

    def make_mbarriers(self, **mbarriers: Sequence[int | None]) -> None:
        """Declare and initialize arrays of mbarriers, by thread 0 of the block.

        Each keyword is an array's name; its value is how many bytes each mbarrier
        expects in its first phase, or None if that is said later. A barrier of the
        block or cluster has to follow.
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

    @override
    def finish(self) -> None:
        """Put the function together: imports, signature, docstring, lines."""
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

    @override
    def signature(self) -> str:
        """The docstring of the kernel: its arrays, and the threads of a block."""
        text = super().signature().removesuffix("Items begin to end.")
        return f"{text}{self.schedule.threads} threads a block."
