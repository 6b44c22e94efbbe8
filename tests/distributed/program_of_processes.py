"""What test_processes runs in several processes: collectives, then a fault."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial

import numpy as np

import arrayfn as af
from arrayfn import Mesh, NamedSharding, lax, shard_map
from arrayfn import PartitionSpec as P
from arrayfn.distributed import checkpoints

BODIES = {
    "sum": lambda x: x * lax.psum(x, "i").sum(),
    "large sum": lambda x: lax.psum(np.tile(x, (1, 2000)), "i")[:, :16] * x,
    "mean": lambda x: x * lax.pmean(x, "i"),
    "max": lambda x: x + lax.pmax(x, "i"),
    "min": lambda x: x * lax.pmin(x, "i"),
    "gather": lambda x: lax.all_gather(x, "i", axis=1, tiled=True)[:, 3:19],
    "scatter": lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True),
    "permute": lambda x: lax.ppermute(x, "i", [(0, 1)]),
    "exchange": lambda x: lax.all_to_all(x**2, "i", 1, 0, tiled=True),
}


def close(have, want):
    """Compare the parts that are in this process."""
    for shard in have.addressable_shards:
        np.testing.assert_allclose(shard.data, want[shard.index], rtol=1e-10)


def save_and_load(mesh, x, folder):
    """Each process its parts, and then other parts."""
    cut = af.device_put(x, NamedSharding(mesh, P("i")))
    af.distributed.save(folder, {"x": cut, "step": 3})
    like = {"x": NamedSharding(mesh, P(None, "i")), "step": None}
    found = af.distributed.load(folder, like)
    close(found["x"], x)
    assert found["step"] == 3
    rows = af.distributed.batches(x, 4, NamedSharding(mesh, P("i")), seed=None)
    close(next(rows), x[:4])


def compare(mesh, x):
    """Every collective, its derivatives and its vmap, with one device's."""
    rank, count = af.distributed.process_index(), mesh.size
    for name, body in BODIES.items():
        f = shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        close(af.jit(f)(x), af.jit(f, device="cpu")(x))
        slope = af.grad(lambda x, f=f: (f(x) ** 2).sum())
        close(af.jit(slope)(x), af.jit(slope, device="cpu")(x))
        forward = partial(af.jvp, f, (x,), (x**2,))
        close(af.jit(forward)()[1], af.jit(forward, device="cpu")()[1])
        several = np.stack([x, x - 1])
        close(af.jit(af.vmap(f))(several), af.jit(af.vmap(f), device="cpu")(several))
        if rank == 0:
            print(name)
    cut = af.device_put(x, NamedSharding(mesh, P("i")))
    whole = af.device_put(cut, NamedSharding(mesh, P()))
    np.testing.assert_array_equal(whole, x)
    square = Mesh((2, count // 2), ("i", "j"))
    total = shard_map(
        lambda x: lax.psum(lax.psum(x, "j"), "i"),
        mesh=square,
        in_specs=P("i", "j"),
        out_specs=P(),
    )
    np.testing.assert_allclose(
        total(x), x.reshape(2, 8 // 2, count // 2, -1).sum((0, 2)), rtol=1e-10
    )


def main(fault: str, folder: str) -> None:
    af.distributed.initialize()
    rank, count = af.distributed.process_index(), af.distributed.process_count()
    assert len(af.devices()) == count
    assert len(af.local_devices()) == 1
    mesh = Mesh((count,), ("i",))
    x = np.random.default_rng(0).standard_normal((8, 16))
    if fault == "none":
        compare(mesh, x)
        save_and_load(mesh, x, folder)
    sys.stdout.flush()
    f = shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    if rank == 1:
        if fault == "raise":
            raise ValueError("rank 1 is tired")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "kill in save":
            checkpoints._write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        if fault == "late":
            time.sleep(100)
        if fault == "differ":
            f = shard_map(
                lambda x: lax.pmax(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P()
            )
    if fault == "kill in save":
        cut = af.device_put(x + 1, NamedSharding(mesh, P("i")))
        af.distributed.save(folder, {"x": cut, "step": 4})
    f(x)
    if rank == 0:
        print("done")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
