"""Has loops over ``unrolled(n)`` written out by NVVM, which is told so by metadata.

NVVM writes out short loops by itself, and longer ones where it believes that it helps.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from llvmlite import ir

MARK: Final = "unrolled"


def marked(source: str) -> ast.Module:
    """The module of ``source``; what loops over ``unrolled(n)`` do begins with a mark.

    They are over ``range(n)`` then.
    """
    return ast.fix_missing_locations(_Marker().visit(ast.parse(source)))


class _Marker(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        call = node.iter
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return node
        if call.func.id == MARK:
            call.func.id = "range"
            said = ast.Call(ast.Name(MARK, ast.Load()), call.args, [])
            node.body.insert(0, ast.copy_location(ast.Expr(said), node))
        return node


def mark(builder: Any) -> None:
    """Note that a loop's body begins in the block that is being built."""
    vars(builder.module).setdefault(MARK, []).append(builder.block)


def unrolled(module: ir.Module) -> Any:
    """What the branch back to the head of a loop says, to have it written out.

    A loop's metadata is a node whose first operand is itself (LLVM's Language
    Reference, llvm.loop).
    """
    option = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.full")])
    loop = ir.MDValue(module, [option], name=str(len(module.metadata)))
    loop.operands = (loop, option)
    return loop


def unroll_marked(function: Any) -> None:
    """Say of the loops of ``function`` whose bodies were marked to write them out."""
    module = function.module
    for body in vars(module).get(MARK, []):
        if body.function is not function:
            continue
        (test,) = _predecessors(function, body)
        inside = [*_reachable(body, test), test]
        (header,) = (
            b
            for b in inside
            if any(p not in inside for p in _predecessors(function, b))
        )
        loop = unrolled(module)
        for block in inside:
            if header in _successors(block):
                block.terminator.set_metadata("llvm.loop", loop)


def _successors(block: Any) -> list[Any]:
    return [x for x in block.terminator.operands if isinstance(x, ir.Block)]


def _predecessors(function: Any, block: Any) -> list[Any]:
    return [b for b in function.blocks if block in _successors(b)]


def _reachable(first: Any, end: Any) -> list[Any]:
    """Blocks from ``first`` on, without ``end``."""
    found: list[Any] = [first]
    for block in found:
        found += [b for b in _successors(block) if b is not end and b not in found]
    return found
