"""A call entry for native code: arrays by their addresses, without Python objects."""

from __future__ import annotations

from arrayfn.backends.cpu.frames import frame_give, frame_take
from arrayfn.backends.cpu.image_layout import Image
from arrayfn.backends.cpu.runner import run_frame
from arrayfn.backends.cpu.signals import PyGILState_Ensure, PyGILState_Release
from arrayfn.backends.native import native
from arrayfn.backends.native.python_objects import PyErr_NoMemory
from arrayfn.backends.native.structures import Array


@native
def run_at(image: Image, addresses: Array[int]) -> int:
    """Run the plan on the arrays of inputs and outputs at ``addresses``.

    They lie as the plan's types say. It returns 0, or 1 with a Python exception set.
    The caller may hold the GIL or not: a thread of Numba's parallel loops does not. The
    GIL guards the frames and the heap; the plan itself may run without it.
    """
    state = PyGILState_Ensure()
    result = 1
    frame = frame_take(image)
    if frame is None:
        PyErr_NoMemory()
    else:
        for i in range(image.input_count + image.output_count):
            frame.bases[i] = addresses[i]
        if run_frame(image, frame):
            result = 0
        frame_give(image, frame)
    PyGILState_Release(state)
    return result
