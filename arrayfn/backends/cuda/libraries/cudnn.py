"""Builds cuDNN graphs through NVIDIA's Python front end, among them attention.

A graph is built when a plan is loaded. All graphs share a workspace.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.backends.cuda.driver import device, per_device
from arrayfn.backends.cuda.libraries.workspaces import workspace
from arrayfn.errors import BackendError
from arrayfn.ir import ArrayType

Enqueue = Callable[..., None]
"""Enqueues a graph: ``enqueue(stream, *addresses)``."""

_HOPPER: Final = 9  # the major compute capability
_LONG_HEADS: Final = 90500  # the version that brought heads of more than 128 elements
_NAMES: Final = {dtypes.float16: "HALF", dtypes.bfloat16: "BFLOAT16"}
"""cuDNN's names of dtypes."""


@cache
def library() -> Any:
    """Import cuDNN's Python front end, the module ``cudnn``."""
    return importlib.import_module("cudnn")


def refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions that cuDNN raises for operations it does not support."""
    return library().cudnnGraphNotSupportedError, RuntimeError, ValueError


@per_device
def handle() -> Any:
    """Return cuDNN's handle for this thread's GPU, created at the first call."""
    device().make_current()
    return library().create_handle()


def new_graph(data: Any, compute: Any) -> Any:
    """Make an empty graph for arrays of dtype ``data``, computed in ``compute``.

    Both are cuDNN's ``data_type``s.
    """
    return library().pygraph(
        io_data_type=data,
        intermediate_data_type=compute,
        compute_data_type=compute,
        handle=handle(),
    )


def create_plans(graph: Any) -> None:
    """Let cuDNN check a complete ``graph``, and propose execution plans for it."""
    modes = library().heur_mode
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([modes.A, modes.FALLBACK])


def on_stream(stream: int) -> Any:
    """Set cuDNN's handle to enqueue on ``stream``, and return it.

    Makes the GPU's context current as well.
    """
    library().set_stream(handle(), stream)
    device().make_current()
    return handle()


class _Graph:
    """A cuDNN graph of one operation on arrays of attention heads.

    Arrays are [B, T, N, H]: batch, positions, heads, elements of a head. cuDNN orders
    the axes as [B, N, T, H]. ``build`` returns ``enqueue(stream, *addresses)``, whose
    addresses are those of the arrays in the order in which ``tensor`` and ``output``
    added them.
    """

    def __init__(self, dtype: Any) -> None:
        cudnn = library()
        self.dtype = getattr(cudnn.data_type, _NAMES[dtype])
        self.float = cudnn.data_type.FLOAT
        self.graph = new_graph(self.dtype, self.float)
        self.tensors: list[Any] = []

    def tensor(self, type: ArrayType, *, statistics: bool = False) -> Any:
        """Add an input with the layout of ``type``, and return its cuDNN tensor.

        It is an array of heads or, with ``statistics``, a float32 array [B, N, T].
        """
        shape, strides = _statistics(type) if statistics else _heads(type)
        tensor = self.graph.tensor(
            dim=list(shape),
            stride=list(strides),
            data_type=self.float if statistics else self.dtype,
        )
        self.tensors.append(tensor)
        return tensor

    def output(self, tensor: Any, type: ArrayType, *, statistics: bool = False) -> None:
        """Make an operation's result an output with the layout of ``type``.

        ``tensor`` is the result. With ``statistics`` it is a float32 array [B, N, T],
        of the logarithms of the sums of rows of the softmax.
        """
        shape, strides = _statistics(type) if statistics else _heads(type)
        tensor.set_output(True).set_dim(list(shape)).set_stride(list(strides))
        tensor.set_data_type(self.float if statistics else self.dtype)
        self.tensors.append(tensor)

    def build(self) -> Enqueue:
        """Compile the graph; return a function that enqueues it.

        Raises BackendError if cuDNN does not support the operation on these arrays.
        """
        cudnn, graph = library(), self.graph
        try:
            create_plans(graph)
            graph.check_support()
            graph.build_plans()
        except cudnn.cudnnGraphNotSupportedError as error:
            raise BackendError(
                f"cuDNN has no attention for these arrays ({error}); convert them to "
                "float32, which is computed by kernels and matrix products"
            ) from error
        tensors = self.tensors
        space = workspace(graph.get_workspace_size())

        def enqueue(stream: int, *addresses: int) -> None:
            """Enqueue the graph on ``stream``, for arrays at ``addresses``.

            They belong to ``tensors`` in order. ``space`` is cuDNN's scratch memory.
            """
            tensor_addresses: Mapping[Any, int] = dict(
                zip(tensors, addresses, strict=True)
            )
            graph.execute(tensor_addresses, space.pointer, handle=on_stream(stream))

        return enqueue


def _heads(type: ArrayType) -> tuple[Sequence[int], Sequence[int]]:
    """Return extents and strides of an array [B, T, N, H] in cuDNN's order of axes."""
    B, T, N, H = type.shape
    b, t, n, h = type.layout.strides(type.shape)
    return (B, N, T, H), (b, n, t, h)


def _statistics(type: ArrayType) -> tuple[Sequence[int], Sequence[int]]:
    """Return extents and strides of a row-major array [B, N, T] as [B, N, T, 1]."""
    B, N, T = type.shape
    return (B, N, T, 1), (N * T, T, 1, 1)


def longest_head() -> int:
    """Return the most elements of a head in cuDNN's attention on this thread's GPU."""
    is_hopper = device().arch[0] == _HOPPER
    return 256 if is_hopper and library().backend_version() >= _LONG_HEADS else 128


def attention(
    q: ArrayType,
    k: ArrayType,
    v: ArrayType,
    result: ArrayType,
    logarithms: ArrayType,
    scale: float,
    is_causal: bool,
) -> Enqueue:
    """Build cuDNN's attention; return a function that enqueues it.

    The parameters from ``q`` to ``logarithms`` are types of arrays; the function takes
    a stream and the arrays' addresses in this order. ``logarithms`` are those of the
    sums of the softmax. Logits are multiplied by ``scale``; if ``is_causal``, a query
    does not attend to later keys.
    """
    g = _Graph(q.dtype)
    inputs = [g.tensor(type) for type in (q, k, v)]
    output, statistics = g.graph.sdpa(
        *inputs, generate_stats=True, attn_scale=scale, use_causal_mask=is_causal
    )
    g.output(output, result)
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
    is_deterministic: bool,
) -> Enqueue:
    """Build the gradient of ``attention``; return a function that enqueues it.

    The parameters from ``q`` to ``dv`` are types of arrays; the function takes a stream
    and the arrays' addresses in this order. ``cotangent`` is that of the result, and
    ``dq``, ``dk`` and ``dv`` are the gradients. If ``is_deterministic``, cuDNN sums
    ``dq`` in a fixed order.
    """
    g = _Graph(q.dtype)
    tensors = [g.tensor(type) for type in (q, k, v, result)]
    statistics = g.tensor(logarithms, statistics=True)
    cotangent_tensor = g.tensor(cotangent)
    gradients = g.graph.sdpa_backward(
        *tensors,
        cotangent_tensor,
        statistics,
        attn_scale=scale,
        use_causal_mask=is_causal,
        use_deterministic_algorithm=is_deterministic,
    )
    for gradient, type in zip(gradients, (dq, dk, dv), strict=True):
        g.output(gradient, type)
    return g.build()
