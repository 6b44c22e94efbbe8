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

_H200_HEAD = 256  # elements of a head that cuDNN supports there


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
    """float16 or bfloat16, heads of at most 256, an elementwise score function.

    ``scale`` must be finite. The score function may read arrays it captures, among the
    operands that ``given`` names, one element at a time.
    """
    from arrayfn.lowering.cuda.attention import calls

    if q.dtype not in dtypes.HALF_PRECISION or not math.isfinite(scale):
        return False
    if not calls.takes(q.shape, k.shape):
        return False
    terms = dict(zip(given, others[1:], strict=False))
    takes_score = calls.takes_score(q.shape, k.shape, score, terms)
    return takes_score and calls.takes_blocks(q.shape, k.shape, block, terms)


def _generated_supports_bias(
    *types: ArrayType, given: tuple[str, ...], **static: Any
) -> bool:
    """``_generated_supports``, and the bias has an element for each key."""
    bias = types[3 + given.index("bias")]
    keys = types[1].shape[1]
    supported = _generated_supports(*types, given=given, **static)
    return bias.shape[-1] == keys and supported


def _generated_reads(type: ArrayType, offset: int) -> bool:
    """Whether the generated kernel reads an array that lies so.

    ``offset`` is that of the array's first element in its memory, in elements.
    """
    from arrayfn.lowering.cuda.attention import calls

    return calls.reads_layout(type, offset)


def generated_attention(equation: Equation, reads: Reads) -> Iterator[HandwrittenCall]:
    """The call of a generated kernel, on tensor cores, that computes an attention.

    ``reads`` says where the operands lie.
    """
    from arrayfn.lowering.cuda.attention import calls

    return calls.attention(equation, reads)


def generated_attention_gradient(
    equation: Equation, reads: Reads
) -> Iterator[HandwrittenCall]:
    """The calls of generated kernels, on tensor cores, for an attention's gradient.

    It is the gradient by queries, keys and values. ``reads`` says where the operands
    lie.
    """
    from arrayfn.lowering.cuda.attention import calls

    return calls.attention_gradient(equation, reads)


def generated_attention_bias_gradient(
    equation: Equation, reads: Reads
) -> Iterator[HandwrittenCall]:
    """The calls of generated kernels, on tensor cores, for the gradient by a bias.

    It is the bias of an attention. ``reads`` says where the operands lie.
    """
    from arrayfn.lowering.cuda.attention import calls

    return calls.attention_bias_gradient(equation, reads)


@cache
def _has_cudnn() -> bool:
    return importlib.util.find_spec("cudnn") is not None


@cache
def _longest_head() -> int:
    """Elements of a head that cuDNN supports on the GPU here, or, if none, an H200."""
    if missing_here():
        return _H200_HEAD
    from arrayfn.backends.cuda.libraries import cudnn

    return cudnn.longest_head()


def _cudnn_supports(
    q: ArrayType, k: ArrayType, *others: ArrayType, window: Window, **static: Any
) -> bool:
    """Whether cuDNN computes attention of these operands here.

    Heads must be short enough, and a multiple of 8 elements; no array may be empty, and
    ``window`` is none or causal.
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
    """Whether all rows of heads begin at multiples of 128 bits, as cuDNN needs.

    ``offset`` is that of the array's first element in its memory, in elements.
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
    """cuDNN's scaled dot-product attention of operands of ``types``.

    Logits are multiplied by ``scale``. Keys after a query are left out where ``window``
    ends at it. Other ``static`` arguments are for other kernels of the operator.
    """
    from arrayfn.backends.cuda.libraries import cudnn

    made: Any = cudnn.attention
    return made(*types, scale, window[1] == 0)


def cudnn_attention_gradient(
    *types: ArrayType,
    scale: float,
    window: Window,
    is_deterministic: bool = True,
    **static: Any,
) -> Any:
    """cuDNN's gradient of attention of operands of ``types``.

    ``scale`` and ``window`` are those of ``cudnn_attention``. With
    ``is_deterministic`` the sum of a query's gradient has a fixed order.
    """
    from arrayfn.backends.cuda.libraries import cudnn

    made: Any = cudnn.attention_gradient
    return made(*types, scale, window[1] == 0, is_deterministic=is_deterministic)


def cudnn_attention_gradient_in_any_order(*types: ArrayType, **static: Any) -> Any:
    """cuDNN's gradient, which adds the parts of blocks in the order they arrive."""
    return cudnn_attention_gradient(*types, **static, is_deterministic=False)


def register() -> None:
    """Register the kernels; the last one that supports the operands is chosen."""

    def add(operator: str, function: Any, when: Any, **options: Any) -> None:
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
