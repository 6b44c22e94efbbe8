"""Attention through cuDNN, by NVIDIA's own Python front end of its graphs.

A graph is built when a plan is loaded; its workspace lives as long as it. cuDNN is
asked for its deterministic gradient.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.backends.cuda.driver import device
from arrayfn.errors import BackendError
from arrayfn.ir import ArrayType

Enqueue = Callable[..., None]

_NAMES: Final = {dtypes.float16: "HALF", dtypes.bfloat16: "BFLOAT16"}


@cache
def _cudnn() -> Any:
    return importlib.import_module("cudnn")


@cache
def _handle() -> Any:
    device().enter()
    return _cudnn().create_handle()


class _Graph:
    """A graph of one operation on arrays [B, T, N, H], which cuDNN calls [B, N, T, H].

    ``enqueue(stream, *addresses)`` takes the arrays in the order of ``tensor`` and
    ``output``.
    """

    def __init__(self, dtype: Any) -> None:
        cudnn = _cudnn()
        self.dtype = getattr(cudnn.data_type, _NAMES[dtype])
        self.float = cudnn.data_type.FLOAT
        self.graph = cudnn.pygraph(
            io_data_type=self.dtype,
            intermediate_data_type=self.float,
            compute_data_type=self.float,
            handle=_handle(),
        )
        self.tensors: list[Any] = []

    def tensor(self, type: ArrayType, *, statistics: bool = False) -> Any:
        """An input: an array of heads, or [B, N, T] statistics."""
        shape, strides = _statistics(type) if statistics else _heads(type)
        made = self.graph.tensor(
            dim=list(shape),
            stride=list(strides),
            data_type=self.float if statistics else self.dtype,
        )
        self.tensors.append(made)
        return made

    def output(self, made: Any, type: ArrayType, *, statistics: bool = False) -> None:
        """Give out what an operation made."""
        shape, strides = _statistics(type) if statistics else _heads(type)
        made.set_output(True).set_dim(list(shape)).set_stride(list(strides))
        made.set_data_type(self.float if statistics else self.dtype)
        self.tensors.append(made)

    def build(self) -> Enqueue:
        """What enqueues the graph."""
        cudnn, graph = _cudnn(), self.graph
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.check_support()
            graph.build_plans()
        except cudnn.cudnnGraphNotSupportedError as error:
            raise BackendError(
                f"cuDNN has no attention for these arrays ({error}); convert them to "
                "float32, which is computed by kernels and matrix products"
            ) from error
        gpu, tensors = device(), self.tensors
        workspace = _Workspace(graph.get_workspace_size())

        def enqueue(stream: int, *addresses: int) -> None:
            handle = _handle()
            cudnn.set_stream(handle, stream)
            given: Mapping[Any, int] = dict(zip(tensors, addresses, strict=True))
            gpu.enter()
            graph.execute(given, workspace.pointer, handle=handle)

        return enqueue


class _Workspace:
    """Memory that a graph's runs share in turn."""

    def __init__(self, nbytes: int) -> None:
        self.pointer = device().allocate(max(1, nbytes))

    def __del__(self) -> None:
        device().free(self.pointer)


def _heads(type: ArrayType) -> tuple[Sequence[int], Sequence[int]]:
    """Extents and strides of an array [B, T, N, H] in cuDNN's order of axes."""
    B, T, N, H = type.shape
    b, t, n, h = type.layout.strides(type.shape)
    return (B, N, T, H), (b, n, t, h)


def _statistics(type: ArrayType) -> tuple[Sequence[int], Sequence[int]]:
    B, N, T = type.shape
    return (B, N, T, 1), (N * T, T, 1, 1)


def attention(
    q: ArrayType,
    k: ArrayType,
    v: ArrayType,
    result: ArrayType,
    logarithms: ArrayType,
    scale: float,
    is_causal: bool,
) -> Enqueue:
    """What enqueues the attention, given q, k, v, result and logarithms."""
    g = _Graph(q.dtype)
    inputs = [g.tensor(type) for type in (q, k, v)]
    made, statistics = g.graph.sdpa(
        *inputs, generate_stats=True, attn_scale=scale, use_causal_mask=is_causal
    )
    g.output(made, result)
    g.output(statistics, logarithms, statistics=True)
    return g.build()


def attention_gradient(
    q: ArrayType,
    k: ArrayType,
    v: ArrayType,
    result: ArrayType,
    logarithms: ArrayType,
    cotangent: ArrayType,
    dq: ArrayType,
    dk: ArrayType,
    dv: ArrayType,
    scale: float,
    is_causal: bool,
) -> Enqueue:
    """What enqueues the gradient, given the arrays in this order."""
    g = _Graph(q.dtype)
    tensors = [g.tensor(type) for type in (q, k, v, result)]
    statistics = g.tensor(logarithms, statistics=True)
    given = g.tensor(cotangent)
    made = g.graph.sdpa_backward(
        *tensors,
        given,
        statistics,
        attn_scale=scale,
        use_causal_mask=is_causal,
        use_deterministic_algorithm=True,
    )
    for gradient, type in zip(made, (dq, dk, dv), strict=True):
        g.output(gradient, type)
    return g.build()
