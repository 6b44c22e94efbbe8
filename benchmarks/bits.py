"""When results have the same bits; ``python -m benchmarks.bits``.

Each case is computed in one process, and again under other conditions, some of them in
processes of their own. The table, for ``docs/numerics.md``, counts the cases whose
results have the same bits as the first one's, and names the others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import Mesh, NamedSharding, lax, nn
from arrayfn import PartitionSpec as P

Array = np.ndarray[Any, Any]
DEVICES: Final = 8


@dataclass(frozen=True)
class Case:
    """A function of arrays. ``rows``: each row of the first gives one of the result."""

    function: Callable[..., Any]
    arguments: tuple[Array, ...]
    rows: bool = True


def _draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _layernorm(x: Any) -> Any:
    centred = x - anp.mean(x, axis=-1, keepdims=True)
    return centred / anp.sqrt(anp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


def _loss(w: Any, x: Any) -> Any:
    return anp.mean(anp.tanh(anp.tanh(x @ w) @ w.T) ** 2)


def _recurrent(x: Any) -> Any:
    steps = anp.moveaxis(x, 1, 0)
    return lax.scan(lambda h, u: (anp.tanh(0.9 * h + u), None), steps[0], steps)[0]


X: Final = _draw(512, 301)
W: Final = _draw(301, 64, seed=1)
CASES: Final[Mapping[str, Case]] = {
    "arithmetic": Case(lambda x: (x * 2.5 + 1) / (x * x + 3) - anp.sqrt(abs(x)), (X,)),
    "comparisons": Case(lambda x: anp.where(x > 0.5, anp.floor(x), -x), (X,)),
    "exp and tanh": Case(lambda x: anp.tanh(anp.exp(-x * x) + x), (X,)),
    "sin and erf": Case(lambda x: anp.sin(x) + lax.erf(x), (X,)),
    "integers": Case(lambda x: (x * 7 + 3) // 5, ((100 * X).astype(np.int32),)),
    "sum of rows": Case(lambda x: anp.sum(x, axis=1), (X,)),
    "sum of columns": Case(lambda x: anp.sum(x, axis=0), (X,), rows=False),
    "sum of all": Case(anp.sum, (X,), rows=False),
    "maximum of rows": Case(lambda x: anp.max(x, axis=1), (X,)),
    "cumulative sum": Case(lambda x: anp.cumsum(x, axis=1), (X,)),
    "softmax": Case(lambda x: nn.softmax(x, axis=-1), (X,)),
    "float64 softmax": Case(lambda x: nn.softmax(x, axis=-1), (X.astype(float),)),
    "float16 softmax": Case(lambda x: nn.softmax(x, axis=-1), (X.astype(np.float16),)),
    "layernorm": Case(_layernorm, (X,)),
    "float64 layernorm": Case(_layernorm, (X.astype(float),)),
    "float16 layernorm": Case(_layernorm, (X.astype(np.float16),)),
    "logsumexp": Case(lambda x: nn.logsumexp(x, axis=-1), (X,)),
    "product of rows": Case(lambda x: anp.prod(1 + x / 16, axis=-1), (X,)),
    "variance of columns": Case(lambda x: anp.var(x, axis=0), (X,), rows=False),
    "product": Case(lambda x, w: x @ w, (X, W)),
    "sort": Case(lambda x: anp.sort(x, axis=1), (X,)),
    "recurrence": Case(_recurrent, (X,)),
    "Fourier transform": Case(anp.fft.fft, (X[:, :256],)),
    "random numbers": Case(
        lambda x: af.random.normal(af.random.key(0), x.shape), (X,), rows=False
    ),
    "solution": Case(
        anp.linalg.solve,
        (_draw(96, 96) + 10 * np.eye(96, dtype=np.float32), _draw(96, 4)),
        rows=False,
    ),
    "gradient of a network": Case(af.grad(_loss), (W, X), rows=False),
}


def _digest(results: Any) -> str:
    """A hash of the bits of a result."""
    x = np.ascontiguousarray(np.asarray(results))
    return hashlib.sha256(x.dtype.str.encode() + x.tobytes()).hexdigest()


def _moved(x: Array) -> Array:
    """A copy of ``x`` at an address that no vector is aligned to."""
    memory = np.empty(x.size + 1, x.dtype)
    made = memory[1:].reshape(x.shape)
    made[...] = x
    return made


def _jitted(case: Case) -> Any:
    return af.jit(case.function)(*case.arguments)


def _eager(case: Case) -> Any:
    return case.function(*case.arguments)


def _elsewhere(case: Case) -> Any:
    return af.jit(case.function)(*map(_moved, case.arguments))


def _fused(case: Case) -> Any:
    """The function after other work, in one program."""

    def program(x: Any, *rest: Any) -> Any:
        return case.function(x + x.dtype.type(0) * anp.abs(x), *rest)

    return af.jit(program)(*case.arguments)


def _of_rows(case: Case, rows: slice) -> Any:
    first, *rest = case.arguments
    return af.jit(case.function)(np.ascontiguousarray(first[rows]), *rest)


def _mapped(case: Case) -> Any:
    """One row at a time, by ``vmap``."""
    first, *rest = case.arguments

    def of_row(row: Any) -> Any:
        return case.function(row[None], *rest)[0]

    return af.jit(af.vmap(of_row))(first)


def _cut(case: Case, devices: int, *, fixed: bool) -> Any:
    """With the axis of rows cut over the devices of a mesh."""
    mesh = Mesh((devices,), ("data",))
    longest = max(range(len(case.arguments)), key=lambda k: len(case.arguments[k]))
    given = [
        NamedSharding(mesh, P("data" if k == longest else None))
        for k in range(len(case.arguments))
    ]
    options: dict[str, Any] = {"deterministic": DEVICES} if fixed else {}
    return af.jit(case.function, in_shardings=tuple(given), **options)(*case.arguments)


HERE: Final[Mapping[str, Callable[[Case], tuple[Any, Any]]]] = {
    "arguments at other addresses": lambda c: (_elsewhere(c), _jitted(c)),
    "fused with other work": lambda c: (_fused(c), _jitted(c)),
    "outside `jit`": lambda c: (_eager(c), _jitted(c)),
    "`vmap` of one row": lambda c: (_mapped(c), _jitted(c)),
    "a batch of 1": lambda c: (_of_rows(c, slice(1)), np.asarray(_jitted(c))[:1]),
    "a batch of 37": lambda c: (_of_rows(c, slice(37)), np.asarray(_jitted(c))[:37]),
    "8 devices instead of 1": lambda c: (
        _cut(c, 8, fixed=False),
        _cut(c, 1, fixed=False),
    ),
    "the same with `deterministic=8`": lambda c: (
        _cut(c, 8, fixed=True),
        _cut(c, 1, fixed=True),
    ),
}
"""Each gives a result under the condition, and the one to compare it with."""
_OF_ROWS: Final = frozenset({"`vmap` of one row", "a batch of 1", "a batch of 37"})
PROCESSES: Final[Mapping[str, Mapping[str, str]]] = {
    "another process": {},
    "1 thread": {"ARRAYFN_NUM_THREADS": "1"},
    "a machine of 16 cores": {"ARRAYFN_NUM_THREADS": "16"},
    "an empty disk cache": {"ARRAYFN_CACHE_DIR": ""},  # a new folder
}


def digests() -> dict[str, str]:
    """The hash of each case's result."""
    return {name: _digest(_jitted(case)) for name, case in CASES.items()}


def _digests_of_process(variables: Mapping[str, str]) -> dict[str, str]:
    command = [sys.executable, "-m", "benchmarks.bits", "--digests"]
    with tempfile.TemporaryDirectory() as folder:
        given = {name: text or folder for name, text in variables.items()}
        done = subprocess.run(
            command,
            env={**os.environ, **given},
            check=True,
            capture_output=True,
            text=True,
        )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _row(condition: str, equal: Mapping[str, bool]) -> str:
    others = ", ".join(name for name, same in equal.items() if not same)
    return f"| {condition} | {sum(equal.values())} of {len(equal)} | {others} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="When results have the same bits.")
    parser.add_argument("--digests", action="store_true", help="of each case, as JSON")
    if parser.parse_args().digests:
        sys.stdout.write(json.dumps(digests()))
        return
    print("| condition | the same bits | not for |")
    print("| --- | --- | --- |")
    first = digests()
    for condition, variables in PROCESSES.items():
        found = _digests_of_process(variables)
        print(_row(condition, {n: found[n] == first[n] for n in first}), flush=True)
    for condition, compare in HERE.items():
        equal: dict[str, bool] = {}
        for name, case in CASES.items():
            if condition in _OF_ROWS and not case.rows:
                continue
            try:
                have, want = compare(case)
            except af.errors.ArrayfnError as error:
                print(f"{condition}, {name}: {error}", file=sys.stderr)
                continue
            equal[name] = _digest(have) == _digest(want)
        print(_row(condition, equal), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("ARRAYFN_CPU_DEVICES", str(DEVICES))
    main()
