"""Programs of a mesh: one plan, which each device runs on its parts.

``lower_for_mesh`` partitions a Program and lowers the Program of one device, for the
mesh's platform. The executable runs the plan once for each device of this process. On a
CPU that is a thread each, or the calling thread where each process is one device; GPUs
have their plans enqueued (``gpus``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import KW_ONLY, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from arrayfn.backends.cpu.executable import bind
from arrayfn.backends.members import RUNNING, Member
from arrayfn.backends.registry import BACKENDS
from arrayfn.distributed.arrays import ShardedArray, put_sharded
from arrayfn.distributed.devices import DEVICES, Device, devices_of, run_on
from arrayfn.distributed.nccl import reduces
from arrayfn.distributed.processes import process_member, stop_others
from arrayfn.distributed.threads import Run, ThreadMember
from arrayfn.errors import BackendError, CollectiveError, user_location
from arrayfn.ir import ArrayType, Mesh, NamedSharding, Program
from arrayfn.lowering.clocks import times_of_steps, with_clocks
from arrayfn.lowering.compiled import CompiledProgram, completed
from arrayfn.lowering.options import Options
from arrayfn.passes.buckets import with_buckets
from arrayfn.passes.late_uses import with_late_uses
from arrayfn.passes.member_sums import with_member_sums
from arrayfn.passes.meshes import cut_on_the_host, mesh_of
from arrayfn.passes.partition import partition
from arrayfn.passes.partition_blocks import partition_in_blocks
from arrayfn.passes.partition_values import Partitioned
from arrayfn.records import frozen

if TYPE_CHECKING:
    from arrayfn.distributed.gpus import GpuPlans

Array = np.ndarray[Any, Any]


@frozen
class MeshProgram(CompiledProgram):
    """A Program compiled for the devices of a mesh.

    ``partitioned`` is the Program of one device and ``local`` is that Program, lowered.
    ``sharded`` has the captured arrays that lie over the mesh; the plan takes them
    after the arguments.
    """

    _: KW_ONLY
    local: CompiledProgram
    partitioned: Partitioned
    sharded: tuple[ShardedArray, ...]


def lower_for_mesh(program: Program, options: Options) -> MeshProgram:
    """Partition ``program`` over its mesh, and lower it for one device.

    Raises BackendError if it has no mesh.
    """
    # Constants that are sharded arrays become the last inputs.
    program, sharded = _constants_as_inputs(program)
    mesh = mesh_of(program)
    if mesh is None:
        raise BackendError(
            f"{program.name} has no array over a mesh and no shard_map: there is "
            "no mesh to run it on",
            user_location(),
        )
    program = cut_on_the_host(program, mesh)
    if options.parts:  # deterministic=N: N blocks of each mesh axis
        partitioned = partition_in_blocks(program, mesh, options.parts)
    else:
        partitioned = partition(program, mesh)
    local = lowered_for(mesh, partitioned.program, options)
    return MeshProgram(
        local.name,
        "mesh",
        local.text,
        program.input_types[: len(program.inputs) - len(sharded)],
        _output_types(program, partitioned),
        local.kernels,
        local.plan,
        local.constants,
        local.once,
        local=local,
        partitioned=partitioned,
        sharded=sharded,
    )


def lowered_for(mesh: Mesh, program: Program, options: Options) -> CompiledProgram:
    """Rewrite collectives in the Program of one device of ``mesh``, and lower it."""
    if mesh.platform == "cuda":  # where other steps run beside sums
        program = with_late_uses(program)
    program = with_buckets(program)  # joins small sums
    if mesh.platform == "cuda":
        # Reductions that NCCL lacks become a gather and a local reduction.
        program = with_member_sums(program, mesh.shape, reduces)
    return BACKENDS[mesh.platform].lower(program, frozenset(), options)


def _constants_as_inputs(
    program: Program,
) -> tuple[Program, tuple[ShardedArray, ...]]:
    """Turn captured arrays over a mesh into inputs; returns the Program and them.

    They become its last inputs.
    """
    pairs = list(program.constant_pairs())
    over = [(v, x) for v, x in pairs if isinstance(x, ShardedArray)]
    if not over:
        return program, ()
    rest = [(v, x) for v, x in pairs if not isinstance(x, ShardedArray)]
    changed = replace(
        program,
        inputs=(*program.inputs, *(v for v, _ in over)),
        constants=tuple(v for v, _ in rest),
        constant_values=tuple(x for _, x in rest),
    )
    return changed, tuple(x for _, x in over)


def _output_types(program: Program, partitioned: Partitioned) -> tuple[ArrayType, ...]:
    """The types of the results, with the shardings that the partition gives them."""
    pairs = zip(program.output_types, partitioned.out_specs, strict=True)
    return tuple(
        ArrayType(t.shape, t.dtype, sharding=NamedSharding(partitioned.mesh, spec))
        for t, spec in pairs
    )


class ClockedMesh:
    """An executable over a mesh that measures each step on the devices here.

    CPU devices read the clock after each step, GPUs record events. CPU devices share
    one roof, so the backend "mesh" has no roof of its own.
    """

    def __init__(self, compiled: MeshProgram) -> None:
        """Load ``compiled`` with clocks or events on each device of this process."""
        self._run = MeshExecutable(compiled, timed=True)
        # For each CPU device, the arrays in which its plan counts and times steps.
        self._states = [] if self._run.on_gpus else self._run.bind_clocked()
        self.backend = "cuda" if self._run.on_gpus else "mesh"
        # For each device: (runs, total seconds) of each step so far, by its number.
        self._step_times: list[Mapping[int, tuple[int, float]]] = []

    def __call__(self, inputs: tuple[Any, ...], /) -> Sequence[Any]:
        """Run the plan on all devices."""
        results = [x.block_until_ready() for x in self._run(inputs)]
        if self._run.gpus is not None:
            self._step_times = self._run.gpus.times_of_steps()
        else:
            self._step_times = [times_of_steps(state) for state in self._states]
        return results

    def times_of_steps(self) -> Mapping[int, tuple[int, float]]:
        """Map each step's number to (how often it ran so far, its total seconds).

        The seconds are the mean of the devices' totals. Devices that take different
        branches run a step different numbers of times; the largest number is returned.
        """
        steps = sorted({step for times in self._step_times for step in times})
        of_devices = {s: [t.get(s, (0, 0.0)) for t in self._step_times] for s in steps}
        return {
            step: (
                max(runs for runs, _ in pairs),
                sum(total for _, total in pairs) / len(pairs),
            )
            for step, pairs in of_devices.items()
        }


class MeshExecutable:
    """A plan loaded on each device of this process.

    If ``timed``, GPUs record the times of its steps.

    Attributes:
        in_shardings: how each input is distributed.
        local: the members of the mesh whose devices this process has.
        local_devices: the device of each of these members.
        gpus: the plan on this process's GPUs, once it is loaded.
        runs: the plan on the CPU device of each member in ``local``.
    """

    def __init__(self, compiled: MeshProgram, *, timed: bool = False) -> None:
        """Load the plan on CPU devices; on GPUs it is loaded at the first call."""
        self.timed = timed
        self.mesh = compiled.partitioned.mesh
        self.in_shardings = [
            NamedSharding(self.mesh, spec) for spec in compiled.partitioned.in_specs
        ]
        devices = devices_of(self.mesh)
        self.compiled = compiled
        # The members of the mesh that are in this process.
        self.local = [
            k for k, d in enumerate(devices) if d.process_index == DEVICES.process
        ]
        self.local_devices = {member: devices[member] for member in self.local}
        self.on_gpus = self.mesh.platform == "cuda"
        self.gpus: GpuPlans | None = None
        self._input_types: list[ArrayType | None] = []
        """Those of sharded arrays in a call; None for other arguments."""
        self.runs: dict[int, Callable[..., Any]] = {}
        if not self.on_gpus:
            load = BACKENDS["cpu"].load
            # Compute the constants that need computing once, before all calls.
            self.compiled = completed(compiled, lambda once: load(once)(()))
            self.runs = {
                k: self._bind(device) for k, device in self.local_devices.items()
            }

    def bind_clocked(self) -> list[Any]:
        """Reload the plan with a clock after each step; returns the arrays of times.

        There is one for each CPU device.
        """
        states: list[Any] = []
        local = replace(self.compiled.local, constants=self.compiled.constants)
        for member, device in self.local_devices.items():
            timed, state = with_clocks(replace(local, once=None))
            arguments = timed.plan, timed.kernels, timed.constants
            self.runs[member] = bind(*arguments, device.runtime)
            states.append(state)
        return states

    def _bind(self, device: Device) -> Callable[..., Any]:
        """Load the plan on the threads of ``device``; returns a callable."""
        compiled = self.compiled
        runtime = device.runtime
        return bind(compiled.plan, compiled.kernels, compiled.constants, runtime)

    def call(self, *inputs: Any) -> tuple[ShardedArray, ...] | int:
        """Run on ``inputs`` if they are sharded like those of an earlier call.

        If not, it runs nothing and returns 1 + the number of one that differs.
        """
        wanted = self._input_types
        if len(inputs) != len(wanted):
            return 1 + min(len(inputs), len(wanted))
        for number, (x, type) in enumerate(zip(inputs, wanted, strict=True)):
            if not isinstance(x, ShardedArray) or x.type != type:
                return 1 + number
        return tuple(self(inputs))

    def call_single(self, *inputs: Any) -> ShardedArray | int:
        """Run like ``call``, for a plan with one result, which is returned alone."""
        results = self.call(*inputs)
        return results if isinstance(results, int) else results[0]

    def __call__(self, inputs: tuple[Any, ...]) -> list[ShardedArray]:
        """Run on ``inputs``. Those that are NumPy arrays are distributed first.

        All calls have arguments of the same types and shardings.
        """
        if not self._input_types:
            types = [x.type if isinstance(x, ShardedArray) else None for x in inputs]
            self._input_types = types
        if RUNNING.member is not None:
            raise BackendError(
                "a device of a mesh, in a callback, calls a function that runs on a "
                "mesh: its devices are busy. Call it outside",
                user_location(),
            )
        # arguments[i][k] is the part of argument i that member k has.
        arguments = [
            self._parts(x, sharding)
            for x, sharding in zip(
                (*inputs, *self.compiled.sharded), self.in_shardings, strict=True
            )
        ]
        if self.on_gpus:
            results = self._run_on_gpus([[x[k] for x in arguments] for k in self.local])
        else:
            # The plans also take the member's index along each mesh axis.
            results = self._run(
                [
                    (k, [x[k] for x in arguments] + _indices(self.mesh, k))
                    for k in self.local
                ]
            )
        outputs: list[ShardedArray] = []
        for number, type in enumerate(self.compiled.output_types):
            parts = {
                member: result[number]
                for member, result in zip(self.local, results, strict=True)
            }
            for part in () if self.on_gpus else parts.values():
                part.flags.writeable = False
            outputs.append(ShardedArray(type, parts))
        return outputs

    def _parts(self, x: Any, sharding: NamedSharding) -> Any:
        """The parts of the argument ``x`` under ``sharding``, by member."""
        if isinstance(x, ShardedArray):
            return x.parts
        if not isinstance(x, np.ndarray):  # a number
            return dict.fromkeys(self.local, x)
        if sharding.spec.axes():  # mesh axes cut the array
            return put_sharded(x, sharding).parts
        return dict.fromkeys(self.local, np.ascontiguousarray(x).reshape(x.shape))

    def _run_on_gpus(self, arguments: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Run on the GPUs; returns each member's results.

        The plans are loaded again after a failure.
        """
        if self.gpus is None or self.gpus.is_dropped:
            self.gpus = self._load_on_gpus()
        return self.gpus(arguments)

    def _load_on_gpus(self) -> GpuPlans:
        """Load the plan on each GPU of this process."""
        from arrayfn.distributed.gpus import GpuPlans

        plans = self.compiled.local, self.mesh, self.local_devices
        return GpuPlans(*plans, timed=self.timed)

    def _run(self, arguments: Sequence[tuple[int, list[Any]]]) -> list[Any]:
        """Run on CPU devices, each in its thread; returns each member's results.

        ``arguments`` are pairs of a member and its arguments. If one member fails, the
        others are stopped and its error is raised.
        """
        if len(self.local) == 1 and self.mesh.size > 1:
            # Other processes run the other members. They meet through MPI.
            ((member, own_arguments),) = arguments
            try:
                return [
                    self._run_as(
                        process_member(self.mesh, member), member, own_arguments
                    )
                ]
            except CollectiveError:
                raise
            except BaseException as error:
                name = f"rank {DEVICES.process}"
                stop_others(f"{name} raised {type(error).__name__}: {error}")
                raise
        devices = devices_of(self.mesh)
        names = [_name(device, self.mesh, k) for k, device in enumerate(devices)]
        run = Run(self.mesh, names)

        def work(argument: tuple[int, list[Any]]) -> Any:
            """Run one member's plan in the thread of its device."""
            member, own_arguments = argument
            try:
                return self._run_as(ThreadMember(run, member), member, own_arguments)
            except CollectiveError:
                raise
            except BaseException as error:
                name = run.names[member]
                run.stop(f"{name} raised {type(error).__name__}: {error}", error)
                raise
            finally:
                run.finish(member)

        futures = run_on([devices[k] for k in self.local], work, arguments)
        try:
            wait(futures)
        except BaseException:
            run.stop("the call was interrupted")
            raise
        if run.error is not None:
            run.error.add_note(f"{run.stopped.split(' raised ')[0]} raised this")
            raise run.error
        return [future.result() for future in futures]

    def _run_as(self, member: Member, number: int, arguments: list[Any]) -> Any:
        """Run the plan of member ``number`` on ``arguments``, in this thread.

        ``member`` runs its collectives.
        """
        RUNNING.member = member
        try:
            return self.runs[number](arguments)
        finally:
            RUNNING.member = None


def _indices(mesh: Mesh, member: int) -> list[Array]:
    """Return the index of ``member`` along each axis of ``mesh``, as int32 scalars."""
    return [np.array(k, np.int32) for k in mesh.coordinates[member].values()]


def _name(device: Device, mesh: Mesh, member: int) -> str:
    """Return the device and its place in the mesh, such as "cpu:1 (x: 0, y: 1)"."""
    coordinates = ", ".join(
        f"{name}: {k}" for name, k in mesh.coordinates[member].items()
    )
    return f"{device} ({coordinates})"
