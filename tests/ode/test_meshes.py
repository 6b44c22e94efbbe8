"""Solutions inside ``shard_map``: devices that take different numbers of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayfn as af
from arrayfn import Mesh, ode
from arrayfn import PartitionSpec as P

MESH = Mesh((4,), ("d",))
X = np.array([0.1, 0.5, 1.0, 4.0])
TIMES = np.array([0.0, 1.0])


@pytest.fixture(autouse=True)
def unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that end by computed values can neither be proved nor tried."""
    monkeypatch.setenv("ARRAYFN_VERIFY", "0")


@pytest.mark.parametrize("adjoint", ["direct", "backsolve"])
@pytest.mark.parametrize("is_captured", [True, False])
def test_gradients_by_what_the_devices_have_in_common(
    adjoint: Any, is_captured: bool
) -> None:
    def member(x: Any, k: Any) -> Any:
        slope = (lambda t, y: -k * y**2) if is_captured else (lambda t, y, k: -k * y**2)
        args = () if is_captured else (k,)
        return ode.solve(slope, x, TIMES, *args, adjoint=adjoint).ys[-1]

    solved = af.shard_map(member, mesh=MESH, in_specs=(P("d"), P()), out_specs=P("d"))
    slope = af.grad(lambda k: solved(X, k).sum())(2.0)
    np.testing.assert_allclose(slope, -np.sum((X / (1 + 2 * X)) ** 2), rtol=1e-4)
