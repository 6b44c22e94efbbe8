"""The demonstration: trains a classifier of handwritten digits and explains it.

It trains a network of two hidden layers on scikit-learn's digits, by stochastic
gradient descent through ``jit(value_and_grad(loss))``. Then it shows the traced
Program, one of its kernels, and the time of a step beside the same step written by hand
in NumPy.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.syntax import Syntax
from sklearn.datasets import load_digits

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.lowering.plan import Kernel
from arrayfn.records import frozen

Array = Any
Params = list[tuple[Array, Array]]
Step = Callable[..., tuple[Array, Params]]

HIDDEN = 128
BATCH = 32
RATE = 0.2
NOISE = 0.2  # added to the training images' pixels, which are in [0, 1]
HELD_OUT = 360
GOAL = 0.97
SEED = 0
PROGRAM_LINES = 24


# ------------------------------------------------------------------ data and model


@frozen
class Digits:
    """Training and held-out images f32[n, 64] in [0, 1], with labels i32[n]."""

    images: Array
    labels: Array
    held_out_images: Array
    held_out_labels: Array


def load(rng: np.random.Generator) -> Digits:
    """Return the 1797 digits in random order, ``HELD_OUT`` of them held out."""
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    x = (images[order] / 16.0).astype(np.float32)
    y = labels[order].astype(np.int32)
    return Digits(x[HELD_OUT:], y[HELD_OUT:], x[:HELD_OUT], y[:HELD_OUT])


def initial(rng: np.random.Generator) -> Params:
    """Return random weights f32[n, m] and zero biases f32[m] of layers 64-128-128-10.

    The weights have the variance 2 / n (He et al. 2015, for rectified units).
    """
    return [
        (
            (rng.standard_normal((n, m)) * (2.0 / n) ** 0.5).astype(np.float32),
            np.zeros(m, np.float32),
        )
        for n, m in ((64, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 10))
    ]


def logits(params: Params, x: Array) -> Array:
    """Return the scores f32[n, 10] of images ``x``, f32[n, 64]."""
    *hidden, (w, b) = params
    for weight, bias in hidden:
        x = anp.maximum(x @ weight + bias, 0.0)
    return x @ w + b


def loss(params: Params, x: Array, labels: Array) -> Array:
    """Return the mean cross-entropy of ``labels`` for images ``x``, f32[n, 64]."""
    z = logits(params, x)
    # Subtracting the maximum avoids overflow. It does not change the loss, so it needs
    # no derivative.
    z = z - lax.stop_gradient(anp.max(z, axis=1, keepdims=True))
    z = z - anp.log(anp.sum(anp.exp(z), axis=1, keepdims=True))
    return -anp.mean(anp.take_along_axis(z, labels[:, None], axis=1))


def sgd(value_and_gradient: Callable[..., Any]) -> Step:
    """Make a step of gradient descent: (params, x, labels, rate) to (loss, params).

    ``value_and_gradient(params, x, labels)`` returns the loss and its gradient.
    """

    def step(params: Params, x: Array, labels: Array, rate: Array) -> Any:
        """Return the loss, and the parameters moved against its gradient."""
        value, gradient = value_and_gradient(params, x, labels)
        moved = af.tree.map(lambda p, g: p - rate * g, params, gradient)
        return value, moved

    return step


def numpy_step(params: Params, x: Array, labels: Array, rate: float) -> Any:
    """Compute the step of ``sgd`` by hand: forward, backward, update.

    ``x`` are images f32[n, 64], ``labels`` their digits, ``rate`` the step's length.
    Returns the loss and the new parameters.
    """
    (w1, b1), (w2, b2), (w3, b3) = params
    h1 = np.maximum(x @ w1 + b1, 0.0)
    h2 = np.maximum(h1 @ w2 + b2, 0.0)
    z = h2 @ w3 + b3
    z -= z.max(axis=1, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    value = -z[rows, labels].mean()

    # d3, d2 and d1 are the derivatives of the loss by the layers' outputs before relu.
    d3 = np.exp(z)
    d3[rows, labels] -= 1.0
    d3 /= np.float32(len(labels))
    d2 = (d3 @ w3.T) * (h2 > 0.0)
    d1 = (d2 @ w2.T) * (h1 > 0.0)
    scale = np.float32(rate)
    layers = ((w1, b1, x, d1), (w2, b2, h1, d2), (w3, b3, h2, d3))
    return value, [
        (w - scale * (a.T @ d), b - scale * d.sum(axis=0)) for w, b, a, d in layers
    ]


# ------------------------------------------------------------------------ training


@frozen
class Trained:
    """The trained parameters, the loss of each step, the accuracy of each epoch."""

    params: Params
    losses: list[float]
    accuracies: list[float]


def train(
    step: Step,
    predict: Callable[..., Array],
    digits: Digits,
    epochs: int,
    bar: Progress,
) -> Trained:
    """Train by gradient descent for ``epochs``, with a decaying rate, on noisy images.

    ``step`` is made by ``sgd``, and ``predict(params, images)`` returns scores. ``bar``
    shows progress.
    """
    rng = np.random.default_rng(SEED)
    params, losses, accuracies = initial(rng), [], []
    count = len(digits.labels)
    task = bar.add_task("training", total=epochs, loss=0.0, accuracy=0.0)
    for epoch in range(epochs):
        rate = RATE * (1.0 - epoch / epochs)
        order = rng.permutation(count)
        noise = rng.normal(0.0, NOISE, digits.images.shape).astype(np.float32)
        images = digits.images + noise
        for start in range(0, count - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            value, params = step(params, images[batch], digits.labels[batch], rate)
            losses.append(float(value))
        guesses = np.argmax(np.asarray(predict(params, digits.held_out_images)), axis=1)
        accuracies.append(float(np.mean(guesses == digits.held_out_labels)))
        bar.update(
            task, advance=1, loss=np.mean(losses[-40:]), accuracy=100 * accuracies[-1]
        )
    return Trained(params, losses, accuracies)


def plot(trained: Trained, file: Path) -> None:
    """Write the loss of every step and the accuracy of every epoch as a PNG."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    left = figure.subplots()
    steps = np.arange(1, len(trained.losses) + 1)
    left.semilogy(steps, trained.losses, color="0.75", linewidth=0.8, label="loss")
    width = min(40, len(steps))
    smooth = np.convolve(trained.losses, np.full(width, 1.0 / width), "valid")
    left.semilogy(
        steps[width - 1 :], smooth, color="C0", label=f"mean of {width} steps"
    )
    left.set(xlabel="step", ylabel="cross-entropy")
    right = left.twinx()
    ends = np.linspace(0, len(steps), len(trained.accuracies) + 1)[1:]
    right.plot(ends, trained.accuracies, "C1.-", label="accuracy")
    right.set(ylim=(0.8, 1.0), ylabel="held-out accuracy")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(file, dpi=150)


# --------------------------------------------------------------------- explanation


def shortened(text: str, lines: int) -> str:
    """Shorten ``text`` to ``lines`` lines: the first ones, a count, the last one."""
    all_lines = text.rstrip().splitlines()
    if len(all_lines) <= lines:
        return "\n".join(all_lines)
    count = len(all_lines) - lines + 1
    return "\n".join(
        [*all_lines[: lines - 2], f"  ... {count} more lines", all_lines[-1]]
    )


def telling(kernels: tuple[Any, ...]) -> Kernel:
    """Return the kernel to show as an example: the short one with the most primitives.

    Short kernels have at most 80 lines. If there are none, long ones count.
    """
    generated = [kernel for kernel in kernels if isinstance(kernel, Kernel)]
    short = [kernel for kernel in generated if len(kernel.source.splitlines()) <= 80]
    # A kernel's reason lists its primitives, separated by commas.
    return max(short or generated, key=lambda kernel: kernel.reason.count(","))


def show(console: Console, title: str, code: str, language: str) -> None:
    """Print ``code`` in colour under a ``title``.

    Its lines are not wrapped, so that it can be copied. ``language`` is the
    highlighter's name of its language.
    """
    console.rule(f"[bold]{title}")
    highlighted = Syntax("", language, background_color="default").highlight(code)
    console.print(highlighted, soft_wrap=True)


def interleaved(runs: list[Callable[[], object]], repeats: int = 300) -> list[float]:
    """Call ``runs`` in turn, ``repeats`` times; return the median seconds of each."""
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, times in zip(runs, samples, strict=True):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    # The first tenth warms up.
    return [statistics.median(times[repeats // 10 :]) for times in samples]


def explain(console: Console, step: Any, arguments: tuple[Any, ...]) -> None:
    """Print the Program of ``step``, a kernel, and its time beside NumPy's."""
    lowered = step.lower(*arguments)
    program = shortened(str(lowered.program), PROGRAM_LINES)
    show(console, "the Program (typed IR)", program, "rust")
    kernel = telling(lowered.kernels)
    title = f"one of {len(lowered.kernels)} kernels: {kernel.name}"
    show(console, title, kernel.source, "python")
    console.rule("[bold]time")
    value, params = step(*arguments)
    # On a GPU the arguments are device arrays, which NumPy's step cannot take.
    host = af.tree.map(np.asarray, arguments)
    expected, expected_params = numpy_step(*host)
    pairs = zip(af.tree.leaves(params), af.tree.leaves(expected_params), strict=True)
    difference = max(float(np.max(np.abs(np.asarray(a) - b))) for a, b in pairs)
    # Reading the loss waits for the GPU.
    ours, numpys = interleaved(
        [lambda: float(step(*arguments)[0]), lambda: numpy_step(*host)]
    )
    console.print(
        f"a step of {BATCH} images: arrayfn [bold]{ours * 1e6:.0f} us[/], NumPy by "
        f"hand {numpys * 1e6:.0f} us ({numpys / ours:.1f} times as long). Loss "
        f"{float(value):.6f} and {float(expected):.6f}; parameters differ by at most "
        f"{difference:.1e}."
    )


def run(device: str, epochs: int, file: Path) -> int:
    """Train for ``epochs`` on ``device``, explain, and plot to ``file``.

    Returns 0 if the held-out accuracy reaches the goal, else 1.
    """
    console = Console()
    step = af.jit(sgd(af.value_and_grad(loss)), device=device)
    predict = af.jit(logits, device=device)
    digits = load(np.random.default_rng(SEED))
    console.print(
        f"{len(digits.labels)} handwritten digits, {HELD_OUT} more held out; "
        f"64-{HIDDEN}-{HIDDEN}-10 on {device}"
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TextColumn("held-out accuracy {task.fields[accuracy]:.2f} %"),
    )
    start = time.perf_counter()
    with Progress(*columns, console=console) as bar:
        trained = train(step, predict, digits, epochs, bar)
    seconds = time.perf_counter() - start
    accuracy = trained.accuracies[-1]
    console.print(
        f"{len(trained.losses)} steps in {seconds:.1f} s; loss "
        f"{np.mean(trained.losses[-40:]):.4f}; held-out accuracy "
        f"[bold]{100 * accuracy:.2f} %[/] (goal {100 * GOAL:.0f} %)"
    )
    plot(trained, file)
    console.print(f"loss curve: {file}")
    batch = af.device_put((digits.images[:BATCH], digits.labels[:BATCH]), device)
    explain(console, step, (trained.params, *batch, 0.01))
    return 0 if accuracy >= GOAL else 1
