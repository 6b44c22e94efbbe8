"""Prepares convolutions by cuDNN: graphs of one operation, built when first needed.

cuDNN proposes several execution plans for a graph. Plans are left out that round
operands, sum in an order that varies, use TensorFloat-32 where that was not asked for,
or would have to be compiled first. The other plans are timed when a convolution is
first seen on a machine, and the choice is kept in the disk cache: it is the same from
then on, and so are the bits of results.
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
"""Most bytes of workspace that a plan may need."""
PROPOSALS: Final = 24
"""Most plans that are timed."""
_NAMES: Final = {"f16": "HALF", "bf16": "BFLOAT16", "f32": "FLOAT", "f64": "DOUBLE"}
"""cuDNN's names of dtypes."""
_INACCURATE: Final = (
    *("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION"),
    *("WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13"),
)
"""cuDNN's numerical notes of plans that are never used."""
_ARRAYS: Final = {
    "output": ("operand", "kernel", "output"),
    "operand": ("output", "kernel", "operand"),
    "kernel": ("operand", "output", "kernel"),
}
"""For each result, the arrays of its convolution: two inputs and the result.

The result is the convolution's output, or a gradient: by the operand or the kernel.
"""
Key = tuple[tuple[str, int], ...]
"""A convolution's integers as pairs (name, value), for caches."""


def is_supported(provider: str, integers: Mapping[str, int]) -> bool:
    """Whether cuDNN is installed and computes a convolution.

    ``provider`` is the library kernel's name, as "convolution_output_f32", and
    ``integers`` are its extents, strides and paddings by name.
    """
    if importlib.util.find_spec("cudnn") is None:
        return False
    return _convolution(provider, tuple(integers.items())) is not None


def convolve(form: str, integers: Mapping[str, int]) -> Call:
    """Prepare a convolution.

    ``form`` is its result and dtype ("output_f32"), then "tf32" and "any" if
    TensorFloat-32 and sums in any order are allowed. ``integers`` are its extents,
    strides and paddings by name. Raises BackendError if cuDNN has no such convolution.
    """
    convolution = _convolution(f"convolution_{form}", tuple(integers.items()))
    if convolution is None:
        raise BackendError(
            f"cuDNN has no convolution {form} of {dict(integers)}; compile it where it "
            "runs: it is a matrix product then"
        )
    return Call(convolution.enqueue(), convolution.names)


@per_device
def _convolution(provider: str, key: Key) -> _Convolution | None:
    """Build the convolution of a kernel's name and integers, once for each GPU.

    The result is None if cuDNN does not support it.
    """
    try:
        return _Convolution(provider, dict(key))
    except cudnn.refusals():
        return None


class _Convolution:
    """A cuDNN graph of one convolution, and the index of the plan that computes it.

    ``names`` are those of the inputs and the result, in the order of ``enqueue``'s
    addresses; ``tensors`` are their cuDNN tensors. ``arrays`` has the shape and strides
    of each by name, and ``size`` is the bytes of an element. ``workspace`` is the bytes
    of the workspace that the plan needs.
    """

    def __init__(self, provider: str, p: Mapping[str, int]) -> None:
        """Build the graph of the convolution that ``provider`` names; choose a plan.

        A ``provider`` is "convolution_output_f32", for example; "_tf32" after it allows
        tensor cores, "_any" sums in any order. ``p`` has the kernel's integers. Raises
        an exception of ``cudnn.refusals()`` if cuDNN does not support the convolution.
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
        output = _operation(self.graph, result, inputs, p)
        shape, strides = self.arrays[result]
        output.set_output(True).set_dim(shape).set_stride(strides).set_data_type(kind)
        self.tensors = [*inputs, output]
        left_out = [getattr(library.numerical_note, note) for note in _INACCURATE]
        if short == "f32" and "tf32" not in more:
            left_out.append(library.numerical_note.TENSOR_CORE)
        if "any" not in more:
            left_out.append(library.numerical_note.NONDETERMINISTIC)
        self._plan(library, left_out)
        self.index, self.workspace = self._kept_or_fastest(provider, p)

    def _plan(self, library: Any, left_out: Sequence[Any]) -> None:
        """Let cuDNN propose the graph's plans, and deselect some of them.

        These are plans with one of the numerical notes ``left_out``, plans that compile
        at run time, and plans that need a large workspace.
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
        """Return the index of the plan to use, and its workspace.

        That is the plan in the disk cache, or else the fastest, which is then stored
        there by name. If no plan has the stored name, the first candidate is taken.
        ``provider`` is the kernel's name, ``p`` has its integers.
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
        """Time the candidate plans, and return the name of the fastest as bytes.

        If there is no memory for the arrays, it is the name of the first candidate.
        """
        candidates = self._candidates()
        gpu = device()
        pointers: list[int] = []
        best = 0
        try:
            for name in self.names:
                shape, strides = self.arrays[name]
                # Elements from the first to the last.
                span = 1 + sum(
                    (n - 1) * step for n, step in zip(shape, strides, strict=True)
                )
                pointers.append(gpu.allocate(span * self.size))
                # 0x3C3C is 1.06 as float16 and 0.0115 as bfloat16: neither NaN nor
                # subnormal, whose products take other times.
                gpu.fill(pointers[-1], 0x3C, span * self.size)
            runs = [self._timed_run(index, pointers) for index in candidates]
            best = timing.fastest(runs)
        except OutOfMemoryError:
            pass
        finally:
            for pointer in pointers:
                gpu.free(pointer)
        name: str = self.graph.get_plan_name_at_index(candidates[best])
        return name.encode()

    def _timed_run(self, index: int, addresses: Sequence[int]) -> timing.Run:
        """Return a function that enqueues plan ``index`` on arrays at ``addresses``."""
        space = self._space(index)

        def run(stream: int) -> int:
            """Enqueue plan number ``index`` on ``stream``; return 0 for success.

            ``addresses`` are those of the arrays, ``space`` is the plan's workspace.
            """
            self._run(stream, addresses, index, space)
            return 0

        return run

    def _candidates(self) -> list[int]:
        """Return the indices of the first ``PROPOSALS`` plans that can be built.

        Raises cuDNN's exception for unsupported graphs if there is none.
        """
        candidates: list[int] = []
        for index in range(self.graph.get_execution_plan_count()):
            if len(candidates) < PROPOSALS and self._builds(index):
                candidates.append(index)
        if not candidates:
            raise cudnn.library().cudnnGraphNotSupportedError("no plan is left")
        return candidates

    def _builds(self, index: int) -> bool:
        """Build the plan with this index; return whether cuDNN can."""
        try:
            self.graph.build_plan_at_index(index)
        except cudnn.refusals():
            return False
        return True

    def _space(self, index: int) -> Workspace:
        """Return a workspace for the plan with this index."""
        nbytes: int = self.graph.get_workspace_size_plan_at_index(index)
        return workspace(nbytes)

    def _run(
        self, stream: int, addresses: Sequence[int], index: int, space: Workspace
    ) -> None:
        """Enqueue plan ``index`` on ``stream``, for arrays at ``addresses``.

        ``space`` is the plan's workspace.
        """
        handle = cudnn.on_stream(stream)
        tensor_addresses: dict[Any, int] = dict(
            zip(self.tensors, addresses, strict=True)
        )
        self.graph.execute_plan_at_index(
            tensor_addresses, space.pointer, index, handle=handle
        )

    def enqueue(self) -> Callable[..., None]:
        """Return a function that enqueues the convolution on a stream.

        It is called with the stream, and the addresses of the arrays ``names``. The
        plan is number ``index`` of the graph's plans.
        """

        def enqueue(stream: int, *addresses: int) -> None:
            """Enqueue the chosen plan on ``stream``."""
            self._run(stream, addresses, self.index, self.workspace)

        return enqueue


def _operation(
    graph: Any, result: str, inputs: Sequence[Any], p: Mapping[str, int]
) -> Any:
    """Add the convolution to cuDNN's ``graph``, and return the result's tensor.

    ``result`` is "output", or "operand" or "kernel" for a gradient by that array.
    ``inputs`` are the two other arrays' tensors, and ``p`` has the convolution's
    integers.
    """

    def along(name: str, fill: int) -> list[int]:
        """Return the integer ``name`` of each spatial axis.

        cuDNN needs two spatial axes; ``fill`` is the integer of those that are added.
        """
        values = [p[f"{name}{k}"] for k in range(p["axes"])]
        return [fill] * (2 - len(values)) + values

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
    """Return the extents of an array in cuDNN's order of axes, and its strides.

    The order is: batch (a kernel's output channels), channels, spatial axes, of which
    there are at least two. The strides are in elements; in memory the channels come
    last if ``p["last"]``. ``name`` is "operand", "kernel" or "output"; ``p`` has the
    convolution's integers.
    """
    # ``inner`` and ``outer`` are the operand's and the output's channels of a group.
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
