"""The GPT of ``examples/gpt.py`` beside JAX's: ``python -m benchmarks.gpu_gpt``.

Both engines start from the same parameters, text and keys, in one process. A row is of
a training step, whole: a batch of windows, the loss, its gradient, clipping and AdamW;
or of a token that is sampled with a cache of keys and values, in one ``scan``. Engines
take turns; a time is the median of rounds of steps, each of which begins with what the
one before has made. Losses of the last step are compared, and the tokens.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np

import arrayfn as af
from arrayfn import random
from arrayfn.backends.cuda.driver import device
from benchmarks import jax_gpt
from examples import gpt

ROUNDS: Final = 3
WARM: Final = 14
STEPS: Final = 800  # of the schedule
PROMPT: Final = "def __init__(self"
SMALL: Final = gpt.Config()
LARGE: Final = gpt.Config(12, 768, 12, 12, 1024, dtype="bfloat16")


@dataclass(frozen=True)
class Case:
    """A row: training with ``batch`` windows, or sampling of ``length`` tokens."""

    name: str
    config: gpt.Config
    batch: int = 0
    length: int = 0
    count: int = 10  # steps of a round

    @property
    def tokens(self) -> int:
        """Those of a step; those that are written."""
        return self.batch * self.config.context or self.length


def cases() -> tuple[Case, ...]:
    """Those of the table."""
    return (
        Case("step 2x128", SMALL, batch=8, count=50),
        Case("step 12x768", LARGE, batch=8, count=5),
        Case("sample 2x128", SMALL, length=400, count=1),
        Case("sample 12x768", LARGE, length=256, count=1),
    )


Run = Callable[[int], Any]
"""So many steps: what the last one has come to."""


def parameters(config: gpt.Config) -> Any:
    """Those that both engines begin with."""
    made: Any = gpt.init_params(random.key(0), config)
    return made


def training(case: Case, params: Any, text: Any) -> tuple[Run, Run]:
    """Steps of arrayfn and of JAX."""
    config, batch = case.config, case.batch
    rule = gpt.optimizer(STEPS)
    step = af.jit(
        partial(gpt.train_step, config=config, batch=batch, rule=rule), device="cuda"
    )
    state = af.device_put((params, rule.init(params)))
    on_card, key = af.device_put((text, random.key(5)))
    theirs = jax.jit(
        partial(
            jax_gpt.train_step,
            config=config,
            batch=batch,
            schedule=jax_gpt.schedule_of(STEPS),
        )
    )
    their_params = jax.tree.map(jnp.asarray, params)
    their_state = their_params, jax_gpt.moments_of(their_params)
    their_text, their_key = jnp.asarray(text), jax.random.key(5)

    def run(count: int) -> Any:
        nonlocal state
        value: Any = None
        for _ in range(count):
            *state, value = step(*state, key, on_card)
        return float(value)

    def run_theirs(count: int) -> Any:
        nonlocal their_state
        value: Any = None
        for _ in range(count):
            *their_state, value = theirs(*their_state, their_key, their_text)
        return float(value)

    return run, run_theirs


def sampling(case: Case, params: Any) -> tuple[Run, Run]:
    """Sampling by arrayfn and by JAX."""
    options = {"config": case.config, "length": case.length}
    mode = gpt.sampling_mode(case.config)
    draw = af.jit(partial(gpt.sample, **options), device="cuda", mode=mode)
    given = params, gpt.encode(PROMPT), random.key(1), np.float32(0.7)
    given = af.device_put(given)
    theirs = jax.jit(partial(jax_gpt.sample, **options))
    their_given = (
        jax.tree.map(jnp.asarray, params),
        jnp.asarray(gpt.encode(PROMPT)),
        jax.random.key(1),
        jnp.float32(0.7),
    )
    return (
        lambda count: [np.asarray(draw(*given)) for _ in range(count)][-1],
        lambda count: [np.asarray(theirs(*their_given)) for _ in range(count)][-1],
    )


def compared(have: Any, want: Any) -> str:
    """How near results are: of losses the difference, of tokens how many are equal."""
    if isinstance(have, float):
        return f"losses {have:.4f} {want:.4f}"
    same = int(np.argmin(np.append(have == want, False)))
    return f"first {same} of {len(want)} tokens are equal"


def runs_of(case: Case, text: Any) -> tuple[Run, Run]:
    """Both engines' steps of ``case``."""
    params = parameters(case.config)
    return training(case, params, text) if case.batch else sampling(case, params)


def measure(case: Case, text: Any) -> str:
    """One line of the table."""
    runs = runs_of(case, text)
    results = [run(1) for run in runs]
    told = compared(*results)
    for run in runs:
        run(WARM if case.batch else 2)  # until all that repeats is captured
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for taken, run in zip(times, runs, strict=True):
            start = time.perf_counter()
            run(case.count)
            taken.append((time.perf_counter() - start) / case.count)
    ours, theirs = (statistics.median(x) for x in times)
    each = 1 if case.batch else case.length
    return (
        f"{case.name:26} {ours / each * 1e6:10.1f} {theirs / each * 1e6:10.1f}"
        f" {theirs / ours:7.2f}x {case.tokens / ours:12,.0f}   {told}"
    )


def main(chosen: Sequence[str]) -> None:
    """Measure the cases whose names begin with one of ``chosen``, or all."""
    print("command: python -m benchmarks.gpu_gpt", *chosen)
    print(f"card: {device().name}; JAX {jax.__version__}")
    print(
        f"{'us of a step, or a token':26} {'arrayfn':>10} {'JAX':>10} {'faster':>8}"
        f" {'tokens/s':>12}",
        flush=True,
    )
    text = gpt.encode(gpt.read_text())
    for case in cases():
        if not chosen or any(case.name.startswith(name) for name in chosen):
            print(measure(case, text), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
