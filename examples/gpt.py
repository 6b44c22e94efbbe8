"""A small GPT, trained on the source text of Python's standard library.

    python examples/gpt.py
    python examples/gpt.py --steps 2000 --layers 4 --width 256 --kv-heads 2
    python examples/gpt.py --device cuda --dtype bfloat16 --layers 12 --width 768
    ARRAYFN_CPU_DEVICES=4 python examples/gpt.py --devices 4

A token is a character. The model is a decoder with pre-normalisation, rotary or learned
positions, and grouped-query attention. A training step is one jitted function of the
parameters and the optimizer state. Sampling is another jitted function, a ``lax.scan``
over positions with a cache of keys and values. Parameters are float32, and the blocks
compute in the dtype that ``--dtype`` names. With ``--devices``, each device computes a
part of the batch. One line of the program divides the batch among the devices.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn, optim, random

Array = Any
Params = dict[str, Any]

MODULES = """
    argparse bisect calendar cmd code configparser contextlib copy csv dataclasses
    difflib doctest enum fileinput fnmatch fractions functools getopt glob gzip heapq
    inspect ipaddress linecache mailbox numbers optparse pathlib pdb pickle pprint
    queue random reprlib sched selectors shelve shlex shutil socket statistics string
    subprocess tarfile tempfile textwrap threading timeit token tokenize trace
    traceback turtle typing unittest/case unittest/mock uuid weakref zipfile
"""
# Tokens: a newline and the printable characters of ASCII. Others are left out.
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))


def read_text() -> str:
    """The sources of the standard library's modules above, as far as they are there."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [folder / f"{name}.py" for name in MODULES.split()]
    return "\n".join(f.read_text("utf-8") for f in files if f.exists())


def encode(text: str) -> np.ndarray[Any, Any]:
    """The tokens of a text, uint8."""
    codes = np.frombuffer(text.encode("ascii", "ignore"), np.uint8)
    table = np.full(128, 255, np.uint8)
    table[[ord(c) for c in ALPHABET]] = range(len(ALPHABET))
    tokens = table[codes]
    return tokens[tokens != 255]


def decode(tokens: Any) -> str:
    """The text of tokens."""
    return "".join(ALPHABET[int(t)] for t in np.ravel(tokens))


@dataclass(frozen=True)
class Config:
    """The sizes of the model. ``kv_heads`` divides ``heads``, and that ``width``."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    context: int = 96
    rope: bool = True
    dtype: str = "float32"  # of the blocks and the logits

    @property
    def head_size(self) -> int:
        """The number of features of a head."""
        return self.width // self.heads


def init_params(key: random.Key, config: Config) -> Params:
    """Random parameters, float32."""
    scaled = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
    small = nn.initializers.variance_scaling(0.5 / config.layers, "fan_in", "normal")
    width, queries = config.width, config.heads * config.head_size
    keys_and_values = 2 * config.kv_heads * config.head_size

    def block(key: random.Key) -> Params:
        q, kv, out, up, down = random.split(key, 5)
        return {
            "attention_norm": anp.ones(width, dtype=np.float32),
            "q": scaled(q, (width, queries), np.float32),
            "kv": scaled(kv, (width, keys_and_values), np.float32),
            "out": small(out, (queries, width), np.float32),
            "mlp_norm": anp.ones(width, dtype=np.float32),
            "up": scaled(up, (width, 4 * width), np.float32),
            "down": small(down, (4 * width, width), np.float32),
        }

    embed_key, position_key, *block_keys = random.split(key, config.layers + 2)
    params: Params = {
        "embed": 0.05 * random.normal(embed_key, (len(ALPHABET), width), np.float32),
        "norm": anp.ones(width, dtype=np.float32),
        "blocks": [block(k) for k in block_keys],
    }
    if not config.rope:
        shape = (config.context, width)
        params["positions"] = 0.05 * random.normal(position_key, shape, np.float32)
    return params


Attend = Callable[[Array, Array, Array], Array]


def apply_block(
    params: Params, x: Array, positions: Array, attend: Attend, config: Config
) -> Array:
    """x: [B, T, width]. ``attend`` mixes positions, given queries, keys and values."""
    batch, length, _ = x.shape
    y = nn.rms_norm(x, params["attention_norm"])
    q = (y @ params["q"]).reshape(batch, length, config.heads, config.head_size)
    kv = y @ params["kv"]
    kv = kv.reshape(batch, length, 2 * config.kv_heads, config.head_size)
    k, v = kv[:, :, : config.kv_heads], kv[:, :, config.kv_heads :]
    if config.rope:
        q, k = nn.rope(q, positions), nn.rope(k, positions)
    mixed = attend(q, k, v).reshape(batch, length, -1)
    x = x + mixed @ params["out"]
    hidden = nn.gelu(nn.rms_norm(x, params["mlp_norm"]) @ params["up"])
    return x + hidden @ params["down"]


def embed(params: Params, tokens: Array, positions: Array) -> Array:
    """[B, T, width] of tokens [B, T] at positions [T]."""
    x = anp.take(params["embed"], tokens, axis=0)
    if "positions" in params:
        x = x + anp.take(params["positions"], positions, axis=0)
    return x


def to_logits(params: Params, x: Array) -> Array:
    """The logits of the next token; the embedding is used both ways."""
    return nn.rms_norm(x, params["norm"]) @ params["embed"].T


def computing(params: Params, config: Config) -> Params:
    """The parameters in the dtype that is computed in."""
    return af.tree.map(lambda p: p.astype(config.dtype), params)


def forward(params: Params, tokens: Array, config: Config) -> Array:
    """The logits [B, T, tokens] of what follows each position."""
    params = computing(params, config)
    positions = anp.arange(tokens.shape[1])
    x = embed(params, tokens, positions)
    attend = partial(nn.dot_product_attention, is_causal=True)
    for block in params["blocks"]:
        x = apply_block(block, x, positions, attend, config)
    return to_logits(params, x)


def loss_of(params: Params, tokens: Array, config: Config) -> Array:
    """The mean cross-entropy, in nats a character, of windows of tokens [B, T + 1]."""
    logits = forward(params, tokens[:, :-1], config).astype(np.float32)
    labels = nn.one_hot(tokens[:, 1:], len(ALPHABET), dtype=np.float32)
    return -(labels * nn.log_softmax(logits)).sum(-1).mean()


# Training.


def windows(key: random.Key, text: Array, batch: int, length: int) -> Array:
    """[batch, length] pieces of the text from random places."""
    starts = random.randint(key, (batch, 1), 0, text.shape[0] - length, np.int32)
    places = starts + anp.arange(length, dtype=np.int32)
    return anp.take(text, places).astype(np.int32)


def optimizer(steps: int) -> optim.Optimizer:
    """AdamW with a warm-up and a cosine decay over ``steps``, on clipped gradients."""
    schedule = optim.warmup_cosine_decay_schedule(
        1e-4, 4e-3, min(40, steps // 4 + 1), steps + 1, 2e-4
    )
    return optim.chain(
        optim.clip_by_global_norm(1.0), optim.adamw(schedule, b2=0.98, weight_decay=0.1)
    )


def train_step(
    params: Params,
    state: Any,
    key: random.Key,
    text: Array,
    *,
    config: Config,
    batch: int,
    rule: optim.Optimizer,
    rows: af.NamedSharding | None = None,
) -> tuple[Params, Any, Array]:
    """The parameters and the optimizer's state after a step, and the loss before it.

    ``rows`` cuts the batch over devices.
    """
    tokens = windows(key, text, batch, config.context + 1)
    tokens = lax.with_sharding_constraint(tokens, rows)
    loss = partial(loss_of, tokens=tokens, config=config)
    value, gradients = af.value_and_grad(loss)(params)
    updates, state = rule.update(gradients, state, params)
    return optim.apply_updates(params, updates), state, value


def train(
    config: Config,
    text: np.ndarray[Any, Any],
    steps: int,
    batch: int,
    seed: int = 0,
    device: str | None = "cpu",
    devices: int = 1,
) -> Iterator[tuple[int, Array, Params]]:
    """Yield the step, the loss before it, and the parameters after it.

    On a GPU steps are enqueued; who reads a loss waits for it.
    """
    rows = None
    if devices > 1:
        mesh = af.Mesh((devices,), ("data",), platform=device or "cpu")
        rows, device = af.NamedSharding(mesh, af.PartitionSpec("data")), None
        text = af.device_put(text, af.NamedSharding(mesh, af.PartitionSpec()))
    params_key, data_key = random.split(random.key(seed))
    rule = optimizer(steps)
    step = af.jit(
        partial(train_step, config=config, batch=batch, rule=rule, rows=rows),
        device=device,
    )
    params = init_params(params_key, config)
    state = rule.init(params)
    if device == "cuda":
        params, state, text = af.device_put((params, state, text))
    for number in range(steps):
        key = random.fold_in(data_key, number)
        params, state, value = step(params, state, key, text)
        yield number, value, params


# Sampling.


def sample(
    params: Params,
    prompt: Array,
    key: random.Key,
    temperature: Array,
    *,
    config: Config,
    length: int,
) -> Array:
    """``prompt`` and what the model writes after it: ``length`` tokens together.

    One token at a time, in a ``lax.scan``; each layer keeps the keys and values of the
    positions before, and attends to as many as there were in training. With learned
    positions ``length`` is at most the context.
    """
    shape = (1, length, config.kv_heads, config.head_size)
    nothing = anp.zeros(shape, dtype=config.dtype)
    params = computing(params, config)
    positions = anp.arange(length, dtype=np.int32)

    def step(carry: Any, position: Array) -> tuple[Any, Array]:
        token, caches = carry
        x = embed(params, token.reshape(1, 1), position.reshape(1))
        near = (positions <= position) & (positions > position - config.context)
        kept: list[tuple[Array, Array]] = []

        def attend(q: Array, k: Array, v: Array) -> Array:
            cache = caches[len(kept)]
            place = (0, position, 0, 0)
            k, v = (
                lax.dynamic_update_slice(old, new, place)
                for old, new in zip(cache, (k, v), strict=True)
            )
            kept.append((k, v))
            return nn.dot_product_attention(q, k, v, mask=near)

        for block in params["blocks"]:
            x = apply_block(block, x, position.reshape(1), attend, config)
        logits = to_logits(params, x)[0, 0].astype(np.float32) / temperature
        drawn = random.categorical(random.fold_in(key, position), logits)
        # Within the prompt, what follows is known.
        following = anp.minimum(position + 1, prompt.shape[0] - 1)
        is_known = position + 1 < prompt.shape[0]
        known = anp.take(prompt, following)
        chosen = anp.where(is_known, known, drawn.astype(prompt.dtype))
        return (chosen, kept), token

    caches = [(nothing, nothing) for _ in params["blocks"]]
    _, tokens = lax.scan(step, (prompt[0], caches), positions)
    return tokens


def sampling_mode(config: Config) -> str | None:
    """How a GPU is to sample: a small model's tokens by one kernel, all of them."""
    return "persistent" if config.width <= 256 else None


def write(
    params: Params,
    config: Config,
    prompt: str,
    length: int,
    temperature: float = 0.7,
    device: str = "cpu",
) -> str:
    """The prompt and what the model writes after it."""
    if not config.rope:
        length = min(length, config.context)
    draw = af.jit(
        partial(sample, config=config, length=length),
        device=device,
        mode=sampling_mode(config),
    )
    tokens = draw(params, encode(prompt), random.key(1), np.float32(temperature))
    return decode(tokens)


def main() -> None:
    """Train, and show the loss and a sample."""
    parser = argparse.ArgumentParser(description="Train a GPT on the standard library.")
    for name, default in (
        ("steps", 800),
        ("batch", 8),
        ("layers", Config.layers),
        ("width", Config.width),
        ("heads", Config.heads),
        ("kv-heads", Config.kv_heads),
        ("context", Config.context),
        ("seed", 0),
        ("length", 400),
        ("devices", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--learned-positions", action="store_true")
    options = parser.parse_args()
    config = Config(
        options.layers,
        options.width,
        options.heads,
        options.kv_heads,
        options.context,
        rope=not options.learned_positions,
        dtype=options.dtype,
    )
    text = encode(read_text())
    count = sum(x.size for x in af.tree.leaves(init_params(random.key(0), config)))
    print(f"{len(text):,} characters, {count:,} parameters")
    start = time.perf_counter()
    recent: list[Array] = []
    params: Params = {}
    steps = train(
        config,
        text,
        options.steps,
        options.batch,
        options.seed,
        options.device,
        options.devices,
    )
    for number, loss, trained in steps:
        params = trained
        recent = [*recent[-19:], loss]
        if (number + 1) % max(1, options.steps // 10) == 0:
            mean = float(np.mean([float(x) for x in recent]))
            bits = mean / math.log(2)
            seconds = time.perf_counter() - start
            rate = (number + 1) * options.batch * config.context / seconds
            print(
                f"step {number + 1:5d}  loss {mean:.3f} ({bits:.2f} bits a character)"
                f"  {rate:,.0f} characters/s"
            )
    start = time.perf_counter()
    written = write(
        params, config, "def __init__(self", options.length, device=options.device
    )
    seconds = time.perf_counter() - start
    print(f"\n{written}\n")
    print(f"{seconds:.1f} s to compile that and write {len(written)} characters")


if __name__ == "__main__":
    main()
