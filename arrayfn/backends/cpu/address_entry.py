"""A call entry for native code: arrays by their addresses, without Python objects."""

from __future__ import annotations

from arrayfn.backends.cpu.frames import frame_acquire, frame_release
from arrayfn.backends.cpu.image_layout import Image
from arrayfn.backends.cpu.runner import run_frame
from arrayfn.backends.cpu.signals import PyGILState_Ensure, PyGILState_Release
from arrayfn.backends.native import native
from arrayfn.backends.native.python_objects import PyErr_NoMemory
from arrayfn.backends.native.structures import Array


@native
def run_at(image: Image, addresses: Array[int]) -> int:
    """Run the plan of ``image`` on arrays at ``addresses``; for native callers.

    ``addresses`` are those of the inputs, then those of the outputs. Nothing is
    checked: the arrays must have the types of the plan. Returns 0, or 1 with a Python
    exception set. The caller need not hold the GIL: a thread of Numba's parallel loops
    does not. The GIL guards the frames and the heap, so this routine takes it;
    ``run_frame`` releases it while a long plan runs.
    """
    state = PyGILState_Ensure()
    result = 1
    frame = frame_acquire(image)
    if frame is None:
        PyErr_NoMemory()
    else:
        for i in range(image.input_count + image.output_count):
            frame.bases[i] = addresses[i]
        if run_frame(image, frame):
            result = 0
        frame_release(image, frame)
    PyGILState_Release(state)
    return result
