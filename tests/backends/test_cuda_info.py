"""What the CUDA backend says of itself."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

import arrayfn as af
from arrayfn.backends.cuda import (
    CudaBackend,
    missing_here,
    missing_packages,
    requirements,
)
from arrayfn.backends.cuda.requirements import missing_gpu
from arrayfn.errors import BackendError
from tests.lowered_on_gpu import lowered


def test_missing_packages_are_named_with_how_to_install_them(monkeypatch):
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    assert missing_packages() == (
        "numba-cuda and cuda-bindings not installed: pip install 'arrayfn[cuda]'"
    )


def driver_of(version=13000, count=1, arch=(9, 0)):
    """An NVIDIA driver of a version, for GPUs of a compute capability."""

    def give(value):
        def function(result, *rest):
            result._obj.value = value(*rest) if callable(value) else value
            return 0

        return function

    return SimpleNamespace(
        cuInit=lambda flags: 0,
        cuDriverGetVersion=give(version),
        cuDeviceGetCount=give(count),
        cuDeviceGetAttribute=give(lambda attribute, gpu: arch[attribute - 75]),
    )


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (driver_of(), ""),
        (
            driver_of(12040),
            "is one for CUDA 12.4: install one for CUDA 13, version 580",
        ),
        (driver_of(count=0), "finds no GPU: nvidia-smi says what it sees"),
        (driver_of(arch=(7, 5)), "has compute capability 7.5: kernels are for 8.0"),
    ],
)
def test_what_is_wrong_with_a_driver_or_a_gpu_is_named(monkeypatch, driver, reason):
    monkeypatch.setattr(requirements.ctypes, "CDLL", lambda name: driver)
    assert reason in missing_gpu()
    assert bool(reason) == bool(missing_gpu())


def test_a_missing_driver_is_named_beside_missing_packages(monkeypatch):
    def fail(name):
        raise OSError(name)

    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(requirements.ctypes, "CDLL", fail)
    packages, driver = missing_here().split("; ")
    assert packages.endswith("pip install 'arrayfn[cuda]'")
    assert driver == (
        "there is no NVIDIA driver (libcuda.so.1 was not found): install one for CUDA "
        "13, version 580 or later"
    )


@pytest.mark.skipif(not missing_here(), reason="there is a GPU here")
def test_loading_without_a_gpu_says_what_is_missing():
    compiled = lowered(lambda x: x + 1, 1.0)
    with pytest.raises(BackendError) as raised:
        CudaBackend().load(compiled)
    assert missing_here() in str(raised.value)


@pytest.mark.skipif(not missing_here(), reason="there is a GPU here")
@pytest.mark.parametrize("use", [lambda: af.device_put(1.0, "cuda"), af.memory_stats])
def test_arrays_of_a_gpu_that_is_not_there_are_refused_with_the_reason(
    use: Callable[[], object],
) -> None:
    with pytest.raises(BackendError, match="backend 'cuda' is not available"):
        use()
