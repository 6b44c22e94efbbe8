"""The thread pool: native routines that spread a kernel's work items over threads.

One launch publishes a *job* (a kernel entry, its arguments, a number of chunks) by a
ticket word: a count of launches in its high half, chunks not yet claimed in its low
half. A thread claims a chunk by decrementing the ticket; who holds a chunk keeps the
job's words valid, because the launching thread waits until every chunk is done. Threads
that are late find no chunk, and are never waited for. Idle workers spin for a short
while, as the next step of a plan mostly follows at once, then sleep on a condition
variable. To wake a thread takes microseconds, so the launching thread wakes two, and
each that wakes up wakes two more while chunks are left.
"""

from __future__ import annotations

from typing import Final

from arrayfn.backends.cpu.signals import look
from arrayfn.backends.native import (
    CFunction,
    address_of,
    atomic_add,
    atomic_exchange_if,
    atomic_load,
    atomic_store,
    call,
    load,
    native,
    pause,
    stack,
    store,
)

# Byte offsets into the pool. Words that threads fight for have their own cache lines.
OWNER: Final = 0  # 1 while a plan uses the pool
THREADS: Final = 8  # threads of a launch, the launching one included
STARTED: Final = 16  # workers that exist
STOP: Final = 24
SPINS: Final = 32  # turns an idle worker spins before it sleeps
# Addresses of C functions, or 0 where the system lacks them.
GET_CORE: Final = 40
GET_CORES: Final = 48
SET_CORES: Final = 56
MUTEX: Final = 128
CONDITION: Final = 256
SLEEPERS: Final = 384
TICKET: Final = 512
DONE: Final = 640
JOB_ENTRY: Final = 768
JOB_ARGUMENTS: Final = 776
JOB_ITEMS: Final = 784
JOB_CHUNK: Final = 792
JOB_CHUNKS: Final = 800
JOB_COUNT: Final = 808  # arguments
JOB_SLOTS: Final = 816  # address of the numbers of the arguments that point to scratch
JOB_SLOT_COUNT: Final = 824
JOB_COPIES: Final = 832  # where workers keep their own copies of the arguments
JOB_COPY_STRIDE: Final = 840
JOB_SCRATCH_STRIDE: Final = 848
JOB_CORE: Final = 856  # of the launching thread
IDENTITIES: Final = 1024  # word t holds t: what worker t is started with
MAX_THREADS: Final = 256
POOL_BYTES: Final = IDENTITIES + 16 * MAX_THREADS
HANDLES: Final = IDENTITIES + 8 * MAX_THREADS  # pthread_t of worker t

REMAINING: Final = 0xFFFFFFFF
LAUNCH: Final = 1 << 32
CHUNKS_PER_THREAD: Final = 8
LONG_CHUNK: Final = 512  # items: such chunks begin at whole cache lines
CHUNK_MULTIPLE: Final = 64
WOKEN: Final = 2  # workers that a thread wakes
YIELD_AFTER: Final = 4096
CORES_WORDS: Final = 16  # of the bits of the cores that a thread may use
LOW_HALF: Final = 0xFFFFFFFF

pthread_create = CFunction("pthread_create", 4, "i32")
pthread_join = CFunction("pthread_join", 2, "i32")
pthread_mutex_init = CFunction("pthread_mutex_init", 2, "i32")
pthread_mutex_lock = CFunction("pthread_mutex_lock", 1, "i32")
pthread_mutex_unlock = CFunction("pthread_mutex_unlock", 1, "i32")
pthread_cond_init = CFunction("pthread_cond_init", 2, "i32")
pthread_cond_wait = CFunction("pthread_cond_wait", 2, "i32")
pthread_cond_signal = CFunction("pthread_cond_signal", 1, "i32")
pthread_cond_broadcast = CFunction("pthread_cond_broadcast", 1, "i32")
sched_yield = CFunction("sched_yield", 0, "i32")


@native
def pool_reset(pool: int) -> int:
    """Make a pool without workers, keeping the number of threads.

    Also what a forked child does: its parent's workers do not exist there.
    """
    store(pool + OWNER, 0)
    store(pool + STARTED, 0)
    store(pool + STOP, 0)
    store(pool + SLEEPERS, 0)
    store(pool + TICKET, 0)
    store(pool + DONE, 0)
    pthread_mutex_init(pool + MUTEX, 0)
    pthread_cond_init(pool + CONDITION, 0)
    for worker in range(MAX_THREADS):
        store(pool + IDENTITIES + 8 * worker, worker)
    return 0


@native
def pool_stop(pool: int) -> int:
    """End the workers and wait for them."""
    atomic_store(pool + STOP, 1)
    pool_wake(pool)
    for worker in range(1, load(pool + STARTED) + 1):
        pthread_join(load(pool + HANDLES + 8 * worker), 0)
    store(pool + STARTED, 0)
    atomic_store(pool + STOP, 0)
    return 0


@native
def pool_wake(pool: int) -> int:
    """Wake all sleeping workers."""
    pthread_mutex_lock(pool + MUTEX)
    pthread_cond_broadcast(pool + CONDITION)
    pthread_mutex_unlock(pool + MUTEX)
    return 0


@native
def pool_wake_some(pool: int, wanted: int) -> int:
    """Wake workers for ``wanted`` chunks that nobody awake is there for: some of them.

    Those wake others. Where there are workers that do not take part, all are woken.
    """
    if wanted <= 0 or atomic_load(pool + SLEEPERS) == 0:
        return 0
    if load(pool + STARTED) >= load(pool + THREADS):
        return pool_wake(pool)
    if wanted > WOKEN:
        wanted = WOKEN
    pthread_mutex_lock(pool + MUTEX)
    for _ in range(wanted):
        pthread_cond_signal(pool + CONDITION)
    pthread_mutex_unlock(pool + MUTEX)
    return 0


@native
def pool_grow(pool: int, workers: int) -> int:
    """Start workers up to a number; those the system refuses are done without."""
    worker = load(pool + STARTED) + 1
    while worker <= workers:
        identity = pool + IDENTITIES + 8 * worker
        handle = pool + HANDLES + 8 * worker
        if pthread_create(handle, 0, address_of(pool_worker), identity) != 0:
            break
        store(pool + STARTED, worker)
        worker += 1
    return 0


@native
def pool_has_work(pool: int, worker: int) -> int:
    """Whether this worker may claim a chunk, or has to end."""
    if atomic_load(pool + STOP):
        return 1
    return (atomic_load(pool + TICKET) & REMAINING) != 0 and worker < load(
        pool + THREADS
    )


@native
def pool_worker(identity: int) -> int:
    """The life of a worker."""
    worker = load(identity)
    pool = identity - 8 * worker - IDENTITIES
    spins = 0
    while atomic_load(pool + STOP) == 0:
        if pool_has_work(pool, worker):
            pool_keep_apart(pool)
            pool_work(pool, worker)
            spins = 0
        elif spins < load(pool + SPINS):
            pause()
            spins += 1
        else:
            pthread_mutex_lock(pool + MUTEX)
            atomic_add(pool + SLEEPERS, 1)
            while pool_has_work(pool, worker) == 0:
                pthread_cond_wait(pool + CONDITION, pool + MUTEX)
            atomic_add(pool + SLEEPERS, -1)
            pthread_mutex_unlock(pool + MUTEX)
            # One chunk is for this worker.
            pool_wake_some(pool, (atomic_load(pool + TICKET) & REMAINING) - 1)
            spins = 0
    return 0


@native
def pool_core(pool: int) -> int:
    """The core that this thread runs on."""
    if load(pool + GET_CORE) == 0:
        return 0
    return call(load(pool + GET_CORE)) & LOW_HALF


@native
def pool_keep_apart(pool: int) -> int:
    """Leave the core of the launching thread, if this worker runs there too.

    A system may leave two busy threads on one core for seconds while another is idle:
    they look for work, and so seem to need no other.
    """
    core = pool_core(pool)
    if load(pool + GET_CORE) == 0 or core != load(pool + JOB_CORE):
        return 0
    cores = stack(CORES_WORDS)
    size = 8 * CORES_WORDS
    if call(load(pool + GET_CORES), 0, size, cores) & LOW_HALF:
        return 0
    count = 0
    for k in range(CORES_WORDS):
        bits = load(cores + 8 * k)
        while bits != 0:
            bits &= bits - 1
            count += 1
    if count < load(pool + THREADS) or core >= 64 * CORES_WORDS:
        return 0
    place = cores + 8 * (core // 64)
    usable = load(place)
    store(place, usable & ((1 << (core % 64)) ^ -1))
    call(load(pool + SET_CORES), 0, size, cores)
    store(place, usable)
    call(load(pool + SET_CORES), 0, size, cores)
    return 1


@native
def pool_claim(pool: int) -> int:
    """Claim a chunk: how many were left with it, or 0 if none was."""
    ticket = atomic_load(pool + TICKET)
    while ticket & REMAINING:
        seen = atomic_exchange_if(pool + TICKET, ticket, ticket - 1)
        if seen == ticket:
            return ticket & REMAINING
        ticket = seen
    return 0


@native
def pool_work(pool: int, worker: int) -> int:
    """Claim and run chunks until none is left."""
    remaining = pool_claim(pool)
    while remaining:
        pool_chunk(pool, worker, load(pool + JOB_CHUNKS) - remaining)
        atomic_add(pool + DONE, 1)
        remaining = pool_claim(pool)
    return 0


@native
def pool_chunk(pool: int, worker: int, chunk: int) -> int:
    """Run one chunk; with arguments of its own if some point to scratch memory."""
    begin = chunk * load(pool + JOB_CHUNK)
    end = begin + load(pool + JOB_CHUNK)
    if end > load(pool + JOB_ITEMS):
        end = load(pool + JOB_ITEMS)
    arguments = load(pool + JOB_ARGUMENTS)
    slot_count = load(pool + JOB_SLOT_COUNT)
    if slot_count > 0 and worker > 0:
        copy = load(pool + JOB_COPIES) + worker * load(pool + JOB_COPY_STRIDE)
        for i in range(load(pool + JOB_COUNT)):
            store(copy + 8 * i, load(arguments + 8 * i))
        slots = load(pool + JOB_SLOTS)
        shift = worker * load(pool + JOB_SCRATCH_STRIDE)
        for j in range(slot_count):
            slot = copy + 8 * load(slots + 8 * j)
            store(slot, load(slot) + shift)
        arguments = copy
    call(load(pool + JOB_ENTRY), arguments, begin, end)
    return 0


@native
def pool_launch(pool: int, entry: int, arguments: int, items: int, grain: int) -> int:
    """Run ``items`` of a kernel on the pool's threads. The other job words are set."""
    threads = load(pool + THREADS)
    if load(pool + STARTED) < threads - 1:
        pool_grow(pool, threads - 1)
    parts = (items + grain - 1) // grain
    if parts > threads * CHUNKS_PER_THREAD:
        parts = threads * CHUNKS_PER_THREAD
    chunk = (items + parts - 1) // parts
    if chunk > LONG_CHUNK:
        chunk = (chunk + CHUNK_MULTIPLE - 1) // CHUNK_MULTIPLE * CHUNK_MULTIPLE
    chunks = (items + chunk - 1) // chunk
    store(pool + JOB_ENTRY, entry)
    store(pool + JOB_ARGUMENTS, arguments)
    store(pool + JOB_ITEMS, items)
    store(pool + JOB_CHUNK, chunk)
    store(pool + JOB_CHUNKS, chunks)
    store(pool + JOB_CORE, pool_core(pool))
    atomic_store(pool + DONE, 0)
    atomic_add(pool + TICKET, LAUNCH + chunks)
    sleepers = atomic_add(pool + SLEEPERS, 0)
    pool_wake_some(pool, chunks - 1 - (load(pool + STARTED) - sleepers))
    pool_work(pool, 0)
    spins = 0
    while atomic_load(pool + DONE) < chunks:
        pause()
        spins += 1
        if spins > YIELD_AFTER:
            sched_yield()
            look()  # workers may be in loops that end if it says so
    return 0


@native
def pool_enter(pool: int) -> int:
    """Take the pool for one plan: 1, or 0 if another thread has it."""
    return atomic_exchange_if(pool + OWNER, 0, 1) == 0


@native
def pool_leave(pool: int) -> int:
    """Give the pool back."""
    atomic_store(pool + OWNER, 0)
    return 0


@native
def pool_resize(pool: int, threads: int) -> int:
    """Change the number of threads, between plans."""
    while pool_enter(pool) == 0:
        sched_yield()
    store(pool + THREADS, threads)
    pool_leave(pool)
    return 0
