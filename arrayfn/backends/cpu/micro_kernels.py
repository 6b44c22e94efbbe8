"""The micro-kernels of matrix products: the inner loops, as vector instructions.

Each is a function of its own in a kernel's LLVM module, for one element type. A vector
is ``VECTOR_BYTES`` long; a processor whose vectors are shorter takes several for one,
and computes the same bits: each element is a chain of fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir

from arrayfn.lowering.libraries.packed_products import (
    PANEL_ROWS,
    PANEL_STRIDE,
    PANEL_VECTORS,
    VECTOR_BYTES,
)

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_POINTER: Final = ir.PointerType()
_VOID: Final = ir.VoidType()


class Vectors:
    """Emits LLVM operations on vectors of one element type, at a builder's position.

    ``size`` is the number of bytes of an element. A vector has ``lanes`` elements and
    the LLVM type ``type``; ``zero`` is the vector of zeros. A *mask* is a vector of
    booleans, one for each lane.
    """

    def __init__(self, builder: ir.IRBuilder, element: ir.Type, size: int) -> None:
        self.builder, self.element, self.size = builder, element, size
        self.lanes = VECTOR_BYTES // size
        self.type = ir.VectorType(element, self.lanes)
        self.zero = ir.Constant(self.type, None)

    def at(self, pointer: Any, *offsets: Any) -> Any:
        """Emit the address ``pointer`` plus the sum of ``offsets``, in elements."""
        for offset in offsets:
            index = _I64(offset) if isinstance(offset, int) else offset
            pointer = self.builder.gep(pointer, [index], source_etype=self.element)
        return pointer

    def splat(self, value: Any) -> Any:
        """Emit a vector whose lanes all have ``value``."""
        kind = ir.VectorType(value.type, self.lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, _I32(0))
        zeros = ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        # Each lane of the result takes lane 0 of ``first``.
        return self.builder.shuffle_vector(first, undefined, zeros)

    def first_lanes(self, count: Any, before: int = 0) -> Any:
        """Emit the mask of the lanes k for which ``before + k < count``.

        It selects the elements of a row of ``count`` elements, in the vector that
        begins at element ``before``.
        """
        kind = ir.VectorType(_I64, self.lanes)
        positions = ir.Constant(kind, [_I64(before + k) for k in range(self.lanes)])
        return self.builder.icmp_signed("<", positions, self.splat(count))

    def load(self, pointer: Any, mask: Any = None) -> Any:
        """Emit the load of a vector. Lanes outside of ``mask`` are not read but 0."""
        if mask is None:
            return self.builder.load(pointer, align=self.size, typ=self.type)
        function = self._intrinsic("load", self.type, _POINTER, _I32, mask, self.zero)
        return self.builder.call(function, [pointer, _I32(self.size), mask, self.zero])

    def store(self, value: Any, pointer: Any, mask: Any = None) -> None:
        """Emit the store of a vector. Lanes outside of ``mask`` are not written."""
        if mask is None:
            self.builder.store(value, pointer, align=self.size)
            return
        function = self._intrinsic("store", _VOID, value, _POINTER, _I32, mask)
        self.builder.call(function, [value, pointer, _I32(self.size), mask])

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """Emit the fused multiply-add ``x * y + z``, rounded once."""
        name = f"llvm.fma.{self._suffix}"
        kind = ir.FunctionType(self.type, [self.type] * 3)
        return self.builder.call(declared(self.builder.module, name, kind), [x, y, z])

    def transpose(self, rows: Sequence[Any]) -> list[Any]:
        """Emit the transpose of a square matrix, whose rows are vectors.

        Blocks of 1, 2, 4 ... rows and columns are transposed in turn: each pair of rows
        ``k`` and ``k + block`` exchanges its off-diagonal blocks. With ``block = 1``,
        rows (a b) and (c d) become (a c) and (b d).

        Eklundh, A fast computer method for matrix transposing, IEEE Trans. Comput.
        1972.
        """
        rows = list(rows)
        lanes = range(self.lanes)
        indices = ir.VectorType(_I32, self.lanes)
        block = 1
        while block < self.lanes:
            # The lanes of the two new rows, as indices into the concatenated old pair:
            # with 4 lanes and block 1, low is [0, 4, 2, 6] and high is [1, 5, 3, 7].
            low = [j + self.lanes - block if j & block else j for j in lanes]
            high = [j + self.lanes if j & block else j + block for j in lanes]
            for k in lanes:
                if not k & block:
                    pair = rows[k], rows[k + block]
                    for row, picked in ((k, low), (k + block, high)):
                        mask = ir.Constant(indices, picked)
                        rows[row] = self.builder.shuffle_vector(*pair, mask)
            block *= 2
        return rows

    @property
    def _suffix(self) -> str:
        """The vector type in names of LLVM's intrinsics, such as ``v8f32``."""
        return f"v{self.lanes}f{8 * self.size}"

    def _intrinsic(self, name: str, result: ir.Type, *arguments: Any) -> ir.Function:
        """Declare and return LLVM's masked intrinsic ``name``, "load" or "store".

        Each of ``arguments`` is the type of an argument, or a value of that type.
        """
        kinds = [a if isinstance(a, ir.Type) else a.type for a in arguments]
        full = f"llvm.masked.{name}.{self._suffix}.p0"
        return declared(self.builder.module, full, ir.FunctionType(result, kinds))


def declared(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    """Return the function ``name`` of ``module``; declare it if needed."""
    return module.globals.get(name) or ir.Function(module, kind, name)


def micro_kernel(module: ir.Module, name: str, element: ir.Type) -> ir.Function:
    """Return the micro-kernel ``name`` for an element type, defined in ``module``.

    It is one of ``multiply_panels`` and ``transpose_block``, whose stubs in
    ``libraries.foreign`` describe what they compute. The first call defines it.
    """
    size = 4 if isinstance(element, ir.FloatType) else 8
    symbol = f"{name}_f{8 * size}"
    known = module.globals.get(symbol)
    if known is not None:
        return known
    kinds, body = _BODIES[name]
    function = ir.Function(module, ir.FunctionType(_VOID, kinds), symbol)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    body(builder, Vectors(builder, element, size), *function.args)
    builder.ret_void()
    return function


def _multiply_panels(
    b: ir.IRBuilder,
    v: Vectors,
    left: Any,
    right: Any,
    c: Any,
    ldc: Any,
    terms: Any,
    rows: Any,
    columns: Any,
    is_added: Any,
) -> None:
    """Emit the body of ``multiply_panels``: C = left @ right, or C += left @ right.

    The panel ``left`` has ``PANEL_ROWS`` rows, ``PANEL_STRIDE`` elements apart, with an
    element for each of the ``terms``. The panel ``right`` has ``PANEL_VECTORS`` vectors
    for each term. A loop over the terms keeps all ``PANEL_ROWS * PANEL_VECTORS`` sums
    in registers. Then the first ``rows`` rows and ``columns`` columns are written to
    ``c``, whose rows are ``ldc`` elements apart. They are added to the values in ``c``
    if ``is_added`` is not 0.
    """
    before, loop, done = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(loop)
    b.position_at_end(loop)
    term = b.phi(_I64)
    sums = [[b.phi(v.type) for _ in range(PANEL_VECTORS)] for _ in range(PANEL_ROWS)]
    width = PANEL_VECTORS * v.lanes
    start = v.at(right, b.mul(term, _I64(width)))
    factors = [v.load(v.at(start, k * v.lanes)) for k in range(PANEL_VECTORS)]
    totals: list[list[Any]] = []
    for row, own in enumerate(sums):
        address = v.at(left, row * PANEL_STRIDE, term)
        factor = v.splat(b.load(address, typ=v.element))
        totals.append([v.fma(factor, x, y) for x, y in zip(factors, own, strict=True)])
    following = b.add(term, _I64(1))
    term.add_incoming(_I64(0), before)
    term.add_incoming(following, loop)
    for own, after in zip(sums, totals, strict=True):
        for phi, total in zip(own, after, strict=True):
            phi.add_incoming(v.zero, before)
            phi.add_incoming(total, loop)
    b.cbranch(b.icmp_signed("<", following, terms), loop, done)
    b.position_at_end(done)
    masks = [v.first_lanes(columns, k * v.lanes) for k in range(PANEL_VECTORS)]
    added = v.splat(b.icmp_signed("!=", is_added, _I64(0)))
    end = b.append_basic_block()
    for row, own in enumerate(totals):
        for k, total in enumerate(own):
            target = v.at(c, k * v.lanes)
            # If nothing is to be added, no lane is loaded and ``earlier`` is 0. Adding
            # 0 changes no sum, since none of these sums is -0.0.
            earlier = v.load(target, b.and_(masks[k], added))
            v.store(b.fadd(earlier, total), target, masks[k])
        c = v.at(c, ldc)
        following_row = b.append_basic_block()
        b.cbranch(b.icmp_signed("<", _I64(row + 1), rows), following_row, end)
        b.position_at_end(following_row)
    b.branch(end)
    b.position_at_end(end)


def _transpose_block(
    b: ir.IRBuilder,
    v: Vectors,
    target: Any,
    target_step: Any,
    source: Any,
    source_step: Any,
    rows: Any,
    columns: Any,
) -> None:
    """Emit the body of ``transpose_block``: transpose one block in registers.

    The block at ``source`` has as many rows and columns as a vector has lanes. Rows are
    ``source_step`` elements apart at ``source``, columns ``target_step`` elements at
    ``target``. Only the first ``rows`` rows are read, and the last one of these
    replaces the rows after it. Columns from ``columns`` on are written as 0.
    """
    mask = v.first_lanes(columns)
    loaded: list[Any] = []
    for row in range(v.lanes):
        loaded.append(v.load(source, mask))
        # After the last row, the step is 0: the last row is loaded again.
        has_next = b.icmp_signed("<", _I64(row + 1), rows)
        source = v.at(source, b.select(has_next, source_step, _I64(0)))
    for column in v.transpose(loaded):
        v.store(column, target)
        target = v.at(target, target_step)


_BODIES: Final[dict[str, tuple[Sequence[ir.Type], Callable[..., None]]]] = {
    "multiply_panels": ([_POINTER] * 3 + [_I64] * 5, _multiply_panels),
    "transpose_block": ([_POINTER, _I64] * 2 + [_I64] * 2, _transpose_block),
}
