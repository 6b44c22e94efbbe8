"""Copy elision: steps write their results directly to where a copy would put them.

A concatenation copies each array into a part of a larger one. A kernel can write that
part itself, and so can a library call whose output may have strides. Then neither the
copy nor its source is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from typing_extensions import override

from arrayfn.ir import ArrayType, Atom, Equation, Var
from arrayfn.ir.layout import RowMajor, from_strides
from arrayfn.lowering.host_steps import Reads, operator_call_of
from arrayfn.lowering.kernel_ir import Compute, Load, Nest, Store
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer
from arrayfn.lowering.operator_kernels import OperatorKernel
from arrayfn.lowering.steps import CallStep, NestStep, PlanStep
from arrayfn.records import frozen


class AxisStrides(NamedTuple):
    """An axis of a copy: its extent, and its strides in the source and the target."""

    extent: int
    source: int
    target: int


Box = tuple[tuple[int, int], ...]
"""The first and the last index along each axis of an array."""


@frozen
class Copy:
    """A step that only copies ``source``, whole, into a part of ``target``."""

    source: Var
    target: Pointer
    axes: tuple[AxisStrides, ...]


def covers_source(axes: Sequence[AxisStrides], size: int) -> bool:
    """Return whether ``axes`` visit each of the source's ``size`` elements once.

    The source is contiguous. So the stride of each axis, from the innermost on, must be
    the product of the extents before.
    """
    covered = 1
    for extent, stride, _ in sorted(axes, key=lambda axis: axis.source):
        if extent != 1 and stride != covered:
            return False
        covered *= extent
    return covered == size


def strides_along(
    axes: Sequence[AxisStrides], shape: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the target's strides for the source seen as an array of ``shape``.

    The source is contiguous and indexed in row-major order. A copy of [6, 4] into
    columns of a [6, 10] array gives (10, 1) for the shape (6, 4), and (20, 10, 1) for
    (3, 2, 4). None if an index runs over several of ``axes`` that do not merge in the
    target, so that it has no single stride there, as for (24,).
    """
    target_strides: list[int] = []
    for extent, source_stride in zip(
        shape, RowMajor().strides(tuple(shape)), strict=True
    ):
        stride = 0 if extent == 1 else _stride_along(axes, extent, source_stride)
        if stride is None:
            return None
        target_strides.append(stride)
    return tuple(target_strides)


def _stride_along(
    axes: Sequence[AxisStrides], extent: int, own_stride: int
) -> int | None:
    """Return the target's stride for an index with ``own_stride`` in the source.

    The index has ``extent`` values. It may be a part of one of ``axes``, or consist of
    several that merge in both arrays. None if it has no single stride in the target. In
    a copy of [6, 4] into columns of a [6, 10] array, the 6 values with ``own_stride`` 4
    have the stride 10, and the 24 values with ``own_stride`` 1 have none.
    """
    long_axes = sorted(
        (axis for axis in axes if axis.extent != 1), key=lambda axis: axis.source
    )
    stride: int | None = None
    end = own_stride * extent
    for count, step, target_stride in long_axes:
        if step * count <= own_stride or step >= end:
            continue
        # The axis and the index share the source's strides from ``first`` to the lower
        # of both ends. A step of ``first`` is ``first // step`` steps of the axis.
        first = max(step, own_stride)
        if first % step or first % own_stride or min(step * count, end) % first:
            return None
        candidate = target_stride * (first // step)
        # Outer axes must go on where inner ones end: then they merge in the target.
        if stride is None:
            if first != own_stride:
                return None
            stride = candidate
        elif candidate != stride * (first // own_stride):
            return None
    return stride


@frozen
class Product:
    """A library's matrix product, which can write its result with any row stride."""

    library_call: LibraryCall

    def call(self) -> LibraryCall:
        """Return the library's call."""
        return self.library_call

    def over(self) -> Iterable[tuple[Var, Var]]:
        """Return the pair of the result and C, if C's memory may hold the result.

        C is the added array of ``A @ B + C``. It may be overwritten if it has the
        strides of the result; otherwise there is no pair.
        """
        p, target = self.library_call.integers, self.library_call.writes["c"]
        added = self.library_call.reads.get("added")
        if added is None or added.offset or target.offset:
            return ()
        is_batch = p["batch"] > 1
        has_own_batches = is_batch and p["batch_stride_added"] != p["batch_stride_c"]
        is_same = p["ld_added"] == p["ldc"] and not has_own_batches
        return [(target.array, added.array)] if is_same else ()

    def redirected(self, copy: Copy) -> Product | None:
        """Return the product that writes where ``copy`` would copy its result to.

        None if a library's product cannot have the strides there: rows must be
        contiguous, and must not overlap.
        """
        p = self.library_call.integers
        strides = strides_along(copy.axes, (p["batch"], p["m"], p["n"]))
        if strides is None:
            return None
        batch, leading, column = strides
        if p["n"] != 1 and column != 1:
            return None
        # With one row, any stride between rows will do.
        if p["m"] == 1:
            leading = p["n"]
        if leading < p["n"]:
            return None
        integers = {**p, "ldc": leading, "batch_stride_c": batch}
        writes = {**self.library_call.writes, "c": copy.target}
        return Product(replace(self.library_call, integers=integers, writes=writes))


@frozen
class OperatorCall:
    """A call of a kernel that is registered for an operator.

    Args:
        equation: The operator's equation.
        kernel: Its kernel.
        reads: Where each operand lies.
        places: For redirected results: where they are written, and their type there.
    """

    equation: Equation
    kernel: OperatorKernel
    reads: Reads
    places: Mapping[Var, tuple[Pointer, ArrayType]] = field(
        default_factory=dict[Var, tuple[Pointer, ArrayType]]
    )

    def call(self) -> LibraryCall:
        """Return the call of the kernel."""
        return operator_call_of(self.equation, self.kernel, self.reads, self.places)

    def over(self) -> Iterable[tuple[Var, Var]]:
        """Return no pairs: no result may be written in the memory of an operand."""
        return ()

    def redirected(self, copy: Copy) -> OperatorCall | None:
        """Return the call that writes where ``copy`` would copy a result to.

        None if its kernel cannot write an array with the strides there.
        """
        type = copy.source.type
        strides = strides_along(copy.axes, type.shape)
        if strides is None:
            return None
        placed = ArrayType(type.shape, type.dtype, from_strides(type.shape, strides))
        if not self.kernel.views(placed, copy.target.offset):
            return None
        redirected = {**self.places, copy.source: (copy.target, placed)}
        return replace(self, places=redirected)


RedirectableCall = Product | OperatorCall


class StepRewrite(ABC):
    """A rewrite of the steps of a block, once all of them are known.

    Args:
        steps: The steps, in order.
        redirectable: The calls among them that can be redirected, by position.
        outputs: Arrays that are read after the steps.
        root_of: Gives the array whose memory an array has: its *root*.
    """

    def __init__(
        self,
        steps: Sequence[PlanStep],
        redirectable: Mapping[int, RedirectableCall],
        outputs: Iterable[Var],
        root_of: Callable[[Var], Var],
    ) -> None:
        """Find the steps that read or write each array; see the class."""
        self.steps = list(steps)
        self.redirectable = dict(redirectable)
        self.outputs = {root_of(var) for var in outputs}
        self.root_of = root_of
        self.users: dict[Var, list[int]] = {}
        """Positions of the steps that read or write an array, in order."""
        for position, step in enumerate(steps):
            for root in dict.fromkeys(root_of(var) for var in step.arrays()):
                self.users.setdefault(root, []).append(position)
        self.dropped: set[int] = set()
        """Positions of the steps that are not needed any more."""

    @abstractmethod
    def run(self) -> tuple[list[PlanStep], dict[int, RedirectableCall]]:
        """Return the remaining steps, and the changed calls by their new position."""


class CopyElision(StepRewrite):
    """Drops steps that copy, and redirects the step before to write the copy's target.

    That step must write the source of the copy, and the copy must be its only reader.
    """

    @override
    def run(self) -> tuple[list[PlanStep], dict[int, RedirectableCall]]:
        """Elide all copies that can be elided; see ``StepRewrite``."""
        self.redirected: dict[int, list[tuple[Var, Box]]] = {}
        """What the redirected calls write: arrays and boxes, by the call's position."""
        for position, step in enumerate(list(self.steps)):
            copy = copy_of(step.nest) if isinstance(step, NestStep) else None
            if copy is not None:
                self.elide(position, copy)
        kept = [k for k in range(len(self.steps)) if k not in self.dropped]
        changed = {
            new: self.redirectable[old]
            for new, old in enumerate(kept)
            if old in self.redirected
        }
        return [self.steps[k] for k in kept], changed

    def elide(self, position: int, copy: Copy) -> None:
        """Drop the step at ``position``, which is ``copy``, if that is possible.

        The step that writes the source then writes the target, earlier than the copy
        would. So no step in between may read the target's array, or write the box of it
        that the copy fills.
        """
        source, root = self.root_of(copy.source), self.root_of(copy.target.array)
        if source.type.nbytes != copy.source.type.nbytes:
            return  # a part of a larger array, all of which is written
        copy = replace(copy, source=source)
        pattern = ((n, stride) for n, _, stride in copy.axes)
        box = box_of(pattern, copy.target.offset, root.type)
        writer = self.users[source][0]
        is_free = self.is_only_copied(source, writer, position) and not any(
            _reads(self.steps[k], root, self.root_of) or self.may_write(k, root, box)
            for k in range(writer, position)
        )
        if is_free and self.redirect(writer, copy, (root, box)):
            self.dropped.add(position)
            # In ``users`` the writer takes the copy's place: the target may be copied.
            users = {writer, *self.users[root]} - {position}
            self.users[root] = sorted(users)

    def is_only_copied(self, source: Var, writer: int, position: int) -> bool:
        """Whether the step at ``position`` is the only reader of ``source``.

        ``writer`` is the position of the only step that writes it.
        """
        return (
            self.users[source] == [writer, position]
            and source not in self.outputs
            and any(self.root_of(v) is source for v in self.steps[writer].writes)
        )

    def may_write(self, position: int, array: Var, box: Box) -> bool:
        """Whether the step at ``position`` may write in ``box`` of ``array``.

        ``redirected`` has the boxes that a redirected step writes, by its position.
        """
        step = self.steps[position]
        if position in self.redirected:
            boxes = [b for root, b in self.redirected[position] if root is array]
        elif isinstance(step, NestStep) and not step.nest.has_computed_indices:
            extents = [axis.extent for axis in step.nest.axes]
            boxes = [
                box_of(zip(extents, o.strides, strict=True), o.offset, array.type)
                for o in step.nest.operands
                if o.written and self.root_of(o.array) is array
            ]
        else:
            # Where it writes is not known: it may be anywhere in its arrays.
            return any(self.root_of(var) is array for var in step.writes)
        # Boxes meet if their ranges of indices meet along every axis.
        return any(
            all(a <= d and c <= b for (a, b), (c, d) in zip(box, other, strict=True))
            for other in boxes
        )

    def redirect(self, writer: int, copy: Copy, written: tuple[Var, Box]) -> bool:
        """Try to have the step at ``writer`` write the target of ``copy``.

        Returns whether that was possible. ``written`` is the root of the target, and
        the box of it that the copy fills.
        """
        step = self.steps[writer]
        producer = self.redirectable.get(writer)
        if producer is not None:
            changed = producer.redirected(copy)
            if changed is not None:
                self.redirectable[writer] = changed
                self.redirected.setdefault(writer, []).append(written)
            return changed is not None
        if not isinstance(step, NestStep) or step.partials:
            return False
        nest = _nest_redirected(step.nest, copy, self.root_of)
        if nest is not None:
            self.steps[writer] = NestStep(nest, partials=[])
        return nest is not None


def _nest_redirected(
    nest: Nest, copy: Copy, root_of: Callable[[Var], Var]
) -> Nest | None:
    """Return ``nest`` with its result written to the target of ``copy``.

    None if an axis of the nest has no single stride in the target. ``root_of`` gives
    the array whose memory an array has.
    """
    # The operands that have the memory of the source.
    touched = [
        k for k, o in enumerate(nest.operands) if root_of(o.array) is copy.source
    ]
    operand = nest.operands[touched[0]]
    if (
        len(touched) != 1
        or operand.offset
        or operand.dtype != copy.target.array.type.dtype
    ):
        return None
    strides: list[int] = []
    for axis, own_stride in zip(nest.axes, operand.strides, strict=True):
        stride: int | None = 0
        if axis.extent != 1 and own_stride != 0:
            stride = _stride_along(copy.axes, axis.extent, own_stride)
        if stride is None:
            return None
        strides.append(stride)
    moved = replace(
        operand,
        array=copy.target.array,
        offset=copy.target.offset,
        strides=tuple(strides),
    )
    operands = list(nest.operands)
    operands[touched[0]] = moved
    return replace(nest, operands=tuple(operands))


def box_of(axes: Iterable[tuple[int, int]], offset: int, type: ArrayType) -> Box:
    """Return the box of an array that holds all elements of an access pattern.

    In a [6, 10] array the pattern of offset 4 with extents and strides (6, 10) and (3,
    1) has the box ((0, 5), (4, 6)). The box may hold more elements than the pattern.

    Args:
        axes: The extents and strides of the pattern.
        offset: The element at which it begins.
        type: The type of the array.
    """
    if not type.size:
        return tuple((0, extent - 1) for extent in type.shape)
    moving: list[tuple[int, int]] = []
    for extent, stride in axes:
        # A negative stride: begin at the other end.
        offset += min(0, stride * (extent - 1))
        moving.append((extent, abs(stride)))
    strides = type.layout.strides(type.shape)
    box = [(0, extent - 1) for extent in type.shape]
    # From the outermost axis of the array inwards. Steps by multiples of the next outer
    # axis's stride change no index along this axis.
    outside = 0  # the stride of the next outer axis
    long = [k for k in range(type.ndim) if type.shape[k] > 1]
    for k in sorted(long, key=lambda k: -strides[k]):
        if outside:
            moving = [axis for axis in moving if axis[1] % outside]
            offset %= outside
        last = offset + sum(stride * (extent - 1) for extent, stride in moving)
        if not outside or last < outside:  # else they wrap around: all along this axis
            box[k] = offset // strides[k], last // strides[k]
        outside = strides[k]
    return tuple(box)


def _reads(step: PlanStep, array: Var, root_of: Callable[[Var], Var]) -> bool:
    """Whether ``step`` may read ``array``, the root of its memory.

    ``root_of`` gives the array whose memory an array has.
    """
    if isinstance(step, NestStep):
        read = [o.array for o in step.nest.operands if not o.written]
    elif isinstance(step, CallStep):
        read = step.reads
    else:
        read = step.arrays()
    return any(root_of(var) is array for var in read)


def copy_of(nest: Nest) -> Copy | None:
    """Return ``nest`` as a copy of a whole array; None if it does anything else."""
    loads = [s for s in nest.statements if isinstance(s, Load)]
    stores = [s for s in nest.statements if isinstance(s, Store)]
    between = [s for s in nest.statements if not isinstance(s, (Load, Store))]
    if len(loads) != 1 or len(stores) != 1 or any(a.reduced for a in nest.axes):
        return None
    (load,), (store,) = loads, stores
    if load.indices or store.indices or store.where is not None:
        return None
    # Follow identities from the load to the store.
    value = load.result
    for s in between:
        if not isinstance(s, Compute) or s.arguments != (value,):
            return None
        if not s.function.startswith("identity_"):
            return None
        value = s.result
    source, target = nest.operands[load.operand], nest.operands[store.operand]
    if store.value != value or source.offset or source.dtype != target.dtype:
        return None
    extents = [axis.extent for axis in nest.axes]
    axes = tuple(map(AxisStrides, extents, source.strides, target.strides))
    if not covers_source(axes, source.array.type.size):
        return None
    return Copy(source.array, Pointer(target.array, target.offset), axes)


def copied_last(
    steps: Sequence[PlanStep], atom: Atom, uses: Mapping[Var, int]
) -> Var | None:
    """Return the array of which ``atom`` is a copy made by the last of ``steps``.

    None if there is no such copy, if ``atom`` has other readers (``uses`` counts them),
    or if the copy has other strides than its source.
    """
    last = steps[-1] if steps else None
    copy = copy_of(last.nest) if isinstance(last, NestStep) else None
    if copy is None or not isinstance(atom, Var) or uses[atom] != 1:
        return None
    is_relaid = any(a.extent > 1 and a.source != a.target for a in copy.axes)
    return None if is_relaid or copy.target != Pointer(atom) else copy.source
