"""Steps of a plan for a GPU as one kernel whose blocks meet, by the emulator."""

from dataclasses import replace

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator import launch
from arrayfn.backends.cuda.emulator.memory import EmulationError, Pointer
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.errors import ArgumentError
from arrayfn.lowering.cuda.config import GPU
from arrayfn.lowering.options import Options
from tests.lowered_on_gpu import lowered

SMALL = replace(GPU, multiprocessors=2)
PERSISTENT = Options(mode="persistent")
needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())


def random(*shape):
    return (np.random.default_rng(0).standard_normal(shape) / 4).astype(np.float32)


def persistent(function, *arguments, gpu=SMALL):
    return lowered(function, *arguments, gpu=gpu, options=PERSISTENT)


def recurrent(x, h, u, w, b):
    def step(h, given):
        h = anp.tanh(given @ w + h @ u + b)
        return h, h

    return lax.scan(step, h, x)


def training_step(parameters, x, target):
    def loss(parameters):
        h = x
        for w, b in parameters:
            h = anp.tanh(h @ w + b)
        return anp.mean((h - target) ** 2)

    value, gradients = af.value_and_grad(loss)(parameters)
    return value, af.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)


def power_iteration(matrix, vector, iterations):
    def step(state):
        k, v = state
        w = matrix @ v
        return k + 1, w / anp.sqrt(anp.sum(w * w))

    return lax.while_loop(lambda state: state[0] < iterations, step, (0, vector))[1]


def switching(x, iterations):
    branches = (lambda x: x @ x, lambda x: x.T + 1, lambda x: x / anp.sum(x, axis=1))

    def step(state):
        k, x = state
        return k + 1, lax.switch(k % 3, branches, x)

    return lax.while_loop(lambda state: state[0] < iterations, step, (0, x))[1]


def backwards(x, start):
    """A scan from the end, whose slices are rows; a scan inside it."""

    def step(total, row):
        inner, _ = lax.scan(lambda c, r: (c * 0.5 + r, None), total, row)
        return inner, anp.sum(inner * row, axis=0)

    return lax.scan(step, start, x, reverse=True)


PARAMETERS = [(random(12, 12), random(12)), (random(12, 5), random(5))]
RECURRENT = random(4, 3, 10), random(3, 10), random(10, 10), random(10, 10), random(10)
CASES = {
    "training step": (training_step, PARAMETERS, random(3, 12), random(3, 5)),
    "recurrent": (recurrent, *RECURRENT),
    "an odd number of iterations": (power_iteration, random(9, 9), random(9), 3),
    "an even number of iterations": (power_iteration, random(9, 9), random(9), 2),
    "no iteration": (power_iteration, random(9, 9), random(9), 0),
    "switch": (switching, abs(random(6, 6)) + 0.1, 4),
    "backwards": (backwards, random(3, 4, 300), random(300)),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_as_one_kernel_give_the_same(name):
    """The emulator also finds every place where blocks would have to meet."""
    function, *arguments = CASES[name]
    program = persistent(function, *arguments)
    (kernel,) = program.kernels
    assert kernel.cooperative
    have = run_plan(program, [np.asarray(x) for x in af.tree.leaves(arguments)])
    want = af.tree.leaves(af.jit(function)(*arguments))
    for x, y in zip(have, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    barrier_state = program.constants[-1]
    assert barrier_state.dtype == np.uint32
    assert barrier_state.tolist() == [0]


@needs_compiler
def test_the_kernel_of_a_recurrence_is_a_loop_with_one_barrier():
    program = persistent(recurrent, *RECURRENT)
    (kernel,) = program.kernels
    text = kernel.source.partition("def persistent_0(")[2].partition('"""\n')[2]
    assert (
        text
        == """\
    h_now = h_at
    h_next = value_at
    h_after = a_at
    for iteration in range(4):
        given = subarray_f32(x_at, iteration * 30)
        s = subarray_f32(c_at, iteration * 30)
        for block in range(block_index(), 3, 2):
            columns_0(block, given, w_at, h_now, u_at, b_at, h_next, s, 10, 10)
            barrier()
        grid_barrier(barrier_state, 2)
        h_now = h_next
        h_next = h_after
        h_after = h_now
"""
    )
    ptx = kernel_ptx(replace(kernel, name="kernel", source=kernel.key), (9, 0))
    assert ptx.count("atom.add.release.gpu") == 1
    assert "call" not in ptx
    assert ".nc." not in ptx


def test_a_library_ends_a_kernel():
    def function(x, y):
        a = anp.exp(x - anp.max(x, axis=0))
        inverse = anp.linalg.inv(a / anp.sum(a))
        return anp.tanh(inverse @ y) / anp.max(inverse)

    plan = persistent(function, random(8, 8), random(8, 3)).plan
    names = [step.kernel.rpartition("_")[0] for step in plan.steps]
    assert names[0] == names[-1] == "persistent"
    assert len(names) > 2


def test_large_steps_and_single_ones_stay_kernels_of_their_own():
    names = [k.name for k in persistent(lambda x: x * 2 + 1, random(50)).kernels]
    assert names == ["elementwise_0"]
    x = np.zeros((1 << 10, 1 << 11), np.float32)
    kernels = persistent(lambda x: anp.sum(x * anp.max(x)), x).kernels
    assert not any(kernel.cooperative for kernel in kernels)


def test_equal_kernels_have_equal_keys_whatever_the_names():
    one = persistent(
        lambda x, y: anp.exp(x @ y) / anp.sum(x), random(4, 5), random(5, 3)
    )
    two = persistent(
        lambda b, a: anp.exp(b @ a) / anp.sum(b), random(4, 5), random(5, 3)
    )
    assert one.kernels[0].source != two.kernels[0].source
    assert one.kernels[0].key == two.kernels[0].key


def test_an_unknown_mode_is_refused():
    with pytest.raises(
        ArgumentError, match="no mode 'fast'; the modes are 'persistent'"
    ):
        af.jit(anp.sin, mode="fast")


def test_on_a_cpu_the_mode_changes_nothing():
    x = random(5, 5)
    run = af.jit(lambda x: anp.exp(x @ x) / anp.sum(x), mode="persistent")
    np.testing.assert_array_equal(run(x), af.jit(run.__wrapped__)(x))


RACING = """
from arrayfn.lowering.cuda.vocabulary import block_index, grid_barrier, subarray_f32
from arrayfn.lowering.scalars import f32


def passed_on(x, barrier_state, n):
    own = subarray_f32(x, block_index())
    own[0] = f32(1.0)
    {meet}
    own[n] = x[n - 1 - block_index()]
"""


def race(meet):
    x = np.zeros(6, np.float32)
    source = RACING.format(meet=meet)
    given = [Pointer(x), Pointer(np.zeros(1, np.uint32)), 3]
    launch(source, "passed_on", 3, 1, given, cooperative=True)
    return x


def test_the_emulator_finds_blocks_that_do_not_wait_for_each_other():
    assert race("grid_barrier(barrier_state, 3)").tolist() == [1.0] * 6
    with pytest.raises(EmulationError, match=r"race for argument 0.*no grid_barrier"):
        race("pass")


EXCHANGED = """
from arrayfn.lowering.cuda.vocabulary import (
    barrier, block_index, shared_f32, thread_index,
)



def exchange(block, x):
    pair = shared_f32(2)
    thread = thread_index()
    pair[thread] = x[block * 2 + thread]
    barrier()
    x[block * 2 + thread] = pair[1 - thread]


def pairs(x):
    for block in range(block_index(), 4, 2):
        exchange(block, x)
        {then}
"""


def test_the_emulator_finds_parts_that_share_memory_with_the_next():
    def exchanged(then):
        x = np.arange(8, dtype=np.float32)
        source = EXCHANGED.format(then=then)
        launch(source, "pairs", 2, 2, [Pointer(x)], cooperative=True)
        return x.tolist()

    assert exchanged("barrier()") == [1, 0, 3, 2, 5, 4, 7, 6]
    with pytest.raises(EmulationError, match="race for shared"):
        exchanged("pass")


def test_a_part_that_shares_memory_waits_after_a_branch_that_has_met():
    """The branch that is taken may be the one in which blocks do not meet."""

    def function(x, k):
        y = x / anp.sum(x, axis=1, keepdims=True)
        branches = (anp.sin, lambda z: anp.sum(z * anp.max(z)) + z)
        z = lax.switch(k, branches, x)
        return y, z / anp.sum(z, axis=1, keepdims=True)

    x = abs(random(2, 600))
    for k in range(2):
        program = persistent(function, x, np.int32(k))
        have = run_plan(program, [x, np.asarray(k, np.int32)])
        for one, want in zip(have, af.jit(function)(x, np.int32(k)), strict=True):
            np.testing.assert_allclose(one, want, rtol=1e-4)


def test_a_small_step_goes_on_in_the_block_that_wrote_what_it_needs():
    def steps(x, y):
        running = anp.cumsum(anp.cumsum(anp.exp(x)))
        return anp.exp(y), running, y * running[-1]

    x, y = random(200), random(4096)
    compiled = persistent(steps, x, y)
    (kernel,) = compiled.kernels
    own = kernel.source.split(f"def {kernel.name}(")[1]
    lines = [line.strip() for line in own.splitlines()]
    waits = [line for line in lines if line.startswith(("barrier", "grid_barrier"))]
    # Exponentials, their running sums and those of these; then all need the last one.
    assert waits == ["barrier()", "barrier()", "grid_barrier(barrier_state, 2)"]
    for have, want in zip(run_plan(compiled, (x, y)), steps(x, y), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4)
