"""cuDNN through NVIDIA's Python front end for its graphs; attention with it.

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

_HOPPER: Final = 9
_LONG_HEADS: Final = 90500  # the version that brought heads of more than 128 elements
_NAMES: Final = {dtypes.float16: "HALF", dtypes.bfloat16: "BFLOAT16"}


@cache
def library() -> Any:
    """cuDNN's front end."""
    return importlib.import_module("cudnn")


def refusals() -> tuple[type[Exception], ...]:
    """The exceptions that cuDNN raises for operations that it does not support."""
    return library().cudnnGraphNotSupportedError, RuntimeError, ValueError


@per_device
def handle() -> Any:
    """cuDNN's handle."""
    device().make_current()
    return library().create_handle()


def new_graph(data: Any, compute: Any) -> Any:
    """Make an empty graph for arrays of dtype ``data``, computed in ``compute``."""
    return library().pygraph(
        io_data_type=data,
        intermediate_data_type=compute,
        compute_data_type=compute,
        handle=handle(),
    )


def create_plans(graph: Any) -> None:
    """Let cuDNN propose execution plans for a complete graph."""
    modes = library().heur_mode
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([modes.A, modes.FALLBACK])


def on_stream(stream: int) -> Any:
    """cuDNN's handle, set to enqueue on ``stream``."""
    library().set_stream(handle(), stream)
    device().make_current()
    return handle()


class _Graph:
    """A cuDNN graph of one operation on arrays of attention heads.

    Arrays are [B, T, N, H]; cuDNN calls them [B, N, T, H]. ``build`` returns
    ``enqueue(stream, *addresses)``. It takes the arrays in the order in which
    ``tensor`` and ``output`` added them.
    """

    def __init__(self, dtype: Any) -> None:
        cudnn = library()
        self.dtype = getattr(cudnn.data_type, _NAMES[dtype])
        self.float = cudnn.data_type.FLOAT
        self.graph = new_graph(self.dtype, self.float)
        self.tensors: list[Any] = []

    def tensor(self, type: ArrayType, *, statistics: bool = False) -> Any:
        """Add an input: an array of heads, or [B, N, T] statistics."""
        shape, strides = _statistics(type) if statistics else _heads(type)
        made = self.graph.tensor(
            dim=list(shape),
            stride=list(strides),
            data_type=self.float if statistics else self.dtype,
        )
        self.tensors.append(made)
        return made

    def output(self, made: Any, type: ArrayType, *, statistics: bool = False) -> None:
        """Make ``made``, an operation's result, an output with the layout of ``type``.

        With ``statistics`` it is the float32 array of logarithms of rows' sums.
        """
        shape, strides = _statistics(type) if statistics else _heads(type)
        made.set_output(True).set_dim(list(shape)).set_stride(list(strides))
        made.set_data_type(self.float if statistics else self.dtype)
        self.tensors.append(made)

    def build(self) -> Enqueue:
        """Compile the graph; return a function that enqueues it."""
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
            tensor_addresses: Mapping[Any, int] = dict(
                zip(tensors, addresses, strict=True)
            )
            graph.execute(tensor_addresses, space.pointer, handle=on_stream(stream))

        return enqueue


def _heads(type: ArrayType) -> tuple[Sequence[int], Sequence[int]]:
    """Extents and strides of an array [B, T, N, H] in cuDNN's order of axes."""
    B, T, N, H = type.shape
    b, t, n, h = type.layout.strides(type.shape)
    return (B, N, T, H), (b, n, t, h)


def _statistics(type: ArrayType) -> tuple[Sequence[int], Sequence[int]]:
    B, N, T = type.shape
    return (B, N, T, 1), (N * T, T, 1, 1)


def longest_head() -> int:
    """The most elements that a head may have in attention on the GPU here."""
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

    Its arguments are addresses of q, k, v, the result, and the logarithms of the
    softmax's sums.

    Logits are multiplied by ``scale``; if ``is_causal``, later keys are left out.
    """
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
    is_deterministic: bool,
) -> Enqueue:
    """Build the gradient of ``attention``; return a function that enqueues it.

    Its arguments are addresses of arrays, in the order of the types here.

    If ``is_deterministic``, cuDNN sums the gradient of q in a fixed order.
    """
    g = _Graph(q.dtype)
    tensors = [g.tensor(type) for type in (q, k, v, result)]
    statistics = g.tensor(logarithms, statistics=True)
    cotangent_tensor = g.tensor(cotangent)
    made = g.graph.sdpa_backward(
        *tensors,
        cotangent_tensor,
        statistics,
        attn_scale=scale,
        use_causal_mask=is_causal,
        use_deterministic_algorithm=is_deterministic,
    )
    for gradient, type in zip(made, (dq, dk, dv), strict=True):
        g.output(gradient, type)
    return g.build()
