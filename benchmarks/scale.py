"""What more devices make of a program: ``python -m benchmarks.scale``.

On GPUs, as many as there are: a training step of the GPT of ``examples/gpt.py``, data
parallel (4 blocks of width 1024, batch 16 x 1024, bfloat16); a perceptron 8192 x 32768
in tensor parallel form; sums over all GPUs, beside NCCL called bare and beside JAX.
``--platform cpu`` measures smaller ones on a CPU's virtual devices, and ``--processes
2,4,8`` over MPI. A row is of one number of devices. ``scaling`` is the time on one
device over that on n times n: 100 % for programs that gain all there is to gain.

Engines take turns; a time is the median of rounds of calls, each waited for once.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, NamedSharding, lax, random
from arrayfn import PartitionSpec as P
from arrayfn.backends.cuda.driver import gpu, gpu_count, on
from examples import gpt

Run = Callable[[], Any]
"""Starts a call; its result can be waited for."""

ROUNDS: Final = 5
ROUND_SECONDS: Final = 0.2
MIB: Final = 1 << 20
STEPS: Final = 800  # of the schedule


@dataclass(frozen=True)
class Sizes:
    """How large the programs are."""

    config: gpt.Config
    batch: int
    sums: tuple[int, ...]  # bytes on each device
    perceptron: tuple[int, int, int]  # rows, width, hidden
    dtype: str


GPUS: Final = Sizes(
    gpt.Config(4, 1024, 16, 16, 1024, dtype="bfloat16"),
    16,
    tuple(n * MIB for n in (1, 16, 256, 1024)),
    (4096, 8192, 32768),
    "bfloat16",
)
SMALL: Final = Sizes(
    gpt.Config(2, 128, 4, 4, 64),
    8,
    tuple(n * MIB // 16 for n in (1, 16, 256)),
    (256, 256, 1024),
    "float32",
)


@dataclass(frozen=True)
class Case:
    """A program: ``make(count)`` gives what runs it on so many devices.

    ``bytes`` are those of each device that are summed; the rows of programs that are
    to gain by more devices say how much they do.
    """

    name: str
    make: Callable[[int], dict[str, Run]]
    bytes: int = 0
    is_fixed: bool = True  # the work, whatever the number of devices


def mesh_of(count: int, platform: str, axis: str) -> Mesh:
    """A mesh of the first devices."""
    return Mesh((count,), (axis,), platform=platform)


class Jax:
    """JAX on the same devices, if it is installed and sees them."""

    def __init__(self, platform: str) -> None:
        self.jax: Any = None
        if importlib.util.find_spec("jax") is not None and not several_processes():
            flags = os.environ.get("XLA_FLAGS", "")
            if platform == "cpu":
                flags += " --xla_force_host_platform_device_count=8"
                os.environ["JAX_PLATFORMS"] = "cpu"
            os.environ["XLA_FLAGS"] = flags
            self.jax = importlib.import_module("jax")

    def mesh(self, count: int, axis: str) -> Any:
        """A mesh of the first devices; None if there are fewer."""
        if self.jax is None or len(self.jax.devices()) < count:
            return None
        devices = np.asarray(self.jax.devices()[:count])
        return self.jax.sharding.Mesh(devices, (axis,))

    def lies(self, mesh: Any, *spec: Any) -> Any:
        """A NamedSharding."""
        sharding = self.jax.sharding
        return sharding.NamedSharding(mesh, sharding.PartitionSpec(*spec))


def several_processes() -> bool:
    """Whether this is one of several processes."""
    return af.distributed.process_count() > 1


# Programs.


def sum_over(count: int, elements: int, platform: str, theirs: Jax) -> dict[str, Run]:
    """The sum of ``elements`` float32 of each device, on each device."""
    mesh = mesh_of(count, platform, "i")
    f = af.shard_map(
        lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P()
    )
    whole = NamedSharding(mesh, P("i"))
    x = af.make_array_from_callback(
        (count * elements,), whole, lambda _: np.ones(elements, np.float32)
    )
    runs: dict[str, Run] = {"arrayfn": partial(af.jit(f), x)}
    if platform == "cuda":
        runs["NCCL"] = bare_sum(count, elements)
    their_mesh = theirs.mesh(count, "i")
    if their_mesh is not None:
        jax = theirs.jax
        spec = jax.sharding.PartitionSpec
        g = jax.jit(
            jax.shard_map(
                lambda x: jax.lax.psum(x, "i"),
                mesh=their_mesh,
                in_specs=spec("i"),
                out_specs=spec(),
            )
        )
        lies = theirs.lies(their_mesh, "i")
        part = np.ones(elements, np.float32)
        y = jax.make_array_from_callback((count * elements,), lies, lambda _: part)
        runs["JAX"] = partial(g, y)
    return runs


def bare_sum(count: int, elements: int) -> Run:
    """NCCL's own all_reduce of buffers, as its performance tests call it."""
    from arrayfn.distributed.nccl import bindings

    nccl = bindings()
    handles = nccl.comm_init_all(count, list(range(count)))
    comms = [h if isinstance(h, nccl.Comm) else nccl.Comm(int(h)) for h in handles]
    held = []
    for k in range(count):
        with on(gpu(k)):
            held.append([gpu(k).block(4 * elements) for _ in range(2)])

    def run() -> Callable[[], None]:
        nccl.group_start()
        for k in range(count):
            (x, _), (y, _) = held[k]
            gpu(k).make_current()
            nccl.all_reduce(x, y, elements, 7, 0, comms[k], gpu(k).stream)
        nccl.group_end()
        return lambda: [gpu(k).synchronize() for k in range(count)]

    return run


def training(count: int, sizes: Sizes, platform: str, theirs: Jax) -> dict[str, Run]:
    """A step of the GPT, with a part of the batch on each device."""
    text = gpt.encode(gpt.read_text())
    rule = gpt.optimizer(STEPS)
    params = gpt.init_params(random.key(0), sizes.config)
    mesh = mesh_of(count, platform, "data")
    options = {"config": sizes.config, "batch": sizes.batch}
    step = af.jit(
        partial(
            gpt.train_step, **options, rule=rule, rows=NamedSharding(mesh, P("data"))
        )
    )
    given = params, rule.init(params), text, random.key(5)
    *state, there, key = af.device_put(given, NamedSharding(mesh, P()))

    def run() -> Any:
        nonlocal state
        *state, value = step(*state, key, there)
        return value

    runs: dict[str, Run] = {"arrayfn": run}
    their_mesh = theirs.mesh(count, "data")
    if their_mesh is not None:
        runs["JAX"] = their_training(sizes, params, text, their_mesh, theirs)
    return runs


def their_training(sizes: Sizes, params: Any, text: Any, mesh: Any, theirs: Jax) -> Run:
    """The same step by JAX."""
    from benchmarks import jax_gpt

    jax = theirs.jax
    step = jax.jit(
        partial(
            jax_gpt.train_step,
            config=sizes.config,
            batch=sizes.batch,
            schedule=jax_gpt.schedule_of(STEPS),
            rows=theirs.lies(mesh, "data"),
        )
    )
    made = jax.tree.map(jax.numpy.asarray, params)
    given = made, jax_gpt.moments_of(made), jax.random.key(5), jax.numpy.asarray(text)
    *state, key, there = jax.device_put(given, theirs.lies(mesh))

    def run() -> Any:
        nonlocal state
        *state, value = step(*state, key, there)
        return value

    return run


def perceptron(count: int, sizes: Sizes, platform: str, theirs: Jax) -> dict[str, Run]:
    """Two products with a hidden layer that is cut over the devices."""
    rows, width, hidden = sizes.perceptron
    draw = np.random.default_rng(0)

    def values(*shape: int) -> Any:
        made = draw.standard_normal(shape, dtype=np.float32) / shape[0] ** 0.5
        return np.asarray(anp.asarray(made).astype(sizes.dtype))

    up, down, x = values(width, hidden), values(hidden, width), values(rows, width)
    mesh = mesh_of(count, platform, "model")

    def layer(up: Any, down: Any, x: Any) -> Any:
        return anp.tanh(x @ up) @ down

    lies = [NamedSharding(mesh, s) for s in (P(None, "model"), P("model"), P())]
    given = [af.device_put(a, s) for a, s in zip((up, down, x), lies, strict=True)]
    whole = NamedSharding(mesh, P())
    runs: dict[str, Run] = {
        "arrayfn": partial(af.jit(layer, out_shardings=whole), *given)
    }
    their_mesh = theirs.mesh(count, "model")
    if their_mesh is not None:
        jax = theirs.jax
        specs = ((None, "model"), ("model",), ())
        there = [
            jax.device_put(a, theirs.lies(their_mesh, *s))
            for a, s in zip((up, down, x), specs, strict=True)
        ]
        g = jax.jit(
            lambda up, down, x: jax.numpy.tanh(x @ up) @ down,
            out_shardings=theirs.lies(their_mesh),
        )
        runs["JAX"] = partial(g, *there)
    return runs


def cases(sizes: Sizes, platform: str, theirs: Jax) -> Iterator[Case]:
    """The rows of the table."""
    yield Case(
        "GPT step", partial(training, sizes=sizes, platform=platform, theirs=theirs)
    )
    yield Case(
        "perceptron", partial(perceptron, sizes=sizes, platform=platform, theirs=theirs)
    )
    given = {"platform": platform, "theirs": theirs}
    yield Case("psum of 8 numbers", partial(sum_over, elements=8, **given), 32, False)
    for nbytes in sizes.sums:
        name = f"psum of {nbytes / MIB:g} MiB"
        make = partial(sum_over, elements=nbytes // 4, **given)
        yield Case(name, make, nbytes, False)


# Measuring.


def wait_for(result: Any) -> None:
    """Wait until a call is done."""
    if callable(result):
        result()
        return
    for leaf in result if isinstance(result, (tuple, list)) else (result,):
        if hasattr(leaf, "block_until_ready"):
            leaf.block_until_ready()


def seconds_of(runs: dict[str, Run], seconds: float) -> dict[str, float]:
    """The median seconds of a call of each, in turns."""
    counts: dict[str, int] = {}
    for name, run in runs.items():
        for _ in range(6):  # until all that repeats is captured
            wait_for(run())
        start = time.perf_counter()
        wait_for(run())
        taken = time.perf_counter() - start
        counts[name] = agreed(max(1, int(seconds / max(taken, 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.perf_counter()
            result: Any = None
            for _ in range(counts[name]):
                result = run()
            wait_for(result)
            times[name].append((time.perf_counter() - start) / counts[name])
    return {name: statistics.median(t) for name, t in times.items()}


def agreed(count: int) -> int:
    """The same count in all processes: the first one's."""
    if not several_processes():
        return count
    from arrayfn.distributed.processes import _Started

    assert _Started.processes is not None
    return int(_Started.processes.world.bcast(count, root=0))


def line_of(case: Case, count: int, seconds: dict[str, float], one: float) -> str:
    """One line of the table."""
    ours = seconds["arrayfn"]
    told = "".join(
        f"{seconds[k] * 1e6:12,.1f}" if k in seconds else f"{'-':>12}"
        for k in ("arrayfn", "JAX", "NCCL")
    )
    if case.is_fixed and one:
        gained = f"{one / ours / count:8.1%}"
    elif case.bytes >= MIB // 16 and count > 1:
        # What each device sends and receives in a ring, as NCCL's tests count.
        rate = 2 * (count - 1) / count * case.bytes / ours / 1e9
        gained = f"{rate:6.1f} GB/s"
    else:
        gained = ""
    return f"{case.name:22} {count:3}{told}  {gained}"


def measure(
    platform: str, counts: Sequence[int], chosen: Sequence[str], seconds: float
) -> None:
    """Print the table."""
    sizes = GPUS if platform == "cuda" else SMALL
    known = gpu_count() if platform == "cuda" else len(af.devices("cpu"))
    theirs = Jax(platform)
    is_first = af.distributed.process_index() == 0
    if is_first:
        print(f"{'us':22} {'n':>3}{'arrayfn':>12}{'JAX':>12}{'NCCL':>12}", flush=True)
    for case in cases(sizes, platform, theirs):
        if chosen and not any(case.name.startswith(name) for name in chosen):
            continue
        one = 0.0
        for count in counts:
            if count > known:
                if is_first:
                    print(
                        f"{case.name:22} {count:3}  needs {count} devices", flush=True
                    )
                continue
            taken = seconds_of(case.make(count), seconds)
            one = taken["arrayfn"] if count == 1 else one
            if is_first:
                print(line_of(case, count, taken, one), flush=True)


def launched(count: int, options: argparse.Namespace) -> None:
    """The table of so many processes."""
    command = [sys.executable, "-m", "arrayfn", "launch", "-n", str(count), __file__]
    command += ["--inside", "--seconds", str(options.seconds), *options.cases]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    print(f"{count} processes", flush=True)
    subprocess.run(command, check=True, env=env)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="those whose names begin so")
    parser.add_argument("--platform", choices=("cpu", "cuda"))
    parser.add_argument("--devices", default="1,2,4,8")
    parser.add_argument("--processes", default="")
    parser.add_argument("--seconds", type=float, default=ROUND_SECONDS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        af.distributed.initialize()
        counts = [af.distributed.process_count()]
        measure("cpu", counts, options.cases, options.seconds)
        return
    print("command: python -m benchmarks.scale", *sys.argv[1:])
    if options.processes:
        for count in map(int, options.processes.split(",")):
            launched(count, options)
        return
    platform = options.platform or ("cuda" if gpu_count() else "cpu")
    if platform == "cpu":
        af.set_num_devices(8)
        print(f"{os.cpu_count()} cores, virtual devices")
    else:
        print(f"{gpu_count()} x {gpu(0).name}")
    counts = [int(n) for n in options.devices.split(",")]
    measure(platform, counts, options.cases, options.seconds)


if __name__ == "__main__":
    main()
