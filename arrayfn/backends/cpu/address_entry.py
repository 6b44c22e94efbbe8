"""A call entry for native code: arrays by their addresses, without Python objects."""

from __future__ import annotations

from arrayfn.backends.cpu.frames import frame_give, frame_take
from arrayfn.backends.cpu.image_layout import Image
from arrayfn.backends.cpu.runner import run_frame
from arrayfn.backends.native import native
from arrayfn.backends.native.python_objects import PyErr_NoMemory
from arrayfn.backends.native.structures import Array


@native
def run_at(image: Image, addresses: Array[int]) -> int:
    """Run the plan on the arrays of inputs and outputs at ``addresses``.

    They lie as the plan's types say. The caller holds the GIL. It returns 0, or 1 with
    a Python exception set.
    """
    frame = frame_take(image)
    if frame is None:
        PyErr_NoMemory()
        return 1
    for i in range(image.input_count + image.output_count):
        frame.bases[i] = addresses[i]
    result = 1
    if run_frame(image, frame):
        result = 0
    frame_give(image, frame)
    return result
