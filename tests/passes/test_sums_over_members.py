"""The passes that let other steps run beside sums over the members of a mesh."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, lax, shard_map
from arrayfn import PartitionSpec as P
from arrayfn.passes.late_uses import with_late_uses
from arrayfn.passes.sums_in_blocks import with_sums_in_blocks
from arrayfn.primitives.collectives import all_reduce

PAIR = Mesh((2,), ("i",), platform="cuda")


WHOLE = P()


def of_one_device(f, *shapes, specs, out=WHOLE):
    """The Program of one GPU of a pair, as ``partition`` makes it, and its plan."""
    g = shard_map(f, mesh=PAIR, in_specs=specs, out_specs=out, check_vma=False)
    args = [af.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    compiled = af.jit(g).lower(*args).compiled_program
    return compiled.partitioned.program, compiled.local.plan


def names(program):
    return [e.primitive.name for e in program.equations]


def test_what_uses_a_sum_comes_last_unless_a_collective_needs_it():
    def f(x, y):
        total = lax.psum(x, "i")
        scaled = total * 2
        other = anp.sin(y)
        second = lax.psum(scaled + other, "i")
        return scaled, anp.cos(other), second

    program, _ = of_one_device(f, (8,), (8,), specs=(P("i"), P("i")), out=P("i"))
    assert names(program) == ["all_reduce", "mul", "sin", "add", "all_reduce", "cos"]
    late = with_late_uses(program)
    assert names(late) == ["all_reduce", "sin", "mul", "add", "all_reduce", "cos"]

    def g(x, y):
        return lax.psum(x, "i") * 2, anp.sin(y)

    program, _ = of_one_device(g, (8,), (8,), specs=(P("i"), P("i")), out=P("i"))
    assert names(program) == ["all_reduce", "mul", "sin"]
    assert names(with_late_uses(program)) == ["all_reduce", "sin", "mul"]


def test_effects_keep_their_places():
    def f(x):
        y = lax.psum(x, "i") + 1
        af.debug.print("{}", y)
        return y * anp.exp(x)

    program, _ = of_one_device(f, (8,), specs=(P("i"),), out=P("i"))
    late = names(with_late_uses(program))
    assert late.index("add") < late.index("debug_callback") < late.index("mul")


def product(rows, inner, columns):
    return of_one_device(
        lambda x, w: lax.psum(x @ w, "i"),
        (rows, 2 * inner),
        (2 * inner, columns),
        specs=(P(None, "i"), P("i")),
    )


@pytest.mark.parametrize(
    ("rows", "columns", "blocks"),
    [
        (4096, 4096, 4),
        (2048, 4096, 2),
        (4096, 2048, 2),
        (1024, 4096, 1),
        (1027, 8192, 1),
    ],
)
def test_a_large_product_is_summed_in_blocks_of_rows(rows, columns, blocks):
    program, plan = product(rows, 64, columns)
    cut = with_sums_in_blocks(program)
    sums = [e for e in cut.equations if e.primitive is all_reduce]
    assert [e.inputs[0].type.shape for e in sums] == [
        (rows // blocks, columns)
    ] * blocks
    steps = [step.kernel.partition("_")[0] for step in plan.steps]
    # Each sum begins as soon as its product has been computed.
    assert steps[: 2 * blocks] == ["gemm", "collective"] * blocks


def test_a_product_that_is_read_elsewhere_is_not_cut():
    def f(x, w):
        y = x @ w
        return lax.psum(y, "i"), y

    program, _ = of_one_device(
        f, (4096, 128), (128, 4096), specs=(P(None, "i"), P("i")), out=(WHOLE, P("i"))
    )
    assert with_sums_in_blocks(program) is program


def test_a_sum_is_written_over_its_operand_and_later_steps_do_not_wait_for_it():
    _, plan = product(4096, 64, 4096)
    sums = [step for step in plan.steps if step.kernel.startswith("collective")]
    assert all(step.reads == step.writes for step in sums)
    ranges = [
        (plan.buffers[b].offset, plan.buffers[b].offset + plan.buffers[b].nbytes)
        for step in sums
        for b in step.reads
    ]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
