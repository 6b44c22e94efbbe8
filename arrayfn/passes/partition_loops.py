"""Partition of loops, branches and shard_maps: their Programs become one device's.

A carry keeps its spec from iteration to iteration: the spec that the body returns, if
the body then keeps it, else that of the initial value, to which the body moves its
result. What has a side effect, such as a print, takes place on the first device alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from arrayfn.ir import Atom, Equation, Program
from arrayfn.ir.builder import ProgramBuilder, current_builder
from arrayfn.passes.meshes import has_shard_map
from arrayfn.passes.moves import Spec
from arrayfn.passes.partition_values import Placed
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import views
from arrayfn.primitives.collectives import all_gather
from arrayfn.primitives.control_flow_cond import cond
from arrayfn.primitives.rules import as_list
from arrayfn.primitives.slicing import slice_
from arrayfn.primitives.variance import without_variance

if TYPE_CHECKING:
    from arrayfn.passes.partition import Partition


def _kept_specs(
    start: Sequence[Spec], run: Callable[[Sequence[Spec]], Sequence[Spec]]
) -> list[Spec]:
    """The specs that the carry of a loop keeps in all iterations.

    ``start`` are those of the initial value; ``run`` gives the body's result specs for
    some specs.
    """
    specs = list(start)
    result_specs = list(run(specs))
    if result_specs != specs and list(run(result_specs)) == result_specs:
        return result_specs
    return specs


def _scan(emitter: Partition, equation: Equation, placed: list[Placed]) -> list[Placed]:
    """Emits a device's part of a scan. ``placed`` are its operands."""
    params = equation.params
    body, consts, carry = params["program"], params["consts"], params["carry"]
    fixed, state = placed[:consts], placed[consts : consts + carry]
    xs = [emitter.unscanned(x) for x in placed[consts + carry :]]
    fixed_specs = [x.spec for x in fixed]
    slices = [x.spec[1:] for x in xs]

    def results(specs: Sequence[Spec]) -> list[Spec]:
        return emitter.inner(body, [*fixed_specs, *specs, *slices])[1]

    kept = _kept_specs([x.spec for x in state], lambda specs: results(specs)[:carry])
    stacked = results(kept)[carry:]
    body_part, _ = emitter.inner(
        body, [*fixed_specs, *kept, *slices], [*kept, *stacked], consts
    )
    initial = [emitter.move(x, spec) for x, spec in zip(state, kept, strict=True)]
    indices = emitter.index_operands()
    operands = [*(x.part for x in fixed), *indices, *initial, *(x.part for x in xs)]
    results_of_scan = emitter.emit(
        equation,
        operands,
        {**params, "program": body_part, "consts": consts + len(indices)},
    )
    out_specs = [*kept, *(((), *spec) for spec in stacked)]
    return [Placed(x, spec) for x, spec in zip(results_of_scan, out_specs, strict=True)]


def _while(
    emitter: Partition, equation: Equation, placed: list[Placed]
) -> list[Placed]:
    """Emits a device's part of a while_loop. ``placed`` are its operands."""
    params = equation.params
    first = params["cond_consts"]
    second = first + params["body_consts"]
    for_cond, for_body, state = placed[:first], placed[first:second], placed[second:]
    body_specs = [x.spec for x in for_body]
    body, condition = params["body_program"], params["cond_program"]
    kept = _kept_specs(
        [x.spec for x in state],
        lambda specs: emitter.inner(body, [*body_specs, *specs])[1],
    )
    body_part, _ = emitter.inner(body, [*body_specs, *kept], kept, len(body_specs))
    condition_part, _ = emitter.inner(
        condition, [*(x.spec for x in for_cond), *kept], [()], first
    )
    initial = [emitter.move(x, spec) for x, spec in zip(state, kept, strict=True)]
    indices = emitter.index_operands()
    operands = [
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
    results = emitter.emit(equation, operands, {**params, **new_params})
    return [Placed(x, spec) for x, spec in zip(results, kept, strict=True)]


def _cond(emitter: Partition, equation: Equation, placed: list[Placed]) -> list[Placed]:
    """Emits a device's part of a branch. ``placed`` are its operands."""
    branches: tuple[Program, ...] = equation.params["branches"]
    index, *arguments = placed
    specs = [x.spec for x in arguments]
    out_specs = emitter.inner(branches[0], specs)[1]
    parts = [emitter.inner(b, specs, out_specs, len(specs))[0] for b in branches]
    operands = [index.part, *(x.part for x in arguments), *emitter.index_operands()]
    results = emitter.emit(
        equation, operands, {**equation.params, "branches": tuple(parts)}
    )
    return [Placed(x, spec) for x, spec in zip(results, out_specs, strict=True)]


def member(
    emitter: Partition, params: Mapping[str, Any], placed: Sequence[Placed]
) -> list[Placed]:
    """Emits the body of a shard_map, on parts by its specs.

    It may have shard_maps inside.
    """
    body: Program = without_variance(params["body"])
    operands = [
        emitter.move(x, spec.entries(len(x.spec)))
        for x, spec in zip(placed, params["in_specs"], strict=True)
    ]
    operands += [emitter.indices[name] for name in params["axis_names"]]
    if has_shard_map(body):
        within = emitter.within.union(params["axis_names"])
        inside = type(emitter)(emitter.mesh, emitter.indices, within)
        parts = inside.run(body, [inside.whole(x) for x in operands])
        emitter.not_cut += inside.not_cut
        results = [inside.move(x, ((),) * len(x.spec)) for x in parts]
    else:
        results = current_builder().inline(body, operands)
    return [
        Placed(x, spec.entries(x.type.ndim))
        for x, spec in zip(results, params["out_specs"], strict=True)
    ]


def once(emitter: Partition, equation: Equation, placed: list[Placed]) -> list[Placed]:
    """Emits ``equation``, which has a side effect, for the first device alone.

    It takes whole operands. The other devices get the results from the first one.
    """
    operands = [emitter.move(x, ((),) * len(x.spec)) for x in placed]
    results = [v.type.plain() for v in equation.outputs]
    branches: list[Program] = []
    for name in ("first", "others"):
        builder = ProgramBuilder(name)
        builder.source = equation.source
        with builder:
            inputs = [builder.input(x.type.plain()) for x in operands]
            branches.append(
                builder.build(
                    emitter.emit(equation, inputs, equation.params)
                    if name == "first"
                    else [views.zeros(type) for type in results]
                )
            )
    first, *rest = emitter.index_operands()
    place = e.minimum(functools.reduce(e.add, rest, first), 1)
    outputs = as_list(cond(place, *operands, branches=tuple(branches)))
    return [emitter.whole(_of_first(emitter, x)) for x in outputs]


def _of_first(emitter: Partition, x: Atom) -> Atom:
    """``x`` of the first device, on all devices."""
    shape = x.type.shape
    for name in emitter.mesh.axis_names:
        every = all_gather(x, axis_name=name, members=emitter.sizes[name])
        one = slice_(
            every,
            start=(0,) * every.type.ndim,
            limit=(1, *shape),
            strides=(1,) * every.type.ndim,
        )
        x = views.reshape(one, shape=shape)
    return x


Rule = Callable[["Partition", Equation, list[Placed]], list[Placed]]

LOOPS: Final[dict[str, Rule]] = {"scan": _scan, "while_loop": _while, "cond": _cond}
"""The rule for each loop or branch, by the name of its primitive."""
