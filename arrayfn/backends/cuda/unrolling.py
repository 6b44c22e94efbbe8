"""Full unrolling of loops over ``unrolled(n)``: metadata that NVVM obeys.

NVVM unrolls short loops by itself, and longer ones where it believes that it helps.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

_MARKED: Final = "unrolled"
"""The attribute of a module with the blocks before which loops to unroll begin."""


def mark_next_loop(builder: Any) -> None:
    """Note that the first loop after the block being built is to be unrolled."""
    vars(builder.module).setdefault(_MARKED, []).append(builder.block)


def unroll_marked(function: Any) -> None:
    """Add metadata to the marked loops of ``function`` that makes NVVM unroll them."""
    for before in vars(function.module).get(_MARKED, []):
        if before.function is function:
            head, reached = _loop_after(before)
            _merge_back_edges(
                head, [block for block in reached if head in _successors(block)]
            )


def _merge_back_edges(head: Any, ends: list[Any]) -> None:
    """Send the ends of a loop back to its head by one branch, marked to be unrolled.

    A body that ends in an ``if`` has two ends from Python 3.12 on, and LLVM would drop
    their metadata when it joins them.
    """
    latch = head.function.append_basic_block(f"{head.name}.latch")
    for block in ends:
        block.terminator.replace_usage(head, latch)
    branch = ir.IRBuilder(latch).branch(head)
    branch.set_metadata("llvm.loop", _unroll_metadata(head.function.module))


def _loop_after(before: Any) -> tuple[Any, list[Any]]:
    """The head of the first loop after the block ``before``, and what it leads to.

    That is all blocks that control may reach from the head without passing ``before``:
    those of the loop, with its head, and those that follow it.
    """
    for head in _reachable(before, before):
        reached = _reachable(head, before)
        if head in reached:
            return head, reached
    raise ValueError(f"there is no loop after {before.name}")


def _reachable(block: Any, end: Any) -> list[Any]:
    """The blocks that control flow may reach from ``block`` without passing ``end``."""
    found = [b for b in _successors(block) if b is not end]
    for after in found:
        found += [b for b in _successors(after) if b is not end and b not in found]
    return found


def _unroll_metadata(module: ir.Module) -> Any:
    """Metadata for a loop's backward branch, which makes LLVM unroll the loop.

    A loop's metadata is a node whose first operand is itself (LLVM's Language
    Reference, llvm.loop).
    """
    option = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.full")])
    loop = ir.MDValue(module, [option], name=str(len(module.metadata)))
    loop.operands = (loop, option)
    return loop


def _successors(block: Any) -> list[Any]:
    return [x for x in block.terminator.operands if isinstance(x, ir.Block)]
