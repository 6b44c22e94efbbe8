"""CUDA graphs: how the plans of a GPU are captured, and how they run.

``dispatch`` decides how each segment of a plan runs. ``walk`` enqueues a plan's nodes
on a stream, ``capture`` and ``conditional`` wrap the driver's graph functions, and
``staging`` makes graphs that serve arrays at any address.
"""
