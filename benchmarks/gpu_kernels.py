"""Every family of GPU kernels once, small: ``python -m benchmarks.gpu_kernels``.

It is what compute-sanitizer is run over; results are compared with NumPy's.

    compute-sanitizer --tool memcheck python -m benchmarks.gpu_kernels --one-by-one
    compute-sanitizer --tool racecheck python -m benchmarks.gpu_kernels

``--one-by-one`` launches kernels without graphs: memcheck of CUDA 13.0 does not always
follow conditional nodes (``while_node.cu`` is such a graph without arrayfn). ``2/8`` is
every eighth of them, from the third on: eight processes side by side do all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any
from unittest.mock import patch

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.backends.cuda import attention as cuda_attention
from arrayfn.backends.cuda import plan_nodes
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.encoded_plan import EncodedPlan
from arrayfn.backends.cuda.graphs import dispatch
from arrayfn.backends.cuda.graphs.strategy import Strategy
from arrayfn.lowering.cuda.indexing import additions

Array = np.ndarray[Any, Any]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def in_double(x: Array) -> Array:
    """Numbers in float64; an index as it is."""
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def logsumexp(xp: Any, x: Any) -> Any:
    greatest = xp.max(x, axis=1)
    return xp.log(xp.sum(xp.exp(x - greatest[:, None]), axis=1)) + greatest


def layernorm(xp: Any, x: Any, scale: Any) -> Any:
    d = x - xp.mean(x, axis=-1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + 1e-5) * scale


def families() -> Iterator[tuple[str, Callable[..., Any], tuple[Array, ...]]]:
    """The families: a name, a function of an array module, and its arguments."""
    yield "elementwise", lambda xp, x, y: xp.exp(x) * y, (random(4099), random(4099))
    yield "broadcast", lambda xp, x, y: x + y, (random(33, 7, 5), random(7, 1))
    yield "transpose", lambda xp, x, y: x + y.T, (random(70, 100), random(100, 70))
    words = (np.arange(136 * 132) % 101).reshape(136, 132).astype(np.int8)
    yield "transpose of bytes", lambda xp, x: x.T + 1, (words,)
    halves = random(70, 130).astype(np.float16)
    yield "transpose of halves", lambda xp, x: x.T * 2, (halves,)
    for length in (5, 100, 1000, 5000, 12288, 16384, 30000, 65536):
        yield f"softmax of {length}", softmax, (random(150, length),)
    for length in (96, 4096, 16384, 40000, 65536):
        weights = random(length, seed=1)
        yield f"layernorm of {length}", layernorm, (random(150, length), weights)
    for length in (50304, 131072):
        halves = random(150, length).astype(np.float16)
        yield f"softmax of halves of {length}", softmax, (halves,)
    weights = halves[0]
    yield "layernorm of halves of 131072", layernorm, (halves, weights)
    yield "logsumexp", logsumexp, (random(150, 65536),)
    for length in (65536, 70001):
        name = f"deviations of {length}"
        yield name, lambda xp, x: xp.std(x, axis=1), (random(150, length),)
    columns = (random(5000, 70),)
    yield "deviation of all", lambda xp, x: xp.std(x), (random(1_000_003),)
    yield "softmax of all", softmax, (random(131072),)
    yield "deviations of columns", lambda xp, x: xp.std(x, axis=0), columns
    yield "cluster", softmax, (random(3, 65536),)
    yield "few long rows", softmax, (random(2, 70001),)
    for axis in (None, 0, 1):
        name = f"sum over {axis}"
        yield name, lambda xp, x, a=axis: xp.sum(x, axis=a), (random(1030, 517),)
    yield "long sum", lambda xp, x: xp.sum(x), (random(1_000_003),)
    yield "small sum", lambda xp, x: xp.sum(x), (random(131, 4099),)
    yield "argmax", lambda xp, x: xp.argmax(x, axis=1), (random(33, 517),)
    yield "argmax of columns", lambda xp, x: xp.argmax(x, axis=0), (random(517, 33),)
    yield "argmax of all", lambda xp, x: xp.argmax(x), (random(1_000_003),)
    yield "softmax of columns", lambda xp, x: softmax(xp, x.T), (random(300, 70),)
    yield "running sum", lambda xp, x: xp.cumsum(x, axis=1), (random(5, 5001),)
    for length in (100, 9000, 70001, 300_000):
        name = f"running sum of {length}"
        yield name, lambda xp, x: xp.cumsum(x, axis=1), (random(3, length),)
    long = (random(1, 3_000_000),)
    yield "running sum of groups", lambda xp, x: xp.cumsum(x, axis=1), long
    longer = (random(3, 5_900_004),)
    yield "running sum of fetched parts", lambda xp, x: xp.cumsum(x, axis=1), longer
    yield "running columns", lambda xp, x: xp.cumsum(x, axis=0), (random(50, 70),)
    yield from of_other_dtypes()
    index = np.random.default_rng(1).integers(0, 40, 100)
    for shape in ((70, 100), (3, 5000), (2, 20000)):
        yield f"sort of {shape[1]}", lambda xp, x: xp.sort(x, axis=1), (random(*shape),)
        order = lambda xp, x: xp.take_along_axis(x, xp.argsort(x, axis=1), 1)  # noqa: E731
        yield f"order of {shape[1]}", order, (random(*shape),)
    yield "median", lambda xp, x: xp.median(x), (random(300_001),)
    yield "gather", lambda xp, x: x[index], (random(40, 30),)
    rows = np.random.default_rng(3).integers(0, 40, 70_001)
    yield "gather of many rows", lambda xp, x: x[rows], (random(40, 32),)
    counted = rows.astype(np.int32) - 20
    yield "gather from both ends", lambda xp, x, i: x[i], (random(40, 32), counted)
    yield "concatenate", lambda xp, x: xp.concatenate([x, x + 1]), (random(40, 30),)
    yield "pivots", lambda xp, x: xp.linalg.det(x), (random(3, 20, 20),)
    yield "pad", lambda xp, x: xp.pad(x, 3), (random(40, 30),)
    matrices = random(40, 30), random(30, 50, seed=1), random(40, 50, seed=2)
    yield "product, added to", lambda xp, x, y, z: z - 0.1 * (x @ y), matrices
    for m in (3, 16):
        thin = random(m, 1304), random(1304, 1028, seed=1)
        yield f"product of {m} rows", lambda xp, x, y: x @ y, thin
        turned = random(m, 1304), random(1028, 1304, seed=1)
        yield f"product of {m} rows, lines", lambda xp, x, y: x @ y.T, turned
        both = random(1304, m), random(1028, 1304, seed=1)
        yield f"product of {m} rows that lie across", lambda xp, x, y: (y @ x).T, both
    side = lambda xp, x, y: xp.concatenate([x @ y, xp.exp(x)[:, :9]], axis=1)  # noqa: E731
    yield "product, beside others", side, matrices[:2]


def of_other_dtypes() -> Iterator[tuple[str, Callable[..., Any], tuple[Array, ...]]]:
    """Kernels whose elements are not float32, which numbers become here."""
    for dtype in (np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float64):
        narrow = lambda xp, x, d=dtype: (xp.abs(x) * 3).astype(d)  # noqa: E731
        sums = lambda xp, x, f=narrow: xp.sum(  # noqa: E731
            f(xp, x).astype(np.float32), axis=1
        )
        yield f"rows of {dtype.__name__}", sums, (random(33, 517),)
        flat = lambda xp, x, f=narrow: f(xp, x).T.astype(np.float32) + 1  # noqa: E731
        yield f"transposed {dtype.__name__}", flat, (random(70, 100),)
    for m, turned in ((1, False), (13, True)):
        thin = random(m, 1304), random(*((1616, 1304) if turned else (1304, 1616)))
        yield f"product of {m} rows of halves", of_halves, thin
    power = lambda xp, x: xp.abs(xp.sum(xp.exp(1j * x), axis=0))  # noqa: E731
    yield "complex columns", power, (random(70, 100),)


def of_halves(xp: Any, x: Any, y: Any) -> Any:
    """A product of halves, of which NumPy's is in double precision."""
    kinds = (np.float16,) if xp is anp else (np.float16, np.float64)
    for kind in kinds:
        x, y = x.astype(kind), y.astype(kind)
    return x @ (y if y.shape[0] == x.shape[1] else y.T)


def draws() -> int:
    """Random numbers, which are the CPU's; how many kernels made them."""
    key, count = af.random.key(3), 0
    for draw in (af.random.bits, af.random.normal, af.random.permutation):
        given = (5000,) if draw is not af.random.permutation else 5000
        run = af.jit(lambda k, f=draw, s=given: f(k, s), device="cuda")
        want = np.asarray(af.jit(lambda k, f=draw, s=given: f(k, s))(key))
        assert np.array_equal(np.asarray(run(key)), want), draw.__name__
        count += len(run.lower(key).kernels)
        print(f"random.{draw.__name__}: passed", flush=True)
    return count


def loops() -> Iterator[tuple[str, Callable[..., Any], tuple[Array, ...]]]:
    """Functions of ``lax``, run kernel by kernel and as one kernel."""
    weights = random(30, 30, seed=1) / 6

    def recurrent(x: Any, w: Any) -> Any:
        step = lambda h, row: (anp.tanh(h @ w + row),) * 2  # noqa: E731
        return lax.scan(step, x[0], x)[1]

    yield "recurrence", recurrent, (random(6, 30), weights)

    def repeated(x: Any, w: Any) -> Any:
        branches = (lambda x: x @ w, lambda x: x[::-1] + 1, anp.tanh)
        step = lambda s: (s[0] + 1, lax.switch(s[0] % 3, branches, s[1]))  # noqa: E731
        return lax.while_loop(lambda s: s[0] < 5, step, (0, x))[1]

    yield "switch in a loop", repeated, (random(40, 30), weights)

    def until(x: Any, w: Any) -> Any:
        step = lambda x: anp.tanh(x @ w) + 0.1  # noqa: E731
        return lax.while_loop(lambda x: anp.sum(x * x) > 20, step, x)

    yield "loop until a value", until, (random(40, 30), weights)

    def newton(x: Any) -> Any:
        y = anp.abs(x) + 1
        return lax.fori_loop(0, 9, lambda _, z: (z + y / z) / 2, y)

    yield "elements in a loop", newton, (random(1000),)


def run_loop(name: str, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """One of them, in both modes, against the CPU."""
    want = np.asarray(af.jit(function)(*arguments))
    for mode in (None, "persistent"):
        run = af.jit(function, device="cuda", mode=mode)
        # The last ones are graphs, in which the longer loops have windows.
        with patch.multiple(plan_nodes, MOST_UNROLLED=4, PARTLY_UNROLLED_LAUNCHES=2):
            have = [np.asarray(run(*arguments)) for _ in range(3)][-1]
        error = float(np.abs(have - want).max() / np.abs(want).max())
        print(f"{name}, mode {mode}: error {error:.1e}", flush=True)
        assert error < 1e-3, name


def run_loops() -> None:
    """All of them."""
    for case in loops():
        run_loop(*case)


def run_channels() -> None:
    """Kernels of channels that lie last, and their gradients, against the CPU."""

    def pooled(x: Any) -> Any:
        sizes, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        least = np.float32(-np.inf)
        return anp.sum(
            anp.sin(lax.reduce_window(x, least, lax.max, sizes, strides, "SAME"))
        )

    def loss(x: Any, w: Any) -> Any:
        names = ("NHWC", "HWIO", "NHWC")
        options: dict[str, Any] = {"dimension_numbers": names}
        options["feature_group_count"] = x.shape[-1]
        return anp.sum(
            anp.sin(lax.conv_general_dilated(x, w, (1, 1), "SAME", **options))
        )

    arguments = random(2, 11, 9, 16), random(3, 3, 1, 16, seed=1)
    step = af.value_and_grad(loss, argnums=(0, 1))
    have, want = (af.jit(step, device=d)(*arguments) for d in ("cuda", "cpu"))
    for a, b in zip(have[1], want[1], strict=True):
        error = float(np.abs(np.asarray(a) - np.asarray(b)).max())
        print(f"channels by themselves: error {error:.1e}", flush=True)
        assert error < 1e-4
    (x,) = arguments[:1]
    have, want = (af.jit(af.grad(pooled), device=d)(x) for d in ("cuda", "cpu"))
    error = float(np.abs(np.asarray(have) - np.asarray(want)).max())
    print(f"windows: error {error:.1e}", flush=True)
    assert error < 1e-4


def run_triangles() -> None:
    """Triangular systems with few sides, against NumPy."""
    a, b = random(200, 200) + 200 * np.eye(200, dtype=np.float32), random(200, 9)
    for lower, triangle in ((True, np.tril(a)), (False, np.triu(a))):
        solve = lambda a, b, way=lower: lax.linalg.triangular_solve(  # noqa: E731
            a, b, left_side=True, lower=way
        )
        x = np.asarray(af.jit(solve, device="cuda")(a, b))
        error = float(np.abs(triangle.astype(np.float64) @ x - b).max())
        print(f"a triangular system: error {error:.1e}", flush=True)
        assert error < 1e-4


def by_cholesky(x: Any) -> Any:
    factor = anp.linalg.cholesky(x)
    return factor @ anp.swapaxes(factor, -1, -2)


def by_eigenvalues(x: Any) -> Any:
    w, v = anp.linalg.eigh(x)
    return (v * w[..., None, :]) @ anp.swapaxes(v, -1, -2)


def by_singular_values(x: Any) -> Any:
    u, s, vh = anp.linalg.svd(x, full_matrices=False)
    return (u * s[..., None, :]) @ vh


FACTORS = (
    (by_cholesky, (5, 30, 30)),
    (by_cholesky, (2, 200, 200)),
    (by_eigenvalues, (5, 30, 30)),
    (by_singular_values, (5, 30, 30)),
)


def run_factors(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    """Factors of symmetric matrices, and singular values, which give them back."""
    x = random(*shape)
    x = x @ x.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1], dtype=np.float32)
    given = np.asarray(af.jit(function, device="cuda")(x))
    error = float(np.abs(given - x).max() / np.abs(x).max())
    print(f"{function.__name__} of {shape}: error {error:.1e}", flush=True)
    assert error < 1e-4


def attentions() -> Iterator[tuple[str, tuple[int, ...], dict[str, Any]]]:
    """Attention by its kernels: a name, B, T, S, N, K, H, and options."""
    yield "odd causal", (1, 130, 77, 2, 1, 84), {"is_causal": True}
    bias = random(2, 70, 90, seed=3).astype(np.float16)
    mask = np.random.default_rng(4).random((3, 1, 1, 90)) < 0.6
    yield "bias, mask", (3, 70, 90, 2, 2, 33), {"bias": bias, "mask": mask}
    bias = random(3, 1, 1, 90, seed=3)
    yield "bias of keys", (3, 70, 90, 2, 2, 64), {"bias": bias}
    lengths = {"query_seq_lengths": np.array([200, 5])}
    lengths["key_value_seq_lengths"] = np.array([3, 150])
    yield "lengths", (2, 200, 150, 2, 2, 192), lengths
    yield "window", (1, 300, 300, 1, 1, 40), {"local_window_size": (70, 5)}


def run_attention(name: str, sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    """One of them and its gradients, against the CPU in float64."""
    B, T, S, N, K, H = sizes
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H)
    arrays = [random(*s, seed=k).astype(np.float16) for k, s in enumerate(shapes)]
    weights = random(*shapes[0], seed=7)

    def attend(*a: Any) -> Any:
        mixed = nn.dot_product_attention(*a, **options)
        return anp.sum(anp.multiply(mixed, weights)), mixed

    if "bias" in options:
        arrays.append(options.pop("bias"))
    by = tuple(range(len(arrays)))
    step = af.value_and_grad(attend, argnums=by, has_aux=True)
    with patch.object(cuda_attention, "_has_cudnn", lambda: False):
        (_, mixed), gradients = af.jit(step, device="cuda")(*arrays)
    (_, known), expected = step(*(x.astype(np.float64) for x in arrays))
    for have, want in zip((mixed, *gradients), (known, *expected), strict=True):
        error = np.linalg.norm(np.asarray(have).astype(float) - want)
        error /= np.linalg.norm(want)
        print(f"attention, {name}: error {error:.1e}", flush=True)
        assert error < 5e-3, name


def run_family(
    name: str, function: Callable[..., Any], arguments: tuple[Array, ...]
) -> int:
    """One of the families, against NumPy; how many kernels it has."""
    run = af.jit(lambda *a: function(anp, *a), device="cuda")
    have = np.asarray(run(*arguments))
    want = function(np, *map(in_double, arguments))
    scale = float(np.abs(want).max()) or 1.0
    error = float(np.abs(have - want).max()) / scale
    kernels = [k.name for k in run.lower(*arguments).kernels]
    print(f"{name}: {', '.join(kernels)}: error {error:.1e}", flush=True)
    assert error < 1e-3, name
    return len(kernels)


MANY = np.random.default_rng(2).integers(0, 300, 20000)
SPREAD = np.random.default_rng(4).integers(0, 100_003, 20000)
SPREAD[:500] = 7


def add_rows() -> None:
    """Few rows added to few, and many to some: in order, and in any."""
    index = np.random.default_rng(1).integers(0, 40, 100)
    x, updates = random(40, 30), random(100, 30, seed=2)
    added = af.jit(lambda x, u: x.at[index].add(u), device="cuda")(x, updates)
    want = x.astype(np.float64)
    np.add.at(want, index, updates)
    assert np.abs(np.asarray(added) - want).max() < 1e-4
    print("scatter-add: passed")
    updates = random(20000, 32, seed=3)
    for deterministic in (True, False):
        add = lambda i, u: (u[:300] * 0).at[i].add(u)  # noqa: E731
        run = af.jit(add, device="cuda", deterministic=deterministic)
        have, want = np.asarray(run(MANY, updates)), np.zeros((300, 32))
        np.add.at(want, MANY, updates)
        assert np.abs(have - want).max() < 1e-3
        print(f"scatter-add, deterministic={deterministic}: passed", flush=True)


def add_numbers() -> None:
    """Single numbers added to many: tile by tile, and range by range."""
    x, singles = random(100_003), random(20000, seed=4)
    want = x.astype(np.float64)
    np.add.at(want, SPREAD, singles)
    add = lambda x, i, u: x.at[i].add(u)  # noqa: E731
    have = np.asarray(af.jit(add, device="cuda")(x, SPREAD, singles))
    assert np.abs(have - want).max() < 1e-4
    print("scatter-add into tiles: passed")
    near = patch.object(additions, "_NEAR", 1 << 18)
    least = patch.object(additions, "_MIN_UPDATES", 1 << 12)
    with near, least:
        run = af.jit(add, device="cuda", deterministic=False)
        have = np.asarray(run(x, SPREAD, singles))
    assert np.abs(have - want).max() < 1e-4
    print("scatter-add by ranges: passed", flush=True)


def put_rows() -> None:
    """The last of the rows that are put to one place stays."""
    updates = random(20000, 32, seed=3)
    last = af.jit(lambda i, u: (u[:300] * 0).at[i].set(u), device="cuda")
    want = np.zeros((300, 32), np.float32)
    want[MANY] = updates
    assert np.array_equal(np.asarray(last(MANY, updates)), want)
    print("scatter: passed", flush=True)


def parts() -> Iterator[Callable[[], int | None]]:
    """All of it; some parts say how many kernels they have run."""
    yield draws
    for attention in attentions():
        yield partial(run_attention, *attention)
    for loop in loops():
        yield partial(run_loop, *loop)
    yield run_channels
    yield run_triangles
    for factors in FACTORS:
        yield partial(run_factors, *factors)
    for family in families():
        yield partial(run_family, *family)
    yield add_rows
    yield add_numbers
    yield put_rows


def main(first: int, step: int) -> None:
    """Run every ``step``-th part, from ``first`` on."""
    began, count = time.perf_counter(), 0
    chosen = list(islice(parts(), first, None, step))
    for part in chosen:
        count += part() or 0
    device().synchronize()
    seconds = time.perf_counter() - began
    print(f"all passed: {len(chosen)} parts, {count} kernels and those of loops,")
    print(f"attention, factors, scatters and channels, in {seconds:.0f} s")


def one_by_one(encoded: EncodedPlan, *, can_stage: bool) -> list[Strategy]:
    """Direct launches of the whole plan, without graphs."""
    return [Strategy(encoded.nodes)]


if __name__ == "__main__":
    given = [x for x in sys.argv[1:] if "/" in x]
    which = [int(x) for x in given[0].split("/")] if given else [0, 1]
    if "--one-by-one" in sys.argv[1:]:
        with patch.object(dispatch, "strategies", one_by_one):
            main(*which)
    else:
        main(*which)
