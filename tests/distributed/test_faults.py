"""A device that raises, takes another branch or is late ends the others, with names."""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import pytest

import arrayfn as af
from arrayfn import Mesh, lax, shard_map
from arrayfn import PartitionSpec as P
from arrayfn.errors import BackendError, CollectiveError

MESH = Mesh((2, 2), ("i", "j"))
X = np.arange(4.0)


def over(body):
    return shard_map(
        body, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=False
    )


def called(function, x):
    return af.pure_callback(function, af.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_an_exception_on_one_device_ends_the_call():
    def fail(x):
        if x[0] > 1:
            raise ValueError("too large")
        return x

    f = over(lambda x: lax.psum(called(fail, x), "i"))
    for _ in range(2):
        with pytest.raises(ValueError, match="too large") as caught:
            f(X)
        notes = " ".join(caught.value.__notes__)
        assert "in the Python function fail" in notes
        assert re.search(r"cpu:[23] \(i: 1, j: [01]\) raised this", notes)
    # The devices work on.
    np.testing.assert_array_equal(f(X / 10), [0.2, 0.4, 0.2, 0.4])


def test_branches_with_different_collectives():
    def body(x):
        first = lax.axis_index("i") == 0
        return lax.cond(first, lambda x: lax.psum(x, "i"), lambda x: x * 2, x)

    with pytest.raises(CollectiveError) as caught:
        over(body)(X)
    message = str(caught.value)
    assert re.search(r"cpu:\d \(i: 0, j: \d\) was at all_reduce over 'i'", message)
    assert "at test_faults.py:" in message
    assert "has ended without all_reduce" in message

    def mixed(x):
        first = lax.axis_index("i") == 0
        return lax.cond(
            first, lambda x: lax.psum(x, "i"), lambda x: lax.pmax(x, "i"), x
        )

    with pytest.raises(CollectiveError, match="must come to the same collectives"):
        over(mixed)(X)


def test_a_device_that_is_late(monkeypatch):
    monkeypatch.setenv("ARRAYFN_COLLECTIVE_TIMEOUT", "0.2")
    go_on = threading.Event()

    def wait(x):
        if x[0] > 1:
            go_on.wait(20)
        return x

    f = over(lambda x: lax.psum(called(wait, x), "i"))
    threading.Timer(0.6, go_on.set).start()
    start = time.monotonic()
    with pytest.raises(
        CollectiveError, match=r"did not come to all_reduce.* within 0.2"
    ):
        f(X)
    assert time.monotonic() - start < 15


def test_limits_are_seconds(monkeypatch):
    monkeypatch.setenv("ARRAYFN_COLLECTIVE_TIMEOUT", "soon")
    with pytest.raises(TypeError, match="it is a number of seconds"):
        over(lambda x: lax.psum(x, "i"))(X)


def test_a_device_calls_no_function_of_the_mesh():
    inner = over(lambda x: lax.psum(x, "i"))
    f = over(lambda x: called(lambda v: np.asarray(inner(np.tile(v, 2)))[:2], x))
    with pytest.raises(BackendError, match="its devices are busy"):
        f(X)


def test_calls_of_several_threads_do_not_wait_for_each_other():
    f = af.jit(over(lambda x: lax.psum(lax.psum(x, "i"), "j")))
    want = np.asarray(f(X))
    results = []

    def work():
        results.extend(np.asarray(f(X)) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 30
    for result in results:
        np.testing.assert_array_equal(result, want)
