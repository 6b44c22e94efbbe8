"""Plans of meshes of GPUs, without one: emulated kernels, a NCCL that takes notes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import arrayfn as af
from arrayfn import Mesh, NamedSharding, lax, nn, shard_map
from arrayfn import PartitionSpec as P
from arrayfn.backends.cuda.emulator import plan
from arrayfn.backends.cuda.graphs.overlap import plan_launches
from arrayfn.backends.cuda.plan_nodes import HostCall, NativeRun, StepAccesses
from arrayfn.backends.members import RUNNING, Lockstep
from arrayfn.distributed import gpus, nccl
from arrayfn.distributed.devices import DEVICES, Device
from arrayfn.distributed.threads import Run, ThreadMember
from arrayfn.errors import ArgumentError, BackendError, CollectiveError
from tests.distributed.program_of_processes import BODIES

X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
PAIR = Mesh((2,), ("i",), platform="cuda")


_emulator = threading.Lock()


@pytest.fixture(autouse=True)
def one_kernel_at_a_time(monkeypatch):
    """Members run beside each other, but the emulator is one for the process."""
    launch = plan.launch

    def launched(*args, **kwargs):
        with _emulator:
            launch(*args, **kwargs)

    monkeypatch.setattr(plan, "launch", launched)


def emulated(f, *args, **options):
    """The results of each member of a mesh of GPUs, put together."""
    compiled = af.jit(f, **options).lower(*args).compiled_program
    mesh, specs = compiled.partitioned.mesh, compiled.partitioned.in_specs
    run = Run(mesh, [f"cuda:{k}" for k in range(mesh.size)])

    def member(k):
        RUNNING.member = ThreadMember(run, k)
        parts = [
            x[NamedSharding(mesh, s).index(x.shape, k)]
            for x, s in zip(args, specs, strict=True)
        ]
        indices = [np.array(n, np.int32) for n in mesh.coordinates[k].values()]
        try:
            return plan.run_plan(compiled.local, [*parts, *indices])
        finally:
            RUNNING.member = None
            run.finish(k)

    with ThreadPoolExecutor(mesh.size) as pool:
        results = list(pool.map(member, range(mesh.size)))
    whole = []
    for number, type in enumerate(compiled.output_types):
        made = np.empty(type.shape, type.dtype)
        for k in range(mesh.size):
            made[type.sharding.index(type.shape, k)] = results[k][number]
        whole.append(made)
    return whole


@pytest.mark.parametrize("name", ["sum", "max", "gather", "scatter", "exchange"])
def test_a_gpu_plan_computes_collectives_and_their_derivatives(name):
    f = shard_map(BODIES[name], mesh=PAIR, in_specs=P("i"), out_specs=P("i"))
    for g in (f, af.grad(lambda x: (f(x) ** 2).sum())):
        want = af.jit(g, device="cpu")(X)
        np.testing.assert_allclose(emulated(g, X)[0], want, 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bits_of_blocks_do_not_depend_on_the_number_of_gpus(dtype):
    x = np.random.default_rng(1).standard_normal((4, 45)).astype(dtype)

    def f(x):
        y = nn.softmax(x - x.mean(axis=0), axis=1)
        return y, y.sum(axis=0), nn.logsumexp(x, axis=1)

    def run(devices):
        rows = NamedSharding(Mesh((devices,), ("i",), platform="cuda"), P("i"))
        return emulated(f, x, in_shardings=rows, deterministic=4)

    want = run(1)
    for have in (run(2), run(4)):
        assert [y.tobytes() for y in have] == [y.tobytes() for y in want]
    plain = af.jit(f, device="cpu")(x)
    for y, z in zip(want, plain, strict=True):
        np.testing.assert_allclose(y, z, atol=8 * np.finfo(dtype).eps)


def test_maxima_over_gpus_keep_nan():
    x = X.copy()
    x[0, 0] = np.nan
    f = shard_map(lambda x: lax.pmax(x, "i"), mesh=PAIR, in_specs=P("i"), out_specs=P())
    (y,) = emulated(f, x)
    np.testing.assert_array_equal(y, np.maximum(x[:2], x[2:]))
    steps = af.jit(f).lower(x).compiled_program.local.plan.steps
    # A gather, and a local maximum.
    assert [s.kernel.partition("_")[0] for s in steps] == ["collective", "columns"]


# What is enqueued.


class Nccl:
    """Writes down the calls of its functions."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.fixture
def engine(monkeypatch):
    made = Nccl()
    monkeypatch.setattr(nccl, "bindings", lambda: made)
    card = SimpleNamespace(fill=lambda *a: made.calls.append(("fill", *a)))
    monkeypatch.setattr(nccl, "gpu_of", lambda device: card)
    places = tuple(Device(k, platform="cuda") for k in range(2))
    monkeypatch.setattr(DEVICES, "gpu_devices", places)
    group = SimpleNamespace(devices=places, communicators={0: "first", 1: "second"})
    monkeypatch.setattr(nccl.GROUPS, "groups", {(0, 1): group})
    return made


def enqueued(engine, body, member=0):
    f = shard_map(body, mesh=PAIR, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    compiled = af.jit(f).lower(X).compiled_program
    steps = [k.provider for k in compiled.local.kernels if hasattr(k, "provider")]
    from arrayfn.lowering.libraries.collectives import COLLECTIVES

    (number,) = [int(s.partition("_")[2]) for s in steps if s.startswith("collective")]
    step = COLLECTIVES.find(number)
    nccl.NcclMember(PAIR, member, Lockstep()).enqueuing(step)(7, 1000, 2000)
    return engine.calls


def test_sums_are_nccls(engine):
    calls = enqueued(engine, lambda x: lax.psum(x, "i"), member=1)
    assert calls == [("all_reduce", 1000, 2000, 32, 7, 0, "second", 7)]


def test_complex_sums_are_of_their_parts(engine):
    calls = enqueued(engine, lambda x: lax.psum(x + 1j, "i").real)
    assert calls == [("all_reduce", 1000, 2000, 64, 7, 0, "first", 7)]


def test_what_is_moved_is_bytes(engine):
    calls = enqueued(engine, lambda x: lax.all_gather(x, "i")[0])
    assert calls == [("all_gather", 1000, 2000, 128, 1, "first", 7)]


def test_who_is_sent_nothing_has_zeros(engine):
    body = lambda x: lax.ppermute(x, "i", [(0, 1)])  # noqa: E731
    sends = [
        ("fill", 2000, 0, 128, 7),
        ("group_start",),
        ("send", 1000, 128, 1, 1, "first", 7),
        ("group_end",),
    ]
    assert enqueued(engine, body) == sends
    engine.calls.clear()
    receives = [
        ("group_start",),
        ("recv", 2000, 128, 1, 0, "second", 7),
        ("group_end",),
    ]
    assert enqueued(engine, body, member=1) == receives


def test_parts_are_exchanged_in_a_group(engine):
    calls = enqueued(engine, lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True))
    assert calls == [
        ("group_start",),
        ("send", 1000, 64, 1, 0, "first", 7),
        ("recv", 2000, 64, 1, 0, "first", 7),
        ("send", 1064, 64, 1, 1, "first", 7),
        ("recv", 2064, 64, 1, 1, "first", 7),
        ("group_end",),
    ]


# Calls.


def plans(monkeypatch, runs):
    """GpuPlans whose executables call ``runs``."""
    made = object.__new__(gpus.GpuPlans)
    made._generation = 0
    made._lockstep = Lockstep(len(runs) or 1)
    made._executables = [
        SimpleNamespace(call=run, mismatch=lambda x, n: f"no {n}") for run in runs
    ]
    made._indices = [[k] for k in range(len(runs))]
    aborted = []
    monkeypatch.setattr(gpus.GROUPS, "abort", lambda: aborted.append(1))
    return made, aborted


def test_members_that_enter_python_run_beside_each_other(monkeypatch):
    both = threading.Barrier(2, timeout=10)

    def meet(*inputs):
        both.wait()
        return inputs

    places = [Device(k, platform="cuda") for k in range(2)]
    runs = [gpus._submitted(place, meet) for place in places]
    made, aborted = plans(monkeypatch, runs)
    assert made([["a"], ["b"]]) == [("a", 0), ("b", 1)]
    assert not aborted


def test_an_error_of_one_gpu_ends_the_collectives_of_all(monkeypatch):
    never = threading.Event()

    def fail(*inputs):
        raise BackendError("out of luck")

    def wait(*inputs):
        never.wait(10)

    places = [Device(k, platform="cuda") for k in range(2)]
    calls = zip(places, (fail, wait), strict=True)
    made, aborted = plans(monkeypatch, [gpus._submitted(p, c) for p, c in calls])
    with pytest.raises(BackendError, match="out of luck"):
        made([[], []])
    assert aborted
    never.set()


def test_an_argument_that_does_not_fit_is_named(monkeypatch):
    made, _ = plans(monkeypatch, [lambda *x: 1, lambda *x: 1])
    with pytest.raises(ArgumentError, match="no 0"):
        made([["a"], ["b"]])


def test_calls_of_several_threads_reach_all_gpus_in_the_same_order(monkeypatch):
    orders = [[], []]
    made, _ = plans(monkeypatch, [lambda x, k: orders[k].append(x) for _ in "ab"])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: made([[n], [n]]), range(200)))
    assert sorted(orders[0]) == list(range(200))
    assert orders[0] == orders[1]


# Waiting for each other.


def member(number, lockstep, monkeypatch, waits):
    card = SimpleNamespace(synchronize=lambda: waits.append(number))
    monkeypatch.setattr(nccl, "device", lambda: card)
    return nccl.NcclMember(PAIR, number, lockstep)


def test_members_meet_when_their_gpus_are_idle(monkeypatch):
    lockstep, waits = Lockstep(2), []
    members = [member(k, lockstep, monkeypatch, waits) for k in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda m: m.meet(), members))
    assert len(waits) == 2


def test_a_member_does_not_wait_for_one_that_has_failed(monkeypatch):
    lockstep = Lockstep(2)
    first = member(0, lockstep, monkeypatch, [])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.meet)
        made, _ = plans(monkeypatch, [])
        made._lockstep = lockstep
        made.drop()
        with pytest.raises(CollectiveError, match="has not come"):
            waiting.result(10)


def test_communicators_end_once_plans_have_dropped_their_graphs(monkeypatch):
    """As NCCL's do: the end of a communicator waits for graphs that refer to it."""
    dropped, ended = threading.Event(), []

    def comm_abort(communicator):
        assert dropped.wait(10)
        ended.append(communicator)

    groups = nccl._Groups()
    monkeypatch.setattr(nccl, "GROUPS", groups)
    engine = SimpleNamespace(comm_abort=comm_abort)
    monkeypatch.setattr(nccl, "bindings", lambda: engine)
    groups.groups[(0, 1)] = SimpleNamespace(
        communicators={0: "first", 1: "second"}, check=lambda: None
    )
    plan, _ = plans(monkeypatch, [lambda: 1])
    monkeypatch.setattr(plan, "drop", dropped.set)
    groups.plans.add(plan)
    watch = nccl.Watch("f")
    watch()
    groups.abort()
    assert sorted(ended) == ["first", "second"]
    assert not groups.groups
    with pytest.raises(CollectiveError, match="f has ended with an error of another"):
        watch()


# Overlap.


class Steps:
    """A plan of steps that read and write buffers of ``nbytes``, by their numbers.

    Large steps are native, and numbered from 0; collectives are host calls.
    """

    has_collectives = True

    def __init__(self, *steps):
        """Each of ``steps`` is (kind, what it reads, what it writes)."""
        self.nodes, self.kinds, self.table = [], [], {}
        native = 0
        for kind, reads, writes in steps:
            accesses = StepAccesses(reads, writes, is_collective=kind == "sum")
            if kind == "sum":
                node = HostCall(print, (), True, accesses)
            else:
                node, native = NativeRun(native, 1), native + 1
            self.nodes.append(node)
            self.table[node] = kind, accesses

    def is_small(self, node):
        return self.table[node][0] != "large"

    def accesses(self, node, addresses):
        _, step = self.table[node]
        n = self.nbytes
        return (
            *((k * n, (k + 1) * n, False) for k in step.reads),
            *((k * n, (k + 1) * n, True) for k in step.writes),
        )


def launches(*steps, nbytes=1):
    """What is enqueued: native steps, or "sum"; "beside" if on the second stream."""
    made = []
    plan = Steps(*steps)
    plan.nbytes = nbytes
    for launch in plan_launches(plan, plan.nodes, []):
        if launch.is_group:
            name = " ".join("sum" for _ in launch.nodes)
        else:
            (node,) = launch.nodes
            name = range(node.first, node.first + node.count)
        where = ["beside"] if launch.concurrent else []
        after = [f"after {launch.waits_for}"] if launch.waits_for >= 0 else []
        made.append((name, *where, *after))
    return made


def test_a_collective_runs_beside_the_large_steps_before_its_first_use():
    have = launches(
        ("large", (0,), (1,)),
        ("sum", (1,), (2,)),
        ("large", (0,), (3,)),
        ("large", (3,), (4,)),
        ("small", (2,), (5,)),
        ("large", (4,), (6,)),
    )
    # The last two steps are one run.
    assert have == [
        (range(1),),
        ("sum", "beside"),
        (range(1, 3),),
        (range(3, 5), "after 0"),
    ]


def test_a_collective_that_nothing_hides_is_one_more_step():
    have = launches(
        ("large", (0,), (1,)),
        ("sum", (1,), (2,)),
        ("small", (0,), (3,)),
        ("large", (2,), (4,)),
    )
    assert have == [(range(1),), ("sum",), (range(1, 3),)]


def test_collectives_run_in_the_order_of_the_plan():
    have = launches(
        ("sum", (0,), (1,)),
        ("sum", (1,), (2,)),
        ("large", (0,), (3,)),
        ("sum", (3,), (4,)),
        ("large", (2,), (5,)),
        ("large", (4,), (6,)),
        ("large", (1,), (7,)),
    )
    assert have == [
        ("sum", "beside"),
        (range(1),),
        # The second sum reads what the first one writes; the third one may join it.
        ("sum sum", "beside"),
        (range(1, 4), "after 1"),
    ]


def test_collectives_that_follow_each_other_are_one_group_until_it_is_large():
    def sums():
        return [
            step
            for k in range(2)
            for step in (
                ("large", (0,), (2 * k + 1,)),
                ("sum", (2 * k + 1,), (2 * k + 2,)),
            )
        ] + [("large", (0,), (8,)), ("large", (2, 4), (9,))]

    assert launches(*sums()) == [
        (range(2),),
        ("sum sum", "beside"),
        (range(2, 3),),
        (range(3, 4), "after 0"),
    ]
    assert launches(*sums(), nbytes=1 << 23) == [
        (range(1),),
        ("sum", "beside"),
        (range(1, 2),),
        ("sum", "beside"),
        (range(2, 3),),
        (range(3, 4), "after 1"),
    ]


def test_groups_get_half_of_the_bytes_that_are_left():
    steps = [
        step
        for k in range(9)
        for step in (("large", (0,), (k + 1,)), ("sum", (k + 1,), (k + 11,)))
    ]
    steps += [("large", (0,), (21,)), ("large", tuple(range(11, 20)), (22,))]
    have = [launch for launch in launches(*steps, nbytes=1 << 23) if "beside" in launch]
    assert [launch[0].count("sum") for launch in have] == [3, 2, 2, 1, 1]


def test_a_collective_does_not_wait_for_a_later_one_that_it_could_hide_behind():
    have = launches(
        ("sum", (0,), (1,)),
        *[("large", (2,), (3,))] * 9,
        ("sum", (3,), (4,)),
        ("large", (2,), (5,)),
        ("large", (1, 4), (6,)),
    )
    assert have == [
        ("sum", "beside"),
        (range(9),),
        ("sum", "beside"),
        (range(9, 10),),
        (range(10, 11), "after 1"),
    ]


def test_memory_that_a_collective_reads_is_not_overwritten_before_its_end():
    have = launches(
        ("sum", (1,), (2,)),
        ("large", (0,), (3,)),
        ("large", (0,), (1,)),
        ("large", (2,), (4,)),
    )
    assert have == [("sum", "beside"), (range(1),), (range(1, 3), "after 0")]


def test_meshes_are_of_one_platform():
    gpu_device, cpu_device = Device(0, platform="cuda"), af.devices("cpu")[0]
    assert Mesh([gpu_device], ("i",)) == Mesh((1,), ("i",), platform="cuda")
    with pytest.raises(ArgumentError, match="one platform, not of cpu and cuda"):
        Mesh([gpu_device, cpu_device], ("i",))
    assert Mesh((1,), ("i",)) != Mesh((1,), ("i",), platform="cuda")


def test_a_mesh_of_missing_gpus_says_so(monkeypatch):
    monkeypatch.setattr(DEVICES, "gpu_devices", (Device(0, platform="cuda"),))
    with pytest.raises(BackendError, match="of GPUs 0 to 1, but "):
        af.device_put(X, NamedSharding(PAIR, P("i")))
    with pytest.raises(ArgumentError, match='platform must be "cpu" or "cuda"'):
        af.devices("tpu")
    assert [str(d) for d in af.devices("cuda")] == ["cuda:0"]


def test_maxima_in_a_loop_are_gathered_too():
    def largest(x):
        return lax.scan(lambda c, row: (lax.pmax(c + row, "i"), None), x[0], x)[0]

    f = shard_map(largest, mesh=PAIR, in_specs=P("i"), out_specs=P(), check_vma=False)
    (y,) = emulated(f, X)
    a = np.maximum(X[0] + X[0], X[2] + X[2])
    np.testing.assert_allclose(y, np.maximum(a + X[1], a + X[3]), rtol=1e-6)
