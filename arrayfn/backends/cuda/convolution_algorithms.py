"""Chooses the algorithm of a convolution: cuDNN's, or a matrix product.

With strides and wide dtypes, cuDNN's deterministic engines may take longer than copying
the windows and multiplying. ``strided_blocks`` turns few channels into more. The
algorithms are timed when such a convolution is first seen on a machine, and the choice
is kept in the disk cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from arrayfn.backends.cuda import timing
from arrayfn.backends.cuda.cublas import fill
from arrayfn.backends.cuda.device_array import DeviceArray, interned
from arrayfn.backends.cuda.driver import device
from arrayfn.backends.cuda.executable import Executable
from arrayfn.backends.cuda.libraries import cudnn
from arrayfn.backends.cuda.libraries.convolutions import is_supported
from arrayfn.backends.cuda.product_forms import random_block
from arrayfn.backends.object_cache import content_key, object_cache
from arrayfn.dtypes import BY_SHORT_NAME, short_name
from arrayfn.errors import BackendError, OutOfMemoryError
from arrayfn.lowering.cuda.config import GPU, ConvolutionAlgorithm
from arrayfn.lowering.cuda.lower import lower
from arrayfn.lowering.cuda.windows.convolutions import ON_TENSOR_CORES, program_of
from arrayfn.lowering.cuda.windows.strided_blocks import has_blocks
from arrayfn.lowering.options import Options

MAX_COPIED: Final = 1 << 30
"""Most bytes of copied windows for which the matrix product of windows is tried."""


def choose_algorithm(
    provider: str, integers: Mapping[str, int]
) -> ConvolutionAlgorithm:
    """Choose the fastest algorithm of a convolution, by timing if there are several.

    ``provider`` is the name of the library kernel, ``integers`` its extents and
    strides. The choice is kept in the disk cache. A convolution that cuDNN does not
    support is a matrix product.
    """
    if not is_supported(provider, integers):
        return "product"
    candidates = candidate_algorithms(provider, integers)
    if len(candidates) == 1:
        return candidates[0]
    gpu, version = device(), cudnn.library().backend_version()
    key = content_key(
        f"convolution {version} {gpu.name} {provider}",
        f"{sorted(integers.items())} {candidates}",
    )
    kept = object_cache().get_or_compile(key, lambda: _fastest(provider, integers))
    return next(algorithm for algorithm in candidates if algorithm == kept.decode())


def candidate_algorithms(
    provider: str, p: Mapping[str, int]
) -> tuple[ConvolutionAlgorithm, ...]:
    """Return the algorithms of a convolution that are worth timing, "library" first.

    ``provider`` is the name of the library kernel, such as "convolution_output_f32";
    ``p`` has its extents and strides. A matrix product of the copied windows is worth
    timing only with a stride above 1, without tensor cores, and if the copy is at most
    ``MAX_COPIED`` bytes.
    """
    candidates: list[ConvolutionAlgorithm] = ["library"]
    axes = range(p["axes"])
    if has_blocks(p):
        candidates.append("blocks")
    copied_elements = p["batch"] * p["groups"] * p["inner"]
    copied_elements *= math.prod(p[f"count{k}"] * p[f"size{k}"] for k in axes)
    size = BY_SHORT_NAME[provider.split("_")[2]].itemsize
    on_tensor_cores = provider.removesuffix("_any").endswith(ON_TENSOR_CORES)
    is_strided = max(p[f"stride{k}"] for k in axes) > 1
    if is_strided and not on_tensor_cores and copied_elements * size <= MAX_COPIED:
        candidates.append("product")
        if has_blocks(p):
            candidates.append("product of blocks")
    return tuple(candidates)


def _fastest(provider: str, integers: Mapping[str, int]) -> bytes:
    """Time the candidate algorithms, and return the name of the fastest as bytes.

    Of algorithms that are about as fast, the first candidate is preferred: the
    library's. A candidate that fails or runs out of memory is left out; if all do, the
    result is the library's.
    """
    seconds: dict[ConvolutionAlgorithm, float] = {}
    for algorithm in candidate_algorithms(provider, integers):
        try:
            seconds[algorithm] = _seconds(provider, integers, algorithm)
        except (OutOfMemoryError, BackendError):
            continue
    bound = timing.TIE_RATIO * min(seconds.values(), default=0.0)
    fast = (algorithm for algorithm, time in seconds.items() if time <= bound)
    return next(fast, "library").encode()


def _seconds(
    provider: str, p: Mapping[str, int], algorithm: ConvolutionAlgorithm
) -> float:
    """Return the seconds that a convolution of random data takes by ``algorithm``.

    Lowers the convolution for a GPU configuration that always chooses ``algorithm``.
    """
    gpu = replace(GPU, choose_convolution=lambda provider, integers: algorithm)
    program = program_of(provider, p)
    options = Options(deterministic=not provider.endswith("_any"))
    run = Executable(lower(program, gpu=gpu, options=options))
    arrays: list[DeviceArray] = []
    for type in map(interned, program.input_types):
        arrays.append(DeviceArray(type, *device().block(type.nbytes)))
        block = random_block(short_name(type.dtype))
        fill(arrays[-1].address(), type.nbytes, block)
    return timing.time_repeated(lambda: run(arrays))
