"""Plans on a GPU that measure the time of each step, by events on the stream.

The steps are launched one by one, without the CUDA graph that otherwise launches them,
and an event is recorded before the first and after each. The time of a step is that
between two events. So a step that is shorter than its launch takes (some 5 us) shows
the time of the launch, and steps that a graph runs beside each other run one by one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from typing_extensions import override

from arrayfn.backends.cuda.driver import device, on
from arrayfn.backends.cuda.encoded_plan import EncodedPlan
from arrayfn.backends.cuda.executable import Call, Executable
from arrayfn.backends.cuda.graphs.dispatch import Dispatch
from arrayfn.backends.cuda.graphs.walk import Walk
from arrayfn.backends.cuda.plan_nodes import (
    BranchNode,
    HostCall,
    LoopNode,
    NativeRun,
    Node,
    inner_nodes,
    one_by_one,
)
from arrayfn.backends.cuda.timing import elapsed
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.plan import KernelCall, Step, blocks_of, numbered

_MOST_EVENTS: Final = 1 << 12
"""Most events that are recorded before ``Events`` reads them, waiting for the GPU."""


class TimedExecutable:
    """Runs a plan and times its steps; calling the object waits for the results.

    ``call`` and ``mismatch`` are those of ``Executable``; ``call`` does not wait.
    """

    def __init__(
        self,
        compiled: CompiledProgram,
        backend: str = "cuda",
        through: Callable[[Call], Call] = lambda call: call,
    ) -> None:
        """Load the plan; ``backend`` is the name in reports of times.

        ``through`` is as in ``Executable``.
        """
        self.backend = backend
        self._gpu = device()
        self._events = Events()
        dispatch = partial(TimedDispatch, self._events)
        self._executable = Executable(compiled, dispatch, through)
        self.call = self._executable.call
        self.mismatch = self._executable.mismatch

    def __call__(self, inputs: tuple[Any, ...], /) -> Sequence[Any]:
        """Run the plan on ``inputs`` and read the times of its steps."""
        results = self._executable(inputs)
        self.wait()
        return results

    def wait(self) -> None:
        """Wait for all enqueued steps, and add up their times."""
        with on(self._gpu):
            self._events.read()  # which waits for the last event

    def times_of_steps(self) -> Mapping[int, tuple[int, float]]:
        """Return (number of runs, total seconds) of each step, by its number."""
        return self._events.times


class TimedDispatch(Dispatch):
    """Launches a plan step by step, with an event after each step."""

    def __init__(
        self,
        events: Events,
        compiled: CompiledProgram,
        inputs: Sequence[int],
        outputs: Sequence[int],
        addresses: Any,
    ) -> None:
        """Prepare to launch the plan directly, without graphs.

        ``addresses`` is the ctypes array of all buffers' addresses. ``inputs`` and
        ``outputs`` are not used.
        """
        self.is_single = False  # so there is no native call entry
        self._encoded = EncodedPlan(compiled, len(compiled.plan.buffers))
        self._events = events
        numbers = step_numbers(self._encoded.nodes, compiled.plan.steps)
        self._walk = TimedWalk(self._encoded, addresses, events, numbers)

    @override
    def enqueue(self, addresses: bytes) -> None:
        """Enqueue the plan's steps, with events around each."""
        self._events.begin()
        self._walk.run(self._encoded.nodes, device().stream)


def step_numbers(nodes: Sequence[Node], steps: Sequence[Step]) -> dict[object, int]:
    """Return the number of the plan's step that each node launches.

    Keys are those of ``_key``. Loops and branches have no entry, but the nodes inside
    them have.
    """
    known = {id(step): number for number, step in numbered(steps)}
    numbers: dict[object, int] = {}

    def pair(nodes: Sequence[Node], steps: Sequence[Step]) -> None:
        """Add the numbers of ``steps`` by ``nodes``, which were made from them."""
        # Kernel calls without items have no node.
        launched = [s for s in steps if not isinstance(s, KernelCall) or s.items]
        for node, step in zip(one_by_one(nodes), launched, strict=True):
            if isinstance(node, (LoopNode, BranchNode)):
                assert not isinstance(step, KernelCall)
                for inner, block in zip(
                    inner_nodes(node), blocks_of(step), strict=True
                ):
                    pair(inner, block)
            else:
                numbers[_key(node)] = known[id(step)]

    pair(nodes, steps)
    return numbers


def _key(node: NativeRun | HostCall) -> object:
    """Return the key of a node of one step: its native step's number, or its id."""
    return node.first if isinstance(node, NativeRun) else id(node)


class TimedWalk(Walk):
    """Enqueues nodes one by one, and records an event after each launch."""

    def __init__(
        self,
        encoded: EncodedPlan,
        addresses: Any,
        events: Events,
        numbers: Mapping[object, int],
    ) -> None:
        """Prepare to record ``events``.

        ``numbers`` is what ``step_numbers`` returns: the step's number of each node.
        """
        super().__init__(encoded, addresses)
        self.events = events
        self.numbers = numbers  # of the plan's steps, by the keys of their nodes

    @override
    def run(self, nodes: Sequence[Node], stream: int) -> None:
        """Enqueue ``nodes`` on ``stream``, each followed by an event."""
        for node in one_by_one(nodes):
            super().run((node,), stream)
            if isinstance(node, (NativeRun, HostCall)):
                self.events.record(self.numbers[_key(node)])


class Events:
    """Records events on the GPU's stream, and adds up the seconds of each step.

    ``times`` has (number of runs, total seconds) by step number. Step -1 stands for the
    event before a first step.
    """

    def __init__(self) -> None:
        self.times: dict[int, tuple[int, float]] = {}
        self._recorded: list[tuple[int, ctypes.c_void_p]] = []  # (step, event)
        self._free: list[ctypes.c_void_p] = []  # events to record again

    def begin(self) -> None:
        """Read earlier events, and record an event before a plan's first step."""
        device().make_current()
        self.read()
        self.record(-1)

    def record(self, step: int) -> None:
        """Record the event after ``step``; read all events if there are many."""
        gpu = device()
        event = self._free.pop() if self._free else gpu.new_event(with_time=True)
        gpu.record(event, gpu.stream)
        self._recorded.append((step, event))
        if len(self._recorded) > _MOST_EVENTS:
            self.read()
            self.record(-1)  # of no step: the next step's time is measured from here

    def read(self) -> None:
        """Wait for the recorded events, and add up the seconds between them by step.

        The time from an event to the next belongs to the latter's step. Afterwards no
        event is recorded, and the events are free for reuse.
        """
        if not self._recorded:
            return
        gpu = device()
        gpu.check(gpu.waiting.cuEventSynchronize(self._recorded[-1][1]))
        for (_, before), (step, event) in zip(
            self._recorded, self._recorded[1:], strict=False
        ):
            runs, seconds = self.times.get(step, (0, 0.0))
            self.times[step] = runs + 1, seconds + elapsed(before, event)
        self._free += [event for _, event in self._recorded]
        self._recorded = []
