"""The thread pool: native routines that spread a kernel's work items over threads.

One launch publishes a *job* (a kernel entry, its arguments, a number of chunks) by a
ticket: a count of launches in its high half, chunks not yet claimed in its low half. A
thread claims a chunk by decrementing the ticket; who holds a chunk keeps the job valid,
because the launching thread waits until every chunk is done. Threads that are late find
no chunk, and are never waited for. Idle workers spin for a short while, as the next
step of a plan mostly follows at once, then sleep on a condition variable. To wake a
thread takes microseconds, so the launching thread wakes two, and each that wakes up
wakes two more while chunks are left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

from arrayfn.backends.cpu.signals import check_signals
from arrayfn.backends.native import (
    CFunction,
    atomic_add,
    atomic_exchange_if,
    atomic_load,
    atomic_store,
    cast,
    local,
    native,
    pause,
    size_of,
)
from arrayfn.backends.native.structures import (
    Array,
    Inline,
    OwnLines,
    Struct,
    i32,
    u8,
)

MAX_THREADS: Final = 256  # size of the array of workers
REMAINING: Final = 0xFFFFFFFF  # the bits of a ticket that count unclaimed chunks
LAUNCH: Final = 1 << 32  # one launch, in a ticket
CHUNKS_PER_THREAD: Final = 8  # at most
GRAINS_PER_CHUNK: Final = 4  # at least, if there are more chunks than threads
LONG_CHUNK: Final = 512  # items: longer chunks are multiples of CHUNK_MULTIPLE,
CHUNK_MULTIPLE: Final = 64  # so that they begin at whole cache lines
WOKEN: Final = 2  # workers that a thread wakes
YIELD_AFTER: Final = 4096  # iterations of waiting for chunks, then the core is yielded
CORES_WORDS: Final = 16  # 64-bit words of a set of cores, with one bit for each core
LOCK_BYTES: Final = 128  # at least those of a pthread's mutex or condition variable

KernelEntry: TypeAlias = Callable[[Array[int], int, int], int]
"""What runs items of a step: arguments, the first item, the one after the last."""


class Job(Struct):
    """The current launch of the pool: a kernel, its arguments and chunks.

    A chunk is a range of work items that one thread runs in one call of the kernel.
    """

    entry: KernelEntry
    arguments: Array[int]
    items: int  # work items of the launch
    chunk: int  # work items of one chunk
    chunks: int  # number of chunks
    argument_count: int
    slots: Array[int]  # the numbers of the arguments that point to scratch memory
    slot_count: int
    copies: int  # address where workers keep their own copies of the arguments
    copy_bytes: int  # of one worker
    scratch_bytes: int  # of one thread
    core: int  # of the launching thread


class Worker(Struct):
    """A thread of the pool."""

    number: int  # from 1 on
    thread: int  # its pthread_t
    pool: Pool


class Pool(Struct):
    """The thread pool. Contended fields have cache lines of their own.

    ``ticket`` counts launches in its high half and unclaimed chunks in its low half.
    ``done`` counts the finished chunks of the launch, ``sleepers`` the workers that
    wait on ``condition``, which ``mutex`` guards.
    """

    owner: int  # 1 while a plan uses the pool
    threads: int  # threads of a launch, the launching one included
    started: int  # workers that exist
    stop: int  # 1 while the workers are to end
    spins: int  # iterations an idle worker spins before it sleeps
    # Functions of the C library; None where the system lacks them.
    get_core: Callable[[], i32] | None
    get_cores: Callable[[i32, int, Array[int]], i32] | None
    set_cores: Callable[[i32, int, Array[int]], i32] | None
    mutex: OwnLines[Annotated[Array[u8], LOCK_BYTES]]
    condition: OwnLines[Annotated[Array[u8], LOCK_BYTES]]
    sleepers: OwnLines[int]
    ticket: OwnLines[int]
    done: OwnLines[int]
    job: OwnLines[Inline[Job]]
    workers: Annotated[Array[Worker], MAX_THREADS]


Lock: TypeAlias = Array[u8]
pthread_create = CFunction[[Array[int], None, Callable[[Worker], int], Worker], i32](
    "pthread_create"
)
pthread_join = CFunction[[int, None], i32]("pthread_join")
pthread_mutex_init = CFunction[[Lock, None], i32]("pthread_mutex_init")
pthread_mutex_lock = CFunction[[Lock], i32]("pthread_mutex_lock")
pthread_mutex_unlock = CFunction[[Lock], i32]("pthread_mutex_unlock")
pthread_cond_init = CFunction[[Lock, None], i32]("pthread_cond_init")
pthread_cond_wait = CFunction[[Lock, Lock], i32]("pthread_cond_wait")
pthread_cond_signal = CFunction[[Lock], i32]("pthread_cond_signal")
pthread_cond_broadcast = CFunction[[Lock], i32]("pthread_cond_broadcast")
sched_yield = CFunction[[], i32]("sched_yield")


@native
def pool_reset(pool: Pool) -> None:
    """Set the pool to a state without workers; keep the number of threads.

    The runtime calls it for a new pool, and in a forked child, in which the workers of
    the parent process do not exist.
    """
    pool.owner = 0
    pool.started = 0
    pool.stop = 0
    pool.sleepers = 0
    pool.ticket = 0
    pool.done = 0
    pthread_mutex_init(pool.mutex, None)
    pthread_cond_init(pool.condition, None)


@native
def pool_stop(pool: Pool) -> None:
    """End the workers and wait for them."""
    atomic_store(pool.stop, 1)
    pool_wake(pool)
    for number in range(1, pool.started + 1):  # 0 is the launching thread
        pthread_join(pool.workers[number].thread, None)
    pool.started = 0
    atomic_store(pool.stop, 0)


@native
def pool_wake(pool: Pool) -> None:
    """Wake all sleeping workers."""
    pthread_mutex_lock(pool.mutex)
    pthread_cond_broadcast(pool.condition)
    pthread_mutex_unlock(pool.mutex)


@native
def pool_wake_some(pool: Pool, wanted: int) -> None:
    """Wake sleeping workers to run ``wanted`` chunks.

    At most ``WOKEN`` workers are woken; each wakes others while chunks are left. If
    more workers exist than a launch uses (the pool was made smaller), all are woken,
    since a signal might reach a worker that does not take part.
    """
    if wanted <= 0 or atomic_load(pool.sleepers) == 0:
        return
    if pool.started >= pool.threads:
        pool_wake(pool)
        return
    pthread_mutex_lock(pool.mutex)
    for _ in range(min(wanted, WOKEN)):
        pthread_cond_signal(pool.condition)
    pthread_mutex_unlock(pool.mutex)


@native
def pool_grow(pool: Pool, workers: int) -> None:
    """Start workers until there are ``workers``, or the system refuses one."""
    number = pool.started + 1
    thread = local(int, 1)
    while number <= workers:
        worker = pool.workers[number]
        worker.number = number
        worker.pool = pool
        if pthread_create(thread, None, pool_worker, worker) != 0:
            break
        worker.thread = thread[0]
        pool.started = number
        number += 1


@native
def pool_has_work(pool: Pool, worker: int) -> bool:
    """Return whether worker number ``worker`` has a chunk to claim, or must end.

    Workers with numbers from ``pool.threads`` on take no chunks.
    """
    if atomic_load(pool.stop):
        return True
    return (atomic_load(pool.ticket) & REMAINING) != 0 and worker < pool.threads


@native
def pool_worker(worker: Worker) -> int:
    """Wait for a launch, run chunks, repeat: the main function of a worker thread.

    An idle worker spins for ``pool.spins`` iterations and then sleeps.
    """
    pool = worker.pool
    spins = 0
    while atomic_load(pool.stop) == 0:
        if pool_has_work(pool, worker.number):
            pool_move_off_core(pool)
            pool_work(pool, worker.number)
            spins = 0
        elif spins < pool.spins:
            pause()
            spins += 1
        else:
            pthread_mutex_lock(pool.mutex)
            atomic_add(pool.sleepers, 1)
            while not pool_has_work(pool, worker.number):
                pthread_cond_wait(pool.condition, pool.mutex)
            atomic_add(pool.sleepers, -1)
            pthread_mutex_unlock(pool.mutex)
            # This worker takes one chunk itself; wake others for the remaining ones.
            pool_wake_some(pool, (atomic_load(pool.ticket) & REMAINING) - 1)
            spins = 0
    return 0


@native
def pool_core(pool: Pool) -> int:
    """Return the number of the core that this thread runs on; -1 if unknown."""
    if pool.get_core is None:
        return -1
    return pool.get_core()


@native
def pool_move_off_core(pool: Pool) -> None:
    """Move this worker to another core if it shares the launching thread's core.

    A system may leave two busy threads on one core for seconds while another is idle:
    waiting workers spin, and so seem to need no other core. The worker gives up the
    right to use this core, so that the system moves it at once, and then takes the
    right back. It stays if it may use fewer cores than the pool has threads.
    """
    core = pool_core(pool)
    if core < 0 or core != pool.job.core or core >= 64 * CORES_WORDS:
        return
    if pool.get_cores is None or pool.set_cores is None:
        return
    # A bit for each core that the calling thread (0 below) may use.
    cores = local(int, CORES_WORDS)
    size = CORES_WORDS * size_of(int)
    if pool.get_cores(0, size, cores):
        return
    count = 0
    for k in range(CORES_WORDS):
        bits = cores[k]
        while bits != 0:
            bits &= bits - 1  # clears the lowest bit that is 1
            count += 1
    if count < pool.threads:
        return
    usable = cores[core // 64]
    cores[core // 64] = usable & ~(1 << (core % 64))
    pool.set_cores(0, size, cores)
    cores[core // 64] = usable
    pool.set_cores(0, size, cores)


@native
def pool_claim(pool: Pool) -> int:
    """Claim a chunk; return how many were unclaimed before, or 0 if none was.

    Decrements the ticket by compare and swap, and tries again if another thread has
    changed the ticket.
    """
    ticket = atomic_load(pool.ticket)
    while ticket & REMAINING:
        seen = atomic_exchange_if(pool.ticket, ticket, ticket - 1)
        if seen == ticket:
            return ticket & REMAINING
        ticket = seen
    return 0


@native
def pool_work(pool: Pool, worker: int) -> None:
    """Claim and run chunks of the job until none is left.

    ``worker`` is the number of this thread, 0 for the launching one.
    """
    remaining = pool_claim(pool)
    while remaining:
        # ``remaining`` counts down, so chunks are run in ascending order.
        pool_chunk(pool.job, worker, pool.job.chunks - remaining)
        atomic_add(pool.done, 1)
        remaining = pool_claim(pool)


@native
def pool_chunk(job: Job, worker: int, chunk: int) -> None:
    """Run chunk number ``chunk`` of the job, as thread number ``worker``.

    If some arguments point to scratch memory, a worker makes its own copy of the
    arguments, in which they point to its own scratch memory.
    """
    begin = chunk * job.chunk
    end = min(begin + job.chunk, job.items)
    arguments = job.arguments
    if job.slot_count > 0 and worker > 0:
        copy = cast(Array[int], job.copies + worker * job.copy_bytes)
        for i in range(job.argument_count):
            copy[i] = arguments[i]
        for j in range(job.slot_count):
            copy[job.slots[j]] += worker * job.scratch_bytes
        arguments = copy
    job.entry(arguments, begin, end)


@native
def pool_launch(
    pool: Pool, entry: KernelEntry, arguments: Array[int], items: int, grain: int
) -> None:
    """Run ``items`` work items of a kernel on the pool, and wait until all are done.

    A grain is the fewest items that are worth a thread. Each thread gets a chunk of at
    least one grain. More chunks, up to ``CHUNKS_PER_THREAD`` for each thread, balance
    the load, but threads contend for them: such chunks have ``GRAINS_PER_CHUNK`` grains
    or more, and their number is a multiple of the threads'. If one item is a grain, it
    may be long, and chunks may be single items. The launching thread runs chunks too.
    The caller has reserved the pool and has set the fields of the job that concern
    scratch memory and copies of arguments.
    """
    threads = pool.threads
    if pool.started < threads - 1:
        pool_grow(pool, threads - 1)
    parts = (items + grain - 1) // grain
    if grain > 1 and parts > threads:
        parts = max(threads, parts // GRAINS_PER_CHUNK // threads * threads)
    parts = min(parts, threads * CHUNKS_PER_THREAD)
    chunk = (items + parts - 1) // parts
    if chunk > LONG_CHUNK:
        chunk = (chunk + CHUNK_MULTIPLE - 1) // CHUNK_MULTIPLE * CHUNK_MULTIPLE
    chunks = (items + chunk - 1) // chunk
    job = pool.job
    job.entry = entry
    job.arguments = arguments
    job.items = items
    job.chunk = chunk
    job.chunks = chunks
    job.core = pool_core(pool)
    atomic_store(pool.done, 0)
    # This publishes the job: from here on workers may claim chunks.
    atomic_add(pool.ticket, LAUNCH + chunks)
    # Adding 0 is a sequentially consistent load, after the ticket's change.
    awake = pool.started - atomic_add(pool.sleepers, 0)
    pool_wake_some(pool, chunks - 1 - awake)
    pool_work(pool, 0)  # this thread is number 0
    spins = 0
    while atomic_load(pool.done) < chunks:
        pause()
        spins += 1
        if spins > YIELD_AFTER:
            sched_yield()
            check_signals()  # kernels of workers end early if a handler raised


@native
def pool_enter(pool: Pool) -> bool:
    """Reserve the pool for one plan; returns False if another thread has it."""
    return atomic_exchange_if(pool.owner, 0, 1) == 0


@native
def pool_leave(pool: Pool) -> None:
    """Release the pool."""
    atomic_store(pool.owner, 0)


@native
def pool_resize(pool: Pool, threads: int) -> None:
    """Change the number of threads, once no plan uses the pool."""
    while not pool_enter(pool):
        sched_yield()
    pool.threads = threads
    pool_leave(pool)
