"""Has loops over ``unrolled(n)`` written out by NVVM, which is told so by metadata.

NVVM writes out short loops by itself, and longer ones where it believes that it helps.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

_MARKED: Final = "unrolled"


def mark(builder: Any) -> None:
    """Note that the loop after the block that is being built is to be unrolled."""
    vars(builder.module).setdefault(_MARKED, []).append(builder.block)


def unroll_marked(function: Any) -> None:
    """Say of the marked loops of ``function`` to unroll them."""
    for before in vars(function.module).get(_MARKED, []):
        if before.function is function:
            head, inside = _loop_after(before)
            for block in inside:
                if head in _successors(block):
                    block.terminator.set_metadata("llvm.loop", _unroll(function.module))


def _loop_after(before: Any) -> tuple[Any, list[Any]]:
    """The head of the first loop after a block, and what is reached from it."""
    for head in _reachable(before, before):
        inside = _reachable(head, before)
        if head in inside:
            return head, inside
    raise ValueError(f"there is no loop after {before.name}")


def _reachable(block: Any, end: Any) -> list[Any]:
    """The blocks that control may go to from ``block`` before it is at ``end``."""
    found = [b for b in _successors(block) if b is not end]
    for after in found:
        found += [b for b in _successors(after) if b is not end and b not in found]
    return found


def _unroll(module: ir.Module) -> Any:
    """What the branch back to the head of a loop says, to have it written out.

    A loop's metadata is a node whose first operand is itself (LLVM's Language
    Reference, llvm.loop).
    """
    option = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.full")])
    loop = ir.MDValue(module, [option], name=str(len(module.metadata)))
    loop.operands = (loop, option)
    return loop


def _successors(block: Any) -> list[Any]:
    return [x for x in block.terminator.operands if isinstance(x, ir.Block)]
