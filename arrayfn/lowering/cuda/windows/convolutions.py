"""Lowers convolutions to cuDNN: the layouts of their arrays, and the calls.

cuDNN's images have channels last, [batch, space, group, channel], or first, [batch,
group, channel, space]; its kernels are [group, out channel, space, in channel], or
[group, out channel, in channel, space]. There is an axis of groups only if there are
several groups. ``for_library`` is the pass that rewrites a ``padded_convolution`` to
this form: operands of other layouts are transposed, and padded where padding is uneven,
by copies that the plan shows. Convolutions that it leaves alone become other
primitives, as on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.dtypes import BY_SHORT_NAME, DType, short_name
from arrayfn.ir import ArrayType, Atom, Equation, Program, Var
from arrayfn.ir.builder import ProgramBuilder, rewritten
from arrayfn.lowering.cuda.config import ChooseConvolution, ConvolutionAlgorithm
from arrayfn.lowering.cuda.handwritten import Lowered
from arrayfn.lowering.cuda.windows.convolution_axes import (
    DEPTHWISE_ROLES,
    by_channel,
    count_contiguous,
    from_library_axes,
    in_memory_order,
    roles_of,
    to_library_axes,
    without_groups,
)
from arrayfn.lowering.cuda.windows.depthwise import depthwise, is_depthwise
from arrayfn.lowering.cuda.windows.strided_blocks import convolve_blocks, padded
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer, pointer_of
from arrayfn.passes.reads import Read
from arrayfn.primitives import conversion, slicing
from arrayfn.primitives.convolution_forms import (
    GROUP,
    INNER,
    OUTER,
    SHORT_SUMS,
    SPATIAL,
    Axes,
    Roles,
    extents_of,
)
from arrayfn.primitives.padded_convolution import ARRAYS, ROLES, padded_convolution
from arrayfn.records import frozen

_MAX_AXES: Final = 3
"""The most spatial axes of a library's convolution."""
AXIS: Final = ("extent", "size", "count", "stride", "dilation", "low", "high")
"""Names of a call's integers for each spatial axis; the axis's number follows them."""
ON_TENSOR_CORES: Final = ("_f16", "_bf16", "_tf32")
"""Suffixes of providers that multiply on tensor cores."""
DEPTHWISE: Final = "depthwise"
"""What the parameter ``lies`` is for a convolution by a handwritten kernel."""


def program_of(provider: str, p: Mapping[str, int]) -> Program:
    """Build the Program of one convolution, to be timed when its algorithm is chosen.

    It computes what a call of ``provider`` with the integers ``p`` computes.
    """
    # For example ``convolution_output_f32_tf32``.
    _, gives, short, *more = provider.split("_")
    roles = roles_of(p["axes"], bool(p["last"]), p["groups"] > 1)
    # The names of the integers with the extents of each array: along spatial axes, and
    # of its axes of groups, outer and inner axes (in the order of roles).
    along = {"operand": "extent", "kernel": "size", "output": "count"}
    counts = {
        "operand": (p["groups"], p["batch"], p["inner"]),
        "kernel": (p["groups"], p["outer"], p["inner"]),
        "output": (p["groups"], p["batch"], p["outer"]),
    }

    def type_of(name: str) -> ArrayType:
        """Return the type of the array ``name``: operand, kernel or output."""
        shape = [0] * sum(map(len, roles[name]))
        for role, axes in enumerate(roles[name]):
            for k, axis in enumerate(axes):
                is_spatial = role == SPATIAL
                shape[axis] = (
                    p[f"{along[name]}{k}"] if is_spatial else counts[name][role]
                )
        return ArrayType(tuple(shape), BY_SHORT_NAME[short])

    each = range(p["axes"])
    extents = [p[f"{along[gives]}{k}"] for k in each] if gives != "output" else []
    builder = ProgramBuilder("convolution")
    with builder:
        operands = [builder.input(type_of(name)) for name in ARRAYS[gives]]
        result = padded_convolution(
            *operands,
            gives=gives,
            **{key: roles[name] for name, key in ROLES.items()},
            strides=tuple(p[f"stride{k}"] for k in each),
            dilations=tuple(p[f"dilation{k}"] for k in each),
            padding=tuple((p[f"low{k}"], p[f"high{k}"]) for k in each),
            extents=tuple(extents),
            precision="tf32" if "tf32" in more else None,
        )
    return builder.build([result])


@frozen
class _Arrangement:
    """A convolution whose axes have the order that a library's call needs.

    Args:
        provider: The provider of the call.
        integers: The call's integers.
        roles: The roles of axes in the equation's arrays.
        params: The parameters of the rewritten equation.
        extra_padding: Zeros before and after axes of the operand that a copy adds,
            because the library pads both sides alike.
        dtype: The dtype that the convolution is computed in.
        algorithm: How the convolution is computed.
    """

    provider: str
    integers: dict[str, int]
    roles: dict[str, Roles]
    params: dict[str, Any]
    extra_padding: dict[int, tuple[int, int]]
    dtype: DType
    algorithm: ConvolutionAlgorithm = "library"

    @staticmethod
    def of(equation: Equation) -> _Arrangement | None:
        """Arrange ``equation``; None if cuDNN does not support its dtypes or axes.

        Channels are last or first, whichever makes more of the arrays contiguous.
        Depthwise convolutions for which there is a kernel have its axes instead.
        """
        params, types = equation.params, [atom.type for atom in equation.inputs]
        axes, gives = len(params["strides"]), params["gives"]
        result = equation.outputs[0].type
        if (
            types[0].dtype not in dtypes.FLOATS
            or not 1 <= axes <= _MAX_AXES
            or 0 in (types[0].size, types[1].size, result.size)
        ):
            return None
        arrays = dict(zip((*ARRAYS[gives], gives), (*types, result), strict=True))
        roles, order = in_memory_order(params)
        last = count_contiguous(roles, last=True) >= count_contiguous(roles, last=False)
        some = next(iter(arrays))
        grouped = math.prod(extents_of(arrays[some], roles[some][GROUP])) > 1
        if not grouped:
            roles = {name: without_groups(own) for name, own in roles.items()}
        # Parameters of spatial axes, in the order of memory.
        strides, dilations, padding = (
            tuple(params[key][k] for k in order)
            for key in ("strides", "dilations", "padding")
        )
        integers = _integers_of(arrays, roles, (strides, dilations, padding), last)
        dtype = types[0].dtype
        extra_padding: dict[int, tuple[int, int]] = {}
        if is_depthwise(gives, integers, dtype):
            form, library_roles = DEPTHWISE, DEPTHWISE_ROLES
            roles = {name: by_channel(name, own) for name, own in roles.items()}
        else:
            form = "last" if last else "first"
            library_roles = roles_of(axes, last, grouped)
            extra_padding = _make_padding_even(integers, roles["operand"][SPATIAL])
            is_by_channel = grouped and (integers["inner"], integers["outer"]) == (1, 1)
            is_slow = gives == "kernel" and is_by_channel
            if is_slow and dtype in dtypes.HALF_PRECISION:
                dtype = dtypes.float32  # cuDNN has a faster engine for it
        provider = f"convolution_{gives}_{short_name(dtype)}"
        if params.get("precision") == "tf32" and dtype == dtypes.float32:
            provider += "_tf32"
        # The extents of a cotangent do not follow from its operands: they are a
        # parameter.
        spatial = {"operand": "extent", "kernel": "size"}.get(gives)
        each = range(axes)
        changed = {
            **params,
            **{key: library_roles[name] for name, key in ROLES.items()},
            "strides": strides,
            "dilations": dilations,
            "padding": tuple((integers[f"low{k}"], integers[f"high{k}"]) for k in each),
            "lies": form,
            "extents": tuple(integers[f"{spatial}{k}"] for k in each if spatial),
        }
        return _Arrangement(provider, integers, roles, changed, extra_padding, dtype)

    def provider_name(self, deterministic: bool) -> str:
        """Return the provider's name; it ends with ``_any`` if sums may have any order.

        They must have a fixed order if results must be ``deterministic``.
        """
        return self.provider if deterministic else f"{self.provider}_any"

    def is_product(self) -> bool:
        """Return whether to compute the convolution as a matrix product.

        Its windows must have one element. Strided windows have to be copied for that.
        On tensor cores the copy takes longer than the product, so the library computes
        the convolution.
        """
        p, axes = self.integers, range(self.integers["axes"])
        plain = all(
            (p[f"size{k}"], p[f"low{k}"], p[f"high{k}"]) == (1, 0, 0) for k in axes
        )
        is_strided = any(p[f"stride{k}"] > 1 for k in axes)
        return plain and not (is_strided and self.provider.endswith(ON_TENSOR_CORES))

    def is_sum_of_slices(self) -> bool:
        """Return whether a fused kernel sums the windows as fast as it reads memory.

        It does for a single input channel and short windows.
        """
        p, gives = self.integers, self.params["gives"]
        window = math.prod(p[f"size{k}"] for k in range(p["axes"]))
        # The channels that windows sum: for the operand's cotangent the output's.
        single = {"output": p["inner"], "operand": p["outer"]}
        return single.get(gives) == 1 and window <= SHORT_SUMS

    def emit(self, operands: Sequence[Atom], result: ArrayType) -> Atom:
        """Emit the rewritten equation, and equations that change its arrays' layouts.

        ``operands`` are the equation's; the value returned has the type ``result``.
        ``self.roles`` are the roles of their axes. The rewritten equation's arrays have
        the library's roles, in the params that ``ROLES`` names.
        """
        # The array that is computed: the output, or a cotangent, of operand or kernel.
        gives = self.params["gives"]
        # An algorithm by blocks pads the operand itself, by its borders.
        is_padded = bool(self.extra_padding) and self.algorithm == "library"
        arrays = dict(zip(ARRAYS[gives], operands, strict=True))
        if is_padded and "operand" in arrays:
            x = arrays["operand"]
            arrays["operand"] = padded(x, self._extra_widths(x.type.ndim))
        in_order = [
            to_library_axes(x, self.roles[name], self.params[ROLES[name]])
            for name, x in arrays.items()
        ]
        library_result = self._compute(
            [conversion.convert(x, self.dtype) for x in in_order]
        )
        library_result = conversion.convert(library_result, result.dtype)
        back = self.roles[gives], self.params[ROLES[gives]]
        if gives != "operand" or not is_padded:
            return from_library_axes(library_result, result, *back)
        # The cotangent of a padded operand: cut off the extra padding.
        padding = self._extra_widths(result.ndim)
        start = tuple(low for low, _ in padding)
        limit = tuple(low + n for low, n in zip(start, result.shape, strict=True))
        wide = (n + sum(both) for n, both in zip(result.shape, padding, strict=True))
        library_result = from_library_axes(
            library_result, result.with_shape(wide), *back
        )
        ones = (1,) * result.ndim
        return slicing.slice_(library_result, start=start, limit=limit, strides=ones)

    def _extra_widths(self, ndim: int) -> list[tuple[int, int]]:
        """Return ``extra_padding`` for each of the operand's ``ndim`` axes."""
        return [self.extra_padding.get(axis, (0, 0)) for axis in range(ndim)]

    def _compute(self, operands: Sequence[Atom]) -> Atom:
        """Emit the convolution of ``operands``, whose axes are the library's.

        Returns its result.
        """
        if self.algorithm == "library":
            return padded_convolution(operands[0], operands[1], **self.params)
        space = self.roles["operand"][SPATIAL]
        border = [self.extra_padding.get(axis, (0, 0)) for axis in space]
        params = dict(self.params)
        if self.algorithm == "product of blocks":
            # Without it the equation is no call of the library: it is expanded.
            del params["lies"]
        return convolve_blocks(operands, params, self.integers, border)


def _integers_of(
    arrays: Mapping[str, ArrayType],
    roles: Mapping[str, Roles],
    along: tuple[Axes, Axes, Sequence[tuple[int, int]]],
    last: bool,
) -> dict[str, int]:
    """Return the integer arguments of a library's call for a convolution, by name.

    Args:
        arrays: The types of operand, kernel and output.
        roles: The roles of the arrays' axes.
        along: Strides, dilations and padding of the spatial axes.
        last: Whether channels are the last axes, not the first.
    """

    def count(name: str, role: int) -> int:
        """Return the product of the extents of the array's axes with this role."""
        return math.prod(extents_of(arrays[name], roles[name][role]))

    integers = {
        "batch": count("operand", OUTER),
        "groups": count("operand", GROUP),
        "inner": count("operand", INNER),
        "outer": count("kernel", OUTER),
        "last": int(last),
        "axes": len(along[0]),
    }
    extents = (
        extents_of(arrays[name], roles[name][SPATIAL])
        for name in ("operand", "kernel", "output")
    )
    # For each axis: extent, size, count, stride, dilation, and the two paddings.
    for k, (*numbers, (low, high)) in enumerate(zip(*extents, *along, strict=True)):
        values = zip(AXIS, (*numbers, low, high), strict=True)
        integers.update({f"{name}{k}": value for name, value in values})
    return integers


def _make_padding_even(
    integers: dict[str, int], space: Axes
) -> dict[int, tuple[int, int]]:
    """Make the padding in ``integers`` the same on both sides of each spatial axis.

    Engines of cuDNN compute wrong results with more zeros on one side. Returns the
    zeros before and after axes, by axis, that a copy of the operand has to add instead.
    ``space`` are the operand's spatial axes.
    """
    extra: dict[int, tuple[int, int]] = {}
    for k, axis in enumerate(space):
        low, high = integers[f"low{k}"], integers[f"high{k}"]
        both = min(low, high)
        integers |= {f"low{k}": both, f"high{k}": both}
        if low != high:
            extra[axis] = low - both, high - both
            # The call gets a longer operand instead.
            integers[f"extent{k}"] += low + high - 2 * both
    return extra


def is_library_convolution(equation: Equation) -> bool:
    """Whether ``for_library`` has rewritten ``equation`` for a library."""
    return equation.primitive is padded_convolution and "lies" in equation.params


def for_library(
    program: Program, choose: ChooseConvolution, deterministic: bool = True
) -> Program:
    """Rewrite the convolutions of ``program`` that a library computes.

    ``choose`` chooses their algorithms; with ``deterministic`` their sums have a fixed
    order. Later passes expand all other convolutions.
    """
    if all(eq.primitive is not padded_convolution for eq in program.equations):
        return program

    def arrange(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
        """Rewrite ``equation`` over ``operands``, and return its result.

        None keeps the equation, which no library computes.
        """
        arrangement = _library_convolution(equation, choose, deterministic)
        if arrangement is None:
            return None
        return [arrangement.emit(operands, equation.outputs[0].type)]

    return rewritten(program, arrange)


def _library_convolution(
    equation: Equation, choose: ChooseConvolution, deterministic: bool
) -> _Arrangement | None:
    """Arrange a convolution that a library, or a handwritten kernel, computes.

    None for other equations, and for convolutions that are faster as matrix products or
    as sums of slices. ``choose`` and ``deterministic`` are as in ``for_library``.
    """
    if equation.primitive is not padded_convolution:
        return None
    if not all(isinstance(atom, Var) for atom in equation.inputs):
        return None
    arrangement = _Arrangement.of(equation)
    if arrangement is None or arrangement.is_product():
        return None
    if arrangement.params["lies"] == DEPTHWISE:
        return arrangement
    if arrangement.is_sum_of_slices():
        return None
    algorithm = choose(arrangement.provider_name(deterministic), arrangement.integers)
    return None if algorithm == "product" else replace(arrangement, algorithm=algorithm)


def convolution(
    equation: Equation, reads: Mapping[Var, Read], deterministic: bool = True
) -> Iterable[Lowered]:
    """Return the calls, of the library or of kernels, for a rewritten equation.

    ``reads`` says where operands lie; with ``deterministic`` sums have a fixed order.
    """
    arrangement = _Arrangement.of(equation)
    assert arrangement is not None
    gives = equation.params["gives"]
    pointers = [pointer_of(atom, reads) for atom in equation.inputs]
    (output,) = equation.outputs
    if arrangement.params["lies"] == DEPTHWISE:
        return depthwise(pointers[0], pointers[1], output, gives, arrangement.integers)
    call = LibraryCall(
        provider=arrangement.provider_name(deterministic),
        reads=dict(zip(ARRAYS[gives], pointers, strict=True)),
        writes={gives: Pointer(output)},
        integers=arrangement.integers,
        items=1,
        library="cuDNN",
    )
    return (call,)
