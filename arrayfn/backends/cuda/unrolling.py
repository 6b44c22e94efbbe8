"""Makes NVVM unroll loops over ``unrolled(n)`` completely, by metadata in LLVM IR.

Without metadata, NVVM unrolls short loops, and longer ones where it expects a gain.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

_MARKED: Final = "unrolled"
"""The attribute of an LLVM module that lists the basic blocks before marked loops."""


def mark_next_loop(builder: Any) -> None:
    """Mark the first loop after the basic block that ``builder`` is building.

    ``unroll_marked`` adds the metadata once the function is complete.
    """
    vars(builder.module).setdefault(_MARKED, []).append(builder.block)


def unroll_marked(function: Any) -> None:
    """Add metadata to the marked loops of ``function`` that makes NVVM unroll them.

    ``function`` is an LLVM function whose basic blocks are complete.
    """
    for before in vars(function.module).get(_MARKED, []):
        if before.function is function:
            head, reached = _loop_after(before)
            _merge_back_edges(
                head, [block for block in reached if head in _successors(block)]
            )


def _merge_back_edges(head: Any, ends: list[Any]) -> None:
    """Let all back edges of a loop pass through one block, whose branch has metadata.

    ``ends`` are the basic blocks that branch back to ``head``. A body that ends in an
    ``if`` has two from Python 3.12 on, and LLVM would drop the metadata of two back
    edges when it joins them.
    """
    latch = head.function.append_basic_block(f"{head.name}.latch")
    for block in ends:
        block.terminator.replace_usage(head, latch)
    branch = ir.IRBuilder(latch).branch(head)
    branch.set_metadata("llvm.loop", _unroll_metadata(head.function.module))


def _loop_after(before: Any) -> tuple[Any, list[Any]]:
    """Return the head of the first loop after ``before``, and the blocks it leads to.

    ``before`` is a basic block. The head leads to all blocks that control flow may
    reach without passing ``before``: those of the loop, with the head itself, and those
    after the loop. A block that can reach itself is in a loop.
    """
    for head in _reachable(before, before):
        reached = _reachable(head, before)
        if head in reached:
            return head, reached
    raise ValueError(f"there is no loop after {before.name}")


def _reachable(block: Any, end: Any) -> list[Any]:
    """Return the basic blocks reachable from ``block`` without passing ``end``.

    They are in breadth-first order.
    """
    reachable = [b for b in _successors(block) if b is not end]
    for after in reachable:  # which grows in the loop
        reachable += [
            b for b in _successors(after) if b is not end and b not in reachable
        ]
    return reachable


def _unroll_metadata(module: ir.Module) -> Any:
    """Make the metadata of a loop's backward branch that lets LLVM unroll the loop.

    As LLVM requires of ``llvm.loop``, it is a node whose first operand is the node
    itself, here ``!1 = !{!1, !{!"llvm.loop.unroll.full"}}``.
    """
    option = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.full")])
    loop = ir.MDValue(module, [option], name=str(len(module.metadata)))
    loop.operands = (loop, option)
    return loop


def _successors(block: Any) -> list[Any]:
    """Return the basic blocks that ``block`` may branch to."""
    return [x for x in block.terminator.operands if isinstance(x, ir.Block)]
