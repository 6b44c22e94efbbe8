"""Partition of loops and branches: their Programs become those of one device.

A carry keeps its spec from step to step: the one that the body gives, if the body then
keeps it, else that of the first carry, to which the body moves its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from arrayfn.ir import Equation, Program
from arrayfn.passes.moves import Spec
from arrayfn.passes.partition_values import Placed

if TYPE_CHECKING:
    from arrayfn.passes.partition import Partition


def _kept_specs(
    start: Sequence[Spec], run: Callable[[Sequence[Spec]], Sequence[Spec]]
) -> list[Spec]:
    """The specs of a carry: those that the body gives, if it then keeps them."""
    specs = list(start)
    given = list(run(specs))
    if given != specs and list(run(given)) == given:
        return given
    return specs


def _scan(walk: Partition, whole: Equation, given: list[Placed]) -> list[Placed]:
    params = whole.params
    body, consts, carry = params["program"], params["consts"], params["carry"]
    fixed, state = given[:consts], given[consts : consts + carry]
    xs = [walk.unscanned(x) for x in given[consts + carry :]]
    around = [x.spec for x in fixed]
    slices = [x.spec[1:] for x in xs]

    def results(specs: Sequence[Spec]) -> list[Spec]:
        return walk.inner(body, [*around, *specs, *slices])[1]

    kept = _kept_specs([x.spec for x in state], lambda specs: results(specs)[:carry])
    stacked = results(kept)[carry:]
    part, _ = walk.inner(body, [*around, *kept, *slices], [*kept, *stacked], consts)
    begin = [walk.move(x, spec) for x, spec in zip(state, kept, strict=True)]
    indices = walk.index_operands()
    operands = [*(x.part for x in fixed), *indices, *begin, *(x.part for x in xs)]
    made = walk.emit(
        whole, operands, {**params, "program": part, "consts": consts + len(indices)}
    )
    outs = [*kept, *(((), *spec) for spec in stacked)]
    return [Placed(x, spec) for x, spec in zip(made, outs, strict=True)]


def _while(walk: Partition, whole: Equation, given: list[Placed]) -> list[Placed]:
    params = whole.params
    first = params["cond_consts"]
    second = first + params["body_consts"]
    for_cond, for_body, state = given[:first], given[first:second], given[second:]
    around = [x.spec for x in for_body]
    body, condition = params["body_program"], params["cond_program"]
    kept = _kept_specs(
        [x.spec for x in state], lambda specs: walk.inner(body, [*around, *specs])[1]
    )
    part, _ = walk.inner(body, [*around, *kept], kept, len(around))
    going, _ = walk.inner(condition, [*(x.spec for x in for_cond), *kept], [()], first)
    begin = [walk.move(x, spec) for x, spec in zip(state, kept, strict=True)]
    indices = walk.index_operands()
    operands = [
        *(x.part for x in for_cond),
        *indices,
        *(x.part for x in for_body),
        *indices,
        *begin,
    ]
    changed = {
        "cond_program": going,
        "body_program": part,
        "cond_consts": first + len(indices),
        "body_consts": params["body_consts"] + len(indices),
    }
    made = walk.emit(whole, operands, {**params, **changed})
    return [Placed(x, spec) for x, spec in zip(made, kept, strict=True)]


def _cond(walk: Partition, whole: Equation, given: list[Placed]) -> list[Placed]:
    branches: tuple[Program, ...] = whole.params["branches"]
    index, *rest = given
    specs = [x.spec for x in rest]
    outs = walk.inner(branches[0], specs)[1]
    parts = [walk.inner(b, specs, outs, len(specs))[0] for b in branches]
    operands = [index.part, *(x.part for x in rest), *walk.index_operands()]
    made = walk.emit(whole, operands, {**whole.params, "branches": tuple(parts)})
    return [Placed(x, spec) for x, spec in zip(made, outs, strict=True)]


Rule = Callable[["Partition", Equation, list[Placed]], list[Placed]]

LOOPS: Final[dict[str, Rule]] = {"scan": _scan, "while_loop": _while, "cond": _cond}
"""By the names of primitives."""
