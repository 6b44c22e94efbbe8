"""The values of the partition pass, and its result."""

from __future__ import annotations

from collections.abc import Iterator

from arrayfn.errors import SourceLocation
from arrayfn.ir import (
    ArrayType,
    Atom,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Program,
    walk,
)
from arrayfn.ir.sharding import spec_of
from arrayfn.passes.moves import Spec
from arrayfn.primitives.base import primitive_of
from arrayfn.records import frozen


@frozen
class LocalValue:
    """A device's part of a value, with the spec that cuts the whole value.

    The parts are still to be summed over the mesh axes ``pending``. The sum waits
    because views can be emitted before it, and because it becomes a ``reduce_scatter``
    where the sum is cut.
    """

    part: Atom
    spec: Spec
    pending: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every device has the whole value."""
        return not any(self.spec)


@frozen
class Transfer:
    """A collective: its name, mesh axis, bytes of its operand, and the user's line."""

    name: str
    axis_name: str
    nbytes: int
    source: SourceLocation | None


def _transfers(program: Program) -> Iterator[Transfer]:
    """Yield the collectives of ``program`` and of the Programs inside it, in order."""
    for equation in walk(program.equations):
        primitive = primitive_of(equation)
        if primitive.is_collective:
            axis, nbytes = equation.params["axis_name"], equation.inputs[0].type.nbytes
            yield Transfer(primitive.name, axis, nbytes, equation.source)


@frozen
class Partitioned:
    """The Program of one device, and the specs of its inputs and outputs.

    ``not_cut`` has a sentence about each equation that every device computes as a whole
    although an operand was cut.
    """

    program: Program
    mesh: Mesh
    in_specs: tuple[PartitionSpec, ...]
    out_specs: tuple[PartitionSpec, ...]
    not_cut: tuple[str, ...] = ()

    def transfers(self) -> list[Transfer]:
        """Return the collectives of a device's Program, in order."""
        return list(_transfers(self.program))


def spec_of_type(type: ArrayType) -> Spec:
    """Return the spec of an array of this type; without a sharding no axis is cut."""
    if type.sharding is None:
        return ((),) * type.ndim
    return type.sharding.spec.entries(type.ndim)


def part_type(type: ArrayType, spec: Spec, mesh: Mesh) -> ArrayType:
    """Return the type of a device's part of an array of ``type`` that ``spec`` cuts."""
    shape = NamedSharding(mesh, spec_of(spec)).shard_shape(type.shape)
    return ArrayType(shape, type.dtype, weak=type.weak)


def whole_type(x: LocalValue, mesh: Mesh) -> ArrayType:
    """Return the type of the whole array that ``x`` is a part of."""
    shape = tuple(
        n * mesh.size_along(entry)
        for n, entry in zip(x.part.type.shape, x.spec, strict=True)
    )
    return ArrayType(shape, x.part.type.dtype, weak=x.part.type.weak)
