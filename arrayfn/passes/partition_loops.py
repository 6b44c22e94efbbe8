"""Partition of loops, branches and shard_maps: their Programs become one device's.

A carry keeps its spec from iteration to iteration: the spec that the body returns, if
the body then keeps it, else that of the initial value, to which the body moves its
result. What has a side effect, such as a print, takes place on the first device only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from arrayfn.ir import Atom, Equation, Program
from arrayfn.ir.builder import ProgramBuilder, current_builder
from arrayfn.passes.meshes import has_shard_map
from arrayfn.passes.moves import Spec
from arrayfn.passes.partition_values import LocalValue
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import views
from arrayfn.primitives.collectives import all_gather
from arrayfn.primitives.control_flow_cond import cond
from arrayfn.primitives.rules import as_list
from arrayfn.primitives.slicing import index_along
from arrayfn.primitives.variance import without_variance

if TYPE_CHECKING:
    from arrayfn.passes.partition import Partition


def _stable_specs(
    start: Sequence[Spec], run: Callable[[Sequence[Spec]], Sequence[Spec]]
) -> list[Spec]:
    """Return specs for a loop's carry: what the body returns if it is stable.

    ``start`` are the specs of the initial value. ``run`` returns the specs of the
    carry after the body, given those before it. If the body keeps the specs that it
    returns for ``start``, these are used, else ``start``.
    """
    specs = list(start)
    result_specs = list(run(specs))
    if result_specs != specs and list(run(result_specs)) == result_specs:
        return result_specs
    return specs


def _scan(
    emitter: Partition, equation: Equation, operands: list[LocalValue]
) -> list[LocalValue]:
    """Emit a device's part of a scan.

    The axis that the scan iterates over is not cut. The device's indices become the
    last constants of the body.
    """
    params = equation.params
    body, consts, carry = params["program"], params["consts"], params["carry"]
    fixed, state = operands[:consts], operands[consts : consts + carry]
    xs = [emitter.with_whole_first_axis(x) for x in operands[consts + carry :]]
    fixed_specs = [x.spec for x in fixed]
    slices = [x.spec[1:] for x in xs]  # specs of one slice, without the first axis

    def results(specs: Sequence[Spec]) -> list[Spec]:
        """Return the specs of the body's results, given those of its carry."""
        _, found = emitter.local_program(body, [*fixed_specs, *specs, *slices])
        return found

    # The specs of the carry, and those of the results that are stacked.
    kept = _stable_specs([x.spec for x in state], lambda specs: results(specs)[:carry])
    stacked = results(kept)[carry:]
    body_part, _ = emitter.local_program(
        body,
        [*fixed_specs, *kept, *slices],
        result_specs=[*kept, *stacked],
        front=consts,
    )
    initial = [emitter.move(x, spec) for x, spec in zip(state, kept, strict=True)]
    indices = emitter.index_operands()
    parts = [*(x.part for x in fixed), *indices, *initial, *(x.part for x in xs)]
    results_of_scan = emitter.emit(
        equation,
        parts,
        {**params, "program": body_part, "consts": consts + len(indices)},
    )
    out_specs = [*kept, *(((), *spec) for spec in stacked)]
    return [
        LocalValue(x, spec) for x, spec in zip(results_of_scan, out_specs, strict=True)
    ]


def _while(
    emitter: Partition, equation: Equation, operands: list[LocalValue]
) -> list[LocalValue]:
    """Emit a device's part of a while_loop.

    The device's indices become the last constants of the condition and of the body.
    """
    params = equation.params
    first = params["cond_consts"]
    second = first + params["body_consts"]
    for_cond, for_body, state = (
        operands[:first],
        operands[first:second],
        operands[second:],
    )
    body_specs = [x.spec for x in for_body]
    body, condition = params["body_program"], params["cond_program"]
    # The specs of the carry. The condition's result is whole on every device.
    kept = _stable_specs(
        [x.spec for x in state],
        # Given the specs of the carry before an iteration: those after it.
        lambda specs: emitter.local_program(body, [*body_specs, *specs])[1],
    )
    body_part, _ = emitter.local_program(
        body, [*body_specs, *kept], result_specs=kept, front=len(body_specs)
    )
    condition_part, _ = emitter.local_program(
        condition,
        [*(x.spec for x in for_cond), *kept],
        result_specs=[()],
        front=first,
    )
    initial = [emitter.move(x, spec) for x, spec in zip(state, kept, strict=True)]
    indices = emitter.index_operands()
    parts = [
        *(x.part for x in for_cond),
        *indices,
        *(x.part for x in for_body),
        *indices,
        *initial,
    ]
    new_params = {
        "cond_program": condition_part,
        "body_program": body_part,
        "cond_consts": first + len(indices),
        "body_consts": params["body_consts"] + len(indices),
    }
    results = emitter.emit(equation, parts, {**params, **new_params})
    return [LocalValue(x, spec) for x, spec in zip(results, kept, strict=True)]


def _cond(
    emitter: Partition, equation: Equation, operands: list[LocalValue]
) -> list[LocalValue]:
    """Emit a device's part of a ``cond``.

    All branches move their results to the specs that those of the first one have.
    """
    branches: tuple[Program, ...] = equation.params["branches"]
    index, *arguments = operands
    specs = [x.spec for x in arguments]
    _, out_specs = emitter.local_program(branches[0], specs)
    branch_parts: list[Program] = []
    for branch in branches:
        branch_part, _ = emitter.local_program(
            branch, specs, result_specs=out_specs, front=len(specs)
        )
        branch_parts.append(branch_part)
    parts = [index.part, *(x.part for x in arguments), *emitter.index_operands()]
    results = emitter.emit(
        equation, parts, {**equation.params, "branches": tuple(branch_parts)}
    )
    return [LocalValue(x, spec) for x, spec in zip(results, out_specs, strict=True)]


def emit_shard_map(
    emitter: Partition, params: Mapping[str, Any], operands: Sequence[LocalValue]
) -> list[LocalValue]:
    """Emit the body of a shard_map, on parts cut by its specs.

    If the body has shard_maps, a Partition of its own emits it, for which these parts
    are whole values.
    """
    body: Program = without_variance(params["body"])
    parts = [
        emitter.move(x, spec.entries(len(x.spec)))
        for x, spec in zip(operands, params["in_specs"], strict=True)
    ]
    parts += [emitter.indices[name] for name in params["axis_names"]]
    if has_shard_map(body):
        within = emitter.within.union(params["axis_names"])
        inside = type(emitter)(emitter.mesh, emitter.indices, within)
        outputs = inside.run(body, [inside.whole(x) for x in parts])
        emitter.not_cut += inside.not_cut
        # Specs without mesh axes: whole values of the inner Partition.
        results = [inside.move(x, ((),) * len(x.spec)) for x in outputs]
    else:
        results = current_builder().inline(body, parts)
    return [
        LocalValue(x, spec.entries(x.type.ndim))
        for x, spec in zip(results, params["out_specs"], strict=True)
    ]


def emit_on_first_device(
    emitter: Partition, equation: Equation, operands: list[LocalValue]
) -> list[LocalValue]:
    """Emit ``equation``, which has a side effect, on the first device only.

    It takes whole operands. The other devices get the results from the first one.
    """
    # A spec without mesh axes: the whole operand.
    parts = [emitter.move(x, ((),) * len(x.spec)) for x in operands]
    results = [v.type.plain() for v in equation.outputs]
    branches: list[Program] = []
    for name in ("first", "others"):
        builder = ProgramBuilder(name)
        builder.source = equation.source
        with builder:
            inputs = [builder.input(x.type.plain()) for x in parts]
            branches.append(
                builder.build(
                    emitter.emit(equation, inputs, equation.params)
                    if name == "first"
                    else [views.zeros(type) for type in results]
                )
            )
    # The first device has the index 0 along each axis: branch 0 if the sum is 0.
    first, *rest = emitter.index_operands()
    branch = e.minimum(functools.reduce(e.add, rest, first), 1)
    outputs = as_list(cond(branch, *parts, branches=tuple(branches)))
    return [emitter.whole(_from_first_device(emitter, x)) for x in outputs]


def _from_first_device(emitter: Partition, x: Atom) -> Atom:
    """Broadcast the first device's ``x`` to all devices, along one axis at a time."""
    for name in emitter.mesh.axis_names:
        every = all_gather(x, axis_name=name, members=emitter.sizes[name])
        x = index_along(every, axis=0, index=0)
    return x


Rule = Callable[["Partition", Equation, list[LocalValue]], list[LocalValue]]

LOOPS: Final[dict[str, Rule]] = {"scan": _scan, "while_loop": _while, "cond": _cond}
"""The rule for each loop or branch, by the name of its primitive."""
