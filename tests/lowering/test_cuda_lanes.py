"""Loops on a GPU whose elements each have a thread, by the emulator."""

import re

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.backends.cuda import missing_packages
from arrayfn.backends.cuda.code import kernel_ptx
from arrayfn.backends.cuda.emulator.plan import run_plan
from tests.lowered_on_gpu import lowered

needs_compiler = pytest.mark.skipif(bool(missing_packages()), reason=missing_packages())


def random(*shape, dtype=np.float32):
    return np.abs(np.random.default_rng(0).standard_normal(shape)).astype(dtype) + 0.5


def newton(x):
    return lax.scan(lambda y, _: (0.5 * (y + x / y), None), x, None, length=9)[0]


def mandelbrot(c):
    def step(_, state):
        z, count = state
        inside = anp.abs(z) < 2
        return anp.where(inside, z * z + c, z), count + inside

    start = anp.zeros_like(c), anp.zeros(c.shape, np.int32)
    return lax.fori_loop(0, 12, step, start)[1]


def kepler(mean, eccentricity):
    """The number of iterations is the same for all, and a result too."""

    def step(state):
        k, x = state
        slope = 1 - eccentricity * anp.cos(x)
        return k + 1, x - (x - eccentricity * anp.sin(x) - mean) / slope

    return lax.while_loop(lambda state: state[0] < 6, step, (0, mean))


def filtered(x, start):
    """Slices in and out, a branch, and a scalar that is stored in each iteration."""

    def step(state, row):
        k, y = state
        y = lax.cond(k % 2 == 0, lambda y: y * 0.5 + row, lambda y: y - row, y)
        return (k + 1, y), (y, k)

    return lax.scan(step, (0, start), x)


def inner_loop(x):
    def step(y, _):
        return lax.fori_loop(0, 3, lambda k, z: z * 0.5 + k, y), None

    return lax.scan(step, x, None, length=4)[0]


def from_first(x):
    step = lambda c, _: ((c[0] * 0.5, c[1] + c[0]), None)  # noqa: E731
    return lax.scan(step, (x[0], x), None, length=3)[0]


def each_until_it_is_near(x, y):
    """Mapped: elements end by themselves, after different numbers of iterations."""

    def solve(x, y):
        def step(state):
            k, z, d = state
            d = (z - 0.3 * anp.sin(z) - x) / (1 - y * anp.cos(z))
            return k + 1, z - d, d

        far = lambda state: anp.abs(state[2]) > 1e-5  # noqa: E731
        return lax.while_loop(far, step, (0, x, anp.ones_like(x)))

    return af.vmap(solve, in_axes=(0, None))(x, y)


CASES = {
    "newton": (newton, random(300)),
    "newton in place of a row": (newton, random(3, 7)),
    "halves": (newton, random(150, dtype=np.float16)),
    "mandelbrot": (mandelbrot, (random(9, 20) + 1j * random(9, 20)) - 1),
    "kepler": (kepler, random(200), np.float32(0.3)),
    "until near": (each_until_it_is_near, random(200), np.float32(0.3)),
    "filtered": (filtered, random(7, 130), random(130)),
    "a loop in it": (inner_loop, random(140)),
    "starts in a larger array": (lambda x: filtered(x, x[0]), random(3, 131)),
    "starts from a number of it": (from_first, random(200)),
}


@pytest.mark.parametrize("name", CASES)
def test_elements_go_through_a_loop_by_themselves(name):
    function, *arguments = CASES[name]
    program = lowered(function, *arguments)
    (loop,) = (k for k in program.kernels if k.name == "loop_0")
    assert loop.threads == 32  # on as many multiprocessors as there are
    have = run_plan(program, [np.asarray(x) for x in arguments])
    want = af.tree.leaves(af.jit(function)(*arguments))
    for x, y in zip(have, want, strict=True):
        tolerance = 1e-2 if y.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=1e-5)


def test_an_element_that_has_ended_leaves_the_loop():
    program = lowered(each_until_it_is_near, random(200), np.float32(0.3))
    assert not any("reduce_or" in kernel.source for kernel in program.kernels)
    (loop,) = (k for k in program.kernels if k.name == "loop_0")
    condition = loop.source.partition("        while ")[2].partition(":\n")[0]
    assert f"{condition} = convert_u8_bool(" in loop.source
    assert "loop" not in [step.kernel for step in program.plan.steps]


def test_a_loop_that_ends_for_all_at_once_is_none_of_each():
    def all_at_once(x):
        step = lambda x: x * 0.5 + 0.1  # noqa: E731
        return lax.while_loop(lambda x: anp.any(x > 0.5), step, x)

    program = lowered(all_at_once, random(300))
    assert not any(kernel.name.startswith("loop") for kernel in program.kernels)


@needs_compiler
def test_the_kernel_of_such_a_loop_reads_and_writes_once():
    program = lowered(newton, random(300))
    (kernel,) = program.kernels
    body = kernel.source.partition("i0 = ")[2]
    loads = [line for line in body.splitlines() if "= x_at[i0]" in line]
    stores = [line for line in body.splitlines() if "_at[i0] = " in line]
    assert len(loads) == 2
    assert len(stores) == 1
    assert "for iteration in range(iterations):" in body
    ptx = kernel_ptx(kernel, (9, 0))
    assert ptx.count("ld.global") <= 2
    assert ptx.count("st.global") == 1


def curvature_of_a_scan(x, directions):
    """Second derivatives of a loop with scalars of its own, in many directions."""

    def loss(x):
        step = lambda c, r: (0.5 * anp.sin(c) + r, anp.sin(c) * r)  # noqa: E731
        last, products = lax.scan(step, anp.float32(0.0), x)
        return products.sum() + last

    def along(v):
        return af.jvp(af.grad(loss), (x,), (v,))[1]

    return af.vmap(along)(directions)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_no_item_reads_a_scalar_that_another_one_stores(target):
    given = random(7), random(5000, 7)
    if target == "cuda":
        kernels = lowered(curvature_of_a_scan, *given).kernels
    else:
        kernels = af.jit(curvature_of_a_scan).lower(*given).kernels
    loops = [k.source for k in kernels if k.name.startswith("loop_")]
    stored = [
        re.findall(r"if (?:i0|item) == 0:\n +(\w+)\[(\w+)\] = ", source)
        for source in loops
    ]
    assert len(stored) == 2
    assert len(stored[0]) >= 4
    for source, places in zip(loops, stored, strict=True):
        for array, index in places:
            assert f"= {array}[{index}]" not in source


def test_a_loop_of_one_thread_has_a_text_that_a_gpu_can_run():
    """Nothing interrupts a kernel on a GPU: its loops look at no flag of the host."""

    def shrunk(x):
        return af.lax.while_loop(
            lambda c: anp.max(anp.abs(c), initial=0) > 1,
            lambda c: c * np.float32(0.25),
            x,
        )

    x = np.array([[-9.0]], np.float32)
    compiled = lowered(shrunk, x)
    (loop,) = (k for k in compiled.kernels if k.name.startswith("loop"))
    assert "interrupted" not in loop.source
    (y,) = run_plan(compiled, [x])
    assert y.tolist() == [[-0.5625]]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_no_lane_reads_the_element_of_another_one(target):
    """An element of the carried vector, taken by all, makes the lanes depend."""

    def f(start, xs):
        def step(c, x):
            return 0.5 * c[0] + 0.25 * c + x, None

        return lax.scan(step, start, xs, reverse=True)[0]

    given = random(3000), random(4, 3000)
    wanted = np.asarray(af.jit(f, device="reference")(*given))
    if target == "cpu":
        got = af.jit(f)(*given)
    else:
        given = given[0][:40], given[1][:, :40]
        (got,) = run_plan(lowered(f, *given), given)
        wanted = wanted[:40]
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_sum_down_columns_of_a_constant_needs_no_operand():
    f = af.vmap(af.grad(lambda x, y: anp.sum(x + y[1::-1]), argnums=(0, 1)), (0, 1))
    given = random(2, 33, 2), random(2, 2, 1, 2)
    for have, want in zip(run_plan(lowered(f, *given), given), f(*given), strict=True):
        np.testing.assert_array_equal(have, want)
