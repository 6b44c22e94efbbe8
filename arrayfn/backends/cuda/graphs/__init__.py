"""CUDA graphs: how the plans of a GPU are captured, and how they run.

``strategy`` decides how each segment of a plan runs, and ``dispatch`` runs it so. The
rest does what was decided:

* ``walk`` enqueues a plan's steps on a stream, loops and branches included.
* ``capture`` and ``conditional`` put them into a graph: each step after those that it
  depends on, and loops and branches as conditional nodes.
* ``replay`` and ``staging`` make the plans that launch a captured graph again.
* ``kernels`` has the PTX of the kernels that only graphs need.
"""
