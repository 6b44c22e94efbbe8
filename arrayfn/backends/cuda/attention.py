"""Kernels of the attention operators on a GPU: cuDNN's and generated ones.

cuDNN computes attention with no mask or a causal one, if it supports the heads;
generated kernels compute the rest.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from arrayfn import dtypes
from arrayfn.backends.cuda.requirements import missing_here
from arrayfn.ir import ArrayType, Equation
from arrayfn.lowering.operator_kernels import KERNELS, OperatorKernel

if TYPE_CHECKING:
    from arrayfn.lowering.cuda.handwritten import HandwrittenCall
    from arrayfn.passes.reads import Reads

Window = tuple[int | None, int | None]

_H200_HEAD = 256  # most elements of a head that cuDNN supports on an H200


def _generated_supports(
    q: ArrayType,
    k: ArrayType,
    *others: ArrayType,
    scale: float,
    given: tuple[str, ...],
    score: str = "",
    block: tuple[int, int] | None = None,
    **static: Any,
) -> bool:
    """Whether generated kernels compute attention of operands of these types.

    The dtype must be float16 or bfloat16, ``scale`` finite, and a head at most 256
    elements. The operands are q, k, v, and those that ``given`` names. ``score`` is the
    score function, which must be elementwise, but may read one element of a named
    operand. ``block`` is the shape of the block mask's blocks.
    """
    from arrayfn.lowering.cuda.attention import calls

    if q.dtype not in dtypes.HALF_PRECISION or not math.isfinite(scale):
        return False
    if not calls.takes(q.shape, k.shape):
        return False
    _, *named = others  # v comes first
    terms = dict(zip(given, named, strict=False))
    takes_score = calls.takes_score(q.shape, k.shape, score, terms)
    return takes_score and calls.takes_blocks(q.shape, k.shape, block, terms)


def _generated_supports_bias(
    *types: ArrayType, given: tuple[str, ...], **static: Any
) -> bool:
    """Whether a generated kernel computes the gradient by the bias.

    This needs what ``_generated_supports`` needs, and a bias with an element for each
    key: no broadcast along its last axis. ``types`` are those of the operands: q, k, v,
    and those that ``given`` names.
    """
    bias = types[3 + given.index("bias")]
    keys = types[1].shape[1]
    supported = _generated_supports(*types, given=given, **static)
    return bias.shape[-1] == keys and supported


def _generated_reads(type: ArrayType, offset: int) -> bool:
    """Whether generated kernels read an operand in this layout without a copy.

    ``offset`` is that of the array's first element in its memory, in elements.
    """
    from arrayfn.lowering.cuda.attention import calls

    return calls.reads_layout(type, offset)


def generated_attention(equation: Equation, reads: Reads) -> Iterator[HandwrittenCall]:
    """Yield the call of a generated kernel that computes an attention.

    The kernel uses tensor cores. ``reads`` says where the operands lie in memory.
    """
    from arrayfn.lowering.cuda.attention import calls

    return calls.attention(equation, reads)


def generated_attention_gradient(
    equation: Equation, reads: Reads
) -> Iterator[HandwrittenCall]:
    """Yield the calls of generated kernels for an attention's gradient.

    It is the gradient by queries, keys and values. The kernels use tensor cores.
    ``reads`` says where the operands lie in memory.
    """
    from arrayfn.lowering.cuda.attention import calls

    return calls.attention_gradient(equation, reads)


def generated_attention_bias_gradient(
    equation: Equation, reads: Reads
) -> Iterator[HandwrittenCall]:
    """Yield the calls of generated kernels for the gradient by an attention's bias.

    The kernels use tensor cores. ``reads`` says where the operands lie in memory.
    """
    from arrayfn.lowering.cuda.attention import calls

    return calls.attention_bias_gradient(equation, reads)


@cache
def _has_cudnn() -> bool:
    """Whether cuDNN's Python front end is installed."""
    return importlib.util.find_spec("cudnn") is not None


@cache
def _longest_head() -> int:
    """Return the most elements of a head that cuDNN supports.

    That is on this machine's GPU, or without one on an H200.
    """
    if missing_here():
        return _H200_HEAD
    from arrayfn.backends.cuda.libraries import cudnn

    return cudnn.longest_head()


def _cudnn_supports(
    q: ArrayType, k: ArrayType, *others: ArrayType, window: Window, **static: Any
) -> bool:
    """Whether cuDNN computes attention of operands of these types.

    The dtype must be float16 or bfloat16. Heads must be short enough, and a multiple of
    8 elements. No array may be empty. There must be no score function and no operands
    but q, k and v. ``window``, the keys (before, after) a query that it attends to,
    must be unbounded, or causal: (None, 0).
    """
    head = q.shape[-1]
    return (
        q.dtype in dtypes.HALF_PRECISION
        and head % 8 == 0
        and bool(q.size and k.size)
        and not (static["given"] or static.get("score"))
        and window in ((None, None), (None, 0))
        and _has_cudnn()
        and head <= _longest_head()
    )


def _cudnn_reads(type: ArrayType, offset: int) -> bool:
    """Whether cuDNN reads an array of this layout without a copy.

    It needs contiguous heads that begin at multiples of 128 bits. ``offset`` is that of
    the array's first element in its memory, in elements.
    """
    if type.ndim != 4:
        return False
    strides = type.layout.strides(type.shape)
    starts = (offset, *strides[:-1])
    aligned = all(k >= 0 and k * type.dtype.itemsize % 16 == 0 for k in starts)
    return strides[-1] == 1 and aligned


def cudnn_attention(
    *types: ArrayType, scale: float, window: Window, **static: Any
) -> Any:
    """Build cuDNN's scaled dot-product attention; return a function that enqueues it.

    ``types`` are those of operands and results. Logits are multiplied by ``scale``. A
    ``window`` that ends at the query, (None, 0), is a causal mask. The other ``static``
    arguments have no meaning for this kernel.
    """
    from arrayfn.backends.cuda.libraries import cudnn

    build: Any = cudnn.attention
    is_causal = window[1] == 0
    return build(*types, scale, is_causal)


def cudnn_attention_gradient(
    *types: ArrayType,
    scale: float,
    window: Window,
    is_deterministic: bool = True,
    **static: Any,
) -> Any:
    """Build cuDNN's gradient of attention; return the function that enqueues it.

    ``types`` are those of operands and results; ``scale`` and ``window`` are those of
    ``cudnn_attention``. With ``is_deterministic`` a query's gradient is summed in a
    fixed order.
    """
    from arrayfn.backends.cuda.libraries import cudnn

    build: Any = cudnn.attention_gradient
    is_causal = window[1] == 0
    return build(*types, scale, is_causal, is_deterministic=is_deterministic)


def cudnn_attention_gradient_in_any_order(*types: ArrayType, **static: Any) -> Any:
    """Build cuDNN's gradient of attention with sums in any order.

    Blocks add to a query's gradient in the order in which they finish, so the result is
    not deterministic. The parameters are those of ``cudnn_attention_gradient``.
    """
    return cudnn_attention_gradient(*types, **static, is_deterministic=False)


def register() -> None:
    """Register the kernels; the last one that supports the operands is chosen.

    So cuDNN's kernels are preferred to generated ones.
    """

    def add(operator: str, function: Any, when: Any, **options: Any) -> None:
        """Register ``function`` for operands that ``when`` accepts."""
        KERNELS.register(OperatorKernel(operator, "cuda", function, when, **options))

    generated: dict[str, Any] = {"views": _generated_reads, "lowered": True}
    bias, gradient = "nn.attention_bias_gradient", "nn.attention_gradient"
    add("nn.attention", generated_attention, _generated_supports, **generated)
    add(gradient, generated_attention_gradient, _generated_supports, **generated)
    add(bias, generated_attention_bias_gradient, _generated_supports_bias, **generated)
    cudnn: dict[str, Any] = {"views": _cudnn_reads, "prepared": True}
    any_order = cudnn_attention_gradient_in_any_order
    add("nn.attention", cudnn_attention, _cudnn_supports, **cudnn)
    add(gradient, cudnn_attention_gradient, _cudnn_supports, **cudnn)
    add(gradient, any_order, _cudnn_supports, deterministic=False, **cudnn)
