"""The base of the printers of all CUDA schedules.

A kernel is a function ``name(pointers, integers)`` that every thread of every block
runs. Its statements are those of a CPU kernel. A printer adds the lines that assign
elements to threads, and those that combine the threads' results.

The names of arrays follow from their operands: ``x_in`` and ``y_out`` are parameters,
``x_tile`` is a thread's registers, ``x_shared`` is in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.imports import imports
from arrayfn.lowering.cuda.vectors import AxisIndices, S, VectorPrinter
from arrayfn.lowering.cuda.vocabulary import FUNCTIONS
from arrayfn.lowering.kernel_ir import Value
from arrayfn.lowering.kernel_text import filled, wrapped
from arrayfn.lowering.plan import Parameter
from arrayfn.records import record

RESERVED: Final = frozenset(
    (
        *("thread", "lane", "warp", "part", "item", "items", "live", "first"),
        *("vector", "vectors", "step", "start", "other", "column", "line", "row"),
        *("blocks", "tile", "rest", "elements", "kernel", "rank", "block"),
        *("slot", "iteration", "begin", "mbarriers", "size", "place", "member"),
        *("numbers", "numbered", "following", "peer", "later", "shared_at"),
        *("ahead", "whole", "smallest", "largest", "opaque_member", "difference"),
        *("ring_at", "flag_buffer", "parts", "number", "within", "before"),
        *("newest", "second", "oldest", "taken", "ring"),
        *("clusters", "counter", "groups", "half_lag", "lag", "rows", "at"),
        *("count", "exchanged"),
        *FUNCTIONS,
    )
)
"""Names of a kernel's own variables, and of functions that it may call."""


@record
class CudaPrinter(VectorPrinter[S]):
    """Prints the kernel of a nest by a ``schedule``. Subclasses print the body."""

    own_names = RESERVED
    live: str = ""
    """The variable that is False in threads without a row or column.

    It is empty if there are no such threads. They are in the last block; they compute
    the last row again and do not store it, so that barriers and shuffles find all
    threads.
    """
    dynamic_shared: int = 0
    """Bytes of dynamic shared memory that arrays have been given so far."""
    flag_words: int = 0
    """u64 words of the parameter ``flag_buffer``; 0 if the kernel has none."""

    def shared_array(self, value: Value, suffix: str, count: int) -> None:
        """Declare a shared array for ``count`` numbers of the dtype of ``value``.

        Prints, for value ``a`` and the suffix "warps": ``a_warps = shared_f32(8)``.
        """
        shared = f"shared_{short_name(value.dtype)}"
        self.line(f"{self.name_of(value)}_{suffix} = {shared}({count})")

    # Rows of row groups.

    def begin_rows(self, threads: int, threads_per_row: int) -> AxisIndices:
        """Assign a row to each row group of a block; return its indices by kept axis.

        Prints, for blocks of 128 threads and row groups of 32, if the last block may
        have more groups than rows:

            thread = remainder(thread_index(), 32)
            item = block_index() * 4 + quotient(thread_index(), 32)
            live = item < n0
            i0 = min_i64(item, n0 - 1)

        Defines ``thread``, the thread's number in its group, unless a group is one
        thread. Groups without a row compute the last one again and do not store it (see
        ``live``).

        Args:
            threads: Threads of a block.
            threads_per_row: Threads of a row group.
        """
        kept = self.kept_axes
        groups = threads // threads_per_row
        self.items = -(-self.nest.rows // groups)
        group, item = "thread_index()", "block_index()" if kept else ""
        if groups == 1:
            self.line("thread = thread_index()")
        else:
            if threads_per_row > 1:
                self.line(f"thread = remainder(thread_index(), {threads_per_row})")
                group = f"quotient(thread_index(), {threads_per_row})"
            item = f"block_index() * {groups} + {group}" if kept else group
        if self.nest.rows % groups:
            self.live = "live"
            count = self.extent_of(kept, "rows") if kept else "1"
            self.line(f"item = {item}")
            self.line(f"live = item < {count}")
            item = f"min_i64(item, {count} - 1)"
        return self.decompose(item, kept)

    def begin_cluster(self, cluster: int, threads: int) -> AxisIndices:
        """Assign a row to each cluster of blocks; return its indices by kept axis.

        Prints the lines of ``name_cluster_threads``, then ``i0 = start``.

        Args:
            cluster: Blocks of a cluster.
            threads: Threads of a block.
        """
        kept = self.kept_axes
        self.items = self.nest.rows * cluster
        self.name_cluster_threads(cluster, threads)
        return self.decompose("start", kept)

    def name_cluster_threads(self, cluster: int, threads: int) -> None:
        """Define the numbers of a thread and of its block in a cluster.

        Prints, for clusters of 8 blocks of 512 threads:

            member = thread_index()
            rank = remainder(block_index(), 8)
            start = quotient(block_index(), 8)
            thread = rank * 512 + member

        ``member`` is the thread's number in its block, ``rank`` the block's in the
        cluster, ``start`` the cluster's in the grid, and ``thread`` the thread's in the
        cluster.
        """
        block, blocks = "block_index()", str(cluster)
        self.line("member = thread_index()")
        self.line(f"rank = {self.remainder(block, blocks, self.items)}")
        self.line(f"start = {self.quotient(block, blocks, self.items)}")
        self.line(f"thread = rank * {threads} + member")

    def shared_name(self, operand: int) -> str:
        """Return ``x_shared``, the array of operand ``x`` in dynamic shared memory."""
        return f"{self.array_name(operand)}_shared"

    def dynamic_shared_arrays(self, operands: Sequence[int], count: int) -> None:
        """Declare ``count`` elements of dynamic shared memory for each operand.

        ``dynamic_shared`` counts their bytes. Prints, for two float32 operands and 1024
        elements (the first argument is the offset in bytes):

            x_shared = dynamic_shared_f32(0, 1024)
            y_shared = dynamic_shared_f32(4096, 1024)
        """
        for operand in operands:
            dtype = self.nest.operands[operand].dtype
            allocate = f"dynamic_shared_{self.stored_name(dtype)}"
            name = self.shared_name(operand)
            self.line(f"{name} = {allocate}({self.dynamic_shared}, {count})")
            self.dynamic_shared += count * dtype.itemsize

    def expect_bytes(
        self, operands: Sequence[int], size: str, mbarrier: str, less: int = 0
    ) -> None:
        """Print the line that announces the bytes of copies to an mbarrier.

        For 4096 float32 it is ``mbarrier_expect_tx(mbarriers, 0, 4096 * 4)``.

        Args:
            operands: The operands that are copied.
            size: The expression of the number of elements of each operand.
            mbarrier: The index of the mbarrier that counts their bytes.
            less: Bytes of these that are not copied.
        """
        itemsizes = sum(self.nest.operands[k].dtype.itemsize for k in operands)
        expected = f"{size} * {itemsizes}" + (f" - {less}" if less else "")
        self.line(f"mbarrier_expect_tx(mbarriers, {mbarrier}, {expected})")

    def bulk_copy(
        self, operand: int, source: str, target: str, size: str, mbarrier: str
    ) -> None:
        """Print the line that begins a bulk copy of an operand to its shared array.

        For example ``bulk_copy_f32(x_in, begin, x_shared, 0, 4096, mbarriers, 0)``. The
        mbarrier must have been told the bytes before (``expect_bytes``).

        Args:
            operand: The operand's number.
            source: The index of the first element in global memory.
            target: The index in the operand's shared array.
            size: The number of elements.
            mbarrier: The index of the mbarrier that counts the bytes.
        """
        dtype = self.nest.operands[operand].dtype
        copy = f"bulk_copy_{self.stored_name(dtype)}"
        arrays = f"{self.pointer(operand)}, {source}, {self.shared_name(operand)}"
        self.line(f"{copy}({arrays}, {target}, {size}, mbarriers, {mbarrier})")

    def make_mbarriers(self, **mbarriers: Sequence[int | None]) -> None:
        """Declare arrays of mbarriers, which thread 0 of the block initializes.

        Each keyword names an array. Its value has an entry for each mbarrier: the bytes
        that it expects in its first phase, or None if that is announced later. A
        barrier of the block or cluster has to follow. Prints, for ``mbarriers=[None]``
        and ``exchanged=[64]``:

            mbarriers = mbarriers_i64(1)
            exchanged = mbarriers_i64(1)
            if member == 0:
                mbarrier_init(mbarriers, 1)
                mbarrier_init(exchanged, 1)
                fence_mbarrier_init()
                mbarrier_expect_tx(exchanged, 0, 64)
        """
        for name, expected in mbarriers.items():
            self.line(f"{name} = mbarriers_i64({len(expected)})")
        with self.open("if member == 0:"):
            for name, expected in mbarriers.items():
                self.line(f"mbarrier_init({name}, {len(expected)})")
            self.line("fence_mbarrier_init()")
            for name, expected in mbarriers.items():
                for k, nbytes in enumerate(expected):
                    if nbytes is not None:
                        self.line(f"mbarrier_expect_tx({name}, {k}, {nbytes})")

    # The function around it.

    @override
    def finish(self) -> None:
        """Set ``source``: the title, imports, ``def``, docstring and lines.

        ``parameters`` are a pointer for each operand, the flag buffer if there is one,
        then the integers.
        """
        pointers = [
            Parameter(self.pointer(k), short_name(o.dtype) + "*")
            for k, o in enumerate(self.nest.operands)
        ]
        if self.flag_words:
            pointers.append(Parameter("flag_buffer", "u64*"))
        integers = [Parameter(i.name, "i64") for i in self.integers.values()]
        self.parameters = (*pointers, *integers)
        body = [*self.constant_lines, *self.lines]
        head = [self.title()] if self.readable else []
        head += [*imports(body), "", ""]
        arguments = ", ".join(p.name for p in self.parameters)
        head += wrapped(f"def {self.name}(", arguments, "):")
        if self.readable:
            head += filled(f'"""{self.signature()}"""')
        self.source = "\n".join([*head, *body]) + "\n"

    @override
    def signature(self) -> str:
        """Return the kernel's docstring: parameters, and threads of a block.

        For example ``x_in: f32*. n1: i64. 256 threads a block.``.
        """
        text = super().signature().removesuffix("Items begin to end.")
        return f"{text}{self.schedule.threads} threads a block."
