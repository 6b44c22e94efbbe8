"""Convolutions through cuDNN: a graph of one operation, built when it is first needed.

cuDNN proposes several plans for a graph. Plans that round operands, sum in an order
that varies, use TensorFloat-32 where that was not asked for, or would have to be
compiled first are left out. The others are timed when a convolution is first seen on a
machine, and the choice is kept in the disk cache: it is the same from then on, and so
are the bits of results.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from arrayfn.backends.cuda import timing
from arrayfn.backends.cuda.driver import device, per_device
from arrayfn.backends.cuda.libraries import cudnn
from arrayfn.backends.cuda.libraries.calls import Call
from arrayfn.backends.cuda.libraries.workspaces import Workspace, workspace
from arrayfn.backends.object_cache import content_key, object_cache
from arrayfn.dtypes import BY_SHORT_NAME
from arrayfn.errors import BackendError, OutOfMemoryError

MAX_WORKSPACE: Final = 512 << 20
PROPOSALS: Final = 24
_NAMES: Final = {"f16": "HALF", "bf16": "BFLOAT16", "f32": "FLOAT", "f64": "DOUBLE"}
_INACCURATE: Final = (
    *("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION"),
    *("WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13"),
)
_ARRAYS: Final = {
    "output": ("operand", "kernel", "output"),
    "operand": ("output", "kernel", "operand"),
    "kernel": ("operand", "output", "kernel"),
}
Key = tuple[tuple[str, int], ...]


def is_supported(provider: str, integers: Mapping[str, int]) -> bool:
    """Whether cuDNN is here and computes the convolution that ``provider`` names."""
    if importlib.util.find_spec("cudnn") is None:
        return False
    return _convolution(provider, tuple(integers.items())) is not None


def convolve(form: str, integers: Mapping[str, int]) -> Call:
    """Prepare the convolution ``form``: its result, the dtype, and what is allowed.

    ``tf32`` may be allowed, and ``any`` order of its sums. ``integers`` are its
    extents, strides and paddings by name. Raises BackendError if cuDNN has no such
    convolution.
    """
    made = _convolution(f"convolution_{form}", tuple(integers.items()))
    if made is None:
        raise BackendError(
            f"cuDNN has no convolution {form} of {dict(integers)}; compile it where it "
            "runs: it is a matrix product then"
        )
    return Call(made.enqueue(), made.names)


@per_device
def _convolution(provider: str, key: Key) -> _Convolution | None:
    """The convolution of a kernel's name and integers; None if cuDNN refuses it."""
    try:
        return _Convolution(provider, dict(key))
    except cudnn.refusals():
        return None


class _Convolution:
    """A cuDNN graph of one convolution, and the index of the plan that computes it."""

    def __init__(self, provider: str, p: Mapping[str, int]) -> None:
        """Build the graph of the convolution that ``provider`` names, and plan it.

        ``p`` are the kernel's integers. Exceptions of cuDNN, if it does not support the
        convolution, are passed on.
        """
        _, result, short, *more = provider.split("_")
        library = cudnn.library()
        self.names = _ARRAYS[result]
        self.arrays = {name: _shape_and_strides(name, p) for name in self.names}
        self.size = BY_SHORT_NAME[short].itemsize
        kind = getattr(library.data_type, _NAMES[short])
        compute = kind if short == "f64" else library.data_type.FLOAT
        self.graph = cudnn.new_graph(kind, compute)
        inputs = [
            self.graph.tensor(dim=shape, stride=strides, data_type=kind)
            for shape, strides in (self.arrays[name] for name in self.names[:2])
        ]
        made = _operation(self.graph, result, inputs, p)
        shape, strides = self.arrays[result]
        made.set_output(True).set_dim(shape).set_stride(strides).set_data_type(kind)
        self.tensors = [*inputs, made]
        left_out = [getattr(library.numerical_note, note) for note in _INACCURATE]
        if short == "f32" and "tf32" not in more:
            left_out.append(library.numerical_note.TENSOR_CORE)
        if "any" not in more:
            left_out.append(library.numerical_note.NONDETERMINISTIC)
        self._plan(library, left_out)
        self.index, self.workspace = self._kept_or_fastest(provider, p)

    def _plan(self, library: Any, left_out: Sequence[Any]) -> None:
        """Let cuDNN make the graph's plans, and select some.

        Plans with a note of ``left_out``, plans that compile at run time, and plans
        that need a large workspace are left out.
        """
        graph = self.graph
        cudnn.create_plans(graph)
        graph.deselect_numeric_notes(left_out)
        graph.deselect_behavior_notes([library.behavior_note.RUNTIME_COMPILATION])
        graph.deselect_workspace_greater_than(MAX_WORKSPACE)
        graph.check_support()

    def _kept_or_fastest(
        self, provider: str, p: Mapping[str, int]
    ) -> tuple[int, Workspace]:
        """The plan chosen earlier on this machine, or else the fastest; its workspace.

        ``provider`` is the kernel's name, ``p`` its integers.
        """
        gpu, version = device(), cudnn.library().backend_version()
        key = content_key(
            f"cuDNN {version} {gpu.name} {provider}",
            f"{sorted(p.items())} {MAX_WORKSPACE} {PROPOSALS}",
        )
        name = object_cache().get_or_compile(key, self._fastest).decode()
        for index in range(self.graph.get_execution_plan_count()):
            if self.graph.get_plan_name_at_index(index) == name and self._builds(index):
                return index, self._space(index)
        index = self._candidates()[0]
        return index, self._space(index)

    def _fastest(self) -> bytes:
        """Time the plans; return the fastest's name, or the first if memory lacks."""
        found = self._candidates()
        gpu = device()
        pointers: list[int] = []
        best = 0
        try:
            for name in self.names:
                shape, strides = self.arrays[name]
                span = 1 + sum(
                    (n - 1) * step for n, step in zip(shape, strides, strict=True)
                )
                pointers.append(gpu.allocate(span * self.size))
                # 0x3C3C is 1.06 as float16 and 0.0115 as bfloat16: neither NaN nor
                # subnormal, whose products take other times.
                gpu.fill(pointers[-1], 0x3C, span * self.size)
            best = timing.fastest([self._timed_run(index, pointers) for index in found])
        except OutOfMemoryError:
            pass
        finally:
            for pointer in pointers:
                gpu.free(pointer)
        name: str = self.graph.get_plan_name_at_index(found[best])
        return name.encode()

    def _timed_run(self, index: int, addresses: Sequence[int]) -> timing.Run:
        """A function to be timed: runs plan ``index`` on arrays at ``addresses``."""
        space = self._space(index)

        def run(stream: int) -> int:
            self._run(stream, addresses, index, space)
            return 0

        return run

    def _candidates(self) -> list[int]:
        """The first plans that are selected and can be built."""
        found: list[int] = []
        for index in range(self.graph.get_execution_plan_count()):
            if len(found) < PROPOSALS and self._builds(index):
                found.append(index)
        if not found:
            raise cudnn.library().cudnnGraphNotSupportedError("no plan is left")
        return found

    def _builds(self, index: int) -> bool:
        """Whether cuDNN can build the plan with this index."""
        try:
            self.graph.build_plan_at_index(index)
        except cudnn.refusals():
            return False
        return True

    def _space(self, index: int) -> Workspace:
        nbytes: int = self.graph.get_workspace_size_plan_at_index(index)
        return workspace(nbytes)

    def _run(
        self, stream: int, addresses: Sequence[int], index: int, space: Workspace
    ) -> None:
        """Enqueue the plan of this index on ``stream``, for arrays at ``addresses``."""
        handle = cudnn.on_stream(stream)
        tensor_addresses: dict[Any, int] = dict(
            zip(self.tensors, addresses, strict=True)
        )
        self.graph.execute_plan_at_index(
            tensor_addresses, space.pointer, index, handle=handle
        )

    def enqueue(self) -> Callable[..., None]:
        """A function that enqueues the convolution; its arguments are ``names``."""

        def enqueue(stream: int, *addresses: int) -> None:
            self._run(stream, addresses, self.index, self.workspace)

        return enqueue


def _operation(
    graph: Any, result: str, inputs: Sequence[Any], p: Mapping[str, int]
) -> Any:
    """Add to cuDNN's ``graph`` the operation that computes the output or a gradient.

    ``result`` is "output", "operand" or "kernel"; ``inputs`` are the two other tensors,
    and ``p`` the convolution's integers.
    """

    def along(name: str, fill: int) -> list[int]:
        """The integers ``name`` of the axes, and ``fill`` for axes that cuDNN adds."""
        own = [p[f"{name}{k}"] for k in range(p["axes"])]
        return [fill] * (2 - len(own)) + own

    geometry = {
        "pre_padding": along("low", 0),
        "post_padding": along("high", 0),
        "stride": along("stride", 1),
        "dilation": along("dilation", 1),
    }
    if result == "output":
        return graph.conv_fprop(image=inputs[0], weight=inputs[1], **geometry)
    if result == "operand":
        return graph.conv_dgrad(loss=inputs[0], filter=inputs[1], **geometry)
    return graph.conv_wgrad(image=inputs[0], loss=inputs[1], **geometry)


def _shape_and_strides(name: str, p: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The extents of an array in cuDNN's order of axes, and its strides in memory.

    ``name`` is "operand", "kernel" or "output"; ``p`` has the convolution's integers.
    """
    groups, inner, outer = p["groups"], p["inner"], p["outer"]
    first, channels, along = {
        "operand": (p["batch"], groups * inner, "extent"),
        "kernel": (groups * outer, inner, "size"),
        "output": (p["batch"], groups * outer, "count"),
    }[name]
    space = [p[f"{along}{k}"] for k in range(p["axes"])]
    shape = [first, channels, *[1] * (2 - len(space)), *space]
    axes = [*range(2, len(shape))]
    order = [0, *axes, 1] if p["last"] else [0, 1, *axes]
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return shape, strides
