"""Partition: the Program of all devices of a mesh becomes the Program of each one.

Every value lies over the mesh as a *spec* says: which mesh axes cut which of its axes.
Specs follow the equations by the sharding rules of the primitives
(``primitives.factors``). An operand whose spec differs from what its equation needs is
moved by collectives, which are equations at that line (``passes.moves``). Where
operands ask for one mesh axis in different places, fewer bytes decide.

After it: inputs and outputs are a device's parts; there is no shard_map or reshard, and
types do not say what varies. The Program's last inputs are the device's indices along
the axes of the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from arrayfn import dtypes
from arrayfn.errors import ArrayfnError, located
from arrayfn.ir import (
    ArrayType,
    Atom,
    Equation,
    Literal,
    Mesh,
    NamedSharding,
    Program,
    Var,
)
from arrayfn.ir.builder import ProgramBuilder, current_builder
from arrayfn.ir.sharding import UNVARYING, spec_of
from arrayfn.passes.meshes import has_mesh
from arrayfn.passes.moves import Spec, moved, scattered
from arrayfn.passes.partition_factors import factors_of, mesh_axes_of_factors
from arrayfn.passes.partition_loops import LOOPS, member, once
from arrayfn.passes.partition_values import (
    Partitioned,
    Placed,
    part_type,
    spec_of_type,
    whole_type,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import views
from arrayfn.primitives.base import (
    Body,
    Composition,
    Factors,
    View,
    has_effect,
    primitive_of,
)
from arrayfn.primitives.collectives import all_reduce
from arrayfn.primitives.reshard import reshard
from arrayfn.primitives.shard_map import shard_map


def partition(program: Program, mesh: Mesh) -> Partitioned:
    """The Program that each device of ``mesh`` runs.

    ``z = x @ y`` with the rows of ``x`` cut in two becomes a product of half of ``x``;
    with the contracted axes cut it becomes a product and an ``all_reduce``. Inputs are
    cut by the shardings in their types; others are whole on every device.
    """
    specs = [spec_of_type(v.type) for v in program.inputs]
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = [
            Placed(builder.input(part_type(v.type, spec, mesh), v.hint), spec)
            for v, spec in zip(program.inputs, specs, strict=True)
        ]
        emitter = _with_indices(mesh, builder)
        outputs = emitter.run(program, inputs)
        local = builder.build([x.part for x in outputs])
    return Partitioned(
        local,
        mesh,
        tuple(spec_of(spec) for spec in specs),
        tuple(spec_of(x.spec) for x in outputs),
        tuple(dict.fromkeys(emitter.not_cut)),
    )


def _with_indices(
    mesh: Mesh, builder: ProgramBuilder, within: frozenset[str] = UNVARYING
) -> Partition:
    """A Partition whose indices are new inputs of the Program under construction."""
    index = ArrayType((), dtypes.int32)
    names = mesh.axis_names
    indices = {name: builder.input(index, name) for name in names}
    return Partition(mesh, indices, within)


class Partition:
    """Emits the equations of one device.

    Attributes:
        sizes: the extent of each mesh axis.
        indices: the device's index along each mesh axis.
        within: the axes of shard_maps whose body has the equations. Devices along them
            have values of their own, of which shard_maps in the body cut parts.
        not_cut: sentences about equations that run on whole operands, though these were
            cut.
        sums: the sum of each part that was pending, once it is computed.
        repeated: the operand and axes of each broadcast.
    """

    def __init__(
        self,
        mesh: Mesh,
        indices: Mapping[str, Atom],
        within: frozenset[str] = UNVARYING,
    ) -> None:
        self.mesh = mesh
        self.sizes = mesh.shape
        self.indices = indices
        self.within = within
        self.not_cut: list[str] = []
        self.sums: dict[Atom, Placed] = {}
        self.repeated: dict[Atom, tuple[Placed, tuple[int, ...]]] = {}

    def run(self, program: Program, operands: Sequence[Placed]) -> list[Placed]:
        """Emit ``program`` on ``operands``; return its outputs."""
        builder = current_builder()
        values: dict[Var, Placed] = dict(zip(program.inputs, operands, strict=True))
        pairs = zip(program.constants, program.constant_values, strict=True)
        for var, value in pairs:
            values[var] = self.whole(builder.constant(value))

        def placed(atom: Atom) -> Placed:
            """The device's part of ``atom``."""
            return self.whole(atom) if isinstance(atom, Literal) else values[atom]

        for equation in program.equations:
            builder.source = equation.source
            placed_operands = [placed(a) for a in equation.inputs]
            try:
                results = self.with_pending(equation, placed_operands)
            except ArrayfnError as error:
                raise located(error, equation.source) from None
            values.update(zip(equation.outputs, results, strict=True))
        return [self.summed(placed(a)) for a in program.outputs]

    def with_pending(self, equation: Equation, operands: list[Placed]) -> list[Placed]:
        """Emit a device's part of ``equation``, on values that may need a sum.

        A view that makes no array larger is taken before the sum, which may then be
        smaller; other equations take the sum.
        """
        primitive = primitive_of(equation)
        if primitive is reshard or not any(x.pending for x in operands):
            return self.equation(equation, operands)
        if isinstance(primitive.kernel, View):
            (x,) = operands
            if equation.outputs[0].type.size <= whole_type(x, self.mesh).size:
                (result,) = self.equation(equation, [Placed(x.part, x.spec)])
                return [Placed(result.part, result.spec, x.pending)]
        return self.equation(equation, [self.summed(x) for x in operands])

    def whole(self, atom: Atom) -> Placed:
        """``atom`` as a value of which every device has all."""
        return Placed(atom, ((),) * atom.type.ndim)

    def move(self, x: Placed, spec: Spec) -> Atom:
        """The part of ``x`` by another spec."""
        if x.pending:
            x = self.summed(x, spec)
        if x.spec == spec:
            return x.part
        if x.part in self.repeated:
            return self.repeated_part(x, spec)
        return moved(x.part, x.spec, spec, self.indices, self.sizes)

    def summed(self, x: Placed, spec: Spec | None = None) -> Placed:
        """``x`` summed over its pending axes.

        A sum that ``spec`` cuts along the same mesh axis becomes a ``reduce_scatter``.
        """
        part, new_spec = x.part, list(x.spec)
        if x.part in self.sums and spec in (None, x.spec):
            return self.sums[x.part]
        for axis in x.pending:
            new_cuts = [
                d for d, entry in enumerate(spec or ()) if entry == (*new_spec[d], axis)
            ]
            if new_cuts:
                dim = new_cuts[0]
                part = scattered(part, dim, axis, self.sizes[axis])
                new_spec[dim] = (*new_spec[dim], axis)
            else:
                part = all_reduce(part, axis_name=axis, op="sum")
        result = Placed(part, tuple(new_spec))
        if result.spec == x.spec and x.pending:
            self.sums[x.part] = result
        return result

    def repeated_part(self, x: Placed, spec: Spec) -> Atom:
        """The part of a broadcast ``x``: a broadcast of a part of its operand."""
        operand, axes = self.repeated[x.part]
        shape = x.part.type.shape
        inner = [
            spec[axis] if operand.part.type.shape[k] == shape[axis] else ()
            for k, axis in enumerate(axes)
        ]
        part = self.move(operand, tuple(inner))
        local = NamedSharding(self.mesh, spec_of(spec)).shard_shape(shape)
        return views.broadcast_in_dim(part, shape=local, axes=axes)

    def equation(self, equation: Equation, operands: list[Placed]) -> list[Placed]:
        """Emit a device's part of ``equation``."""
        primitive, params = primitive_of(equation), equation.params
        if primitive is shard_map:
            return member(self, params, operands)
        if primitive is reshard:
            entries = params["spec"].entries(operands[0].part.type.ndim)
            spec = tuple(
                tuple(name for name in entry if name not in self.within)
                for entry in entries
            )
            return [Placed(self.move(operands[0], spec), spec)]
        if primitive.family == "callback" and primitive.effect and not self.within:
            return once(self, equation, operands)
        is_alike = not (has_mesh(equation) or has_effect(equation))
        if is_alike and all(x.is_whole for x in operands):
            return self.on_every(equation, operands)
        if primitive.name in LOOPS:
            return LOOPS[primitive.name](self, equation, operands)
        if isinstance(primitive.kernel, Body) and "body" in params:
            body: Program = params["body"]
            return self.call_of_parts(equation, operands) or self.run(body, operands)
        types = [whole_type(x, self.mesh) for x in operands]
        equation_factors = factors_of(primitive, types, params)
        if equation_factors is not None:
            return self.cut(equation, operands, equation_factors)
        if isinstance(primitive.kernel, Composition):
            return self.composition(equation, operands)
        return self.on_every(equation, operands)

    def on_every(self, equation: Equation, placed: Sequence[Placed]) -> list[Placed]:
        """Emits ``equation`` on whole operands, on every device.

        If they were cut, ``not_cut`` says so.
        """
        if not all(x.is_whole for x in placed):
            location = "" if equation.source is None else f" at {equation.source}"
            self.not_cut.append(
                f"{equation.primitive.name}{location}: it has no sharding rule, so its "
                "operands are whole on each device"
            )
        parts = [self.move(x, ((),) * len(x.spec)) for x in placed]
        results = self.emit(equation, parts, equation.params)
        if equation.primitive is views.broadcast_in_dim:
            self.repeated[results[0]] = placed[0], equation.params["axes"]
        return [self.whole(x) for x in results]

    def call_of_parts(
        self, equation: Equation, operands: Sequence[Placed]
    ) -> list[Placed] | None:
        """Emit the call of a ``shardable`` operator on this device's parts.

        The operator may have a kernel for parts, which its body inlined would not use.
        Returns None if its body needs other devices' parts, or to know which part it
        has.
        """
        if not equation.params.get("shardable"):
            return None
        builder = ProgramBuilder(equation.params["body"].name)
        builder.source = equation.source
        with builder:
            inputs = [Placed(builder.input(x.part.type), x.spec) for x in operands]
            emitter = _with_indices(self.mesh, builder, self.within)
            outputs = emitter.run(equation.params["body"], inputs)
            body = builder.build([x.part for x in outputs])
        indices = set(emitter.indices.values())
        for inner in body.equations:
            if primitive_of(inner).is_collective or indices.intersection(inner.inputs):
                return None
        body = replace(body, inputs=body.inputs[: len(operands)])
        params = {**equation.params, "body": body}
        results = self.emit(equation, [x.part for x in operands], params)
        return [Placed(r, x.spec) for r, x in zip(results, outputs, strict=True)]

    def emit(
        self, equation: Equation, operands: Sequence[Atom], params: Mapping[str, Any]
    ) -> Sequence[Atom]:
        """Emit the primitive of ``equation``; return its outputs."""
        return current_builder().emit(equation.primitive, operands, params)

    def composition(
        self, equation: Equation, operands: Sequence[Placed]
    ) -> list[Placed]:
        """Emit a device's part of the equations that a primitive is composed of."""
        primitive = primitive_of(equation)
        assert isinstance(primitive.kernel, Composition)
        builder = ProgramBuilder(primitive.name)
        builder.source = equation.source
        with builder:
            inputs = [builder.input(whole_type(x, self.mesh)) for x in operands]
            expansion = primitive.kernel.expand(*inputs, **equation.params)
            program = builder.build(
                expansion if isinstance(expansion, list) else [expansion]
            )
        return self.run(program, operands)

    # Equations by factors.

    def cut(
        self, equation: Equation, placed: Sequence[Placed], equation_factors: Factors
    ) -> list[Placed]:
        """Emits ``equation`` on parts of its operands, cut along its factors.

        ``placed`` are the operands. Partial results of reduced factors are combined, or
        left pending where they are sums.
        """
        chosen = mesh_axes_of_factors(equation, placed, equation_factors, self.mesh)

        def spec(axes: Sequence[int | None]) -> Spec:
            """The spec of an array whose axes the factors ``axes`` index."""
            return tuple(() if f is None else chosen.get(f, ()) for f in axes)

        operands = [
            self.move(x, spec(dims))
            for x, dims in zip(placed, equation_factors.inputs, strict=True)
        ]
        outputs = [spec(dims) for dims in equation_factors.outputs]
        params = equation.params
        if equation_factors.localize is not None:
            whole_shape = equation.outputs[0].type.shape
            sharding = NamedSharding(self.mesh, spec_of(outputs[0]))
            shapes = [x.type.shape for x in operands]
            params = equation_factors.localize(
                params, shapes, sharding.shard_shape(whole_shape)
            )
        sums = [
            (axis, op)
            for f, op in equation_factors.reduced.items()
            for axis in chosen.get(f, ())
        ]
        start = None
        if sums and equation_factors.added is not None:
            start = operands[equation_factors.added]
            operands[equation_factors.added] = views.broadcast_literal(0, start.type)
        results = self.emit(equation, operands, params)
        pending = tuple(axis for axis, op in sums if op == "sum")
        if start is not None:
            (x,) = results
            total = self.summed(Placed(x, outputs[0], pending))
            return [Placed(e.add(start, total.part), outputs[0])]
        for axis, op in sums:
            if op != "sum":
                results = [all_reduce(x, axis_name=axis, op=op) for x in results]
        return [Placed(x, s, pending) for x, s in zip(results, outputs, strict=True)]

    # Programs inside equations.

    def inner(
        self,
        program: Program,
        specs: Sequence[Spec],
        result_specs: Sequence[Spec] | None = None,
        front: int = 0,
    ) -> tuple[Program, list[Spec]]:
        """A device's part of the Program of a loop or branch, and its outputs' specs.

        Args:
            program: the Program for all devices.
            specs: the specs of its inputs.
            result_specs: the specs that outputs are moved to, if given.
            front: the device's indices become the inputs from this number on.
        """
        builder = ProgramBuilder(program.name)
        with builder:
            inputs = [
                Placed(builder.input(part_type(v.type, spec, self.mesh), v.hint), spec)
                for v, spec in zip(program.inputs, specs, strict=True)
            ]
            emitter = _with_indices(self.mesh, builder, self.within)
            count = len(inputs)
            all_inputs = builder.inputs
            builder.inputs = [
                *all_inputs[:front],
                *all_inputs[count:],
                *all_inputs[front:count],
            ]
            outputs = emitter.run(program, inputs)
            self.not_cut += emitter.not_cut
            if result_specs is not None:
                pairs = zip(outputs, result_specs, strict=True)
                outputs = [Placed(emitter.move(x, spec), spec) for x, spec in pairs]
            return builder.build([x.part for x in outputs]), [x.spec for x in outputs]

    def unscanned(self, x: Placed) -> Placed:
        """``x``, over which a loop iterates, with its first axis whole."""
        spec = ((), *x.spec[1:])
        return Placed(self.move(x, spec), spec)

    def index_operands(self) -> list[Atom]:
        """The device's indices, in the order of the mesh's axes."""
        return [self.indices[name] for name in self.mesh.axis_names]
