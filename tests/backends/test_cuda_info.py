"""What the CUDA backend says of itself."""

from collections.abc import Callable

import pytest

import arrayfn as af
from arrayfn.backends import cuda
from arrayfn.backends.cuda import CudaBackend, missing_here, missing_packages
from arrayfn.errors import BackendError
from arrayfn.functions import trace_function
from arrayfn.lowering.cuda.lower import lower


def test_missing_packages_are_named_with_how_to_install_them(monkeypatch):
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: None)
    assert missing_packages() == (
        "numba-cuda and cuda-core not installed: pip install 'arrayfn[cuda]'"
    )


def test_a_missing_driver_is_named(monkeypatch):
    def fail(name):
        raise OSError(name)

    monkeypatch.setattr(cuda, "missing_packages", str)
    monkeypatch.setattr(cuda.ctypes, "CDLL", fail)
    assert "no NVIDIA driver: libcuda.so.1 was not found" in missing_here()


@pytest.mark.skipif(not missing_here(), reason="there is a GPU here")
def test_loading_without_a_gpu_says_what_is_missing():
    compiled = lower(trace_function(lambda x: x + 1, (1.0,), {}).program)
    with pytest.raises(BackendError) as raised:
        CudaBackend().load(compiled)
    assert missing_here() in str(raised.value)


@pytest.mark.skipif(not missing_here(), reason="there is a GPU here")
@pytest.mark.parametrize("use", [lambda: af.device_put(1.0), af.memory_stats])
def test_arrays_of_a_gpu_that_is_not_there_are_refused_with_the_reason(
    use: Callable[[], object],
) -> None:
    with pytest.raises(BackendError, match="backend 'cuda' is not available"):
        use()
