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
from arrayfn.passes.partition_loops import LOOPS, emit_on_first_device, emit_shard_map
from arrayfn.passes.partition_values import (
    LocalValue,
    Partitioned,
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
from arrayfn.primitives.calls import expansion
from arrayfn.primitives.collectives import all_reduce
from arrayfn.primitives.reshard import reshard
from arrayfn.primitives.shard_map import shard_map


def partition(program: Program, mesh: Mesh) -> Partitioned:
    """Return the Program that each device of ``mesh`` runs, with its specs.

    ``z = x @ y`` with the rows of ``x`` cut in two becomes a product of half of ``x``;
    with the contracted axes cut it becomes a product and an ``all_reduce``. Inputs are
    cut by the shardings in their types; others are whole on every device.
    """
    specs = [spec_of_type(v.type) for v in program.inputs]
    builder = ProgramBuilder(program.name)
    with builder:
        inputs = [
            LocalValue(builder.input(part_type(v.type, spec, mesh), v.hint), spec)
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
    """Return a Partition whose device indices are new inputs in ``builder``.

    ``within`` are the mesh axes of the shard_maps around the Program.
    """
    index = ArrayType((), dtypes.int32)
    names = mesh.axis_names
    indices = {name: builder.input(index, name) for name in names}
    return Partition(mesh, indices, within)


class Partition:
    """Emits the Program of one device, equation by equation.

    Attributes:
        sizes: the extent of each mesh axis.
        indices: the device's index along each mesh axis.
        within: the mesh axes of shard_maps whose bodies are being emitted. Along these
            axes each device has a whole value of its own, so nothing is cut by them.
        not_cut: sentences about equations that run on whole operands, though these were
            cut.
        sums: for a part with a pending sum, the sum once it is computed.
        repeated: for the result of a broadcast of whole arrays, its operand and axes.
    """

    def __init__(
        self,
        mesh: Mesh,
        indices: Mapping[str, Atom],
        within: frozenset[str] = UNVARYING,
    ) -> None:
        """Begin without equations; ``mesh`` is the mesh of the devices."""
        self.mesh = mesh
        self.sizes = mesh.shape
        self.indices = indices
        self.within = within
        self.not_cut: list[str] = []
        self.sums: dict[Atom, LocalValue] = {}
        self.repeated: dict[Atom, tuple[LocalValue, tuple[int, ...]]] = {}

    def run(self, program: Program, operands: Sequence[LocalValue]) -> list[LocalValue]:
        """Emit ``program`` on ``operands``; return a device's parts of its outputs."""
        builder = current_builder()
        values: dict[Var, LocalValue] = dict(zip(program.inputs, operands, strict=True))
        pairs = program.constant_pairs()
        for var, value in pairs:
            values[var] = self.whole(builder.constant(value))

        def local(atom: Atom) -> LocalValue:
            """Return the device's part of ``atom``."""
            return self.whole(atom) if isinstance(atom, Literal) else values[atom]

        for equation in program.equations:
            builder.source = equation.source
            local_operands = [local(a) for a in equation.inputs]
            try:
                results = self.emit_with_pending_sums(equation, local_operands)
            except ArrayfnError as error:
                raise located(error, equation.source) from None
            values.update(zip(equation.outputs, results, strict=True))
        return [self.summed(local(a)) for a in program.outputs]

    def emit_with_pending_sums(
        self, equation: Equation, operands: list[LocalValue]
    ) -> list[LocalValue]:
        """Emit a device's part of ``equation``, on values that may be partial sums.

        ``pending`` are the mesh axes over which a value is still to be summed. A view
        that makes no array larger is emitted before the sum, which may then be smaller;
        for other equations the sum is emitted first.
        """
        primitive = primitive_of(equation)
        if primitive is reshard or not any(x.pending for x in operands):
            return self.emit_local(equation, operands)
        if isinstance(primitive.kernel, View):
            (x,) = operands
            if equation.outputs[0].type.size <= whole_type(x, self.mesh).size:
                (result,) = self.emit_local(equation, [LocalValue(x.part, x.spec)])
                return [LocalValue(result.part, result.spec, x.pending)]
        return self.emit_local(equation, [self.summed(x) for x in operands])

    def whole(self, atom: Atom) -> LocalValue:
        """Return ``atom`` as a value that is not cut: each device has all of it."""
        return LocalValue(atom, ((),) * atom.type.ndim)

    def move(self, x: LocalValue, spec: Spec) -> Atom:
        """Return the device's part of ``x`` after it is moved to ``spec``.

        Pending sums are computed. A broadcast is not moved, but emitted again.
        """
        if x.pending:
            x = self.summed(x, spec)
        if x.spec == spec:
            return x.part
        if x.part in self.repeated:
            return self.repeated_part(x, spec)
        return moved(x.part, x.spec, spec, self.indices, self.sizes)

    def summed(self, x: LocalValue, spec: Spec | None = None) -> LocalValue:
        """Emit the pending sums of ``x`` over mesh axes; return a value without any.

        A sum over a mesh axis by which ``spec`` cuts the result becomes a
        ``reduce_scatter``, others an ``all_reduce``. A result with the spec of ``x``
        is kept in ``sums``, for the next use of ``x``.
        """
        part, new_spec = x.part, list(x.spec)
        if x.part in self.sums and spec in (None, x.spec):
            return self.sums[x.part]
        for axis in x.pending:
            # The array axes that ``spec`` cuts by ``axis``, after their present cuts.
            new_cuts = [
                d for d, entry in enumerate(spec or ()) if entry == (*new_spec[d], axis)
            ]
            if new_cuts:
                dim = new_cuts[0]
                part = scattered(part, dim, axis, self.sizes[axis])
                new_spec[dim] = (*new_spec[dim], axis)
            else:
                part = all_reduce(part, axis_name=axis, op="sum")
        result = LocalValue(part, tuple(new_spec))
        if result.spec == x.spec and x.pending:
            self.sums[x.part] = result
        return result

    def repeated_part(self, x: LocalValue, spec: Spec) -> Atom:
        """Return a device's part, by ``spec``, of the broadcast ``x``.

        It is a broadcast of a part of the operand. Axes of extent 1 are not cut.
        """
        operand, axes = self.repeated[x.part]
        shape = x.part.type.shape
        inner = [
            spec[axis] if operand.part.type.shape[k] == shape[axis] else ()
            for k, axis in enumerate(axes)
        ]
        part = self.move(operand, tuple(inner))
        local = NamedSharding(self.mesh, spec_of(spec)).shard_shape(shape)
        return views.broadcast_in_dim(part, shape=local, axes=axes)

    def emit_local(
        self, equation: Equation, operands: list[LocalValue]
    ) -> list[LocalValue]:
        """Emit a device's part of ``equation``, whose operands have no pending sums.

        In this order: shard_maps, reshards and callbacks by their own rules; an
        equation on whole operands as it is; loops and branches; the bodies of calls;
        equations with a sharding rule on parts; Compositions by what they expand to;
        any other equation on whole operands, gathered before.
        """
        primitive, params = primitive_of(equation), equation.params
        if primitive is shard_map:
            return emit_shard_map(self, params, operands)
        if primitive is reshard:
            entries = params["spec"].entries(operands[0].part.type.ndim)
            spec = tuple(
                tuple(name for name in entry if name not in self.within)
                for entry in entries
            )
            return [LocalValue(self.move(operands[0], spec), spec)]
        if primitive.family == "callback" and primitive.effect and not self.within:
            return emit_on_first_device(self, equation, operands)
        is_alike = not (has_mesh(equation) or has_effect(equation))
        if is_alike and all(x.is_whole for x in operands):
            return self.emit_replicated(equation, operands)
        if primitive.name in LOOPS:
            return LOOPS[primitive.name](self, equation, operands)
        if isinstance(primitive.kernel, Body) and "body" in params:
            body: Program = params["body"]
            return self.call_of_parts(equation, operands) or self.run(body, operands)
        types = [whole_type(x, self.mesh) for x in operands]
        equation_factors = factors_of(primitive, types, params)
        if equation_factors is not None:
            return self.emit_on_parts(equation, operands, equation_factors)
        if isinstance(primitive.kernel, Composition):
            return self.emit_expanded(equation, operands)
        return self.emit_replicated(equation, operands)

    def emit_replicated(
        self, equation: Equation, operands: Sequence[LocalValue]
    ) -> list[LocalValue]:
        """Emit ``equation`` on whole operands, on every device.

        If operands were cut, a sentence is added to ``not_cut``. A broadcast is added
        to ``repeated``.
        """
        if not all(x.is_whole for x in operands):
            location = "" if equation.source is None else f" at {equation.source}"
            self.not_cut.append(
                f"{equation.primitive.name}{location}: it has no sharding rule, so its "
                "operands are whole on each device"
            )
        # A spec without mesh axes: the whole operand.
        parts = [self.move(x, ((),) * len(x.spec)) for x in operands]
        results = self.emit(equation, parts, equation.params)
        if equation.primitive is views.broadcast_in_dim:
            self.repeated[results[0]] = operands[0], equation.params["axes"]
        return [self.whole(x) for x in results]

    def call_of_parts(
        self, equation: Equation, operands: Sequence[LocalValue]
    ) -> list[LocalValue] | None:
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
            inputs = [LocalValue(builder.input(x.part.type), x.spec) for x in operands]
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
        return [LocalValue(r, x.spec) for r, x in zip(results, outputs, strict=True)]

    def emit(
        self, equation: Equation, operands: Sequence[Atom], params: Mapping[str, Any]
    ) -> Sequence[Atom]:
        """Emit the primitive of ``equation``; return its outputs."""
        return current_builder().emit(equation.primitive, operands, params)

    def emit_expanded(
        self, equation: Equation, operands: Sequence[LocalValue]
    ) -> list[LocalValue]:
        """Emit a device's part of the equations that a Composition expands to."""
        types = [whole_type(x, self.mesh) for x in operands]
        return self.run(expansion(equation, types), operands)

    # Equations by factors.

    def emit_on_parts(
        self,
        equation: Equation,
        operands: Sequence[LocalValue],
        equation_factors: Factors,
    ) -> list[LocalValue]:
        """Emit ``equation`` on parts of its operands, cut along its factors.

        Partial results of reduced factors are combined, or left pending if they are
        sums. An operand that is added to a sum (``added``, as the operand of a
        scatter_add) is replaced by zeros, and added once, after the sum over devices.
        """
        chosen = mesh_axes_of_factors(equation, operands, equation_factors, self.mesh)

        def spec(axes: Sequence[int | None]) -> Spec:
            """Return the spec of an array whose axes the factors ``axes`` index."""
            return tuple(() if f is None else chosen.get(f, ()) for f in axes)

        # Operands are moved to the specs that the factors give, outputs follow.
        parts = [
            self.move(x, spec(dims))
            for x, dims in zip(operands, equation_factors.inputs, strict=True)
        ]
        outputs = [spec(dims) for dims in equation_factors.outputs]
        # Params that contain extents, such as a shape, become those of a part.
        params = equation.params
        if equation_factors.localize is not None:
            whole_shape = equation.outputs[0].type.shape
            sharding = NamedSharding(self.mesh, spec_of(outputs[0]))
            shapes = [x.type.shape for x in parts]
            params = equation_factors.localize(
                params, shapes, sharding.shard_shape(whole_shape)
            )
        # A mesh axis that cuts a reduced factor leaves partial results.
        sums = [
            (axis, op)
            for f, op in equation_factors.reduced.items()
            for axis in chosen.get(f, ())
        ]
        start = None
        if sums and equation_factors.added is not None:
            start = parts[equation_factors.added]
            parts[equation_factors.added] = views.broadcast_literal(0, start.type)
        results = self.emit(equation, parts, params)
        pending = tuple(axis for axis, op in sums if op == "sum")
        if start is not None:
            (x,) = results
            total = self.summed(LocalValue(x, outputs[0], pending))
            return [LocalValue(e.add(start, total.part), outputs[0])]
        for axis, op in sums:
            if op != "sum":
                results = [all_reduce(x, axis_name=axis, op=op) for x in results]
        return [
            LocalValue(x, s, pending) for x, s in zip(results, outputs, strict=True)
        ]

    # Programs inside equations.

    def local_program(
        self,
        program: Program,
        specs: Sequence[Spec],
        result_specs: Sequence[Spec] | None = None,
        front: int = 0,
    ) -> tuple[Program, list[Spec]]:
        """Return a device's part of a loop's or branch's Program, and its output specs.

        Args:
            program: the Program for all devices.
            specs: the specs of its inputs.
            result_specs: the specs that outputs are moved to, if given.
            front: the device's indices become the inputs from this number on.
        """
        builder = ProgramBuilder(program.name)
        with builder:
            inputs = [
                LocalValue(
                    builder.input(part_type(v.type, spec, self.mesh), v.hint), spec
                )
                for v, spec in zip(program.inputs, specs, strict=True)
            ]
            emitter = _with_indices(self.mesh, builder, self.within)
            # Move the indices, which were added last, to position ``front``.
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
                outputs = [LocalValue(emitter.move(x, spec), spec) for x, spec in pairs]
            return builder.build([x.part for x in outputs]), [x.spec for x in outputs]

    def with_whole_first_axis(self, x: LocalValue) -> LocalValue:
        """Return ``x`` with its first axis, over which a loop iterates, not cut."""
        spec = ((), *x.spec[1:])
        return LocalValue(self.move(x, spec), spec)

    def index_operands(self) -> list[Atom]:
        """Return the device's indices, in the order of the mesh's axes."""
        return [self.indices[name] for name in self.mesh.axis_names]
