"""Write expected.json: values of jax.random. Needs JAX; the tests do not.

python tests/random/write_expected.py
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

SEEDS = (0, 42, -1, 2**40 + 5)


def listed(x: object) -> object:
    array = np.asarray(x)
    return {"dtype": array.dtype.name, "shape": array.shape, "values": texts(array)}


def texts(array: np.ndarray) -> list[str]:
    # Through float64, in which every value of the narrower dtypes is exact.
    if array.dtype.kind in "iu":
        return [str(int(v)) for v in array.ravel()]
    return [float(v).hex() for v in array.astype(np.float64).ravel()]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    random = jax.random
    expected: dict[str, object] = {"jax": jax.__version__}
    for seed in SEEDS:
        expected[f"key {seed}"] = listed(random.key_data(random.key(seed)))
    key = random.key(3)
    expected["split 3"] = listed(random.key_data(random.split(key, 3)))
    expected["split 2 2"] = listed(random.key_data(random.split(key, (2, 2))))
    for data in (0, 1, 77, 2**31):
        folded = random.fold_in(key, np.uint32(data))
        expected[f"fold_in {data}"] = listed(random.key_data(folded))
    for name in ("uint8", "uint16", "uint32", "uint64"):
        expected[f"bits {name}"] = listed(random.bits(key, (2, 5), name))
    for name in ("float16", "bfloat16", "float32", "float64"):
        drawn = random.uniform(key, (2, 5), jnp.dtype(name))
        expected[f"uniform {name}"] = listed(drawn)
    for name in ("float32", "float64"):
        expected[f"normal {name}"] = listed(random.normal(key, (2, 8), name))
    ranges = {
        "int32": (0, 10),
        "int8": (-128, 128),
        "uint8": (3, 200),
        "uint16": (3, 2**16),
        "int64": (-5, 2**60),
        "uint32": (7, 7),
    }
    for name, (low, high) in ranges.items():
        drawn = random.randint(key, (8,), low, high, name)
        expected[f"randint {name} {low} {high}"] = listed(drawn)
    expected["permutation 10"] = listed(random.permutation(key, 10))
    table = np.arange(12).reshape(3, 4)
    expected["permutation rows"] = listed(random.permutation(key, table))
    shuffled = random.permutation(key, table, axis=1, independent=True)
    expected["permutation independent"] = listed(shuffled)
    path = Path(__file__).with_name("expected.json")
    path.write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
