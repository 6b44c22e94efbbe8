"""Sums over members in blocks: a large product whose result is summed right after.

A sum over members begins when its operand is there. If that is one large product, no
other step hides the sum. So the product is computed in blocks of rows, and each block's
sum runs beside the products of the blocks after it: only the last one is waited for.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.ir.builder import rewritten
from arrayfn.primitives.collectives import all_reduce
from arrayfn.primitives.contraction import dot_general
from arrayfn.primitives.slicing import concatenate, slice_

_BLOCK_BYTES: Final = 1 << 24
"""Bytes of a block's sum: it takes some 65 us over NVLink (H200).

The sum of a smaller one takes little less, and its product is no longer efficient.
"""
_MAX_BLOCKS: Final = 4
_ROWS: Final = 128  # of the tiles of products: blocks have a multiple of them


def with_sums_in_blocks(program: Program) -> Program:
    """``program``, of one device of a mesh, with large products and sums in blocks.

    After it, the operand of an ``all_reduce`` that only a ``dot_general`` without batch
    axes makes has less than twice ``_BLOCK_BYTES``, or as many rows as do not divide.
    """
    read = [*program.outputs, *(a for e in program.equations for a in e.inputs)]
    uses = Counter(a for a in read if isinstance(a, Var))
    sums: dict[Atom, Equation] = {}  # by their operands
    for e in program.equations:
        (x, *_) = e.inputs or (None,)
        if e.primitive is all_reduce and isinstance(x, Var) and uses[x] == 1:
            sums[x] = e
    cut = {
        e.outputs[0]: sums[e.outputs[0]]
        for e in program.equations
        if e.primitive is dot_general and e.outputs[0] in sums and _blocks(e) > 1
    }
    if not cut:
        return program

    def replacement(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
        """The sums of blocks in place of a product, and nothing in place of its sum."""
        if equation in cut.values():
            return operands
        if equation.outputs[0] not in cut:
            return None
        params = cut[equation.outputs[0]].params
        left, right = operands
        rows, *rest = left.type.shape
        size = rows // _blocks(equation)
        results: list[Atom] = []
        for begin in range(0, rows, size):
            block = slice_(
                left,
                start=(begin, *[0] * len(rest)),
                limit=(begin + size, *rest),
                strides=(1,) * left.type.ndim,
            )
            product = dot_general(block, right, **equation.params)
            results.append(all_reduce(product, **params))
        return [concatenate(*results, axis=0)]

    return rewritten(program, replacement)


def _blocks(product: Equation) -> int:
    """The number of blocks of rows that ``product`` is cut into; 1 if it is not."""
    params, result = product.params, product.outputs[0].type
    has_rows = not params["batch"][0] and 0 not in params["contract"][0]
    count = min(result.nbytes // _BLOCK_BYTES, _MAX_BLOCKS) if has_rows else 1
    while count > 1 and result.shape[0] % (count * _ROWS):
        count -= 1
    return max(count, 1)
