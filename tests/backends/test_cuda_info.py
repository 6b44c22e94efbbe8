"""What the CUDA backend says of itself."""

import pytest

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
