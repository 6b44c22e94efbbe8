"""CUDA graphs: how the plans of a GPU are captured, and how they run.

``strategy`` decides how each segment of a plan runs, and ``dispatch`` runs it that way.
The other modules are:

* ``walk`` enqueues a plan's steps on a stream, loops and branches included.
* ``capture`` and ``conditional`` add steps to a graph: each step after those that it
  depends on, and loops and branches as conditional nodes.
* ``replay`` and ``staging`` make the plans that launch a captured graph again.
* ``kernels`` has the PTX of the kernels that only graphs need.
"""
